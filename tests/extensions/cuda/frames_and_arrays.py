"""Buffers of the same rows, with images on a device and without, and learners of both."""

from typing import Any

import numpy as np
from gymnasium import spaces

from tests.helpers.learning import THREE_ACTIONS, assert_same, parameters_of
from trainkit import (
    Horizon,
    ReplayBuffer,
    Transition,
    TransitionBatch,
)
from trainkit.engine import DeviceFrames

FRAME = spaces.Box(0, 255, (36, 38), np.uint8)
STACKED = spaces.Box(0, 255, (2, 36, 38), np.uint8)
MIXED = spaces.Dict(
    {
        "view": STACKED,
        "speed": spaces.Box(-1.0, 1.0, (2, 3), np.float32),
        "action_mask": spaces.MultiBinary(3),
    }
)
SMALL = spaces.Box(0, 255, (2, 5, 4), np.uint8)  # too small for convolutions: a vector of numbers
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
N_ENVS = 2


def observation(space: spaces.Space[Any], rng: np.random.Generator) -> Any:
    """Draw what N environments show: stacks of one frame, which is what a buffer keeps of an episode's first step."""
    if isinstance(space, spaces.Dict):
        obs = {name: observation(child, rng) for name, child in space.spaces.items() if isinstance(child, spaces.Box)}
        obs["action_mask"] = np.ones((N_ENVS, 3), np.int8)
        obs["action_mask"][:, int(rng.integers(3))] = 0
        return obs
    assert isinstance(space, spaces.Box)
    shape = (N_ENVS, 1, *space.shape[1:])
    frame = rng.normal(size=shape) if space.dtype == np.float32 else rng.integers(0, 255, shape)
    return np.broadcast_to(frame, (N_ENVS, *space.shape)).astype(space.dtype)


class Source:
    """Buffers that get the same rows, with images on a device or without; every episode is one step long."""

    def __init__(self, space: spaces.Space[Any], device: str = "cpu", actions: Any = THREE_ACTIONS, **how: Any) -> None:
        how = {"capacity": 40, "stack": 2, "seed": 1, "n_envs": N_ENVS} | how
        self.buffers = ReplayBuffer(**how), ReplayBuffer(**how, frames=DeviceFrames(device))
        self._space, self._actions, self._rng = space, actions, np.random.default_rng(0)

    def write(self, n_steps: int = 1) -> None:
        for _ in range(n_steps):
            obs, next_obs = (observation(self._space, self._rng) for _ in range(2))
            ends = np.arange(N_ENVS) == 0
            action = self._rng.uniform(-0.9, 0.9, (N_ENVS, 2)).astype(np.float32)
            if self._actions is not BOX:
                action = np.full(N_ENVS, int(self._rng.integers(3)))
            reward = self._rng.normal(size=N_ENVS)
            for buffer in self.buffers:
                step = Transition(obs, action, reward, next_obs, ends, ~ends, np.arange(N_ENVS), {})
                buffer.add(step)

    def draw(self, n_rows: int = 16) -> tuple[TransitionBatch, TransitionBatch]:
        """Return the same batch twice, of arrays and of places."""
        plain, there = (buffer.sample(n_rows, horizon=Horizon(1)) for buffer in self.buffers)
        return plain, there


def learn_alike(plain: Any, resident: Any, source: Source, n_updates: int = 8) -> None:
    """Take the same updates, with rows written in between, to the same bits."""
    for step in range(n_updates):
        source.write(3)
        arrays, places = source.draw()
        one, other = plain.update(arrays, step=step), resident.update(places, step=step)
        assert_same(other.read_priority(), one.read_priority())
    assert_same(parameters_of(resident), parameters_of(plain))
    assert resident.read_metrics() == plain.read_metrics()
