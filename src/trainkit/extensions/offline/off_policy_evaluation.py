"""Off-policy evaluation: estimates of a policy's return from episodes of another, by importance sampling or a model.

Of episode e, with gamma, rewards r_t, and the ratios of the target's to the behavior's probability of each action:

    rho_et     product over k <= t of target(a_k | s_k) / behavior(a_k | s_k)
    ordinary   mean over e of sum over t of gamma**t * rho_et * r_et
    weighted   mean over e of sum over t of gamma**t * rho_et / w_t * r_et, w_t = mean over e of rho_et

Both are per decision (Precup, Sutton & Singh, 2000, section 3): the weight of a reward is the ratio of the actions up
to it. The ordinary estimator is unbiased with a large variance; the weighted one is biased, consistent, with a smaller
variance. After its end an episode keeps its last rho, with rewards of 0 (Thomas, 2015, consistent weighted
per-decision). RLlib computes w_t over the episodes that reached t, which is the same if all are equally long; if the
length depends on the actions, that mistakes the lengths of the behavior's episodes for the target's. Where w_t is 0 no
episode could be the target's, and the step counts nothing.

With action values q of the target, as `trainkit.trainer.fitted_q_evaluation` fits them, and v(s) = sum over a of
target(a | s) q(s, a):

    direct         mean over e of v(s_e0)
    doubly robust  mean over e of d_e0, d_et = v(s_t) + ratio_t * (r_t + gamma * d_e,t+1 - q(s_t, a_t))

The second (Jiang & Li, 2016, equation 10) is importance sampling with q as a control variate: unbiased if the
behavior's probabilities are right, whatever q is, and of small variance where q is good. After a termination d is 0,
after a truncation v of the last observation: both estimate the return without the time limit.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trainkit.buffer import ReplayBuffer
from trainkit.core import tree
from trainkit.core.data import ACTION_PROB, Obs, RecordedEpisode
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.signatures import checked

_log = logging.getLogger(__name__)

_LOG_PROB = "log_prob"
_LEAST_SAMPLE_SIZE = 1.5  # effective episodes: a single one has no spread, and an error of about 0
_ROUNDING = 1e-6  # by which a probability of float32 may exceed 1


class HasActionProbability(Protocol):
    """A policy that returns the probability of each action."""

    last_step: int

    def action_probability(self, obs: Obs, *, step: int = 0, explore: bool = False) -> NDArray[np.float64]:
        """Return the probability of every action, [K, A], greedy or with exploration as at `step`."""
        ...


class HasActionValues(Protocol):
    """Action values of a policy, such as those that `fitted_q_evaluation` fits, or a Q-learner's."""

    def action_values(self, obs: Obs) -> NDArray[np.floating[Any]]:
        """Return the expected discounted return of every action, [K, A]."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """An estimate of a policy's discounted return from an episode's start.

    Attributes:
        behavior: the mean discounted return of the episodes as they were played.
        value: the estimate for the target policy.
        std_error: of `value`; of the weighted one by linearization (the delta method). None where the episodes cannot
            tell it: of a single one, of an effective sample size below 1.5, and of the direct method, which cannot
            know the error of its action values.
        per_episode: [E], each episode's contribution; `value` is their mean.
        effective_sample_size: (sum of rho)**2 / sum of rho**2, by the ratio of each whole episode: the number of
            the target's own episodes that the E are worth, 0 where none could be its own. None of the direct method,
            which needs no ratios.
        n_episodes: E.
        n_skipped: episodes without an end, cut or still running, whose return is unknown.
    """

    behavior: float
    value: float
    std_error: float | None
    per_episode: NDArray[np.float64] = field(repr=False)
    effective_sample_size: float | None
    n_episodes: int
    n_skipped: int


@checked
def importance_sampling(
    policy: HasActionProbability, dataset: ReplayBuffer, *, gamma: float, explore: bool = False, step: int | None = None
) -> Estimate:
    """Estimate a policy's return by ordinary importance sampling, per decision.

    Args:
        policy: the target. Its actions must be Discrete.
        dataset: whole episodes with the column `action_prob` (or `log_prob`, of on-policy learners that explored).
        gamma: discount per step, in [0, 1].
        explore: whether the target explores; if not, it is greedy.
        step: of its exploration schedule; default: that of its last update, which loaded weights do not have.

    Raises:
        ConfigError: a probability is missing, zero, negative, above 1 or nan.
    """
    return _estimate("importance_sampling", policy, dataset, gamma, explore, step, is_weighted=False)


@checked
def weighted_importance_sampling(
    policy: HasActionProbability, dataset: ReplayBuffer, *, gamma: float, explore: bool = False, step: int | None = None
) -> Estimate:
    """Estimate a policy's return by weighted importance sampling, per decision; see `importance_sampling`."""
    return _estimate("weighted_importance_sampling", policy, dataset, gamma, explore, step, is_weighted=True)


