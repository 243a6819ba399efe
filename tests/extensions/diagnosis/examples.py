"""Examples of diagnosis: calls that work, and runs in which options matter, for tests of all public names."""

from pathlib import Path
from typing import Any

import trainkit as tk
from tests.faults.makers import Call
from tests.outside.constructors import Run, q_learner, replayed


def calls(folder: Path) -> dict[str, Call]:
    return {
        "Diagnosis": Call(tk.callbacks.Diagnosis, {}),
    }


RUNS: dict[Any, list[Run]] = {
    tk.callbacks.Diagnosis: [lambda build: replayed(q_learner(), callbacks=build())],
}
