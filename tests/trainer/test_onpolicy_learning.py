"""On-policy learning of a real task, seeded, to a score random play is far from."""

import pytest

import trainkit as tk

N_STEPS = 60_000


@pytest.mark.slow
def test_ppo_balances_the_pole() -> None:
    envs = tk.make_envs("CartPole-v1", 8)
    policy = tk.PPOPolicy.for_envs(envs, lr=[(0, 1e-3), (N_STEPS, 0.0)], device="cpu")
    trainer = tk.OnpolicyTrainer(
        policy,
        tk.Collector(policy, envs, tk.RolloutBuffer()),
        max_epoch=1,
        step_per_epoch=N_STEPS,
        step_per_collect=8 * 128,
        repeat_per_collect=10,
        batch_size=256,
        test_collector=tk.Collector(policy, tk.make_envs("CartPole-v1", 10)),
        episode_per_test=20,
        seed=0,
        verbose=False,
        show_progress=False,
    )
    with trainer:
        result = next(trainer)
    returns = result.stats["test/returns/mean"]
    assert returns is not None
    assert returns >= 400  # random play gets about 22
