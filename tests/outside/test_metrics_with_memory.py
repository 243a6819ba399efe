"""Metrics of learners with memory: over real rows, as those without."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import trainkit as tk
from trainkit.policy.advantages import normalized


class ThreeSteps(gym.Env[Any, Any]):
    """Episodes of three steps, with rewards of 0, 0 and 10."""

    observation_space = gym.spaces.Box(0, 3, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.n_steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.n_steps += 1
        is_last = self.n_steps == 3
        return np.full(1, self.n_steps, np.float32), 10.0 * is_last, is_last, False, {}


MEMORY = pytest.param(
    "lstm", marks=pytest.mark.xfail(strict=True, reason="metrics of learners with memory average over padding")
)


@pytest.mark.parametrize("recurrent", [None, MEMORY])
def test_the_parts_of_a_loss_add_up_to_it(recurrent: Any) -> None:
    envs = tk.make_envs(ThreeSteps, 1, seed=1)
    memory = {} if recurrent is None else {"recurrent": recurrent, "sequences": tk.Sequences(20, 0)}
    policy = tk.PPOPolicy.for_envs(
        envs, hidden=(4,), gamma=0.0, value_weight=1.0, entropy_weight=0.0, seed=1, device="cpu", **memory
    )
    train = tk.Collector(policy, envs, tk.RolloutBuffer())
    how: dict[str, Any] = {"max_epoch": 1, "step_per_epoch": 3, "step_per_collect": 3, "verbose": False}
    with tk.OnpolicyTrainer(policy, train, show_progress=False, **how) as trainer:
        update = next(trainer).stats.update
    assert update["policy_loss"] + update["value_loss"] == pytest.approx(update["loss"], rel=1e-4)


@pytest.mark.xfail(strict=True, reason="metrics of learners with memory average over padding")
def test_equal_advantages_of_shared_rows_normalize_to_zero() -> None:
    for n_rows in range(3, 40):
        share = torch.linspace(0.5, 1.5, n_rows)
        np.testing.assert_allclose(normalized(torch.full((n_rows,), 0.1), share / share.mean()), 0.0, atol=1e-3)
