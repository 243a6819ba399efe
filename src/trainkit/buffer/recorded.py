"""Recorded transitions on their way into a buffer: read block by block, validated, divided into episodes."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from trainkit.core import tree
from trainkit.core.data import ACTION_MASK, ArraySpec, Obs, RowSpec, is_finite
from trainkit.core.errors import ConfigError, TrainkitError
from trainkit.core.spaces import Spaces, StructuredHybrid, array_specs, leaf_spaces, space_bounds

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
    """Validation of blocks: values are finite, flags are 0 or 1, actions and indices are inside their space.

    Args:
        source: names the file or function in errors.
        observation_space: of one frame; None where it is not known. Its Discrete and MultiDiscrete leaves are indices.
        action_space: of the environment, actions of a Discrete one counted from 0; None where it is not known.
        error: the type to raise, with column, row, value and remedy.
    """

    def __init__(
        self,
        source: str,
        observation_space: Space[Any] | None,
        action_space: Space[Any] | None,
        error: type[TrainkitError],
    ) -> None:
        self._source, self._error = source, error
        self._obs_bounds = {
            path: space_bounds(leaf)
            for path, leaf in tree.named_leaves(leaf_spaces(observation_space))
            if isinstance(leaf, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary))
        }
        self._bounds: tuple[Any, Any] | None = None
        if isinstance(action_space, spaces.Discrete):
            self._bounds = 0, int(action_space.n) - 1
        elif isinstance(action_space, (spaces.MultiDiscrete, spaces.MultiBinary)):
            self._bounds = space_bounds(action_space)
        self._hybrid = action_space if isinstance(action_space, StructuredHybrid) else None

    def columns(self, columns: Mapping[str, Column]) -> None:
        """Raise if a column is not numeric or has masked values; called before any row is read."""
        for name, column in columns.items():
            dtype = np.dtype(column.dtype)
            if dtype.kind not in "biuf" or dtype.itemsize > 8:
                raise self._error(
                    f"{self._source}: {name} must hold numbers or bools of at most 64 bits, got type {column.dtype}: "
                    "convert it with astype, or leave it out"
                )
            if np.ma.is_masked(column):
                raise self._error(
                    f"{self._source}: {name} must have a value in every row, got a masked array: replace the masked "
                    "values by filled(value), or leave those episodes out"
                )

    def finite(self, name: str, rows: NDArray[Any], first: Any) -> None:
        """Raise if a value of rows [K, ...] is nan or infinite; `first` is the index of the first row, or of each."""
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
            self._inside("action", rows, self._bounds, first)
        if self._hybrid is not None:
            invalid = self._hybrid.invalid_choices(rows)
            if invalid.any():
                self._raise("action", f"must be in {self._hybrid}", rows, invalid, first)

    def block(self, block: Block, first: int) -> None:
        """Raise if a value of a block is not finite, or an action or an index is outside its space."""
        for name, obs, at in (("obs", block.obs, first), ("next_obs", block.last_obs, first + block.last_rows)):
            for path, leaf in tree.named_leaves(obs):
                self.finite(_joined(name, path), leaf, at)
                if path in self._obs_bounds:
                    self._inside(_joined(name, path), leaf, self._obs_bounds[path], at)
        self.actions(block.action, first)
        self.finite("reward", block.reward, first)
        for name, rows in block.extras.items():
            self.finite(f"extras[{name!r}]", rows, first)

    def _inside(self, name: str, rows: NDArray[Any], bounds: tuple[Any, Any], first: Any) -> None:
        low, high = bounds
        outside = (rows < low) | (rows > high)
        if outside.any():
            self._raise(name, f"must be in [{low}, {high}]".replace("\n", ""), rows, outside, first)

    def _raise(self, name: str, rule: str, rows: NDArray[Any], bad: NDArray[np.bool_], first: Any) -> None:
        """Raise for the first invalid value; `first` is the index of the first row, or an index per row."""
        at = np.argwhere(bad)[0].tolist()
        row = first[at[0]] if isinstance(first, np.ndarray) else first + at[0]
        where = f"row {row}" + (f", index {tuple(at[1:])}" if len(at) > 1 else "")
        raise self._error(
            f"{self._source}: {name} {rule}, got {rows[tuple(at)]} in {where}: fix the data or leave that episode out"
        )


def block_ranges(n_rows: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of blocks of rows of about a megabyte, each with at least one row."""
    size = min(_MAX_ROWS, max(1, _BLOCK_BYTES // max(1, row_bytes)))
    for begin in range(0, n_rows, size):
        yield begin, min(begin + size, n_rows)


def row_bytes(columns: Any) -> int:
    """Return the bytes of one row of a tree of columns [T, ...]."""
    sizes = ((column.shape[1:], np.dtype(column.dtype).itemsize) for column in tree.leaves(columns))
    return sum(int(np.prod(shape, dtype=object)) * n_bytes for shape, n_bytes in sizes)


def _joined(name: str, path: str) -> str:
    return f"{name}[{path}]" if path else name


class RecordedRows:
    """T transitions of one environment in columns [T, ...], read and validated block by block.

    An episode also ends where `next_obs` of a row is not `obs` of the row after.

    Args:
        owner: names the file or function in errors.
        obs, action, reward, terminated, truncated, next_obs, ends, extras: as in `ReplayBuffer.from_arrays`.
        stack: frames per observation in the buffer; the columns hold single frames.
        spaces: of the environment, observations stacked; None where they are not known.
        error: the type to raise.

    Attributes:
        ends: which rows are their episode's last [T].
        observation_space, action_space: of one frame and one action; None where they are not known.

    Raises:
        ConfigError: or `error`, naming the column, row and value that is invalid.
    """

    def __init__(
        self,
        owner: str,
        *,
        obs: Obs,
        action: Any,
        reward: Any,
        terminated: Any,
        truncated: Any | None,
        next_obs: Obs | None,
        ends: Any | None,
        extras: Mapping[str, Any],
        stack: int = 1,
        spaces: Spaces | None = None,
        error: type[TrainkitError] = ConfigError,
    ) -> None:
        self._owner, self._error, self._stack = owner, error, stack
        self.obs, self._next_obs = obs, next_obs
        self.action, self.reward = _column(action), _column(reward)
        self.extras = {name: _column(column) for name, column in extras.items()}
        flags = {"terminated": terminated, "truncated": truncated, "ends": ends}
        given = {name: _column(flag) for name, flag in flags.items() if flag is not None}
        n_rows = self._check_shapes(given)
        self.observation_space = None if spaces is None or stack != 1 else spaces.observation_space
        self.action_space = None if spaces is None else spaces.action_space
        self._check_rows("obs", self.observation_space)
        self._check_rows("action", self.action_space)
        self._check = BlockCheck(owner, self.observation_space, self.action_space, error)
        named = {path: leaf for name in ("obs", "next_obs") for path, leaf in self._named(name)}
        others = {"action": self.action, "reward": self.reward} | {f"extras[{n!r}]": x for n, x in self.extras.items()}
        self._check.columns({**named, **others, **given})
        none = np.zeros(n_rows, np.bool_)
        checked = {name: self._check.flags(name, np.asarray(flag[:])) for name, flag in given.items()}
        self.terminated, self.truncated = checked["terminated"], checked.get("truncated", none)
        self.ends = self.terminated | self.truncated
        if ends is not None:
            self.ends |= checked["ends"]
        if next_obs is None:
            if self.truncated.any() or not self.terminated[-1] or (self.ends & ~self.terminated).any():
                raise error(
                    f"{owner} needs next_obs where an episode is truncated or left open: "
                    "without it there is nothing to bootstrap from"
                )
        else:
            self._end_where_rows_do_not_follow()

    def __len__(self) -> int:
        return len(self.ends)

    def spec(self) -> RowSpec:
        """Return the spec of the rows in a buffer that stacks their frames, types in this machine's byte order."""

        def spec(column: Column, stack: int = 1) -> ArraySpec:
            dtype = np.dtype(column.dtype).newbyteorder("=")
            return ArraySpec(shape=tuple(column.shape[1:]), dtype=dtype, stack=stack)

        frames = tree.map_tree(lambda column: spec(column, self._stack), self.obs)
        if isinstance(frames, dict) and ACTION_MASK in frames:
            frames[ACTION_MASK] = spec(self.obs[ACTION_MASK])  # never stacked
        extras = {name: spec(column) for name, column in self.extras.items()}
        return RowSpec(n_envs=1, obs=frames, action=spec(self.action), extras=extras)

    def blocks(self) -> Iterator[Block]:
        """Yield all rows in order, each block validated."""
        columns = (self.obs, self.action, self.reward, dict(self.extras))
        for begin, end in block_ranges(len(self), row_bytes(columns)):
            last = np.flatnonzero(self.ends[begin:end])
            if end == len(self) and not self.ends[-1]:
                last = np.append(last, end - begin - 1)
            block = Block(
                obs=_rows(self.obs, begin, end),
                action=np.asarray(self.action[begin:end]),
                reward=np.asarray(self.reward[begin:end], np.float64),
                terminated=self.terminated[begin:end],
                truncated=self.truncated[begin:end],
                last_rows=last,
                last_obs=self._obs_after(begin, end, last),
                extras={name: np.asarray(column[begin:end]) for name, column in self.extras.items()},
            )
            self._check.block(block, begin)
            yield block

    def _obs_after(self, begin: int, end: int, last: NDArray[np.int64]) -> Obs:
        """Return the next observations of the rows `last` in [begin, end)."""
        if self._next_obs is not None:
            return tree.map_tree(lambda leaf: leaf[last], _rows(self._next_obs, begin, end))
        # Every episode terminates, so that no bootstrap needs them; the last row of all is followed by itself.
        rows = _rows(self.obs, begin, end + 1)
        return tree.map_tree(lambda leaf: leaf[np.minimum(last + 1, len(leaf) - 1)], rows)

    def _end_where_rows_do_not_follow(self) -> None:
        """Mark the rows whose next observation is not the observation of the row after."""
        pairs = zip(tree.leaves(self.obs), tree.leaves(self._next_obs), strict=True)
        for here, after in pairs:
            for begin, end in block_ranges(len(self) - 1, row_bytes(here)):
                then, found = np.asarray(here[begin + 1 : end + 1]), np.asarray(after[begin:end])
                self.ends[begin:end] |= (then != found).any(axis=tuple(range(1, then.ndim)))

    def _named(self, name: str) -> Iterator[tuple[str, Column]]:
        given = self.obs if name == "obs" else self._next_obs
        for path, leaf in () if given is None else tree.named_leaves(given):
            yield (f"{name}[{path}]" if path else name), leaf

    def _check_shapes(self, flags: Mapping[str, Column]) -> int:
        """Return T; raise if columns are not arrays, or their shapes do not match."""
        owner, error = self._owner, self._error
        for name, given in {
            "obs": self.obs,
            "next_obs": self.obs if self._next_obs is None else self._next_obs,
        }.items():
            tree.check_keys(f"{owner}.{name}", given, error)
            leaves = tree.leaves(given)
            if not leaves or not all(map(_has_rows, leaves)):
                raise error(f"{owner}.{name} must be an array, or a dict or tuple of arrays, got {given!r:.200}")
        names = {**dict(self._named("obs")), **dict(self._named("next_obs")), "action": self.action}
        names |= {"reward": self.reward, **flags, **self.extras}
        scalars = [name for name, column in names.items() if len(column.shape) == 0]
        if scalars:
            raise error(f"{owner}.{scalars[0]} must be an array of one row per step, got a single number")
        n_rows = len(self.reward)
        lengths = sorted({len(column) for column in names.values()})
        if lengths != [n_rows] or n_rows == 0:
            raise error(f"{owner} needs columns of one length >= 1, got lengths {lengths}")
        for name, column in {"reward": self.reward, **flags}.items():
            if len(column.shape) != 1:
                raise error(f"{owner}.{name} must have one number per row, got shape {tuple(column.shape)}")
        if self._next_obs is not None:
            here, after = (
                {path: leaf.shape for path, leaf in tree.named_leaves(one)} for one in (self.obs, self._next_obs)
            )
            if here != after:
                raise error(f"{owner}.next_obs must be like obs, {here}, got {after}")
        return n_rows

    def _check_rows(self, name: str, space: Space[Any] | None) -> None:
        """Raise if the rows of `obs` or `action` do not have the shapes of their space."""
        columns = dict(tree.named_leaves(getattr(self, name)))
        for path, spec in () if space is None else tree.named_leaves(array_specs(space)):
            found = tuple(columns[path].shape[1:]) if path in columns else "no such column"
            if found != spec.shape:
                raise self._error(
                    f"{self._owner}.{_joined(name, path)} must have rows of shape {spec.shape}, as in its space, got "
                    f"{found}: reshape it, or give the spaces of this data"
                )


def _rows(obs: Obs, begin: int, end: int) -> Obs:
    return tree.map_tree(lambda leaf: np.asarray(leaf[begin:end]), obs)


def _has_rows(given: Any) -> bool:
    """Return whether this is an array [T, ...] or a dataset in a file."""
    return isinstance(getattr(given, "dtype", None), np.dtype) and len(given.shape) > 0


def _column(given: Any) -> Any:
    """Convert a list to an array; return arrays and datasets in files unchanged."""
    return given if hasattr(given, "shape") and hasattr(given, "dtype") else np.asarray(given)