@checked
def direct_method(
    policy: HasActionProbability,
    dataset: ReplayBuffer,
    q: HasActionValues,
    *,
    gamma: float,
    explore: bool = False,
    step: int | None = None,
) -> Estimate:
    """Estimate a policy's return by action values at the episodes' starts; needs no probabilities of the behavior.

    Args:
        policy, dataset, gamma, explore, step: as in `importance_sampling`.
        q: the target's action values with this gamma.
    """
    at = _checked_step("direct_method", policy, gamma, explore, step, q)
    episodes, n_skipped = _whole_episodes("direct_method", dataset)
    starts = tree.map_tree(lambda *leaves: np.stack([leaf[0] for leaf in leaves]), *[one.obs for one in episodes])
    per_episode = _state_values(policy, q, starts, at, explore)
    return Estimate(
        behavior=_mean_return(episodes, gamma),
        value=float(per_episode.mean()),
        std_error=None,
        per_episode=per_episode,
        effective_sample_size=None,
        n_episodes=len(episodes),
        n_skipped=n_skipped,
    )


@checked
def doubly_robust(
    policy: HasActionProbability,
    dataset: ReplayBuffer,
    q: HasActionValues,
    *,
    gamma: float,
    explore: bool = False,
    step: int | None = None,
) -> Estimate:
    """Estimate a policy's return by importance sampling with action values as a control variate (Jiang & Li, 2016).

    Args:
        policy, dataset, gamma, explore, step: as in `importance_sampling`.
        q: the target's action values with this gamma; fit them to other episodes for a standard error that is not too
            small.

    Raises:
        ConfigError: a probability is missing, zero, negative, above 1 or nan.
    """
    at = _checked_step("doubly_robust", policy, gamma, explore, step, q)
    episodes, n_skipped = _whole_episodes("doubly_robust", dataset)
    per_episode, log_rho = np.zeros(len(episodes)), np.zeros(len(episodes))
    for number, episode in enumerate(episodes):
        n_steps = len(episode)
        n_seen = n_steps if episode.terminated else n_steps + 1  # after a termination there is nothing to act on
        obs = tree.map_tree(lambda leaf, n=n_seen: leaf[:n], episode.obs)
        values = np.asarray(q.action_values(obs), np.float64)
        target = policy.action_probability(obs, step=at, explore=explore)
        state_value = (target * values).sum(axis=1)
        taken = np.arange(n_steps), episode.action
        ratio = target[taken] / _behavior("doubly_robust", number, episode)
        error = episode.reward - values[taken]
        after = 0.0 if episode.terminated else float(state_value[n_steps])
        for t in reversed(range(n_steps)):
            after = float(state_value[t] + ratio[t] * (error[t] + gamma * after))
        with np.errstate(divide="ignore"):
            per_episode[number], log_rho[number] = after, np.log(ratio).sum()
    if not np.isfinite(per_episode).all():
        raise _unbounded("doubly_robust")
    return Estimate(
        behavior=_mean_return(episodes, gamma),
        value=float(per_episode.mean()),
        std_error=_std_error("doubly_robust", per_episode, log_rho),
        per_episode=per_episode,
        effective_sample_size=_effective_sample_size(log_rho),
        n_episodes=len(episodes),
        n_skipped=n_skipped,
    )


