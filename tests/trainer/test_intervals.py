"""What is gathered: means over all updates, and time whose shares add up to all of it."""

import math
from dataclasses import replace

import pytest

from tests.core.test_stats import collect_stats
from trainkit.core.stats import NO_COLLECT, CollectStats, Summary
from trainkit.trainer.metrics import Interval, Stopwatch


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
    assert interval.n_updates == 4


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
    told = interval.time(40)
    assert (told.collect, told.update, told.evaluate) == (0.5, 0.3, 0.1)
    assert told.other == pytest.approx(0.1)
    assert told.collect + told.update + told.evaluate + told.other == 1.0
    assert (told.seconds, told.steps_per_second) == (10.0, 4.0)


def test_parts_of_a_part_are_told_where_they_were_measured(pass_time: Time) -> None:
    interval = Interval(0)
    watch = Stopwatch(interval)
    with watch.running():
        with watch.measure("update"):
            with watch.measure("sample"):
                pass_time(1)
            pass_time(3)
        pass_time(4)
    told = interval.time(8)
    assert (told.update, told.sample, told.priorities) == (0.5, 0.125, None)


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
