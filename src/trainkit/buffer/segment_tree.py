"""Segment trees over an array of masses: their sum, their minimum, and the leaf at a point of the cumulative sum.

`levels[0]` holds the leaves; each number of a level above combines a block of 16 numbers below. The last level, the
*top*, has at most 4,096 numbers and is searched directly. An update recomputes one block per level, and a search
descends one block per level, for all leaves of a call at once.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainkit.core.errors import Checks, MissingRowError, PriorityError
from trainkit.core.signatures import checked

Index = NDArray[np.integer[Any]] | NDArray[np.bool_] | Sequence[int] | int | slice

_BLOCK = 16  # numbers combined into one of the level above
_TOP = 4096  # numbers in the top level, at most
_LONG_TOP = 3072  # from this length on, the top's cumulative sum is computed by blocks
_MOST_POINTS = 512  # of one search; a larger matrix product may run on several threads
_BEFORE = np.tri(_BLOCK, _BLOCK, -1)  # _BEFORE @ block: the sum of the numbers before each
_UP_TO = np.triu(np.ones((_BLOCK, _BLOCK)))  # block @ _UP_TO: the sum of the numbers up to each


class _SegmentTree:
    """A tree over `size` masses, its leaves; each level above has the sums or minima of blocks of the level below.

    A parent is always recomputed from all its children, so that rounding errors do not accumulate.
    """

    def __init__(
        self, size: int, combine: Callable[[NDArray[np.float64]], NDArray[np.float64]], neutral: float
    ) -> None:
        with Checks(type(self).__name__) as checks:
            checks.integer("size", size, low=1)
        self.size = size
        self._combine = combine
        self._levels = [np.full(length, neutral) for length in _level_lengths(size)]
        self._is_stale = True  # whether what is derived from the top must be computed again

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, leaves: Index) -> NDArray[np.float64]:
        return self._levels[0][: self.size][leaves]

    def __setitem__(self, leaves: Index, mass: ArrayLike) -> None:
        """Set masses, finite and at least 0; if a leaf occurs twice, its last mass is kept.

        Raises:
            MissingRowError: there is no such leaf; negative indices count from nowhere.
            PriorityError: a mass is nan, infinite or negative.
        """
        index = np.asarray(leaves)
        if index.dtype.kind not in "iu":  # a slice, a mask
            index = np.arange(self.size)[leaves]
        name = type(self).__name__
        if index.size and not (index.min() >= 0 and index.max() < self.size):
            raise MissingRowError(
                f"{name} has the leaves 0 to {self.size - 1}, got {index.min()}..{index.max()}: give one of them"
            )
        values = np.asarray(mass, np.float64)
        if not ((values >= 0.0) & (values < np.inf)).all():
            raise PriorityError(f"{name}: masses must be finite and >= 0, got {mass!r:.100}")
        self.put(index.astype(np.int64), values)

    def put(self, leaves: NDArray[np.int64], mass: ArrayLike) -> None:
        """Set the masses of leaves [K], each in [0, size), and recompute the sums above them."""
        self._levels[0][leaves] = mass
        for level, above in itertools.pairwise(self._levels):
            leaves = leaves // _BLOCK
            above[leaves] = self._combine(level.reshape(-1, _BLOCK).take(leaves, axis=0))
        self._is_stale = True

    @property
    def nbytes(self) -> int:
        """Bytes of all levels."""
        return sum(level.nbytes for level in self._levels)


@checked
class SumTree(_SegmentTree):
    """A segment tree of sums, to sample leaves in proportion to their mass (Schaul et al., 2016, appendix B.2.1)."""

    def __init__(self, size: int) -> None:
        super().__init__(size, partial(np.vecdot, np.ones(_BLOCK)), 0.0)  # `@` would round by a row's index
        self._starts = np.zeros(len(self._levels[-1]) + 1)  # [n_top + 1], cumulative sum before each number of the top
        self._total = 0.0

    @property
    def total(self) -> float:
        """The sum of all masses."""
        if self._is_stale:
            top, ends = self._levels[-1], self._starts[1:]
            if len(top) < _LONG_TOP:
                np.add.accumulate(top, out=ends)
            else:  # a block starts, to the last bit, where the one before ends
                by_block = np.matmul(top.reshape(-1, _BLOCK), _UP_TO, out=ends.reshape(-1, _BLOCK))
                by_block[1:] += np.add.accumulate(by_block[:-1, -1])[:, None]
            self._total = float(ends[-1])
            ends[ends.searchsorted(self._total) :] = np.inf  # after the last number that has mass
            self._is_stale = False
        return self._total

    def find(self, points: ArrayLike) -> NDArray[np.int64]:
        """Return, for each point in [0, total), the first leaf whose cumulative sum exceeds it.

        A leaf of mass 0 is never returned while any other exists; points at or past the total, which rounding can
        produce, fall to the last leaf that has mass.
        """
        points = np.asarray(points, np.float64)
        if points.size > _MOST_POINTS:
            halves = np.array_split(points.ravel(), 2)
            return np.concatenate([self.find(half) for half in halves]).reshape(points.shape)
        total, rest = self.total, points.ravel()
        starts, column = self._starts, np.arange(len(rest))
        here: Any = starts[1:].searchsorted(rest, side="right")
        index = here
        for level in reversed(self._levels[:-1]):
            rest = rest - starts[here]
            starts = _BEFORE.dot(level.reshape(-1, _BLOCK).take(index, axis=0).T)  # [16, B]
            child = np.add.reduce(starts[1:] <= rest, axis=0)
            here, index = (child, column), index * _BLOCK + child
        # The product sums in an order of its own: a point at a border can come out past the last leaf with mass.
        while total > 0.0 and np.count_nonzero(mass := self._levels[0][index]) < len(index):
            index -= mass == 0.0
        leaf: NDArray[np.int64] = index.reshape(points.shape)
        return leaf


@checked
class MinTree(_SegmentTree):
    """A segment tree of minima; leaves that were never set count as infinite."""

    def __init__(self, size: int) -> None:
        super().__init__(size, partial(np.minimum.reduce, axis=-1), np.inf)
        self._minimum = np.inf

    @property
    def min(self) -> float:
        """The smallest mass, infinity when none was set."""
        if self._is_stale:
            self._minimum = float(self._levels[-1].min())
            self._is_stale = False
        return self._minimum


def tree_bytes(size: int) -> int:
    """Return the bytes of a tree of this size."""
    return 8 * sum(_level_lengths(size))


def _level_lengths(size: int) -> list[int]:
    """Return the length of each level, the leaves first, rounded up to whole blocks."""
    height = 0
    while size > _TOP * _BLOCK**height:
        height += 1
    n_top = -(-size // _BLOCK ** (height + 1)) * _BLOCK
    return [n_top * _BLOCK ** (height - level) for level in range(height + 1)]
