"""A DQN script of RLlib 2 with a callback, ported: docs/howto/port_rllib.md shows what changed."""

import trainkit as tk


class Angles(tk.Callback):
    """Log the mean angle of the pole."""

    episodes = "training"

    def on_episode_step(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
        angle = abs(episode.obs[2])
        episode.user_data.setdefault("angles", []).append(angle)

    def on_episode_end(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
        angles = episode.user_data["angles"]
        trainer.log("angle", sum(angles) / len(angles))


config = tk.presets.dqn.config(
    "CartPole-v1",
    zoo=False,
    n_envs=4,
    step_per_collect=4,
    lr=5e-4,
    n_step=3,
    backup="double",
    network={"dueling": True, "head": (64,), "activation": "relu"},
    epsilon=[(0, 1.0), (3_000, 0.05)],
    batch_size=32,
    update_per_step=8 / 32,
    learning_starts=500,
    target_every=400,
    capacity=20_000,
    buffer={"type": "PrioritizedReplayBuffer", "alpha": 0.6, "beta": 0.4},
    hidden=(64,),
    callbacks=[Angles],
    episode_per_test=10,
    step_per_epoch=1_000,
    max_epoch=3,
    seed=1,
)
trainer = config.build()
for epoch, stats, info in trainer:
    print(stats["train/recent_returns/mean"], stats["custom/angle"])
trainer.save("runs/dqn")
trainer.close()
