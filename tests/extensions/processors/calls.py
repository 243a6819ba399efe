"""Calls of processors that work, for the table of all public calls."""

from pathlib import Path

import numpy as np

import trainkit as tk
from tests.faults.makers import BOX, Call

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
