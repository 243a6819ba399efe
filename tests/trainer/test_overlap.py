"""Updates taken while environments step: as many as without, in a fixed order, whichever steps or interrupts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainkit as tk
from tests.trainer.keyboard import Keyboard, press
from tests.trainer.toys import everything, make_trainer, untimed
from trainkit.core.errors import BusyError, ConfigError


class Taken(tk.Callback):
    """Write down the collector's clock at which every update was taken."""

    def __init__(self) -> None:
        self.at: list[int] = []

    def on_update_end(self, trainer: tk.Trainer) -> None:
        self.at.append(trainer.policy.last_step)


def taken(**options: Any) -> list[int]:
    """Return those of a run that overlaps."""
    received = Taken()
    make_trainer(overlap=True, callbacks=[received], **options).run()
    return received.at


def test_what_a_collect_owes_is_taken_while_the_next_one_steps() -> None:
    # 4 rows are a batch; from then on each 2 rows owe one update, taken one vector step later, the last at the end
    assert taken(max_epoch=1, step_per_epoch=12) == [4, 6, 8, 10, 12]
    assert taken(max_epoch=1, step_per_epoch=12, n_envs=1) == [5, 7, 9, 11]


def test_a_longer_collect_has_a_share_in_each_of_its_steps() -> None:
    # of 8 rows 4 are pending, over 4 vector steps; of 6 over 3; what is pending at an epoch's end is taken then
    assert taken(max_epoch=1, step_per_epoch=16, step_per_collect=8, batch_size=8) == [8, 10, 12, 14, *[16] * 4]
    ratio = {"update_per_step": 1.0, "step_per_collect": 6, "batch_size": 6}
    assert taken(max_epoch=1, step_per_epoch=12, **ratio) == [6, 6, 8, 8, 10, 10, *[12] * 6]


@pytest.mark.parametrize("per_round", [2, 3])
def test_rounds_are_shared_out_too(per_round: int) -> None:
    rounds = {"refresh_priorities": "round", "updates_per_round": per_round, "step_per_collect": 8}
    at = taken(max_epoch=2, step_per_epoch=32, **rounds)
    assert len(at) == 32  # half an update for every row, those of the first batch among them
    shares = np.unique(at, return_counts=True)[1]
    assert shares.max() <= 8


@pytest.mark.parametrize("ratio", [0.3, 1.0, 2.5])
def test_updates_are_as_many_as_without(ratio: float) -> None:
    counts = [
        [result.info.gradient_step for result in make_trainer(overlap=overlap, update_per_step=ratio)]
        for overlap in (False, True)
    ]
    assert counts[0] == counts[1]


def test_the_bits_are_the_same_whichever_backend_steps() -> None:
    finals = []
    for backend in ("sync", "async"):
        trainer = make_trainer(overlap=True, step_per_collect=6, env_options={"backend": backend})
        with trainer:
            trainer.run()
            finals.append(everything(trainer))
    assert finals[0] == finals[1]


def test_without_updates_it_changes_nothing() -> None:
    plain, overlapping = (make_trainer(overlap=overlap, update_per_step=0) for overlap in (False, True))
    plain.run(), overlapping.run()
    assert everything(plain) == everything(overlapping)


