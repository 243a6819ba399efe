"""After rllib/examples/envs/env_rendering_and_recording.py of ray 2.60.0, on CartPole-v1; 1 iteration of 400 steps."""

from pathlib import Path
from typing import Any

import numpy as np

import trainkit as tk


class EnvRenderCallback(tk.Callback):
    """Log videos of the best and the worst episode of each round of sampling."""

    episodes = "training"

    def __init__(self) -> None:
        self.best_episode_and_return: tuple[Any, float] = (None, float("-inf"))
        self.worst_episode_and_return: tuple[Any, float] = (None, float("inf"))

    def on_episode_step(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
        assert trainer.train_collector is not None
        image = trainer.train_collector.envs.render(np.array([episode.env_id]))[0]
        episode.user_data.setdefault("render_images", []).append(image[::8, ::8])

    def on_episode_end(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
        video = np.stack(episode.user_data["render_images"])
        if episode.total_reward > self.best_episode_and_return[1]:
            self.best_episode_and_return = (video, episode.total_reward)
        if episode.total_reward < self.worst_episode_and_return[1]:
            self.worst_episode_and_return = (video, episode.total_reward)

    def on_collect_end(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None:
        if self.best_episode_and_return[0] is not None:
            trainer.log_video("episode_video_best", self.best_episode_and_return[0])
            trainer.log_video("episode_video_worst", self.worst_episode_and_return[0])
        self.__init__()  # type: ignore[misc]  # as the original does: the next round starts afresh


def main(folder: Path) -> tk.trainer.RunInfo:
    config = tk.presets.ppo.config(
        "CartPole-v1",
        env_options={"env_kwargs": {"render_mode": "rgb_array"}},
        callbacks=[EnvRenderCallback],
        lam=0.95,
        target_kl=None,
        clip_ratio=0.1,
        entropy_weight=0.01,
        repeat_per_collect=10,
        lr=0.00015,
        max_grad_norm=100.0,
        n_envs=2,
        max_epoch=1,
        step_per_epoch=400,
        step_per_collect=200,
        episode_per_test=2,
        seed=0,
        logger=folder / "ppo",
    )
    trainer = config.build()
    return trainer.run()
