"""After rllib/examples/offline_rl/cartpole_recording.py of ray 2.60.0; 8 epochs of 1,000 steps, 10 episodes for 500."""

from pathlib import Path

import trainkit as tk


def main(folder: Path) -> tk.trainer.RunInfo:
    config = tk.presets.ppo.config(
        "CartPole-v1",
        zoo=False,
        n_envs=5,
        hidden=[32],
        network={"activation": "tanh", "shared": True},
        lr=0.0003,
        repeat_per_collect=6,
        value_weight=0.01,
        evaluation=tk.Evaluation(every=1, explore=False),
        n_test_envs=1,
        episode_per_test=5,
        stop_return=350.0,
        max_env_step=200_000,
        max_epoch=8,
        step_per_epoch=1_000,
        step_per_collect=500,
        batch_size=64,
        checkpoint=folder / "run",
        seed=0,
    )
    with config.build() as trainer:
        info = trainer.run()

    policy = tk.load_policy(folder / "run" / "best")
    collector = tk.Collector(policy, tk.make_envs("CartPole-v1", 5, seed=1))
    writer = tk.callbacks.DatasetWriter(folder / "cartpole", open_episodes="drop", compress=True)
    with writer.record(collector):
        stats = collector.collect(n_episode=10, explore=False)
    ds = tk.load_dataset(folder / "cartpole")
    assert len(ds) == sum(stats.episode_lengths)  # "Number of experiences recorded"
    return info
