"""Examples of export: calls that work, for tests of all public names."""

from pathlib import Path

import trainkit as tk
from tests.faults.makers import Call, learner


def calls(folder: Path) -> dict[str, Call]:
    return {
        "export": Call(tk.export, {"policy": learner(), "path": folder / "policy.pt2"}),
    }
