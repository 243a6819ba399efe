"""Sequences for recurrent policies: consecutive rows of one episode, computed from one-step rows when they are read.

A drawn row is the first row to learn from. The rows before it, up to `burn_in`, bring a recurrent state up to date:

    `burn_in` stored rows of the episode before it     they are positions 0 to burn_in - 1
    fewer, as the episode starts there                 its first row is position burn_in: the state there is known
    fewer, as older rows were overwritten              the oldest row is position 0, and learning starts after burn_in

So the rows to learn from are those from position `burn_in` on, for all sequences of a batch, and a state is reset
before position 0 or `burn_in` and nowhere else.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainkit.buffer.nstep import Windows, read_windows
from trainkit.buffer.rings import Rows
from trainkit.buffer.storage import Gather, Storage
from trainkit.core import tree
from trainkit.core.data import Horizon, Lookup, Obs


class FoundSequences(NamedTuple):
    """B sequences of T = burn_in + length rows, as rows of the storage."""

    rows: Rows  # [T, B]; where a position is not valid, the nearest row of the sequence
    valid: NDArray[np.bool_]  # [T, B]
    first: Rows  # [B], the first row of each sequence
    windows: Windows  # of all rows, [T * B]
    after: NDArray[np.int64]  # [T, B], positions in `observations` of the rows' next observations
    observations: Obs  # [T + n, B, ...], those of the rows and of the steps after them, up to n


def read_sequences(
    storage: Storage,
    drawn: Rows,
    length: int,
    burn_in: int | None,
    horizon: Horizon,
    rng: np.random.Generator,
    gather: Gather,
) -> FoundSequences:
    """Return the sequences of drawn rows [B], with burn-in None from their episodes' starts, see the module.

    A sequence ends with its episode or the newest row; later positions are not valid.
    """
    rings, records = storage.rings, storage.records
    ring = drawn % rings.n_rings
    oldest = rings.after(rings.cursors[ring], -rings.count[ring])
    n_older = (drawn - oldest) % rings.n_rows // rings.n_rings
    age = records.age[drawn]
    n_before = np.minimum(age, n_older)  # rows of the episode that are stored
    if burn_in is not None:
        n_before = np.minimum(n_before, burn_in)
    first = rings.after(drawn, -n_before)
    is_whole = n_before == age  # it begins with its episode
    if burn_in is None:
        n_positions, offset = length, np.where(is_whole, 0, length)
    else:
        n_positions, offset = burn_in + length, np.where(is_whole & (n_before < burn_in), burn_in, 0)
    n_tracked = n_positions + horizon.longest

    step = np.arange(n_tracked)[:, None]
    ahead = records.array.take(rings.after(first, step))
    is_inside = np.ones(ahead.shape, np.bool_)
    is_inside[1:] = (ahead["final"][:-1] < 0) & (ahead["stamp"][1:] >= 0)
    n_rows = np.logical_and.accumulate(is_inside, axis=0).sum(axis=0)  # [B], at most n_tracked
    index = step - offset  # [T + n, B], of positions in their sequences
    nearest = np.clip(index, 0, n_rows - 1)
    all_rows = rings.after(first, nearest)
    rows, valid = all_rows[:n_positions], ((index >= 0) & (index < n_rows))[:n_positions]

    windows = read_windows(storage, rows.ravel(), horizon, rng)
    n_steps = np.broadcast_to(windows.n_steps, rows.size).reshape(rows.shape)
    return FoundSequences(
        rows=rows,
        valid=valid,
        first=first,
        windows=windows,
        after=np.minimum(nearest[:n_positions] + offset + n_steps, n_tracked - 1),  # of rows that are not valid, too
        observations=_observations(storage, all_rows, offset + n_rows, gather),
    )


def _observations(storage: Storage, rows: Rows, ends: NDArray[np.int64], gather: Gather) -> Obs:
    """Return the observations of rows [T, B], at positions `ends` [B] the next observations of the rows before."""
    (has_end,) = np.nonzero(ends < len(rows))
    at = (ends[has_end], has_end)
    last = rows[at]  # a position after the end repeats the last row
    final = storage.next_obs_at(last, storage.records.final[last], gather=gather)
    observations = storage.obs_at(rows.ravel(), gather=gather)

    def with_ends(column: Any, after: Any) -> Any:
        if isinstance(column, Lookup):
            indices = with_ends(column.indices, after.indices)
            return replace(column, indices=indices)
        shaped = column.reshape(*rows.shape, *column.shape[1:])
        shaped[at] = after
        return shaped

    return tree.map_tree(with_ends, observations, final)
