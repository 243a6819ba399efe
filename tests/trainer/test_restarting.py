"""A run that fails from outside is made again and ends as if nothing had been; what is its own fault goes through."""

import gc
import logging
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trainkit as tk
from tests.trainer.runs import RUNS, make_run
from tests.trainer.toys import Walk, everything, make_trainer, of_watchers


class Outside:
    """What environments need and now and then is not there: it raises at the steps named, counted over all attempts."""

    def __init__(self, *fails_at: int, error: Callable[[], BaseException] = lambda: ConnectionError("gone")) -> None:
        self.fails_at, self.error, self.n_steps = set(fails_at), error, 0

    def __call__(self) -> None:
        self.n_steps += 1
        if self.n_steps in self.fails_at:
            raise self.error()


def maker(folder: Path, made: list[Any] | None = None, **options: Any) -> Callable[[], tk.OffpolicyTrainer]:
    """Return a function that makes a trainer which continues by itself, saved every 10 steps."""

    def make() -> tk.OffpolicyTrainer:
        checkpoint = tk.Checkpoint(folder, every=10, unit="env_steps")
        trainer = make_trainer(checkpoint=checkpoint, resume_from="auto", **options)
        if made is not None:
            made.append(trainer)
        return trainer

    return make


def bits(trainer: tk.Trainer) -> dict[str, Any]:
    return {path: leaf for path, leaf in everything(trainer).items() if not of_watchers(path)}


def test_a_run_whose_environment_fails_ends_in_the_bits_of_one_that_never_failed(tmp_path: Path) -> None:
    straight = make_trainer()
    straight.run()
    made: list[Any] = []
    outside = Outside(7, 39, 66)  # before the first checkpoint, and twice after one
    info = tk.trainer.run_with_restart(maker(tmp_path, made, on_step=outside), delay_s=0)
    assert len(made) == 4
    assert (info.epoch, info.env_step, info.stop_reason) == (3, 72, "max_epoch")
    assert bits(made[-1]) == bits(straight)


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("name", RUNS)
def test_so_it_is_with_every_kind_of_learner(name: str, tmp_path: Path) -> None:
    class Fails(tk.Callback):
        """Stand for a device that is gone at the second epoch's end, once."""

        has_failed = False

        def on_epoch_end(self, trainer: tk.Trainer, result: tk.trainer.EpochResult) -> None:
            if trainer.epoch == 2 and not Fails.has_failed:
                Fails.has_failed = True
                raise tk.errors.DeviceError("the device is gone")

    straight = make_run(name)
    straight.run()
    made: list[Any] = []

    def make() -> tk.Trainer:
        made.append(make_run(name, callbacks=[Fails()], checkpoint=tmp_path, resume_from="auto"))
        return made[-1]  # type: ignore[no-any-return]

    tk.trainer.run_with_restart(make, delay_s=0)
    assert len(made) == 2
    assert bits(made[-1]) == bits(straight)


def test_one_failure_more_goes_through_with_a_note_of_all(tmp_path: Path) -> None:
    made: list[Any] = []
    outside = Outside(5, 9, 40)
    with pytest.raises(tk.errors.EnvError) as caught:
        tk.trainer.run_with_restart(maker(tmp_path, made, on_step=outside), max_failures=2, delay_s=0)
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert len(made) == 3
    (note,) = caught.value.__notes__
    first, *attempts = note.splitlines()
    assert first == "run_with_restart gave up: failure 3, max_failures=2"
    assert [line.split(": EnvError: ")[0] for line in attempts] == [
        "  1. epoch 1, step 4", "  2. epoch 1, step 2", "  3. epoch 2, step 28",
    ]  # fmt: skip


def test_no_failure_at_all_may_be_outlived(tmp_path: Path) -> None:
    made: list[Any] = []
    with pytest.raises(tk.errors.EnvError):
        tk.trainer.run_with_restart(maker(tmp_path, made, on_step=Outside(5)), max_failures=0, delay_s=0)
    assert len(made) == 1


