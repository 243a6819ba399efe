"""A run does not get slower as it gets longer."""

import statistics

import pytest

import trainkit as tk


@pytest.mark.slow
@pytest.mark.bench
def test_the_fiftieth_epoch_is_as_fast_as_the_second() -> None:
    envs = tk.make_envs("CartPole-v1", 8)
    random = tk.EpsilonGreedy(1.0)  # a policy that gets better would change the environments' share
    policy = tk.DQNPolicy.for_envs(envs, hidden=(64, 64), exploration=random, device="cpu")
    collector = tk.Collector(policy, envs, tk.PrioritizedReplayBuffer(100_000))
    trainer = tk.OffpolicyTrainer(
        policy,
        collector,
        max_epoch=54,
        step_per_epoch=1_000,
        update_per_step=0.125,
        batch_size=64,
        verbose=False,
        show_progress=False,
        seed=1,
    )
    rates = [stats.time.steps_per_second for _, stats, _ in trainer]
    early, late = (statistics.median(rates[first : first + 8]) for first in (1, 46))
    assert late > 0.9 * early  # the machine's own noise is some per cent
