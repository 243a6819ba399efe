"""Metrics of learners with memory: over real rows, as those without."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import trainkit as tk
from tests.helpers.engine import engines
from trainkit.buffer import sample_sequences
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


@pytest.mark.parametrize("recurrent", [None, "lstm"])
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


def test_equal_advantages_of_shared_rows_normalize_to_zero() -> None:
    for n_rows in range(3, 40):
        share = torch.linspace(0.5, 1.5, n_rows)
        np.testing.assert_allclose(normalized(torch.full((n_rows,), 0.1), share / share.mean()), 0.0, atol=1e-3)


@pytest.mark.parametrize("engine", engines("torch", "numpy"))
def test_metrics_of_sequences_are_over_their_real_rows(engine: Any) -> None:
    """C51 whose targets lie beyond the support in one of three real rows, of sequences of eight."""
    envs = tk.make_envs(ThreeSteps, 1, seed=1)
    policy = tk.DQNPolicy.for_envs(
        envs, hidden=(4,), gamma=0.0, value=tk.CategoricalValue(11, -1.0, 1.0), recurrent="gru", engine=engine,
        sequences=tk.Sequences(8, 0), exploration=tk.Greedy(), seed=1, device="cpu",
    )  # fmt: skip
    buffer = tk.ReplayBuffer(100, seed=1)
    tk.Collector(policy, envs, buffer).collect(n_episode=4)
    batch = sample_sequences(buffer, 16, length=8, burn_in=0, horizon=policy.horizon)
    real = batch.valid
    q = torch.from_numpy(np.stack([values_along(policy, batch, column) for column in range(16)], axis=1))  # [T, B]
    policy.update(batch, step=0)
    metrics = policy.read_metrics()
    assert metrics["clipped_share"] == pytest.approx((batch.reward > 1.0)[real].mean())
    for name, wanted in (("q_mean", q[real].mean()), ("q_max", q[real].max()), ("q_min", q[real].min())):
        assert metrics[name] == pytest.approx(float(wanted), rel=1e-4, abs=1e-5), name


def values_along(policy: tk.DQNPolicy, batch: Any, column: int) -> Any:
    """Return the values [T] of the actions of a sequence, step by step."""
    values, state = np.zeros(len(batch.reward), np.float32), batch.state[column : column + 1]
    for time in np.flatnonzero(batch.valid[:, column]):
        obs = batch.observations[time, column][None]
        values[time] = policy.action_values(obs, state=state)[0, batch.action[time, column]]
        state = policy.act(obs, state=state).state
    return values
