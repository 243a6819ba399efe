"""Exploration of Q-learners: the choice among action values, in numpy, row by row.

An exploration with known probabilities has `probability` too, which datasets store and off-policy evaluation needs. One
with a state per environment has `reset`, `state_dict` and `load_state_dict` too: a resumed run continues exactly. One
that chooses among values of its own has `own_values` too, and one that does not fit all policies `check_policy`.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from trainkit.core.assignments import Elsewhere
from trainkit.core.config import Part
from trainkit.core.data import ACTION_PROB, ArraySpec, Obs, any_true
from trainkit.core.errors import Checks, ConfigError, DivergedError
from trainkit.core.schedules import Adjustable, Linear, Scheduled
from trainkit.core.signatures import checked
from trainkit.core.spaces import random_legal

if TYPE_CHECKING:
    from trainkit.policy.dqn import DQNPolicy

Values = NDArray[np.float32]  # [K, A]
Mask = NDArray[np.bool_] | None
Actions = NDArray[np.int64]  # [K]
EnvIds = NDArray[np.intp] | None  # [K]


class Exploration(Protocol):
    """A choice among values q [K, A], -inf where illegal; `legal` [K, A] is None if every action is legal.

    `starts` [K] are True where an episode starts, where any state per environment, of `env_ids` [K], is reset.
    """

    def choose(
        self, q: Values, legal: Mask, *, step: int, env_ids: EnvIds, starts: Mask, rng: np.random.Generator
    ) -> Actions:
        """Return the actions [K] to take."""
        ...

    def metrics(self, step: int) -> dict[str, float]:
        """Return values to log at `step`, such as epsilon, by name."""
        ...


@runtime_checkable
class HasProbability(Exploration, Protocol):
    """An exploration that knows the probability [K, A] of every action in `choose`, 0 where illegal."""

    def probability(self, q: Values, legal: Mask, *, step: int, env_ids: EnvIds = None) -> NDArray[np.float64]: ...


@runtime_checkable
class HasState(Exploration, Protocol):
    """An exploration with a state per environment, which checkpoints save with the random streams."""

    def reset(self) -> None:
        """Forget the environments."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the state, in tensors and plain values."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        ...


@runtime_checkable
class ChecksPolicy(Exploration, Protocol):
    """An exploration that does not fit all policies."""

    def check_policy(self, policy: "DQNPolicy") -> None:
        """Raise a `ConfigError` if it does not fit a policy, to which it is given."""
        ...


@runtime_checkable
class HasOwnValues(Exploration, Protocol):
    """An exploration that chooses among values of its own, such as those of perturbed weights."""

    def own_values(
        self, policy: "DQNPolicy", obs: Obs, q: Values, *, step: int, env_ids: EnvIds, starts: Mask
    ) -> Values:
        """Return the values [K, A] to choose among, also of illegal actions, for raw observations [K, ...].

        `q` [K, A] are the policy's values, -inf where illegal.
        """
        ...


@checked
class Greedy(Part):
    """Greedy actions; exploration can only come from noise in the network."""

    epsilon = Elsewhere("Greedy has none: policy.exploration = EpsilonGreedy(0.1) is for actions that follow")
    eps = Elsewhere("Greedy has none: policy.exploration = EpsilonGreedy(0.1) is for actions that follow")

    def choose(
        self, q: Values, legal: Mask, *, step: int, env_ids: EnvIds, rng: np.random.Generator, starts: Mask = None
    ) -> Actions:
        """Return the best action of every row, [K]."""
        best: Actions = q.argmax(axis=1)
        return best

    def probability(self, q: Values, legal: Mask, *, step: int, env_ids: EnvIds = None) -> NDArray[np.float64]:
        """Return 1 for the best action and 0 for all others, [K, A]."""
        return one_hot(q.argmax(axis=1), q.shape[1])

    def metrics(self, step: int) -> dict[str, float]:
        """Return no values: nothing changes with the step."""
        return {}


