"""Python's `logging` of a run: the same events with and without printed lines, and the lines that are not printed."""

import logging
import re
from typing import Any

import pytest

import trainkit as tk


def logged(caplog: Any, *, verbose: bool) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="trainkit"):
        tk.presets.dqn(
            "CartPole-v1", seed=1, max_epoch=2, step_per_epoch=40, hidden=(4,), evaluation=None, verbose=verbose
        ).run()
    return [record.getMessage() for record in caplog.records]


def test_epochs_are_logged_where_they_are_not_printed(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = logged(caplog, verbose=True)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch ")]
    quiet = logged(caplog, verbose=False)
    assert capsys.readouterr().out == ""
    epochs = [line for line in quiet if line.startswith("epoch ")]
    shown, expected = ([re.sub(r"[\d,]+ steps/s", "", line) for line in each] for each in (epochs, lines))
    assert len(expected) == 2
    assert shown == expected
    assert [line for line in quiet if line not in epochs] == printed
