"""Loading recorded episodes into a replay buffer: our own files, Minari's datasets, Tianshou's buffers."""

import glob
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainkit.buffer.recorded import Block, RecordedRows
from trainkit.buffer.replay import ReplayBuffer
from trainkit.core.errors import CheckpointError, Checks, ConfigError, SpaceMismatchError, reject_unknown
from trainkit.core.files import check_declared, decoding
from trainkit.core.protocols import EnvSpaces
from trainkit.core.signatures import checked, options_of
from trainkit.core.spaces import Spaces
from trainkit.extensions.offline.format import Header, Shard, read_shard, shard_blocks
from trainkit.extensions.offline.hdf5 import SUFFIXES, H5Column, open_hdf5
from trainkit.extensions.offline.minari import is_minari, is_minari_id, open_minari
from trainkit.extensions.offline.rewriting import EpisodeFn, rewritten

Paths = str | Path | Sequence[str | Path]


@checked
def load_dataset(
    path: Paths,
    *,
    into: type[ReplayBuffer] = ReplayBuffer,
    envs: EnvSpaces | None = None,
    episode_fn: EpisodeFn | None = None,
    agents: Sequence[str] | None = None,
    max_bytes: int | None = None,
    **options: Any,
) -> ReplayBuffer:
    """Load files of `DatasetWriter`, npz or HDF5, into a buffer whose capacity is their number of rows.

    The headers of all files are checked before the buffer is made; rows are then read into its memory block by block.
    A folder in Minari's format, or the id of a local dataset such as "door/human-v2", is read as by `from_minari`. An
    `.hdf5` file that Tianshou's `ReplayBuffer.save_hdf5` wrote is read too, by itself; it does not name its spaces:
    give them as `spaces=`.

    Args:
        path: a file, a folder of them, a glob, or a list of these; files are read in the order of their names. Or the
            id of a local Minari dataset.
        into: the class of the buffer, such as `PrioritizedReplayBuffer`.
        envs: environments, or an object with their spaces, that the files must match.
        episode_fn: called with every `RecordedEpisode` that is read; what it returns, of the same length, shapes and
            types, is stored in its place.
        agents: names of the agents whose episodes are loaded, of games of several; None: all.
        max_bytes: largest size of the data by the files' headers; None is half of the free memory.
        options: of the buffer: capacity, seed, alpha ...

    Raises:
        CheckpointError: a file is damaged, no dataset or too large, or a value in it cannot be learned from.
        SpaceMismatchError: the files do not agree with each other or with `envs`.
        MissingExtraError: an HDF5 file needs h5py.
    """
    known = "path", "into", "envs", "episode_fn", "agents", "max_bytes"
    with Checks("load_dataset") as checks:
        checks.require(episode_fn is None or callable(episode_fn), f".episode_fn must be callable, got {episode_fn!r}")
    reject_unknown("load_dataset", options, [*known, *options_of(into.from_blocks)])
    if isinstance(path, str | Path) and (is_minari(path) or is_minari_id(path)):
        with open_minari(path, max_bytes) as episodes:
            check_spaces_of(Path(path), episodes.header, envs)
            header = episodes.header
            blocks = rewritten(episodes.blocks(), episode_fn, header.observation_space, header.action_space)
            return _buffer(into, header, episodes.ends, blocks, options)
    found = find_files(path)
    if len(found) == 1 and is_tianshou(found[0], max_bytes):
        options = {**({} if envs is None else {"spaces": envs}), **options}
        return load_tianshou(found[0], into=into, episode_fn=episode_fn, max_bytes=max_bytes, **options)
    shards = read_shards(found, envs, max_bytes)
    if len(shards) > 1:
        check_declared(f"load_dataset: {len(shards)} files", sum(shard.n_bytes for shard in shards), max_bytes)
    if agents is not None:
        _check_agents(agents, shards)
    ends = np.concatenate([shard.ends_of(agents) for shard in shards])
    header = shards[0].header
    read = chain.from_iterable(shard_blocks(shard, shard.ranges_of(agents)) for shard in shards)
    blocks = rewritten(read, episode_fn, header.observation_space, header.action_space)
    return _buffer(into, header, ends, blocks, options)


def read_shards(
    paths: Sequence[Path], envs: EnvSpaces | None, max_bytes: int | None, *, in_parts: bool = False
) -> list[Shard]:
    """Read the headers of files, as `read_shard` does, and check that they match each other and environments.

    Raises:
        CheckpointError: as `read_shard`.
        SpaceMismatchError: they do not match.
    """
    shards = [read_shard(path, max_bytes=max_bytes, in_parts=in_parts) for path in paths]
    first, header = paths[0], shards[0].header
    problems = [f"{one.path}: {text}, as in {first}" for one in shards[1:] for text in header.differences(one.header)]
    _check_joined([*problems, *_other_spaces(first, header, envs)])
    return shards


