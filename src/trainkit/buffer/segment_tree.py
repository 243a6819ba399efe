"""Segment trees over an array of masses: total, minimum, and the leaf under a point of the cumulative sum.

Leaves lie at the bottom; every level above holds one number per block of 16 below, so a walk up or down is one
gather of whole blocks per level. The pyramid stops at a *top* of at most 4,096 numbers, where one cumulative sum
and one binary search beat further levels.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainkit.core.errors import Checks
from trainkit.core.signatures import checked

_BLOCK = 16
_PER_BLOCK = np.array(_BLOCK)  # reckoned with in half the time of a Python number
_TOP = 4096
_LONG = 3072  # a top of this length or more adds up sooner by blocks
_FEW = 64  # points that are counted sooner in whole numbers
_AT_ONCE = 512  # points; more might be multiplied on several threads, which wait for each other longer than that
# `_BEFORE @ block`: where each child begins, 4 times as fast as `np.add.accumulate`; `block @ _UP_TO`: where it ends.
_BEFORE, _UP_TO = np.tri(_BLOCK, _BLOCK, -1), np.triu(np.ones((_BLOCK, _BLOCK)))


def _count(flags: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return how many are set in each column; of many columns in bytes, in half the time."""
    if flags.shape[1] <= _FEW:
        counts: NDArray[np.int64] = np.add.reduce(flags, axis=0)
    else:
        counts = np.add.reduce(flags.view(np.int8), axis=0, dtype=np.int8).astype(np.int64)
    return counts


def tree_bytes(size: int) -> int:
    """Return the bytes of a tree of this size."""
    return 8 * sum(_level_sizes(size))


def _level_sizes(size: int) -> list[int]:
    """Return how many numbers each level has, the leaves first."""
    height = 0
    while size > _TOP * _BLOCK**height:
        height += 1
    n_top = -(-size // _BLOCK ** (height + 1)) * _BLOCK  # whole blocks, too
    return [n_top * _BLOCK ** (height - level) for level in range(height + 1)]


class _Pyramid:
    """Levels of combined blocks, each parent recomputed from its children: round-off never adds up."""

    def __init__(
        self, size: int, combine: Callable[[NDArray[np.float64]], NDArray[np.float64]], neutral: float
    ) -> None:
        checks = Checks(type(self).__name__)
        checks.integer("size", size, low=1)
        checks.done()
        self.size = size
        self._combine = combine
        self._levels = [np.full(count, neutral) for count in _level_sizes(size)]
        self._look_into_levels()
        self._stale = True  # whether what is derived from the top must be derived again

    def _look_into_levels(self) -> None:
        """See the same memory block by block, and without the leaves that fill the last one up."""
        self._blocks = [level.reshape(-1, _BLOCK) for level in self._levels[:-1]]
        self._leaves = self._levels[0][: self.size]

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Look into the levels of a copy, whose views came as arrays apart."""
        vars(self).update(state)
        self._look_into_levels()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, slots: ArrayLike | slice) -> NDArray[np.float64]:
        return self._leaves[slots]  # type: ignore[index]  # any numpy index

    def __setitem__(self, slots: ArrayLike | slice, mass: ArrayLike) -> None:
        """Set masses, which are finite and at least 0; of a slot named twice the last one stays."""
        self._leaves[slots] = mass  # type: ignore[index]  # any numpy index
        index = np.asarray(slots)
        if index.dtype.kind not in "iu":  # a slice, a mask
            index = np.arange(self.size)[slots]  # type: ignore[index]  # any numpy index
        self._lift(index.astype(np.int64) % self.size)  # negative slots count from the end

    def put(self, leaves: NDArray[np.int64], mass: NDArray[np.float64]) -> None:
        """Do what `tree[leaves] = mass` does, for leaves that are known to lie within [0, size)."""
        self._leaves[leaves] = mass
        self._lift(leaves)

    def _lift(self, index: NDArray[np.int64]) -> None:
        """Combine anew, up to the top, the blocks that changed leaves are in."""
        for blocks, level in zip(self._blocks, self._levels[1:], strict=True):
            index = index // _PER_BLOCK
            level[index] = self._combine(blocks.take(index, axis=0))
        self._stale = True

    @property
    def nbytes(self) -> int:
        """Bytes held by all levels."""
        return sum(level.nbytes for level in self._levels)


@checked
class SumTree(_Pyramid):
    """Masses that can be drawn from in proportion (Schaul et al., 2016, appendix B.2.1)."""

    def __init__(self, size: int) -> None:
        super().__init__(size, partial(np.vecdot, np.ones(_BLOCK)), 0.0)  # row by row: `@` rounds by a row's place
        self._begins = np.zeros(len(self._levels[-1]) + 1)  # [n_top + 1]
        self._total = 0.0

    @property
    def total(self) -> float:
        """The sum of all masses."""
        self._prefix_sums()
        return self._total

    def find(self, mass: ArrayLike) -> NDArray[np.int64]:
        """Return for each point of [0, total) the first leaf whose cumulative sum exceeds it.

        A leaf of mass 0 is never returned while any other exists; points at or past the total, which round-off
        can produce, fall to the last leaf that has mass.
        """
        points = np.asarray(mass, np.float64)
        if points.size > _AT_ONCE:
            halves = np.array_split(points.ravel(), 2)
            return np.concatenate([self.find(half) for half in halves]).reshape(points.shape)
        rest, begins = points.ravel(), self._prefix_sums()
        here: Any = begins[1:].searchsorted(rest, side="right")
        index, every = here, np.arange(len(rest))
        for blocks in reversed(self._blocks):
            rest = rest - begins[here]
            begins = _BEFORE.dot(blocks.take(index, axis=0).T)  # [16, B]
            child = _count(begins[1:] <= rest)
            here, index = (child, every), index * _PER_BLOCK + child
        # The product adds up in an order of its own: a point at a border can come out past the last leaf with mass.
        while self._total > 0.0 and np.count_nonzero(mass := self._levels[0][index]) < len(index):
            index -= mass == 0.0
        leaf: NDArray[np.int64] = index.reshape(points.shape)
        return leaf

    def _prefix_sums(self) -> NDArray[np.float64]:
        """Return where each number of the top begins; past the last that has mass, infinity."""
        if self._stale:
            top, ends = self._levels[-1], self._begins[1:]
            if len(top) < _LONG:
                np.add.accumulate(top, out=ends)
            else:
                # A block begins, to the last bit, where the one before ends; an ulp within it is what `find` can bear.
                by_block = np.matmul(top.reshape(-1, _BLOCK), _UP_TO, out=ends.reshape(-1, _BLOCK))
                by_block[1:] += np.add.accumulate(by_block[:-1, -1])[:, None]
            self._total = float(ends[-1])
            ends[ends.searchsorted(self._total) :] = np.inf
            self._stale = False
        return self._begins


@checked
class MinTree(_Pyramid):
    """Masses whose smallest is asked for; a leaf never set counts as infinite."""

    def __init__(self, size: int) -> None:
        super().__init__(size, partial(np.minimum.reduce, axis=-1), np.inf)
        self._minimum = np.inf

    @property
    def min(self) -> float:
        """The smallest mass, infinity when none was set."""
        if self._stale:
            self._minimum = float(self._levels[-1].min())
            self._stale = False
        return self._minimum
