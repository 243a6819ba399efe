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
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainkit import tree
from trainkit.arrays import all_true, any_true
from trainkit.buffer.finals import Finals
from trainkit.buffer.heads import Heads, Rows, SomeRows, one_by_one
from trainkit.buffer.layout import record_of
from trainkit.buffer.scratch import Scratch
from trainkit.data import ArraySpec, Lookup, Obs, RowSpec, Transition
from trainkit.errors import ConfigError

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

    def fill(self, step: Transition, ends: NDArray[np.bool_]) -> None:
        """Write T rows of one environment at once into empty rings; `ends` marks each episode's last row."""
        n_steps = len(ends)
        last = np.flatnonzero(ends)
        begins = np.concatenate([[0], last + 1])
        episode = np.searchsorted(last, np.arange(n_steps), side="left")
        finals = self.finals.claim(len(last))
        given = zip(tree.leaves(step.obs), tree.leaves(step.next_obs), strict=True)
        for column, kept, (obs, next_obs) in zip(self._obs_columns, self.finals.columns, given, strict=True):
            column[:n_steps] = obs
            column[n_steps] = next_obs[-1]
            kept[finals] = next_obs[last]
        for column, values in (
            (self.action, step.action),
            (self.reward, step.reward),
            (self.terminated, step.terminated),
            (self.truncated, step.truncated),
            (self.age, np.arange(n_steps) - begins[episode]),
            (self.episode, episode),
            (self.stamp, np.arange(n_steps)),
            *((column, step.extras[name]) for name, column in self.extras.items()),
        ):
            column[:n_steps] = values
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
            rows = self.live_row(np.arange(begin, min(begin + n_rows, self.n_live)))
            yield Transition(
                obs=self.obs_at(rows),
                action=self.action[rows],
                reward=self.reward[rows],
                next_obs=self.next_obs_at(rows),
                terminated=self.terminated[rows],
                truncated=self.truncated[rows],
                env_ids=rows % self.n_envs,
                extras={name: column[rows] for name, column in self.extras.items()},
            )

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
        """Take over what `state_dict` of rings of the same spec and capacity returned."""
        self.clear()
        for name, column in self._columns().items():
            kept = state["columns"][name]
            column[: len(kept)] = kept
        self.finals.load_state_dict(state)
        for name in _COUNTERS:
            getattr(self, name)[:] = state["counters"][name]
        self.heads.rows = np.array(state["counters"]["head"])
        self.serial = state["serial"]
        self.n_live = int(self.count.sum())

    def _columns(self) -> dict[str, NDArray[Any]]:
        named = {f"obs.{path}": column for path, column in tree.named_leaves(self.obs)}
        named |= {f"extras.{name}": column for name, column in self.extras.items()}
        return named | {name: getattr(self, name) for name in _COLUMNS}

    def _write_obs(self, here: Any, after: Any, obs: Obs, next_obs: Obs) -> None:
        """Write the newest frames acted on, and those that followed."""
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


_ZERO, _ONE = np.array(0, np.int32), np.array(1, np.int32)
_GOES_ON = np.array(-1, np.int32).tobytes()
_COUNTERS = ("count", "open_steps", "episodes")
_COLUMNS = ("action", "reward", "terminated", "truncated", "age", "episode", "final", "stamp")
