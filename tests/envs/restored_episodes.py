"""Checks of environments whose running episodes are restored."""

import logging
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.testing import assert_array_equal

import trainkit as tk
from tests.trainer.toys import Walk
from trainkit.core import files, tree


def collector_of(envs: tk.Envs, policy: Any = None) -> tk.Collector:
    return tk.Collector(tk.RandomPolicy(envs.action_space, seed=3) if policy is None else policy, envs)


def through_a_file(state: Any, path: Any) -> Any:
    files.save_state(path / "state.npz", state)
    return files.load_state(path / "state.npz")


def next_steps(collector: tk.Collector, n_step: int) -> Any:
    """Return the environments' next rewards and observations, step by step."""
    seen = []

    class Pen:
        def add(self, transition: Any) -> None:
            seen.append((transition.reward.tolist(), *(leaf.tolist() for leaf in tree.leaves(transition.next_obs))))

        def cut(self, env_ids: Any) -> None:
            seen.append(("cut", env_ids.tolist()))

    collector.recorders.append(Pen())
    stats = collector.collect(n_step=n_step)
    return seen, stats.returns.mean, stats.lengths.mean


def check_that_episodes_continue(n_step: int, path: Any, **options: Any) -> None:
    """Restore episodes in other environments after some steps, and compare how they continue."""
    with_envs = [tk.make_envs(**{"spec": Walk, "seed": seed} | options) for seed in (5, 99)]
    first, second = map(collector_of, with_envs)
    try:
        first.collect(n_step=n_step)
        second.load_state_dict(through_a_file(first.state_dict(), path))
        second.policy.load_streams_state(first.policy.streams_state())
        for one, other in zip(tree.leaves(first.envs.obs), tree.leaves(second.envs.obs), strict=True):
            assert_array_equal(one, other, strict=True)
        assert_array_equal(first.envs.episodes, second.envs.episodes)
        assert next_steps(second, 40) == next_steps(first, 40)
    finally:
        for envs in with_envs:
            envs.close()


class Counts(Walk):
    """Count episodes, which no observation shows."""

    n_walks = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.n_walks += 1
        return super().reset(seed=seed)


class Draws(Walk):
    """Keep a generator that no reset seeds."""

    def __init__(self) -> None:
        super().__init__()
        self.coins = np.random.default_rng(3)
        self.names = {"b", "a"}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.coins.random()
        return super().reset(seed=seed)


def warnings_of(record: Any) -> list[str]:
    return [record.message for record in record.records if record.levelno == logging.WARNING]


OUTLIVES = [(Counts, "n_walks"), (Draws, "coins")]


def check_that_lost_state_is_warned_of(env: Any, name: str, path: Any, caplog: Any, **options: Any) -> None:
    """Resume environments that keep something from one episode to the next, and look at the warning."""
    both = [tk.make_envs(lambda: gym.wrappers.TimeLimit(env(), 20), 2, seed=5, **options) for _ in range(2)]
    first, second = map(collector_of, both)
    try:
        first.collect(n_step=60)
        second.load_state_dict(through_a_file(first.state_dict(), path))
        (warning,) = warnings_of(caplog)
        assert "the run may not continue with the same bits" in warning
        assert f"differ from those saved: {name} of env 0, 1." in warning
        assert_array_equal(second.open_ids, first.open_ids)  # the open episodes themselves came back
    finally:
        for envs in both:
            envs.close()
