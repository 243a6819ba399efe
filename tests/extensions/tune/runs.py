"""Runs of tune in which options of constructors matter."""

from typing import Any

import trainkit as tk
from tests.outside.constructors import Run, q_learner, replayed

RUNS: dict[Any, list[Run]] = {
    tk.callbacks.TuneReport: [lambda build: replayed(q_learner(), callbacks=build())],
}
