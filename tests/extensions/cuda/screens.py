"""A walk that is seen as images, and orders of collecting and learning."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.trainer.toys import GOAL, LIMIT, Walk

ROUND: dict[str, Any] = {"refresh_priorities": "round", "updates_per_round": 4}
ORDERS: list[Any] = [
    pytest.param({}, id="update"),
    pytest.param({"refresh_priorities": "late"}, id="late"),
    pytest.param(ROUND, id="round"),
    pytest.param({"overlap": True}, id="overlap"),
    pytest.param({"overlap": True, "refresh_priorities": "late", "step_per_collect": 6}, id="overlap, late"),
    pytest.param({"overlap": True, "step_per_collect": 8} | ROUND, id="overlap, round"),
]
ON_CPU: dict[str, Any] = {"device": "cpu", "engine": "torch"}  # which gathers images from a device's memory


class Screen(gym.Wrapper[Any, Any, Any, Any]):
    """The walk, seen as one frame: a stripe where it is, as bright as it is late."""

    def __init__(self) -> None:
        super().__init__(Walk())
        self.observation_space = gym.spaces.Box(0, 255, (36, 36), np.uint8)

    def reset(self, **options: Any) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        obs, info = self.env.reset(**options)
        return self.seen(obs), info

    def step(self, action: Any) -> Any:
        obs, *rest = self.env.step(action)
        return self.seen(obs), *rest

    def seen(self, obs: Any) -> NDArray[np.uint8]:
        place, clock = obs
        frame = np.zeros((36, 36), np.uint8)
        frame[:, round((place + GOAL + 2) / (2 * GOAL + 4) * 35)] = 100 + 150 * clock / LIMIT
        return frame
