"""The quantile Huber loss without the table of all pairs: B W log W' numbers in place of B W W'.

With a row's goals sorted, those below own - kappa, from there to own, from own to own + kappa and above are four runs,
and what a run adds to the loss is a parabola in own: its coefficients are the run's length, sum and sum of squares, all
taken from the goals' mean, so that little cancels. The same numbers as `policy.quantiles.quantile_huber`, which a test
holds beside it.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from trainkit.policy.host.tape import Array

_Wide = NDArray[np.float64]  # as sums of squares cancel


def quantile_huber(chosen: Array, goal: Array, fractions: Array, kappa: float) -> tuple[Array, Array, Array]:
    """Return (loss [B], priority [B], slope of the loss [B, W]).

    Args:
        chosen: [B, W], at `fractions` [1, W].
        goal: [B, W'].
        fractions: where `chosen` are quantiles.
        kappa: where the Huber loss turns straight; at 0 it is the absolute value.
    """
    order = chosen.argsort(axis=1)  # what is looked up in order is found in a quarter of the time
    centre = np.add.reduce(goal, axis=1, keepdims=True, dtype=np.float64) / goal.shape[1]
    own = np.take_along_axis(chosen, order, axis=1) - centre
    above = fractions[0].take(order)  # what a goal above weighs; one below, 1 - above
    below = 1.0 - above
    (n1, s1, _), (n2, s2, q2), (n3, s3, q3), (n4, s4, _) = _runs(goal - centre, own, kappa)
    per = 1.0 / kappa if kappa else 0.0  # without a middle its runs are empty
    width = goal.shape[1]
    a = (0.5 * per / width) * (below * n2 + above * n3)
    b = (below * (n1 - per * s2) - above * (n4 + per * s3)) / width
    c = below * (0.5 * (per * q2 - kappa * n1) - s1) + above * (0.5 * (per * q3 - kappa * n4) + s4)
    loss = np.add.reduce((a * own + b) * own + c / width, axis=1)
    distance = np.add.reduce((n1 + n2 - n3 - n4) * own - (s1 + s2 - s3 - s4), axis=1) / (width * own.shape[1])
    slope = np.empty_like(chosen)
    np.put_along_axis(slope, order, 2.0 * a * own + b, axis=1)
    return loss.astype(np.float32), distance.astype(np.float32), slope


def _runs(goal: _Wide, own: _Wide, kappa: float) -> tuple[_Wide, _Wide, _Wide, _Wide]:
    """Return the four runs: of each how many goals there are, their sum and that of their squares, [3, B, W]."""
    n_rows, width = goal.shape
    goals = np.sort(goal, axis=1)
    moments = np.zeros((3, n_rows, width + 1))  # of so many smallest
    moments[:, :, 1:] = np.ones_like(goals), goals, goals * goals
    np.cumsum(moments, axis=2, out=moments)
    rows, first = torch.from_numpy(goals), np.arange(0, moments[0].size, width + 1)[:, None]
    found = []
    for line, beyond in ((own - kappa, False), (own, False), (own + kappa, True)):  # a goal met is in the middle
        ends = torch.searchsorted(rows, torch.from_numpy(line), right=beyond).numpy()  # numpy's takes one row
        found.append(moments.reshape(3, -1).take(ends + first, axis=1))
    near, middle, far = found
    return near, middle - near, far - middle, moments[:, :, -1:] - far
