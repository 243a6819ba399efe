"""Examples of processors: calls that work, and runs in which options matter, for tests of all public names."""

from pathlib import Path
from typing import Any

import numpy as np

import trainkit as tk
from tests.faults.makers import BOX, Call
from tests.outside.constructors import Build, Run, envs, stepped

NOT_CALLED = {"Processor"}  # a base


def calls(folder: Path) -> dict[str, Call]:
    return {
        "AgentId": Call(tk.envs.AgentId, {}),
        "DiscretizeActions": Call(tk.envs.DiscretizeActions, {"bins": 3}),
        "Flatten": Call(tk.envs.Flatten, {}),
        "MapActions": Call(tk.envs.MapActions, {"fn": np.negative, "space": BOX}),
        "MapObs": Call(tk.envs.MapObs, {"fn": np.negative, "space": BOX}),
        "PreviousStep": Call(tk.envs.PreviousStep, {}),
        "TimeFeature": Call(tk.envs.TimeFeature, {"limit": 5}),
    }


def processed(build: Build) -> Any:
    return stepped(envs(processors=[build()]))


RUNS: dict[Any, list[Run]] = {
    tk.envs.PreviousStep: [processed],
}
