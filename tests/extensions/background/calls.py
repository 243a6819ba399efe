"""Calls of evaluation in the background that work, for the table of all public calls."""

from pathlib import Path

import trainkit as tk
from tests.faults.makers import Call


def calls(folder: Path) -> dict[str, Call]:
    return {
        "BackgroundEvaluation": Call(tk.BackgroundEvaluation, {}),
    }
