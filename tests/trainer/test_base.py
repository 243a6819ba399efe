"""The iterator: what `for`, `break`, `next`, `len`, `run`, `reset` and `with` do, and what is refused."""

import logging
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trainkit as tk
from tests.trainer.runs import make_run
from tests.trainer.toys import Log, Numbers, Raising, everything, make_trainer, untimed
from trainkit.core.data import EpochResult


def numbers_of(results: list[EpochResult]) -> list[dict[str, float]]:
    return [untimed(result) for result in results]


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        *(("learn", None), ("fit", None), ("train", None), ("predict", None), ("losses", None), ("xyz", None)),
        *(("histroy", "history"), ("polcy", "policy")),
    ],
)
def test_an_unknown_attribute_is_an_error_that_names_a_misspelled_one(name: str, ours: str | None) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(make_trainer(), name)
    hint = ":" if ours is None else f", did you mean {ours!r}?"
    page = "docs/migration.md leads to the names of other libraries"
    assert str(caught.value) == f"OffpolicyTrainer has no attribute {name!r}{hint} {page}"


def test_a_printed_trainer_and_its_info_say_how_far_it_is() -> None:
    trainer = make_trainer()
    next(trainer)
    done = f"24 steps, {trainer.gradient_step:,} updates"
    assert str(trainer) == f"OffpolicyTrainer({type(trainer.policy).__name__}, epoch 1 of 3, {done})"
    shown = str(trainer.info).splitlines()
    assert shown[0].startswith(f"epoch   1: {done}, ")
    assert shown[-1] == "state   running, not logged"


# ---- iterating ----


def test_a_bare_for_yields_every_epoch_as_a_tuple_with_names() -> None:
    seen = []
    for epoch, stats, info in make_trainer():
        seen.append(epoch)
        assert info.epoch == epoch
        assert stats.train.n_step == 24
        assert info.env_step == 24 * epoch
    assert seen == [1, 2, 3]
    result = next(make_trainer())
    assert (result.epoch, result.stats, result.info) == tuple(result)


def test_break_and_a_second_for_continue_where_the_first_stopped() -> None:
    trainer = make_trainer()
    for result in trainer:
        assert result.epoch == 1
        break
    assert [result.epoch for result in trainer] == [2, 3]


def test_stopping_between_epochs_changes_nothing() -> None:
    straight, broken = make_trainer(test=True), make_trainer(test=True)
    expected = list(straight)
    results = [next(broken)]
    results += [next(iter(broken))]
    results += list(broken)
    assert numbers_of(results) == numbers_of(expected)
    assert everything(broken) == everything(straight)


def test_iter_returns_the_trainer_and_never_resets_it() -> None:
    trainer = make_trainer()
    next(trainer)
    assert iter(trainer) is trainer
    assert iter(iter(trainer)) is trainer
    assert trainer.info.epoch == 1
    assert trainer.env_step == 24


def test_next_past_the_end_raises_stop_iteration_each_time_and_never_trains() -> None:
    trainer = make_trainer()
    trainer.run()
    before = everything(trainer)
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(trainer)
    assert everything(trainer) == before
    assert next(trainer, "nothing") == "nothing"


def test_len_is_the_number_of_epochs_in_all() -> None:
    trainer = make_trainer(max_epoch=2)
    assert len(trainer) == 2
    next(trainer)
    assert len(trainer) == 2


def test_run_trains_what_is_left_and_returns_where_the_run_stands() -> None:
    trainer = make_trainer()
    next(trainer)
    info = trainer.run()
    assert (info.epoch, info.env_step, info.stop_reason) == (3, 72, "max_epoch")
    assert info.gradient_step == trainer.policy.n_updates > 0


def test_steps_that_are_collected_before_the_first_epoch_are_of_none() -> None:
    trainer = make_trainer(log_every=24)
    assert trainer.train_collector is not None
    trainer.train_collector.collect(n_step=72, random=True)
    results = list(trainer)
    assert [(info.env_step, info.gradient_step) for _, _, info in results] == [(96, 12), (120, 24), (144, 36)]
    assert [stats.train.n_step for _, stats, _ in results] == [24, 24, 24]
    info = trainer.info
    assert info.steps_per_second == pytest.approx(72 / info.seconds)
    assert info.collect_steps_per_second == pytest.approx(72 / info.collect_seconds)


