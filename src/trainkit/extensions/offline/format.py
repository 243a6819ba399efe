"""The dataset format: self-describing files of complete recorded episodes, npz or HDF5.

meta                      JSON: format, versions, env id, spaces of one frame, stack, the policy's columns
length [E]                steps of each episode
terminated, truncated [E] how it ended; if neither is set, the recorder cut it
obs [T + E, ...]          of every step, and after each episode's last step its true final observation; one array
per leaf: obs.position, obs.camera.0
action, reward [T, ...]   in time order, the episodes end to end; rewards as the environment gave them
extra.NAME [T, ...]       the policy's columns: extra.action_prob

An HDF5 file has the same arrays as datasets, `meta` as the bytes of the JSON.
"""

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from trainkit.buffer.recorded import Block, BlockCheck, block_ranges
from trainkit.core import files, tree
from trainkit.core.data import ArraySpec, Obs, RecordedEpisode, RowSpec
from trainkit.core.errors import CheckpointError
from trainkit.core.files import MAX_TEXT_BYTES, check_declared, decoding, open_npz, parse_json
from trainkit.core.spaces import Spaces, array_specs, check_spaces, stacked_space
from trainkit.core.versions import versions
from trainkit.extensions.offline.hdf5 import SUFFIXES, hdf5_bytes, open_hdf5

FORMAT = 1
ANY_SIZE = sys.maxsize  # `max_bytes` of a file that is read in parts
_KIND = "trainkit dataset"
_STACK_BYTES = 5  # times the bytes of one stack: the bounds of its space, and the extra rows of a ring
_FLOAT, _INTEGER, _FLAG = (ArraySpec(shape=(), dtype=np.dtype(kind)) for kind in (np.float64, np.int64, np.bool_))
_PER_EPISODE = {"length": _INTEGER, "terminated": _FLAG, "truncated": _FLAG}


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The metadata that all episodes of a dataset share."""

    env: str
    observation_space: Space[Any]  # of one frame
    action_space: Space[Any]
    stack: int = 1
    pad: str = "repeat"  # as in `make_envs`
    extras: Mapping[str, ArraySpec]
    agents: tuple[str, ...] = ()  # names, where several agents share games; each episode is one agent's

    @property
    def spaces(self) -> Spaces:
        """The spaces as a policy sees them, stacked."""
        observation_space = stacked_space(self.observation_space, self.stack)
        return Spaces(observation_space=observation_space, action_space=self.action_space)

    def row_spec(self, stack: int) -> RowSpec:
        """Return the spec of the rows in a buffer that stacks this many frames."""
        obs = array_specs(self.observation_space, stack)
        return RowSpec(n_envs=1, obs=obs, action=array_specs(self.action_space), extras=self.extras, pad=self.pad)

    def differences(self, other: "Header") -> list[str]:
        """Describe how the rows of another dataset differ in shape or type; the environment may differ."""
        names = ("observation_space", "action_space", "stack", "pad", "extras", "agents")
        pairs = [(name, getattr(self, name), getattr(other, name)) for name in names]
        return [f"{name} is {theirs}, not {own}" for name, own, theirs in pairs if own != theirs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A file of which the headers and the episodes' ends were read, but not the rows."""

    path: Path
    header: Header
    length: NDArray[np.int64]  # [E]
    terminated: NDArray[np.bool_]  # [E]
    truncated: NDArray[np.bool_]  # [E]
    n_bytes: int  # that its columns take
    agent: NDArray[np.int64] | None = None  # [E], whose episode it is, an index of `header.agents`

    @property
    def n_steps(self) -> int:
        """Steps of all episodes."""
        return int(self.length.sum())

    @property
    def ends(self) -> NDArray[np.bool_]:
        """Which rows are their episode's last [T]."""
        return self.ends_of(None)

    def ends_of(self, agents: Sequence[str] | None) -> NDArray[np.bool_]:
        """Return which rows are their episode's last, of the rows of some agents [T]; None: of all."""
        length = self.length[self._is_of(agents)]
        ends = np.zeros(int(length.sum()), np.bool_)
        ends[np.cumsum(length) - 1] = True
        return ends

    def ranges_of(self, agents: Sequence[str] | None) -> list[tuple[int, int]]:
        """Return (first, end) of the runs of consecutive episodes of some agents, ascending; None: of all."""
        border = np.diff(np.concatenate([[False], self._is_of(agents), [False]]).astype(np.int8))
        return list(zip(np.flatnonzero(border == 1).tolist(), np.flatnonzero(border == -1).tolist(), strict=True))

    def _is_of(self, agents: Sequence[str] | None) -> NDArray[np.bool_]:
        """Return which episodes are of some agents [E]."""
        if agents is None or self.agent is None:
            return np.ones(len(self.length), np.bool_)
        own: NDArray[np.bool_] = np.isin(self.agent, [self.header.agents.index(name) for name in agents])
        return own


