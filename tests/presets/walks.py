"""Walks that presets train on, some of them seen as images."""

from typing import Any

import gymnasium as gym
import numpy as np

import trainkit as tk
from tests.trainer.toys import Walk


class Lives(Walk):
    """A walk whose info counts lives, none of which is ever lost."""

    def reset(self, **requested: Any) -> Any:
        obs, info = super().reset(**requested)
        return obs, {**info, "lives": 3}

    def step(self, action: int) -> Any:
        *outcome, info = super().step(action)
        return *outcome, {**info, "lives": 3}


class Screen(Lives):
    """The same, seen as an image."""

    observation_space = gym.spaces.Box(0, 255, (1, 36, 36), np.uint8)

    def _obs(self) -> Any:
        return np.full((1, 36, 36), 100, np.uint8)


class Board(Walk):
    """The same, seen as a small grid of booleans."""

    observation_space = gym.spaces.Box(0, 1, (10, 10, 4), np.bool_)

    def _obs(self) -> Any:
        return np.full((10, 10, 4), True)


def limit_of(collector: tk.Collector) -> int:
    """Return after how many steps an episode is cut, the longest of some."""
    stats = collector.collect(n_episode=20)
    return int(stats.lengths.max)
