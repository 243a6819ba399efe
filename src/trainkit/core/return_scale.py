"""Rewards at the scale of one return: divided by the running deviation of what the environments pay."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.core.errors import Checks, ConfigError
from trainkit.core.parts import Part
from trainkit.core.signatures import checked


@checked
class ReturnScale(Part):
    """Divide rewards by the deviation of the discounted return so far, and clip them.

    Each environment's running return is R = gamma * R + reward, restarted with every episode; the deviation is the
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
        self._count, self._mean, self._square = 0, 0.0, 0.0  # of all R: count, mean, summed squared deviation

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

    @property
    def n_observed(self) -> int:
        """Number of rewards observed."""
        return self._count

    def observe(self, reward: NDArray[np.float64], ended: NDArray[np.bool_], env_ids: NDArray[np.intp]) -> None:
        """Add one step [K] of distinct environments."""
        if len(reward) == 0:
            return
        n_envs = int(env_ids.max()) + 1
        if n_envs > len(self._running):
            self._running = np.concatenate([self._running, np.zeros(n_envs - len(self._running))])
        returns = self.gamma * self._running[env_ids] + reward
        self._merge_returns(returns)
        self._running[env_ids] = np.where(ended, 0.0, returns)

    def cut(self, env_ids: NDArray[np.intp]) -> None:
        """Restart the running returns of these environments, whose episodes were cut."""
        self._running[env_ids[env_ids < len(self._running)]] = 0.0

    def study(self, rewards: Sequence[NDArray[np.float64]]) -> None:
        """Add whole episodes, each given by its rewards [T]."""
        longest_first = sorted(rewards, key=len, reverse=True)
        lengths = np.array([len(one) for one in longest_first])
        running = np.zeros(len(lengths))
        for t in range(lengths.max(initial=0)):
            n_running = int(np.searchsorted(-lengths, -t))  # those longer than t come first
            running[:n_running] *= self.gamma
            running[:n_running] += [one[t] for one in longest_first[:n_running]]
            self._merge_returns(running[:n_running])

    def merge(self, other: "ReturnScale") -> None:
        """Merge all returns that another scale has observed, exactly, as if they had been observed here.

        Running returns of its environments are not taken over. `other` stays as it is; merge it once only.
        """
        if other is self or other.gamma != self.gamma:
            raise ConfigError(
                f"ReturnScale.merge needs another scale of gamma {self.gamma}, got "
                f"{'itself' if other is self else other.gamma}"
            )
        self._add(other._count, other._mean, other._square)

    def _merge_returns(self, returns: NDArray[np.float64]) -> None:
        """Merge returns [K] into the moments."""
        mean = float(returns.mean())
        self._add(len(returns), mean, float(np.square(returns - mean).sum()))

    def _add(self, n_rows: int, mean: float, square: float) -> None:
        """Merge the moments of other returns (Chan et al., 1979)."""
        if n_rows == 0:
            return
        apart, total = mean - self._mean, self._count + n_rows
        self._square += square + apart**2 * self._count * n_rows / total
        self._mean += apart * n_rows / total
        self._count = total

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics and the running returns."""
        return {"moments": [self._count, self._mean, self._square], "running": self._running.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over saved statistics."""
        self._count, self._mean, self._square = state["moments"]
        self._running = np.array(state["running"], np.float64)
