"""Comparison of runs: interquartile means of their scores, with intervals from resampling the seeds of each task.

Agarwal et al. (2021), Deep Reinforcement Learning at the Edge of the Statistical Precipice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Tasks = Sequence[Sequence[float]]  # a score per seed, task by task


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An interquartile mean with its confidence interval."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The difference of two interquartile means with its confidence interval."""

    estimate: float
    low: float
    high: float

    def verdict(self, ours: str, theirs: str) -> str:
        """Describe which side the interval favors."""
        if self.low > 0:
            return f"favors {ours}"
        return f"favors {theirs}" if self.high < 0 else "contains 0"


def iqm(scores: Sequence[float]) -> float:
    """Return the mean without the lowest and the highest quarter, each rounded down: of 10 scores 6 are used."""
    return float(_iqm_of_rows(np.asarray([scores], np.float64))[0])


def interval(tasks: Tasks, *, resamples: int = 10_000, level: float = 0.95, seed: int = 0) -> Interval:
    """Return the interquartile mean over all tasks and seeds, with the stratified percentile bootstrap's interval.

    The seeds of each task are resampled apart; scores of several tasks must be on one scale. A task's only seed makes
    it too narrow: see `can_vary`.
    """
    rows = _resampled_iqm(tasks, resamples, np.random.default_rng(seed))
    low, high = _bounds(rows, level)
    return Interval(estimate=iqm([score for scores in tasks for score in scores]), low=low, high=high)


def difference(
    ours: Sequence[float], theirs: Sequence[float], *, resamples: int = 10_000, level: float = 0.95, seed: int = 0
) -> Difference:
    """Return iqm(ours) - iqm(theirs) in one task, with the percentile bootstrap's interval.

    The sides are resampled apart: a seed means something else to each of them.
    """
    return difference_over_tasks([ours], [theirs], resamples=resamples, level=level, seed=seed)


def difference_over_tasks(
    ours: Tasks, theirs: Tasks, *, resamples: int = 10_000, level: float = 0.95, seed: int = 0
) -> Difference:
    """Return the difference of the interquartile means over all tasks and seeds, as `interval` does."""
    rng = np.random.default_rng(seed)
    own, other = (_resampled_iqm(tasks, resamples, rng) for tasks in (ours, theirs))
    low, high = _bounds(own - other, level)
    estimates = [iqm([score for scores in tasks for score in scores]) for tasks in (ours, theirs)]
    return Difference(estimate=estimates[0] - estimates[1], low=low, high=high)


def can_vary(tasks: Tasks) -> bool:
    """Return whether every task has at least two seeds: resampling a single one gives an interval of width 0."""
    return all(len(scores) > 1 for scores in tasks)


def _bounds(rows: NDArray[np.float64], level: float) -> tuple[float, float]:
    """Return the two quantiles that enclose the fraction `level` of resampled values [R]."""
    outside = (1 - level) / 2
    low, high = np.quantile(rows, [outside, 1 - outside])
    return float(low), float(high)


def _resampled_iqm(tasks: Tasks, resamples: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the interquartile mean [R] of R samples, each of as many seeds of every task, drawn with replacement."""
    drawn = [
        rng.choice(np.asarray(scores, np.float64), size=(resamples, len(scores))) for scores in tasks if len(scores)
    ]
    return _iqm_of_rows(np.concatenate(drawn, axis=1) if drawn else np.zeros((1, 0)))


def _iqm_of_rows(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the interquartile mean [R] of rows [R, n]."""
    n = rows.shape[1]
    if n == 0:
        raise ValueError("an interquartile mean needs at least one score, got none")
    kept: NDArray[np.float64] = np.sort(rows, axis=1)[:, n // 4 : n - n // 4]
    mean: NDArray[np.float64] = kept.mean(axis=1)
    return mean
