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
        cursors: the row each ring writes next [N]; the array is replaced, never written to.
        is_aligned: whether all write cursors are at the same position of their rings.
    """

    def __init__(self, n_rings: int, capacity: int, n_spare: int) -> None:
        share, rest = divmod(capacity, n_rings)
        self.n_rings, self.capacity = n_rings, capacity
        self.limit = np.full(n_rings, share) + (np.arange(n_rings) < rest)
        self._lap = self.limit * n_rings  # [N], from the write cursor back to the oldest row of a full ring
        self.n_rows = n_rings * int(self.limit.max() + n_spare)
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self.count = np.zeros(self.n_rings, np.int64)
        self.n_live = 0
        self.set_cursors(np.arange(self.n_rings))

    def set_cursors(self, rows: Rows) -> None:
        """Set all write cursors [N]."""
        self.cursors = rows
        self.is_aligned = bool((rows - rows[0] == np.arange(self.n_rings)).all())

    def after(self, rows: Rows, n_steps: NDArray[np.int64] | int) -> Rows:
        """Return the rows `n_steps` later in the same rings (earlier if negative)."""
        after: Rows = (rows + n_steps * self.n_rings) % self.n_rows
        return after

    def block(self, rows: Rows) -> Rows | slice:
        """Return rows of different rings, as a slice if they are one step of aligned rings."""
        if self.is_aligned and len(rows) == self.n_rings:
            first = int(rows[0])
            return slice(first, first + self.n_rings)
        return rows

    def push(self, envs: NDArray[np.intp] | slice) -> Rows:
        """Advance the write cursors of these rings by one row; return the rows evicted from full rings."""
        rows = self.cursors[envs]
        if len(rows) == self.n_rings:  # relative offsets are unchanged, and so is `is_aligned`
            self.cursors = (rows + self.n_rings) % self.n_rows
        else:
            moved = self.cursors.copy()
            moved[envs] = (rows + self.n_rings) % self.n_rows
            self.set_cursors(moved)
        oldest: Rows = (rows - self._lap[envs]) % self.n_rows  # of full rings
        if self.n_live < self.capacity:
            is_full = self.count[envs] == self.limit[envs]
            self.count[envs] += ~is_full
            oldest = oldest[is_full]
            self.n_live += len(rows) - len(oldest)
        return oldest

    def rewind(self, ring: int, n_rows: int) -> Rows:
        """Remove and return the newest `n_rows` live rows of a ring."""
        removed = self.after(self.cursors[ring], np.arange(-n_rows, 0))
        moved = self.cursors.copy()
        moved[ring] = self.after(moved[ring], -n_rows)
        self.set_cursors(moved)
        self.count[ring] -= n_rows
        self.n_live -= n_rows
        return removed

    def live_rows(self, index: NDArray[np.int64]) -> Rows:
        """Return the row of each index in [0, n_live), counted ring by ring from the oldest row."""
        ends = np.add.accumulate(self.count)
        ring = ends.searchsorted(index, side="right")
        return self.after(self.cursors[ring], index - ends[ring])

    def rows_of(self, ring: int) -> Rows:
        """Return the live rows of a ring from the oldest."""
        return self.after(self.cursors[ring], np.arange(-self.count[ring], 0))
