"""Examples of resets: calls that work, for tests of all public names."""

from pathlib import Path

import trainkit as tk
from tests.faults.makers import Call


def calls(folder: Path) -> dict[str, Call]:
    return {"NetworkResets": Call(tk.callbacks.NetworkResets, {"every": 100})}