@checked
class EpsilonGreedy(Part):
    """A random legal action with probability epsilon, else the greedy one, independently in every row.

    Args:
        epsilon: in [0, 1]; a number, knots or a schedule of the environment step; in a preset also a `Linear`.
        per_env: factors [N], one per environment, to spread epsilon over them (Horgan et al., 2018).
    """

    epsilon = Adjustable(low=0, high=1, of_part=True)
    eps = Elsewhere("exploration.epsilon = 0.1 is for actions that follow")

    def __init__(self, epsilon: Scheduled | Linear, *, per_env: Sequence[float] | None = None) -> None:
        self.epsilon = epsilon
        self.per_env = per_env

    @property
    def per_env(self) -> NDArray[np.float64] | None:
        """The factors of the environments; may be assigned."""
        return self._per_env

    @per_env.setter
    def per_env(self, per_env: Sequence[float] | None) -> None:
        with Checks("EpsilonGreedy") as checks:
            for factor in () if per_env is None else per_env:
                checks.number("per_env", factor, low=0, high=1)
        self._per_env = None if per_env is None else np.asarray(per_env, np.float64)

    @classmethod
    def linear(cls, start: float, end: float, n_steps: int) -> "EpsilonGreedy":
        """Anneal epsilon from `start` to `end` over the first `n_steps`, and keep it there."""
        with Checks("EpsilonGreedy.linear") as checks:
            checks.integer("n_steps", n_steps, low=1)
        return cls([(0, start), (n_steps, end)])

    def choose(
        self, q: Values, legal: Mask, *, step: int, env_ids: EnvIds, rng: np.random.Generator, starts: Mask = None
    ) -> Actions:
        """Return a random legal action with probability epsilon, else the best one, in every row [K]."""
        n_rows, n_actions = q.shape
        draws = rng.random(2 * n_rows)
        factor = self._factor(np.arange(n_rows) if env_ids is None else env_ids)
        is_random = draws[:n_rows] < self.epsilon(step) * factor
        random_action = draws[n_rows:] * n_actions if legal is None else random_legal(legal, rng)
        action: NDArray[np.int64] = q.argmax(axis=1)
        if any_true(is_random):
            action[is_random] = random_action[is_random].astype(np.int64)
        return action

    def probability(self, q: Values, legal: Mask, *, step: int, env_ids: EnvIds = None) -> NDArray[np.float64]:
        """Return epsilon / legal actions, and 1 - epsilon more for the best, [K, A]."""
        if self.per_env is not None and env_ids is None:
            raise ConfigError(
                "EpsilonGreedy(per_env=) is another policy in each environment: its probabilities need env_ids, "
                "exploration.probability(q, legal, step=step, env_ids=...)"
            )
        factor = self._factor(env_ids)
        epsilon = np.broadcast_to(self.epsilon(step) * factor, len(q))[:, None]
        is_legal = np.ones(q.shape, np.bool_) if legal is None else legal
        uniform: NDArray[np.float64] = is_legal * (epsilon / is_legal.sum(axis=1, keepdims=True))
        return uniform + (1.0 - epsilon) * one_hot(q.argmax(axis=1), q.shape[1])

    def _factor(self, env_ids: EnvIds) -> NDArray[np.float64] | float:
        """Return the factors of environments [K]."""
        if self.per_env is None:
            return 1.0
        try:
            factors: NDArray[np.float64] = self.per_env[env_ids]
        except IndexError:
            assert env_ids is not None, "checked by its callers"
            raise ConfigError(
                f"EpsilonGreedy.per_env has {len(self.per_env)} factors, and environment {max(env_ids)} acts: give one "
                "for each environment; evaluations that explore need Evaluation(exploration=EpsilonGreedy(...))"
            ) from None
        return factors

    def metrics(self, step: int) -> dict[str, float]:
        """Return epsilon at `step`."""
        return {"epsilon": self.epsilon(step)}


