"""Runs that end at a return, a step or a time."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import trainkit as tk
from tests.trainer.toys import make_trainer


def test_a_run_stops_at_a_step_in_the_middle_of_an_epoch() -> None:
    trainer = make_trainer(callbacks=[tk.StopAt(env_step=30)], step_per_collect=4)
    info = trainer.run()
    assert (info.epoch, info.env_step, info.stop_reason, info.gradient_step) == (
        2,
        32,
        "max_env_step",
        16,
    )  # half of all steps


def test_a_run_stops_at_a_return_that_a_second_look_confirms() -> None:
    scores = iter([1.0, 5.0, 0.0, 6.0, 7.0])  # fails, passes, is not confirmed, passes, is confirmed
    trainer = make_trainer(test=True, max_epoch=9, step_per_epoch=2, callbacks=[tk.StopAt(return_mean=5.0)])
    evaluation = trainer.judge.evaluation
    assert evaluation is not None
    run = evaluation.run

    def told(*arguments: Any, **options: Any) -> tk.CollectStats:
        stats = run(*arguments, **options)
        assert stats.returns is not None
        return dataclasses.replace(stats, returns=dataclasses.replace(stats.returns, mean=next(scores)))

    evaluation.run = told  # type: ignore[method-assign]  # as if it had played so
    info = trainer.run()
    assert (info.epoch, info.stop_reason) == (3, "return_mean")
    assert next(scores, None) is None


def test_a_limit_that_a_resumed_run_has_passed_leaves_nothing_to_train(tmp_path: Path) -> None:
    trainer = make_trainer()
    next(trainer)
    trainer.save(tmp_path)
    resumed = make_trainer(resume_from=tmp_path, callbacks=[tk.StopAt(env_step=20)])
    assert list(resumed) == []
    assert (resumed.info.env_step, resumed.stop_reason) == (24, "max_env_step")


def test_limits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(tk.ConfigError) as caught:
        tk.StopAt()
    assert str(caught.value) == "StopAt needs return_mean, env_step or seconds"
    with pytest.raises(tk.ConfigError, match=r"StopAt.env_step must be a whole number >= 1, got 0"):
        tk.StopAt(env_step=0)
    with pytest.raises(
        tk.ConfigError,
        match=r"StopAt.return_mean needs evaluations: give a test_collector",
    ):
        make_trainer(callbacks=[tk.StopAt(return_mean=1.0)])
