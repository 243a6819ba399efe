"""A slow, obvious reference of the replay buffer: a list of rows per environment."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.buffer.stream import stacked
from trainkit.core import tree
from trainkit.core.data import Horizon, Obs, Transition, TransitionBatch

COLUMNS = ("n", "t", "episode", "env_id", "terminated", "truncated", "return_to_go", "log_prob", "hidden")


@dataclass
class Row:
    """One transition as it was added."""

    slot: int
    env: int
    episode: int
    t: int
    obs: Obs
    action: Any
    reward: float
    next_obs: Obs
    terminated: bool
    truncated: bool
    extras: dict[str, Any]
    priority: float


@dataclass
class SlowReplay:
    """Store rows as the buffer must, and check sampled batches."""

    capacity: int
    n_envs: int
    rings: list[list[Row]] = field(default_factory=list)
    episode: list[int] = field(default_factory=list)  # number of the open episode
    steps: list[int] = field(default_factory=list)  # of the open episode
    largest_priority: float = 1.0
    slots_ever: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.clear()

    def __len__(self) -> int:
        return sum(map(len, self.rings))

    def clear(self) -> None:
        self.rings = [[] for _ in range(self.n_envs)]
        self.episode, self.steps = [0] * self.n_envs, [0] * self.n_envs
        self.largest_priority = 1.0

    def limit(self, env: int) -> int:
        return self.capacity // self.n_envs + (env < self.capacity % self.n_envs)

    def add(self, step: Transition, slots: Iterable[int]) -> None:
        for k, (env, slot) in enumerate(zip(step.env_ids.tolist(), map(int, slots), strict=True)):
            assert slot not in self.slots_ever, "a slot was used twice"
            self.slots_ever.add(slot)

            def one(column: Any, k: int = k) -> Any:
                return tree.map_tree(lambda leaf: leaf[k].copy(), column)

            ring = self.rings[env]
            if ring and self.steps[env] and not same(ring[-1].next_obs, one(step.obs)):
                self.cut([env])
            row = Row(
                slot=slot,
                env=env,
                episode=self.episode[env],
                t=self.steps[env],
                obs=one(step.obs),
                action=one(step.action),
                reward=float(step.reward[k]),
                next_obs=one(step.next_obs),
                terminated=bool(step.terminated[k]),
                truncated=bool(step.truncated[k]),
                extras={name: one(column) for name, column in step.extras.items()},
                priority=self.largest_priority,
            )
            self.rings[env].append(row)
            del self.rings[env][: -self.limit(env)]
            self.steps[env] += 1
            if row.terminated or row.truncated:
                self.cut([env])

    def cut(self, env_ids: Iterable[int]) -> None:
        for env in env_ids:
            if self.steps[env] > 0:
                self.episode[env] += 1
                self.steps[env] = 0

    def drop(self, env_ids: Iterable[int]) -> int:
        before = len(self)
        for env in env_ids:
            self.rings[env] = [row for row in self.rings[env] if row.episode != self.episode[env]]
            self.steps[env] = 0
        return before - len(self)

    def living(self) -> dict[int, Row]:
        return {row.slot: row for ring in self.rings for row in ring}

    def rewrite(self, slots: Sequence[int], rewards: Sequence[float]) -> None:
        living = self.living()
        for slot, reward in zip(slots, rewards, strict=True):
            if slot in living:
                living[slot].reward = reward

    def update_priorities(self, slots: Sequence[int], priorities: Sequence[float]) -> None:
        living = self.living()
        for slot, priority in zip(slots, priorities, strict=True):
            if slot in living:
                living[slot].priority = priority
                self.largest_priority = max(self.largest_priority, priority)

    def window(self, row: Row, n_step: int) -> list[Row]:
        """Return the row and those after it in its episode, n rows at most."""
        ring = self.rings[row.env]
        begin = next(index for index, other in enumerate(ring) if other is row)
        window = []
        for other in ring[begin : begin + n_step]:
            if other.episode != row.episode:
                break
            window.append(other)
        return window

    def return_to_go(self, row: Row, gamma: float, shape: Callable[[Row], float]) -> float:
        """Sum the discounted rewards from a row to its episode's end; nan where no flag ended it."""
        rest = self.window(row, self.capacity)
        has_ended = rest[-1].terminated or rest[-1].truncated
        return sum(gamma**i * shape(other) for i, other in enumerate(rest)) if has_ended else np.nan

    def assert_true(
        self, batch: TransitionBatch, horizon: Horizon, shape: Callable[[Row], float] = lambda row: row.reward
    ) -> None:
        """Check every number of a batch that was sampled with `COLUMNS`; `shape` gives a row's shaped reward."""
        living = self.living()
        assert set(batch.slots.tolist()) <= living.keys(), "a row was sampled that is no longer there"
        rows = [living[slot] for slot in batch.slots.tolist()]
        lo, hi = horizon.n_step if isinstance(horizon.n_step, tuple) else (horizon.n_step, horizon.n_step)
        windows = []
        for row, n in zip(rows, batch.extras["n"].tolist(), strict=True):
            longest = len(self.window(row, hi))
            assert min(lo, longest) <= n <= longest, f"{n} steps from {row}"
            windows.append(self.window(row, n))
        last = [window[-1] for window in windows]
        gains = [sum(horizon.gamma**i * shape(row) for i, row in enumerate(window)) for window in windows]
        discounts = [0.0 if window[-1].terminated else horizon.gamma ** len(window) for window in windows]
        assert_same(batch.obs, stacked([row.obs for row in rows]))
        assert_same(batch.action, np.stack([row.action for row in rows]))
        np.testing.assert_allclose(batch.reward, gains, rtol=1e-6)
        np.testing.assert_allclose(batch.discount, discounts, rtol=1e-6)
        assert batch.reward.dtype == batch.discount.dtype == batch.weight.dtype == np.float32
        assert_same(batch.next_obs, stacked([row.next_obs for row in last]))
        expected = {
            "t": [row.t for row in rows],
            "episode": [row.episode for row in rows],
            "env_id": [row.env for row in rows],
            "terminated": [row.terminated for row in rows],
            "truncated": [row.truncated for row in rows],
            "log_prob": [row.extras["log_prob"] for row in rows],
            "hidden": [row.extras["hidden"] for row in rows],
        }
        for name, values in expected.items():
            np.testing.assert_array_equal(batch.extras[name], values, err_msg=name)
        to_go = [self.return_to_go(row, horizon.gamma, shape) for row in rows]
        np.testing.assert_allclose(batch.extras["return_to_go"], to_go, rtol=1e-6)

    def masses(self, alpha: float, eps: float) -> dict[int, float]:
        """Return each live row's mass."""
        return {row.slot: (row.priority + eps) ** alpha for ring in self.rings for row in ring}


def same(one: Obs, other: Obs) -> bool:
    """Return whether two observations have the same values; nan is nan."""
    pairs = zip(tree.leaves(one), tree.leaves(other), strict=True)
    return all(np.array_equal(left, right, equal_nan=left.dtype.kind == "f") for left, right in pairs)


def assert_same(one: Any, other: Any) -> None:
    """Check two trees: structure, dtypes, shapes and every number."""
    for (path, left), (name, right) in zip(tree.named_leaves(one), tree.named_leaves(other), strict=True):
        assert path == name
        assert left.dtype == right.dtype, path
        np.testing.assert_array_equal(left, right, err_msg=path, strict=True)
