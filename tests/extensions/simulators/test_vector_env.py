"""A simulator in arrays: its rows are the simulator's, and every policy and buffer can use it."""

import numpy as np

import trainkit as tk
from tests.helpers.tagged import decode
from tests.helpers.tagged_simulator import TaggedSimulator
from trainkit.simulators import CartPole, Pendulum, SimulatorVectorEnv


def test_next_observations_are_those_before_the_reset() -> None:
    envs = tk.make_envs(SimulatorVectorEnv(TaggedSimulator(3, form="masked")))
    buffer = tk.ReplayBuffer(300)
    collector = tk.Collector(tk.RandomPolicy(envs.action_space, seed=1), envs, buffer)
    stats = collector.collect(n_step=90)
    assert stats.n_episode > 9
    rows = buffer.get(collector.collected_slots)
    before, after = decode(rows.obs), decode(rows.next_obs)
    np.testing.assert_array_equal(after[:, :2], before[:, :2])  # environment and episode
    np.testing.assert_array_equal(after[:, 2], before[:, 2] + 1)
    np.testing.assert_array_equal(after[:, 3], rows.action)


def test_sac_learns_from_a_simulator() -> None:
    envs = tk.make_envs(SimulatorVectorEnv(Pendulum(4, max_episode_steps=20)))
    policy = tk.SACPolicy.for_envs(envs, hidden=(16,), device="cpu")
    collector = tk.Collector(policy, envs, tk.ReplayBuffer(1_000))
    trainer = tk.OffpolicyTrainer(
        policy, collector, max_epoch=1, step_per_epoch=200, batch_size=16, seed=1, verbose=False, show_progress=False
    )
    assert trainer.run().gradient_step > 100
    assert trainer.info.n_episode == 8


def test_a_q_learner_is_evaluated_in_a_simulator_which_stays_open() -> None:
    simulator = CartPole(4)
    policy = tk.DQNPolicy.for_envs(simulator, device="cpu", seed=1)
    returns = [tk.evaluate(policy, simulator, n_episode=8, seed=2).episode_returns for _ in range(2)]
    assert returns[0] == returns[1]
    assert len(returns[0]) == 8