def test_a_checkpoint_loaded_without_the_trainer_starts_at_epoch_1_with_all_steps(tmp_path: Path) -> None:
    trainer = make_trainer()
    trainer.run()
    trainer.save(tmp_path)
    other = make_trainer()
    other.load(tmp_path, exclude=["trainer"])
    assert [(epoch, info.env_step) for epoch, _, info in other] == [(1, 96), (2, 120), (3, 144)]


def test_reset_counts_epochs_from_0_and_keeps_policy_and_buffer() -> None:
    trainer = make_trainer(test=True)
    trainer.run()
    n_updates, n_rows = trainer.policy.n_updates, len(trainer.buffer)
    trainer.reset()
    info = trainer.info
    assert (info.epoch, info.best_score, info.last_test.is_empty, info.stop_reason) == (0, None, True, None)
    assert (trainer.policy.n_updates, len(trainer.buffer)) == (n_updates, n_rows)
    assert [result.epoch for result in trainer] == [1, 2, 3]
    assert trainer.env_step == 2 * 72


def test_reset_in_the_middle_of_an_epoch_keeps_its_updates_out_of_the_next_statistics() -> None:
    trainer = make_trainer(callbacks=[Raising(RuntimeError("here"), at=5)])
    with pytest.raises(RuntimeError, match="here"):
        next(trainer)
    before = trainer.policy.n_updates
    trainer.reset()
    assert trainer.policy.read_metrics() == {}
    result = next(trainer)
    assert result.epoch == 1
    assert trainer.state_dict()["metrics"]["updates"][0]["n_updates"] == {"": trainer.policy.n_updates - before}


def test_with_closes_environments_logger_and_bar_and_close_may_be_called_twice(tmp_path: Any) -> None:
    logger = Numbers()
    with make_trainer(test=True, logger=logger) as trainer:
        next(trainer)
    assert trainer.train_collector.envs.ownership.is_closed
    assert trainer.evaluation_schedule.evaluation.collector.envs.ownership.is_closed
    assert logger.n_closed == 1
    trainer.close()


# ---- the end ----


def test_iterating_a_finished_trainer_is_empty_and_warns_once_a_loop(caplog: pytest.LogCaptureFixture) -> None:
    trainer = make_trainer(max_epoch=1)
    assert len(list(trainer)) == 1
    assert caplog.records == []
    assert list(trainer) == []
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert (
        record.getMessage() == "OffpolicyTrainer has finished (max_epoch): run(epochs=5) trains on, reset() starts over"
    )


def test_no_epoch_at_all_is_allowed_and_empty(caplog: pytest.LogCaptureFixture) -> None:
    trainer = make_trainer(max_epoch=0)
    assert len(trainer) == 0
    assert list(trainer) == []
    assert trainer.env_step == 0
    assert "has finished (max_epoch)" in caplog.text


