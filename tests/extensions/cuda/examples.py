"""Examples of cuda: calls that work, and runs in which options matter, for tests of all public names."""

from pathlib import Path
from typing import Any

import trainkit as tk
from tests.faults.makers import Call
from tests.outside.constructors import Run


def calls(folder: Path) -> dict[str, Call]:
    return {
        "DeviceFrames": Call(tk.engine.DeviceFrames, {"device": "cpu"}),
    }


POOL = [tk.engine.DeviceFrames]  # other values of options
RUNS: dict[Any, list[Run]] = {
    tk.engine.DeviceFrames: [lambda build: str(build().device)],
}
