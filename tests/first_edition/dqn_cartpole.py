"""DQN on CartPole from its parts, by hand: what a preset puts together for you."""

import trainkit as tk


def main() -> None:
    """Put the parts together and train a little."""
    envs = tk.make_envs("CartPole-v1", 8)
    policy = tk.DQNPolicy.for_envs(
        envs,
        hidden=(256, 256),
        value=tk.ExpectedValue("huber"),
        backup=tk.MaxBackup(),  # tk.DoubleBackup() for Double DQN
        exploration=tk.EpsilonGreedy.linear(1.0, 0.04, 8_000),
        target=tk.Target(every=160, unit="env_steps"),
        optimizer=tk.Adam(lr=[(0, 2.3e-3), (60_000, 1e-4)]),
        clip=tk.Clip(10.0),
    )
    train = tk.Collector(policy, envs, tk.ReplayBuffer(100_000))
    test = tk.Collector(policy, tk.make_envs("CartPole-v1", 10))
    trainer = tk.OffpolicyTrainer(
        policy,
        train,
        test_collector=test,
        episode_per_test=20,
        max_epoch=6,
        step_per_epoch=5_000,
        step_per_collect=8,
        update_per_step=0.5,
        batch_size=64,
        learning_starts=1_000,
        verbose=False,
        seed=1,
    )
    with trainer:
        for epoch, stats, info in trainer:
            shown = (
                "none yet" if stats.train is None or stats.train.returns is None else f"{stats.train.returns.mean:.1f}"
            )
            print(f"{epoch}: {info.env_step:,} steps, training returns {shown}, test {stats['test/returns/mean']:.1f}")


if __name__ == "__main__":
    main()
