"""What a batch brings along: columns by name, and the parts of a round that was drawn at once."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.buffer.heads import Rows
from trainkit.buffer.nstep import Windows
from trainkit.buffer.storage import Rings
from trainkit.data import Lookup, TransitionBatch
from trainkit.errors import ConfigError, nearest


def read_column(owner: str, name: str, rings: Rings, rows: Rows, windows: Windows) -> NDArray[Any]:
    """Return a column [B, ...] of rows or of their windows; refuse a name that is none, but for `owner`'s own."""
    if name == "n":
        return np.full(len(rows), windows.n_steps)
    if name == "env_id":
        return rows % rings.n_envs
    stored = {
        "t": rings.age,
        "episode": rings.episode,
        "terminated": rings.terminated,
        "truncated": rings.truncated,
        **rings.extras,
    }
    if name not in stored:
        known = ["n", "env_id", "weight", *stored]
        raise ConfigError(f"{owner} has no column {name!r}, only {known}{nearest(name, known)}")
    column: NDArray[Any] = stored[name][rows]
    return column


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
