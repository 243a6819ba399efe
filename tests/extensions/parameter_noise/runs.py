"""Runs of parameter noise in which options of constructors matter."""

from typing import Any

import trainkit as tk
from tests.outside.constructors import Run, part_of_q

RUNS: dict[Any, list[Run]] = {
    tk.ParameterNoise: [part_of_q("exploration", 0.1)],
}
