"""Ways to do the same work that take turns, until it is known which is the quickest."""

import statistics
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

W = TypeVar("W", bound=Hashable)

_GAIN = 0.95  # of the time of an earlier way that a later one must need less than, to be taken for it


class Trial(Generic[W]):
    """Ways that take turns, and what each of them took.

    Args:
        ways: the one liked best first: a later one is stayed with for a clear gain alone.
        n_tries: of each way: an odd number, for the median.
        n_unmeasured: of each way before them, in which things are made and become warm.

    Attributes:
        next: the way whose turn it is; when it is over, the one to stay with.
        is_over: whether all were tried often enough.
    """

    def __init__(self, ways: Sequence[W], *, n_tries: int = 9, n_unmeasured: int = 0) -> None:
        self._took: dict[W, list[float]] = {way: [] for way in ways}  # seconds, those that do not count too
        self._n_tries, self._n_unmeasured = n_tries, n_unmeasured
        self.next = ways[0]
        self.is_over = False

    def add(self, seconds: float) -> None:
        """Note what the way took whose turn it was."""
        self._took[self.next].append(seconds)
        self.next = min(self._took, key=lambda way: len(self._took[way]))
        self.is_over = len(self._took[self.next]) == self._n_unmeasured + self._n_tries
        if self.is_over:
            self.next = self._best()

    def _best(self) -> W:
        """Return the first way than which no later one is clearly quicker."""
        best, *others = self._took
        for way in others:
            if self._typical(way) < _GAIN * self._typical(best):
                best = way
        return best

    def _typical(self, way: W) -> float:
        return statistics.median(self._took[way][self._n_unmeasured :])

    def __str__(self) -> str:
        return ", ".join(f"{1e3 * self._typical(way):.3g} ms on {way}" for way in self._took)
