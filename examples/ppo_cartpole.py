"""PPO on CartPole from its parts, by hand: what a preset puts together for you."""

import torch

import trainkit as tk


def main(step_per_epoch: int = 10_240, max_epoch: int = 8) -> tk.trainer.RunInfo:
    """Put the parts together, train, and tell how it went."""
    torch.set_num_threads(1)  # networks this small are fastest on one
    n_steps, step_per_collect = max_epoch * step_per_epoch, 512
    envs = tk.make_envs("CartPole-v1", 8)
    policy = tk.PPOPolicy.for_envs(
        envs,
        hidden=(64, 64),
        lr=tk.Linear(1e-3, 0.0).over(n_steps + step_per_collect),  # not yet 0 in the last rollout
        gamma=0.98,
        lam=0.9,
        clip_ratio=0.2,
        entropy_weight=0.0,
    )
    train = tk.Collector(policy, envs, tk.RolloutBuffer())
    test = tk.Collector(policy, tk.make_envs("CartPole-v1", 10))
    trainer = tk.OnpolicyTrainer(
        policy,
        train,
        test_collector=test,
        episode_per_test=20,
        max_epoch=max_epoch,
        step_per_epoch=step_per_epoch,
        step_per_collect=step_per_collect,
        repeat_per_collect=10,
        batch_size=128,
        seed=1,
    )
    with trainer:
        return trainer.run()


if __name__ == "__main__":
    main()
