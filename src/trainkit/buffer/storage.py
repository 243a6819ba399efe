"""Transitions in memory: columns allocated once, in one ring per environment (see `rings`).

    step     one call of `add`: one step of each of K environments
    row      an index into the columns, and what is stored there: one step of one environment
    record   the fields of a row that are adjacent in memory: all but its observations and extras
    slot     identifies the content of a row for good: serial of its step * n_rows + row

Every observation is stored once: the next observation of a row is the observation of the row after it. Where an episode
ended, the row after belongs to the next episode, and the true final observation is stored apart, at the index in the
row's field `final`; `final < 0` means that the episode continues in the row after, or is still open.

A row whose observation is not the `next_obs` of the row before does not continue the open episode: the episode ends at
the row before, which keeps its own next observation as a final one.
"""

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainkit.buffer.recorded import Block
from trainkit.buffer.rings import Rings, RowBlock, Rows, rows_of_block
from trainkit.core import tree
from trainkit.core.data import (
    ACTION_MASK,
    Allocate,
    ArraySpec,
    Lookup,
    Obs,
    RecordedEpisode,
    RowSpec,
    Transition,
    add_at,
    any_true,
)
from trainkit.core.errors import ConfigError, MissingRowError
from trainkit.core.files import copy_into, decoding
from trainkit.core.observations import exact_cast

_ONE = np.ones((), np.int32)
_NO_FINAL = np.full((), -1, np.int32).tobytes()

_type_of = operator.attrgetter("dtype", "shape")

Gather = Callable[[NDArray[Any], Rows], Any]  # (column, rows) -> these rows, or a `Lookup` that stands for them


class ImageMirror(Protocol):
    """A second place of a storage's images, from which batches refer to them."""

    def update(self) -> None:
        """Copy what was written since the last update."""

    def gather(self, column: NDArray[Any], rows: Rows) -> Any:
        """Return a `Lookup` of rows of a column that it has, of others the rows themselves."""

    def clear(self) -> None:
        """Copy everything at the next update."""


@runtime_checkable
class FrameStore(Protocol):
    """What keeps a buffer's images in a second place too, such as the memory of a GPU."""

    @property
    def device(self) -> object: ...

    def mirror(self, owner: str, storage: "Storage") -> ImageMirror:
        """Return the second place of a storage's images; an error names the owner."""


def take_rows(column: NDArray[Any], rows: Rows) -> NDArray[Any]:
    """Return rows of a column; rows past its end wrap around."""
    return column.take(rows, axis=0, mode="wrap")


def take_rows_into(allocate: Allocate, column: NDArray[Any], rows: Rows) -> NDArray[Any]:
    """Return rows of a column in an array that `allocate` makes; rows past the column's end wrap around."""
    out = allocate((*rows.shape, *column.shape[1:]), column.dtype)
    return column.take(rows, axis=0, out=out, mode="wrap")  # any other mode would copy them once more


