"""Where rows lie: one ring per environment, woven into flat columns allocated once.

Environment `e` owns the rows `position * n_envs + e`, so that a vector step of all environments is one slice, and
the row after row r, in the same ring, is `(r + n_envs) % n_rows`. A ring holds, going back from its head:

    head          the *pending* row: only its observation is there, the newest `next_obs`
    head - 1      the newest row
      ...         `count` live rows; each one's next observation is the observation of the row after it
    oldest
      ...         at least `stack - 1` dead rows, kept because the oldest rows' frame stacks reach back into them

So every observation is stored once. Where an episode ended, the row after belongs to the next one, and the true
final observation lies in `finals`, found through the column `final`; `final < 0` means the episode goes on.

A row whose observation is not the pending one does not continue the open episode: the episode ends at the row before,
which keeps its own next observation as a final one.
"""

import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainkit.buffer.blocks import Block
from trainkit.buffer.finals import Finals
from trainkit.buffer.heads import Heads, Rows, SomeRows, one_by_one
from trainkit.buffer.layout import record_of
from trainkit.buffer.scratch import Scratch
from trainkit.core import tree
from trainkit.core.arrays import all_true, any_true, equal_rows, is_equal, same_rows
from trainkit.core.data import ACTION_MASK, ArraySpec, Lookup, Obs, RowSpec, Transition
from trainkit.core.errors import ConfigError
from trainkit.core.files import copy_into
from trainkit.core.reading import decoding

Records = NDArray[np.void]  # what `record_of` names, of each row