@checked
class EZGreedy(Part):
    """Temporally-extended epsilon-greedy (Dabney et al., 2021): random actions are repeated for several steps.

    In an environment that repeats no action, a random legal one is drawn with probability epsilon and repeated for n
    steps, with P(n) proportional to n**-mu up to `max_repeat`; otherwise the greedy action is taken. A repeat ends
    where an episode starts, and where its action is illegal.

    More actions are random than in `EpsilonGreedy`: of all actions, epsilon m / (1 - epsilon + epsilon m), where m is
    the mean of n. There is no `probability`: during a repeat all other actions have probability 0, so that importance
    weights could not correct for it.

    One object explores for one policy. Calls with neither `env_ids` nor `starts`, as by `predict`, repeat nothing.

    Args:
        epsilon: in [0, 1]; a number, knots or a schedule of the environment step; in a preset also a `Linear`.
        mu: at least 0; the larger, the shorter are the repeats, and 0 makes all lengths equally probable. The paper's
            is 2.
        max_repeat: largest n. For mu=2 the mean is 3.2 with 100, 6.0 with 10,000.
    """

    epsilon = Adjustable(low=0, high=1, of_part=True)
    eps = Elsewhere("exploration.epsilon = 0.1 is for actions that follow")

    def __init__(self, epsilon: Scheduled | Linear, *, mu: float = 2.0, max_repeat: int = 10_000) -> None:
        self.epsilon = epsilon
        with Checks("EZGreedy") as checks:
            checks.number("mu", mu, low=0)
            checks.integer("max_repeat", max_repeat, low=1)
        self._mu, self._max_repeat = mu, max_repeat
        total = np.cumsum(np.arange(1.0, max_repeat + 1) ** -mu)
        self._cumulative = total / total[-1]  # [max_repeat], probability of at most 1, 2, ... steps
        self.reset()

    @property
    def mu(self) -> float:
        """The exponent of the durations."""
        return self._mu

    @property
    def max_repeat(self) -> int:
        """The longest duration, in steps."""
        return self._max_repeat

    def reset(self) -> None:
        """Repeat no action anywhere."""
        self._action = np.zeros(0, np.int64)  # [N], repeated by each environment
        self._n_left = np.zeros(0, np.int64)  # [N], steps left

    def choose(
        self, q: Values, legal: Mask, *, step: int, env_ids: EnvIds, rng: np.random.Generator, starts: Mask = None
    ) -> Actions:
        """Return the repeated action, a new random legal one or the best one, in every row [K]."""
        n_rows, n_actions = q.shape
        coin, length, draw = rng.random((3, n_rows))
        random_action = (draw * n_actions).astype(np.int64) if legal is None else random_legal(legal, rng)
        repeats = env_ids is not None or starts is not None
        rows = np.arange(n_rows) if env_ids is None else env_ids
        action, n_left = self._repeated(rows, legal, starts) if repeats else np.zeros((2, n_rows), np.int64)
        is_new = (n_left == 0) & (coin < self.epsilon(step))
        action = np.where(is_new, random_action, action)
        n_left = np.where(is_new, 1 + np.searchsorted(self._cumulative, length), n_left)
        if repeats:
            self._action[rows] = action
            self._n_left[rows] = np.maximum(n_left - 1, 0)
        chosen: Actions = np.where(n_left > 0, action, q.argmax(axis=1))
        return chosen

    def _repeated(self, rows: NDArray[np.intp], legal: Mask, starts: Mask) -> tuple[Actions, Actions]:
        """Return the actions [K] that these environments repeat, and the steps left [K], 0 where a repeat ends."""
        n_missing = int(rows.max()) + 1 - len(self._n_left)
        if n_missing > 0:  # environments that were not seen before
            self._action = np.concatenate([self._action, np.zeros(n_missing, np.int64)])
            self._n_left = np.concatenate([self._n_left, np.zeros(n_missing, np.int64)])
        action, n_left = self._action[rows], self._n_left[rows]
        if starts is not None:
            n_left[starts] = 0
        if legal is not None:
            n_left[~legal[np.arange(len(rows)), action]] = 0
        return action, n_left

    def metrics(self, step: int) -> dict[str, float]:
        """Return epsilon at `step`."""
        return {"epsilon": self.epsilon(step)}

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the repeated actions and the steps left of each, in tensors."""
        return {name: torch.from_numpy(getattr(self, f"_{name}").copy()) for name in ("action", "n_left")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue saved repeats."""
        action, n_left = (np.array(state[name].numpy(), np.int64) for name in ("action", "n_left"))
        if action.ndim != 1 or action.shape != n_left.shape or (action < 0).any() or (n_left < 0).any():
            raise ValueError("the repeated actions of exploration do not fit their numbers of steps")
        self._action, self._n_left = action, n_left