def _check_agents(agents: Sequence[str], shards: Sequence[Shard]) -> None:
    """Raise a ConfigError unless the files have episodes of each of these agents."""
    known = shards[0].header.agents
    with Checks("load_dataset") as checks:
        is_list = not isinstance(agents, str) and len(agents) > 0
        checks.require(is_list, f".agents must be a sequence of names, got {agents!r}")
        checks.require(bool(known), ".agents needs files of games of several agents, and these name none: leave it out")
        for name in [] if isinstance(agents, str) else agents:
            checks.require(not known or name in known, f".agents names {name!r}, and the files have {list(known)}")
    if not any(shard.ranges_of(agents) for shard in shards):
        raise ConfigError(f"load_dataset: the files have no episode of {list(agents)}")


def check_spaces_of(path: Path, header: Header, envs: EnvSpaces | None) -> None:
    """Raise a `SpaceMismatchError` if a dataset does not match environments."""
    _check_joined(_other_spaces(path, header, envs))


@checked
def from_minari(
    dataset: Any, *, into: type[ReplayBuffer] = ReplayBuffer, max_bytes: int | None = None, **options: Any
) -> ReplayBuffer:
    """Load a Minari dataset into a buffer of its size; nothing is downloaded, and nothing in it is executed.

    A folder needs h5py and not Minari. Sizes are read from the headers of its files before the buffer is made; rows are
    then read into its memory block by block.

    Args:
        dataset: a folder in Minari's HDF5 format, the id of a local dataset, or a `minari.MinariDataset`.
        into: the class of the buffer.
        max_bytes: largest size of the data by the files' headers; None is half of the free memory.
        options: of the buffer: capacity, seed, alpha ...

    Raises:
        MissingExtraError: h5py is not installed, Minari for an id, or Pillow for images stored as JPEG.
        ConfigError: there is no such dataset, or nothing in it.
        CheckpointError: its files are damaged or too large, or a value in them cannot be learned from.
    """
    with open_minari(dataset, max_bytes) as episodes:
        return _buffer(into, episodes.header, episodes.ends, episodes.blocks(), options)


def _other_spaces(path: Path, header: Header, envs: EnvSpaces | None) -> list[str]:
    """Describe how the spaces of a file differ from those of environments."""
    if envs is None:
        return []
    own, theirs = header.spaces, Spaces.of(envs)
    pairs = [(name, getattr(own, name), getattr(theirs, name)) for name in ("observation_space", "action_space")]
    return [f"{path}: {name} is {here}, the environments' is {there}" for name, here, there in pairs if here != there]


def _check_joined(problems: list[str]) -> None:
    if problems:
        raise SpaceMismatchError("\n".join(["load_dataset cannot join these files, load them apart:", *problems]))


def _buffer(
    into: type[ReplayBuffer],
    header: Header,
    ends: NDArray[np.bool_],
    blocks: Iterable[Block],
    options: dict[str, Any],
) -> ReplayBuffer:
    """Make a buffer of recorded episodes, one row per step."""
    given = {"stack": header.stack, "spaces": header.spaces, **options}
    return into.from_blocks(header.row_spec(given["stack"]), ends, blocks, **given)


_OTHER_FORMATS = (".csv", ".json", ".jsonl", ".parquet", ".pickle", ".pkl", ".pt", ".txt")


def find_files(path: Paths) -> list[Path]:
    """Return the files of a path, folder, glob or list of these, sorted by name.

    Raises:
        ConfigError: there is none.
    """
    if isinstance(path, str | Path):
        single = Path(path)
        if single.is_dir():
            found: Iterable[Path] = (file for file in single.iterdir() if file.suffix in (".npz", *SUFFIXES))
        elif glob.has_magic(str(path)) and not single.exists():
            found = map(Path, glob.glob(str(path)))
        elif single.suffix.lower() in _OTHER_FORMATS:
            raise ConfigError(
                f"load_dataset reads npz and HDF5 files and Minari's folders, got {single}: read it yourself, and give "
                "its columns to ReplayBuffer.from_arrays(obs=, action=, reward=, terminated=, truncated=)"
            )
        else:
            return [single]  # reading it reports what is wrong
    else:
        found = [file for one in path for file in find_files(one)]
    files = sorted({file.resolve(): file for file in found}.values())
    if not files:
        raise ConfigError(f"load_dataset found no file in {path!r}: name files, a folder or a glob of DatasetWriter's")
    return files


