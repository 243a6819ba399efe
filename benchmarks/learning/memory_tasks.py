"""Tasks that cannot be solved without a memory: a T-maze, and CartPole without its velocities."""

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

SIGNALS = np.array([[0, 1, 1], [1, 1, 0]], np.float32)  # seen at the start alone: turn north, turn south
CORRIDOR, JUNCTION = np.array([1, 0, 1], np.float32), np.array([0, 1, 0], np.float32)


class TMaze(gym.Env[NDArray[np.float32], Any]):
    """Walk east along a corridor and turn, at its end, as a signal at its start said (Bakker, 2001).

    Actions are east, north, west and south. The right turn earns 4 and the wrong one -0.1, both end the episode; a
    step against a wall costs 0.1. Episodes are truncated after four times the length.

    Args:
        length: steps from the start to the junction.
    """

    def __init__(self, length: int = 50) -> None:
        self.observation_space = gym.spaces.Box(0, 1, (3,), np.float32)
        self.action_space = gym.spaces.Discrete(4)
        self.length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.n_steps, self.signal = 0, 0, int(self.np_random.integers(2))
        return SIGNALS[self.signal].copy(), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self.n_steps += 1
        is_late = self.n_steps >= 4 * self.length
        if self.at == self.length and action in (1, 3):
            is_right = (action == 1) == (self.signal == 0)
            return JUNCTION.copy(), 4.0 if is_right else -0.1, True, False, {}
        moved = min(max(self.at + {0: 1, 2: -1}.get(int(action), 0), 0), self.length)
        reward = 0.0 if moved != self.at else -0.1
        self.at = moved
        return (JUNCTION if self.at == self.length else CORRIDOR).copy(), reward, False, is_late, {}


class Positions(gym.ObservationWrapper[NDArray[np.float32], Any, NDArray[np.float32]]):
    """CartPole's position and angle, without their velocities."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = gym.spaces.Box(-5, 5, (2,), np.float32)

    def observation(self, observation: NDArray[np.float32]) -> NDArray[np.float32]:
        return observation[[0, 2]]


def cartpole_positions() -> gym.Env[Any, Any]:
    """Make CartPole-v1 without velocities."""
    return Positions(gym.make("CartPole-v1"))
