"""How to leave the greedy path: a choice among action values, in numpy, one draw per row."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trainkit.errors import Checks
from trainkit.schedules import Scheduled, as_schedule
from trainkit.spaces import random_legal


class Exploration(Protocol):
    """Choose among values q [K, A], -inf where illegal; `legal` [K, A] is None where everything is."""

    def choose(
        self,
        q: NDArray[np.float32],
        legal: NDArray[np.bool_] | None,
        *,
        step: int,
        env_ids: NDArray[np.intp] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.int64]: ...

    def metrics(self, step: int) -> dict[str, float]: ...


class Greedy:
    """Take the best action; what exploring there is comes from noise in the network."""

    def choose(
        self,
        q: NDArray[np.float32],
        legal: NDArray[np.bool_] | None,
        *,
        step: int,
        env_ids: NDArray[np.intp] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.int64]:
        best: NDArray[np.int64] = q.argmax(axis=1)
        return best

    def metrics(self, step: int) -> dict[str, float]:
        return {}


class EpsilonGreedy:
    """Take a random legal action with probability epsilon, else the best; every row has a coin of its own.

    Args:
        epsilon: in [0, 1]; a number, knots or a schedule of the environment step.
        per_env: factors [N], one per environment, to spread epsilon over them (Horgan et al., 2018).
    """

    def __init__(self, epsilon: Scheduled, *, per_env: Sequence[float] | None = None) -> None:
        self.epsilon = as_schedule("EpsilonGreedy", "epsilon", epsilon, low=0, high=1)
        checks = Checks("EpsilonGreedy")
        for factor in () if per_env is None else per_env:
            checks.number("per_env", factor, low=0, high=1)
        checks.done()
        self._per_env = None if per_env is None else np.asarray(per_env, np.float64)

    @classmethod
    def linear(cls, start: float, end: float, n_steps: int) -> "EpsilonGreedy":
        """Anneal epsilon from `start` to `end` over the first `n_steps`, and hold it."""
        return cls([(0, start), (n_steps, end)])

    def choose(
        self,
        q: NDArray[np.float32],
        legal: NDArray[np.bool_] | None,
        *,
        step: int,
        env_ids: NDArray[np.intp] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.int64]:
        n_rows, n_actions = q.shape
        epsilon: float | NDArray[np.float64] = self.epsilon(step)
        if self._per_env is not None:
            epsilon = epsilon * self._per_env[np.arange(n_rows) if env_ids is None else env_ids]
        explores = rng.random(n_rows) < epsilon
        anything = rng.integers(n_actions, size=n_rows) if legal is None else random_legal(legal, rng)
        action: NDArray[np.int64] = np.where(explores, anything, q.argmax(axis=1))
        return action

    def metrics(self, step: int) -> dict[str, float]:
        return {"epsilon": self.epsilon(step)}


class SoftQ:
    """Draw actions with the probabilities softmax(q / temperature); every row by itself.

    Args:
        temperature: above 0, in units of return; a number, knots or a schedule of the environment step. Near 0 it is
            greedy.
    """

    def __init__(self, temperature: Scheduled = 1.0) -> None:
        self.temperature = as_schedule("SoftQ", "temperature", temperature, low=0, above_low=True)

    def choose(
        self,
        q: NDArray[np.float32],
        legal: NDArray[np.bool_] | None,
        *,
        step: int,
        env_ids: NDArray[np.intp] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.int64]:
        drawn = self._scaled(q, step) + rng.gumbel(size=q.shape)  # the largest is distributed as the softmax
        action: NDArray[np.int64] = drawn.argmax(axis=1)
        return action

    def probability(self, q: NDArray[np.float32], *, step: int) -> NDArray[np.float64]:
        """Return the probabilities [K, A] that `choose` draws with."""
        odds = np.exp(self._scaled(q, step))
        share: NDArray[np.float64] = odds / odds.sum(axis=1, keepdims=True)
        return share

    def _scaled(self, q: NDArray[np.float32], step: int) -> NDArray[np.float64]:
        """Return how far values are below the best, in temperatures [K, A]."""
        below: NDArray[np.float64] = (q - q.max(axis=1, keepdims=True)).astype(np.float64)
        return below / self.temperature(step)

    def metrics(self, step: int) -> dict[str, float]:
        return {"temperature": self.temperature(step)}
