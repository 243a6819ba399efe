"""How to leave the greedy path: a choice among action values, in numpy, one draw per row.

One that can tell how likely its choices are has `probability` too: datasets store it, estimates of other policies
need it.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from trainkit.core.arrays import is_finite
from trainkit.core.data import ACTION_PROB, ArraySpec
from trainkit.core.errors import Checks, ConfigError, DivergedError
from trainkit.core.parts import Part
from trainkit.core.schedules import Scheduled, as_schedule
from trainkit.core.signatures import checked
from trainkit.core.spaces import random_legal


class Exploration(Protocol):
    """Choose among values q [K, A], -inf where illegal; `legal` [K, A] is None where everything is.

    `starts` [K] says whose episode begins here: what is kept per environment, of `env_ids` [K], begins anew there.
    """

    def choose(
        self,
        q: NDArray[np.float32],
        legal: NDArray[np.bool_] | None,
        *,
        step: int,
        env_ids: NDArray[np.intp] | None,
        starts: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.int64]: ...

    def metrics(self, step: int) -> dict[str, float]: ...


@runtime_checkable
class HasProbability(Exploration, Protocol):
    """Tell the probability [K, A] of every action, 0 where illegal, that `choose` draws with."""

    def probability(
        self,
        q: NDArray[np.float32],
        legal: NDArray[np.bool_] | None,
        *,
        step: int,
        env_ids: NDArray[np.intp] | None = None,
    ) -> NDArray[np.float64]: ...


@checked
class Greedy(Part):
    """Take the best action; what exploring there is comes from noise in the network."""

    def choose(
        self,
        q: NDArray[np.float32],
        legal: NDArray[np.bool_] | None,
        *,
        step: int,
        env_ids: NDArray[np.intp] | None,
        rng: np.random.Generator,
        starts: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.int64]:
        best: NDArray[np.int64] = q.argmax(axis=1)
        return best

    def probability(
        self,
        q: NDArray[np.float32],
        legal: NDArray[np.bool_] | None,
        *,
        step: int,
        env_ids: NDArray[np.intp] | None = None,
    ) -> NDArray[np.float64]:
        """Return 1 for the best action and 0 for all others, [K, A]."""
        return one_hot(q.argmax(axis=1), q.shape[1])

    def metrics(self, step: int) -> dict[str, float]:
        return {}


@checked
class EpsilonGreedy(Part):
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
        self.per_env = None if per_env is None else np.asarray(per_env, np.float64)

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
        starts: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.int64]:
        n_rows, n_actions = q.shape
        draws = rng.random(2 * n_rows)  # one call for both
        coin, place = draws[:n_rows], draws[n_rows:]
        explores = coin < self._epsilon_of(slice(n_rows) if env_ids is None else env_ids, step)
        anything = place * n_actions if legal is None else random_legal(legal, rng)
        action: NDArray[np.int64] = np.where(explores, anything.astype(np.int64), q.argmax(axis=1))
        return action

    def probability(
        self,
        q: NDArray[np.float32],
        legal: NDArray[np.bool_] | None,
        *,
        step: int,
        env_ids: NDArray[np.intp] | None = None,
    ) -> NDArray[np.float64]:
        """Return epsilon / legal actions, and 1 - epsilon more for the best, [K, A]."""
        if self.per_env is not None and env_ids is None:
            raise ConfigError(
                "EpsilonGreedy(per_env=) is another policy in each environment: its probabilities need env_ids"
            )
        epsilon = np.broadcast_to(self._epsilon_of(env_ids, step), len(q))[:, None]
        likes = np.ones(q.shape, np.bool_) if legal is None else legal
        share: NDArray[np.float64] = likes * (epsilon / likes.sum(axis=1, keepdims=True))
        return share + (1.0 - epsilon) * one_hot(q.argmax(axis=1), q.shape[1])

    def _epsilon_of(self, env_ids: NDArray[np.intp] | slice | None, step: int) -> float | NDArray[np.float64]:
        epsilon = self.epsilon(step)
        return epsilon if self.per_env is None else epsilon * self.per_env[env_ids]

    def metrics(self, step: int) -> dict[str, float]:
        return {"epsilon": self.epsilon(step)}


@checked
class SoftQ(Part):
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
        starts: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.int64]:
        drawn = self._scaled(q, step) + rng.gumbel(size=q.shape)  # the largest is distributed as the softmax
        action: NDArray[np.int64] = drawn.argmax(axis=1)
        return action

    def probability(
        self,
        q: NDArray[np.float32],
        legal: NDArray[np.bool_] | None,
        *,
        step: int,
        env_ids: NDArray[np.intp] | None = None,
    ) -> NDArray[np.float64]:
        """Return softmax(q / temperature), [K, A]."""
        odds = np.exp(self._scaled(q, step))
        share: NDArray[np.float64] = odds / odds.sum(axis=1, keepdims=True)
        return share

    def _scaled(self, q: NDArray[np.float32], step: int) -> NDArray[np.float64]:
        """Return how far values are below the best, in temperatures [K, A]."""
        below: NDArray[np.float64] = (q - q.max(axis=1, keepdims=True)).astype(np.float64)
        return below / self.temperature(step)

    def metrics(self, step: int) -> dict[str, float]:
        return {"temperature": self.temperature(step)}


ACTION_PROB_SPEC: Mapping[str, ArraySpec] = {ACTION_PROB: ArraySpec(shape=(), dtype=np.dtype(np.float64))}


def require_probability(owner: str, exploration: Exploration, noise_size: int = 0) -> HasProbability:
    """Return an exploration that can tell its probabilities; refuse one that cannot, and noise beside it."""
    if noise_size:
        raise ConfigError(f"{owner} cannot tell how likely its actions are: its noisy layers choose too; use SoftQ")
    if not isinstance(exploration, HasProbability):
        raise ConfigError(
            f"{owner} cannot tell how likely its actions are: {type(exploration).__name__} has no method "
            "`probability`; use EpsilonGreedy, SoftQ or Greedy, or give it one"
        )
    return exploration


def chosen_probability(
    exploration: HasProbability,
    q: NDArray[np.float32],
    legal: NDArray[np.bool_] | None,
    action: NDArray[np.int64],
    step: int,
    env_ids: NDArray[np.intp] | None,
) -> dict[str, NDArray[np.float64]]:
    """Return the column of the probabilities [K] of the actions taken."""
    probability = exploration.probability(q, legal, step=step, env_ids=env_ids)
    return {ACTION_PROB: probability[np.arange(len(action)), action]}


def legal_values(
    owner: str,
    q: NDArray[np.float32],
    legal: NDArray[np.bool_] | None,
    step: int,
    env_ids: NDArray[np.intp] | None = None,
) -> NDArray[np.float32]:
    """Return the values `q` [K, A] with -inf where illegal; raise `DivergedError` where one is not finite."""
    if not is_finite(q):
        row = int(np.argwhere(~np.isfinite(q))[0][0])
        env = row if env_ids is None else env_ids[row]
        raise DivergedError(f"{owner} gives values {q[row]} for env {env} at step {step}")
    return q if legal is None else np.where(legal, q, -np.inf)


def one_hot(action: NDArray[np.int64], n_actions: int) -> NDArray[np.float64]:
    """Return 1 at each row's action and 0 elsewhere, [K, A]."""
    rows: NDArray[np.float64] = np.eye(n_actions)[action]
    return rows
