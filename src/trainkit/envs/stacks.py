"""Observations to act on: stacks that grow by a frame at each step, rows put into their places among N."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.core import tree
from trainkit.core.data import ACTION_MASK, Obs


def shift(stacked: Obs, frame: Obs) -> Obs:
    """Append one frame [K, ...] to stacks [K, stack, ...], dropping the oldest."""
    return _map_frames(lambda old, new: np.concatenate([old[:, 1:], new[:, None]], axis=1), stacked, frame)


def repeat(frame: Obs, stack: int) -> Obs:
    """Begin stacks [K, stack, ...] with one frame [K, ...] repeated."""
    return _map_frames(lambda leaf: np.repeat(leaf[:, None], stack, axis=1), frame)


def rows_of(obs: Obs, env_ids: NDArray[np.intp]) -> Obs:
    """Return rows [K, ...] of leaves [N, ...]."""
    return tree.map_tree(lambda leaf: leaf.take(env_ids, axis=0), obs)


def put_rows(obs: Obs, env_ids: NDArray[np.intp], rows: Obs) -> Obs:
    """Return a copy of [N, ...] leaves with rows [K, ...] in their places."""
    return tree.map_tree(lambda leaf, new: _put(leaf, env_ids, new), obs, rows)


def _put(leaf: NDArray[Any], env_ids: NDArray[np.intp], new: NDArray[Any]) -> NDArray[Any]:
    copy = leaf.copy()
    copy[env_ids] = new
    return copy


def _map_frames(fn: Callable[..., NDArray[Any]], obs: Obs, *others: Obs) -> Obs:
    """Map over the leaves that are stacked: all but the mask, which comes from the last tree."""
    if isinstance(obs, dict):
        children = {key: (child, *(other[key] for other in others)) for key, child in obs.items()}
        return {key: trees[-1] if key == ACTION_MASK else _map_frames(fn, *trees) for key, trees in children.items()}
    if isinstance(obs, tuple):
        return tuple(_map_frames(fn, *trees) for trees in zip(obs, *others, strict=True))
    return fn(obs, *others)
