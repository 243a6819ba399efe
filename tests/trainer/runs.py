"""One small run of each kind of learner, to be stopped anywhere and continued with."""

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

import trainkit as tk
from tests.trainer.toys import RAINBOW, Walk, make_onpolicy_trainer, make_trainer


class Slide(gym.Env[NDArray[np.float32], NDArray[np.float32]]):
    """Push a block towards a place drawn by the episode's seed; ends there, or after 9 steps."""

    observation_space = gym.spaces.Box(-20, 20, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place, self._goal, self._clock = 0.0, self.np_random.uniform(-2, 2), 0
        return self._obs(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._place += float(action[0]) + self.np_random.normal(0, 0.1)
        self._clock += 1
        far = abs(self._place - self._goal)
        return self._obs(), -far, far < 0.2, self._clock >= 9, {}

    def _obs(self) -> NDArray[np.float32]:
        return np.array([self._place, self._goal], np.float32)


def make_sac(**options: Any) -> tk.OffpolicyTrainer:
    envs = tk.make_envs(Slide, 2)
    policy = tk.SACPolicy.for_envs(envs, hidden=(8,), normalize_obs=True, reward="return_scale", device="cpu")
    test = tk.Collector(policy, tk.make_envs(Slide, 2))
    own: dict[str, Any] = {"warmup": "random", "learning_starts": 10, "test_collector": test, "episode_per_test": 3}
    own |= {"max_epoch": 3, "step_per_epoch": 24, "update_per_step": 0.5, "batch_size": 4, "seed": 1}
    buffer = tk.PrioritizedReplayBuffer(60)
    quiet = {"verbose": False, "show_progress": False}
    return tk.OffpolicyTrainer(policy, tk.Collector(policy, envs, buffer), **own | quiet | options)


def make_cql(**options: Any) -> tk.OfflineTrainer:
    rng = np.random.default_rng(0)
    ends = np.arange(80) % 8 == 7
    columns = {"obs": rng.normal(size=(80, 2)).astype(np.float32), "action": rng.integers(2, size=80)}
    columns |= {"reward": rng.normal(size=80), "terminated": ends}
    envs = tk.make_envs(Walk, 2)
    policy = tk.DQNPolicy.for_envs(envs, hidden=(8,), double=True, penalty=tk.ConservativePenalty(0.5), device="cpu")
    own: dict[str, Any] = {"max_epoch": 3, "update_per_epoch": 6, "batch_size": 4, "seed": 1}
    own |= {"test_collector": tk.Collector(policy, envs), "episode_per_test": 3}
    quiet = {"verbose": False, "show_progress": False}
    return tk.OfflineTrainer(policy, tk.ReplayBuffer.from_arrays(**columns), **own | quiet | options)


def make_run(name: str, **options: Any) -> Any:
    """Make a quiet trainer of small epochs: "dqn", "rainbow", "ppo", "sac" or "cql"."""
    if name == "dqn":
        plain = {"noisy": False, "n_step": 1}
        return make_trainer(test=True, policy=plain, buffer=tk.ReplayBuffer(60), step_per_collect=9, **options)
    if name == "rainbow":
        return make_trainer(test=True, policy={**RAINBOW, "n_step": 3}, **options)
    if name == "ppo":
        scaled = {"normalize_obs": True, "reward": "return_scale"}
        return make_onpolicy_trainer(test=True, policy=scaled, step_per_collect=10, **options)
    return {"sac": make_sac, "cql": make_cql}[name](**options)


RUNS = ["dqn", "rainbow", "ppo", "sac", "cql"]
