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
    assert (result.estimate, result.low, result.high) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize(
    ("level", "low", "high"),
    [(0.95, 0.0, 4.0), (0.6, 0.0, 4.0), (0.4, 2.0, 2.0)],  # the quantiles at 0.025, at 0.2 and at 0.3
)
def test_interval_is_between_quantiles_of_the_resampled_difference(level, low, high):
    # Two of {0, 4} drawn with replacement have the mean 0, 2 or 4 with the odds 1/4, 1/2, 1/4.
    result = difference([0.0, 4.0], [0.0, 0.0], level=level)
    assert (result.estimate, result.low, result.high) == (2.0, low, high)


def test_sides_are_resampled_apart():
    # Drawn together the two would always differ by 0; apart they differ by +-2 with the odds 1/4 each.
    result = difference([0.0, 2.0], [0.0, 2.0])
    assert (result.estimate, result.low, result.high) == (0.0, -2.0, 2.0)


def test_the_same_scores_give_the_same_interval():
    rng = np.random.default_rng(3)
    ours, theirs = rng.normal(size=10), rng.normal(size=10)
    assert difference(ours, theirs) == difference(ours, theirs)
    assert difference(ours, theirs, seed=1) != difference(ours, theirs)


# ---- the permutation test ----


def test_p_counts_the_splits_with_a_difference_as_large():
    # Of the 6 ways to give {0, 1} and {3, 4} two scores each, the means differ by 3, 3, 1, 1, 0, 0.
    assert difference([3.0, 4.0], [0.0, 1.0]).p == pytest.approx(2 / 6)
    assert difference([1.0, 4.0], [0.0, 3.0]).p == pytest.approx(4 / 6)
    assert difference([0.0, 4.0], [1.0, 3.0]).p == 1.0


def test_p_is_one_where_means_and_interquartile_means_disagree():
    result = difference([0.0, 2.0, 2.0, 100.0], [1.0, 3.0, 3.0, 4.0])
    assert result.estimate < 0
    assert result.p == 1.0


def test_p_of_two_tasks_splits_the_scores_of_each_apart():
    # In each task of one score a side, the sides keep their scores or exchange them: 4 ways, of which 2 are as large.
    result = difference_over_tasks([[1.0], [5.0]], [[0.0], [4.0]])
    assert result.p == pytest.approx(2 / 4)
    assert result.least_p == pytest.approx(2 / 4)


def test_p_of_unequal_sides_and_of_many_splits():
    assert difference([10.0], [1.0, 2.0, 3.0]).p == pytest.approx(1 / 4)
    assert difference([10.0], [1.0, 2.0, 3.0]).least_p == pytest.approx(1 / 4)
    rng = np.random.default_rng(0)
    one, two = rng.normal(size=20), rng.normal(size=20)
    apart, alike = difference(one + 5.0, two), difference(one, two)  # 138 billion splits are sampled
    assert apart.p == pytest.approx(1 / 20_001)
    assert 0.05 < alike.p <= 1.0


@pytest.mark.parametrize("n_seeds", [2, 3, 4, 5, 6])
def test_equals_get_a_winner_in_at_most_five_percent_of_cases(n_seeds):
    rng = np.random.default_rng(n_seeds)
    pairs = [(rng.normal(size=n_seeds), rng.normal(size=n_seeds)) for _ in range(400)]
    n_won = sum("favors" in difference(one, two, resamples=2).verdict("us", "them") for one, two in pairs)
    assert n_won <= 0.05 * 400 + 2 * (400 * 0.05 * 0.95) ** 0.5


@pytest.mark.parametrize(
    ("estimate", "p", "least_p", "expected"),
    [
        (0.5, 0.01, 0.008, "favors us (p 0.01, 5 and 5 seeds)"),
        (-0.5, 0.05, 0.008, "favors them (p 0.05, 5 and 5 seeds)"),
        (0.5, 0.2, 0.008, "no difference shown (p 0.2, 5 and 5 seeds)"),
        (0.5, 0.1, 0.1, "too few seeds to tell (5 and 5 seeds)"),
    ],
)
def test_a_verdict_is_that_of_the_test_and_names_the_seeds(estimate, p, least_p, expected):
    found = Difference(estimate=estimate, low=0.1, high=0.9, p=p, least_p=least_p, n_seeds=(5, 5))
    assert found.verdict("us", "them") == expected


@pytest.mark.parametrize(("n_seeds", "has_probability"), [(3, False), (4, True)])
def test_three_seeds_a_side_cannot_show_a_difference(n_seeds, has_probability):
    result = difference([1e9 + n for n in range(n_seeds)], [float(n) for n in range(n_seeds)])
    assert ("favors us" in result.verdict("us", "them")) == has_probability


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
    assert (result.estimate, result.low, result.high) == (0.5, 0.5, 0.5)


def test_an_interval_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one score"):
        interval([[]])
