"""Alarms: a number that means trouble is told once per run, and no sooner."""

import logging

import pytest

import trainkit as tk
from tests.trainer.toys import make_trainer


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_support_that_is_too_narrow_is_told_once_per_run(caplog: pytest.LogCaptureFixture) -> None:
    trainer = make_trainer(policy={"value": tk.CategoricalValue(5, -0.1, 0.1)}, log_every=10)
    trainer.run()
    (message,) = warnings(caplog)
    assert message.startswith("update/clipped_share is ")
    assert "% at step 10: that share of the value distribution's target lies beyond v_min..v_max" in message
    caplog.clear()
    trainer.reset()
    trainer.run()
    assert len(warnings(caplog)) == 1


def test_a_support_that_holds_all_returns_is_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    make_trainer(policy={"value": tk.CategoricalValue(51, -20.0, 20.0)}).run()
    assert warnings(caplog) == []


def test_other_values_have_nothing_to_clip(caplog: pytest.LogCaptureFixture) -> None:
    make_trainer(policy={"value": tk.ExpectedValue()}).run()
    assert warnings(caplog) == []
