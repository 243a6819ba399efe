"""Recorded transitions, in time order: validated, completed, and divided into episodes."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from trainkit.buffer.blocks import Block, BlockCheck, Column, block_ranges, row_bytes
from trainkit.buffer.storage import Rings
from trainkit.core import tree
from trainkit.core.data import Obs, RecordedEpisode, Transition
from trainkit.core.errors import ConfigError, TrainkitError

_STEPS_AT_ONCE = 1_000


class RecordedRows:
    """T rows of one environment in columns [T, ...], read and validated block by block.

    Where two rows do not follow each other, because `next_obs` of one is not `obs` of the next, an episode ends.

    Attributes:
        ends: which rows are their episode's last [T].

    Raises:
        ConfigError: or `error`, naming the column, row and value that cannot be learned from.
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
        action_space: Space[Any] | None = None,
        error: type[TrainkitError] = ConfigError,
    ) -> None:
        self._owner, self._error = owner, error
        self.obs, self._next_obs = obs, next_obs
        self.action, self.reward, self.extras = _column(action), _column(reward), _columns(extras)
        flags = {"terminated": terminated, "truncated": truncated, "ends": ends}
        given = {name: _column(flag) for name, flag in flags.items() if flag is not None}
        n_rows = self._check_shapes(given)
        self._check = BlockCheck(owner, action_space, error)
        named = {path: leaf for name in ("obs", "next_obs") for path, leaf in self._named(name)}
        others = {"action": self.action, "reward": self.reward} | {f"extras[{n!r}]": x for n, x in self.extras.items()}
        self._check.kinds({**named, **others, **given})
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
        """Return the observations after rows `last` of [begin, end)."""
        if self._next_obs is not None:
            return tree.map_tree(lambda leaf: np.asarray(leaf[begin:end])[last], self._next_obs)
        # No bootstrap needs them: every episode terminates. The last row of all is followed by itself.
        rows = tree.map_tree(lambda leaf: np.asarray(leaf[begin : end + 1]), self.obs)
        return tree.map_tree(lambda leaf: leaf[np.minimum(last + 1, len(leaf) - 1)], rows)

    def _end_where_rows_do_not_follow(self) -> None:
        """Mark rows whose next observation is not the observation of the row after."""
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
        """Return T; raise if columns are no arrays, or of other shapes than each other's."""
        owner, error = self._owner, self._error
        for name, given in {
            "obs": self.obs,
            "next_obs": self.obs if self._next_obs is None else self._next_obs,
        }.items():
            tree.check_keys(f"{owner}.{name}", given, error)
            leaves = tree.leaves(given)
            if not leaves or not all(hasattr(leaf, "shape") and len(leaf.shape) > 0 for leaf in leaves):
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


def _column(given: Any) -> Any:
    """Return what has rows as it is, and lists of numbers as an array."""
    return given if hasattr(given, "shape") and hasattr(given, "dtype") else np.asarray(given)


def _columns(extras: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _column(column) for name, column in extras.items()}


def _rows(obs: Obs, begin: int, end: int) -> Obs:
    return tree.map_tree(lambda leaf: np.asarray(leaf[begin:end]), obs)


def read_episodes(rings: Rings) -> Iterator[RecordedEpisode]:
    """Yield the episodes whose first row lives, ring by ring from the oldest; the last of a ring may be open."""
    for env in range(rings.n_envs):
        rows = rings.after(rings.heads.rows[env], np.arange(-rings.count[env], 0))
        begins = np.flatnonzero(rings.age[rows] == 0)
        for begin, end in zip(begins, [*begins[1:], len(rows)], strict=True):
            own = rows[begin:end]
            final = rings.next_obs_at(own[-1:])
            obs = tree.map_tree(lambda here, after: np.concatenate([here, after]), rings.obs_at(own), final)
            yield RecordedEpisode(
                obs=obs,
                action=rings.action[own],
                reward=rings.reward[own],
                terminated=bool(rings.terminated[own[-1]]),
                truncated=bool(rings.truncated[own[-1]]),
                extras={name: column[own] for name, column in rings.extras.items()},
            )


def vector_steps(rings: Rings, n_envs: int) -> Iterator[tuple[Transition, NDArray[np.intp]]]:
    """Deal the episodes of rings out to `n_envs` environments, yielding (vector step, whose episodes to cut behind).

    Whole episodes go one after the other to the environment with the fewest rows. Of stacks the rows of an episode that
    has lost its first ones are left out, as their older frames may be gone.
    """
    queues: list[list[NDArray[np.int64]]] = [[] for _ in range(n_envs)]
    lengths = np.zeros(n_envs, np.int64)
    stacked = any(leaf.stack > 1 for leaf in tree.leaves(rings.spec.obs))
    for env in range(rings.n_envs):
        rows = rings.after(rings.heads.rows[env], np.arange(-rings.count[env], 0))
        for own in np.split(rows, np.flatnonzero(rings.age[rows] == 0)):
            if len(own) and not (stacked and rings.age[own[0]] > 0):
                to = int(lengths.argmin())
                queues[to].append(own)
                lengths[to] += len(own)
    longest = int(lengths.max(initial=0))
    rows = np.full((longest, n_envs), -1)  # [steps, N], -1: the environment has no row any more
    cuts = np.zeros((longest, n_envs), np.bool_)
    for to, runs in enumerate(queues):
        end = 0
        for own in runs:
            begin, end = end, end + len(own)
            rows[begin:end, to] = own
            cuts[end - 1, to] = not (rings.terminated[own[-1]] or rings.truncated[own[-1]])
    for begin in range(0, longest, _STEPS_AT_ONCE):
        block = rows[begin : begin + _STEPS_AT_ONCE]
        read, start = rings.read(block[block >= 0]), 0
        for now, cut in zip(block, cuts[begin:], strict=False):
            (env_ids,) = np.nonzero(now >= 0)
            yield read.at(slice(start, start + len(env_ids)))._replace(env_ids=env_ids), np.flatnonzero(cut)
            start += len(env_ids)


def count_episodes(rings: Rings | None) -> int:
    """Count the episodes that live rows are of, those that began before the oldest row and those that run included."""
    if rings is None:
        return 0
    has_rows = rings.count > 0
    head, count = rings.heads.rows[has_rows], rings.count[has_rows]
    newest, oldest = rings.episode[rings.after(head, -1)], rings.episode[rings.after(head, -count)]
    return int((newest - oldest + 1).sum())
