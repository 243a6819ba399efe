"""After rllib/examples/envs/custom_gym_env.py of ray 2.60.0; at most 8 iterations, a corridor of 6 fields for 10."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

import trainkit as tk


class SimpleCorridor(gym.Env[Any, Any]):
    """Walk down a corridor to its end: -0.01 a step, 0.5 to 1.5 at the goal."""

    def __init__(self, config: dict[str, Any] | None = None):
        config = config or {}
        self.end_pos = config.get("corridor_length", 7)
        self.cur_pos = 0
        self.action_space = Discrete(2)
        self.observation_space = Box(0.0, self.end_pos, shape=(1,), dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)  # `self.np_random` for the global `random`: one seed determines a run
        self.cur_pos = 0
        return np.array([self.cur_pos], np.float32), {"env_state": "reset"}

    def step(self, action: int) -> Any:
        assert action in [0, 1], action
        if action == 0 and self.cur_pos > 0:
            self.cur_pos -= 1
        elif action == 1:
            self.cur_pos += 1
        terminated = self.cur_pos >= self.end_pos
        reward = float(self.np_random.uniform(0.5, 1.5)) if terminated else -0.01
        return np.array([self.cur_pos], np.float32), reward, terminated, False, {}


def main(folder: Path) -> tk.trainer.RunInfo:
    args = {"corridor_length": 6}
    config = tk.presets.ppo.config(
        SimpleCorridor,
        env_options={"env_kwargs": {"config": args}, "max_episode_steps": 100},
        stop_return=0.9,
        max_epoch=8,
        max_env_step=100_000,
        step_per_epoch=1_000,
        step_per_collect=500,
        batch_size=128,
        episode_per_test=20,
        seed=0,
        logger=folder / "ppo",
    )
    trainer = config.build()
    return trainer.run()
