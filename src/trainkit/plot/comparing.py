"""Comparison of runs by statistics of their scores: intervals from resampling the seeds of each task, and a test.

Intervals follow Agarwal et al. (2021), Deep Reinforcement Learning at the Edge of the Statistical Precipice. With few
seeds a bootstrap interval is too narrow. Verdicts therefore follow a permutation test (Fisher, 1935; Ernst, 2004): with
any number of seeds it names a winner among equals in at most 5 % of cases.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Tasks = Sequence[Sequence[float]]  # a score per seed, task by task
Statistic = Literal["iqm", "mean"]

_MOST_SPLITS = 20_000  # of the permutation test


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A statistic of scores with its confidence interval."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The difference of two interquartile means with its confidence interval and a test.

    Attributes:
        estimate: of the difference.
        low: lower end of the bootstrap's interval.
        high: its upper end.
        p: of the permutation test: the probability of means that differ at least as much, in either direction, if both
            sides learn alike. The test compares means, since interquartile means ignore which side has the best and
            the worst scores; it is 1 where the means differ in the other direction than the interquartile means.
        least_p: the smallest p that these numbers of seeds can give.
        n_seeds: the numbers of scores of both sides, over all tasks.
    """

    estimate: float
    low: float
    high: float
    p: float
    least_p: float
    n_seeds: tuple[int, int]

    def verdict(self, ours: str, theirs: str, *, level: float = 0.95) -> str:
        """Describe which side is better, if the test tells, with p and the numbers of seeds."""
        seeds = " and ".join(map(str, self.n_seeds)) + " seeds"
        if self.least_p > 1 - level:
            return f"too few seeds to tell ({seeds})"
        tested = f"p {self.p:.2g}, {seeds}"
        if self.p > 1 - level:
            return f"no difference shown ({tested})"
        return f"favors {ours if self.estimate > 0 else theirs} ({tested})"


def iqm(scores: Sequence[float]) -> float:
    """Return the mean without the lowest and the highest quarter, each rounded down: of 10 scores 6 are used."""
    return float(_iqm_of_rows(np.asarray([scores], np.float64))[0])


def interval(
    tasks: Tasks, *, statistic: Statistic = "iqm", resamples: int = 10_000, level: float = 0.95, seed: int = 0
) -> Interval:
    """Return the interquartile mean (or the mean) over all tasks and seeds, with the stratified bootstrap's interval.

    It is the percentile interval. The seeds of each task are resampled apart; scores of several tasks must be on one
    scale. A task's only seed makes it too narrow: see `can_vary`.
    """
    of_rows = _OF_ROWS[statistic]
    low, high = _bounds(of_rows(_resampled(tasks, resamples, np.random.default_rng(seed))), level)
    scores = np.concatenate([np.asarray(own, np.float64) for own in tasks])
    return Interval(estimate=float(of_rows(scores[None])[0]), low=low, high=high)


def performance_profile(
    tasks: Tasks, thresholds: Sequence[float], *, resamples: int = 2_000, level: float = 0.95, seed: int = 0
) -> list[Interval]:
    """Return for each threshold the fraction of runs that score more, averaged over tasks, with its interval.

    Agarwal et al. (2021), section 4.2. Scores of several tasks must be on one scale.
    """
    rng, limits = np.random.default_rng(seed), np.asarray(thresholds, np.float64)
    own = [np.asarray(scores, np.float64) for scores in tasks]
    estimates = np.mean([_fraction_above(scores[None], limits)[0] for scores in own], axis=0)  # [T]
    fractions = [_fraction_above(rng.choice(scores, size=(resamples, len(scores))), limits) for scores in own]
    bounds = [_bounds(column, level) for column in np.mean(fractions, axis=0).T]
    pairs = zip(estimates, bounds, strict=True)
    return [Interval(estimate=float(estimate), low=low, high=high) for estimate, (low, high) in pairs]


def probability_of_improvement(
    ours: Tasks, theirs: Tasks, *, resamples: int = 2_000, level: float = 0.95, seed: int = 0
) -> Interval:
    """Return the probability that a run of ours scores more than one of theirs in the same task, averaged over tasks.

    A tie counts as half (Agarwal et al., 2021, section 4.3). Each side's seeds are resampled apart.
    """
    rng = np.random.default_rng(seed)
    estimates, resampled = [], []
    for own, other in zip(ours, theirs, strict=True):
        sides = [np.asarray(scores, np.float64) for scores in (own, other)]
        estimates.append(_win_rate(*(scores[None] for scores in sides))[0])
        resampled.append(_win_rate(*(rng.choice(scores, size=(resamples, len(scores))) for scores in sides)))
    low, high = _bounds(np.mean(resampled, axis=0), level)
    return Interval(estimate=float(np.mean(estimates)), low=low, high=high)


def difference(
    ours: Sequence[float], theirs: Sequence[float], *, resamples: int = 10_000, level: float = 0.95, seed: int = 0
) -> Difference:
    """Return iqm(ours) - iqm(theirs) in one task, with the percentile bootstrap's interval and a permutation test.

    The sides are resampled apart: a seed means something else to each of them.
    """
    return difference_over_tasks([ours], [theirs], resamples=resamples, level=level, seed=seed)


