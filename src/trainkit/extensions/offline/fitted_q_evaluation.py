"""Fitted Q evaluation: the action values of a policy, fitted to recorded rows without its environment."""

import logging
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.buffer import ReplayBuffer
from trainkit.core import seeding, tree
from trainkit.core.data import Obs, Transition, TransitionBatch
from trainkit.core.errors import Checks, ConfigError, reject_unknown
from trainkit.core.protocols import EnvSpaces
from trainkit.core.signatures import checked, options_of
from trainkit.core.spaces import Spaces
from trainkit.engine.loss import TensorBatch
from trainkit.extensions.offline.off_policy_evaluation import (
    Estimate,
    HasActionProbability,
    check_memory,
    direct_method,
)
from trainkit.policy import DQNPolicy, ExpectedValue, Target
from trainkit.policy.backups import QFunction
from trainkit.policy.values import Value

_TARGET_PROBABILITY = "target_probability"  # column [B, A], of the target's actions in the next observation
_UPDATES_PER_LOSS = 100
_RISE = 1.05  # of the mean loss, from one quarter of the updates to the next, above which it still rises

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedQ:
    """Action values of a target policy.

    Attributes:
        estimate: of its return, by the direct method, from the same rows.
        losses: mean losses of 100 updates each; they should neither rise nor fall any more. A warning names a rise.
        model: the Q-network with its preprocessing and optimizer.
    """

    estimate: Estimate
    losses: NDArray[np.float64]
    model: DQNPolicy = field(repr=False)

    def action_values(self, obs: Obs) -> NDArray[np.float32]:
        """Return the expected discounted return of every action, [K, A], in these observations."""
        return self.model.action_values(obs)


@checked
def fitted_q_evaluation(
    policy: HasActionProbability,
    dataset: ReplayBuffer,
    *,
    gamma: float,
    explore: bool = False,
    step: int | None = None,
    n_updates: int = 10_000,
    batch_size: int = 256,
    lr: float = 1e-3,
    seed: int = 0,
    **network: Any,
) -> FittedQ:
    """Fit the action values of a policy to the rows of a dataset (Le, Voloshin & Yue, 2019, algorithm 3).

    Each update moves q(s, a) towards r + gamma * sum over a' of policy(a' | s') q_target(s', a'), without the second
    term after a termination; a truncation is no end. The behavior's probabilities are not needed.

    Args:
        policy: the target. Its actions must be Discrete.
        dataset: rows of any policies that took all actions that the target takes.
        gamma: discount per step, in [0, 1].
        explore, step: as in `trainkit.datasets.importance_sampling`.
        n_updates: gradient steps. The target network is replaced every 25, which is one of the paper's iterations:
            rewards further away than n_updates / 25 steps are not seen.
        batch_size: rows per update, drawn uniformly.
        lr: learning rate, which falls linearly to 0.
        seed: of the initial weights and the rows drawn; the dataset's own random stream is not used.
        network: further options of `DQNPolicy.for_envs`, such as `hidden`, `encoder`, `target` and `device`.
    """
    reject_unknown("fitted_q_evaluation", network, [*options_of(fitted_q_evaluation), *options_of(DQNPolicy.for_envs)])
    with Checks("fitted_q_evaluation") as checks:
        checks.number("gamma", gamma, low=0, high=1)
        checks.flag("explore", explore)
        checks.integer("step", step, low=0, optional=True)
        checks.integer("n_updates", n_updates, low=1)
        checks.integer("batch_size", batch_size, low=1)
        checks.number("lr", lr, low=0, above_low=True)
        checks.integer("seed", seed, low=0)
        check_memory(checks, policy, "policy")
        checks.require(len(dataset) > 0, ".dataset is empty: record episodes, or load some")
        reserved = sorted({"backup", "double", "gamma", "n_step", "reward"} & network.keys())
        checks.require(not reserved, f" sets {', '.join(reserved)} itself: leave them out")
    at = policy.last_step if step is None else step
    options: dict[str, Any] = {"value": ExpectedValue("mse"), "target": Target(25, unit="updates"), "hidden": (64, 64)}
    options |= {"lr": [(0, lr), (n_updates, 0.0)], "max_grad_norm": None, "seed": seed}
    model = DQNPolicy.for_envs(_spaces_of(policy, dataset), backup=_policy_backup, gamma=gamma, **options | network)
    rng, slots = seeding.generator(seed, "fitted_q_evaluation"), dataset.slots()
    losses: list[float] = []
    for number in range(n_updates):
        rows = dataset.get(slots[rng.integers(len(slots), size=batch_size)])
        batch = _batch_of(rows, policy, gamma=gamma, step=at, explore=explore)
        model.update(batch, step=number)
        if (number + 1) % _UPDATES_PER_LOSS == 0 or number + 1 == n_updates:
            losses.append(model.read_metrics()["loss"])
    estimate = direct_method(policy, dataset, model, gamma=gamma, explore=explore, step=at)
    if not np.isfinite(estimate.value):
        raise ConfigError(
            f"fitted_q_evaluation diverged, its estimate is {estimate.value}: lower lr, or scale the rewards"
        )
    if _rises(losses):
        _log.warning(
            "fitted_q_evaluation: the loss still rises, to %.3g: the values have not reached the rewards further away "
            "yet, or diverge. Raise n_updates (%d); where the loss then rises too, lower gamma or scale the rewards",
            *(losses[-1], n_updates),
        )
    return FittedQ(estimate=estimate, losses=np.array(losses), model=model)


def _rises(losses: list[float]) -> bool:
    """Return whether the loss of the last quarter of the updates is above that of the quarter before."""
    n = len(losses) // 4
    return n > 0 and float(np.mean(losses[-n:])) > _RISE * float(np.mean(losses[-2 * n : -n]))


def _batch_of(
    rows: Transition, policy: HasActionProbability, *, gamma: float, step: int, explore: bool
) -> TransitionBatch:
    """Return rows as a batch, with the target policy's probabilities of the next actions."""
    for after, before in zip(tree.leaves(rows.next_obs), tree.leaves(rows.obs), strict=True):
        after[rows.terminated] = before[rows.terminated]  # has no effect, and its mask allows an action
    target = policy.action_probability(rows.next_obs, step=step, explore=explore)
    return TransitionBatch(
        obs=rows.obs,
        action=rows.action,
        reward=rows.reward.astype(np.float32),
        discount=np.where(rows.terminated, 0.0, gamma).astype(np.float32),
        next_obs=rows.next_obs,
        weight=np.ones(len(rows.reward), np.float32),
        slots=np.zeros(len(rows.reward), np.int64),
        extras=MappingProxyType({_TARGET_PROBABILITY: target.astype(np.float32)}),
    )


def _spaces_of(policy: object, dataset: ReplayBuffer) -> EnvSpaces:
    """Return the spaces of the rows: the dataset's, or the policy's where the dataset does not know its own."""
    observation_space, action_space = (getattr(policy, name, None) for name in ("observation_space", "action_space"))
    if dataset.spaces is not None or observation_space is None or action_space is None:
        return dataset
    return Spaces(observation_space=observation_space, action_space=action_space)


def _policy_backup(online: QFunction, target: QFunction, batch: TensorBatch, value: Value) -> Any:
    """Return the target network's expected value over the target policy's actions, and the reward unchanged."""
    outputs = target(batch.next_obs, batch.next_legal).outputs  # [B, A, 1]
    return (batch.extras[_TARGET_PROBABILITY].unsqueeze(2) * outputs).sum(dim=1), batch.reward
