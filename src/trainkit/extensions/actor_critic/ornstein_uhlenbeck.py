"""Ornstein-Uhlenbeck noise for exploration."""

import numpy as np
from numpy.typing import NDArray

from trainkit.core.config import Part
from trainkit.core.errors import Checks
from trainkit.core.signatures import checked


@checked
class OrnsteinUhlenbeckNoise(Part):
    """The stationary Ornstein-Uhlenbeck process x' = (1 - theta) x + sqrt(1 - (1 - theta)**2) * normal number.

    DDPG (Lillicrap et al., 2016) explores by x' = (1 - theta) x + 0.2 * normal number with theta = 0.15 from x = 0,
    whose standard deviation tends to 0.38: give the policy's distribution that `noise_std`. Here a sequence starts at a
    number of the same standard normal distribution as the others.

    Args:
        theta: share by which a step returns to 0.
        length: steps of a sequence. Best is the time limit of episodes; a longer episode continues with another one.
    """

    def __init__(self, theta: float = 0.15, *, length: int = 1_000) -> None:
        with Checks("OrnsteinUhlenbeckNoise") as checks:
            checks.number("theta", theta, low=0, high=1, above_low=True)
            checks.integer("length", length, low=2)
        self.theta, self._length = theta, length

    @property
    def length(self) -> int:
        """Steps of a sequence."""
        return self._length

    def draw(self, n_sequences: int, n_dimensions: int, rng: np.random.Generator) -> NDArray[np.float32]:
        """Sample sequences [K, T, D]."""
        steps = rng.standard_normal((self.length, n_sequences, n_dimensions))
        keep = 1.0 - self.theta
        steps[1:] *= np.sqrt(1.0 - keep**2)
        for t in range(1, self.length):
            steps[t] += keep * steps[t - 1]
        return steps.swapaxes(0, 1).astype(np.float32)
