"""Statistics are exact, say None for what did not happen, and are read by their path."""

import copy
import json
import math
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.toys import collect_stats
from trainkit.core.stats import (
    NO_COLLECT,
    CollectStats,
    EpochStats,
    PlayerStats,
    RunInfo,
    Summary,
    SummaryBuilder,
    TimeStats,
    format_number,
    html_table,
    is_tag,
    scalars,
)

NONE = Summary.of([])
values = st.lists(st.floats(-1e6, 1e6), max_size=6)


TIME = TimeStats(seconds=4.0, collect=0.5, update=0.25, evaluate=0.125, other=0.125, steps_per_second=7.5)


def test_a_summary_by_hand() -> None:
    assert Summary.of([1.0, 2.0, 3.0, 6.0]) == Summary(mean=3.0, std=3.5**0.5, min=1.0, max=6.0, count=4)
    assert Summary.of(value for value in (5,)) == Summary(mean=5.0, std=0.0, min=5.0, max=5.0, count=1)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.000123456, "0.0001235"),
        (-78.312, "-78.31"),
        (9_999.4, "9999"),
        (9_999.6, "10,000"),
        (-12_345.6, "-12,346"),
        (1.5e7, "1.5e+07"),
        (math.inf, "inf"),
        (math.nan, "nan"),
        (None, "none"),
    ],
)
def test_a_number_is_printed_with_all_digits_before_the_decimal_point(number: float | None, text: str) -> None:
    assert format_number(number) == text


def test_a_difference_is_printed_with_its_sign() -> None:
    assert (format_number(12_345.6, "+"), format_number(0.5, "+")) == ("+12,346", "+0.5")


def test_a_summary_of_no_values_has_no_numbers() -> None:
    nothing = Summary(mean=None, std=None, min=None, max=None, count=0)
    assert Summary.of([]) == nothing
    assert Summary.merge([]) == nothing
    assert Summary.merge([nothing, nothing]) == nothing
    assert nothing.is_empty
    assert not Summary.of([0.0]).is_empty


@given(st.lists(values, max_size=5))
def test_merged_summaries_are_the_summary_of_all_values(parts: list[list[float]]) -> None:
    merged = Summary.merge(Summary.of(part) for part in parts)
    whole = Summary.of([value for part in parts for value in part])
    assert merged.is_empty == whole.is_empty == (sum(map(len, parts)) == 0)
    if not whole.is_empty:
        assert (merged.count, merged.min, merged.max) == (whole.count, whole.min, whole.max)
        np.testing.assert_allclose([merged.mean, merged.std], [whole.mean, whole.std], rtol=1e-6, atol=1e-2)


def test_a_summary_builder_keeps_the_summary_of_all_numbers_and_not_the_numbers() -> None:
    builder = SummaryBuilder()
    assert builder.summary() == NONE
    numbers = np.arange(2_000.0).reshape(1_000, 2)
    for pair in numbers:
        builder.add(pair)
        assert len(builder._parts) < 256
    found, whole = builder.summary(), Summary.of(numbers.ravel())
    assert (found.count, found.min, found.max) == (2_000, 0.0, 1_999.0)
    np.testing.assert_allclose([found.mean, found.std], [whole.mean, whole.std], rtol=1e-12)


def test_a_collect_is_printed_on_a_screen_with_its_groups() -> None:
    assert str(NO_COLLECT) == "nothing collected"
    fox = PlayerStats(n_step=7, returns=Summary.of([1.0, 3.0]))
    stats = collect_stats(processors={"gap": Summary.of([0.5])}, agents={"fox": fox})
    lines = [
        "30 steps, 2 episodes, 2 s | returns 15 +- 5 (10 to 20, n = 2) | lengths 15 +- 10 (5 to 25, n = 2)",
        "agents/fox 7 steps | returns 2 +- 1 (1 to 3, n = 2)",
        "processors/gap 0.5 +- 0 (0.5 to 0.5, n = 1)",
    ]
    assert str(stats).splitlines() == lines
    shown = str(EpochStats(train=stats, test=NO_COLLECT, time=TIME)).splitlines()
    assert shown[1:3] == [f"        {line}" for line in lines[1:]]
    assert "<td>returns/mean</td><td>15</td>" in stats._repr_html_()


