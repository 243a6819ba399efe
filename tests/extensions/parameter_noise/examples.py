"""Examples of parameter noise: calls that work, and runs in which options matter, for tests of all public names."""

from pathlib import Path
from typing import Any

import trainkit as tk
from tests.faults.makers import Call
from tests.outside.constructors import Run, part_of_q


def calls(folder: Path) -> dict[str, Call]:
    return {
        "ParameterNoise": Call(tk.ParameterNoise, {"epsilon": 0.1}),
    }


RUNS: dict[Any, list[Run]] = {
    tk.ParameterNoise: [part_of_q("exploration", 0.1)],
}