def per_decision(
    ratios: Sequence[NDArray[np.float64]],
    rewards: Sequence[NDArray[np.float64]],
    *,
    gamma: float,
    is_weighted: bool,
    n_skipped: int = 0,
) -> Estimate:
    """Estimate from each step's ratio of probabilities and reward, [T] per episode; see the formulas above."""
    length = np.array([len(one) for one in rewards])
    is_step = np.arange(length.max()) < length[:, None]  # [E, T]
    reward, ratio = np.zeros(is_step.shape), np.ones(is_step.shape)
    reward[is_step], ratio[is_step] = np.concatenate(rewards), np.concatenate(ratios)
    discount = gamma ** np.arange(length.max())
    with np.errstate(divide="ignore"):
        log_rho = np.cumsum(np.log(ratio), axis=1)  # rho itself overflows within a thousand steps
    top = log_rho.max(axis=0)  # [T], of any episode
    scaled = np.exp(log_rho - np.where(np.isfinite(top), top, 0.0))  # rho over each column's largest
    if is_weighted:
        mean = scaled.mean(axis=0)  # [T]; the scale is in both, and cancels
        share = scaled / np.where(mean > 0.0, mean, 1.0)
        per_episode = (share * reward) @ discount
        mean_reward = (share * reward).mean(axis=0)  # [T], as the target would earn it
        influence = (share * (reward - mean_reward) + mean_reward) @ discount
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            influence = per_episode = (np.exp(log_rho) * reward) @ discount
        if not np.isfinite(per_episode).all():
            raise _unbounded("importance_sampling")
    whole = log_rho[:, -1]  # beyond an episode's end ratios are 1
    name = "weighted_importance_sampling" if is_weighted else "importance_sampling"
    return Estimate(
        behavior=float((reward @ discount).mean()),
        value=float(per_episode.mean()),
        std_error=_std_error(name, influence, whole),
        per_episode=per_episode,
        effective_sample_size=_effective_sample_size(whole),
        n_episodes=len(length),
        n_skipped=n_skipped,
    )


def _estimate(
    name: str,
    policy: HasActionProbability,
    dataset: ReplayBuffer,
    gamma: float,
    explore: bool,
    step: int | None,
    *,
    is_weighted: bool,
) -> Estimate:
    at = _checked_step(name, policy, gamma, explore, step)
    episodes, n_skipped = _whole_episodes(name, dataset)
    ratios: list[NDArray[np.float64]] = []
    for number, episode in enumerate(episodes):
        behavior = _behavior(name, number, episode)
        obs = tree.map_tree(lambda leaf: leaf[:-1], episode.obs)
        target = policy.action_probability(obs, step=at, explore=explore)
        ratios.append(target[np.arange(len(episode)), episode.action] / behavior)
    rewards = [episode.reward for episode in episodes]
    return per_decision(ratios, rewards, gamma=gamma, is_weighted=is_weighted, n_skipped=n_skipped)


def _checked_step(
    name: str, policy: HasActionProbability, gamma: float, explore: bool, step: int | None, q: object = None
) -> int:
    """Check the options that every estimator has, and return the step of the target's exploration schedule."""
    with Checks(name) as checks:
        checks.number("gamma", gamma, low=0, high=1)
        checks.flag("explore", explore)
        checks.integer("step", step, low=0, optional=True)
        check_memory(checks, policy, "policy")
        check_memory(checks, q, "q")
    return policy.last_step if step is None else step


def check_memory(checks: Checks, policy: object, name: str) -> None:
    """Note a policy whose probabilities and values depend on more than an observation."""
    has_state = getattr(policy, "state_size", 0) > 0
    rule = f".{name} is recurrent: what it gives depends on the steps before; use a policy without a memory"
    checks.require(not has_state, rule)


