"""SAC on Pendulum from its parts, by hand: what a preset puts together for you."""

import torch

import trainkit as tk


def main(step_per_epoch: int = 2_000, max_epoch: int = 5) -> tk.RunInfo:
    """Put the parts together, train, and tell how it went."""
    torch.set_num_threads(1)  # networks this small are fastest on one
    envs = tk.make_envs("Pendulum-v1", 1)
    policy = tk.SACPolicy.for_envs(
        envs,
        hidden=(256, 256),
        lr=3e-4,
        gamma=0.99,
        tau=0.005,
        temperature="auto",
    )
    train = tk.Collector(policy, envs, tk.ReplayBuffer(100_000))
    test = tk.Collector(policy, tk.make_envs("Pendulum-v1", 10))
    trainer = tk.OffpolicyTrainer(
        policy,
        train,
        test_collector=test,
        episode_per_test=20,
        max_epoch=max_epoch,
        step_per_epoch=step_per_epoch,
        batch_size=256,
        update_per_step=1.0,
        learning_starts=1_000,
        warmup="random",
        seed=1,
    )
    with trainer:
        return trainer.run()


if __name__ == "__main__":
    main()
