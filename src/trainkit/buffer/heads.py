"""Where the next rows of N rings go: one slice while they lie side by side, as vector steps leave them."""

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
SomeRows = Rows | slice  # a slice where they lie side by side


def one_by_one(rows: SomeRows) -> Rows:
    """Return rows as an array."""
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows


class Heads:
    """The pending rows of N rings that are woven into `n_rows` rows.

    Attributes:
        are_in_step: whether they lie side by side.
    """

    def __init__(self, n_envs: int, n_rows: int) -> None:
        self._n_envs, self._n_rows = n_envs, n_rows
        self._side_by_side = np.arange(n_envs).tobytes()
        self.rows = np.arange(n_envs)

    @property
    def rows(self) -> Rows:
        """One per ring [N]; not to be written into: it stays as it is when heads move."""
        return one_by_one(self.side_by_side(0)) if self.are_in_step else self._rows

    @rows.setter
    def rows(self, rows: Rows) -> None:
        self._rows, self._first = rows, int(rows[0])
        self.are_in_step = (rows - self._first).tobytes() == self._side_by_side

    def go_on(self, rows: SomeRows) -> None:
        """Have all rings go on by a row, to these: how far they lie apart stays, and so whether they are in step."""
        if isinstance(rows, slice):
            self._first = rows.start
        else:
            self._rows = rows

    def move(self, envs: NDArray[np.intp], rows: Rows) -> None:
        """Have some rings' next rows go here."""
        moved = self.rows.copy()
        moved[envs] = rows
        self.rows = moved

    def side_by_side(self, n_steps: int) -> slice:
        """Return the rows so many vector steps on from rings that are in step."""
        first = (self._first + n_steps * self._n_envs) % self._n_rows
        return slice(first, first + self._n_envs)
