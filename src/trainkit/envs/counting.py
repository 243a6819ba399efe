"""Counts of N environments: the steps since the episode of each began, the seconds spent around their steps."""

import numpy as np
from numpy.typing import NDArray


class StepCounts:
    """Count steps [N]; one that all environments make together is one number more, not N of them."""

    def __init__(self, n_envs: int) -> None:
        self._together = 0
        self._apart = np.zeros(n_envs, np.int64)  # [N], besides those made together

    def add(self, env_ids: NDArray[np.intp]) -> None:
        """Count a step of these environments, distinct ones."""
        if len(env_ids) == len(self._apart):
            self._together += 1
        else:
            self._apart[env_ids] += 1

    def begin(self, env_ids: NDArray[np.intp]) -> None:
        """Count from 0 again here."""
        self._apart[env_ids] = -self._together

    def __getitem__(self, env_ids: NDArray[np.intp] | slice) -> NDArray[np.int64]:
        """Return the steps so far of some environments, [K]."""
        counts: NDArray[np.int64] = self._apart[env_ids] + self._together
        return counts

    def __setitem__(self, env_ids: NDArray[np.intp] | slice, counts: NDArray[np.int64]) -> None:
        self._apart[env_ids] = counts - self._together


class Spent:
    """Seconds spent around the environments' own steps and resets, ever.

    Attributes:
        obs: processing what they returned: validation, stacks, masks, processors.
        action: processing actions: validation, conversion, processors.
        render: rendering.
    """

    def __init__(self) -> None:
        self.obs = self.action = self.render = 0.0