def _whole_episodes(name: str, dataset: ReplayBuffer) -> tuple[list[RecordedEpisode], int]:
    """Return the episodes that have an end, and the number of the others."""
    episodes = list(dataset.episodes())
    whole = [episode for episode in episodes if episode.terminated or episode.truncated]
    if not whole:
        raise ConfigError(f"{name} found no episode with an end among {len(episodes)}: record whole ones")
    return whole, len(episodes) - len(whole)


def _state_values(
    policy: HasActionProbability, q: HasActionValues, obs: Obs, step: int, explore: bool
) -> NDArray[np.float64]:
    """Return the target's expected return in each state, [K]."""
    target = policy.action_probability(obs, step=step, explore=explore)
    values: NDArray[np.float64] = (target * np.asarray(q.action_values(obs), np.float64)).sum(axis=1)
    return values


def _mean_return(episodes: Sequence[RecordedEpisode], gamma: float) -> float:
    """Return the mean discounted return of episodes as they were played."""
    return float(np.mean([episode.reward @ gamma ** np.arange(len(episode)) for episode in episodes]))


def _effective_sample_size(log_rho: NDArray[np.float64]) -> float:
    """Return (sum of rho)**2 / sum of rho**2, 0 where all are 0."""
    top = log_rho.max()
    rho = np.exp(log_rho - (top if np.isfinite(top) else 0.0))
    squares = float(np.square(rho).sum())
    return float(rho.sum()) ** 2 / squares if squares > 0.0 else 0.0


def _std_error(name: str, influence: NDArray[np.float64], log_rho: NDArray[np.float64]) -> float | None:
    """Return the standard error of the mean of [E] values; None, with a warning, where the episodes have no spread."""
    n_episodes, size = len(influence), _effective_sample_size(log_rho)
    if size < min(_LEAST_SAMPLE_SIZE, n_episodes):
        none = "none of them could be the target policy's from start to end"
        few = f"they are worth {size:.2g} of the target policy's own"
        _log.warning(
            "%s: %d episodes, and %s: the value rests on the actions that both policies take, and has no standard "
            "error. Evaluate a policy that explores (explore=True), record one that takes the target's actions more "
            "often, or use fitted_q_evaluation",
            *(name, n_episodes, none if size == 0.0 else few),
        )
        return None
    return float(influence.std(ddof=1) / np.sqrt(n_episodes)) if n_episodes > 1 else None


def _unbounded(name: str) -> ConfigError:
    """Return the error of ratios whose product overflows."""
    return ConfigError(
        f"{name}: the product of an episode's ratios is beyond what a number can hold, its estimate would vary without "
        "bound: use weighted_importance_sampling, or shorter episodes"
    )


def _behavior(name: str, number: int, episode: RecordedEpisode) -> NDArray[np.float64]:
    """Return the probabilities [T] that the behavior policy gave to its actions.

    Raises:
        ConfigError: they are missing or no probabilities.
    """
    if episode.action.dtype.kind not in "iu" or episode.action.ndim != 1:
        raise ConfigError(f"{name} needs Discrete actions, got {episode.action.dtype} {episode.action.shape}")
    if ACTION_PROB in episode.extras:
        probability = np.asarray(episode.extras[ACTION_PROB], np.float64)
    elif _LOG_PROB in episode.extras:
        probability = np.exp(np.asarray(episode.extras[_LOG_PROB], np.float64))
    else:
        raise ConfigError(
            f"{name} needs the column {ACTION_PROB!r}, the dataset has {sorted(episode.extras)}: record it with "
            "DQNPolicy(store_action_prob=True), RandomPolicy(..., store_action_prob=True) or an on-policy learner"
        )
    is_valid = (probability > 0.0) & (probability <= 1.0 + _ROUNDING)
    if probability.ndim != 1 or not is_valid.all():
        step = int(np.argwhere(~is_valid)[0][0]) if probability.ndim == 1 else 0
        got = probability[step]
        hint = "; is it a logarithm? give exp of it" if np.all(got < 0.0) else ""
        raise ConfigError(
            f"{name} needs probabilities in (0, 1] of the actions taken, got {got} at step {step} of episode "
            f"{number}{hint}"
        )
    return np.minimum(probability, 1.0)
