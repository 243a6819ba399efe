"""Examples of resets: calls that work, and runs in which options matter, for tests of all public names."""

from pathlib import Path
from typing import Any

import trainkit as tk
from tests.faults.makers import Call
from tests.outside.constructors import Run, q_learner, replayed


def calls(folder: Path) -> dict[str, Call]:
    return {"NetworkResets": Call(tk.callbacks.NetworkResets, {"every": 100})}


RUNS: dict[Any, list[Run]] = {
    tk.callbacks.NetworkResets: [lambda build: replayed(q_learner(), callbacks=build(5))],
}