@checked
class SoftQ(Part):
    """Actions with the probabilities softmax(q / temperature), independently in every row.

    Args:
        temperature: above 0, in units of return; a number, knots or a schedule of the environment step; in a preset
            also a `Linear`. The limit 0 is greedy.
    """

    temperature = Adjustable(low=0, above_low=True, of_part=True)

    def __init__(self, temperature: Scheduled | Linear = 1.0) -> None:
        self.temperature = temperature

    def choose(
        self, q: Values, legal: Mask, *, step: int, env_ids: EnvIds, rng: np.random.Generator, starts: Mask = None
    ) -> Actions:
        """Sample an action of every row from softmax(q / temperature), [K]."""
        drawn = self._scaled(q, step) + rng.gumbel(size=q.shape)  # the largest is distributed as the softmax
        action: NDArray[np.int64] = drawn.argmax(axis=1)
        return action

    def probability(self, q: Values, legal: Mask, *, step: int, env_ids: EnvIds = None) -> NDArray[np.float64]:
        """Return softmax(q / temperature), [K, A]."""
        weight = np.exp(self._scaled(q, step))
        probability: NDArray[np.float64] = weight / weight.sum(axis=1, keepdims=True)
        return probability

    def _scaled(self, q: NDArray[np.float32], step: int) -> NDArray[np.float64]:
        """Return (q - max q) / temperature, [K, A]."""
        below: NDArray[np.float64] = (q - q.max(axis=1, keepdims=True)).astype(np.float64)
        return below / self.temperature(step)

    def metrics(self, step: int) -> dict[str, float]:
        """Return the temperature at `step`."""
        return {"temperature": self.temperature(step)}


ACTION_PROB_SPEC: Mapping[str, ArraySpec] = {ACTION_PROB: ArraySpec(shape=(), dtype=np.dtype(np.float64))}


def require_probability(owner: str, exploration: Exploration, noise_size: int = 0) -> HasProbability:
    """Return an exploration that knows its probabilities; raise for any other, and for noisy layers."""
    if noise_size:
        raise ConfigError(
            f"{owner} does not know the probabilities of its actions: its noisy layers are random; use SoftQ"
        )
    if not isinstance(exploration, HasProbability):
        raise ConfigError(
            f"{owner} does not know the probabilities of its actions: {type(exploration).__name__} has no method "
            "`probability`; use EpsilonGreedy, SoftQ or Greedy, or give it one"
        )
    return exploration


def non_finite_values(
    owner: str, values: NDArray[np.float32], step: int, env_ids: NDArray[np.intp] | None = None
) -> DivergedError:
    """Return the error of action values [K, A] that are not all finite."""
    row = int(np.argwhere(~np.isfinite(values))[0][0])
    env = row if env_ids is None else env_ids[row]
    return DivergedError(f"{owner} gives values {values[row]} for env {env} at step {step}")


def one_hot(action: NDArray[np.int64], n_actions: int) -> NDArray[np.float64]:
    """Return one-hot rows [K, A] of actions [K]."""
    rows: NDArray[np.float64] = np.eye(n_actions)[action]
    return rows
