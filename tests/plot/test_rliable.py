"""The statistics of `comparing` equal those of rliable (Agarwal et al., 2021), frozen in rliable.json.

The file has the scores by task, and [estimate, low, high] of each statistic by rliable 1.2.0. It gets the scores
transposed, as [runs, tasks]; its intervals are of 20,000 resamples by another generator.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from trainkit.plot.comparing import Interval, interval, performance_profile, probability_of_improvement

THEIRS: dict[str, Any] = json.loads((Path(__file__).parent / "rliable.json").read_text())
OURS, OTHERS = THEIRS["ours"], THEIRS["theirs"]


def assert_equal(own: Interval, theirs: list[float]) -> None:
    """Compare an estimate exactly, and bounds up to a twentieth of the interval's width."""
    estimate, low, high = theirs
    assert own.estimate == pytest.approx(estimate, abs=1e-9)
    assert [own.low, own.high] == pytest.approx([low, high], abs=max(0.05 * (high - low), 1e-9))


@pytest.mark.parametrize("statistic", ["iqm", "mean"])
def test_aggregates_over_tasks_are_rliables(statistic: Any) -> None:
    assert_equal(interval(OURS, statistic=statistic), THEIRS[statistic])


def test_the_probability_of_improvement_is_rliables() -> None:
    assert_equal(probability_of_improvement(OURS, OTHERS), THEIRS["probability_of_improvement"])
    mirrored = probability_of_improvement(OTHERS, OURS)
    assert mirrored.estimate == pytest.approx(1 - THEIRS["probability_of_improvement"][0])


def test_the_performance_profile_is_rliables() -> None:
    profile = performance_profile(OURS, THEIRS["thresholds"])
    for own, theirs in zip(profile, THEIRS["performance_profile"], strict=True):
        assert_equal(own, theirs)
