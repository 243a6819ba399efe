"""A small game of frames, in place of Atari in the scripts after Tianshou's examples/atari and examples/offline."""

from typing import Any

import gymnasium as gym
import numpy as np


class Catch(gym.Env[Any, Any]):
    """Move a paddle under a ball that falls 8 rows: reward 1 for a catch, -1 otherwise; frames uint8 [40, 40]."""

    observation_space = gym.spaces.Box(0, 255, (40, 40), np.uint8)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.row, self.ball, self.paddle = 0, int(self.np_random.integers(8)), 4
        return self.frame(), {}

    def step(self, action: int) -> Any:
        self.row += 1
        self.paddle = int(np.clip(self.paddle + action - 1, 0, 7))
        is_over = self.row == 7
        reward = (1.0 if abs(self.paddle - self.ball) <= 1 else -1.0) if is_over else 0.0
        return self.frame(), reward, is_over, False, {}

    def frame(self) -> Any:
        cells = np.zeros((8, 8), np.uint8)
        cells[self.row, self.ball] = 255
        cells[7, self.paddle] = 255
        return cells.repeat(5, axis=0).repeat(5, axis=1)
