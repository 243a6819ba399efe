"""Recurrent policies, and the plain loops over their sequences that they are compared with."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

import trainkit as tk
from trainkit.buffer import SequenceBatch
from trainkit.extensions.memory.encoder import RecurrentEncoder
from trainkit.extensions.memory.recurrence import Recall

SEQUENCES = tk.Sequences(6, 3)


class Known(Recall):
    """What a memory has returned, in the place of features of a network."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def recall(self, encoder: RecurrentEncoder) -> Tensor:
        return self.x


def collected(masked: bool = False, **options: Any) -> tuple[tk.DQNPolicy, tk.PrioritizedReplayBuffer, tk.Collector]:
    """Return a recurrent policy, with a buffer of its steps in short episodes."""
    envs = tk.make_envs([lambda: gym.wrappers.TimeLimit(Counting(masked), 7)] * 3, seed=1)
    settings: dict[str, Any] = {"hidden": (8,), "recurrent": "lstm", "sequences": SEQUENCES, "seed": 2, **options}
    policy = tk.DQNPolicy.for_envs(envs, max_grad_norm=None, **settings)
    buffer = tk.PrioritizedReplayBuffer(200, seed=3)
    collector = tk.Collector(policy, envs, buffer)
    collector.collect(n_step=90)
    return policy, buffer, collector


class Counting(gym.Env[Any, Any]):
    """Show noise; an episode ends at random, or with time."""

    def __init__(self, masked: bool) -> None:
        space: gym.Space[Any] = gym.spaces.Box(-5, 5, (3,), np.float32)
        mask = gym.spaces.MultiBinary(2)
        self.observation_space = gym.spaces.Dict({"x": space, "action_mask": mask}) if masked else space
        self.action_space = gym.spaces.Discrete(2)
        self.masked = masked

    def observe(self) -> Any:
        x = self.np_random.normal(size=3).astype(np.float32).clip(-5, 5)
        mask = np.array([1, self.np_random.integers(2)], np.int8)
        return {"x": x, "action_mask": mask} if self.masked else x

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observe(), float(self.np_random.normal()), bool(self.np_random.random() < 0.1), False, {}


class Pushing(Counting):
    """The same, with actions in a Box."""

    def __init__(self) -> None:
        super().__init__(masked=False)
        self.action_space = gym.spaces.Box(-2, 2, (2,), np.float32)


def recalled(policy: Any, network: Any, batch: SequenceBatch, column: int, part: slice) -> dict[int, Tensor]:
    """Return what a network's memory gives [F] at each position from the burn-in's end on, step by step."""
    memory, found = network.encoder.memory, {}
    state = torch.zeros(1, memory.state_size)
    if batch.state is not None and policy.sequences.stored_state:
        state = torch.from_numpy(batch.state[column : column + 1, part])
    rows = np.flatnonzero(batch.valid[:, column])
    for position in range(int(rows[0]), int(batch.after[rows, column].max()) + 1):
        with torch.set_grad_enabled(torch.is_grad_enabled() and position >= batch.burn_in):
            if position < len(batch.starts) and batch.starts[position, column]:
                state = torch.zeros_like(state)
            observations: Any = batch.observations
            x = network.encoder.body(torch.from_numpy(observations[position, column][None]))
            x, state = memory.step(x, state)
            found[position] = x
    return found


def learned_rows(batch: SequenceBatch) -> list[tuple[int, int]]:
    """Return the (position, column) of every row to learn from."""
    return [(int(p), int(c)) for p, c in np.argwhere(batch.valid) if p >= batch.burn_in]


def assert_gradients(module: nn.Module, loss: Tensor) -> None:
    parameters = dict(module.named_parameters())
    wanted = torch.autograd.grad(loss, list(parameters.values()))
    largest = max(float(gradient.abs().max()) for gradient in wanted)
    for (name, parameter), gradient in zip(parameters.items(), wanted, strict=True):
        assert parameter.grad is not None
        np.testing.assert_allclose(parameter.grad, gradient, rtol=1e-5, atol=1e-5 * largest, err_msg=name)
