"""Where rows lie: one ring per environment, woven into flat columns allocated once.

Environment `e` owns the rows `position * n_envs + e`, so that a vector step of all environments is one slice.
A ring holds, going back from its head:

    head          the *pending* row: only its observation is there, the newest `next_obs`
    head - 1      the newest row
      ...         `count` live rows; each one's next observation is the observation of the row after it
    oldest
      ...         `stack - 1` dead rows, kept because the oldest rows' frame stacks reach back into them

So every observation is stored once. Where an episode ended, the row after belongs to the next one, and the true
final observation lies in `finals`, found through the column `final`; `final < 0` means the episode goes on.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit import tree
from trainkit.data import ArraySpec, Obs, RowSpec, Transition

_FINALS_BLOCK = 64  # final observations are claimed this many at a time

Rows = NDArray[np.int64]


class Rings:
    """Columns of rows, their episodes' bounds, and the stamps that tell a row from its successors in its place."""

    def __init__(self, capacity: int, spec: RowSpec) -> None:
        self.spec = spec
        self.n_envs = n_envs = spec.n_envs
        stack = max(leaf.stack for leaf in tree.leaves(spec.obs))
        share, rest = divmod(capacity, n_envs)
        self.limit = np.full(n_envs, share) + (np.arange(n_envs) < rest)  # [N], live rows a ring can hold
        self.length = self.limit + stack  # [N], positions of a ring
        self.n_rows = int(self.length.sum())
        self.head = np.zeros(n_envs, np.int64)  # [N], position of the pending row
        self.count = np.zeros(n_envs, np.int64)  # [N], live rows
        self.open_steps = np.zeros(n_envs, np.int64)  # [N], steps of the open episode so far; 0: none is open
        self.episodes = np.zeros(n_envs, np.int64)  # [N], number of the open episode
        self.serial = 0  # counts vector steps; a slot is serial * n_rows + row, so none is used twice

        def column(leaf: ArraySpec, n_rows: int = self.n_rows) -> NDArray[Any]:
            return np.zeros((n_rows, *leaf.shape), leaf.dtype)

        self.obs = tree.map_tree(column, spec.obs)  # newest frames only
        self._obs_columns: list[NDArray[Any]] = tree.leaves(self.obs)
        self._obs_specs: list[ArraySpec] = tree.leaves(spec.obs)
        self.action = column(spec.action)
        self.reward = np.zeros(self.n_rows, np.float64)
        self.terminated = np.zeros(self.n_rows, np.bool_)
        self.truncated = np.zeros(self.n_rows, np.bool_)
        self.age = np.zeros(self.n_rows, np.int32)  # steps of the episode before this one
        self.episode = np.zeros(self.n_rows, np.int32)
        self.final = np.full(self.n_rows, -1, np.int32)  # where in `finals` the next observation is, if there
        self.stamp = np.full(self.n_rows, -1, np.int64)  # the serial a live row was added with
        self.extras = {name: column(leaf) for name, leaf in spec.extras.items()}
        self.finals = tree.map_tree(lambda leaf: column(leaf, 0), spec.obs)
        self._free_finals: list[int] = []
        self._all = np.arange(n_envs)
        self._find_step()

    # ---- writing ----

    def add(self, step: Transition) -> tuple[Rows, Rows]:
        """Write K rows and return (their rows, the rows that died to make room)."""
        envs: Any = step.env_ids
        everyone = len(envs) == self.n_envs
        if everyone and self._in_step:
            envs = slice(None)
            position, length = int(self.head[0]), int(self.length[0])
            here, after = self._slice(position), self._slice((position + 1) % length)
            full = self.count[0] == self.limit[0]
            oldest = (position - int(self.limit[0])) % length
            rows = self._all + position * self.n_envs
            dead = self._all + oldest * self.n_envs if full else self._all[:0]
        else:
            position, length = self.head[envs], self.length[envs]
            here = rows = position * self.n_envs + envs
            after = (position + 1) % length * self.n_envs + envs
            filled = envs[self.count[envs] == self.limit[envs]]
            dead = (self.head[filled] - self.limit[filled]) % self.length[filled] * self.n_envs + filled
        if len(dead):
            self._bury(dead)
        given = zip(tree.leaves(step.obs), tree.leaves(step.next_obs), strict=True)
        for column, leaf, (obs, next_obs) in zip(self._obs_columns, self._obs_specs, given, strict=True):
            column[here] = obs[:, -1] if leaf.stack > 1 else obs
            column[after] = next_obs[:, -1] if leaf.stack > 1 else next_obs
        self.action[here] = step.action
        self.reward[here] = step.reward
        self.terminated[here] = step.terminated
        self.truncated[here] = step.truncated
        self.age[here] = self.open_steps[envs]
        self.episode[here] = self.episodes[envs]
        self.final[here] = -1
        self.stamp[here] = self.serial
        for name, column in self.extras.items():
            column[here] = step.extras[name]
        self.serial += 1
        self.head[envs] = (position + 1) % length
        self.count[envs] = np.minimum(self.count[envs] + 1, self.limit[envs])
        self.open_steps[envs] += 1
        ended = step.terminated | step.truncated
        if ended.any():
            self.end_episodes(step.env_ids[ended])
        if not everyone:
            self._find_step()
        return rows, dead

    def end_episodes(self, envs: NDArray[np.intp]) -> None:
        """End the open episodes here: the pending observation becomes the newest row's final one."""
        envs = envs[self.open_steps[envs] > 0]
        newest = (self.head[envs] - 1) % self.length[envs] * self.n_envs + envs
        pending = self.head[envs] * self.n_envs + envs
        finals = self._claim_finals(len(envs))
        self.final[newest] = finals
        for column, kept in zip(self._obs_columns, tree.leaves(self.finals), strict=True):
            kept[finals] = column[pending]
        self.open_steps[envs] = 0
        self.episodes[envs] += 1

    def drop_episodes(self, envs: NDArray[np.intp]) -> Rows:
        """Take the open episodes' live rows back and return them; older episodes stay as they are."""
        dropped: list[Rows] = []
        for env in envs:
            n_steps = int(min(self.open_steps[env], self.count[env]))
            self.head[env] = (self.head[env] - n_steps) % self.length[env]
            self.count[env] -= n_steps
            self.open_steps[env] = 0
            self.episodes[env] += 1
            dropped.append((self.head[env] + np.arange(n_steps)) % self.length[env] * self.n_envs + env)
        rows = np.concatenate(dropped) if dropped else self._all[:0]
        self.stamp[rows] = -1
        self._find_step()
        return rows

    def fill(self, step: Transition, ends: NDArray[np.bool_]) -> None:
        """Write T rows of one environment at once into empty rings; `ends` marks each episode's last row."""
        n_steps = len(ends)
        last = np.flatnonzero(ends)
        begins = np.concatenate([[0], last + 1])
        episode = np.searchsorted(last, np.arange(n_steps), side="left")
        finals = self._claim_finals(len(last))
        given = zip(tree.leaves(step.obs), tree.leaves(step.next_obs), strict=True)
        for column, kept, (obs, next_obs) in zip(self._obs_columns, tree.leaves(self.finals), given, strict=True):
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
        self.head[0] = self.count[0] = n_steps
        self.open_steps[0] = n_steps - begins[-1]
        self.episodes[0] = len(last)

    # ---- reading ----

    @property
    def n_live(self) -> int:
        """Rows that can be sampled."""
        return int(self.count.sum())

    def live_row(self, index: NDArray[np.int64]) -> Rows:
        """Return the row of each index into [0, n_live), counted ring by ring from the oldest."""
        if self._in_step:
            position, env = np.divmod(index, self.n_envs)
            return (position + (self.head[0] - self.count[0])) % self.length[0] * self.n_envs + env
        ends = np.cumsum(self.count)
        env = np.searchsorted(ends, index, side="right")
        position = self.head[env] - (ends[env] - index)
        return position % self.length[env] * self.n_envs + env

    def slots(self, rows: Rows) -> NDArray[np.int64]:
        """Name live rows for good: a slot is never another row's."""
        return self.stamp[rows] * self.n_rows + rows

    def rows(self, slots: NDArray[np.int64]) -> tuple[Rows, NDArray[np.bool_]]:
        """Return where slots lie, and which of them still hold the row they were given for."""
        serial, row = np.divmod(slots, self.n_rows)
        return row, self.stamp[row] == serial

    def after(self, rows: Rows, n_steps: NDArray[np.int64] | int) -> Rows:
        """Return the row `n_steps` further on in the same ring (further back when negative)."""
        position, env = np.divmod(rows, self.n_envs)
        return (position + n_steps) % self.length[env] * self.n_envs + env

    def steps_to_head(self, rows: Rows) -> NDArray[np.int64]:
        """Count the stored steps from each row on, itself included."""
        position, env = np.divmod(rows, self.n_envs)
        return (self.head[env] - position) % self.length[env]

    def obs_at(self, rows: Rows) -> Obs:
        """Return the observations acted on, [B, ...], stacked where the spec says so."""
        age = self.age[rows]
        return tree.map_tree(lambda leaf, column: self._frames(leaf, column, rows, age), self.spec.obs, self.obs)

    def next_obs_at(self, rows: Rows) -> Obs:
        """Return the true observation after each row's step, [B, ...]."""
        following = self.after(rows, 1)
        age = self.age[rows] + 1
        final = self.final[rows]
        ended = np.flatnonzero(final >= 0)

        def read(leaf: ArraySpec, column: NDArray[Any], finals: NDArray[Any]) -> NDArray[Any]:
            frames = self._frames(leaf, column, following, age)
            newest = frames[:, -1] if leaf.stack > 1 else frames
            newest[ended] = finals[final[ended]]
            return frames

        return tree.map_tree(read, self.spec.obs, self.obs, self.finals)

    def _frames(self, leaf: ArraySpec, column: NDArray[Any], rows: Rows, age: NDArray[Any]) -> NDArray[Any]:
        """Gather [B, ...], or [B, stack, ...] the episode's first frame repeated before it began."""
        if leaf.stack == 1:
            return np.take(column, rows, axis=0)
        back = np.minimum(np.arange(leaf.stack - 1, -1, -1), age[:, None])  # [B, stack]
        return np.take(column, self.after(rows[:, None], -back), axis=0)

    # ---- bookkeeping ----

    @property
    def nbytes(self) -> int:
        """Bytes of all columns and final observations."""
        columns = [*self._columns().values(), *tree.leaves(self.finals)]
        return sum(column.nbytes for column in columns)

    def clear(self) -> None:
        """Forget every row; slots handed out before stay invalid."""
        self._free_finals = list(range(len(tree.first_leaf(self.finals))))
        for column in (self.final, self.stamp):
            column[:] = -1
        for counter in (self.head, self.count, self.open_steps):
            counter[:] = 0
        self._find_step()

    def state_dict(self) -> dict[str, Any]:
        """Return every column up to the furthest row ever written, and the counters."""
        wrapped = self.serial >= self.limit.min()
        used = self.n_rows if wrapped else int(self.head.max() + 1) * self.n_envs
        return {
            "columns": {name: column[:used] for name, column in self._columns().items()},
            "finals": {path: column.copy() for path, column in tree.named_leaves(self.finals)},
            "counters": {name: getattr(self, name).copy() for name in _COUNTERS},
            "serial": self.serial,
            "free_finals": list(self._free_finals),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` of rings of the same spec and capacity returned."""
        self.clear()
        for name, column in self._columns().items():
            kept = state["columns"][name]
            column[: len(kept)] = kept
        n_finals = len(next(iter(state["finals"].values())))
        self._grow_finals(n_finals - len(tree.first_leaf(self.finals)))
        for path, column in tree.named_leaves(self.finals):
            column[:n_finals] = state["finals"][path]
        for name in _COUNTERS:
            getattr(self, name)[:] = state["counters"][name]
        self.serial = state["serial"]
        self._free_finals = list(state["free_finals"])
        self._find_step()

    def _columns(self) -> dict[str, NDArray[Any]]:
        named = {f"obs.{path}": column for path, column in tree.named_leaves(self.obs)}
        named |= {f"extras.{name}": column for name, column in self.extras.items()}
        return named | {name: getattr(self, name) for name in _COLUMNS}

    def _slice(self, position: int) -> slice:
        return slice(position * self.n_envs, (position + 1) * self.n_envs)

    def _bury(self, rows: Rows) -> None:
        """Give the rows' final observations back; the rows stay readable for the stacks that reach into them."""
        self.stamp[rows] = -1
        final = self.final[rows]
        if final.max() >= 0:
            self._free_finals.extend(final[final >= 0].tolist())

    def _claim_finals(self, count: int) -> Rows:
        """Return places for `count` final observations, growing by whole blocks when none is free."""
        missing = count - len(self._free_finals)
        if missing > 0:
            self._grow_finals(-(-missing // _FINALS_BLOCK) * _FINALS_BLOCK)
        return np.array([self._free_finals.pop() for _ in range(count)], np.int64)

    def _grow_finals(self, count: int) -> None:
        if count <= 0:
            return
        size = len(tree.first_leaf(self.finals))
        self.finals = tree.map_tree(
            lambda kept: np.concatenate([kept, np.zeros((count, *kept.shape[1:]), kept.dtype)]), self.finals
        )
        self._free_finals.extend(range(size + count - 1, size - 1, -1))

    def _find_step(self) -> None:
        self._in_step = bool(
            (self.head == self.head[0]).all()
            and (self.count == self.count[0]).all()
            and (self.length == self.length[0]).all()
        )


_COLUMNS = ("action", "reward", "terminated", "truncated", "age", "episode", "final", "stamp")
_COUNTERS = ("head", "count", "open_steps", "episodes")
