"""Rewards at the scale of one return: divided by the running deviation of what the environments pay."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.errors import Checks


class ReturnScale:
    """Divide rewards by the deviation of the discounted return so far, and clip them.

    Each environment's running return is R = gamma * R + reward, begun anew with every episode; the deviation is the
    population's over all R ever seen (Engstrom et al., 2020, "Implementation matters in deep policy gradients").
    Rewards are stored as they came and scaled on read, by what is known then. The mean stays: rewards keep their sign.

    Args:
        gamma: discount per step of the running return.
        clip: largest size of a scaled reward.
    """

    def __init__(self, gamma: float = 0.99, *, clip: float = 10.0) -> None:
        checks = Checks("ReturnScale")
        checks.number("gamma", gamma, low=0, high=1)
        checks.number("clip", clip, low=0, above_low=True)
        checks.done()
        self.gamma, self.clip = gamma, clip
        self._running = np.zeros(0)  # [N], R of each environment
        self._count, self._mean, self._square = 0, 0.0, 0.0  # of all R: how many, mean, summed squared deviation

    def __repr__(self) -> str:
        return f"ReturnScale({self.gamma})"

    @property
    def deviation(self) -> float:
        """What rewards are divided by; 1 before any were seen."""
        return float(np.sqrt(self._square / self._count + 1e-8)) if self._count else 1.0

    def __call__(self, columns: Mapping[str, Any]) -> NDArray[np.float64]:
        """Return the scaled rewards of rows [...]."""
        scaled: NDArray[np.float64] = np.clip(columns["reward"] / self.deviation, -self.clip, self.clip)
        return scaled

    def observe(self, reward: NDArray[np.float64], ended: NDArray[np.bool_], env_ids: NDArray[np.intp]) -> None:
        """Note rows [K] of the environments named, in their order where one is named more than once."""
        n_rows = len(reward)
        if n_rows == 0:
            return
        if n_rows > 1 and (np.diff(env_ids) <= 0).any():
            for row in range(n_rows):
                self.observe(reward[row : row + 1], ended[row : row + 1], env_ids[row : row + 1])
            return
        n_envs = int(env_ids.max()) + 1
        if n_envs > len(self._running):
            self._running = np.concatenate([self._running, np.zeros(n_envs - len(self._running))])
        returns = self.gamma * self._running[env_ids] + reward
        mean = float(returns.mean())
        apart, total = mean - self._mean, self._count + n_rows
        self._square += float(np.square(returns - mean).sum()) + apart**2 * self._count * n_rows / total
        self._mean += apart * n_rows / total
        self._count = total
        self._running[env_ids] = np.where(ended, 0.0, returns)

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics and the running returns."""
        return {"moments": [self._count, self._mean, self._square], "running": self._running.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over saved statistics."""
        self._count, self._mean, self._square = state["moments"]
        self._running = np.array(state["running"], np.float64)