def write_shard(path: Path, header: Header, episodes: Sequence[RecordedEpisode], *, compress: bool = False) -> None:
    """Write complete episodes as one file, atomically; raise FileExistsError if the file exists."""
    meta = {
        "kind": _KIND,
        "format": FORMAT,
        "versions": {package: number for package, number in versions().items() if package != "torch"},
        "env": header.env,
        "spaces": Spaces(observation_space=header.observation_space, action_space=header.action_space).to_plain(),
        "stack": header.stack,
        "extras": {name: [list(spec.shape), spec.dtype.str] for name, spec in header.extras.items()},
    }
    if header.pad != "repeat":
        meta["pad"] = header.pad
    if header.agents:
        meta["agents"] = list(header.agents)

    def joined(spec: ArraySpec, *parts: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([np.asarray(part, spec.dtype) for part in parts])

    obs = tree.map_tree(joined, array_specs(header.observation_space), *(one.obs for one in episodes))
    columns = {
        "meta": np.array(json.dumps(meta)),
        "action": joined(array_specs(header.action_space), *(one.action for one in episodes)),
        "reward": joined(_FLOAT, *(one.reward for one in episodes)),
        "length": np.array([len(one) for one in episodes], np.int64),
        "terminated": np.array([one.terminated for one in episodes], np.bool_),
        "truncated": np.array([one.truncated for one in episodes], np.bool_),
    }
    if header.agents:
        columns["agent"] = np.array([one.agent for one in episodes], np.int64)
    columns |= {_dotted("obs", path): leaf for path, leaf in tree.named_leaves(obs)}
    for name, spec in header.extras.items():
        columns[_extra(name)] = joined(spec, *(one.extras[name] for one in episodes))
    if path.suffix in SUFFIXES:
        columns["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
        content = hdf5_bytes(path, columns, compress=compress)
        files.write_whole(path, lambda file: file.write(content), replace=False)
    else:
        files.save_new_arrays(path, columns, compress=compress)


def read_shard(path: Path, *, max_bytes: int | None = None, in_parts: bool = False) -> Shard:
    """Read the headers of one file and how its episodes end.

    Args:
        path: of the file.
        max_bytes: largest size of its columns; None is half of the free memory.
        in_parts: whether rows will be read in parts: then only what is read here must not be larger.

    Raises:
        CheckpointError: it is missing, damaged, no dataset, of a newer format, does not hold what it says, or declares
            more than `max_bytes`.
    """
    with _open_columns(path, ANY_SIZE if in_parts else max_bytes) as columns:
        meta = _read_meta(path, columns)
        with decoding(path, "a dataset", remedy="it does not hold what it says: record it again"):
            check_declared(path, sum(columns[name].nbytes for name in _PER_EPISODE), max_bytes)
            header = _header(path, meta, max_bytes)
            _check_ends(columns)
            ends = {name: np.asarray(columns[name]) for name in _PER_EPISODE}
            n_bytes = sum(column.nbytes for column in columns.values())
            agent = _read_agents(columns, header) if header.agents else None
            shard = Shard(path=path, header=header, n_bytes=n_bytes, agent=agent, **ends)
            _check_columns(shard, columns)
            return shard


def shard_blocks(shard: Shard, ranges: Iterable[tuple[int, int]] | None = None) -> Iterator[Block]:
    """Read rows of a file in order, block by block, and validate them.

    Args:
        shard: of the file.
        ranges: (first, end) of the episodes to read, ascending; None reads all.

    Raises:
        CheckpointError: a value cannot be learned from, or the file is damaged.
    """
    rows = np.concatenate([[0], np.cumsum(shard.length)]).tolist()  # [E + 1], where each episode begins
    with _open_columns(shard.path, ANY_SIZE) as columns:  # `read_shard` has checked it
        for first, end in [(0, len(shard.length))] if ranges is None else ranges:
            for name in ("action", "reward", *map(_extra, shard.header.extras)):
                columns[name].skip_to(rows[first])
            for path, _ in tree.named_leaves(array_specs(shard.header.observation_space)):
                columns[_dotted("obs", path)].skip_to(rows[first] + first)  # with the final ones before
            yield from _read_episodes(shard, columns, first, end, rows[first])


def _read_episodes(shard: Shard, columns: Mapping[str, Any], first: int, end: int, first_row: int) -> Iterator[Block]:
    """Read the episodes [first, end) from columns whose next row is that of the first one."""
    header, length = shard.header, shard.length[first:end]
    last = np.cumsum(length) - 1  # [E]
    ends, terminated, truncated = np.zeros((3, last[-1] + 1), np.bool_)  # [T] each
    ends[last], terminated[last], truncated[last] = True, shard.terminated[first:end], shard.truncated[first:end]
    check = BlockCheck(str(shard.path), header.observation_space, header.action_space, CheckpointError)
    specs = array_specs(header.observation_space)
    for begin, stop in block_ranges(len(ends), _frame_bytes(header.observation_space)):
        ends_here = ends[begin:stop]
        n_before: NDArray[np.int64] = np.cumsum(ends_here) - ends_here  # [K], final observations before each row
        is_step = np.zeros(stop - begin + int(ends_here.sum()), np.bool_)
        is_step[np.arange(stop - begin) + n_before] = True
        leaves = iter([columns[_dotted("obs", one)].read_rows(len(is_step)) for one, _ in tree.named_leaves(specs)])
        frames = _filled(specs, leaves)
        block = Block(
            obs=tree.map_tree(lambda leaf: leaf[is_step], frames),  # noqa: B023 - called at once
            action=columns["action"].read_rows(stop - begin),
            reward=columns["reward"].read_rows(stop - begin),
            terminated=terminated[begin:stop],
            truncated=truncated[begin:stop],
            last_rows=np.flatnonzero(ends_here),
            last_obs=tree.map_tree(lambda leaf: leaf[~is_step], frames),  # noqa: B023 - called at once
            extras={name: columns[_extra(name)].read_rows(stop - begin) for name in header.extras},
        )
        check.block(block, first_row + begin)
        yield block


@contextmanager
def _open_columns(path: Path, max_bytes: int | None) -> Iterator[Mapping[str, Any]]:
    """Open a file and return its columns, of which only headers are read."""
    if path.suffix in SUFFIXES:
        with open_hdf5(path, max_bytes=max_bytes) as (datasets, _):
            yield datasets
    else:
        with open_npz(path) as arrays:
            check_declared(path, sum(array.nbytes for array in arrays.values()), max_bytes)
            yield arrays


def _read_meta(path: Path, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a file; raise if it is not a dataset, or has a newer format."""
    meta: Any = None
    column = columns.get("meta")
    if (
        column is not None
        and (column.dtype == np.uint8 or column.dtype.kind == "U")
        and column.nbytes <= 4 * MAX_TEXT_BYTES  # numpy takes four bytes per character
    ):
        text = np.asarray(column)
        with suppress(CheckpointError, UnicodeError):
            meta = parse_json(text.tobytes() if text.dtype == np.uint8 else str(text), path)
    if not (isinstance(meta, dict) and meta.get("kind") == _KIND and type(meta.get("format")) is int):
        raise CheckpointError(f"{path} is no dataset of trainkit: DatasetWriter writes them")
    if meta["format"] > FORMAT:
        raise CheckpointError(
            f"{path} has dataset format {meta['format']}, this trainkit reads up to {FORMAT}: install a newer trainkit"
        )
    return meta


def _check_ends(columns: Mapping[str, Any]) -> None:
    """Raise if the columns have inconsistent lengths, or there are more episodes than steps."""
    n_episodes = len(columns["length"])
    if n_episodes > len(columns["reward"]):
        raise ValueError(f"it has {n_episodes} episodes in {len(columns['reward'])} steps")
    for name, spec in _PER_EPISODE.items():
        _check_column(columns, name, spec, n_episodes)


def _read_agents(columns: Mapping[str, Any], header: Header) -> NDArray[np.int64]:
    """Return the index of each episode's agent [E]; raise if one has none."""
    _check_column(columns, "agent", _PER_EPISODE["length"], len(columns["length"]))
    agent: NDArray[np.int64] = np.asarray(columns["agent"])
    if len(agent) and not (agent.min() >= 0 and agent.max() < len(header.agents)):
        raise ValueError(f"an episode is of agent {agent.max()}, and there are {len(header.agents)}")
    return agent


def _check_columns(shard: Shard, columns: Mapping[str, Any]) -> None:
    """Raise if the shapes or types of the columns differ from the header."""
    header, n_episodes = shard.header, len(shard.length)
    if n_episodes == 0 or shard.length.min() < 1:
        raise ValueError("it has no episode, or one of no step")
    n_steps = sum(shard.length.tolist())  # which cannot overflow
    _check_column(columns, "action", array_specs(header.action_space), n_steps)
    _check_column(columns, "reward", _FLOAT, n_steps)
    for path, spec in tree.named_leaves(array_specs(header.observation_space)):
        _check_column(columns, _dotted("obs", path), spec, n_steps + n_episodes)
    for name, spec in header.extras.items():
        _check_column(columns, _extra(name), spec, n_steps)


def _check_column(columns: Mapping[str, Any], name: str, spec: ArraySpec, n_rows: int) -> None:
    column, shape = columns[name], (n_rows, *spec.shape)
    if (tuple(column.shape), column.dtype) != (shape, spec.dtype):
        raise ValueError(f"{name} is {column.dtype} {tuple(column.shape)}, the rest says {spec.dtype} {shape}")


def _header(path: Path, meta: Mapping[str, Any], max_bytes: int | None) -> Header:
    own = Spaces.from_plain(meta["spaces"])
    check_spaces(own.observation_space, own.action_space)
    stack, env, agents = meta["stack"], meta["env"], meta.get("agents", [])
    pad = meta.get("pad", "repeat")
    if pad not in ("repeat", "zero"):
        raise ValueError(f"pad is {pad!r:.80}")
    if type(stack) is not int or stack < 1 or not isinstance(env, str):
        raise ValueError(f"stack is {stack!r:.80}, env is {env!r:.80}")
    if not isinstance(agents, list) or not all(isinstance(name, str) for name in agents):
        raise ValueError(f"agents is {agents!r:.80}")
    check_declared(path, stack * _frame_bytes(own.observation_space) * _STACK_BYTES, max_bytes)
    return Header(
        env=env,
        observation_space=own.observation_space,
        action_space=own.action_space,
        stack=stack,
        pad=pad,
        extras={name: _extra_spec(name, *plain) for name, plain in meta["extras"].items()},
        agents=tuple(agents),
    )


def _frame_bytes(space: Space[Any]) -> int:
    return sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in tree.leaves(array_specs(space)))


def _extra_spec(name: str, shape: Any, dtype: Any) -> ArraySpec:
    if not (isinstance(shape, list) and all(type(length) is int and length >= 0 for length in shape)):
        raise ValueError(f"extra {name} has shape {shape!r:.80}")
    spec = ArraySpec(shape=tuple(shape), dtype=np.dtype(str(dtype)))
    if spec.dtype.kind not in "biuf":
        raise ValueError(f"extra {name} has type {spec.dtype}")
    return spec


def _filled(specs: Any, leaves: Any) -> Obs:
    """Put leaves, in the order of `named_leaves`, into a tree."""
    if isinstance(specs, dict):
        filled = {key: _filled(specs[key], leaves) for key in sorted(specs)}
        return {key: filled[key] for key in specs}
    if isinstance(specs, tuple):
        return tuple(_filled(child, leaves) for child in specs)
    return next(leaves)


def _extra(name: str) -> str:
    """Return the name of a policy's column in a file."""
    return next(path for path, _ in tree.named_leaves({"extra": {name: None}}))


def _dotted(name: str, path: str) -> str:
    return f"{name}.{path}" if path else name
