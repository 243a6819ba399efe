"""CartPole and Pendulum step as gymnasium's, from the same states and actions."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import trainkit as tk
from trainkit.simulators import CartPole, Pendulum, TensorCollector, check_simulator

N = 16


@pytest.mark.parametrize(("kind", "env_id"), [(CartPole, "CartPole-v1"), (Pendulum, "Pendulum-v1")])
def test_each_step_is_that_of_gymnasium(kind: Any, env_id: str) -> None:
    simulator, rng = kind(N, max_episode_steps=40), np.random.default_rng(0)
    envs: list[Any] = [gym.make(env_id).unwrapped for _ in range(N)]
    obs, n_steps, n_terminated = simulator.reset(1), np.zeros(N, int), 0
    for env in envs:
        env.reset()
    for _ in range(100):
        actions = rng.integers(2, size=N) if kind is CartPole else rng.uniform(-3, 3, (N, 1)).astype(np.float32)
        state = simulator.state_dict()["state"].double().numpy()
        new_obs, reward, terminated, truncated, final_obs = simulator.step(torch.from_numpy(actions))
        n_steps += 1
        for i, env in enumerate(envs):
            env.state, env.steps_beyond_terminated = state[i], None
            expected_obs, expected_reward, is_terminated, _, _ = env.step(actions[i])
            np.testing.assert_allclose(final_obs[i], expected_obs, rtol=1e-5, atol=1e-5)
            assert float(reward[i]) == pytest.approx(float(expected_reward), rel=1e-5, abs=1e-5)
            assert bool(terminated[i]) == is_terminated
        np.testing.assert_array_equal(truncated, n_steps == 40)
        over = (terminated | truncated).numpy()
        np.testing.assert_array_equal(new_obs[~over], final_obs[~over])
        assert not (new_obs[over] == final_obs[over]).all(dim=1).any()
        n_steps[over] = 0
        n_terminated += int(terminated.sum())
        obs = new_obs
    assert (n_terminated > 50) == (kind is CartPole)
    assert simulator.observation_space == envs[0].observation_space
    assert simulator.action_space == envs[0].action_space
    assert obs.shape == (N, *envs[0].observation_space.shape)


@pytest.mark.parametrize(("kind", "low", "high"), [(CartPole, -0.05, 0.05), (Pendulum, [-np.pi, -1.0], [np.pi, 1.0])])
def test_episodes_start_uniformly_within_the_bounds_of_gymnasium(kind: Any, low: Any, high: Any) -> None:
    simulator = kind(4_000)
    state = simulator.state_dict()["state"].numpy()
    assert ((state >= low) & (state <= high)).all()
    np.testing.assert_allclose(state.mean(axis=0), 0.0, atol=0.05 * np.max(high))
    np.testing.assert_allclose(state.std(axis=0), np.broadcast_to(high, state.shape[1]) / np.sqrt(3.0), rtol=0.05)


@pytest.mark.parametrize("kind", [CartPole, Pendulum])
def test_they_pass_the_check_of_simulators(kind: Any) -> None:
    assert check_simulator(kind(8, max_episode_steps=20), n_steps=60) == []


def test_arguments_are_checked() -> None:
    with pytest.raises(
        tk.ConfigError, match=r"CartPole.n must be a whole number >= 1, got 0\nCartPole.max_episode_steps"
    ):
        CartPole(0, max_episode_steps=0)


@pytest.mark.slow
def test_ppo_balances_4096_poles() -> None:
    simulator = CartPole(4_096)
    policy = tk.PPOPolicy.for_envs(simulator, hidden=(64, 64), lr=1e-3, device="cpu")
    trainer = tk.OnpolicyTrainer(
        policy,
        TensorCollector(policy, simulator),
        max_epoch=1,
        step_per_epoch=32 * 16 * 4_096,
        step_per_collect=16 * 4_096,
        repeat_per_collect=2,
        batch_size=1_024,
        seed=0,
        verbose=False,
        show_progress=False,
        threads=1,
    )
    trainer.run()
    returns = tk.evaluate(policy, "CartPole-v1", n_episode=100, seed=1).returns.mean
    assert returns is not None
    assert returns >= 450  # random play gets about 22
