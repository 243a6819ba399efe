"""Tasks that reach environments at their next reset."""

from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import pytest

import trainkit as tk
from tests.helpers.tasks import Hill, check_that_each_environment_has_its_task
from tests.trainer.toys import Walk, everything, make_trainer


class Ramp(Walk):
    """A walk whose reset is told how far it is."""

    levels: ClassVar[list[Any]] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.levels.append(options)
        return super().reset(seed=seed, options=options)


def test_a_task_reaches_each_environment_at_its_next_reset(tmp_path: Path) -> None:
    Ramp.levels.clear()
    curriculum = tk.callbacks.Curriculum(lambda trainer: {"level": trainer.epoch, "name": "hill"})
    trainer = make_trainer(env=Ramp, callbacks=[curriculum], max_epoch=3, step_per_epoch=40)
    first = next(trainer)
    assert set(map(str, Ramp.levels)) == {"{'level': 0, 'name': 'hill'}"}
    assert first.stats["custom/task/level"] == 0
    n_resets = len(Ramp.levels)
    second = next(trainer)
    assert set(map(str, Ramp.levels[n_resets:])) == {"{'level': 1, 'name': 'hill'}"}
    assert second.stats["custom/task/level"] == 1
    trainer.save(tmp_path)

    Ramp.levels.clear()
    again = tk.callbacks.Curriculum(lambda trainer: None)  # which has nothing to say
    resumed = make_trainer(env=Ramp, callbacks=[again], max_epoch=3, step_per_epoch=40, resume_from=tmp_path)
    assert {str(options) for options in Ramp.levels} == {"{'level': 1, 'name': 'hill'}"}  # played again
    Ramp.levels.clear()
    next(resumed)
    assert again.task == {"level": 2, "name": "hill"}
    assert {str(options) for options in Ramp.levels} == {"{'level': 2, 'name': 'hill'}"}


def lengths(trainer: tk.Trainer) -> list[dict[str, Any] | None]:
    """Return one task for each of three environments: longer ones in later epochs, and one without options."""
    return [{"length": 3 + trainer.epoch}, None, {"length": 8 + trainer.epoch}]


def test_each_environment_has_its_own_task() -> None:
    curriculum = tk.callbacks.Curriculum(lengths)
    trainer = make_trainer(env=Hill, n_envs=3, callbacks=[curriculum], max_epoch=2, step_per_epoch=90)
    assert [stats["custom/task/length"] for _, stats, _ in trainer] == [5.5, 6.5]
    assert curriculum.task == [{"length": 5}, None, {"length": 10}]
    assert trainer.train_collector is not None
    trainer.train_collector.reset()
    stats = trainer.train_collector.collect(n_episode=9)
    assert sorted(stats.episode_lengths) == [4, 4, 4, 5, 5, 5, 10, 10, 10]


def test_a_run_whose_episodes_began_with_different_tasks_resumes_to_the_bit(tmp_path: Path) -> None:
    def make(**options: Any) -> tk.OffpolicyTrainer:
        tasks = [tk.callbacks.Curriculum(lengths)]
        return make_trainer(env=Hill, n_envs=3, callbacks=tasks, max_epoch=3, step_per_epoch=40, **options)

    whole = make()
    next(whole)
    whole.save(tmp_path)
    resumed = make(resume_from=tmp_path)
    for trainer in (whole, resumed):
        trainer.run()
    assert {path: repr(leaf) for path, leaf in everything(whole).items()} == {
        path: repr(leaf) for path, leaf in everything(resumed).items()
    }


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_tasks_reach_the_environments_of_every_backend(backend: Any) -> None:
    check_that_each_environment_has_its_task(backend)


def test_evaluations_keep_their_own_task() -> None:
    Ramp.levels.clear()
    make_trainer(
        env=Ramp, test=True, max_epoch=1, callbacks=[tk.callbacks.Curriculum(lambda trainer: {"level": 5})]
    ).run()
    assert None in Ramp.levels


def test_a_task_that_cannot_be_set_is_rejected() -> None:
    with pytest.raises(
        tk.ConfigError, match=r"Curriculum.fn must return options for reset, a list of them, or None, got 3"
    ):
        next(make_trainer(callbacks=[tk.callbacks.Curriculum(lambda trainer: 3)]))  # type: ignore[arg-type, return-value]  # refused
    with pytest.raises(
        tk.ConfigError, match=r"Envs.options of <lambda> must be a dict, None, or a list of 2, got \[None\]"
    ):
        next(make_trainer(callbacks=[tk.callbacks.Curriculum(lambda trainer: [None])]))
    venv = gym.make_vec("CartPole-v1", 2, "sync", vector_kwargs={"autoreset_mode": gym.vector.AutoresetMode.DISABLED})
    with pytest.raises(tk.ConfigError, match=r"Envs.options of CartPole-v1 must be a dict for all, or None, got \["):
        tk.make_envs(venv).options = [{"low": 0.0}, None]
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
