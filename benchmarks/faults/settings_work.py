"""Faults that all sides meet: environments that spoil one number, and settings that cannot work.

A side is a script that takes the name of a fault, learns 400 steps of CartPole by DQN with it, and prints one line of
JSON: what was told, and whether the weights are finite in the end.
"""

from typing import Any

import gymnasium as gym
import numpy as np

STEPS, STARTS, BATCH, SPOILT_AT = 400, 50, 32, 100

# {fault: how it is told in the table}
FAULTS = {
    "none": "nothing is wrong",
    "reward nan": "reward nan at step 100",
    "reward inf": "reward infinite at step 100",
    "obs nan": "observation nan at step 100",
    "gamma": "gamma = 5",
    "lr": "learning rate nan",
    "batch": "batch size 0",
    "capacity": "buffer of 0 rows",
    "option": "an option that does not exist",
}


class Spoilt(gym.Wrapper):
    """Spoil one number of one step."""

    def __init__(self, fault: str) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.fault, self.n_steps = fault, 0

    def step(self, action: Any) -> Any:
        """Step, and count."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.n_steps += 1
        if self.n_steps == SPOILT_AT:
            reward = {"reward nan": float("nan"), "reward inf": float("inf")}.get(self.fault, reward)
            if self.fault == "obs nan":
                obs = np.array([float("nan"), *obs[1:]], np.float32)
        return obs, reward, terminated, truncated, info


def settings(fault: str) -> dict[str, Any]:
    """Return lr, gamma, batch, capacity and an option nobody knows, one of them wrong."""
    return {
        "lr": float("nan") if fault == "lr" else 1e-3,
        "gamma": 5 if fault == "gamma" else 0.99,
        "batch": 0 if fault == "batch" else BATCH,
        "capacity": 0 if fault == "capacity" else 1_000,
        "unknown": {"exploratoin": 1} if fault == "option" else {},
    }
