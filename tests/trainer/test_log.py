"""Numbers of one's own: logged from anywhere, reduced over the report and over the epoch, shown as custom/name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trainkit as tk
from tests.trainer.toys import make_trainer, untimed


class Numbers:
    """A logger that keeps what it is told."""

    folder = None

    def __init__(self) -> None:
        self.told: list[tuple[int, dict[str, float]]] = []

    def write(self, step: int, numbers: Any) -> None:
        self.told.append((step, {tag: x for tag, x in numbers.items() if tag.startswith("custom/")}))

    def describe(self, settings: Any) -> None: ...

    def close(self) -> None: ...


class Tell(tk.Callback):
    """Log the environment step after every collect, in every way there is."""

    def on_collect_end(self, trainer: Any, stats: tk.CollectStats) -> None:
        for reduce in ("mean", "sum", "min", "max", "last"):
            trainer.log(f"at/{reduce}", trainer.env_step, reduce)


def test_values_are_reduced_over_the_epoch_and_over_each_report() -> None:
    numbers = Numbers()
    trainer = make_trainer(callbacks=[Tell()], logger=numbers, log_every=12, step_per_epoch=24, max_epoch=1)
    (result,) = trainer
    steps = np.arange(2, 26, 2)  # two environments
    expected = {"mean": steps.mean(), "sum": steps.sum(), "min": 2, "max": 24, "last": 24}
    assert {name: result.stats[f"custom/at/{name}"] for name in expected} == expected
    assert result.stats["custom/nothing"] is None
    assert [step for step, _ in numbers.told] == [12, 24]
    first, second = (told for _, told in numbers.told)
    assert (first["custom/at/mean"], second["custom/at/mean"]) == (7.0, 19.0)
    assert trainer.history["custom/at/max"] == [24]


def test_what_is_logged_after_the_epoch_was_told_is_told_with_the_next() -> None:
    class Late(tk.Callback):
        def on_epoch_end(self, trainer: Any, result: tk.EpochResult) -> None:
            trainer.log("epoch", result.epoch, "last")

    trainer = make_trainer(callbacks=[Late()])
    assert [result.stats["custom/epoch"] for result in trainer] == [None, 1, 2]


@pytest.mark.parametrize("value", [3, 3.0, np.float32(3), np.array(3), torch.tensor(3.0)])
def test_any_number_will_do(value: Any) -> None:
    trainer = make_trainer()
    trainer.log("three", value)
    assert next(trainer).stats["custom/three"] == 3.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", 1.0), "Trainer.log needs a name, got ''"),
        (("a", "1"), r"Trainer.log needs a number for 'a', got '1'"),
        (("a", np.ones(2)), "Trainer.log needs a number for 'a'"),
        (("a", None), "Trainer.log needs a number for 'a', got None"),
        (("a", 1.0, "median"), r"Trainer.log.reduce must be one of"),
    ],
)
def test_what_is_no_number_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(tk.ConfigError, match=message):
        make_trainer().log(*arguments)


def test_one_name_is_reduced_in_one_way() -> None:
    trainer = make_trainer()
    trainer.log("a", 1.0, "sum")
    with pytest.raises(tk.ConfigError, match="reduces 'a' by 'sum', got 'mean': log it under another name"):
        trainer.log("a", 1.0)


def test_logging_changes_nothing_else() -> None:
    plain, telling = make_trainer(), make_trainer(callbacks=[Tell()])
    for one, other in zip(plain, telling, strict=True):
        assert untimed(one) == {tag: x for tag, x in untimed(other).items() if not tag.startswith("custom/")}


class Late(tk.Callback):
    """Log after every epoch, in one way or in another, and say which numbers of it were told."""

    def __init__(self) -> None:
        self.told: list[dict[str, float]] = []

    def on_epoch_end(self, trainer: Any, result: tk.EpochResult) -> None:
        self.told.append(dict(result.stats.custom))
        for reduce in ("mean", "sum", "min", "max", "last"):
            trainer.log(f"late/{reduce}", result.epoch, reduce)
            trainer.log(f"late/{reduce}", 2 * result.epoch, reduce)
        trainer.log("late/spread", [result.epoch] * result.epoch, "histogram")


class Spreads(Numbers):
    """A logger that keeps arrays, too."""

    def __init__(self) -> None:
        super().__init__()
        self.spreads: list[tuple[int, list[float]]] = []

    def write_histograms(self, step: int, spreads: Any) -> None:
        self.spreads += [(step, spread.tolist()) for spread in spreads.values()]


def test_what_was_logged_after_an_epoch_outlives_a_resume(tmp_path: Path) -> None:
    straight, numbers = Late(), Spreads()
    make_trainer(callbacks=[straight], logger=numbers, checkpoint=tk.Checkpoint(tmp_path, keep_last=4)).run()
    told = [{"mean": 1.5 * n, "sum": 3 * n, "min": n, "max": 2 * n, "last": 2 * n} for n in (1, 2)]
    expected = [{f"late/{reduce}": number for reduce, number in one.items()} for one in told]
    assert straight.told == [{}, *expected]
    assert numbers.spreads == [(48, [1]), (72, [2, 2])]
    for epoch in (1, 2):
        late, rest = Late(), Spreads()
        make_trainer(callbacks=[late], logger=rest, resume_from=tmp_path / f"save-{epoch:06d}").run()
        assert late.told == straight.told[epoch:]
        assert [told for told in rest.told if told[0] > 24 * epoch] == numbers.told[epoch:]
        assert rest.spreads == numbers.spreads[epoch - 1 :]


def test_what_was_logged_in_the_middle_of_an_epoch_outlives_a_resume(tmp_path: Path) -> None:
    class Save(Tell):
        def on_collect_end(self, trainer: Any, stats: tk.CollectStats) -> None:
            super().on_collect_end(trainer, stats)
            if trainer.env_step == 8:
                trainer.save(tmp_path)

    one: dict[str, Any] = {"log_every": 6, "step_per_epoch": 12, "max_epoch": 1}
    straight, rest = Numbers(), Numbers()
    (expected,) = make_trainer(callbacks=[Save()], logger=straight, **one)
    (result,) = make_trainer(callbacks=[Tell()], logger=rest, resume_from=tmp_path, **one)
    assert result.stats.custom == expected.stats.custom
    assert rest.told[-1] == straight.told[-1]


def test_a_name_is_reduced_in_the_same_way_after_a_resume_and_in_any_after_a_reset(tmp_path: Path) -> None:
    trainer = make_trainer()
    trainer.log("a", 1.0, "sum")
    resumed = make_trainer(resume_from=trainer.save(tmp_path))
    with pytest.raises(tk.ConfigError, match="reduces 'a' by 'sum', got 'mean'"):
        resumed.log("a", 1.0)
    resumed.reset()
    resumed.log("a", 2.0)
    assert next(resumed).stats["custom/a"] == 2.0
