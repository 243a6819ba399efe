"""Environments without cost, for tests and for measuring everything else."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from trainkit.core.data import Obs
from trainkit.core.errors import Checks
from trainkit.core.signatures import checked
from trainkit.core.spaces import check_spaces

__all__ = ["FakeVectorEnv"]


@checked
class FakeVectorEnv(VectorEnv[Any, Any, Any]):
    """Return the same observations at every step, sampled once; rewards are 1, and all episodes end together.

    With `make_envs(FakeVectorEnv(...))` a run's time is that of acting, storing and learning.

    Args:
        observation_space, action_space: of one environment.
        n: environments.
        episode_length: steps, the last of which terminates.
        seed: of the observations.
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        n: int,
        *,
        episode_length: int = 200,
        seed: int = 0,
    ) -> None:
        with Checks("FakeVectorEnv") as checks:
            checks.integer("n", n, low=1)
            checks.integer("episode_length", episode_length, low=1)
            checks.integer("seed", seed, low=0)
        check_spaces(observation_space, action_space)
        self.num_envs = n
        self.single_observation_space, self.single_action_space = observation_space, action_space
        self.observation_space, self.action_space = batch_space(observation_space, n), batch_space(action_space, n)
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        self.observation_space.seed(seed)
        self._obs: Obs = self.observation_space.sample()  # [N, ...]
        self._reward = np.ones(n)
        self._over, self._never = np.ones(n, np.bool_), np.zeros(n, np.bool_)
        self._length, self._steps = episode_length, 0

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Obs, dict[str, Any]]:
        """Start all episodes, whatever the options: they end together."""
        self._steps = 0
        return self._obs, {}

    def step(
        self, actions: Any
    ) -> tuple[Obs, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Count a step."""
        self._steps += 1
        over = self._over if self._steps >= self._length else self._never
        return self._obs, self._reward, over, self._never, {}
