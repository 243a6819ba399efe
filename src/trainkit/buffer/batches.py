"""What a batch brings along: columns by name, and the parts of a round that was drawn at once."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainkit.buffer.heads import Rows
from trainkit.buffer.nstep import Windows, read_return_to_go
from trainkit.buffer.storage import Rings
from trainkit.core.data import Horizon, Lookup, TransitionBatch
from trainkit.core.errors import ConfigError


def checked_slots(owner: str, slots: ArrayLike) -> NDArray[np.int64]:
    """Return slots as whole numbers [K]; reject what are none."""
    names = np.atleast_1d(np.asarray(slots))
    if names.ndim != 1 or (names.dtype.kind not in "iu" and len(names)):
        raise ConfigError(f"{owner}: slots must be whole numbers [K] as `add` and `sample` return them, got {slots!r}")
    return names.astype(np.int64)


def checked_values(owner: str, name: str, values: ArrayLike, n_rows: int, column: NDArray[Any]) -> NDArray[Any]:
    """Return new values of a column as rows [K, ...] of its shape and dtype; reject what are none, and nan rewards."""
    shape = (n_rows, *column.shape[1:])
    try:
        rows = np.broadcast_to(np.asarray(values, column.dtype), shape)
    except (ValueError, TypeError, OverflowError) as error:
        raise ConfigError(
            f"{owner}.rewrite: {name} must be {column.dtype.name}{list(shape)}, or one value for all rows, got "
            f"{values!r:.80} ({error})"
        ) from error
    if name == "reward" and not np.isfinite(rows).all():
        raise ConfigError(f"{owner}.rewrite: reward must be finite, got {values!r:.80}")
    return rows


def read_column(name: str, rings: Rings, rows: Rows) -> NDArray[Any]:
    """Return a column [B, ...] that rows have themselves: one of `ROW_COLUMNS`, or a stored one."""
    if name == "env_id":
        return rows % rings.n_envs
    stored = {"t": rings.age, "episode": rings.episode, "terminated": rings.terminated, "truncated": rings.truncated}
    column: NDArray[Any] = (stored[name] if name in stored else rings.extras[name])[rows]
    return column


def read_batch_column(name: str, rings: Rings, rows: Rows, windows: Windows, horizon: Horizon) -> NDArray[Any]:
    """Return a column [B, ...] of rows, or of what follows them."""
    if name == "n":
        return np.full(len(rows), windows.n_steps)
    if name == "return_to_go":
        return read_return_to_go(rings, rows, horizon)
    return read_column(name, rings, rows)


def cut_up(drawn: TransitionBatch, n_batches: int) -> list[TransitionBatch]:
    """Return equal parts of what was drawn, one after the other; their arrays are views."""
    if n_batches == 1:
        return [drawn]
    batches = [object.__new__(TransitionBatch) for _ in range(n_batches)]
    for name in TransitionBatch.__slots__:
        put = getattr(TransitionBatch, name).__set__  # the frozen constructor takes three times as long
        for batch, part in zip(batches, _parts(getattr(drawn, name), n_batches), strict=True):
            put(batch, part)
    return batches


def _parts(column: Any, count: int) -> list[Any]:
    """Return equal parts of a tree of arrays: all of one array at once, for a view costs more than its rows."""
    if isinstance(column, dict):
        leaves = {name: _parts(leaf, count) for name, leaf in column.items()}
        return [{name: parts[i] for name, parts in leaves.items()} for i in range(count)]
    if isinstance(column, tuple):
        return list(zip(*(_parts(leaf, count) for leaf in column), strict=True))
    if isinstance(column, Lookup):
        return [replace(column, places=places) for places in _parts(column.places, count)]
    return list(column.reshape(count, -1, *column.shape[1:]))
