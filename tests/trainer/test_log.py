"""Numbers of one's own: logged from anywhere, reduced over the report and over the epoch, shown as custom/name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import trainkit as tk
from tests.trainer.toys import make_trainer, untimed


class Numbers:
    """A logger that keeps what it receives."""

    folder = None

    def __init__(self) -> None:
        self.received: list[tuple[int, dict[str, float]]] = []

    def write(self, step: int, numbers: Any) -> None:
        self.received.append((step, {tag: x for tag, x in numbers.items() if tag.startswith("custom/")}))

    def describe(self, settings: Any) -> None: ...

    def close(self) -> None: ...


class Spreads(Numbers):
    """A logger that keeps arrays, too."""

    def __init__(self) -> None:
        super().__init__()
        self.spreads: list[tuple[int, list[float]]] = []

    def write_histograms(self, step: int, spreads: Any) -> None:
        self.spreads += [(step, spread.tolist()) for spread in spreads.values()]


class Report(tk.Callback):
    """Log the environment step after every collect, in every way there is."""

    def on_collect_end(self, trainer: Any, stats: tk.CollectStats) -> None:
        for reduce in ("mean", "sum", "min", "max", "last"):
            trainer.log(f"at/{reduce}", trainer.env_step, reduce)


def test_values_are_reduced_over_the_epoch_and_over_each_report() -> None:
    numbers = Numbers()
    trainer = make_trainer(callbacks=[Report()], logger=numbers, log_every=12, step_per_epoch=24, max_epoch=1)
    (result,) = trainer
    steps = np.arange(2, 26, 2)  # two environments
    expected = {"mean": steps.mean(), "sum": steps.sum(), "min": 2, "max": 24, "last": 24}
    assert {name: result.stats[f"custom/at/{name}"] for name in expected} == expected
    assert result.stats["custom/nothing"] is None
    assert [step for step, _ in numbers.received] == [12, 24]
    first, second = (received for _, received in numbers.received)
    assert (first["custom/at/mean"], second["custom/at/mean"]) == (7.0, 19.0)
    assert trainer.history["custom/at/max"] == [24]


class AtEnd(tk.Callback):
    """Log the epoch's number at its end, in every way there is, and its double."""

    def on_epoch_end(self, trainer: Any, result: tk.trainer.EpochResult) -> None:
        for reduce in ("mean", "sum", "min", "max", "last"):
            trainer.log(f"end/{reduce}", result.epoch, reduce)
            trainer.log(f"end/{reduce}", 2 * result.epoch, reduce)
        trainer.log("end/spread", [result.epoch] * result.epoch, "histogram")


AT_END = [
    {f"custom/end/{name}": x for name, x in zip(("mean", "sum", "min", "max", "last"), numbers, strict=True)}
    for numbers in ((1.5, 3, 1, 2, 2), (3, 6, 2, 4, 4), (4.5, 9, 3, 6, 6))
]


def test_what_on_epoch_end_logs_belongs_to_that_epoch_everywhere_the_last_one_too(tmp_path: Path) -> None:
    numbers = Spreads()
    loggers = [numbers, tk.JsonlLogger(tmp_path / "lines"), tk.loggers.TensorboardLogger(tmp_path / "events")]
    trainer = make_trainer(callbacks=[AtEnd()], logger=loggers)
    results = list(trainer)
    for epoch, expected in enumerate(AT_END):
        assert {f"custom/{name}": x for name, x in results[epoch].stats.custom.items()} == expected
        assert {tag: x for tag, x in trainer.history[epoch].items() if tag.startswith("custom/")} == expected
    assert numbers.received == [(24, AT_END[0]), (48, AT_END[1]), (72, AT_END[2])]
    assert numbers.spreads == [(24, [1]), (48, [2, 2]), (72, [3, 3, 3])]
    lines = [json.loads(line) for line in (tmp_path / "lines" / "numbers.jsonl").read_text().splitlines()[1:]]
    assert [line["custom/end/sum"] for line in lines] == [3, 6, 9]
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("custom/end/sum")] == [(24, 3), (48, 6), (72, 9)]


