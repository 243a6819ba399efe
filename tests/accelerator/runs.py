"""Small runs of every preset, on any device."""

from typing import Any

import gymnasium as gym
import numpy as np

import trainkit as tk
from trainkit import presets

N_UPDATES = 3


class Corridor(gym.Env[np.ndarray, Any]):
    """Walk along a line by one of three actions, or by a force; an episode takes 9 steps."""

    observation_space = gym.spaces.Box(-10.0, 10.0, (4,), np.float32)

    def __init__(self, action_space: gym.Space[Any] | None = None) -> None:
        self.action_space = gym.spaces.Discrete(3) if action_space is None else action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._place, self._clock = self.np_random.normal(size=4), 0
        return self._place.astype(np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._clock += 1
        self._place = 0.8 * self._place + 0.3 * (np.mean(action) - 1.0) + 0.1 * self.np_random.normal(size=4)
        return self._place.astype(np.float32), float(self._place[0]), self._clock == 9, False, {}


class Push(Corridor):
    """The same, by a force."""

    def __init__(self) -> None:
        super().__init__(gym.spaces.Box(-1.0, 1.0, (2,), np.float32))


def dataset() -> tk.ReplayBuffer:
    """Make a buffer of 60 random rows in episodes of 6."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(61, 4)).astype(np.float32)
    ended = np.arange(60) % 6 == 5
    columns = {"obs": obs[:-1], "next_obs": obs[1:], "action": rng.integers(3, size=60), "reward": obs[1:, 0]}
    return tk.ReplayBuffer.from_arrays(**columns, terminated=ended, truncated=np.zeros(60, np.bool_))


def make(name: str, device: Any, *, n_updates: int = N_UPDATES, **options: Any) -> Any:
    """Make a preset's trainer that takes some updates in one epoch, executed by torch."""
    common = {
        "seed": 1,
        "device": str(device),
        "verbose": False,
        "show_progress": False,
        "max_epoch": 1,
        "hidden": (16,),
    }
    preset: Any = presets.PRESETS[name]
    if isinstance(preset, presets.OfflinePreset):
        trainer = preset(dataset(), Corridor, **common | {"update_per_epoch": n_updates, "batch_size": 8} | options)
        trainer.policy.engine = "torch"
        return trainer
    common |= {"engine": "torch", "n_envs": 2, "n_test_envs": 2, "episode_per_test": 2}
    if isinstance(preset, presets.OnpolicyPreset):
        common |= {"step_per_epoch": 16 * n_updates, "step_per_collect": 16, "repeat_per_collect": 1, "batch_size": 16}
        if name == "reinforce":  # learns from whole episodes
            common |= {"step_per_collect": None, "episode_per_collect": 2, "step_per_epoch": 18 * n_updates}
    else:
        common |= {"step_per_epoch": 18 + 2 * n_updates, "learning_starts": 20, "step_per_collect": 2, "batch_size": 8}
        common |= {"update_per_step": 0.5}
    return preset(Push if name == "sac" else Corridor, **common | options)
