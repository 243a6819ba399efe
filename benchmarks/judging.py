"""How runs of two sides are compared: the interquartile mean of their scores, and an interval around the difference.

Agarwal et al. (2021), Deep Reinforcement Learning at the Edge of the Statistical Precipice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How far one side's interquartile mean is above the other's, and between what bounds it may be."""

    estimate: float
    low: float
    high: float

    def verdict(self, ours: str, theirs: str) -> str:
        """Say whom the interval favours."""
        if self.low > 0:
            return f"favours {ours}"
        return f"favours {theirs}" if self.high < 0 else "contains 0"


def iqm(scores: Sequence[float]) -> float:
    """Return the mean of what is left without the lowest and the highest quarter, each rounded down: 6 of 10."""
    return float(_iqm_of_rows(np.asarray([scores], np.float64))[0])


def difference(
    ours: Sequence[float], theirs: Sequence[float], *, resamples: int = 10_000, level: float = 0.95, seed: int = 0
) -> Difference:
    """Return iqm(ours) - iqm(theirs), with the percentile bootstrap's interval.

    The sides are resampled apart: a seed means something else to each of them.
    """
    rng = np.random.default_rng(seed)
    own, other = (_resampled_iqm(scores, resamples, rng) for scores in (ours, theirs))
    outside = (1 - level) / 2
    low, high = np.quantile(own - other, [outside, 1 - outside])
    return Difference(estimate=iqm(ours) - iqm(theirs), low=float(low), high=float(high))


def _resampled_iqm(scores: Sequence[float], resamples: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the interquartile mean [R] of R samples of as many scores, drawn with replacement."""
    all_scores = np.asarray(scores, np.float64)
    return _iqm_of_rows(rng.choice(all_scores, size=(resamples, len(all_scores))))


def _iqm_of_rows(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the interquartile mean [R] of rows [R, n]."""
    n = rows.shape[1]
    if n == 0:
        raise ValueError("an interquartile mean needs at least one score, got none")
    kept: NDArray[np.float64] = np.sort(rows, axis=1)[:, n // 4 : n - n // 4]
    mean: NDArray[np.float64] = kept.mean(axis=1)
    return mean
