"""Environments of images without a zero, and the stacks that Gymnasium's wrapper makes of them."""

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import FrameStackObservation
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

import trainkit as tk


class Flicker(gym.Env[NDArray[np.uint8], int]):
    """Images without a zero, in episodes of 1 to 9 steps that are terminated or truncated."""

    observation_space = gym.spaces.Box(0, 255, (24, 22), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._left = int(self.np_random.integers(1, 10))
        return self._image(), {}

    def step(self, action: int) -> Any:
        self._left -= 1
        is_over, is_terminated = self._left == 0, bool(self.np_random.integers(2))
        return self._image(), 1.0, is_over and is_terminated, is_over and not is_terminated, {}

    def _image(self) -> NDArray[np.uint8]:
        return self.np_random.integers(1, 256, (24, 22)).astype(np.uint8)


def collected(envs: tk.Envs, *n_steps: int, **options: Any) -> tk.ReplayBuffer:
    """Return the buffer of a random policy's steps."""
    buffer = tk.ReplayBuffer(60, seed=1, **options)
    collector = tk.Collector(tk.RandomPolicy(envs.action_space, seed=1), envs, buffer)
    for count in n_steps:
        collector.collect(n_step=count)
    envs.close()
    return buffer


def by_gymnasium(*n_steps: int) -> tk.ReplayBuffer:
    """Return the same steps in environments whose wrapper stacks the frames, each stored whole."""
    stacked = partial(FrameStackObservation, stack_size=4, padding_type="zero")
    return collected(tk.make_envs(Flicker, 2, seed=3, wrappers=[stacked]), *n_steps)


def assert_same_rows(own: tk.ReplayBuffer, other: tk.ReplayBuffer) -> None:
    """Compare all rows, in a batch of one-step and one of three-step returns."""
    for n_step in (1, 3):
        one, two = (buffer.sample(None, horizon=tk.Horizon(n_step=n_step)) for buffer in (own, other))
        for name in ("obs", "next_obs", "reward", "discount"):
            assert_array_equal(np.asarray(getattr(one, name)), np.asarray(getattr(two, name)), err_msg=name)
