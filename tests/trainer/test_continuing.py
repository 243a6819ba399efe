"""Continuing a run after its end, and starting it again."""

from pathlib import Path
from typing import Any

import pytest

import trainkit as tk
from tests.trainer.runs import RUNS, make_run
from tests.trainer.toys import Log, everything, make_trainer


@pytest.mark.parametrize("name", RUNS)
def test_a_run_continued_after_its_end_has_the_bits_of_a_longer_one(name: str) -> None:
    longer = make_run(name, max_epoch=3)
    longer.run()
    continued = make_run(name, max_epoch=1)
    assert continued.run().stop_reason == "max_epoch"
    info = continued.run(epochs=2)
    assert (info.epoch, info.stop_reason, continued.max_epoch) == (3, "max_epoch", 3)
    assert everything(continued) == everything(longer)
    assert [row["epoch"] for row in continued.history] == [1, 2, 3]


def test_run_trains_this_many_epochs_and_the_rest_may_follow() -> None:
    log = Log()
    trainer = make_trainer(max_epoch=4, callbacks=log)
    assert trainer.run(epochs=2).epoch == 2
    assert log.names("on_train_start", "on_train_end") == ["on_train_start"]
    assert trainer.run().epoch == 4
    assert trainer.run(epochs=1).epoch == 5
    assert log.names("on_train_start", "on_train_end") == ["on_train_start", "on_train_end"] * 2


def test_an_epoch_that_was_interrupted_is_the_first_of_those_that_follow() -> None:
    class Interrupted(tk.Callback):
        n_left = 5

        def on_update_end(self, trainer: tk.Trainer) -> None:
            self.n_left -= 1
            if self.n_left == 0:
                raise KeyboardInterrupt

    trainer = make_trainer(max_epoch=1, callbacks=Interrupted())
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert trainer.run(epochs=2).epoch == 2


def test_max_epoch_may_be_set_at_any_time() -> None:
    trainer = make_trainer(max_epoch=2)
    epochs = []
    for epoch, _, info in trainer:
        epochs.append((epoch, info.stop_reason))
        if epoch == 2:
            trainer.max_epoch += 1
    assert epochs == [(1, None), (2, "max_epoch"), (3, "max_epoch")]
    trainer.max_epoch = 5
    assert [epoch for epoch, _, _ in trainer] == [4, 5]
    trainer.max_epoch = 2
    assert list(trainer) == []
    for wrong in (-1, 2.5, "3"):
        with pytest.raises(tk.ConfigError, match="max_epoch must be"):
            trainer.max_epoch = wrong


def test_a_run_that_was_stopped_continues_and_a_limit_that_is_reached_still_ends_it() -> None:
    stopped = make_trainer(max_epoch=3)
    next(stopped)
    stopped.stop("enough")
    assert stopped.run().epoch == 1
    assert stopped.run(epochs=1).epoch == 2

    limited = make_trainer(max_epoch=3, max_env_step=24)
    limited.run()
    info = limited.run(epochs=2)
    assert (info.epoch, info.env_step, info.stop_reason) == (1, 24, "max_env_step")


def test_the_number_of_epochs_is_checked() -> None:
    for wrong in (0, -1, 1.5):
        with pytest.raises(tk.ConfigError, match=r"OffpolicyTrainer.run.epochs must be"):
            make_trainer().run(epochs=wrong)  # type: ignore[arg-type]  # wrong on purpose


def test_a_continued_run_resumes_with_the_same_bits(tmp_path: Any) -> None:
    whole = make_run("rainbow", max_epoch=1)
    whole.run()
    whole.run(epochs=2)
    saved = make_run("rainbow", max_epoch=1)
    saved.run()
    saved.run(epochs=1)
    saved.save(tmp_path / "save")
    resumed = make_run("rainbow", max_epoch=1, resume_from=tmp_path / "save")
    assert list(resumed) == []  # the limit is the new run's own
    resumed.run(epochs=1)
    assert everything(resumed) == everything(whole)


@pytest.mark.parametrize(("step_per_epoch", "max_epoch"), [(20, 5), (90, 4)])
def test_epochs_of_another_length_follow_those_that_were_made(
    tmp_path: Path, step_per_epoch: int, max_epoch: int
) -> None:
    make_run("ppo", max_epoch=2, step_per_epoch=40, checkpoint=tmp_path).run()
    own = {"step_per_epoch": step_per_epoch, "max_epoch": max_epoch}
    longer = make_run("ppo", checkpoint=tmp_path, resume_from="auto", **own)
    steps = [(epoch, info.env_step) for epoch, _, info in longer]
    assert [epoch for epoch, _ in steps] == list(range(3, max_epoch + 1))
    assert steps[-1][1] == pytest.approx(80 + (max_epoch - 2) * step_per_epoch, abs=step_per_epoch // 2)


# ---- reset ----


@pytest.mark.parametrize("name", ["rainbow", "ppo"])
def test_collectors_that_are_reset_start_again_from_step_0(name: str) -> None:
    trainer = make_run(name, max_epoch=2)
    steps = [(epoch, info.env_step) for epoch, _, info in trainer]
    n_updates = trainer.policy.n_updates
    trainer.reset(reset_collectors=True, reset_buffer=True)
    info = trainer.info
    assert (info.epoch, info.env_step, info.n_episode, info.n_test_episode) == (0, 0, 0, 0)
    assert (len(trainer.buffer), trainer.policy.n_updates) == (0, n_updates)
    results = list(trainer)
    assert [(one.epoch, one.info.env_step) for one in results] == steps
    assert results[0].stats.train.recent_returns.count == results[0].stats.train.returns.count


def test_a_reset_keeps_the_rows_and_waits_for_learning_starts_again() -> None:
    trainer = make_trainer(max_epoch=1, learning_starts=10)
    trainer.run()
    n_rows, n_updates = len(trainer.buffer), trainer.policy.n_updates
    trainer.reset(reset_collectors=True)
    assert (trainer.env_step, len(trainer.buffer)) == (0, n_rows)
    trainer.run()
    assert trainer.policy.n_updates == 2 * n_updates
    episodes = list(trainer.buffer.episodes())
    assert sum(map(len, episodes)) == len(trainer.buffer)  # the open ones were cut, none crosses the reset


def test_a_reset_that_cannot_be_says_why() -> None:
    trainer = make_trainer()
    with pytest.raises(tk.ConfigError, match=r"reset_buffer=True needs reset_collectors=True"):
        trainer.reset(reset_buffer=True)
    with pytest.raises(tk.ConfigError, match=r"would discard rows that no collector collects again"):
        make_run("cql").reset(reset_collectors=True, reset_buffer=True)
    inside = make_trainer(callbacks=tk.on(collect_end=lambda trainer, stats: trainer.reset(reset_collectors=True)))
    with pytest.raises(tk.errors.BusyError, match=r"cannot be called inside next"):
        inside.run()


def test_collectors_and_histories_show_where_they_stand() -> None:
    trainer = make_trainer(max_epoch=1)
    assert repr(trainer.history) == "History(0 epochs)"
    trainer.run()
    shown = repr(trainer.train_collector)
    assert shown.startswith("Collector(DQNPolicy, Envs(")
    assert "24 steps, " in shown
    assert repr(trainer.history).startswith("History(1 epochs, the last: env_step 24 | gradient_step 1")
