"""What tests of all public names leave out of tune, and runs in which options matter."""

from typing import Any

import trainkit as tk
from tests.outside.constructors import Run, q_learner, replayed

NOT_CALLED = {"TuneReport"}  # needs an extra


RUNS: dict[Any, list[Run]] = {
    tk.callbacks.TuneReport: [lambda build: replayed(q_learner(), callbacks=build())],
}
