"""The run that the golden checkpoint is of."""

from pathlib import Path
from typing import Any

import numpy as np

import trainkit as tk
from trainkit.core.checkpoint import FORMAT

FOLDER = Path(__file__).parent / f"format{FORMAT}"
OBS = np.linspace(-1.0, 1.0, 20, dtype=np.float32).reshape(5, 4)


def make(**options: Any) -> tk.OffpolicyTrainer[Any]:
    """Return a trainer of a small prioritized DQN."""
    envs = tk.make_envs("CartPole-v1", 2, seed=1)
    policy = tk.DQNPolicy.for_envs(envs, hidden=(4,), seed=1, device="cpu", engine="torch")
    collector = tk.Collector(policy, envs, tk.PrioritizedReplayBuffer(32))
    how: dict[str, Any] = {"max_epoch": 2, "step_per_epoch": 40, "batch_size": 8, "seed": 5, "verbose": False}
    return tk.OffpolicyTrainer(policy, collector, **how, **options)


def contents(trainer: tk.OffpolicyTrainer[Any]) -> dict[str, Any]:
    """Return what a trainer holds, in plain values."""
    rows = trainer.buffer.sample(None, horizon=tk.Horizon())
    return {
        "epoch": trainer.epoch,
        "env_step": trainer.env_step,
        "gradient_step": trainer.gradient_step,
        "best_score": trainer.info.best_score,
        "n_episode": trainer.train_collector.n_episode,
        "obs": rows.obs.tolist(),
        "action": rows.action.tolist(),
        "reward": rows.reward.tolist(),
        "discount": rows.discount.tolist(),
        "weights": {name: weight.tolist() for name, weight in trainer.policy.get_weights().items()},
        "actions": trainer.policy.act(OBS).action.tolist(),
    }
