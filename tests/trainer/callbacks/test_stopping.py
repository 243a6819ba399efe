"""Runs that end at a return, a step or a time."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import trainkit as tk
from tests.trainer.runs import make_run
from tests.trainer.toys import RAINBOW, make_trainer


def test_a_run_stops_at_a_step_in_the_middle_of_an_epoch() -> None:
    trainer = make_trainer(callbacks=[tk.callbacks.StopAt(env_step=30)], step_per_collect=4)
    info = trainer.run()
    assert (info.epoch, info.env_step, info.stop_reason, info.gradient_step) == (
        2,
        32,
        "max_env_step",
        16,
    )  # half of all steps


def test_a_run_stops_at_a_return_that_a_second_look_confirms() -> None:
    scores = iter([1.0, 5.0, 0.0, 6.0, 7.0])  # fails, passes, is not confirmed, passes, is confirmed
    trainer = make_trainer(test=True, max_epoch=9, step_per_epoch=2, callbacks=[tk.callbacks.StopAt(return_mean=5.0)])
    evaluation = trainer.evaluation_schedule.evaluation
    assert evaluation is not None
    run = evaluation.run

    def received(*arguments: Any, **options: Any) -> tk.CollectStats:
        stats = run(*arguments, **options)
        return dataclasses.replace(stats, returns=dataclasses.replace(stats.returns, mean=next(scores)))

    evaluation.run = received  # type: ignore[method-assign]  # as if it had played so
    info = trainer.run()
    assert (info.epoch, info.stop_reason) == (3, "return_mean")
    assert next(scores, None) is None


def test_a_limit_that_a_resumed_run_has_passed_leaves_nothing_to_train(tmp_path: Path) -> None:
    trainer = make_trainer()
    next(trainer)
    trainer.save(tmp_path)
    resumed = make_trainer(resume_from=tmp_path, callbacks=[tk.callbacks.StopAt(env_step=20)])
    assert list(resumed) == []
    assert (resumed.info.env_step, resumed.stop_reason) == (24, "max_env_step")


def test_limits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(tk.ConfigError) as caught:
        tk.callbacks.StopAt()
    assert str(caught.value) == "StopAt needs return_mean, train_return_mean, env_step or seconds"
    with pytest.raises(tk.ConfigError, match=r"StopAt.env_step must be a whole number >= 1, got 0"):
        tk.callbacks.StopAt(env_step=0)
    with pytest.raises(
        tk.ConfigError,
        match=r"StopAt.return_mean needs evaluations: give a test_collector",
    ):
        make_trainer(callbacks=[tk.callbacks.StopAt(return_mean=1.0)])


# ---- by training returns ----


def test_training_returns_alone_stop_a_run_once_the_window_is_full() -> None:
    returns: list[float] = []

    def note(trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
        returns.append(episode.total_reward)

    stop = tk.callbacks.StopAt(train_return_mean=-0.5, train_episodes=4)
    trainer = make_trainer(policy=RAINBOW, callbacks=[stop, tk.on(episode_end=note)], max_epoch=20, step_per_collect=2)
    assert trainer.run().stop_reason == "train_return_mean"
    assert trainer.test_collector is None
    means = [sum(returns[n - 4 : n]) / 4 for n in range(4, len(returns) + 1)]
    assert means[-1] >= -0.5 or means[-2] >= -0.5  # two environments may end an episode in one step
    assert max(means[:-2], default=-1.0) < -0.5


def test_a_mean_that_is_reached_within_a_collect_stops_a_run_though_it_falls_again() -> None:
    stop = tk.callbacks.StopAt(train_return_mean=0.9, train_episodes=2)
    reasons: list[str] = []
    trainer: Any = SimpleNamespace(clock=0, stop=reasons.append, seconds=0.0)
    stop.on_collect_end(trainer, SimpleNamespace(episode_returns=[1.0, 0.0, 0.0, 1.0]))  # type: ignore[arg-type]
    assert reasons == []
    stop.on_collect_end(trainer, SimpleNamespace(episode_returns=[1.0, 0.0]))  # type: ignore[arg-type]
    assert reasons == ["train_return_mean"]


def test_the_window_of_training_returns_outlives_a_resume(tmp_path: Path) -> None:
    def make(**options: Any) -> Any:
        stop = tk.callbacks.StopAt(train_return_mean=0.5, train_episodes=6)
        return make_trainer(callbacks=[stop], max_epoch=30, max_env_step=10_000, **options)

    straight = make(checkpoint=tk.Checkpoint(tmp_path, keep_last=50))
    info = straight.run()
    assert info.stop_reason == "train_return_mean"
    assert info.epoch > 1
    resumed = make(resume_from=tmp_path / "save-000001").run()
    assert (resumed.env_step, resumed.stop_reason) == (info.env_step, info.stop_reason)


def test_training_returns_are_not_waited_for_where_nothing_is_collected() -> None:
    with pytest.raises(tk.ConfigError, match=r"StopAt.train_return_mean needs training episodes"):
        make_run("cql", callbacks=[tk.callbacks.StopAt(train_return_mean=1.0)])
    with pytest.raises(tk.ConfigError, match=r"StopAt.train_episodes must be a whole number >= 1, got 0"):
        tk.callbacks.StopAt(train_return_mean=1.0, train_episodes=0)


# ---- epochs by time ----


class Clock:
    """A clock that a test moves on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("time.perf_counter", lambda: self.now)

    def tick(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None:
        self.now += 1.0


def test_an_epoch_ends_by_time_and_the_next_has_all_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    def slow_at_first(trainer: tk.Trainer, stats: tk.CollectStats) -> None:
        clock.now += 1.0 if trainer.epoch == 1 else 0.01

    trainer = make_trainer(
        max_epoch=3, step_per_epoch=24, max_epoch_seconds=4.5, callbacks=tk.on(collect_end=slow_at_first)
    )
    steps = [result.info.env_step for result in trainer]
    assert steps == [10, 34, 58]  # five collects of two steps, then whole epochs
    assert trainer.stop_reason == "max_epoch"


def test_an_epoch_by_time_has_a_step_at_least_and_is_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    trainer = make_trainer(test=True, max_epoch=2, max_epoch_seconds=1e-9, callbacks=tk.on(collect_end=clock.tick))
    results = list(trainer)
    assert [result.info.env_step for result in results] == [2, 4]
    assert all(result.stats["test/returns/mean"] is not None for result in results)


def test_the_time_of_an_epoch_continues_after_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    def tick(trainer: tk.Trainer, stats: tk.CollectStats) -> None:
        clock.tick(trainer, stats)
        if trainer.env_step == 6:
            trainer.save(tmp_path)

    one: dict[str, Any] = {"max_epoch": 2, "max_epoch_seconds": 4.5, "callbacks": tk.on(collect_end=tick)}
    straight = [result.info.env_step for result in make_trainer(**one)]
    resumed = [result.info.env_step for result in make_trainer(resume_from=tmp_path, **one)]
    assert straight == resumed == [10, 20]


@pytest.mark.parametrize("limit", [0, -1.0, float("nan"), "1"])
def test_an_epochs_time_must_be_a_number_above_0(limit: Any) -> None:
    with pytest.raises(tk.ConfigError, match="max_epoch_seconds"):
        make_trainer(max_epoch_seconds=limit)
