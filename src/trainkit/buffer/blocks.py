"""Recorded rows on their way into a buffer: read block by block, and validated by column, row and value."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from trainkit.core import tree
from trainkit.core.arrays import is_finite
from trainkit.core.data import Obs
from trainkit.core.errors import TrainkitError
from trainkit.core.spaces import discrete_bounds
from trainkit.core.structured_actions import StructuredHybrid

_BLOCK_BYTES, _MAX_ROWS = 2**20, 2**16


class Column(Protocol):
    """Rows [T, ...] that are read by slices: an array, or a dataset in a file."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice) -> Any: ...


class Block(NamedTuple):
    """K consecutive rows of one environment."""

    obs: Obs  # [K, ...], single frames
    action: NDArray[Any]  # [K, ...]
    reward: NDArray[Any]  # [K]
    terminated: NDArray[np.bool_]  # [K]
    truncated: NDArray[np.bool_]  # [K]
    last_rows: NDArray[np.int64]  # [F], those of these rows that end an episode, and the last of all
    last_obs: Obs  # [F, ...], the true observations after them
    extras: Mapping[str, NDArray[Any]]  # {name: [K, ...]}


class BlockCheck:
    """Validate blocks, in order: finite numbers, flags that are flags, actions inside their space.

    Args:
        source: names the file or function in errors.
        action_space: of the environment, actions of a Discrete one counted from 0; None where it is not known.
        error: what is raised, naming column, row, value and remedy.
    """

    def __init__(self, source: str, action_space: Space[Any] | None, error: type[TrainkitError]) -> None:
        self._source, self._error = source, error
        self._bounds: tuple[Any, Any] | None = None
        if isinstance(action_space, spaces.Discrete):
            self._bounds = 0, int(action_space.n) - 1
        elif isinstance(action_space, (spaces.MultiDiscrete, spaces.MultiBinary)):
            self._bounds = discrete_bounds(action_space)
        self._hybrid = action_space if isinstance(action_space, StructuredHybrid) else None

    def kinds(self, columns: Mapping[str, Column]) -> None:
        """Raise if a column does not hold numbers; called with headers, before any row is read."""
        for name, column in columns.items():
            if np.dtype(column.dtype).kind not in "biuf":
                raise self._error(
                    f"{self._source}: {name} must hold numbers or bools, got type {column.dtype}: convert it with "
                    "astype, or leave it out"
                )

    def finite(self, name: str, rows: NDArray[Any], first: int) -> None:
        """Raise if a number of rows [K, ...] is nan or infinite; `first` is the number of the first row."""
        if rows.dtype.kind == "f" and not is_finite(rows):
            self._raise(name, "must be finite", rows, ~np.isfinite(rows), first)

    def flags(self, name: str, rows: NDArray[Any], first: int = 0) -> NDArray[np.bool_]:
        """Return flags [K] as bools; raise if one is neither 0 nor 1."""
        if rows.dtype != np.bool_ and not ((rows == 0) | (rows == 1)).all():
            self._raise(name, "must be 0 or 1", rows, (rows != 0) & (rows != 1), first)
        return rows.astype(np.bool_, copy=False)

    def actions(self, rows: NDArray[Any], first: int) -> None:
        """Raise if an action [K, ...] is not finite or outside its space."""
        self.finite("action", rows, first)
        if self._bounds is not None:
            low, high = self._bounds
            outside = (rows < low) | (rows > high)
            if outside.any():
                self._raise("action", f"must be in [{low}, {high}]".replace("\n", ""), rows, outside, first)
        if self._hybrid is not None:
            invalid = self._hybrid.invalid_choices(rows)
            if invalid.any():
                self._raise("action", f"must be in {self._hybrid}", rows, invalid, first)

    def block(self, block: Block, first: int) -> None:
        """Raise if a value of a block cannot be learned from."""
        for path, leaf in tree.named_leaves(block.obs):
            self.finite(_joined("obs", path), leaf, first)
        for path, leaf in tree.named_leaves(block.last_obs):
            if leaf.dtype.kind == "f" and not is_finite(leaf):
                self._raise(
                    _joined("next_obs", path), "must be finite", leaf, ~np.isfinite(leaf), first + block.last_rows
                )
        self.actions(block.action, first)
        self.finite("reward", block.reward, first)
        for name, rows in block.extras.items():
            self.finite(f"extras[{name!r}]", rows, first)

    def _raise(self, name: str, rule: str, rows: NDArray[Any], bad: NDArray[np.bool_], first: Any) -> None:
        """Raise for the first bad value; `first` is the number of the first row, or of each."""
        at = np.argwhere(bad)[0].tolist()
        row = first[at[0]] if isinstance(first, np.ndarray) else first + at[0]
        where = f"row {row}" + (f", index {tuple(at[1:])}" if len(at) > 1 else "")
        raise self._error(
            f"{self._source}: {name} {rule}, got {rows[tuple(at)]} in {where}: fix the data or leave that episode out"
        )


def block_ranges(n_rows: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of blocks of about a megabyte, at least one row each."""
    size = min(_MAX_ROWS, max(1, _BLOCK_BYTES // max(1, row_bytes)))
    for begin in range(0, n_rows, size):
        yield begin, min(begin + size, n_rows)


def row_bytes(columns: Any) -> int:
    """Return the bytes of one row of a tree of columns [T, ...]."""
    sizes = ((column.shape[1:], np.dtype(column.dtype).itemsize) for column in tree.leaves(columns))
    return sum(int(np.prod(shape, dtype=object)) * n_bytes for shape, n_bytes in sizes)


def _joined(name: str, path: str) -> str:
    return f"{name}[{path}]" if path else name
