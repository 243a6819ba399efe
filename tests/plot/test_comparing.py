"""Whether two sides of a benchmark are compared as their page says; expected values are worked by hand."""

import numpy as np
import pytest

from trainkit.plot.comparing import Difference, Interval, can_vary, difference, difference_over_tasks, interval, iqm


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([7.0], 7.0),
        ([0.0, 3.0, 9.0], 4.0),  # a quarter of three is none
        ([1000.0, 2.0, 4.0, -1000.0], 3.0),
        ([0.0, 1.0, 2.0, 3.0, 100.0], 2.0),
        ([1e9, 1e9, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, -1e9, -1e9], 3.5),  # six of ten
    ],
)
def test_iqm_is_the_mean_without_the_lowest_and_highest_quarter(scores, expected):
    assert iqm(scores) == expected


def test_iqm_does_not_care_about_order():
    assert iqm([4.0, 1.0, 3.0, 9.0]) == 3.5


def test_iqm_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one score"):
        iqm([])


def test_sides_that_never_vary_differ_by_a_point():
    result = difference([5.0] * 10, [3.0] * 10, resamples=100)
    assert result == Difference(estimate=2.0, low=2.0, high=2.0)


@pytest.mark.parametrize(
    ("level", "low", "high"),
    [(0.95, 0.0, 4.0), (0.6, 0.0, 4.0), (0.4, 2.0, 2.0)],  # the quantiles at 0.025, at 0.2 and at 0.3
)
def test_interval_is_between_quantiles_of_the_resampled_difference(level, low, high):
    # Two of {0, 4} drawn with replacement have the mean 0, 2 or 4 with the odds 1/4, 1/2, 1/4.
    assert difference([0.0, 4.0], [0.0, 0.0], level=level) == Difference(estimate=2.0, low=low, high=high)


def test_sides_are_resampled_apart():
    # Drawn together the two would always differ by 0; apart they differ by +-2 with the odds 1/4 each.
    result = difference([0.0, 2.0], [0.0, 2.0])
    assert (result.estimate, result.low, result.high) == (0.0, -2.0, 2.0)


def test_the_same_scores_give_the_same_interval():
    rng = np.random.default_rng(3)
    ours, theirs = rng.normal(size=10), rng.normal(size=10)
    assert difference(ours, theirs) == difference(ours, theirs)
    assert difference(ours, theirs, seed=1) != difference(ours, theirs)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(1.0, 2.0, "favors us"), (-2.0, -1.0, "favors them"), (-1.0, 1.0, "contains 0"), (0.0, 1.0, "contains 0")],
)
def test_verdict_is_read_off_the_interval(low, high, expected):
    assert Difference(estimate=0.5, low=low, high=high).verdict("us", "them") == expected


def test_an_interval_over_tasks_resamples_the_seeds_of_each_task_apart():
    # Two tasks of two seeds; sorted, the mean of the middle two of four. Each task gives (a, a), (a, b) or (b, b)
    # with the odds 1/4, 1/2, 1/4. With {0, 4} and {8, 8} the middle two are (0 or 4, 8): 4 or 6, and 4 in 1/4 of all.
    result = interval([[0.0, 4.0], [8.0, 8.0]], level=0.4)
    assert result == Interval(estimate=6.0, low=6.0, high=6.0)
    assert interval([[0.0, 4.0], [8.0, 8.0]], level=0.6) == Interval(estimate=6.0, low=4.0, high=6.0)


def test_tasks_may_have_different_numbers_of_seeds():
    assert interval([[1.0], [2.0, 2.0, 2.0]], resamples=50) == Interval(estimate=2.0, low=2.0, high=2.0)


@pytest.mark.parametrize(("tasks", "expected"), [([[1.0, 1.0]], True), ([[1.0]], False), ([[1.0, 2.0], [3.0]], False)])
def test_a_task_with_one_seed_cannot_vary(tasks, expected):
    assert can_vary(tasks) is expected


def test_a_difference_over_tasks_of_sides_that_never_vary_is_a_point():
    result = difference_over_tasks([[1.0, 1.0], [0.5, 0.5]], [[0.5, 0.5], [0.0, 0.0]], resamples=50)
    assert result == Difference(estimate=0.5, low=0.5, high=0.5)


def test_an_interval_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one score"):
        interval([[]])