@pytest.mark.parametrize(
    "error",
    [tk.errors.DivergedError("nan"), tk.ConfigError("lr"), KeyboardInterrupt(), RuntimeError("a bug"), SystemExit(3)],
)
def test_what_would_come_again_goes_through_at_once(error: BaseException, tmp_path: Path) -> None:
    class Raises(tk.Callback):
        def on_collect_end(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None:
            raise error

    made: list[Any] = []
    with pytest.raises(type(error)):
        tk.trainer.run_with_restart(maker(tmp_path, made, callbacks=[Raises()]), delay_s=0)
    assert len(made) == 1


def test_others_may_be_named(tmp_path: Path) -> None:
    made: list[Any] = []
    outside = Outside(5)

    class Raises(tk.Callback):
        def on_collect_end(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None:
            if len(made) == 1:
                raise LookupError("no licence")

    make = maker(tmp_path, made, callbacks=[Raises()], on_step=outside)
    with pytest.raises(tk.errors.EnvError):  # the second time
        tk.trainer.run_with_restart(make, errors=(LookupError,), delay_s=0)
    assert len(made) == 2


def test_what_cannot_be_made_once_goes_through_and_later_counts(tmp_path: Path) -> None:
    calls = 0

    def make(first: int) -> Callable[[], tk.Trainer]:
        def fails() -> tk.Trainer:
            nonlocal calls
            calls += 1
            if first <= calls < first + 2:
                raise ConnectionError("no simulator here")
            return maker(tmp_path, on_step=outside)()

        return fails

    outside = Outside(30)
    with pytest.raises(ConnectionError):
        tk.trainer.run_with_restart(make(1), delay_s=0)
    assert calls == 1
    calls = 0
    assert tk.trainer.run_with_restart(make(2), delay_s=0).epoch == 3
    assert calls == 4


def test_each_restart_is_logged_with_its_cause_after_twice_the_delay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fails(tk.Callback):
        def on_epoch_end(self, trainer: tk.Trainer, result: tk.trainer.EpochResult) -> None:
            if len(made) < 6:
                raise TimeoutError("no answer")

    slept: list[float] = []
    made: list[Any] = []
    monkeypatch.setattr("trainkit.trainer.restarting.time.sleep", slept.append)
    with caplog.at_level(logging.WARNING, logger="trainkit.trainer.restarting"):
        tk.trainer.run_with_restart(maker(tmp_path, made, callbacks=[Fails()]), max_failures=5, delay_s=4.0)
    assert slept == [4.0, 8.0, 16.0, 32.0, 60.0]
    received = [record.getMessage() for record in caplog.records if record.name == "trainkit.trainer.restarting"]
    assert received[0] == "epoch 1, step 24: TimeoutError: no answer; restarting in 4 s, failure 1 of 5"
    assert received[4].endswith("restarting in 60 s, failure 5 of 5")


def test_a_failed_run_closes_its_environments_and_frees_its_memory(tmp_path: Path) -> None:
    class Walks(Walk):
        n_closed = 0

        def close(self) -> None:
            Walks.n_closed += 1

    seen: list[tuple[bool, int]] = []
    former: list[weakref.ref[tk.Trainer]] = []

    def make() -> tk.Trainer:
        if former:
            seen.append((former[0]() is None, Walks.n_closed))
        trainer = maker(tmp_path, on_step=outside, env=Walks)()
        former.append(weakref.ref(trainer))
        return trainer

    outside = Outside(30)
    gc.disable()
    try:
        tk.trainer.run_with_restart(make, delay_s=0)
    finally:
        gc.enable()
    assert seen == [(True, 2)]


def test_a_run_that_has_ended_has_nothing_left_to_do(tmp_path: Path) -> None:
    made: list[Any] = []
    for _ in range(2):
        info = tk.trainer.run_with_restart(maker(tmp_path, made))
    assert (info.epoch, len(made)) == (3, 2)


@pytest.mark.parametrize("options", [{}, {"resume_from": "auto"}, {"checkpoint": "here"}])
def test_a_trainer_that_would_start_over_is_rejected(options: dict[str, Any], tmp_path: Path) -> None:
    if "checkpoint" in options:
        options = {"checkpoint": tmp_path}
    elif options:
        options = {"checkpoint": tmp_path, "resume_from": make_trainer(max_epoch=1).save(tmp_path / "other")}
    with pytest.raises(tk.ConfigError, match='give it checkpoint= and resume_from="auto"'):
        tk.trainer.run_with_restart(lambda: make_trainer(**options))


def test_what_is_no_trainer_is_refused() -> None:
    with pytest.raises(tk.ConfigError, match=r"run_with_restart.make_trainer must return a trainer, got None"):
        tk.trainer.run_with_restart(lambda: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(tk.ConfigError) as caught:
        tk.trainer.run_with_restart(3, max_failures=-1, delay_s=-1, errors=[OSError])  # type: ignore[arg-type]
    assert len(str(caught.value).splitlines()) == 4