def test_stop_ends_the_epoch_at_this_step_and_yields_it_as_the_last() -> None:
    class StopAt30(tk.Callback):
        def on_collect_end(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None:
            if trainer.env_step == 30:
                trainer.stop("enough")

    trainer = make_trainer(callbacks=[StopAt30()])
    results = list(trainer)
    assert [(r.epoch, r.info.env_step, r.info.stop_reason) for r in results] == [(1, 24, None), (2, 30, "enough")]


def test_the_first_reason_to_stop_stays() -> None:
    trainer = make_trainer(max_epoch=1)
    trainer.stop("enough")
    trainer.stop("more than enough")
    assert trainer.info.stop_reason == "enough"


def test_a_stop_between_epochs_starts_no_other_and_fires_the_end_once() -> None:
    log = Log()
    trainer = make_trainer(callbacks=[log])
    next(trainer)
    trainer.stop("enough")
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(trainer)
    assert trainer.env_step == 24
    assert log.names("on_train_end") == ["on_train_end"]


def test_max_env_step_ends_the_run_within_an_epoch() -> None:
    trainer = make_trainer(max_env_step=40, step_per_collect=8)
    results = list(trainer)
    assert [r.info.env_step for r in results] == [24, 40]
    assert results[-1].info.stop_reason == "max_env_step"


def test_max_seconds_counts_only_the_time_within_next(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("trainkit.trainer.metrics.time.perf_counter", lambda: now[0])

    class Second(tk.Callback):
        def on_collect_start(self, trainer: tk.Trainer) -> None:
            now[0] += 1.0

    trainer = make_trainer(callbacks=[Second()], max_seconds=20.0)
    assert next(trainer).info.seconds == 12.0
    now[0] += 1_000.0
    result = next(trainer)
    assert (result.info.seconds, result.info.env_step, result.info.stop_reason) == (20.0, 40, "max_seconds")


# ---- one at a time ----


def test_next_within_next_is_refused() -> None:
    class Nested(tk.Callback):
        def on_collect_end(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None:
            next(trainer)

    trainer = make_trainer(callbacks=[Nested()])
    with pytest.raises(tk.errors.BusyError, match=r"already inside next\(\): use one loop"):
        next(trainer)


def test_next_in_two_threads_at_once_is_refused() -> None:
    inside, refused = threading.Event(), threading.Event()

    class Wait(tk.Callback):
        def on_train_start(self, trainer: tk.Trainer) -> None:
            inside.set()
            assert refused.wait(10)

    trainer = make_trainer(callbacks=[Wait()], max_epoch=1)
    thread = threading.Thread(target=trainer.run)
    thread.start()
    assert inside.wait(10)
    with pytest.raises(tk.errors.BusyError):
        next(trainer)
    refused.set()
    thread.join()
    assert trainer.info.epoch == 1


# ---- exceptions ----


def test_an_exception_names_its_callback_and_the_trainer_continues() -> None:
    quiet, raising = make_trainer(test=True), make_trainer(test=True, callbacks=[Raising(ZeroDivisionError("oh"), 7)])
    with pytest.raises(ZeroDivisionError, match="oh") as caught:
        next(raising)
    assert caught.value.__notes__ == [f"raised in Raising.on_update_end, epoch 1, step {raising.env_step}"]
    assert numbers_of(list(raising)) == numbers_of(list(quiet))
    assert everything(raising) == everything(quiet)


@pytest.mark.parametrize(
    "event", ["on_train_start", "on_collect_end", "on_evaluate_start", "on_best", "on_evaluate_end", "on_epoch_end"]
)
def test_an_exception_in_an_event_loses_no_epoch_and_reaches_other_callbacks_once(event: str) -> None:
    def fail(self: tk.Callback, *news: Any) -> None:
        if not failed:
            failed.append(event)
            raise ZeroDivisionError

    failed: list[str] = []
    before, after, quiet = Log(), Log(), Log()
    trainer = make_trainer(test=True, callbacks=[before, type("Failing", (tk.Callback,), {event: fail})(), after])
    with pytest.raises(ZeroDivisionError):
        next(trainer)
    assert [result.epoch for result in trainer] == [1, 2, 3]
    make_trainer(test=True, callbacks=[quiet]).run()
    assert before.events == after.events == quiet.events


def test_a_callback_that_always_fails_does_not_stop_the_epochs() -> None:
    class Failing(tk.Callback):
        def on_evaluate_end(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None:
            raise ZeroDivisionError

    trainer = make_trainer(test=True, callbacks=[Failing()])
    epochs = []
    for _ in range(6):
        try:
            epochs.append(next(trainer).epoch)
        except ZeroDivisionError:
            epochs.append(0)
    assert epochs == [0, 1, 0, 2, 0, 3]


def test_stop_iteration_in_a_callback_is_an_error_and_does_not_end_the_loop_silently() -> None:
    trainer = make_trainer(callbacks=[Raising(StopIteration("mine"))])
    with pytest.raises(RuntimeError, match=r"Raising\.on_update_end raised StopIteration") as caught:
        list(trainer)
    assert isinstance(caught.value.__cause__, StopIteration)
    assert [result.epoch for result in trainer] == [1, 2, 3]


def test_an_environment_that_fails_once_costs_its_episode_and_not_the_epoch() -> None:
    steps = 0

    def fail_once() -> None:
        nonlocal steps
        steps += 1
        if steps == 10:
            raise OSError("cable")

    trainer = make_trainer(on_step=fail_once)
    with pytest.raises(tk.TrainkitError, match="cable"):
        next(trainer)
    assert [result.info.env_step for result in trainer] == [24, 48, 72]


# ---- what is yielded ----


def test_what_a_callback_does_to_a_result_it_keeps_changes_no_later_epoch() -> None:
    class Vandal(tk.Callback):
        def on_epoch_end(self, trainer: tk.Trainer, result: EpochResult) -> None:
            for numbers in (result.stats.update, result.stats.explore, result.stats.buffer):
                numbers.clear()  # type: ignore[attr-defined]

    expected = numbers_of(list(make_trainer(max_epoch=2, log_every=10)))
    trainer = make_trainer(max_epoch=2, log_every=10)
    first = next(trainer)
    first.stats.update.clear()  # type: ignore[attr-defined]
    assert numbers_of([next(trainer)]) == expected[1:]
    assert all("update/loss" not in numbers for numbers in numbers_of(list(make_trainer(callbacks=[Vandal()]))))


def test_the_yielded_records_are_frozen() -> None:
    result = next(make_trainer())
    with pytest.raises(AttributeError):
        result.stats.train = None  # type: ignore[misc]
    with pytest.raises(AttributeError):
        result.info.epoch = 7  # type: ignore[misc]


def test_a_notebook_shows_what_was_chosen() -> None:
    html = make_trainer()._repr_html_()
    assert "<caption>OffpolicyTrainer</caption>" in html
    assert "<td>batch_size</td><td>4</td>" in html
    assert "<td>buffer</td><td>PrioritizedReplayBuffer(60)</td>" in html


# ---- refused ----


def test_a_refused_run_leaves_no_folder_behind(tmp_path: Any) -> None:
    with pytest.raises(tk.ConfigError):
        make_trainer(logger=tmp_path / "run", batch_size=-1)
    with pytest.raises(tk.errors.CheckpointError):
        make_trainer(logger=tmp_path / "run", resume_from=tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


# ---- what info says ----


def test_infos_times_add_up_and_its_speeds_are_counts_over_them() -> None:
    trainer = make_trainer(test=True)
    assert trainer.info.steps_per_second is None
    assert trainer.info.best_std is None
    info = trainer.run()
    parts = (info.collect_seconds, info.update_seconds, info.evaluate_seconds, info.other_seconds)
    assert min(parts) > 0
    assert sum(parts) == pytest.approx(info.seconds)
    assert info.steps_per_second == pytest.approx(72 / info.seconds)
    assert info.collect_steps_per_second == pytest.approx(72 / info.collect_seconds)
    assert info.updates_per_second == pytest.approx(35 / info.update_seconds)


def test_a_second_trainer_continues_the_counts_of_its_collector_and_policy() -> None:
    first = make_trainer(max_epoch=2)
    first.run()
    policy, collector = first.policy, first.train_collector
    options: dict[str, Any] = {"step_per_epoch": 24, "batch_size": 4, "update_per_step": 0.5, "verbose": False}
    second = tk.OffpolicyTrainer(policy, collector, max_epoch=2, **options)
    steps, updates = first.info.env_step, first.info.gradient_step
    counts = [(epoch, info.env_step - steps, info.gradient_step - updates) for epoch, _, info in second]
    assert counts == [(1, 24, 12), (2, 48, 24)]
    assert updates > 0
    assert policy.n_updates == second.info.gradient_step == updates + 24


def test_info_says_when_the_trainer_was_made() -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    trainer = make_trainer()
    assert before <= datetime.fromisoformat(trainer.info.date) <= datetime.now(UTC)
    assert trainer.run().date == trainer.info.date


def test_info_counts_evaluations_and_knows_the_spread_of_the_best() -> None:
    trainer = make_trainer(test=True, stop_fn=lambda score: False)
    tests = [result.stats.test for result in trainer]
    info = trainer.info
    assert (info.n_test_episode, info.n_test_step) == (9, sum(test.n_step for test in tests))
    best = tests[(info.best_epoch or 0) - 1]
    assert (info.best_score, info.best_std) == (best.returns.mean, best.returns.std)


def test_info_has_the_mean_return_of_the_best_evaluation_whatever_the_score_is(tmp_path: Path) -> None:
    trainer = make_trainer(test=True, compute_score_fn=lambda test: -test.lengths.mean)
    tests = [result.stats.test for result in trainer]
    best = tests[(trainer.info.best_epoch or 0) - 1]
    assert (trainer.info.best_score, trainer.info.best_return) == (-best.lengths.mean, best.returns.mean)
    resumed = make_trainer(test=True, resume_from=trainer.save(tmp_path))
    assert resumed.info.best_return == trainer.info.best_return


def test_times_of_info_continue_after_a_resume_and_restart_after_a_reset(tmp_path: Path) -> None:
    trainer = make_trainer(test=True)
    next(trainer)
    before = trainer.info
    resumed = make_trainer(test=True, resume_from=trainer.save(tmp_path))
    assert resumed.info.collect_seconds == before.collect_seconds
    assert resumed.info.evaluate_seconds == before.evaluate_seconds
    info = resumed.run()
    assert info.collect_seconds > before.collect_seconds
    assert info.collect_steps_per_second == pytest.approx(72 / info.collect_seconds)
    assert (info.best_std, info.n_test_episode) == (make_trainer(test=True).run().best_std, 9)
    resumed.reset()
    assert (resumed.info.collect_seconds, resumed.info.steps_per_second) == (0.0, None)


# ---- threads: as many as given while a trainer runs, as before outside ----


class Listener(tk.Callback):
    """Write down on how many threads torch computes at every update."""

    def __init__(self) -> None:
        self.delivered: list[int] = []

    def on_update_end(self, trainer: tk.Trainer) -> None:
        self.delivered.append(torch.get_num_threads())


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
class TestWithin:
    @pytest.mark.parametrize("kind", ["dqn", "ppo", "cql"])
    def test_torch_computes_on_the_given_threads_within_a_run_only(self, kind: str) -> None:
        listener = Listener()
        trainer = make_run(kind, threads=1, callbacks=[listener])
        next(trainer)
        assert set(listener.delivered) == {1}
        assert torch.get_num_threads() == 2

    def test_nothing_is_set_unasked(self) -> None:
        listener = Listener()
        next(make_trainer(callbacks=[listener]))
        assert set(listener.delivered) == {2}

    def test_an_error_leaves_them_as_they_were(self) -> None:
        def fail(epoch: int, env_step: int) -> None:
            raise RuntimeError("stop")

        with pytest.raises(RuntimeError, match="stop"):
            next(make_trainer(threads=1, train_fn=fail))
        assert torch.get_num_threads() == 2

    def test_a_policy_without_n_threads_is_rejected(self, monkeypatch: pytest.MonkeyPatch) -> None:
        owner = next(kind for kind in tk.DQNPolicy.__mro__ if "n_threads" in vars(kind))
        monkeypatch.delattr(owner, "n_threads")
        with pytest.raises(tk.ConfigError, match="threads=1 needs a policy with n_threads, DQNPolicy has none"):
            make_trainer(threads=1)


@pytest.mark.usefixtures("two_threads")
def test_one_thread_gives_the_same_bits_as_torch_set_by_hand() -> None:
    requested = make_run("sac", threads=1)
    requested.run()
    torch.set_num_threads(1)
    by_hand = make_run("sac")
    by_hand.run()
    for mine, theirs in zip(requested.policy.parameters(), by_hand.policy.parameters(), strict=True):
        np.testing.assert_array_equal(mine.detach().numpy(), theirs.detach().numpy())


@pytest.mark.parametrize("count", [None, 2])
def test_a_checkpoint_with_the_state_of_a_measured_number_still_loads(count: int | None) -> None:
    trainer = make_trainer()
    next(trainer)
    state = trainer.state_dict()
    assert "threads" not in state
    resumed = make_trainer()
    resumed.load_state_dict(state | {"threads": {"count": count}})  # as saved with threads="auto"
    assert resumed.epoch == trainer.epoch
