"""What a row looks like: read off transitions, and how its small columns lie in memory."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from trainkit.buffer.blocks import Column
from trainkit.core import tree
from trainkit.core.data import ACTION_MASK, ArraySpec, Obs, RowSpec, Transition

PLACE_BYTES = 8  # of a row: steps of the episode before it, and the episode's number, each int32


def spec_of(step: Transition, n_envs: int | None, stack: int) -> RowSpec:
    """Read the shape of a row off transitions, whose observations are stacks where `stack` is above 1."""
    obs = tree.map_tree(lambda rows: ArraySpec.of(rows, stack), step.obs)
    if isinstance(obs, dict) and ACTION_MASK in obs:
        obs[ACTION_MASK] = ArraySpec.of(step.obs[ACTION_MASK])  # never stacked
    return RowSpec(
        n_envs=int(step.env_ids.max()) + 1 if n_envs is None else n_envs,
        obs=obs,
        action=ArraySpec.of(np.asarray(step.action)),
        extras={name: ArraySpec.of(column) for name, column in step.extras.items()},
    )


def spec_of_frames(obs: Obs, action: Column, extras: Mapping[str, Column], stack: int) -> RowSpec:
    """Read the shape of a row off columns of one environment, whose observations are single frames."""

    def spec(column: Column, stack: int = 1) -> ArraySpec:
        return ArraySpec(shape=tuple(column.shape[1:]), dtype=np.dtype(column.dtype), stack=stack)

    frames = tree.map_tree(lambda column: spec(column, stack), obs)
    if isinstance(frames, dict) and ACTION_MASK in frames:
        frames[ACTION_MASK] = spec(obs[ACTION_MASK])  # never stacked
    return RowSpec(n_envs=1, obs=frames, action=spec(action), extras={name: spec(one) for name, one in extras.items()})


def record_of(action: ArraySpec) -> np.dtype[Any]:
    """Return what a draw reads of a row besides its observations, as one piece of memory, not five far apart."""
    own: list[Any] = [("stamp", np.int64), ("reward", np.float64), ("action", action.dtype, action.shape)]
    return np.dtype([*own, ("final", np.int32), ("terminated", np.bool_), ("truncated", np.bool_)], align=True)


def row_nbytes(spec: RowSpec) -> int:
    """Return the bytes of one row in rings: observation, record, where in which episode it is, and extras."""
    columns = [*tree.leaves(spec.obs), *spec.extras.values()]
    own: int = sum(math.prod(column.shape) * column.dtype.itemsize for column in columns)
    return own + int(record_of(spec.action).itemsize) + PLACE_BYTES
