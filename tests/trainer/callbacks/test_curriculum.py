"""Tasks that reach environments at their next reset."""

from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import pytest

import trainkit as tk
from tests.trainer.toys import Walk, make_trainer


class Slope(Walk):
    """A walk whose reset is told how far it is."""

    levels: ClassVar[list[Any]] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.levels.append(options)
        return super().reset(seed=seed, options=options)


def test_a_task_reaches_each_environment_at_its_next_reset(tmp_path: Path) -> None:
    Slope.levels.clear()
    curriculum = tk.callbacks.Curriculum(lambda trainer: {"level": trainer.epoch, "name": "slope"})
    trainer = make_trainer(env=Slope, callbacks=[curriculum], max_epoch=3, step_per_epoch=40)
    first = next(trainer)
    assert set(map(str, Slope.levels)) == {"{'level': 0, 'name': 'slope'}"}
    assert first.stats["custom/task/level"] == 0
    n_resets = len(Slope.levels)
    second = next(trainer)
    assert set(map(str, Slope.levels[n_resets:])) == {"{'level': 1, 'name': 'slope'}"}
    assert second.stats["custom/task/level"] == 1
    trainer.save(tmp_path)

    Slope.levels.clear()
    again = tk.callbacks.Curriculum(lambda trainer: None)  # which has nothing to say
    resumed = make_trainer(env=Slope, callbacks=[again], max_epoch=3, step_per_epoch=40, resume_from=tmp_path)
    assert {str(options) for options in Slope.levels} == {"{'level': 1, 'name': 'slope'}"}  # played again
    Slope.levels.clear()
    next(resumed)
    assert again.task == {"level": 2, "name": "slope"}
    assert {str(options) for options in Slope.levels} == {"{'level': 2, 'name': 'slope'}"}


def test_evaluations_keep_their_own_task() -> None:
    Slope.levels.clear()
    make_trainer(
        env=Slope, test=True, max_epoch=1, callbacks=[tk.callbacks.Curriculum(lambda trainer: {"level": 5})]
    ).run()
    assert None in Slope.levels


def test_a_task_that_cannot_be_told_is_refused() -> None:
    with pytest.raises(tk.ConfigError, match=r"Curriculum.fn must return options for reset, or None, got 3"):
        next(make_trainer(callbacks=[tk.callbacks.Curriculum(lambda trainer: 3)]))  # type: ignore[arg-type, return-value]  # refused
    venv = gym.make_vec("CartPole-v1", 2, "sync")
    envs = tk.make_envs(venv)
    policy = tk.DQNPolicy.for_envs(envs, hidden=(8,), device="cpu")
    with pytest.raises(tk.ConfigError, match="Curriculum cannot reach the environments of CartPole-v1, which reset"):
        tk.OffpolicyTrainer(
            policy,
            tk.Collector(policy, envs, tk.ReplayBuffer(10)),
            max_epoch=1,
            step_per_epoch=4,
            batch_size=2,
            callbacks=[tk.callbacks.Curriculum(lambda trainer: None)],
        )
