"""Environments with a task, and a check that each gets its own, for tests of every backend."""

import contextlib
from typing import Any

import trainkit as tk
from tests.trainer.toys import Walk


class Hill(Walk):
    """A walk whose end follows from the options of its reset."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        first, info = super().reset(seed=seed, options=options)
        self.length = (options or {}).get("length", 4)
        return first, info | {"length": self.length}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, _, _, info = super().step(action)
        self.length -= 1
        return obs, reward, self.length <= 0, False, info


def check_that_each_environment_has_its_task(backend: Any) -> None:
    """Fail unless the options of each of three environments decide how long its episodes are."""
    envs = tk.make_envs(Hill, 3, seed=1, backend=backend)
    envs.options = [{"length": 2}, {"length": 5}, None]
    policy = tk.RandomPolicy(envs.action_space)
    with contextlib.closing(envs):
        stats = tk.Collector(policy, envs, tk.ReplayBuffer(100)).collect(n_episode=6)
    assert sorted(stats.episode_lengths) == [2, 2, 4, 4, 5, 5]
