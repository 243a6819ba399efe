"""Ring buffers as index arithmetic: the row each environment writes next, and its live rows.

N rings are interleaved in flat columns. Ring `n` owns the rows `position * N + n`, so that one step of all environments
is a block of consecutive rows, and the row after row `r` of a ring is `(r + N) % n_rows`. Going back from its write
cursor, a ring holds

    cursor        the row to write next; its observation is there already: the newest `next_obs`
    cursor - 1    the newest live row
      ...         `count` live rows, at most `limit`; the next observation of each is the observation of the row after
    oldest
      ...         at least `n_spare - 1` evicted rows, kept because the oldest rows' frame stacks include them
"""

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
RowBlock = Rows | slice  # a slice where rows are adjacent, which numpy reads and writes faster

_ONE = np.ones((), np.int64)


def rows_of_block(block: RowBlock, offset: int = 0) -> Rows:
    """Return the rows of a block, plus an offset, as an array."""
    return np.arange(block.start + offset, block.stop + offset) if isinstance(block, slice) else block + offset


class Rings:
    """N ring buffers interleaved in `n_rows` rows, without their data.

    Args:
        n_rings: N.
        capacity: live rows of all rings together, shared evenly.
        n_spare: rows per ring in addition to the live ones, at least 1.

    Attributes:
        limit: live rows each ring can hold [N].
        count: live rows of each ring [N].
        n_live: the sum of `count`.
    """

    def __init__(self, n_rings: int, capacity: int, n_spare: int) -> None:
        share, rest = divmod(capacity, n_rings)
        self.n_rings, self.capacity = n_rings, capacity
        self._all = np.arange(n_rings)
        self.limit = np.full(n_rings, share) + (self._all < rest)
        self._lap = self.limit * n_rings  # [N], from the write cursor back to the oldest row of a full ring
        self._lap_of_all = share * n_rings if rest == 0 else None  # where it is the same
        self.n_rows = n_rings * int(self.limit.max() + n_spare)
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self.restore(self._all, np.zeros(self.n_rings, np.int64))

    def restore(self, cursors: Rows, count: NDArray[np.int64]) -> None:
        """Set the row that each ring writes next, and its number of live rows [N]."""
        self._set_cursors(cursors)
        self._set_count(count)

    def _set_cursors(self, rows: Rows) -> None:
        self._cursors: Rows | None = rows  # None where `_head` says
        is_aligned = bool((rows - rows[0] == self._all).all())
        self._head = int(rows[0]) if is_aligned else None  # of the block to write next

    def _set_count(self, count: NDArray[np.int64]) -> None:
        self.count, self.n_live = count, int(count.sum())
        self._n_free = int((self.limit - count).min())  # steps of all rings until the first one is full

    @property
    def is_aligned(self) -> bool:
        """Whether all write cursors are at the same position of their rings."""
        return self._head is not None

    @property
    def cursors(self) -> Rows:
        """The row each ring writes next [N]; the array is replaced, never written to."""
        if self._cursors is None:
            assert self._head is not None, "one of the two is known"
            self._cursors = self._all + self._head
        return self._cursors

    def after(self, rows: Rows, n_steps: NDArray[np.int64] | int) -> Rows:
        """Return the rows `n_steps` later in the same rings (earlier if negative)."""
        after: Rows = (rows + n_steps * self.n_rings) % self.n_rows
        return after

    def heads(self, rings: NDArray[np.intp] | None) -> RowBlock:
        """Return the rows that these rings write next, None for all: a slice where all are aligned."""
        if rings is not None:
            return self.cursors[rings]
        return self.cursors if self._head is None else slice(self._head, self._head + self.n_rings)

    def push(self, rings: NDArray[np.intp] | None) -> RowBlock | None:
        """Advance the write cursors of these rings by one row, None for all; return the rows evicted from full rings.

        None if no ring was full.
        """
        if rings is not None or self._head is None:
            return self._push_each(self._all if rings is None else rings)
        if self._n_free > 0:  # in no ring is a row evicted
            self._n_free -= 1
            self.count += _ONE
            self.n_live += self.n_rings
            self._push_block()
            return None
        if self.n_live < self.capacity:  # some rings are full
            return self._push_each(self._all)
        if self._lap_of_all is None:
            evicted = self._oldest(self.cursors, slice(None))
            self._push_block()
            return evicted
        oldest = (self._head - self._lap_of_all) % self.n_rows
        self._push_block()
        return slice(oldest, oldest + self.n_rings)

    def _push_block(self) -> None:
        assert self._head is not None, "the rings are aligned"
        self._head = (self._head + self.n_rings) % self.n_rows
        self._cursors = None

    def _push_each(self, rings: NDArray[np.intp]) -> Rows | None:
        rows, moved = self.cursors[rings], self.cursors.copy()
        moved[rings] = self.after(rows, 1)
        self._set_cursors(moved)
        oldest = self._oldest(rows, rings)
        if self.n_live < self.capacity:
            is_full = self.count[rings] == self.limit[rings]
            self.count[rings] += ~is_full
            self._set_count(self.count)
            oldest = oldest[is_full]
        return oldest if len(oldest) else None

    def _oldest(self, cursors: Rows, rings: NDArray[np.intp] | slice) -> Rows:
        """Return the oldest rows of full rings, whose write cursors are given."""
        oldest: Rows = (cursors - self._lap[rings]) % self.n_rows
        return oldest

    def rewind(self, ring: int, n_rows: int) -> Rows:
        """Remove and return the newest `n_rows` live rows of a ring."""
        removed = self.after(self.cursors[ring], np.arange(-n_rows, 0))
        moved = self.cursors.copy()
        moved[ring] = self.after(moved[ring], -n_rows)
        self._set_cursors(moved)
        self.count[ring] -= n_rows
        self._set_count(self.count)
        return removed

    def live_rows(self, index: NDArray[np.int64]) -> Rows:
        """Return the row of each index in [0, n_live), counted ring by ring from the oldest row."""
        ends = np.add.accumulate(self.count)
        ring = ends.searchsorted(index, side="right")
        return self.after(self.cursors[ring], index - ends[ring])

    def rows_of(self, ring: int) -> Rows:
        """Return the live rows of a ring from the oldest."""
        return self.after(self.cursors[ring], np.arange(-self.count[ring], 0))