class Rings:
    """Columns of rows, their episodes' bounds, and the stamps that tell a row from its successors in its place."""

    def __init__(self, capacity: int, spec: RowSpec) -> None:
        self.spec = spec
        self.n_envs = n_envs = spec.n_envs
        self._obs_specs: list[ArraySpec] = tree.leaves(spec.obs)
        self._stack = max(leaf.stack for leaf in self._obs_specs)
        share, rest = divmod(capacity, n_envs)
        self.limit = np.full(n_envs, share) + (np.arange(n_envs) < rest)  # [N], live rows a ring can hold
        self._share = None if rest else share  # of every ring, where all can hold as many
        self.capacity = capacity
        self._reach = self.limit * n_envs  # [N], from a pending row back to the oldest row of a full ring
        self.n_rows = n_envs * int(self.limit.max() + self._stack)
        self._stride, self._period = np.array(n_envs), np.array(self.n_rows)  # reckoned with in half an int's time
        self._all = np.arange(n_envs)
        self._all_bytes = self._all.tobytes()
        self.heads = Heads(n_envs, self.n_rows)
        self.count = np.zeros(n_envs, np.int64)  # [N], live rows
        self.n_live = 0  # rows that can be sampled, the sum of `count`
        self._open = np.zeros((n_envs, 2), np.int32)  # [N, 2], steps of the open episode so far, and its number
        self.rewound = np.zeros(n_envs, np.int64)  # [N], rows ever dropped
        self.serial = 0  # counts vector steps; a slot is serial * n_rows + row, so none is used twice
        self._last_next_obs: list[Any] = []  # the leaves given with the last rows, of stacks; compared by identity only

        def column(leaf: ArraySpec) -> NDArray[Any]:
            return np.zeros((self.n_rows, *leaf.shape), leaf.dtype)

        self.obs = tree.map_tree(column, spec.obs)  # newest frames only
        self._obs_columns: list[NDArray[Any]] = tree.leaves(self.obs)
        self._lone = self.obs if isinstance(spec.obs, ArraySpec) and self._stack == 1 else None  # the only column
        self.records = np.zeros(self.n_rows, record_of(spec.action))
        self._places = np.zeros((self.n_rows, 2), np.int32)  # where in its episode, and in which, a row is
        self._name_columns()
        self.final[:] = self.stamp[:] = -1
        self.extras = {name: column(leaf) for name, leaf in spec.extras.items()}
        self.finals = Finals(spec.obs)

    def _name_columns(self) -> None:
        """Give the columns of records, places and counters names of their own."""
        records = self.records
        self.action, self.reward = records["action"], records["reward"]
        self.terminated, self.truncated = records["terminated"], records["truncated"]
        self.final = records["final"]  # where in `finals` a live row's next observation is, -1 if not there
        self.stamp = records["stamp"]  # the serial a live row was added with, -1 for all others
        self.age, self.episode = self._places.T  # steps of the episode before this one; its number
        self.open_steps, self.episodes = self._open.T  # [N], 0 steps: none is open

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Look into the arrays of a copy, whose columns came as arrays apart."""
        vars(self).update(state)
        self._name_columns()

    # ---- writing ----

    def add(self, step: Transition) -> tuple[NDArray[np.int64], SomeRows, SomeRows]:
        """Write K rows and return (their slots, their rows, the rows that died to make room)."""
        everyone = step.env_ids.tobytes() == self._all_bytes
        envs: Any = slice(None) if everyone else self._checked(step.env_ids)
        heads, in_step = self.heads, everyone and self.heads.are_in_step
        here: Any = heads.side_by_side(0) if in_step else heads.rows[envs]
        after: Any = heads.side_by_side(1) if in_step else self.after(here, 1)
        if not self._is_pending(here, step.obs):
            self._end_skipped(here, envs, step)
        self._write_obs(here, after, step.obs, step.next_obs)
        self.action[here] = step.action
        self.reward[here] = step.reward
        self.terminated[here] = step.terminated
        self.truncated[here] = step.truncated
        self._places[here] = self._open[envs]
        for name, column in self.extras.items():
            column[here] = step.extras[name]
        dead = self._make_room(here, envs)
        self.stamp[here] = self.serial
        slots = self.slots(here, self.serial)
        self.serial += 1
        if everyone:
            heads.go_on(after)
            self.open_steps += _ONE
        else:
            heads.move(envs, after)
            self.open_steps[envs] += _ONE
        terminated, truncated = self.terminated[here], self.truncated[here]  # bools, whatever came
        if any_true(terminated) or any_true(truncated):
            ended = terminated | truncated
            self._end_at(one_by_one(here)[ended], step.env_ids[ended])
        return slots, here, dead

    def end_episodes(self, envs: NDArray[np.intp]) -> None:
        """End the open episodes of these environments: the pending observations become their final ones."""
        envs = envs[self.open_steps[envs] > 0]
        self._end_at(self.after(self.heads.rows[envs], -1), envs)

    def drop_episodes(self, envs: NDArray[np.intp]) -> Rows:
        """Take the open episodes' live rows back and return them; older episodes stay as they are."""
        dropped: list[Rows] = []
        heads = self.heads.rows.copy()
        for env in envs:
            n_steps = int(min(self.open_steps[env], self.count[env]))
            dropped.append(self.after(heads[env], np.arange(-n_steps, 0)))
            heads[env] = self.after(heads[env], -n_steps)
            self.count[env] -= n_steps
            self.rewound[env] += n_steps
            self.open_steps[env] = 0
        self.heads.rows = heads
        rows = np.concatenate(dropped) if dropped else self._all[:0]
        self.stamp[rows] = -1
        self.n_live -= len(rows)
        return rows

    def fill(self, ends: NDArray[np.bool_], blocks: Iterable[Block]) -> None:
        """Write T rows of one environment into empty rings; `ends` [T] marks each episode's last row."""
        n_steps = len(ends)
        last = np.flatnonzero(ends)
        begins = np.concatenate([[0], last + 1])
        finals = self.finals.claim(len(last))
        begin = n_ended = 0
        for block in blocks:
            end = begin + len(block.reward)
            n_ends = int(np.searchsorted(last, end)) - n_ended
            own = finals[n_ended : n_ended + n_ends]
            for column, leaf in zip(self._obs_columns, tree.leaves(block.obs), strict=True):
                column[begin:end] = leaf
            for column, kept, leaf in zip(
                self._obs_columns, self.finals.columns, tree.leaves(block.last_obs), strict=True
            ):
                kept[own] = leaf[:n_ends]
                if end == n_steps:
                    column[n_steps] = leaf[-1]
            for column, rows in (
                (self.action, block.action),
                (self.reward, block.reward),
                (self.terminated, block.terminated),
                (self.truncated, block.truncated),
                *((column, block.extras[name]) for name, column in self.extras.items()),
            ):
                column[begin:end] = rows
            episode = np.searchsorted(last, np.arange(begin, end), side="left")
            self.age[begin:end] = np.arange(begin, end) - begins[episode]
            self.episode[begin:end] = episode
            begin, n_ended = end, n_ended + n_ends
        assert begin == n_steps, "blocks are of as many rows as were announced"
        self.stamp[:n_steps] = np.arange(n_steps)
        self.final[last] = finals
        self.serial = n_steps
        self.heads.rows = np.array([n_steps])
        self.count[0] = self.n_live = n_steps
        self.open_steps[0] = n_steps - begins[-1]
        self.episodes[0] = len(last)

    # ---- reading ----

    def live_row(self, index: NDArray[np.int64]) -> Rows:
        """Return the row of each index into [0, n_live), counted ring by ring from the oldest."""
        ends = np.add.accumulate(self.count)
        env = ends.searchsorted(index, side="right")
        return self.after(self.heads.rows[env], index - ends[env])

    def transitions(self, n_rows: int) -> Iterator[Transition]:
        """Read all live rows once, ring by ring from the oldest, K at a time; `env_ids` repeat within."""
        for begin in range(0, self.n_live, n_rows):
            yield self.read(self.live_row(np.arange(begin, min(begin + n_rows, self.n_live))))

    def read(self, rows: Rows, stack: int | None = None) -> Transition:
        """Return live rows [K], with all stored columns; observations of `stack` frames, by default the rings' own."""
        return Transition(
            obs=self.obs_at(rows) if stack is None else self._read_stack(rows, 0, stack),
            action=self.action[rows],
            reward=self.reward[rows],
            next_obs=self.next_obs_at(rows) if stack is None else self._read_stack(rows, 1, stack),
            terminated=self.terminated[rows],
            truncated=self.truncated[rows],
            env_ids=rows % self.n_envs,
            extras={name: column[rows] for name, column in self.extras.items()},
        )

    def previous(self, rows: Rows) -> Rows:
        """Return the row before each in its episode; where there is none, or no longer, the row itself."""
        before = self.after(rows, -1)
        return np.where((self.age[rows] > 0) & (self.stamp[before] >= 0), before, rows)

    def following(self, rows: Rows) -> Rows:
        """Return the row after each in its episode; where there is none, or not yet, the row itself."""
        after = self.after(rows, 1)
        return np.where((self.final[rows] < 0) & (self.stamp[after] >= 0), after, rows)

    def open_rows(self) -> Rows:
        """Return the newest rows of the episodes that have not ended, one per environment that has one."""
        (envs,) = np.nonzero((self.open_steps > 0) & (self.count > 0))
        return self.after(self.heads.rows[envs], -1)

    def slots(self, rows: SomeRows, stamp: Any) -> NDArray[np.int64]:
        """Name live rows of these stamps, one or [B], for good: a slot is never another row's."""
        if isinstance(rows, slice):
            first = stamp * self.n_rows
            return np.arange(first + rows.start, first + rows.stop)
        slots: NDArray[np.int64] = stamp * self._period + rows
        return slots

    def rows(self, slots: ArrayLike) -> tuple[Rows, NDArray[np.bool_] | slice]:
        """Return where slots lie, and which of them still hold the row they were given for: a slice where all do."""
        slots = np.asarray(slots).astype(np.int64, casting="same_kind", copy=False)
        rows, stamp = slots % self._period, slots // self._period
        lives = (self.stamp[rows] == stamp) & (stamp >= _ZERO)
        return rows, slice(None) if all_true(lives) else lives

    def holds(self, slots: ArrayLike) -> NDArray[np.bool_]:
        """Return which slots [K] still name the row they were given for."""
        _, lives = self.rows(slots)
        return np.ones(np.shape(slots), np.bool_) if isinstance(lives, slice) else lives

    def after(self, rows: Rows, n_steps: NDArray[np.int64] | int) -> Rows:
        """Return the row `n_steps` further on in the same ring (further back when negative)."""
        after: Rows = (rows + n_steps * self._stride) % self._period
        return after

    def obs_at(self, rows: Rows, scratch: Scratch | None = None) -> Obs:
        """Return the observations acted on, [B, ...], stacked where the spec says so."""
        return self._read(rows, 0, scratch)

    def next_obs_at(self, rows: Rows, scratch: Scratch | None = None, final: NDArray[np.int32] | None = None) -> Obs:
        """Return the true observation after each row's step, [B, ...]; `final` is theirs, where it was read before."""
        obs = self._read(rows, 1, scratch)
        final = self.final[rows] if final is None else final
        (ended,) = (final >= _ZERO).nonzero()
        if len(ended):
            given = zip(self._obs_specs, tree.leaves(obs), self.finals.columns, strict=True)
            for leaf, frames, finals in given:
                is_there = isinstance(frames, Lookup)  # and final ones lie behind the rows
                found = frames.places if is_there else frames
                newest = found[:, -1] if leaf.stack > 1 else found
                newest[ended] = self.n_rows + final[ended] if is_there else finals.take(final[ended], axis=0)
        return obs

    def _read(self, rows: Rows, ahead: int, scratch: Scratch | None) -> Obs:
        """Gather the frames `ahead` of rows, [B, ...]; stacks repeat their episode's first frame before it began."""
        take = Scratch().take if scratch is None else scratch.take
        newest = rows + self._stride if ahead else rows  # which `take` wraps around
        if self._lone is not None:
            return take(ahead, self._lone, newest)
        # Lambdas: the annotations of a function defined here would be evaluated at every call, for 5 us.
        if self._stack == 1:
            return tree.map_tree(lambda column: take(ahead, column, newest), self.obs)
        age = self.age[rows] + ahead
        back = np.minimum(np.arange(self._stack - 1, -1, -1), age[:, None])  # [B, stack]
        stacked = newest[:, None] - back * self.n_envs
        at = {leaf.stack: newest if leaf.stack == 1 else stacked[:, -leaf.stack :] for leaf in self._obs_specs}
        return tree.map_tree(lambda leaf, column: take(ahead, column, at[leaf.stack]), self.spec.obs, self.obs)

    def _read_stack(self, rows: Rows, ahead: int, stack: int) -> Obs:
        """Gather the last `stack` frames [K, stack, ...] up to those `ahead` of rows; one is no stack: [K, ...].

        Where fewer are stored of the episode, its oldest one is repeated.
        """
        env = rows % self.n_envs
        oldest = self.after(self.heads.rows[env], -self.count[env])
        n_before = (rows - oldest) // self.n_envs % (self.n_rows // self.n_envs)  # live rows, in the same ring
        n_back = np.minimum(self.age[rows], n_before + self._stack - 1) + ahead
        back = np.minimum(np.arange(stack - 1, -1, -1), n_back[:, None])
        newest = self.after(rows, ahead)
        at = self.after(newest[:, None], -back)  # [K, stack]
        final = self.final[rows]
        ended = np.flatnonzero(final >= 0) if ahead else _NONE

        def frames(column: NDArray[Any], finals: NDArray[Any]) -> NDArray[Any]:
            found = column[at]
            found[ended, -1] = finals[final[ended]]
            return found[:, 0] if stack == 1 else found

        obs = tree.map_tree(frames, self.obs, self.finals.obs)
        if stack > 1 and isinstance(obs, dict) and ACTION_MASK in obs:
            obs[ACTION_MASK] = obs[ACTION_MASK][:, -1]  # never stacked
        return obs

    # ---- bookkeeping ----

    @property
    def n_used(self) -> int:
        """How many rows there are up to the furthest ever written: all, where a ring may have wrapped."""
        return self.n_rows if self.serial >= self.limit.min() else int(self.heads.rows.max()) + 1

    @property
    def nbytes(self) -> int:
        """Bytes of all columns and final observations."""
        claimed = [*self._obs_columns, *self.extras.values(), self.records, self._places]
        return self.finals.nbytes + sum(column.nbytes for column in claimed)

    def clear(self) -> None:
        """Forget every row; slots handed out before stay invalid."""
        self._last_next_obs = []
        self.finals.clear()
        for column in (self.final, self.stamp):
            column[:] = -1
        self.heads.rows = self._all.copy()
        self.count[:] = self.open_steps[:] = self.episodes[:] = self.n_live = 0

    def state_dict(self) -> dict[str, Any]:
        """Return every column up to the furthest row ever written, and the counters."""
        used = self.n_used
        return {
            "columns": {name: column[:used] for name, column in self._columns().items()},
            "counters": {"head": self.heads.rows} | {name: getattr(self, name).copy() for name in _COUNTERS},
            "serial": self.serial,
            **self.finals.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what `state_dict` of rings of the same spec and capacity returned; nothing changes if it does not fit.

        Columns may be `StoredArray`s, which are read straight into the rings' memory.

        Raises:
            CheckpointError: it is of other rings, or does not describe rows.
        """
        remedy = "make the buffer as it was, or take an older checkpoint"
        with decoding("a saved state", "rows of this buffer", remedy=remedy):
            self._check_state(state)
        self.clear()
        self.finals.load_state_dict(state)
        for name, column in self._columns().items():
            kept = state["columns"][name]
            copy_into(column[: len(kept)], kept)
        for name in _COUNTERS:
            getattr(self, name)[:] = state["counters"][name]
        self.heads.rows = np.array(state["counters"]["head"])
        self.serial = state["serial"]
        self.n_live = int(self.count.sum())

    def _check_state(self, state: Mapping[str, Any]) -> None:
        """Raise if a saved state is not of rings like these, or if its indices lead elsewhere."""
        columns, kept, counters = self._columns(), state["columns"], state["counters"]
        if kept.keys() != columns.keys():
            raise ValueError(f"columns are {sorted(kept)}, and must be {sorted(columns)}")
        n_used = len(kept["stamp"])
        for name, column in columns.items():
            if kept[name].shape != (n_used, *column.shape[1:]) or not np.can_cast(
                kept[name].dtype, column.dtype, "same_kind"
            ):
                raise ValueError(f"column {name} is {kept[name].dtype} {kept[name].shape}")
        serial, n_finals = state["serial"], self.finals.check_state(state)
        head = np.asarray(counters["head"])
        wanted = {"head": (head, 0, self.n_rows - 1), "count": (np.asarray(counters["count"]), 0, self.limit)}
        wanted |= {name: (np.asarray(counters[name]), 0, 2**31 - 1) for name in ("open_steps", "episodes")}
        for name, (numbers, low, high) in wanted.items():
            if numbers.shape != (self.n_envs,) or numbers.dtype.kind not in "iu":
                raise ValueError(f"{name} is {numbers.dtype} {numbers.shape}")
            if not ((numbers >= low) & (numbers <= high)).all():
                raise ValueError(f"{name} is {numbers!r:.80}")
        if type(serial) is not int or not 0 <= serial < 2**62 // self.n_rows:
            raise ValueError(f"serial is {serial!r:.80}")
        if n_used > self.n_rows or (head % self.n_envs != self._all).any():
            raise ValueError(f"it has {n_used} rows, and heads {head!r:.80}")
        for name, high in (("final", n_finals - 1), ("stamp", serial - 1)):
            numbers = np.asarray(kept[name])
            if n_used and not (numbers.min() >= -1 and numbers.max() <= high):
                raise ValueError(f"column {name} reaches from {numbers.min()} to {numbers.max()}")
        if n_used and (np.asarray(kept["age"]) < 0).any():
            raise ValueError("column age is negative")

    def _columns(self) -> dict[str, NDArray[Any]]:
        named = {f"obs.{path}": column for path, column in tree.named_leaves(self.obs)}
        named |= {f"extras.{name}": column for name, column in self.extras.items()}
        return named | {name: getattr(self, name) for name in _COLUMNS}

    def _is_pending(self, here: Any, obs: Obs) -> bool:
        """Return whether the observations acted on are the pending ones: with no episode open they need not be."""
        if self._lone is not None:
            return is_equal(self._lone[here], obs)
        given = tree.leaves(obs)
        for column, leaf, own in zip(self._obs_columns, self._obs_specs, given, strict=True):
            if not is_equal(column[here], own[:, -1] if leaf.stack > 1 else own):
                return False
        # Stacks that are the arrays of the step before need no look at their older frames: a collector's are.
        known = self._last_next_obs
        return self._stack == 1 or (len(known) == len(given) and all(map(operator.is_, given, known)))

    def _end_skipped(self, here: Any, envs: Any, step: Transition) -> None:
        """End the open episodes that these rows do not continue, because rows between them were not added."""
        age = self.open_steps[envs]
        is_open = age > 0
        given = tree.leaves(step.obs)
        if self._stack == 1:  # where an episode has just begun the row differs, and there is nothing to end
            pairs = zip((column[here] for column in self._obs_columns), given, strict=True)
            same = [same_rows(own, obs) for own, obs in pairs]
            if not any_true(is_open & ~np.logical_and.reduce(same)):
                return
        continues = is_open.copy()
        rows = one_by_one(here)
        for column, leaf, own in zip(self._obs_columns, self._obs_specs, given, strict=True):
            for back in range(leaf.stack):
                frame = own[:, leaf.stack - 1 - back] if leaf.stack > 1 else own
                continues &= equal_rows(column[self.after(rows, -np.minimum(back, age))], frame)
        skipped = is_open & ~continues
        if any_true(skipped):
            self.end_episodes(step.env_ids[skipped])

    def _write_obs(self, here: Any, after: Any, obs: Obs, next_obs: Obs) -> None:
        """Write the newest frames acted on, and those that followed."""
        if self._stack > 1:
            self._last_next_obs = tree.leaves(next_obs)
        if self._lone is not None:
            self._lone[here], self._lone[after] = obs, next_obs
            return
        given = zip(tree.leaves(obs), tree.leaves(next_obs), strict=True)
        for column, leaf, (before, then) in zip(self._obs_columns, self._obs_specs, given, strict=True):
            column[here] = before[:, -1] if leaf.stack > 1 else before
            column[after] = then[:, -1] if leaf.stack > 1 else then

    def _end_at(self, rows: Rows, envs: NDArray[np.intp]) -> None:
        """Let rows, these environments' newest, be the last of their episodes."""
        finals, pending = self.finals.claim(len(envs)), self.heads.rows[envs]
        self.final[rows] = finals
        for column, kept in zip(self._obs_columns, self.finals.columns, strict=True):
            kept[finals] = column.take(pending, axis=0)
        self.open_steps[envs] = 0
        self.episodes[envs] += 1

    def _make_room(self, here: SomeRows, envs: Any) -> SomeRows:
        """Count one row more in each of these rings; bury and return the oldest of those that are full."""
        if isinstance(here, slice) and self.n_live == self.capacity and self._share is not None:
            oldest = self.heads.side_by_side(-self._share)
            self._bury(oldest)
            return oldest
        dead: Rows = (one_by_one(here) - self._reach[envs]) % self._period
        if self.n_live < self.capacity:
            full = self.count[envs] == self.limit[envs]
            dead = dead[full]
            self.count[envs] += ~full
            self.n_live += len(full) - len(dead)
        if len(dead):
            self._bury(dead)
        return dead

    def _bury(self, rows: SomeRows) -> None:
        """Give the rows' final observations back; their frames stay for the stacks that reach into them."""
        self.stamp[rows] = -1
        final = self.final[rows]
        if final.tobytes() != _GOES_ON * len(final):
            self.finals.give_back(final[final >= 0])
            self.final[rows] = -1

    def _checked(self, env_ids: NDArray[np.intp]) -> NDArray[np.intp]:
        """Refuse ids that would write one row twice, or another environment's."""
        rises = np.count_nonzero(env_ids[1:] > env_ids[:-1]) == len(env_ids) - 1
        if len(env_ids) and not (rises and env_ids[0] >= 0 and env_ids[-1] < self.n_envs):
            raise ConfigError(f"env_ids must rise within [0, {self.n_envs}), got {env_ids.tolist()}")
        return env_ids


_NONE = np.zeros(0, np.intp)
_ZERO, _ONE = np.array(0, np.int32), np.array(1, np.int32)
_GOES_ON = np.array(-1, np.int32).tobytes()
_COUNTERS = ("count", "open_steps", "episodes")
_COLUMNS = ("action", "reward", "terminated", "truncated", "age", "episode", "final", "stamp")
