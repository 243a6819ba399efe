"""Room for the final observations of episodes, which no row of a ring has."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.core import tree
from trainkit.core.data import ArraySpec, Obs
from trainkit.core.files import copy_into

_BLOCK = 16  # observations claimed at a time, or an eighth of those there are


class Finals:
    """Observations that are put somewhere and given back; more room is claimed in blocks.

    Args:
        spec: a tree of their `ArraySpec`s.

    Attributes:
        obs: a tree of columns [places, ...].
        columns: its leaves.
    """

    def __init__(self, spec: Any) -> None:
        def column(leaf: ArraySpec) -> NDArray[Any]:
            return np.zeros((0, *leaf.shape), leaf.dtype)

        self.obs: Obs = tree.map_tree(column, spec)
        self.columns: list[NDArray[Any]] = tree.leaves(self.obs)
        self._places = np.zeros(0, np.int64)  # [places], those that are free come first
        self._n_free = 0

    def __len__(self) -> int:
        return len(self.columns[0])

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        return sum(column.nbytes for column in self.columns)

    def claim(self, count: int) -> NDArray[np.int64]:
        """Return so many places, growing by whole blocks when too few are free."""
        missing = count - self._n_free
        if missing > 0:
            self._grow(max(missing, _BLOCK, len(self) // 8))
        self._n_free -= count
        return self._places[self._n_free : self._n_free + count].copy()

    def give_back(self, places: NDArray[np.int64]) -> None:
        """Let others have these places."""
        assert self._n_free + len(places) <= len(self), "each place is given back once"
        self._places[self._n_free : self._n_free + len(places)] = places
        self._n_free += len(places)

    def clear(self) -> None:
        """Let others have all places; the memory stays claimed."""
        self._places, self._n_free = np.arange(len(self)), len(self)

    def state_dict(self) -> dict[str, Any]:
        """Return all columns, and which places are free."""
        return {
            "finals": {path: column.copy() for path, column in tree.named_leaves(self.obs)},
            "free_finals": self._places[: self._n_free].tolist(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned; room there is besides is as if just claimed."""
        n_kept, n_here = self.check_state(state), len(self)
        self._grow(n_kept - n_here)
        for path, column in tree.named_leaves(self.obs):
            copy_into(column[:n_kept], state["finals"][path])
        self._n_free = 0
        self.give_back(np.arange(n_here - 1, n_kept - 1, -1))
        self.give_back(np.array(state["free_finals"], np.int64))

    def check_state(self, state: Mapping[str, Any]) -> int:
        """Return how many observations a saved state has; raise ValueError if it is not of observations like these."""
        columns, kept, free = dict(tree.named_leaves(self.obs)), state["finals"], state["free_finals"]
        n_kept = len(next(iter(kept.values())))
        wanted = {path: ((n_kept, *column.shape[1:]), column.dtype) for path, column in columns.items()}
        found = {path: (column.shape, column.dtype) for path, column in kept.items()}
        if found != wanted:
            raise ValueError(f"final observations are {found}, and must be {wanted}")
        numbers = np.array(free, np.int64).reshape(-1)
        if len(np.unique(numbers)) != len(numbers) or not ((numbers >= 0) & (numbers < n_kept)).all():
            raise ValueError(f"free places of final observations are {free!r:.80}")
        return n_kept

    def _grow(self, count: int) -> None:
        if count <= 0:
            return
        size = len(self)

        def grown(kept: NDArray[Any]) -> NDArray[Any]:
            column = np.zeros((size + count, *kept.shape[1:]), kept.dtype)
            column[:size] = kept
            return column

        self.obs = tree.map_tree(grown, self.obs)
        self.columns = tree.leaves(self.obs)
        self._places = np.concatenate([self._places, np.zeros(count, np.int64)])
        self.give_back(np.arange(size + count - 1, size - 1, -1))
