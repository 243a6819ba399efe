"""The rollout of one collect, in order: on-policy policies learn from it once, then it is cleared."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainkit.buffer.nstep import LazyColumns, shape_reward
from trainkit.buffer.storage import checked_slots, equal_rows, is_equal, rewrite_columns
from trainkit.core import tree
from trainkit.core.data import (
    ArraySpec,
    Horizon,
    Obs,
    RewardRule,
    Rollout,
    RowSpec,
    Transition,
    add_at,
    any_true,
)
from trainkit.core.errors import (
    CheckpointError,
    ConfigError,
    EmptyBufferError,
    MissingRowError,
    reject_unknown,
)
from trainkit.core.files import copy_into, decoding
from trainkit.core.names import did_you_mean
from trainkit.core.signatures import checked
from trainkit.core.stats import html_table


@checked
class RolloutBuffer:
    """Store rows in order, packed per environment in columns [T, N].

    An episode that is still open when the rollout is read was *cut*: it bootstraps from the observation after its
    last row, as a truncated one does; one that terminated does not. Observations are stored as they were acted on,
    whole stacks included. Columns grow to the longest rollout and stay allocated.
    """

    def __init__(self) -> None:
        self._spec: RowSpec | None = None
        self._columns: dict[str, Any] = {}  # {name: [T, N, ...]}
        self._capacity = 0  # T
        self._ends: list[tuple[NDArray[np.int64], Obs]] = []  # (rows [E], true observations after them [E, ...])

    def __len__(self) -> int:
        return 0 if self._spec is None else int(self._n_rows.sum())

    def __repr__(self) -> str:
        return f"RolloutBuffer({len(self):,} rows, {self.nbytes:,} bytes)"

    def _repr_html_(self) -> str:
        return html_table(repr(self), [("row", self._spec)])

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return sum(leaf.nbytes for leaf in tree.leaves(self._columns))

    @property
    def columns(self) -> tuple[str, ...]:
        """The names that `read(columns=)` accepts: those of every rollout, and the stored ones once it is bound."""
        return ("env_id", "t", "terminated", "truncated", "return_to_go", *(self._spec.extras if self._spec else ()))

    def bind(self, spec: RowSpec) -> None:
        """Allocate memory for rows of this spec; binding again is allowed with an equal spec only."""
        if self._spec is not None and self._spec != spec:
            raise ConfigError(f"RolloutBuffer holds rows of {self._spec} and cannot take {spec}: use a new buffer")
        if self._spec is None:
            tree.check_keys("RolloutBuffer: observations", spec.obs)
            self._spec = spec
            self._n_rows = np.zeros(spec.n_envs, np.int64)  # [N]
            self._is_open = np.zeros(spec.n_envs, np.bool_)  # [N], whether the newest row's episode is open
            self._age = np.zeros(spec.n_envs, np.int64)  # [N], steps of the episode so far, including earlier rollouts
            self._pending = tree.map_tree(lambda leaf: np.zeros((spec.n_envs, *_shape(leaf)), leaf.dtype), spec.obs)
            self._allocate(64)

    def add(self, transition: Transition) -> NDArray[np.int64]:
        """Write K rows and return their slots t * N + n, valid until the rollout is cleared.

        As in `ReplayBuffer.add`, an open episode that a row does not continue ends before that row and bootstraps.
        """
        if self._spec is None:
            raise ConfigError("RolloutBuffer must be bound before it is written to: give it to a Collector")
        env_ids = transition.env_ids
        self._end_skipped(transition.obs, env_ids)
        time = self._n_rows[env_ids]  # [K]
        # In lockstep the rows are one slice of every column, which numpy writes faster.
        in_lockstep = len(time) == self._spec.n_envs and not any_true(time != time[0])
        longest = time[0] if in_lockstep else time.max(initial=-1)
        if longest >= self._capacity:
            self._allocate(2 * self._capacity)
        rows, envs = (longest, slice(None)) if in_lockstep else ((time, env_ids), env_ids)
        for name in ("action", "reward", "terminated", "truncated"):
            self._columns[name][rows] = getattr(transition, name)
        self._columns["t"][rows] = self._age[envs]
        for name, column in self._columns["extras"].items():
            column[rows] = transition.extras[name]
        _write(self._columns["obs"], rows, transition.obs)
        _write(self._pending, envs, transition.next_obs)
        over = transition.terminated | transition.truncated
        self._columns["ended"][rows] = over
        add_at(self._n_rows, envs, 1)
        self._is_open[envs] = ~over
        add_at(self._age, envs, 1)
        if any_true(over):
            self._age[env_ids[over]] = 0
            self._end(env_ids[over])
        return time * self._spec.n_envs + env_ids

    def cut(self, env_ids: ArrayLike) -> None:
        """End the open episodes of these environments; their last rows keep their bootstrap."""
        if self._spec is not None:
            ids = np.atleast_1d(np.asarray(env_ids))
            self._break_off(ids)
            self._age[ids] = 0

    def drop(self, env_ids: ArrayLike) -> int:
        """Remove the rows of these environments' open episodes from this rollout; return the number of rows removed.

        Rows of earlier rollouts were learned from already.
        """
        if self._spec is None:
            return 0
        ids = np.atleast_1d(np.asarray(env_ids))
        n_rows = np.where(self._is_open[ids], np.minimum(self._age[ids], self._n_rows[ids]), 0)
        self._n_rows[ids] -= n_rows
        self._is_open[ids] = False
        self._age[ids] = 0
        return int(n_rows.sum())

    def rewrite(self, slots: NDArray[np.int64], *, reward: ArrayLike | None = None, **columns: ArrayLike) -> None:
        """Change the rewards and stored columns of rows of this rollout, by name; see `ReplayBuffer.rewrite`."""
        is_stored, rows = self.is_stored(slots), checked_slots("RolloutBuffer", slots)
        stored = self._columns.get("extras", {})
        reject_unknown("RolloutBuffer.rewrite", columns, stored)
        if is_stored.any():
            values = columns if reward is None else {**columns, "reward": reward}
            targets = {name: _flat(column) for name, column in {**stored, "reward": self._columns["reward"]}.items()}
            rewrite_columns("RolloutBuffer", targets, values, rows, is_stored)

    def is_stored(self, slots: ArrayLike) -> NDArray[np.bool_]:
        """Return which slots [K] have a row in this rollout."""
        rows = checked_slots("RolloutBuffer", slots)
        if self._spec is None:
            return np.zeros(len(rows), np.bool_)
        time, env = np.divmod(rows, self._spec.n_envs)
        held: NDArray[np.bool_] = (time >= 0) & (time < self._n_rows[env])
        return held

    def get(self, slots: ArrayLike) -> Transition:
        """Return the rows of these slots [K] of this rollout, in their order, with all stored columns.

        Raises:
            MissingRowError: a slot has no row in this rollout.
        """
        rows = checked_slots("RolloutBuffer", slots)
        held = self.is_stored(rows)
        if self._spec is None or not held.all():
            raise MissingRowError(
                f"RolloutBuffer does not hold slot {rows[~held][:1]} of the {len(rows)} given: slots are of the rows "
                "collected since the last update; is_stored(slots) returns which"
            )
        time, env = np.divmod(rows, self._spec.n_envs)
        own = tree.map_tree(lambda column: _flat(column)[rows], self._columns)
        next_obs = tree.map_tree(
            lambda column: column[np.minimum(time + 1, self._capacity - 1), env], self._columns["obs"]
        )
        newest = time == self._n_rows[env] - 1
        _write(next_obs, newest, tree.map_tree(lambda leaf: leaf[env[newest]], self._pending))
        for ended, after in self._ends:
            at = np.flatnonzero(np.isin(rows, ended))
            place = np.argsort(ended)[np.searchsorted(np.sort(ended), rows[at])]
            _write(next_obs, at, tree.map_tree(lambda leaf, place=place: leaf[place], after))
        return Transition(
            obs=own["obs"],
            action=own["action"],
            reward=own["reward"],
            next_obs=next_obs,
            terminated=own["terminated"],
            truncated=own["truncated"],
            env_ids=env.astype(np.intp),
            extras=own["extras"],
        )

    def read(self, horizon: Horizon | None = None, columns: Sequence[str] = ()) -> Rollout:
        """Cut the open episodes and return all rows, with rewards shaped by the horizon's rule.

        Args:
            horizon: its rule shapes the rewards; None is a `Horizon()`, which keeps them.
            columns: what to return in `extras` in addition to the stored columns, [T, N] each: "env_id", "t" (step in
                the episode), "terminated", "truncated", "return_to_go" (as in `ReplayBuffer.sample`: nan where the
                episode had not ended when the rollout did).

        Raises:
            EmptyBufferError: there are none.
        """
        if self._spec is None or not len(self):
            raise EmptyBufferError("RolloutBuffer is empty: collect before learning")
        self._break_off(np.arange(self._spec.n_envs))
        n_steps = int(self._n_rows.max())
        own = tree.map_tree(lambda column: column[:n_steps], self._columns)
        rows = np.concatenate([rows for rows, _ in self._ends])
        after = tree.map_tree(lambda *leaves: np.concatenate(leaves), *(obs for _, obs in self._ends))
        bootstraps = ~own["terminated"].reshape(-1)[rows]
        rule = None if horizon is None else horizon.reward
        reward = self._shaped(rule, own, rows, after)
        extras = dict(own["extras"])
        for name in columns:
            if name not in self.columns:
                known = self.columns
                raise ConfigError(
                    f"RolloutBuffer has no column {name!r}, only {list(known)}{did_you_mean(name, known)}"
                )
            if name == "return_to_go":
                extras[name] = _return_to_go(reward, own, (Horizon() if horizon is None else horizon).gamma)
            elif name == "env_id":
                extras[name] = np.broadcast_to(np.arange(self._spec.n_envs), reward.shape)
            elif name not in extras:
                extras[name] = own[name]
        return Rollout(
            obs=own["obs"],
            action=own["action"],
            reward=reward.astype(np.float32),
            terminated=own["terminated"],
            ended=own["ended"],
            n_rows=self._n_rows.copy(),
            last_rows=rows[bootstraps],
            last_obs=tree.map_tree(lambda leaf: leaf[bootstraps], after),
            extras=extras,
        )

    def clear(self) -> None:
        """Forget every row; open episodes continue in the next rollout."""
        if self._spec is not None:
            self._n_rows[:] = 0
            self._is_open[:] = False
            self._ends.clear()

    def metrics(self, step: int) -> dict[str, float]:
        """Return no metrics: the buffer is empty between rollouts."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return all rows, and the number of steps of each episode. Arrays may be views."""
        if self._spec is None:
            return {}
        n_steps = int(self._n_rows.max())
        return {
            "columns": tree.to_plain(tree.map_tree(lambda column: column[:n_steps], self._columns)),
            "ends": [[rows, tree.to_plain(obs)] for rows, obs in self._ends],
            "pending": tree.to_plain(self._pending),
            "n_rows": self._n_rows.copy(),
            "is_open": self._is_open.copy(),
            "age": self._age.copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state of a buffer with rows of the same shape; arrays may be `StoredArray`s.

        Raises:
            CheckpointError: it is of other rows, or damaged.
        """
        self.clear()
        if not state:
            return
        assert self._spec is not None, "bound by its collector"
        remedy = "make the run as it was, or take an older checkpoint"
        with decoding("a saved state", "a RolloutBuffer of these rows", remedy=remedy):
            saved, pending = tree.from_plain(state["columns"]), tree.from_plain(state["pending"])
            n_rows = np.asarray(state["n_rows"], np.int64)
            n_steps = int(n_rows.max())
            lengths = {len(column) for column in tree.leaves(saved)}
            if lengths != {n_steps} or n_rows.min() < 0:
                raise ValueError(f"rows are counted as {n_rows.tolist()!r:.80}, columns have {lengths}")
            if n_steps > self._capacity:
                self._allocate(n_steps)
            if n_steps:  # without rows there is nothing to read, whatever columns the saved policy stored
                mine, theirs = (sorted(columns["extras"]) for columns in (self._columns, saved))
                if mine != theirs:
                    raise CheckpointError(
                        f"RolloutBuffer was saved in mid-rollout with the columns {theirs}, this policy stores {mine}: "
                        "resume with the version of trainkit that saved it, or load without the buffer (exclude)"
                    )
                _read_into(tree.map_tree(lambda column: column[:n_steps], self._columns), saved)
            _read_into(self._pending, pending)
            for name, own in (("n_rows", self._n_rows), ("is_open", self._is_open), ("age", self._age)):
                own[:] = state[name]
            ends = [(np.asarray(rows), tree.map_tree(np.asarray, tree.from_plain(obs))) for rows, obs in state["ends"]]
            n_slots = n_steps * self._spec.n_envs
            for rows, _ in ends:
                if rows.dtype.kind not in "iu" or (len(rows) and not (rows.min() >= 0 and rows.max() < n_slots)):
                    raise ValueError("an episode ends where there is no row")
            self._ends = ends

    def _end_skipped(self, obs: Obs, env_ids: NDArray[np.intp]) -> None:
        """End the open episodes that these rows do not continue, because rows between them were not added."""
        envs: Any = slice(None) if len(env_ids) == len(self._is_open) else env_ids
        pairs = [(own[envs], given) for own, given in zip(tree.leaves(self._pending), tree.leaves(obs), strict=True)]
        if all(is_equal(own, given) for own, given in pairs):
            return
        continues = np.logical_and.reduce([equal_rows(own, given) for own, given in pairs])
        skipped = self._is_open[env_ids] & ~continues
        if any_true(skipped):
            self.cut(env_ids[skipped])

    def _break_off(self, env_ids: NDArray[np.intp]) -> None:
        """End the rows of open episodes here; the episodes themselves may continue in the next rollout."""
        ids = env_ids[self._is_open[env_ids]]
        self._columns["ended"][self._n_rows[ids] - 1, ids] = True
        self._is_open[ids] = False
        self._end(ids)

    def _shaped(
        self, rule: RewardRule | None, own: Mapping[str, Any], rows: NDArray[np.int64], after: Obs
    ) -> NDArray[np.float64]:
        """Apply a reward rule to all rows [T, N]; a function receives them packed, [1, B, ...]."""
        if not callable(rule):
            return shape_reward(rule, own["reward"], dict)
        n_steps, n_envs = own["reward"].shape
        packed = np.flatnonzero(np.arange(n_steps)[:, None] < self._n_rows)  # t * N + n

        def column(name: str) -> NDArray[Any]:
            return _flat({**own, **own["extras"]}[name])[packed][None]

        def next_obs() -> Obs:
            follows = np.minimum(packed + n_envs, n_steps * n_envs - 1)
            found = tree.map_tree(lambda leaf: _flat(leaf)[follows], own["obs"])
            positions = np.searchsorted(packed, rows)
            for leaf, true in zip(tree.leaves(found), tree.leaves(after), strict=True):
                leaf[positions] = true
            return tree.map_tree(lambda leaf: leaf[None], found)

        columns = LazyColumns(
            {
                **{name: partial(column, name) for name in (*_RULE_COLUMNS, *own["extras"])},
                "obs": lambda: tree.map_tree(lambda leaf: _flat(leaf)[packed][None], own["obs"]),
                "next_obs": next_obs,
            }
        )
        shaped = np.zeros((n_steps, n_envs))
        shaped.reshape(-1)[packed] = shape_reward(rule, column("reward"), lambda: columns)[0]
        return shaped

    def _end(self, env_ids: NDArray[np.intp]) -> None:
        """Store the next observations of the newest rows of these environments."""
        assert self._spec is not None, "only rows end"
        rows = (self._n_rows[env_ids] - 1) * self._spec.n_envs + env_ids
        self._ends.append((rows, tree.map_tree(lambda leaf: leaf[env_ids], self._pending)))

    def _allocate(self, capacity: int) -> None:
        """Allocate columns for this many rows per environment, and copy the existing rows."""
        spec, before = self._spec, self._columns
        assert spec is not None, "bound before anything is written"

        def column(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
            return np.zeros((capacity, spec.n_envs, *shape), dtype)

        self._columns = {
            "obs": tree.map_tree(lambda leaf: column(_shape(leaf), leaf.dtype), spec.obs),
            "action": column(spec.action.shape, spec.action.dtype),
            "reward": column((), np.float64),
            "terminated": column((), np.bool_),
            "truncated": column((), np.bool_),
            "t": column((), np.int64),
            "ended": column((), np.bool_),
            "extras": {name: column(leaf.shape, leaf.dtype) for name, leaf in spec.extras.items()},
        }
        if before:
            for new, old in zip(tree.leaves(self._columns), tree.leaves(before), strict=True):
                new[: self._capacity] = old
        self._capacity = capacity


_RULE_COLUMNS = ("action", "reward", "terminated", "truncated", "t")  # of reward functions, as in replay


def _return_to_go(reward: NDArray[np.float64], own: Mapping[str, Any], gamma: float) -> NDArray[np.float32]:
    """Sum each row's and all later rewards of its episode, discounted, [T, N]; nan where rewards are missing."""
    total = np.full(reward.shape, np.nan)
    follows = np.full(reward.shape[1], np.nan)  # [N], the sum from the next row on
    is_known = own["terminated"] | own["truncated"]
    for t in range(len(reward) - 1, -1, -1):
        follows = np.where(own["ended"][t], np.where(is_known[t], 0.0, np.nan), follows)
        follows = total[t] = reward[t] + gamma * follows
    return total.astype(np.float32)


def _flat(column: NDArray[Any]) -> NDArray[Any]:
    """Reshape [T, N, ...] to [T * N, ...]."""
    return column.reshape(-1, *column.shape[2:])


def _shape(leaf: ArraySpec) -> tuple[int, ...]:
    """Return the shape of one row with its stacked frames."""
    return (leaf.stack, *leaf.shape) if leaf.stack > 1 else leaf.shape


def _write(columns: Any, index: Any, rows: Any) -> None:
    for column, leaf in zip(tree.leaves(columns), tree.leaves(rows), strict=True):
        column[index] = leaf


def _read_into(columns: Obs, saved: Obs) -> None:
    """Copy or read leaves of the same shape into columns."""
    own, given = dict(tree.named_leaves(columns)), dict(tree.named_leaves(saved))
    shapes = [{path: leaf.shape for path, leaf in leaves.items()} for leaves in (own, given)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"columns are {shapes[1]!r:.200}, and must be {shapes[0]!r:.200}")
    for path, column in own.items():
        copy_into(column, given[path])
