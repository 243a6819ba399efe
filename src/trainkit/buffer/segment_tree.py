"""Segment trees over an array of masses: total, minimum, and the leaf under a point of the cumulative sum.

Leaves lie at the bottom; every level above holds one number per pair below. The pyramid stops at a *top* of at
most 4,096 numbers, where one cumulative sum and one binary search beat twelve more levels of gathers.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainkit.errors import Checks

_TOP = 4096


class _Pyramid:
    """Levels of pairwise combinations, each parent recomputed from its children: round-off never adds up."""

    def __init__(self, size: int, combine: Callable[..., NDArray[np.float64]], neutral: float) -> None:
        checks = Checks(type(self).__name__)
        checks.integer("size", size, low=1)
        checks.done()
        height = 0
        while size > _TOP << height:
            height += 1
        n_top = -(-size // (1 << height))
        self.size = size
        self._combine = combine
        self._levels = [np.full(n_top << (height - level), neutral) for level in range(height + 1)]
        self._stale = True  # whether what is derived from the top must be derived again

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, slots: ArrayLike) -> NDArray[np.float64]:
        return self._levels[0][slots]  # type: ignore[no-any-return,index]  # any numpy index

    def __setitem__(self, slots: ArrayLike, mass: ArrayLike) -> None:
        """Set masses, which are finite and at least 0; of a slot named twice the last one stays."""
        self._levels[0][slots] = mass  # type: ignore[index]  # any numpy index
        index = np.arange(self.size)[slots] if isinstance(slots, slice) else np.asarray(slots)
        for below, level in zip(self._levels, self._levels[1:], strict=False):
            index = index >> 1
            left = index << 1
            level[index] = self._combine(below[left], below[left + 1])
        self._stale = True

    @property
    def nbytes(self) -> int:
        """Bytes held by all levels."""
        return sum(level.nbytes for level in self._levels)


class SumTree(_Pyramid):
    """Masses that can be drawn from in proportion (Schaul et al., 2016, appendix B.2.1)."""

    def __init__(self, size: int) -> None:
        super().__init__(size, np.add, 0.0)
        self._cumulative = np.zeros(len(self._levels[-1]) + 1)  # [n_top + 1], of the top level, from 0

    @property
    def total(self) -> float:
        """The sum of all masses."""
        return float(self._prefix_sums()[-1])

    def find(self, mass: ArrayLike) -> NDArray[np.int64]:
        """Return for each point of [0, total) the first leaf whose cumulative sum exceeds it.

        A leaf of mass 0 is never returned while any other exists; points at or past the total, which round-off
        can produce, fall to the last leaf that has mass.
        """
        cumulative = self._prefix_sums()
        point = np.asarray(mass, np.float64)
        ends = cumulative[1:]
        last_with_mass = ends.searchsorted(ends[-1], side="left")
        index = np.minimum(ends.searchsorted(point, side="right"), last_with_mass)
        rest = point - cumulative[index]
        for level in reversed(self._levels[:-1]):
            index = index << 1
            left = level[index]
            goes_right = (rest >= left) & (level[index + 1] > 0.0)  # round-off must not end in an empty leaf
            rest = rest - left * goes_right
            index = index + goes_right
        return index

    def _prefix_sums(self) -> NDArray[np.float64]:
        if self._stale:
            np.cumsum(self._levels[-1], out=self._cumulative[1:])
            self._stale = False
        return self._cumulative


class MinTree(_Pyramid):
    """Masses whose smallest is asked for; a leaf never set counts as infinite."""

    def __init__(self, size: int) -> None:
        super().__init__(size, np.minimum, np.inf)
        self._minimum = np.inf

    @property
    def min(self) -> float:
        """The smallest mass, infinity when none was set."""
        if self._stale:
            self._minimum = float(self._levels[-1].min())
            self._stale = False
        return self._minimum