def difference_over_tasks(
    ours: Tasks, theirs: Tasks, *, resamples: int = 10_000, level: float = 0.95, seed: int = 0
) -> Difference:
    """Return the difference of the interquartile means over all tasks and seeds, as `interval` does, and a test."""
    rng = np.random.default_rng(seed)
    own, other = (_resampled_iqm(tasks, resamples, rng) for tasks in (ours, theirs))
    low, high = _bounds(own - other, level)
    sides = [[score for scores in tasks for score in scores] for tasks in (ours, theirs)]
    estimate = iqm(sides[0]) - iqm(sides[1])
    n_splits = math.prod(math.comb(len(one) + len(two), len(one)) for one, two in zip(ours, theirs, strict=True))
    mirrored = all(len(one) == len(two) for one, two in zip(ours, theirs, strict=True))
    return Difference(
        estimate=estimate,
        low=low,
        high=high,
        p=_permutation_p(ours, theirs, n_splits, rng) if estimate * (fmean(sides[0]) - fmean(sides[1])) > 0 else 1.0,
        least_p=min(1.0, (2 if mirrored else 1) / n_splits),
        n_seeds=(len(sides[0]), len(sides[1])),
    )


def _permutation_p(ours: Tasks, theirs: Tasks, n_splits: int, rng: np.random.Generator) -> float:
    """Return the fraction of ways to split the scores of each task among the sides whose means differ as much.

    All ways are tried if they are few, otherwise a sample of them, in which the actual one counts too.
    """
    is_exact = n_splits <= _MOST_SPLITS
    n_rows = n_splits if is_exact else _MOST_SPLITS
    n_ours, n_theirs = (sum(map(len, tasks)) for tasks in (ours, theirs))
    rest, gap, actual = np.arange(n_rows), np.zeros(n_rows), 0.0  # differences of the means over all tasks
    for one, two in zip(ours, theirs, strict=True):
        scores = np.asarray([*one, *two], np.float64)
        if is_exact:
            splits = _splits(len(scores), len(one))
            rest, number = np.divmod(rest, len(splits))
            order = splits[number]
        else:
            order = rng.permuted(np.tile(np.arange(len(scores)), (n_rows, 1)), axis=1)
        n = len(one)
        gap += scores[order[:, :n]].sum(axis=1) / n_ours - scores[order[:, n:]].sum(axis=1) / n_theirs
        actual += scores[:n].sum() / n_ours - scores[n:].sum() / n_theirs
    n_as_large = int(np.count_nonzero(np.abs(gap) >= abs(actual) * (1 - 1e-12)))
    return n_as_large / n_rows if is_exact else (n_as_large + 1) / (n_rows + 1)


def _splits(n: int, n_first: int) -> NDArray[np.intp]:
    """Return all ways to choose the first of n items, as orders of the items [S, n]."""
    items = range(n)
    chosen = itertools.combinations(items, n_first)
    return np.array([[*first, *(item for item in items if item not in first)] for first in chosen], np.intp)


def can_vary(tasks: Tasks) -> bool:
    """Return whether every task has at least two seeds: resampling a single one gives an interval of width 0."""
    return all(len(scores) > 1 for scores in tasks)


def _bounds(rows: NDArray[np.float64], level: float) -> tuple[float, float]:
    """Return the two quantiles that enclose the fraction `level` of resampled values [R]."""
    outside = (1 - level) / 2
    low, high = np.quantile(rows, [outside, 1 - outside])
    return float(low), float(high)


def _resampled(tasks: Tasks, resamples: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return R samples [R, n], each of as many seeds of every task, drawn with replacement."""
    drawn = [
        rng.choice(np.asarray(scores, np.float64), size=(resamples, len(scores))) for scores in tasks if len(scores)
    ]
    return np.concatenate(drawn, axis=1) if drawn else np.zeros((1, 0))


def _resampled_iqm(tasks: Tasks, resamples: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the interquartile mean [R] of R samples."""
    return _iqm_of_rows(_resampled(tasks, resamples, rng))


def _iqm_of_rows(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the interquartile mean [R] of rows [R, n]."""
    n = rows.shape[1]
    if n == 0:
        raise ValueError("an interquartile mean needs at least one score, got none")
    kept: NDArray[np.float64] = np.sort(rows, axis=1)[:, n // 4 : n - n // 4]
    mean: NDArray[np.float64] = kept.mean(axis=1)
    return mean


def _mean_of_rows(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean [R] of rows [R, n]."""
    mean: NDArray[np.float64] = rows.mean(axis=1)
    return mean


_OF_ROWS: dict[Statistic, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "iqm": _iqm_of_rows,
    "mean": _mean_of_rows,
}


def _fraction_above(rows: NDArray[np.float64], limits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the fraction [R, T] of each of the rows [R, n] above each of the limits [T]."""
    ordered = np.sort(rows, axis=1)
    n = rows.shape[1]
    return np.array([1 - np.searchsorted(row, limits, side="right") / n for row in ordered], np.float64)


def _win_rate(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the fraction [R] of pairs of a row of ours [R, n] and theirs [R, m] in which ours is larger."""
    differences = ours[:, :, None] - theirs[:, None, :]  # [R, n, m]
    rate: NDArray[np.float64] = (0.5 + 0.5 * np.sign(differences)).mean(axis=(1, 2))
    return rate
