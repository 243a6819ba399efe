"""What printing an object of a run shows."""

import re
from typing import Any

import numpy as np

import trainkit as tk


def trained() -> Any:
    settings: dict[str, Any] = {"seed": 1, "max_epoch": 1, "step_per_epoch": 200, "learning_starts": 50, "zoo": False}
    trainer = tk.presets.rainbow("CartPole-v1", verbose=False, evaluation=None, hidden=(4,), **settings)
    return trainer, next(trainer)


def test_a_batch_is_shown_by_the_shapes_of_its_arrays() -> None:
    trainer, _ = trained()
    batch = trainer.buffer.sample(64, horizon=trainer.policy.horizon)
    shown = repr(batch)
    assert shown.startswith("TransitionBatch(obs float32 [64, 4], action int64 [64], reward float32 [64], discount ")
    assert len(shown) < 300
    assert "\n" not in shown


def test_a_part_is_shown_by_its_arguments() -> None:
    assert repr(tk.EpsilonGreedy(0.1)) == "EpsilonGreedy(epsilon=Constant(value=0.1))"
    assert repr(tk.DoubleBackup()) == "DoubleBackup()"
    trainer, _ = trained()
    assert " object at 0x" not in f"{trainer.policy.exploration} {trainer.policy.backup} {trainer.policy.horizon}"


def test_shares_of_time_are_percentages_and_durations_have_their_unit() -> None:
    trainer, (_, stats, info) = trained()
    time = next(line for line in str(stats).splitlines() if line.startswith("time"))
    assert " per second: collect " in time
    assert time.count("%") >= 4
    assert np.isclose(stats.time.collect + stats.time.update + stats.time.evaluate + stats.time.other, 1.0)
    (line,) = [line for line in str(info).splitlines() if line.startswith("time")]
    assert "%" not in line
    assert line.count(" s") == 5
    trainer.close()


def test_numbers_are_printed_with_six_significant_digits_and_kept_exactly() -> None:
    settings: dict[str, Any] = {"seed": 1, "max_epoch": 3, "step_per_epoch": 300, "learning_starts": 100, "lr": 1e-3}
    with tk.presets.dqn("CartPole-v1", zoo=False, verbose=False, evaluation=None, **settings) as trainer:
        *_, result = trainer
    lr = result.stats["update/lr"]
    assert lr != 1e-3  # a mean over updates
    assert lr == result.stats.update["lr"] == trainer.history[-1]["update/lr"]
    for shown in (result, result.stats, result.info, result.stats.update, trainer.history[-1], trainer.history):
        digits = re.findall(r"\d*\.\d+", str(shown))
        assert [number for number in digits if len(number.replace(".", "").lstrip("0")) > 6] == [], shown
    assert "'lr': 0.001," in str(result.stats.update)
    assert "'size': 1024.0" in str(result.stats.buffer)
