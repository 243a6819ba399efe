"""The squashed normal in numpy: a unit action drawn, its log-density, and the slopes of both by hand."""

import math

import numpy as np

from trainkit.policy.host.tape import Array, Tape
from trainkit.policy.squashed import HALF_LOG_2_PI, LOG_STD_RANGE, SquashedGaussian


class HostSquashed:
    """The twin of a `SquashedGaussian` whose numbers [B, 2 D] are means and logarithms of deviations."""

    def __init__(self, distribution: SquashedGaussian) -> None:
        self._shape = distribution._shape

    def draw(self, numbers: Array, noise: Array, tape: Tape) -> tuple[Array, Array]:
        """Return (a = tanh(u) [B, D], its log-density [B]) where u = mean + std * noise."""
        mean, told = np.split(numbers, 2, axis=1)
        log_std = np.clip(told, *LOG_STD_RANGE)
        spread = np.exp(log_std) * noise
        u = mean + spread
        unit = np.tanh(u)
        log_slope = 2.0 * (math.log(2.0) - u - np.logaddexp(np.float32(0.0), -2.0 * u))  # of log(1 - tanh(u)^2)
        log_prob: Array = np.add.reduce(-0.5 * noise * noise - log_std - HALF_LOG_2_PI - log_slope, axis=1)
        tape.append(unit, spread, told == log_std)
        return unit, log_prob

    def backward(self, of_unit: Array, of_log_prob: Array, tape: Tape) -> Array:
        """Return the slope [B, 2 D] of the numbers: da/du = 1 - a^2, d log p/du = 2 a, d log p/d log std = 2 a s - 1.

        s is the deviation times the noise; a logarithm that was clipped does not move.
        """
        unit, spread, is_free = tape.pop()
        of_log_prob = of_log_prob[:, None]
        of_u = of_unit * (1.0 - unit * unit) + of_log_prob * (2.0 * unit)
        return np.concatenate([of_u, (of_u * spread - of_log_prob) * is_free], axis=1)

    def act(self, numbers: Array, noise: Array | None) -> Array:
        """Return actions [B, ...] in policy units, for noise [B, D] or, without it, at the means."""
        mean, told = np.split(numbers, 2, axis=1)
        u = mean if noise is None else mean + np.exp(np.clip(told, *LOG_STD_RANGE)) * noise
        unit: Array = np.tanh(u).reshape(-1, *self._shape)
        return unit
