"""Runs of cuda in which options of constructors matter."""

from typing import Any

import trainkit as tk
from tests.outside.constructors import Run

POOL = [tk.engine.DeviceFrames]  # other values of options
RUNS: dict[Any, list[Run]] = {
    tk.engine.DeviceFrames: [lambda build: str(build().device)],
}