def test_callbacks_receive_each_update_where_nothing_may_be_saved(tmp_path: Path) -> None:
    class Save(tk.Callback):
        def __init__(self) -> None:
            self.updates: list[int] = []

        def on_update_end(self, trainer: tk.Trainer) -> None:
            self.updates.append(trainer.gradient_step)
            if trainer.gradient_step == 13:
                trainer.save(tmp_path / "run")

    hearer = Save()
    trainer = make_trainer(overlap=True, step_per_collect=6, callbacks=[hearer])
    with pytest.raises(BusyError, match="a collector cannot be saved in the middle of a step"):
        trainer.run()
    info = trainer.run()
    assert hearer.updates == list(range(1, info.gradient_step + 1))
    assert not (tmp_path / "run").exists()


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("moment", range(1, 12))
def test_a_callback_that_raises_costs_no_update(moment: int) -> None:
    class Raise(tk.Callback):
        n_reported = n_collects = 0

        def on_collect_end(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None:
            self.n_collects += 1

        def on_update_end(self, trainer: tk.Trainer) -> None:
            self.n_reported += 1
            if self.n_reported == moment:
                raise RuntimeError("on purpose")

    hearer = Raise()
    trainer = make_trainer(overlap=True, step_per_collect=6, callbacks=[hearer])
    with pytest.raises(RuntimeError, match="on purpose"):
        trainer.run()
    info = trainer.run()
    plain = make_trainer(step_per_collect=6).run()
    assert (info.env_step, info.gradient_step) == (plain.env_step, plain.gradient_step)
    assert hearer.n_reported == info.gradient_step
    assert hearer.n_collects == 12


class RaiseOnce(tk.Callback):
    """Raise in one of the moments that an update has, counted over the run."""

    def __init__(self, moment: int, event: str) -> None:
        self.moment, self.event, self.n = moment, event, 0

    def _tick(self, event: str) -> None:
        self.n += event == self.event
        if event == self.event and self.n == self.moment:
            raise RuntimeError("on purpose")

    def on_train_batch(self, trainer: tk.Trainer, batch: Any) -> None:
        self._tick("on_train_batch")

    def on_update_end(self, trainer: tk.Trainer) -> None:
        self._tick("on_update_end")


@pytest.mark.one_of_each
@pytest.mark.parametrize("saves", [False, True])
@pytest.mark.parametrize("event", ["on_train_batch", "on_update_end"])
@pytest.mark.parametrize("options", [
    {"step_per_collect": 6, "update_per_step": 1.0},
    {"step_per_collect": 8, "refresh_priorities": "round", "updates_per_round": 2, "update_per_step": 2.0},
    {"step_per_collect": 6, "refresh_priorities": "late", "env_options": {"backend": "async"}},
])  # fmt: skip
def test_after_an_exception_the_bits_are_those_of_a_run_in_which_nothing_raised(
    options: dict[str, Any], event: str, saves: bool, tmp_path: Path
) -> None:
    with make_trainer(overlap=True, max_epoch=2, **options) as plain:
        plain.run()
        expected = everything(plain)
    for moment in (2, 9):
        with make_trainer(overlap=True, max_epoch=2, callbacks=[RaiseOnce(moment, event)], **options) as trainer:
            with pytest.raises(RuntimeError, match="on purpose"):
                trainer.run()
            if saves:  # which finishes the step that was left open
                saved = trainer.save(tmp_path / str(moment))
                assert len(trainer.buffer) == trainer.env_step
                with make_trainer(overlap=True, max_epoch=2, resume_from=saved, **options) as resumed:
                    resumed.run()
                    assert everything(resumed) == expected, moment
            trainer.run()
            assert everything(trainer) == expected, moment


def test_collecting_by_hand_after_an_exception_stores_the_open_step_first() -> None:
    trainer = make_trainer(overlap=True, step_per_collect=8, callbacks=[RaiseOnce(3, "on_train_batch")])
    with pytest.raises(RuntimeError, match="on purpose"):
        trainer.run()
    collector = trainer.train_collector
    assert collector.is_mid_step
    n_steps = collector.env_step
    with pytest.raises(BusyError, match="the rest of the work overlapped with it"):
        collector.state_dict()
    collector.collect(n_step=8)
    assert not collector.is_mid_step
    assert collector.env_step == len(trainer.buffer) >= n_steps + 8
    assert trainer.run().env_step >= 72


def test_collecting_by_hand_learns_nothing() -> None:
    class Stop(tk.Callback):
        has_stopped = False

        def on_update_end(self, trainer: tk.Trainer) -> None:
            if trainer.gradient_step == 3 and not self.has_stopped:
                self.has_stopped = True
                raise KeyboardInterrupt

    trainer = make_trainer(overlap=True, step_per_collect=8, update_per_step=1.0, callbacks=[Stop()])
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    n_updates = trainer.gradient_step
    trainer.train_collector.collect(n_step=4)
    trainer.train_collector.collect(n_episode=2)
    assert trainer.gradient_step == n_updates
    collector = trainer.train_collector
    collector.between_steps = lambda: press() if collector.env_step % 5 == 0 else None
    with pytest.raises(KeyboardInterrupt):  # episodes that were requested by hand, and not finished
        collector.collect(n_episode=2)
    collector.between_steps = None  # a trainer calls it, too
    assert trainer.run().env_step >= 72


def test_a_run_that_resumes_with_overlap_warns_of_it(caplog: Any, tmp_path: Path) -> None:
    saved = make_trainer().save(tmp_path)
    make_trainer(resume_from=saved)
    assert "overlap" not in caplog.text
    make_trainer(resume_from=saved, overlap=True)
    assert "overlap False -> True" in caplog.text


@pytest.mark.fast_cases(5)
@pytest.mark.parametrize("moment", range(3, 60, 4))
def test_ctrl_c_at_any_moment_changes_nothing(moment: int) -> None:
    def run(*moments: int) -> dict[str, Any]:
        keyboard = Keyboard(moments)
        trainer = make_trainer(
            overlap=True,
            step_per_collect=6,
            max_epoch=2,
            on_step=lambda: keyboard.tick("step"),
            callbacks=[keyboard],
        )
        while not trainer.is_finished:
            try:
                trainer.run()
            except KeyboardInterrupt:
                keyboard.is_received = True
        assert len(keyboard.pressed_in) == len(moments)
        return everything(trainer)

    assert run(moment) == run()


def test_an_update_that_fails_leaves_the_step_whole_and_the_count_exact() -> None:
    trainer = make_trainer(overlap=True, step_per_collect=6)
    update, n_calls = trainer.policy.update, 0

    def received(batch: tk.TransitionBatch, *, step: int) -> Any:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 7:
            raise RuntimeError("on purpose")
        return update(batch, step=step)

    trainer.policy.update = received  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="on purpose"):
        trainer.run()
    assert len(trainer.buffer) == trainer.env_step
    trainer.run()
    assert (trainer.env_step, trainer.gradient_step) == (72, make_trainer(step_per_collect=6).run().gradient_step)


def test_a_saved_run_continues_to_the_same_bits(tmp_path: Path) -> None:
    straight = make_trainer(overlap=True, step_per_collect=6)
    results = [untimed(result) for result in straight]
    broken = make_trainer(overlap=True, step_per_collect=6)
    next(broken)
    broken.save(tmp_path / "run")
    again = make_trainer(overlap=True, step_per_collect=6)
    again.load(tmp_path / "run")
    assert [untimed(result) for result in again] == results[1:]
    assert everything(again) == everything(straight)


def test_the_shares_of_time_add_up() -> None:
    for result in make_trainer(overlap=True, update_per_step=2.0):
        time = result.stats.time
        assert min(time.collect, time.update, time.other) >= 0.0
        assert time.collect + time.update + time.evaluate + time.other == pytest.approx(1.0)
        assert time.update > time.collect


def test_an_option_that_is_no_flag_is_rejected() -> None:
    with pytest.raises(ConfigError, match="overlap"):
        make_trainer(overlap=1)