def test_values_of_the_epoch_and_of_its_end_are_reduced_together() -> None:
    class Both(Report):
        def on_epoch_end(self, trainer: Any, result: tk.trainer.EpochResult) -> None:
            trainer.log("at/sum", 1000, "sum")

    numbers = Numbers()
    trainer = make_trainer(callbacks=[Both()], logger=numbers, log_every=12, step_per_epoch=24, max_epoch=1)
    (result,) = trainer
    steps = np.arange(2, 26, 2)
    assert result.stats["custom/at/sum"] == steps.sum() + 1000
    assert [received["custom/at/sum"] for _, received in numbers.received] == [steps[:6].sum(), steps[6:].sum() + 1000]


def test_a_later_callback_sees_what_an_earlier_one_logged_at_the_end() -> None:
    seen: list[Any] = []

    class Second(tk.Callback):
        def on_epoch_end(self, trainer: Any, result: tk.trainer.EpochResult) -> None:
            seen.append((result.stats["custom/end/sum"], trainer.history[-1]["epoch"]))

    make_trainer(callbacks=[AtEnd(), Second()]).run()
    assert seen == [(3, 1), (6, 2), (9, 3)]


def test_a_stop_at_the_end_of_an_epoch_is_in_its_info() -> None:
    class Enough(tk.Callback):
        def on_epoch_end(self, trainer: Any, result: tk.trainer.EpochResult) -> None:
            trainer.stop("enough")

    (result,) = make_trainer(callbacks=[Enough()])
    assert result.info.stop_reason == "enough"


def test_after_an_exception_at_an_epochs_end_its_report_is_written_once() -> None:
    class Raises(tk.Callback):
        def on_epoch_end(self, trainer: Any, result: tk.trainer.EpochResult) -> None:
            trainer.log("before", result.epoch)
            if result.epoch == 2:
                raise RuntimeError("mine")

    numbers = Numbers()
    trainer = make_trainer(callbacks=[Raises(), AtEnd()], logger=numbers)
    next(trainer)
    with pytest.raises(RuntimeError, match="mine"):
        next(trainer)
    assert [step for step, _ in numbers.received] == [24]
    second, third = trainer
    assert (second.epoch, second.stats["custom/before"], second.stats["custom/end/sum"]) == (2, 2, 6)
    assert numbers.received == [(24 * n, AT_END[n - 1] | {"custom/before": n}) for n in (1, 2, 3)]
    assert third.stats["custom/end/sum"] == 9
    assert trainer.history["custom/end/sum"] == [3, 6, 9]


def test_saving_at_an_epochs_end_writes_its_report_first_and_resumes_with_the_next(tmp_path: Path) -> None:
    class Save(tk.Callback):
        def on_epoch_end(self, trainer: Any, result: tk.trainer.EpochResult) -> None:
            trainer.save(tmp_path / str(result.epoch))
            trainer.log("after", result.epoch, "sum")

    numbers, rest = Numbers(), Numbers()
    straight = make_trainer(callbacks=[AtEnd(), Save()], logger=numbers)
    expected = [result.stats.custom.get("after") for result in straight]
    assert expected == [None, 1, 2]  # what is logged behind a save belongs to the next epoch
    assert len(numbers.received) == 3
    resumed = make_trainer(callbacks=[AtEnd()], logger=rest, resume_from=tmp_path / "1")
    assert [result.epoch for result in resumed] == [2, 3]
    assert resumed.history["custom/end/sum"] == [3, 6, 9]
    assert [received["custom/end/sum"] for _, received in rest.received] == [6, 9]


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
    plain, telling = make_trainer(), make_trainer(callbacks=[Report()])
    for one, other in zip(plain, telling, strict=True):
        assert untimed(one) == {tag: x for tag, x in untimed(other).items() if not tag.startswith("custom/")}


def test_what_was_logged_between_two_epochs_outlives_a_resume(tmp_path: Path) -> None:
    numbers = Spreads()
    trainer = make_trainer(logger=numbers, max_epoch=2)
    next(trainer)
    trainer.log("between", 1.0, "sum")
    trainer.log("spread", [7.0], "histogram")
    trainer.save(tmp_path)
    expected = next(trainer)
    rest = Spreads()
    (result,) = make_trainer(logger=rest, max_epoch=2, resume_from=tmp_path)
    assert result.stats.custom == expected.stats.custom == {"between": 1.0}
    assert rest.received == numbers.received[1:] == [(48, {"custom/between": 1.0})]
    assert rest.spreads == numbers.spreads == [(48, [7.0])]


