"""Simulators on the device: no vector step visits the host, and learning equals that on the CPU."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainkit as tk
from tests.pretend import PretendDevice
from trainkit.simulators import CartPole, Pendulum, SimulatorVectorEnv, TensorCollector

N = 8


def trainer_of(kind: Any, device: Any, **options: Any) -> tk.OnpolicyTrainer[Any]:
    simulator = kind(N, device=device, max_episode_steps=11)
    policy = tk.PPOPolicy.for_envs(
        simulator, hidden=(16,), device=device, engine="torch", normalize_obs=kind is Pendulum
    )
    defaults = {"max_epoch": 2, "step_per_epoch": 40 * N, "step_per_collect": 20 * N, "batch_size": 40}
    common = {"verbose": False, "show_progress": False, "seed": 3}
    return tk.OnpolicyTrainer(policy, TensorCollector(policy, simulator), **{**defaults, **common, **options})


@pytest.mark.parametrize("kind", [CartPole, Pendulum])
def test_a_rollout_waits_once_however_long_it_is_and_copies_only_statistics(kind: Any, pretend: PretendDevice) -> None:
    collector = trainer_of(kind, pretend.device).train_collector
    collector.collect(n_step=N)
    found = []
    for n_steps in (3, 30):
        collector.buffer.clear()
        with pretend.counting() as counts:
            collector.collect(n_step=n_steps * N)
        found.append((counts.waits, counts.copies_to_device, counts.copies_to_cpu))
    n_copies = 2 if kind is Pendulum else 1  # one more has the standard deviations of actions
    assert found == [(1, 0, n_copies)] * 2, counts.lines
    with pretend.counting() as counts:
        collector.buffer.read(collector.policy.horizon)
    assert (counts.waits, counts.copies_to_device, counts.copies_to_cpu) == (1, 0, 0)  # counts the ends of episodes


def test_learning_from_a_rollout_copies_nothing(pretend: PretendDevice) -> None:
    trainer = trainer_of(CartPole, pretend.device, max_epoch=3)
    next(trainer)
    with pretend.counting() as counts:
        trainer.train_collector.collect(n_step=20 * N)
        updates = list(trainer.policy.learn(trainer.buffer.read(), step=0, batch_size=40, repeat=3))
    assert len(updates) == 3 * 4
    assert (counts.waits, counts.copies_to_device, counts.copies_to_cpu) == (2, 0, 1), counts.lines


@pytest.mark.parametrize("kind", [CartPole, Pendulum])
def test_a_run_equals_that_on_the_cpu(kind: Any, pretend: PretendDevice) -> None:
    runs = [trainer_of(kind, device) for device in ("cpu", pretend.device)]
    for _ in range(2):
        expected, found = (next(run).stats for run in runs)
        assert found.train.episode_returns == pytest.approx(expected.train.episode_returns, rel=1e-5)
        assert found.update == pytest.approx(expected.update, rel=1e-5, abs=1e-6)


def test_a_run_on_the_device_resumes_exactly(pretend: PretendDevice, tmp_path: Path) -> None:
    whole = trainer_of(CartPole, pretend.device, checkpoint=tmp_path)
    next(whole)
    resumed = trainer_of(CartPole, pretend.device, resume_from=tmp_path)
    for run in (whole, resumed):
        run.run()
    weights = resumed.policy.get_weights()
    for name, expected in whole.policy.get_weights().items():
        np.testing.assert_array_equal(weights[name], expected, err_msg=name)


def test_a_replay_buffer_costs_one_wait_per_vector_step_in_addition_to_acting(pretend: PretendDevice) -> None:
    envs = tk.make_envs(SimulatorVectorEnv(Pendulum(N, device=pretend.device)))
    policy = tk.SACPolicy.for_envs(envs, hidden=(16,), device=pretend.device)
    collector = tk.Collector(policy, envs, tk.ReplayBuffer(1_000))
    collector.collect(n_step=2 * N)
    with pretend.counting() as counts:
        collector.collect(n_step=10 * N)
    assert counts.waits == 20, counts.lines


def test_a_policy_on_another_device_is_rejected(pretend: PretendDevice) -> None:
    simulator = CartPole(2, device=pretend.device)
    policy = tk.PPOPolicy.for_envs(simulator, device="cpu")
    with pytest.raises(
        tk.ConfigError, match="PPOPolicy is on cpu, CartPole on pretend:0: make the policy with device="
    ):
        TensorCollector(policy, simulator)