def test_merged_collects_by_hand() -> None:
    one = collect_stats()
    two = collect_stats(
        n_step=10,
        n_episode=1,
        returns=Summary.of([60.0]),
        seconds=1.0,
        n_vector_step=30,
        env_ms=1.0,
        n_faulty_episodes=4,
    )
    merged = CollectStats.merge([one, two])
    assert (merged.n_step, merged.n_episode, merged.seconds, merged.n_vector_step) == (40, 3, 3.0, 40)
    assert (merged.n_faulty_episodes, merged.n_env_restarts) == (4, 2)
    assert (merged.returns.mean, merged.returns.count) == (30.0, 3)
    assert merged.lengths.count == 4
    assert merged.env_ms == (3.0 * 10 + 1.0 * 30) / 40  # per vector step, so weighted by them
    assert merged.act_ms == 2.0
    assert merged.recent_returns is two.recent_returns


def test_collects_without_an_episode_or_a_step_have_none() -> None:
    nothing = collect_stats(
        n_step=0, n_episode=0, n_vector_step=0, returns=NONE, lengths=NONE, durations=NONE, env_ms=None
    )
    merged = CollectStats.merge([nothing, nothing])
    assert merged.returns.mean is None
    assert merged.env_ms is None
    after = CollectStats.merge([nothing, collect_stats()])
    assert after.returns == collect_stats().returns
    assert after.env_ms == 3.0


def epoch_stats() -> EpochStats:
    return EpochStats(
        train=collect_stats(returns=NONE),
        test=collect_stats(),
        update={"loss": 0.5},
        buffer={"size": 7.0},
        time=TIME,
    )


def test_a_statistic_is_read_by_its_path() -> None:
    stats = epoch_stats()
    assert stats["test/returns/mean"] == 15.0
    assert stats["test/n_episode"] == 2
    assert stats["time/steps_per_second"] == 7.5
    assert stats["update/loss"] == 0.5


@pytest.mark.parametrize("tag", ["train/returns/mean", "train/returns", "update/q_mean", "explore/epsilon"])
def test_what_did_not_happen_is_none(tag: str) -> None:
    assert epoch_stats()[tag] is None


def test_without_an_evaluation_every_number_of_test_is_none_and_none_is_logged() -> None:
    stats = replace(epoch_stats(), test=CollectStats.merge([]))
    assert stats.test.is_empty
    assert stats.test.returns.mean is None  # an attribute path of a user's loop raises nothing
    assert stats.test.n_episode == 0
    assert [stats[tag] for tag in ("test/returns/mean", "test/returns", "test/n_step", "test/seconds")] == [None] * 4
    assert not [tag for tag in scalars(stats) if tag.startswith("test/")]


def test_a_collect_without_a_finished_episode_is_not_empty() -> None:
    stats = replace(epoch_stats(), test=collect_stats(returns=NONE, n_episode=0))
    assert not stats.test.is_empty
    assert (stats["test/returns/mean"], stats["test/n_episode"]) == (None, 0)
    assert scalars(stats)["test/n_episode"] == 0


def test_plain_values_keep_none_for_an_empty_summary() -> None:
    plain = collect_stats(returns=NONE).to_plain()
    assert plain["returns"] is None
    assert plain["lengths"] == {"mean": 15.0, "std": 10.0, "min": 5.0, "max": 25.0, "count": 2}
    assert CollectStats.from_plain(plain) == collect_stats(returns=NONE)


@pytest.mark.parametrize(
    ("tag", "word", "hint"),
    [
        ("test/return/mean", "return", "'returns'"),
        ("tset/returns", "tset", "'test'"),
        ("test/returns/mean/x", "x", None),
    ],
)
def test_a_misspelt_tag_is_a_key_error_with_the_nearest(tag: str, word: str, hint: str | None) -> None:
    with pytest.raises(KeyError) as caught:
        epoch_stats()[tag]
    assert f"no statistic {tag!r}: {word!r} is not known here" in str(caught.value)
    assert ("did you mean" in str(caught.value)) == (hint is not None)
    assert hint is None or hint in str(caught.value)


def test_a_misspelled_tag_is_a_key_error_without_evaluations_too() -> None:
    stats = replace(epoch_stats(), test=CollectStats())
    assert stats["test/returns/mean"] is None
    with pytest.raises(KeyError, match="did you mean 'returns'"):
        stats["test/return/mean"]


def test_the_path_of_an_attribute_is_its_tag_and_none_is_left_out() -> None:
    tags = scalars(epoch_stats())
    stats = epoch_stats()
    assert tags["test/returns/mean"] == 15.0
    assert tags["time/collect"] == 0.5
    assert tags["buffer/size"] == 7.0
    assert "train/returns/mean" not in tags
    assert not [tag for tag in tags if tag.endswith("/count")]
    assert {tag: stats[tag] for tag in tags} == tags


def test_scalars_under_a_prefix() -> None:
    timed = replace(TIME, sample=0.1, priorities=0.05)
    assert scalars(timed, "time") == {f"time/{item.name}": getattr(timed, item.name) for item in fields(timed)}
    assert scalars(None, "nothing") == {}


