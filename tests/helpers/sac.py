"""SAC policies of few units, and rows for them."""

from typing import Any

import numpy as np
from gymnasium import spaces

from tests.helpers.learning import FOUR_NUMBERS, Spaces, batch_of, observations
from trainkit import SACPolicy, TransitionBatch

PUSH = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))


def made(space: Any = FOUR_NUMBERS, action_space: Any = PUSH, **options: Any) -> SACPolicy:
    parts: dict[str, Any] = {"hidden": (8,), "device": "cpu", "seed": 0}
    return SACPolicy.for_envs(Spaces(space, action_space), **parts | options)


def rows(n_rows: int = 8, *, action_space: Any = PUSH, seed: int = 0, **columns: Any) -> TransitionBatch:
    """Make up B rows whose actions are of a space."""
    columns.setdefault("action", observations(action_space, n_rows, seed))
    return batch_of(n_rows, seed=seed, **columns)
