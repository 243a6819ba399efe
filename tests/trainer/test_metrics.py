"""Metrics of a run: means over all updates of an interval, times, reports and moving averages."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainkit as tk
from tests.trainer.toys import Numbers, collect_stats, make_onpolicy_trainer, make_trainer
from trainkit.core.data import EpochResult
from trainkit.core.stats import NO_COLLECT, CollectStats, Summary
from trainkit.policy.update_result import MeanMetrics
from trainkit.trainer.metrics import Interval, SmoothedLosses, Stopwatch

# ---- intervals and their times ----


class Time:
    """A clock that goes only when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("trainkit.trainer.metrics.time.perf_counter", lambda: self.now)

    def __call__(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


def test_means_are_over_updates_not_over_reports() -> None:
    interval = Interval(0)
    interval.add_means({"loss": 1.0}, 3)
    interval.add_means({"loss": 5.0}, 1)
    interval.add_means({}, 0)
    assert interval.means() == {"loss": 2.0}  # (1 + 1 + 1 + 5) / 4
    assert interval.n_updates == {"": 4}


def test_a_number_that_came_later_is_averaged_over_its_own_updates() -> None:
    interval = Interval(0)
    interval.add_means({"loss": 1.0}, 2)
    interval.add_means({"loss": 1.0, "entropy": 6.0}, 2)
    assert interval.means() == {"loss": 1.0, "entropy": 6.0}


def test_nan_in_a_mean_stays_nan() -> None:
    interval = Interval(0)
    interval.add_means({"loss": math.nan}, 1)
    interval.add_means({"loss": 1.0}, 1)
    assert math.isnan(interval.means()["loss"])


def test_a_long_interval_takes_no_more_memory_than_a_short_one_and_loses_nothing() -> None:
    interval = Interval(0)
    parts = [collect_stats(returns=Summary.of([float(i), 3.0]), seconds=0.5) for i in range(1_000)]
    for part in parts:
        interval.add_collect(part)
        assert len(interval._collects) <= 100
    merged, whole = interval.collected(), CollectStats.merge(parts)
    assert (merged.n_step, merged.n_episode, merged.seconds) == (whole.n_step, whole.n_episode, whole.seconds)
    assert merged.returns.mean == pytest.approx(whole.returns.mean)
    assert merged.returns.std == pytest.approx(whole.returns.std)
    assert (merged.env_ms, merged.recent_returns) == (pytest.approx(whole.env_ms), whole.recent_returns)


def test_an_interval_in_which_nothing_happened_has_no_collect_and_no_means() -> None:
    interval = Interval(0)
    assert interval.collected().is_empty
    assert interval.means() == {}
    assert interval.time(0).steps_per_second == 0.0


def test_shares_of_time_add_up_to_one(pass_time: Time) -> None:
    interval = Interval(0)
    watch = Stopwatch(interval)
    with watch.running():
        with watch.measure("collect"):
            pass_time(5.0)
        with watch.measure("update"):
            pass_time(3.0)
        with watch.measure("evaluate"):
            pass_time(1.0)
        pass_time(1.0)
    received = interval.time(40)
    assert (received.collect, received.update, received.evaluate) == (0.5, 0.3, 0.1)
    assert received.other == pytest.approx(0.1)
    assert received.collect + received.update + received.evaluate + received.other == 1.0
    assert (received.seconds, received.steps_per_second) == (10.0, 4.0)


def test_parts_of_a_part_of_the_time_are_shown_where_measured(pass_time: Time) -> None:
    interval = Interval(0)
    watch = Stopwatch(interval)
    with watch.running():
        with watch.measure("update"):
            with watch.measure("sample"):
                pass_time(1)
            pass_time(3)
        pass_time(4)
    received = interval.time(8)
    assert (received.update, received.sample, received.priorities) == (0.5, 0.125, None)


def test_time_between_two_runs_does_not_count(pass_time: Time) -> None:
    watch = Stopwatch(interval := Interval(0))
    for _ in range(2):
        with watch.running():
            pass_time(2.0)
        pass_time(60.0)
    assert watch.lap() == interval.time(0).seconds == 4.0


def test_an_exception_loses_no_time(pass_time: Time) -> None:
    watch = Stopwatch(interval := Interval(0))
    with pytest.raises(OSError, match="cable"), watch.running(), watch.measure("collect"):
        _pass_and_raise(pass_time)
    assert (interval.seconds["total"], interval.seconds["collect"]) == (2.0, 2.0)


def _pass_and_raise(pass_time: Time) -> None:
    pass_time(2.0)
    raise OSError("cable")


def test_several_intervals_are_timed_at_once_each_from_when_it_was_put_there(pass_time: Time) -> None:
    epoch, report, next_report = Interval(0), Interval(0), Interval(0)
    watch = Stopwatch(epoch, report)
    with watch.running():
        pass_time(1.0)
        watch.lap()
        watch.intervals[:] = epoch, next_report
        with watch.measure("update"):
            pass_time(2.0)
    assert [interval.seconds["total"] for interval in (epoch, report, next_report)] == [3.0, 1.0, 2.0]
    assert [interval.seconds["update"] for interval in (epoch, report, next_report)] == [2.0, 0.0, 2.0]


def test_an_interval_keeps_every_episode_in_order_however_often_it_is_merged() -> None:
    interval, epoch = Interval(0), Interval(0)
    for n in range(250):
        interval.add_collect(replace(NO_COLLECT, n_vector_step=1, episode_returns=(float(n),), episode_lengths=(n,)))
        if n % 7 == 0:
            interval.collected()
    stats = interval.collected()
    epoch.add_collect(stats)
    assert stats.episode_lengths == epoch.collected().episode_lengths == tuple(range(250))
    assert stats.episode_returns == tuple(map(float, range(250)))


# ---- reports ----


def test_an_epochs_numbers_are_of_all_its_updates_not_of_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    losses, add_to_sums = [], MeanMetrics.add_to_sums

    def note(metrics: MeanMetrics, scalars: Any, *kind: Any, **options: Any) -> Any:
        losses.append(float(scalars["loss"]))
        return add_to_sums(metrics, scalars, *kind, **options)

    monkeypatch.setattr(MeanMetrics, "add_to_sums", note)
    trainer = make_trainer(log_every=5, step_per_epoch=30)
    for _, stats, _ in trainer:
        assert len(losses) >= 13
        assert stats["update/loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-6)
        assert stats["update/loss"] != pytest.approx(losses[-1], rel=1e-3)
        losses.clear()


def test_an_epochs_returns_are_of_all_its_episodes() -> None:
    collects: list[tk.CollectStats] = []

    class Collects(tk.Callback):
        def on_collect_end(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None:
            collects.append(stats)

    trainer = make_trainer(callbacks=[Collects()], log_every=7, step_per_epoch=30)
    for _, stats, _ in trainer:
        assert stats.train.n_step == sum(one.n_step for one in collects) == 30
        assert stats.train.n_episode == sum(one.n_episode for one in collects) > 0
        expected = Summary.merge(one.returns for one in collects)
        for tag in ("mean", "std", "min", "max", "count"):
            assert getattr(stats.train.returns, tag) == pytest.approx(getattr(expected, tag))
        assert stats.train.recent_returns == collects[-1].recent_returns
        collects.clear()


def test_what_did_not_happen_is_none_and_no_scalar_is_written() -> None:
    numbers = Numbers()
    trainer = make_trainer(logger=numbers, learning_starts=10_000, step_per_epoch=2, max_epoch=1)
    stats = next(trainer).stats
    assert stats.train.returns.mean is stats.train.lengths.mean is stats.test.returns.mean is None
    assert (stats.train.n_step, stats.train.is_empty, stats.test.n_step, stats.test.is_empty) == (2, False, 0, True)
    assert stats["train/returns/mean"] is stats["test/returns/mean"] is stats["update/loss"] is None
    ((step, written),) = numbers.written
    assert step == 2
    assert written["train/n_episode"] == 0
    assert not [tag for tag in written if tag.startswith(("train/returns", "train/lengths", "update/", "test/"))]


def test_numbers_are_written_every_n_steps_and_at_the_end_of_epochs_never_twice() -> None:
    numbers = Numbers()
    make_trainer(logger=numbers, log_every=10, step_per_epoch=24, max_epoch=3).run()
    assert [step for step, _ in numbers.written] == [10, 20, 24, 34, 44, 48, 58, 68, 72]
    numbers = Numbers()
    make_trainer(logger=numbers, log_every=12, step_per_epoch=24, max_epoch=2).run()
    assert [step for step, _ in numbers.written] == [12, 24, 36, 48]


def test_every_step_episode_and_update_is_in_exactly_one_report(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers, now = Numbers(), [0.0]

    def spend() -> None:
        now[0] += 2.0

    monkeypatch.setattr("trainkit.trainer.metrics.time.perf_counter", lambda: now[0])
    trainer = make_trainer(logger=numbers, log_every=7, step_per_collect=6, step_per_epoch=40, on_step=spend)
    results = list(trainer)
    written = [one for _, one in numbers.written]
    assert sum(one["train/n_step"] for one in written) == trainer.env_step
    assert sum(one["train/n_episode"] for one in written) == trainer.info.n_episode
    assert sum(one["time/seconds"] for one in written) == now[0] == trainer.info.seconds
    assert sum(result.stats.time.seconds for result in results) == now[0]


def test_an_evaluation_is_written_where_it_happened() -> None:
    numbers = Numbers()
    results = list(make_trainer(test=True, logger=numbers, log_every=10))
    tested = {step: one["test/returns/mean"] for step, one in numbers.written if "test/returns/mean" in one}
    assert tested == {result.info.env_step: result.stats["test/returns/mean"] for result in results}


def test_the_time_of_an_epoch_is_shared_out_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def spend(seconds: float) -> None:
        nonlocal now
        now += seconds

    class Slow(tk.Callback):
        def on_collect_end(self, trainer: tk.Trainer, stats: tk.CollectStats) -> None:
            spend(8.0)  # 96 in an epoch: neither collecting, nor updating, nor evaluating

        def on_update_end(self, trainer: tk.Trainer) -> None:
            spend(1.0)

        def on_epoch_end(self, trainer: tk.Trainer, result: EpochResult) -> None:
            spend(1_000.0)  # after the epoch was told

    monkeypatch.setattr("trainkit.trainer.metrics.time.perf_counter", lambda: now)
    trainer = make_trainer(
        test=True, on_step=lambda: spend(2.0), on_test_step=lambda: spend(0.5), callbacks=[Slow()], log_every=10
    )
    for (_, stats, _), n_updates in zip(trainer, (11, 12, 12), strict=True):
        time = stats.time
        evaluate = 0.5 * stats.test.n_step
        total = 48 + 96 + n_updates + evaluate
        assert time.seconds == total
        shares = (48 / total, n_updates / total, evaluate / total, 96 / total)
        assert (time.collect, time.update, time.evaluate, time.other) == pytest.approx(shares)
        assert time.collect + time.update + time.evaluate + time.other == pytest.approx(1.0)
        assert time.steps_per_second == pytest.approx(24 / total)


def test_settings_are_described_once_before_the_first_number() -> None:
    class Ordered(Numbers):
        def write(self, step: int, numbers: dict[str, float]) -> None:
            assert len(self.settings) == 1
            super().write(step, numbers)

    numbers = Ordered()
    trainer = make_trainer(logger=numbers, seed=3)
    assert numbers.settings == []
    trainer.run()
    (settings,) = numbers.settings
    assert settings == trainer.describe()
    assert trainer.settings().items() <= settings.items()
    assert trainer.settings() == {
        "trainer": "OffpolicyTrainer",
        "policy": "DQNPolicy",
        "buffer": "PrioritizedReplayBuffer(60)",
        "env": "<lambda>",
        "n_envs": 2,
        "seed": 3,
        "max_epoch": 3,
        "step_per_epoch": 24,
        "batch_size": 4,
        "step_per_collect": 2,
        "episode_per_collect": None,
        "update_per_step": 0.5,
        "learning_starts": 4,
        "refresh_priorities": "update",
        "updates_per_round": 1,
        "overlap": False,
    }


def test_a_loggers_own_exception_costs_one_report_and_counts_nothing_twice() -> None:
    class Failing(Numbers):
        def write(self, step: int, numbers: dict[str, float]) -> None:
            if step == 10:
                failed.append(step)
                if len(failed) == 1:
                    raise ZeroDivisionError
            super().write(step, numbers)

    failed: list[int] = []
    trainer = make_trainer(logger=Failing(), log_every=10)
    with pytest.raises(ZeroDivisionError):
        next(trainer)
    stats = next(trainer).stats
    assert stats.train.n_step == 24


def test_the_replay_ratio_is_rows_replayed_per_row_collected() -> None:
    numbers = Numbers()
    trainer = make_trainer(logger=numbers, log_every=12, learning_starts=12, max_epoch=2)  # 4 rows per update
    received = [stats["update/replay_ratio"] for _, stats, _ in trainer]
    # Half an update per step is pending from the collect on that reaches step 12, which made 2 steps.
    assert [one.get("update/replay_ratio") for _, one in numbers.written] == [4 * 1 / 12, 4 * 6 / 12, 2.0, 2.0]
    assert received == [4 * 7 / 24, 2.0]


def test_there_is_no_replay_ratio_before_learning_nor_where_nothing_is_replayed() -> None:
    assert next(make_trainer(learning_starts=1_000))[1]["update/replay_ratio"] is None
    assert "replay_ratio" not in next(make_onpolicy_trainer())[1].update


def test_the_smoothed_loss_is_the_mean_over_the_updates_of_the_last_ten_reports(tmp_path: Path) -> None:
    one: dict[str, Any] = {"log_every": 2, "step_per_epoch": 24, "max_epoch": 2, "learning_starts": 4}
    lines = tk.JsonlLogger(tmp_path / "lines")
    trainer = make_trainer(logger=lines, **one)
    first = next(trainer)
    trainer.save(tmp_path / "saved")
    second = next(trainer)
    rows = [json.loads(line) for line in (tmp_path / "lines" / "numbers.jsonl").read_text().splitlines()[1:]]
    rows = [row for row in rows if "update/loss" in row]
    assert len(rows) == 11 + 12  # one update each
    losses = [row["update/loss"] for row in rows]
    expected = [np.mean(losses[max(0, i - 9) : i + 1]) for i in range(len(losses))]
    assert [row["update/smoothed_loss"] for row in rows] == pytest.approx(expected)
    assert first.stats["update/smoothed_loss"] == pytest.approx(expected[10])
    resumed = next(make_trainer(resume_from=tmp_path / "saved", **one))
    assert resumed.stats["update/smoothed_loss"] == second.stats["update/smoothed_loss"] == pytest.approx(expected[-1])


def test_reports_with_more_updates_count_more_in_the_smoothed_loss() -> None:
    average = SmoothedLosses(2)
    average.add({"actor_loss": 1.0, "loss": 5.0, "lr": 7.0}, 1)
    average.add({}, 0)
    average.add({"actor_loss": 4.0}, 2)
    assert average.values() == {"smoothed_actor_loss": 3.0, "smoothed_loss": 5.0}
    again = SmoothedLosses(2)
    again.load_state_dict(average.state_dict())
    for own in (average, again):
        own.add({"actor_loss": 10.0}, 2)
        assert own.values() == {"smoothed_actor_loss": 7.0}  # of the last two reports


def test_the_reports_of_a_moving_average_can_be_set() -> None:
    losses = [s["update/loss"] == s["update/smoothed_loss"] for _, s, _ in make_trainer(smoothed_reports=1)]
    assert losses == [True] * 3
    assert not all(s["update/loss"] == s["update/smoothed_loss"] for _, s, _ in make_trainer())


def test_the_share_of_updates_with_a_target_update_is_logged() -> None:
    trainer = make_trainer(policy={"target": tk.Target(3, unit="updates")}, learning_starts=4)
    shares, counts = zip(
        *((s["update/target_followed"], s["update/target_updates"]) for _, s, _ in trainer), strict=True
    )
    assert trainer.gradient_step == 11 + 12 + 12
    assert shares == pytest.approx([3 / 11, 4 / 12, 4 / 12])
    assert counts == (3, 4, 4)
    soft = make_trainer(policy={"target": tk.Target(1, unit="updates", tau=0.01)})
    assert next(soft)[1]["update/target_followed"] == 1.0


def test_the_epochs_lists_of_returns_and_lengths_are_what_its_summaries_are_of() -> None:
    trainer = make_trainer(test=True, log_every=5)
    for _, stats, _ in trainer:
        for collected in (stats.train, stats.test):
            assert np.mean(collected.episode_returns) == pytest.approx(collected.returns.mean)
            assert len(collected.episode_lengths) == collected.n_episode
            assert sum(collected.episode_lengths) / collected.n_episode == pytest.approx(collected.lengths.mean)
            assert collected.steps_per_second == pytest.approx(collected.n_step / collected.seconds)