def test_the_shares_of_time_are_all_of_it() -> None:
    assert TIME.collect + TIME.update + TIME.evaluate + TIME.other == 1


@pytest.mark.parametrize("record", [collect_stats(), TIME, epoch_stats(), Summary.of([1.0])])
def test_records_cannot_be_changed(record: Any) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(record, fields(record)[0].name, 0)


def test_notebooks_show_a_table() -> None:
    shown = epoch_stats()._repr_html_()
    assert "<caption>epoch</caption>" in shown
    assert "<tr><td>test/returns/mean</td><td>15</td></tr>" in shown
    info = RunInfo(
        epoch=3,
        env_step=1000,
        gradient_step=10,
        n_episode=4,
        best_score=None,
        best_epoch=None,
        best_env_step=None,
        best_return=None,
        best_std=None,
        n_test_step=0,
        n_test_episode=0,
        collect_seconds=0.0,
        update_seconds=0.0,
        evaluate_seconds=0.0,
        other_seconds=0.0,
        steps_per_second=None,
        collect_steps_per_second=None,
        updates_per_second=None,
        last_test=collect_stats(),
        seconds=1.23456789,
        stop_reason="<script>",
        run_dir=None,
        date="2026-11-28T12:00:00+00:00",
    )
    shown = info._repr_html_()
    assert "<tr><td>seconds</td><td>1.2346</td></tr>" in shown
    assert "&lt;script&gt;" in shown
    assert "last_test" not in shown


def test_printed_statistics_are_short_and_readable() -> None:
    assert str(Summary.of([10.0, 20.0])) == "15 +- 5 (10 to 20, n = 2)"
    assert str(NONE) == "none"
    shown = str(epoch_stats()).splitlines()
    assert shown[1] == "test    30 steps | returns 15 +- 5 (10 to 20, n = 2) | lengths 15 +- 10 (5 to 25, n = 2)"
    assert shown[-1].startswith("time    4 s, 7.5 per second: collect 50.0%, update 25.0%")
    assert max(map(len, shown)) <= 120


def test_a_statistic_without_its_group_is_an_error_that_has_the_tag() -> None:
    stats = epoch_stats()
    with pytest.raises(AttributeError, match=r"EpochStats has no attribute 'loss': give stats\['update/loss'\]"):
        stats.loss  # noqa: B018
    with pytest.raises(AttributeError, match="'updates', did you mean 'update'"):
        stats.updates  # noqa: B018
    assert copy.deepcopy(stats) == stats


def test_a_table_shows_five_digits_and_escapes() -> None:
    assert html_table("a & b", [("<x>", 0.123456)]) == (
        "<table><caption>a &amp; b</caption><tr><td>&lt;x&gt;</td><td>0.12346</td></tr></table>"
    )


def test_what_a_collect_did_comes_back_from_plain_values() -> None:
    one = Summary(mean=1.5, std=0.5, min=1.0, max=2.0, count=2)
    stats = CollectStats(
        n_step=9, n_episode=2, returns=one, lengths=NONE, durations=NONE, recent_returns=one, seconds=0.5,
        n_vector_step=9, n_faulty_episodes=0, n_env_restarts=0, env_ms=1.0, act_ms=None, store_ms=0.0, other_ms=0.5,
        agents={"left": PlayerStats(n_step=4, returns=one), "mean": PlayerStats(returns=one)},
        policies={"main": PlayerStats(n_step=9)},
    )  # fmt: skip
    assert CollectStats.from_plain(json.loads(json.dumps(stats.to_plain()))) == stats


def test_returns_and_lengths_of_each_episode_are_merged_in_order_and_are_no_tags() -> None:
    one = collect_stats(episode_returns=(10.0, 20.0), episode_lengths=(5, 25))
    other = collect_stats(episode_returns=(7.0,), episode_lengths=(3,), n_step=10, seconds=6.0)
    merged = CollectStats.merge([one, other])
    assert (merged.episode_returns, merged.episode_lengths) == ((10.0, 20.0, 7.0), (5, 25, 3))
    assert merged.steps_per_second == (30 + 10) / (2.0 + 6.0)
    assert not any("episode_" in tag for tag in scalars(one))
    assert (one.steps_per_second, replace(one, n_step=0).steps_per_second) == (15.0, None)
    assert not is_tag("train/episode_returns")
    assert CollectStats.from_plain(json.loads(json.dumps(one.to_plain()))) == one


def test_a_collect_without_a_step_has_no_speed_and_no_episodes() -> None:
    assert (NO_COLLECT.steps_per_second, NO_COLLECT.episode_returns, NO_COLLECT.episode_lengths) == (None, (), ())