def test_what_was_logged_in_the_middle_of_an_epoch_outlives_a_resume(tmp_path: Path) -> None:
    class Save(Report):
        def on_collect_end(self, trainer: Any, stats: tk.CollectStats) -> None:
            super().on_collect_end(trainer, stats)
            if trainer.env_step == 8:
                trainer.save(tmp_path)

    one: dict[str, Any] = {"log_every": 6, "step_per_epoch": 12, "max_epoch": 1}
    straight, rest = Numbers(), Numbers()
    (expected,) = make_trainer(callbacks=[Save()], logger=straight, **one)
    (result,) = make_trainer(callbacks=[Report()], logger=rest, resume_from=tmp_path, **one)
    assert result.stats.custom == expected.stats.custom
    assert rest.received[-1] == straight.received[-1]


def test_a_name_is_reduced_in_the_same_way_after_a_resume_and_in_any_after_a_reset(tmp_path: Path) -> None:
    trainer = make_trainer()
    trainer.log("a", 1.0, "sum")
    resumed = make_trainer(resume_from=trainer.save(tmp_path))
    with pytest.raises(tk.ConfigError, match="reduces 'a' by 'sum', got 'mean'"):
        resumed.log("a", 1.0)
    resumed.reset()
    resumed.log("a", 2.0)
    assert next(resumed).stats["custom/a"] == 2.0


def test_a_window_spans_reports_and_a_resume(tmp_path: Path) -> None:
    def run(**options: Any) -> tk.OffpolicyTrainer:
        return make_trainer(max_epoch=3, **options)

    class Epochs(tk.Callback):
        def on_epoch_end(self, trainer: Any, result: Any) -> None:
            for reduce in ("mean", "min", "last"):
                trainer.log(f"last/{reduce}", trainer.epoch, reduce, window=2)

    trainer = run(callbacks=[Epochs()])
    first, second = next(trainer), next(trainer)
    assert first.stats.custom == {"last/mean": 1.0, "last/min": 1.0, "last/last": 1.0}
    assert second.stats.custom == {"last/mean": 1.5, "last/min": 1.0, "last/last": 2.0}
    (third,) = run(callbacks=[Epochs()], resume_from=trainer.save(tmp_path))
    assert third.stats.custom == next(trainer).stats.custom == {"last/mean": 2.5, "last/min": 2.0, "last/last": 3.0}
    trainer.reset()
    trainer.log("last/mean", 7.0, window=3)
    assert next(trainer).stats.custom["last/min"] == 1.0
    with pytest.raises(tk.ConfigError, match=r"Trainer.log.window must be a whole number >= 1, got 0"):
        trainer.log("last/mean", 1.0, window=0)
    with pytest.raises(tk.ConfigError, match=r".window has no effect on a histogram: leave it out"):
        trainer.log("spread", [1.0], "histogram", window=2)


def test_values_of_the_last_event_are_written_at_the_end_of_the_run(tmp_path: Path) -> None:
    numbers = Spreads()

    def log(trainer: tk.Trainer) -> None:
        trainer.log("last", 1.0)
        trainer.log("last", trainer.epoch)
        trainer.log("spread", [1.0, 2.0], "histogram")

    reported = tk.on(epoch_reported=lambda trainer, result: trainer.log("reported", result.epoch), train_end=log)
    trainer = make_trainer(callbacks=[reported], logger=numbers, step_per_epoch=24, max_epoch=2)
    trainer.run()
    assert numbers.received[-1] == (48, {"custom/last": 1.5})
    assert numbers.spreads == [(48, [1.0, 2.0])]
    assert trainer.history["custom/last"] == [None, 1.5]
    trainer.run(epochs=1)
    assert trainer.history["custom/last"] == [None, 1.5, 2.0]
    assert trainer.history["custom/reported"] == [None, 1.0, 2.0]