class Storage:
    """Transitions of N environments: their columns, their episodes, and the slots that identify them.

    Attributes:
        rings: which rows are live, and which each environment writes next.
        obs: a tree of columns [n_rows, ...], of the newest frame where stacked.
        records: the records of all rows.
        extras: columns of the policy [n_rows, ...].
        finals: the final observations of episodes.
        serial: number of steps added so far, the serial of the next one; no slot is used twice.
        open_steps: steps of each environment's open episode [N], 0 where none is open.
        n_episodes: episodes of each environment that have ended [N].
        n_dropped: rows of each environment ever dropped [N].
    """

    def __init__(self, capacity: int, spec: RowSpec) -> None:
        self.spec = spec
        self._obs_specs: list[ArraySpec] = tree.leaves(spec.obs)
        self._stack = max(leaf.stack for leaf in self._obs_specs)
        self._all_envs = np.arange(spec.n_envs, dtype=np.intp).tobytes()
        self.rings = Rings(spec.n_envs, capacity, self._stack)

        def column(leaf: ArraySpec) -> NDArray[Any]:
            return np.zeros((self.rings.n_rows, *leaf.shape), leaf.dtype)

        self.obs: Obs = tree.map_tree(column, spec.obs)
        self._obs_columns: list[NDArray[Any]] = tree.leaves(self.obs)
        self.records = Records(np.zeros(self.rings.n_rows, record_dtype(spec.action)))
        self.records.final[:] = self.records.stamp[:] = -1
        self.extras = {name: column(leaf) for name, leaf in spec.extras.items()}
        self.finals = FinalObservations(spec.obs)
        self.serial = 0
        self.open_steps = np.zeros(spec.n_envs, np.int32)
        self.n_episodes = np.zeros(spec.n_envs, np.int32)
        self.n_dropped = np.zeros(spec.n_envs, np.int64)
        self._layout: list[Any] = []  # of rows like the columns, which need no check; a collector's are all alike
        self._last_next_obs: list[Any] = []  # leaves of the `next_obs` added last, where stacked; compared by identity

    @property
    def nbytes(self) -> int:
        """Bytes of all columns and final observations."""
        columns = [*self._obs_columns, *self.extras.values(), self.records.array]
        return self.finals.nbytes + sum(column.nbytes for column in columns)

    def clear(self) -> None:
        """Forget every row; slots returned before stay invalid."""
        self._last_next_obs = []
        self.finals.clear()
        self.records.final[:] = self.records.stamp[:] = -1
        self.rings.clear()
        self.open_steps[:] = self.n_episodes[:] = 0

    # ---- writing ----

    def add(self, step: Transition) -> tuple[NDArray[np.int64], list[RowBlock]]:
        """Write K rows and return (their slots [K], the rows that were written, and those evicted to make room)."""
        rings, records, envs = self.rings, self.records, np.asarray(step.env_ids)
        own_rings = self._rings_of(envs)
        at = slice(None) if own_rings is None else own_rings  # of arrays [N]
        obs, next_obs = tree.leaves(step.obs), tree.leaves(step.next_obs)
        layout = _layout(obs, next_obs, step)
        if layout != self._layout and self._check_fits(step, obs, next_obs):
            self._layout = layout
        here = rings.heads(own_rings)
        self._end_skipped(here, envs, obs)
        evicted = rings.push(own_rings)
        after = rings.heads(own_rings)
        for column, leaf, given, given_next in zip(self._obs_columns, self._obs_specs, obs, next_obs, strict=True):
            column[here] = given[:, -1] if leaf.stack > 1 else given
            column[after] = given_next[:, -1] if leaf.stack > 1 else given_next
        if self._stack > 1:
            self._last_next_obs = next_obs
        records.action[here] = step.action
        records.reward[here] = step.reward
        records.terminated[here] = step.terminated
        records.truncated[here] = step.truncated
        records.age[here] = self.open_steps[at]
        records.episode[here] = self.n_episodes[at]
        for name, column in self.extras.items():
            column[here] = step.extras[name]
        if evicted is not None:
            self._evict(evicted)
        records.stamp[here] = self.serial
        slots = rows_of_block(here, self.serial * rings.n_rows)
        self.serial += 1
        add_at(self.open_steps, at, _ONE)
        terminated, truncated = records.terminated[here], records.truncated[here]  # as bools
        if any_true(terminated) or any_true(truncated):
            ended = terminated | truncated
            self._end_at(rows_of_block(here)[ended], envs[ended])
        return slots, [here] if evicted is None else [here, evicted]

    def _rings_of(self, envs: NDArray[Any]) -> NDArray[np.intp] | None:
        """Return the rings of environments [K], None for one row of each; raise unless they are ascending."""
        if envs.tobytes() == self._all_envs:
            return None
        if envs.dtype.kind not in "iu" or envs.ndim != 1:
            raise ConfigError(f"env_ids must be integers [K], got {envs.dtype} {list(envs.shape)}: {envs.tolist()}")
        n_rings = self.rings.n_rings
        if any_true(envs[1:] <= envs[:-1]) or (len(envs) > 0 and (envs[0] < 0 or envs[-1] >= n_rings)):
            raise ConfigError(f"env_ids must rise within [0, {n_rings}), got {envs.tolist()}")
        return envs

    def _evict(self, rows: RowBlock) -> None:
        """Release the final observations of rows; frames stay for the stacks that include them."""
        records = self.records
        records.stamp[rows] = -1
        final = records.final[rows]
        if final.tobytes() != _NO_FINAL * len(final):
            self.finals.release(final[final >= 0])
            records.final[rows] = -1

    def _check_fits(self, step: Transition, obs: Sequence[Any], next_obs: Sequence[Any]) -> bool:
        """Return whether rows are of the columns' own types, which are those of the first rows.

        Raises:
            ConfigError: the columns cannot hold them.
        """
        if missing := self.extras.keys() - step.extras.keys():
            raise ConfigError(f"ReplayBuffer.add: {', '.join(sorted(missing))} must be given, as the first rows had it")
        is_alike = [
            _check_rows(name, column, rows, 2 if leaf.stack > 1 else 1)
            for column, leaf, *given in zip(self._obs_columns, self._obs_specs, obs, next_obs, strict=True)
            for name, rows in zip(("obs", "next_obs"), given, strict=True)
        ]
        is_alike.append(_check_rows("action", self.records.action, step.action))
        is_alike += [_check_rows(name, column, step.extras[name]) for name, column in self.extras.items()]
        return all(is_alike)

    def end_episodes(self, envs: NDArray[np.intp]) -> None:
        """End the open episodes of these environments: the newest next observations become final ones."""
        envs = envs[self.open_steps[envs] > 0]
        self._end_at(self.rings.after(self.rings.cursors[envs], -1), envs)

    def drop_episodes(self, envs: NDArray[np.intp]) -> Rows:
        """Remove and return the live rows of open episodes; older episodes stay as they are."""
        dropped = [np.zeros(0, np.int64)]
        for env in envs.tolist():
            n_steps = int(min(self.open_steps[env], self.rings.count[env]))
            dropped.append(self.rings.rewind(env, n_steps))
            self.n_dropped[env] += n_steps
            self.open_steps[env] = 0
        rows = np.concatenate(dropped)
        self.records.stamp[rows] = -1
        return rows

    def fill(self, ends: NDArray[np.bool_], blocks: Iterable[Block]) -> None:
        """Write T rows of one environment into empty storage; `ends` [T] marks each episode's last row."""
        first = self.serial
        n_steps, records = len(ends), self.records
        last = np.flatnonzero(ends)
        starts = np.concatenate([[0], last + 1])
        finals = self.finals.claim(len(last))
        start = n_ended = 0
        for block in blocks:
            end = start + len(block.reward)
            n_ends = int(np.searchsorted(last, end)) - n_ended
            own = finals[n_ended : n_ended + n_ends]
            leaves = zip(tree.leaves(block.obs), tree.leaves(block.last_obs), strict=True)
            for column, kept, (obs, last_obs) in zip(self._obs_columns, self.finals.columns, leaves, strict=True):
                column[start:end] = obs
                kept[own] = last_obs[:n_ends]
                if end == n_steps:
                    column[n_steps] = last_obs[-1]
            for name in ("action", "reward", "terminated", "truncated"):
                records.array[name][start:end] = getattr(block, name)
            for name, column in self.extras.items():
                column[start:end] = block.extras[name]
            row = np.arange(start, end)
            episode = np.searchsorted(last, row, side="left")
            records.age[start:end] = row - starts[episode]
            records.episode[start:end] = episode
            start, n_ended = end, n_ended + n_ends
        assert start == n_steps, "blocks have as many rows as `ends`"
        records.stamp[:n_steps] = np.arange(first, first + n_steps)
        records.final[last] = finals
        self.serial = first + n_steps
        self.rings.restore(np.array([n_steps]), np.array([n_steps]))
        self.open_steps[0] = n_steps - starts[-1]
        self.n_episodes[0] = len(last)

    def _end_skipped(self, here: RowBlock, envs: NDArray[np.intp], obs: list[NDArray[Any]]) -> None:
        """End the open episodes that these observations do not continue, because rows in between were not added."""
        # Stacks that are the very arrays added as `next_obs`, as a collector's are, have the same older frames.
        known = self._last_next_obs
        is_next = self._stack == 1 or (len(known) == len(obs) and all(map(operator.is_, obs, known)))
        for column, leaf, given in zip(self._obs_columns, self._obs_specs, obs, strict=True):
            is_next = is_next and is_equal(column[here], given[:, -1] if leaf.stack > 1 else given)
        if is_next:
            return
        age, rows = self.open_steps[envs], self.rings.cursors[envs]
        continues = age > 0
        for column, leaf, given in zip(self._obs_columns, self._obs_specs, obs, strict=True):
            for back in range(leaf.stack):
                frames = given[:, leaf.stack - 1 - back] if leaf.stack > 1 else given
                own = column[self.rings.after(rows, -np.minimum(back, age))]
                if self.spec.pad == "zero":
                    own[age < back] = 0
                continues &= equal_rows(own, frames)
        skipped = (age > 0) & ~continues
        if any_true(skipped):
            self.end_episodes(envs[skipped])

    def _end_at(self, rows: Rows, envs: NDArray[np.intp]) -> None:
        """Mark the newest rows of these environments as the last of their episodes."""
        finals, pending = self.finals.claim(len(envs)), self.rings.cursors[envs]
        self.records.final[rows] = finals
        for column, kept in zip(self._obs_columns, self.finals.columns, strict=True):
            kept[finals] = column.take(pending, axis=0)
        self.open_steps[envs] = 0
        self.n_episodes[envs] += 1

    # ---- finding rows ----

    def slots(self, rows: Rows) -> NDArray[np.int64]:
        """Return the slots of live rows [B]."""
        slots: NDArray[np.int64] = self.records.stamp[rows] * self.rings.n_rows + rows
        return slots

    def find(self, slots: ArrayLike) -> tuple[Rows, NDArray[np.bool_]]:
        """Return (the rows of slots [B], whether each still belongs to its slot)."""
        stamp, rows = np.divmod(np.asarray(slots).astype(np.int64, casting="same_kind", copy=False), self.rings.n_rows)
        return rows, (self.records.stamp[rows] == stamp) & (stamp >= 0)

    def check_given(self, owner: str, slots: ArrayLike, is_stored: NDArray[np.bool_]) -> None:
        """Raise `MissingRowError` for slots [B] that no `add` returned; `is_stored` is as `find` returned it."""
        given = np.asarray(slots)[~is_stored]
        unknown = (given < 0) | (given >= self.serial * self.rings.n_rows)
        if unknown.any():
            raise MissingRowError(f"{owner}: slot {given[unknown][0]} is none that add or sample returned: give those")

    def previous(self, rows: Rows) -> Rows:
        """Return the row before each row in its episode, or the row itself if none is stored."""
        before = self.rings.after(rows, -1)
        return np.where((self.records.age[rows] > 0) & (self.records.stamp[before] >= 0), before, rows)

    def following(self, rows: Rows) -> Rows:
        """Return the row after each row in its episode, or the row itself if there is none yet."""
        after = self.rings.after(rows, 1)
        return np.where((self.records.final[rows] < 0) & (self.records.stamp[after] >= 0), after, rows)

    def open_rows(self) -> Rows:
        """Return the newest rows of the open episodes, one per environment that has one."""
        (envs,) = np.nonzero((self.open_steps > 0) & (self.rings.count > 0))
        return self.rings.after(self.rings.cursors[envs], -1)

    # ---- reading ----

    def obs_at(self, rows: Rows, ahead: int = 0, *, stack: int | None = None, gather: Gather = take_rows) -> Obs:
        """Return the observations `ahead` rows after rows [B]: [B, ...], or stacks of frames [B, stack, ...].

        A stack that begins before its episode's first frame, or the oldest one stored, repeats that frame, or has zeros
        there, by `pad` of the spec.
        """
        newest = rows + ahead * self.rings.n_rings if ahead else rows  # `gather` wraps around
        if stack is None and self._stack == 1:
            return tree.map_tree(lambda column: gather(column, newest), self.obs)
        n_back = self.records.age[rows]
        if stack is not None:  # which may be deeper than what is kept of evicted rows
            ring = rows % self.rings.n_rings
            oldest = self.rings.after(self.rings.cursors[ring], -self.rings.count[ring])
            n_back = np.minimum(n_back, (rows - oldest) % self.rings.n_rows // self.rings.n_rings + self._stack - 1)
        depths = tree.map_tree(lambda leaf: leaf.stack if stack is None else stack, self.spec.obs)
        if isinstance(depths, dict) and ACTION_MASK in depths:
            depths[ACTION_MASK] = 1  # never stacked
        back, n_back = np.arange(max(tree.leaves(depths)) - 1, -1, -1), n_back[:, None] + ahead
        frames = newest[:, None] - np.minimum(back, n_back) * self.rings.n_rings  # [B, deepest]
        obs: Obs = tree.map_tree(
            lambda depth, column: gather(column, newest if depth == 1 else frames[:, -depth:]), depths, self.obs
        )
        if self.spec.pad == "zero":
            for leaf, depth in zip(tree.leaves(obs), tree.leaves(depths), strict=True):
                if depth > 1:
                    own, zero = (leaf.indices, leaf.frames.blank) if isinstance(leaf, Lookup) else (leaf, 0)
                    own[(back > n_back)[:, -depth:]] = zero
        return obs

    def next_obs_at(
        self, rows: Rows, final: NDArray[np.int32], *, stack: int | None = None, gather: Gather = take_rows
    ) -> Obs:
        """Return the true next observations of rows [B]; `final` [B] is the field `final` of these rows."""
        obs = self.obs_at(rows, 1, stack=stack, gather=gather)
        (ended,) = (final >= 0).nonzero()
        if len(ended):
            for column, found, kept in zip(self._obs_columns, tree.leaves(obs), self.finals.columns, strict=True):
                is_lookup = isinstance(found, Lookup)  # of the rows, and the final observations behind them
                frames = found.indices if is_lookup else found
                newest = frames[:, -1] if found.ndim > column.ndim else frames
                newest[ended] = self.rings.n_rows + final[ended] if is_lookup else kept.take(final[ended], axis=0)
        return obs

    def column(self, name: str, rows: Rows) -> NDArray[Any]:
        """Return a column [B, ...] of rows: one of `ROW_COLUMNS`, or of `extras`."""
        if name == "env_id":
            return rows % self.rings.n_rings
        fields = {"t": "age", "episode": "episode", "terminated": "terminated", "truncated": "truncated"}
        column: NDArray[Any] = self.records.array[fields[name]] if name in fields else self.extras[name]
        return column[rows]

    def read(self, rows: Rows, stack: int | None = None) -> Transition:
        """Return live rows [K] with all extras; observations have `stack` frames, by default as many as were added."""
        records = self.records
        return Transition(
            obs=self.obs_at(rows, stack=stack),
            action=records.action[rows],
            reward=records.reward[rows],
            next_obs=self.next_obs_at(rows, records.final[rows], stack=stack),
            terminated=records.terminated[rows],
            truncated=records.truncated[rows],
            env_ids=rows % self.rings.n_rings,
            extras={name: column[rows] for name, column in self.extras.items()},
        )

    def transitions(self, n_rows: int) -> Iterator[Transition]:
        """Read all live rows once, ring by ring from the oldest, K at a time; a block repeats `env_ids`."""
        for start in range(0, self.rings.n_live, n_rows):
            yield self.read(self.rings.live_rows(np.arange(start, min(start + n_rows, self.rings.n_live))))

    def episodes(self) -> Iterator[RecordedEpisode]:
        """Yield the episodes whose first row is live, ring by ring from the oldest; the last of a ring may be open."""
        records = self.records
        for own in self._runs():
            if records.age[own[0]] > 0:
                continue
            final = self.next_obs_at(own[-1:], records.final[own[-1:]])
            yield RecordedEpisode(
                obs=tree.map_tree(lambda here, after: np.concatenate([here, after]), self.obs_at(own), final),
                action=records.action[own],
                reward=records.reward[own],
                terminated=bool(records.terminated[own[-1]]),
                truncated=bool(records.truncated[own[-1]]),
                extras={name: column[own] for name, column in self.extras.items()},
            )

    def count_episodes(self) -> int:
        """Count the episodes with live rows, including open ones and those whose first rows were overwritten."""
        has_rows = self.rings.count > 0
        cursor, count = self.rings.cursors[has_rows], self.rings.count[has_rows]
        newest, oldest = (self.records.episode[self.rings.after(cursor, -n)] for n in (1, count))
        return int((newest - oldest + 1).sum())

    def vector_steps(self, n_envs: int, at_once: int = 1_000) -> Iterator[tuple[Transition, NDArray[np.intp]]]:
        """Distribute all episodes over `n_envs` environments; yield (vector step, environments to cut after it).

        Whole episodes go one after the other to the environment with the fewest rows. With stacks, the rows of an
        episode that lost its first rows are left out, as their older frames may be lost too.
        """
        queues: list[list[Rows]] = [[] for _ in range(n_envs)]
        lengths = np.zeros(n_envs, np.int64)
        for own in self._runs():
            if self._stack == 1 or self.records.age[own[0]] == 0:
                env = int(lengths.argmin())
                queues[env].append(own)
                lengths[env] += len(own)
        longest = int(lengths.max(initial=0))
        rows = np.full((longest, n_envs), -1)  # [steps, N], -1: the environment has no rows left
        cuts = np.zeros((longest, n_envs), np.bool_)
        for env, runs in enumerate(queues):
            end = 0
            for own in runs:
                begin, end = end, end + len(own)
                rows[begin:end, env] = own
                cuts[end - 1, env] = not (self.records.terminated[own[-1]] or self.records.truncated[own[-1]])
        for begin in range(0, longest, at_once):
            block = rows[begin : begin + at_once]
            read, start = self.read(block[block >= 0]), 0
            for now, cut in zip(block, cuts[begin:], strict=False):
                (env_ids,) = np.nonzero(now >= 0)
                yield read.at(slice(start, start + len(env_ids)))._replace(env_ids=env_ids), np.flatnonzero(cut)
                start += len(env_ids)

    def _runs(self) -> Iterator[Rows]:
        """Yield the live rows of each episode, ring by ring from the oldest."""
        for ring in range(self.rings.n_rings):
            rows = self.rings.rows_of(ring)
            yield from (own for own in np.split(rows, np.flatnonzero(self.records.age[rows] == 0)) if len(own))

    # ---- saving ----

    @property
    def n_used(self) -> int:
        """Number of rows up to the last one written; all rows once a ring may have wrapped around."""
        has_wrapped = self.serial >= self.rings.limit.min()
        return self.rings.n_rows if has_wrapped else int(self.rings.cursors.max()) + 1

    def state_dict(self) -> dict[str, Any]:
        """Return every column up to the last row ever written, and the counters."""
        columns = {name: column[: self.n_used] for name, column in self._columns().items()}
        counters = {name: counter.copy() for name, counter in self._counters().items()}
        return {"columns": columns, "counters": counters, "serial": self.serial, **self.finals.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of a storage of the same spec and capacity; an invalid one changes nothing.

        Columns may be `StoredArray`s, which are read straight into memory.

        Raises:
            CheckpointError: it is of other storage, or does not describe rows.
        """
        remedy = "make the buffer as it was, or take an older checkpoint"
        with decoding("a saved state", "rows of this buffer", remedy=remedy):
            self._check_state(state)
        self.clear()
        self.finals.load_state_dict(state)
        for name, column in self._columns().items():
            saved = state["columns"][name]
            copy_into(column[: len(saved)], saved)
        counters = state["counters"]
        self.rings.restore(np.array(counters["head"]), np.array(counters["count"], np.int64))
        self.open_steps[:], self.n_episodes[:] = counters["open_steps"], counters["episodes"]
        self.serial = state["serial"]

    def _check_state(self, state: Mapping[str, Any]) -> None:
        """Raise if a saved state belongs to a different storage, or its indices are out of range."""
        columns, saved, counters = self._columns(), state["columns"], state["counters"]
        n_rows, n_envs = self.rings.n_rows, self.rings.n_rings
        if saved.keys() != columns.keys():
            raise ValueError(f"columns are {sorted(saved)}, and must be {sorted(columns)}")
        n_used = len(saved["stamp"])
        for name, column in columns.items():
            is_castable = np.can_cast(saved[name].dtype, column.dtype, "same_kind")
            if saved[name].shape != (n_used, *column.shape[1:]) or not is_castable:
                raise ValueError(f"column {name} is {saved[name].dtype} {saved[name].shape}")
        serial, n_finals = state["serial"], self.finals.check_state(state)
        highest: dict[str, int | NDArray[np.int64]] = {}
        highest |= {"head": n_rows - 1, "count": self.rings.limit, "open_steps": 2**31 - 1, "episodes": 2**31 - 1}
        for name, high in highest.items():
            values = np.asarray(counters[name])
            if values.shape != (n_envs,) or values.dtype.kind not in "iu":
                raise ValueError(f"{name} is {values.dtype} {values.shape}")
            if not ((values >= 0) & (values <= high)).all():
                raise ValueError(f"{name} is {values!r:.80}")
        if type(serial) is not int or not 0 <= serial < 2**62 // n_rows:
            raise ValueError(f"serial is {serial!r:.80}")
        if n_used > n_rows or (np.asarray(counters["head"]) % n_envs != np.arange(n_envs)).any():
            raise ValueError(f"it has {n_used} rows, and heads {counters['head']!r:.80}")
        for name, high in (("final", n_finals - 1), ("stamp", serial - 1)):
            values = np.asarray(saved[name])
            if n_used and not (values.min() >= -1 and values.max() <= high):
                raise ValueError(f"column {name} reaches from {values.min()} to {values.max()}")
        if n_used and (np.asarray(saved["age"]) < 0).any():
            raise ValueError("column age is negative")

    def _columns(self) -> dict[str, NDArray[Any]]:
        """Return all columns by their names in saved files."""
        columns = {f"obs.{path}": column for path, column in tree.named_leaves(self.obs)}
        columns |= {f"extras.{name}": column for name, column in self.extras.items()}
        fields = ("action", "reward", "terminated", "truncated", "age", "episode", "final", "stamp")
        return columns | {name: self.records.array[name] for name in fields}

    def _counters(self) -> dict[str, NDArray[Any]]:
        """Return the counters of all rings [N] by their names in saved files."""
        counters = {"head": self.rings.cursors, "count": self.rings.count}
        return counters | {"open_steps": self.open_steps, "episodes": self.n_episodes}


class Records:
    """The records of all rows, whole in `array`, and each field as a column.

    Attributes:
        array: all fields [n_rows], of `record_dtype`.
        stamp: the serial of the step that added a live row, -1 for all others.
        final: index of the final observation where an episode ends, else -1.
        age: steps of the episode before this one.
        episode: number of the episode in its environment.
    """

    def __init__(self, array: NDArray[np.void]) -> None:
        self.array = array
        self.action: NDArray[Any] = array["action"]
        self.reward: NDArray[np.float64] = array["reward"]
        self.terminated: NDArray[np.bool_] = array["terminated"]
        self.truncated: NDArray[np.bool_] = array["truncated"]
        self.stamp: NDArray[np.int64] = array["stamp"]
        self.final: NDArray[np.int32] = array["final"]
        self.age: NDArray[np.int32] = array["age"]
        self.episode: NDArray[np.int32] = array["episode"]

    def __reduce__(self) -> tuple[type["Records"], tuple[NDArray[np.void]]]:
        return Records, (self.array,)  # the fields of a copy are views of its own array


class FinalObservations:
    """A pool of observations that have an index until they are released; it grows by blocks.

    Args:
        spec: a tree of their `ArraySpec`s.

    Attributes:
        columns: the leaves of the tree, [capacity, ...] each.
    """

    _BLOCK = 16  # observations allocated at a time, at least an eighth of those there are

    def __init__(self, spec: Any) -> None:
        self._paths = [path for path, _ in tree.named_leaves(spec)]
        self.columns = [np.zeros((0, *leaf.shape), leaf.dtype) for leaf in tree.leaves(spec)]
        self._free = np.zeros(0, np.int64)  # [capacity], indices; the first `_n_free` are free
        self._n_free = 0

    def __len__(self) -> int:
        return len(self._free)

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        return sum(column.nbytes for column in self.columns)

    def claim(self, count: int) -> NDArray[np.int64]:
        """Reserve space for `count` observations, and return their indices."""
        missing = count - self._n_free
        if missing > 0:
            self._grow(max(missing, self._BLOCK, len(self) // 8))
        self._n_free -= count
        return self._free[self._n_free : self._n_free + count].copy()

    def release(self, indices: NDArray[np.integer[Any]]) -> None:
        """Make the indices available again."""
        assert self._n_free + len(indices) <= len(self), "each index is released once"
        self._free[self._n_free : self._n_free + len(indices)] = indices
        self._n_free += len(indices)

    def clear(self) -> None:
        """Release all observations; the memory stays allocated."""
        self._free, self._n_free = np.arange(len(self)), len(self)

    def state_dict(self) -> dict[str, Any]:
        """Return all columns, and which indices are free."""
        columns = {path: column.copy() for path, column in zip(self._paths, self.columns, strict=True)}
        return {"finals": columns, "free_finals": self._free[: self._n_free].tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved state; indices that are not in it become free."""
        n_saved, n_here = self.check_state(state), len(self)
        self._grow(n_saved - n_here)
        for path, column in zip(self._paths, self.columns, strict=True):
            copy_into(column[:n_saved], state["finals"][path])
        self._n_free = 0
        self.release(np.arange(n_here - 1, n_saved - 1, -1))
        self.release(np.array(state["free_finals"], np.int64))

    def check_state(self, state: Mapping[str, Any]) -> int:
        """Return the number of observations in a saved state; raise ValueError if their columns differ from these."""
        saved, free = state["finals"], state["free_finals"]
        n_saved = len(next(iter(saved.values())))
        pairs = zip(self._paths, self.columns, strict=True)
        wanted = {path: ((n_saved, *column.shape[1:]), column.dtype) for path, column in pairs}
        found = {path: (column.shape, column.dtype) for path, column in saved.items()}
        if found != wanted:
            raise ValueError(f"final observations are {found}, and must be {wanted}")
        indices = np.array(free, np.int64).reshape(-1)
        if len(np.unique(indices)) != len(indices) or not ((indices >= 0) & (indices < n_saved)).all():
            raise ValueError(f"free indices of final observations are {free!r:.80}")
        return n_saved

    def _grow(self, count: int) -> None:
        if count <= 0:
            return
        size = len(self)
        grown = [np.zeros((size + count, *column.shape[1:]), column.dtype) for column in self.columns]
        for column, kept in zip(grown, self.columns, strict=True):
            column[:size] = kept
        self.columns = grown
        self._free = np.concatenate([self._free, np.zeros(count, np.int64)])
        self.release(np.arange(size + count - 1, size - 1, -1))


def checked_slots(owner: str, slots: ArrayLike) -> NDArray[np.int64]:
    """Return slots [K] as int64; raise if they are not integers."""
    given = np.atleast_1d(np.asarray(slots))
    if given.ndim != 1 or (given.dtype.kind not in "iu" and len(given)):
        raise ConfigError(f"{owner}: slots must be integers [K] as `add` and `sample` return them, got {slots!r}")
    return given.astype(np.int64)


def rewrite_columns(
    owner: str,
    columns: Mapping[str, NDArray[Any]],
    values: Mapping[str, ArrayLike],
    rows: Rows,
    is_stored: NDArray[np.bool_],
) -> None:
    """Write values [K, ...], or one for all, to columns of the rows [K] that are still stored; all or nothing."""
    checked = {}
    for name, given in values.items():
        shape, dtype = (len(rows), *columns[name].shape[1:]), columns[name].dtype
        try:
            checked[name] = np.broadcast_to(np.asarray(given, dtype), shape)
        except (ValueError, TypeError, OverflowError) as error:
            raise ConfigError(
                f"{owner}.rewrite: {name} must be {dtype.name}{list(shape)}, or one value for all rows, got "
                f"{given!r:.80} ({error})"
            ) from error
        if name == "reward" and not np.isfinite(checked[name]).all():
            raise ConfigError(f"{owner}.rewrite: reward must be finite, got {given!r:.80}")
    for name, own in checked.items():
        columns[name][rows[is_stored]] = own[is_stored]


def record_dtype(action: ArraySpec) -> np.dtype[Any]:
    """Return the type of `Records.array`."""
    fields: list[Any] = [("stamp", np.int64), ("reward", np.float64), ("action", action.dtype, action.shape)]
    fields += [("final", np.int32), ("age", np.int32), ("episode", np.int32)]
    return np.dtype([*fields, ("terminated", np.bool_), ("truncated", np.bool_)], align=True)


def storage_size(capacity: int, spec: RowSpec) -> tuple[int, int]:
    """Return (rows, bytes) that `Storage` allocates, without final observations, which are added as episodes end."""
    n_rows: int = spec.n_envs * (-(-capacity // spec.n_envs) + max(leaf.stack for leaf in tree.leaves(spec.obs)))
    columns = [*tree.leaves(spec.obs), *spec.extras.values()]
    row_bytes = sum(math.prod(column.shape) * column.dtype.itemsize for column in columns)
    return n_rows, n_rows * (row_bytes + record_dtype(spec.action).itemsize)


def row_spec(step: Transition, n_envs: int | None, stack: int) -> RowSpec:
    """Return the spec of transitions, whose observations are stacks if `stack` is above 1."""
    obs = tree.map_tree(lambda rows: ArraySpec.of(rows, stack), step.obs)
    if isinstance(obs, dict) and ACTION_MASK in obs:
        obs[ACTION_MASK] = ArraySpec.of(step.obs[ACTION_MASK])  # never stacked
    return RowSpec(
        n_envs=int(np.max(step.env_ids)) + 1 if n_envs is None else n_envs,
        obs=obs,
        action=ArraySpec.of(np.asarray(step.action)),
        extras={name: ArraySpec.of(column) for name, column in step.extras.items()},
    )


def _layout(obs: Sequence[Any], next_obs: Sequence[Any], step: Transition) -> list[Any]:
    """Return the types and shapes of a transition's arrays, and the names of its extras."""
    arrays = map(np.asarray, (*obs, *next_obs, step.action, *step.extras.values()))
    return [*step.extras, *map(_type_of, arrays)]


def _check_rows(name: str, column: NDArray[Any], rows: Any, n_axes: int = 1) -> bool:
    """Return whether rows [K, ...] are of a column's own type.

    Args:
        name: of the column.
        column: [N, ...].
        rows: to be written; their first `n_axes` axes count rows and stacked frames.
        n_axes: 2 if frames are stacked, else 1.

    Raises:
        ConfigError: they have another shape, or numbers that the column cannot hold.
    """
    array = np.asarray(rows)
    if array.shape[n_axes:] != column.shape[1:] or (array.dtype.kind == "f" and column.dtype.kind in "biu"):
        raise ConfigError(
            f"ReplayBuffer.add: {name} is {array.dtype} {list(array.shape[n_axes:])}, and the first rows were "
            f"{column.dtype} {list(column.shape[1:])}: give all of them in one type and shape"
        )
    if array.dtype != column.dtype and exact_cast(array, column.dtype) is None:
        raise ConfigError(
            f"ReplayBuffer.add: {name} has {array.dtype} numbers that the first rows' {column.dtype} does not have: "
            "give all of them in one type"
        )
    return bool(array.dtype == column.dtype)


_SMALL = 4096  # bytes up to which two arrays are compared as bytes


def is_equal(own: NDArray[Any], given: NDArray[Any]) -> bool:
    """Return whether two arrays [K, ...] are equal, small ones bit by bit; `given` is cast to `own`'s type.

    False is preliminary: `equal_rows` knows that nan is nan and 0.0 is -0.0.
    """
    cast = np.asarray(given, own.dtype)
    if own.nbytes <= _SMALL:
        return own.tobytes() == cast.tobytes()
    return bool((own == cast).all())


def equal_rows(own: NDArray[Any], given: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which rows [K] of two arrays [K, ...] are equal, NaN included; `given` is cast to `own`'s type."""
    cast = np.asarray(given, own.dtype)
    same = own == cast
    if own.dtype.kind in "fcmM":
        same |= (own != own) & (cast != cast)
    equal: NDArray[np.bool_] = same.reshape(len(own), int(np.prod(own.shape[1:]))).all(axis=1)
    return equal
