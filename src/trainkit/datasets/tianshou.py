"""Tianshou's `ReplayBuffer.save_hdf5`: rings of one or several environments, read in the order they were written."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.buffer.layout import spec_of_frames
from trainkit.buffer.recorded import RecordedRows
from trainkit.buffer.replay import ReplayBuffer
from trainkit.core.errors import CheckpointError
from trainkit.core.reading import decoding
from trainkit.core.spaces import Spaces
from trainkit.datasets.hdf5 import SUFFIXES, H5Column, open_hdf5

_ROWS = "_meta/"  # the group that holds the rows
_NAMES = {"action": "act", "reward": "rew", "terminated": "terminated", "truncated": "truncated"}


def is_tianshou(path: Path, max_bytes: int | None) -> bool:
    """Return whether an HDF5 file has the groups of Tianshou's buffers."""
    if path.suffix not in SUFFIXES:
        return False
    with open_hdf5(path, max_bytes=max_bytes) as (columns, _):
        return f"{_ROWS}rew" in columns and "meta" not in columns


def load_tianshou(path: Path, *, into: type[ReplayBuffer], max_bytes: int | None, **options: Any) -> ReplayBuffer:
    """Read a file that Tianshou's `ReplayBuffer` or `VectorReplayBuffer` wrote; nothing pickled in it is read.

    Rows of several environments become those of one, end to end; an episode that was open in one of them is cut.

    Raises:
        CheckpointError: the file is damaged, or has values that cannot be learned from.
    """
    with open_hdf5(path, max_bytes=max_bytes) as (columns, attributes):
        with decoding(path, "a buffer of Tianshou's"):
            pieces = _pieces(columns, attributes)
            given = {name: _Pieces(columns[f"{_ROWS}{theirs}"], pieces) for name, theirs in _NAMES.items()}
            obs, next_obs = (_tree(columns, f"{_ROWS}{name}", pieces) for name in ("obs", "obs_next"))
        spaces = options.get("spaces")
        rows = RecordedRows(
            str(path),
            obs=obs,
            next_obs=next_obs,
            **given,
            ends=None,
            extras={},
            action_space=None if spaces is None else Spaces.of(spaces).action_space,
            error=CheckpointError,
        )
        rows.ends[np.cumsum([end - begin for begin, end, is_last in pieces])[[one[2] for one in pieces]] - 1] = True
        stack = attributes.get("stack_num", 1) if "stack" not in options else options["stack"]
        spec = spec_of_frames(rows.obs, rows.action, {}, stack)
        return into.from_blocks(spec, rows.ends, rows.blocks(), **{"stack": stack, **options})


class _Pieces:
    """Rows of a dataset in another order: pieces of it, end to end."""

    def __init__(self, column: H5Column, pieces: list[tuple[int, int, bool]]) -> None:
        if any(end > len(column) for _, end, _ in pieces):
            raise ValueError(f"{column.name} has {len(column)} rows, too few")
        self._column, self._pieces = column, pieces
        self.shape = (sum(end - begin for begin, end, _ in pieces), *column.shape[1:])
        self.dtype = column.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        begin, end, _ = rows.indices(len(self))
        found, offset = [np.empty((0, *self.shape[1:]), self.dtype)], 0
        for first, last, _ in self._pieces:
            low, high = max(begin - offset, 0), min(end - offset, last - first)
            if low < high:
                found.append(self._column[first + low : first + high])
            offset += last - first
        return np.concatenate(found)


def _pieces(columns: dict[str, H5Column], attributes: dict[str, Any]) -> list[tuple[int, int, bool]]:
    """Return (begin, end, whether it is an environment's newest) of the rows that were written, oldest first."""
    size = attributes["maxsize"]
    newest = _numbers(columns["last_index"])
    if "_offset" in columns:
        offsets, lengths = _numbers(columns["_offset"]), _numbers(columns["_lengths"])
    else:
        offsets, lengths = [0], [attributes["_size"]]
    if not len(offsets) == len(lengths) == len(newest):
        raise ValueError(f"{len(offsets)} buffers, {len(lengths)} lengths, {len(newest)} newest rows")
    pieces = []
    for offset, length, last, end in zip(offsets, lengths, newest, [*offsets[1:], size], strict=True):
        if not (0 <= length <= end - offset and offset <= last < end) or offset < 0:
            raise ValueError(f"{length} rows from {offset} to {end}, the newest {last}")
        if length == end - offset:  # it went round: the oldest row is behind the newest
            pieces += [(last + 1, end, False), (offset, last + 1, True)]
        elif length:
            pieces += [(offset, offset + length, True)]
    return [piece for piece in pieces if piece[0] < piece[1]]


def _numbers(column: H5Column) -> list[int]:
    if len(column.shape) != 1 or column.dtype.kind not in "iu" or len(column) > 2**20:
        raise ValueError(f"{column.name} is {column.dtype} {column.shape}")
    return [int(number) for number in np.asarray(column)]


def _tree(columns: dict[str, H5Column], name: str, pieces: list[tuple[int, int, bool]]) -> Any:
    """Return a dataset as pieces of it, or a group as a dict of them; None where there is neither."""
    if name in columns:
        return _Pieces(columns[name], pieces)
    inside = {path.removeprefix(f"{name}/").split("/")[0] for path in columns if path.startswith(f"{name}/")}
    return {key: _tree(columns, f"{name}/{key}", pieces) for key in sorted(inside)} or None
