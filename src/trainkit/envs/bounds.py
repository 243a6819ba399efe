"""Whether observations keep within the bounds of their space: a Box's now and then, told once; a Discrete's always."""

import logging
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from trainkit.core import tree
from trainkit.core.data import Obs
from trainkit.core.spaces import discrete_bounds, leaf_spaces

_log = logging.getLogger(__name__)
_EVERY = 1_000  # looks into the environments: a run of a million steps pays for some hundreds


class DiscreteLeaves:
    """The Discrete and MultiDiscrete leaves of observations, whose values become indices and must be in range."""

    def __init__(self, space: gym.Space[Any]) -> None:
        kinds = gym.spaces.Discrete, gym.spaces.MultiDiscrete
        named = [(path, leaf) for path, leaf in tree.named_leaves(leaf_spaces(space)) if isinstance(leaf, kinds)]
        self._leaves = [(path, leaf, *discrete_bounds(leaf)) for path, leaf in named]

    def outside(self, obs: Obs) -> tuple[str, gym.Space[Any], NDArray[Any], NDArray[np.bool_]] | None:
        """Return the first leaf [K, ...] with values out of range: path, space, values, which; None where all fit."""
        if not self._leaves:
            return None
        leaves = dict(tree.named_leaves(obs))
        for path, space, low, high in self._leaves:
            is_outside = (leaves[path] < low) | (leaves[path] > high)
            if is_outside.any():
                return path, space, leaves[path], is_outside
        return None


class BoundsWatch:
    """Compare every thousandth look at N environments with their space, and warn of the first that is outside.

    Nothing is refused: many environments say less than they do, and learning does not mind.
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        leaves = [
            (path, leaf) for path, leaf in tree.named_leaves(leaf_spaces(space)) if isinstance(leaf, gym.spaces.Box)
        ]
        self._leaves = [(path, leaf.low, leaf.high) for path, leaf in leaves]
        self._n_looks = 0

    def look(self, obs: Obs) -> None:
        """Look at K observations [K, ...], or leave it at counting."""
        self._n_looks += 1
        if self._leaves and self._n_looks % _EVERY == 1:
            told = dict(tree.named_leaves(obs))
            for path, low, high in self._leaves:
                outside = (told[path] < low) | (told[path] > high)
                if outside.any():
                    self._tell(path, np.asarray(told[path]), outside, low, high)
                    self._leaves = []
                    return

    def _tell(self, path: str, values: Any, outside: Any, low: Any, high: Any) -> None:
        at = tuple(np.argwhere(outside)[0].tolist())
        name, where = f"[{path}]" if path else "", f" at index {at[1:]}" if len(at) > 1 else ""
        _log.warning(
            "observation%s is %s%s, and the space says [%s, %s]: widen the space's bounds, or nothing may rely on them",
            *(name, values[at], where, low[at[1:]], high[at[1:]]),
        )
