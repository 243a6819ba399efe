"""A recurrent run with everything that may disturb its states at once: bit-exact, wherever it is interrupted."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import trainkit as tk
from tests.trainer.toys import Walk, everything


class Blind(Walk):
    """A walk that shows where it is only at its start and in every third step, with an action that is illegal."""

    observation_space: Any = gym.spaces.Dict({
        "seen": gym.spaces.Box(-99, 99, (2,), np.float32),
        "action_mask": gym.spaces.MultiBinary(2),
    })  # fmt: skip

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action != self._illegal(), "an illegal action was taken"
        return super().step(action)

    def _illegal(self) -> int | None:
        return self._clock // 5 % 2 if self._clock % 5 == 4 else None

    def _obs(self) -> Any:
        mask = [int(action != self._illegal()) for action in range(2)]
        return {"seen": super()._obs() * (self._clock % 3 == 0), "action_mask": np.array(mask, np.int8)}


class SaveOnce(tk.Callback):
    """Save the run after a collect, and remember whether episodes were open."""

    def __init__(self, path: Path, env_step: int) -> None:
        self._path, self._env_step = path, env_step
        self.n_open = 0

    def on_collect_end(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None:
        if trainer.env_step >= self._env_step and not self.n_open:
            self.n_open = int((trainer.train_collector.policy_state != 0).any(axis=1).sum())
            trainer.save(self._path)


def made(backend: Any = "async", **options: Any) -> tk.OffpolicyTrainer[Any]:
    """Return an R2D2 with masks, priorities, ranges of n steps and a ring that wraps around, which overlaps."""
    envs = tk.make_envs([Blind] * 3, backend=backend, seed=1)
    policy = tk.DQNPolicy.for_envs(
        envs, hidden=(8,), recurrent="lstm", sequences=tk.Sequences(6, 3), double=True, dueling=True, n_step=(1, 3),
        value=tk.ExpectedValue("mse", rescale=1e-3), exploration=tk.EpsilonGreedy([(0, 1.0), (150, 0.1)]),
        target=tk.Target(30), seed=2,
    )  # fmt: skip
    own: dict[str, Any] = {
        "max_epoch": 2,
        "step_per_epoch": 90,
        "step_per_collect": 6,
        "update_per_step": 0.25,
        "batch_size": 4,
        "overlap": True,
        "refresh_priorities": "late",
        "verbose": False,
        "show_progress": False,
    }
    collector = tk.Collector(policy, envs, tk.PrioritizedReplayBuffer(80, beta=[(0, 0.4), (200, 1.0)], seed=3))
    return tk.OffpolicyTrainer(policy, collector, **own | {"seed": 1} | options)


def test_a_resumed_run_with_all_options_has_the_bits_of_an_uninterrupted_one(
    tmp_path: Path,
) -> None:
    with made() as whole:
        whole.run()
        expected = everything(whole)
    with made("sync") as other:
        other.run()
        assert everything(other) == expected
    for moment in np.random.default_rng(32).integers(12, 170, size=3).tolist():
        path = tmp_path / str(moment)
        saves = SaveOnce(path, moment)
        with made(callbacks=[saves]) as first:
            next(iter(first)) if moment < 90 else first.run()
        assert saves.n_open >= 2, "it was saved in the middle of episodes"
        with made(resume_from=path) as second:
            second.run()
            assert everything(second) == expected, moment
