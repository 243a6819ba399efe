"""What a row looks like: read off transitions, and how its small columns lie in memory."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit import tree
from trainkit.data import ACTION_MASK, ArraySpec, RowSpec, Transition


def spec_of(step: Transition, n_envs: int | None, stack: int, *, is_stacked: bool = True) -> RowSpec:
    """Read the shape of a row off transitions, whose observations are stacks or single frames of them."""

    def spec(rows: NDArray[Any]) -> ArraySpec:
        return ArraySpec.of(rows, stack) if is_stacked else replace(ArraySpec.of(rows), stack=stack)

    obs = tree.map_tree(spec, step.obs)
    if isinstance(obs, dict) and ACTION_MASK in obs:
        obs[ACTION_MASK] = ArraySpec.of(step.obs[ACTION_MASK])  # never stacked
    return RowSpec(
        n_envs=int(step.env_ids.max()) + 1 if n_envs is None else n_envs,
        obs=obs,
        action=ArraySpec.of(np.asarray(step.action)),
        extras={name: ArraySpec.of(column) for name, column in step.extras.items()},
    )


def record_of(action: ArraySpec) -> np.dtype[Any]:
    """Return what a draw reads of a row besides its observations, as one piece of memory, not five far apart."""
    own: list[Any] = [("stamp", np.int64), ("reward", np.float64), ("action", action.dtype, action.shape)]
    return np.dtype([*own, ("final", np.int32), ("terminated", np.bool_), ("truncated", np.bool_)], align=True)
