"""Offline runs of few updates from the rows of a walk."""

from typing import Any

import trainkit as tk
from tests.helpers.evaluation_options import as_evaluated
from tests.trainer.toys import Walk, columns

TINY: dict[str, Any] = {"max_epoch": 2, "update_per_epoch": 5, "batch_size": 8, "n_test_envs": 2, "episode_per_test": 2}


def tiny(preset: Any, env: Any = Walk, **more: Any) -> Any:
    buffer = tk.ReplayBuffer.from_arrays(**columns())
    return preset(buffer, env, **as_evaluated({"seed": 1, "device": "cpu", "verbose": False} | TINY | more))