# ---- Tianshou's `ReplayBuffer.save_hdf5`: rings of one or several environments ----

_ROWS = "_meta/"  # the group of the rows
_NAMES = {"action": "act", "reward": "rew", "terminated": "terminated", "truncated": "truncated"}


def is_tianshou(path: Path, max_bytes: int | None) -> bool:
    """Return whether an HDF5 file has the groups of Tianshou's buffers."""
    if path.suffix not in SUFFIXES:
        return False
    with open_hdf5(path, max_bytes=max_bytes) as (columns, _):
        return f"{_ROWS}rew" in columns and "meta" not in columns


def load_tianshou(
    path: Path, *, into: type[ReplayBuffer], episode_fn: EpisodeFn | None, max_bytes: int | None, **options: Any
) -> ReplayBuffer:
    """Load a file of Tianshou's `ReplayBuffer` or `VectorReplayBuffer`; nothing pickled in it is read.

    Rows of several environments become those of one, end to end; an episode that was open in one of them is cut.

    Raises:
        CheckpointError: the file is damaged, or has values that cannot be learned from.
    """
    with open_hdf5(path, max_bytes=max_bytes) as (columns, attributes):
        with decoding(path, "a buffer of Tianshou's"):
            pieces = _pieces(columns, attributes)
            given = {name: _OrderedColumn(columns[f"{_ROWS}{theirs}"], pieces) for name, theirs in _NAMES.items()}
            obs, next_obs = (_tree(columns, f"{_ROWS}{name}", pieces) for name in ("obs", "obs_next"))
        spaces = None if options.get("spaces") is None else Spaces.of(options["spaces"])
        stack = attributes.get("stack_num", 1) if "stack" not in options else options["stack"]
        rows = RecordedRows(
            str(path),
            obs=obs,
            next_obs=next_obs,
            **given,
            ends=None,
            extras={},
            stack=stack,
            spaces=spaces,
            error=CheckpointError,
        )
        ends = np.cumsum([piece.end - piece.begin for piece in pieces])
        rows.ends[ends[[piece.is_newest for piece in pieces]] - 1] = True
        blocks = rewritten(rows.blocks(), episode_fn, rows.observation_space, rows.action_space)
        return into.from_blocks(rows.spec(), rows.ends, blocks, **{"stack": stack, **options})


class _Piece(NamedTuple):
    """Consecutive rows of one environment in a ring."""

    begin: int
    end: int
    is_newest: bool  # whether the last of them is the newest row


class _OrderedColumn:
    """A dataset whose pieces are read in the order in which they were written."""

    def __init__(self, column: H5Column, pieces: list[_Piece]) -> None:
        if any(piece.end > len(column) for piece in pieces):
            raise ValueError(f"{column.name} has {len(column)} rows, too few")
        self._column, self._pieces = column, pieces
        self.shape = (sum(piece.end - piece.begin for piece in pieces), *column.shape[1:])
        self.dtype = column.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        begin, end, _ = rows.indices(len(self))
        found, offset = [np.empty((0, *self.shape[1:]), self.dtype)], 0
        for piece in self._pieces:
            n_rows = piece.end - piece.begin
            low, high = max(begin - offset, 0), min(end - offset, n_rows)
            if low < high:
                found.append(self._column[piece.begin + low : piece.begin + high])
            offset += n_rows
        return np.concatenate(found)


def _pieces(columns: dict[str, H5Column], attributes: dict[str, Any]) -> list[_Piece]:
    """Return the rows that were written, environment by environment, oldest first."""
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
        if length == end - offset:  # full: the oldest row follows the newest
            pieces += [_Piece(last + 1, end, is_newest=False), _Piece(offset, last + 1, is_newest=True)]
        elif length:
            pieces += [_Piece(offset, offset + length, is_newest=True)]
    return [piece for piece in pieces if piece.begin < piece.end]


def _numbers(column: H5Column) -> list[int]:
    if len(column.shape) != 1 or column.dtype.kind not in "iu" or len(column) > 2**20:
        raise ValueError(f"{column.name} is {column.dtype} {column.shape}")
    return [int(number) for number in np.asarray(column)]


def _tree(columns: dict[str, H5Column], name: str, pieces: list[_Piece]) -> Any:
    """Return a dataset in its written order, or a group as a dict of datasets; None if it is neither."""
    if name in columns:
        return _OrderedColumn(columns[name], pieces)
    inside = {path.removeprefix(f"{name}/").split("/")[0] for path in columns if path.startswith(f"{name}/")}
    return {key: _tree(columns, f"{name}/{key}", pieces) for key in sorted(inside)} or None
