"""Discrete BCQ: a Q-learner restricted to actions that are probable in the data."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from gymnasium import Space
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from trainkit.core.assignments import fixed_options
from trainkit.core.data import Obs
from trainkit.core.errors import Checks, ConfigError, SpaceMismatchError
from trainkit.core.protocols import EnvSpaces
from trainkit.core.signatures import checked
from trainkit.core.spaces import count_actions, zeros_of
from trainkit.engine.gradient_step import Clip
from trainkit.engine.loss import Loss, TensorBatch, legal_mask
from trainkit.engine.optimizers import Adam, OptimizerSpec
from trainkit.nets.encoders import EncoderLike, default_hidden
from trainkit.nets.layers import Activation, Norm
from trainkit.nets.networks import ActionValues, PlainModule, QNetwork
from trainkit.nets.preprocess import Preprocess
from trainkit.policy.backups import QFunction, best_action, pick
from trainkit.policy.dqn import DQNPolicy
from trainkit.policy.persistence import recorded
from trainkit.policy.values import Value

_NEVER = -1e8  # the value of implausible actions: finite, and below all others


class Plausible(nn.Module):
    """The plausible actions: those whose probability in the data is close to the largest one.

    Args:
        imitation: features -> logits [B, A, 1] or [B, A].
        threshold: an action counts when its probability is above this share of the largest, in [0, 1).
    """

    def __init__(self, imitation: nn.Module, threshold: float) -> None:
        super().__init__()
        self.imitation = imitation if isinstance(imitation, ActionValues) else PlainModule(imitation)
        self.threshold = threshold

    def logits(self, features: Any) -> Tensor:
        """Return the imitation network's logits [B, A]."""
        logits: Tensor = self.imitation(features).outputs.squeeze(2)
        return logits

    def forward(self, features: Any, legal: Tensor | None) -> Tensor:
        """Return which actions are plausible [B, A]; the most probable legal one always is."""
        return self.among(masked(self.logits(features), legal))

    def among(self, logits: Tensor) -> Tensor:
        """Return which actions are plausible, of logits [B, A] with -inf where illegal."""
        return (logits - logits.max(dim=1, keepdim=True).values).exp() > self.threshold


class PlausibleBackup:
    """The target network's value of the online network's best plausible action.

    Fujimoto et al. (2019, "Benchmarking batch deep reinforcement learning algorithms"), equation 11.
    """

    def __init__(self, plausible: Plausible) -> None:
        self._plausible = plausible

    def __call__(self, online: QFunction, target: QFunction, batch: TensorBatch, value: Value) -> tuple[Tensor, Tensor]:
        legal = batch.next_legal
        q = value.mean(online(batch.next_obs, legal).outputs)
        outputs = target(batch.next_obs, legal).outputs
        return pick(outputs, best_action(q, self._plausible(batch.next_obs, legal))), batch.reward


@checked
@fixed_options("imitation", "imitation_optimizer", "threshold")
class DiscreteBCQPolicy(DQNPolicy):
    """Discrete BCQ (Fujimoto et al., 2019): a Q-learner that only uses the values of actions probable in the data.

    A second network imitates the data. Only actions whose probability is above `threshold` times the largest may be
    chosen, in acting and in the double backup; all else is `DQNPolicy`. Threshold 0 is Double DQN, and towards 1 it
    becomes behavior cloning. As in their code both networks learn from the same batches, and the imitation's loss is
    -log p(action | obs) + logit_weight * mean of the squared logits.

    Args:
        network: of action values, as in `DQNPolicy`.
        imitation: features -> logits [B, A, 1] or [B, A], a `QNetwork` or any module.
        threshold: in [0, 1); the paper's is 0.3.
        logit_weight: keeps logits small; their code's is 0.01.
        imitation_optimizer: default: `optimizer`.
        optimizer, clip, parts: as in `DQNPolicy`; there is no `backup` to choose.

    Metrics: those of `DQNPolicy` with network_ before loss, grad_norm and lr, imitation_loss, imitation_grad_norm,
    imitation_lr, and plausible_share: of all actions, in the batch's observations.
    """

    def __init__(
        self,
        network: nn.Module,
        imitation: nn.Module,
        *,
        threshold: float = 0.3,
        logit_weight: float = 1e-2,
        imitation_optimizer: OptimizerSpec | None = None,
        optimizer: OptimizerSpec | None = None,
        clip: Clip | None = None,
        **parts: Any,
    ) -> None:
        with Checks(type(self).__name__) as checks:
            if checks.number("threshold", threshold, low=0, high=1):
                checks.require(threshold < 1, ".threshold must be below 1, got 1: no action would be plausible")
            checks.number("logit_weight", logit_weight, low=0)
            checks.require(parts.pop("backup", None) is None, " has a backup of its own: leave backup and double out")
        plausible = Plausible(imitation, float(threshold))
        super().__init__(network, backup=PlausibleBackup(plausible), optimizer=optimizer, clip=clip, **parts)
        if self.state_size:
            raise ConfigError(
                f"{type(self).__name__}.network must carry no state, as its imitation would need one of its own, "
                f"got one of {self.state_size} numbers: leave recurrent out, or use DQNPolicy with ConservativePenalty"
            )
        self.plausible = plausible
        self.logit_weight = float(logit_weight)
        default: OptimizerSpec = Adam() if optimizer is None else optimizer
        own = default if imitation_optimizer is None else imitation_optimizer
        flush = parts.get("flush_denormals", True)
        self.add_gradient_step("imitation", plausible, own, loss=self.imitation_loss, flush_denormals=flush)
        self.eval()

    @classmethod
    @recorded
    def for_envs(
        cls,
        envs: EnvSpaces,
        *,
        hidden: Sequence[int] | None = None,
        head: Sequence[int] | None = None,
        encoder: EncoderLike | None = None,
        activation: Activation | None = None,
        norm: Norm | None = None,
        **options: Any,
    ) -> Self:
        """Make a policy for environments from the options of `DQNPolicy.for_envs`.

        The imitation network has the same kind of encoder, activation and norm, and hidden layers of the same sizes,
        `hidden` and `head` together.
        """
        n_actions = count_actions(cls.__name__, envs.action_space)
        preprocess = Preprocess(envs.observation_space)
        layers = default_hidden(preprocess)
        if hidden is not None or head is not None:
            layers = (*(hidden or ()), *(head or ()))
        how: dict[str, Any] = {"encoder": encoder, "activation": activation, "norm": norm}
        imitation = QNetwork(preprocess.shapes, n_actions, hidden=layers, **how)
        return super().for_envs(envs, hidden=hidden, head=head, **how, **{"imitation": imitation, **options})

    def check_networks(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        """Raise for spaces that do not fit the networks."""
        super().check_networks(observation_space, action_space)
        with torch.no_grad():
            shape = tuple(self.plausible.logits(self.features(zeros_of(observation_space))).shape)
        if shape != (1, n_actions := count_actions(type(self).__name__, action_space)):
            raise SpaceMismatchError(
                f"{type(self).__name__}'s imitation gives logits {shape} for one observation, but {action_space} needs "
                f"{(1, n_actions)} [B, A]"
            )

    def _q_values(self, given: Any) -> dict[str, Tensor]:
        """Return the expected returns [K, A], -1e8 for actions that are not plausible."""
        plausible = self.plausible(self.preprocess(given[0]), legal_mask(given[0]))
        results = super()._q_values(given)
        return {**results, "q_values": results["q_values"].masked_fill(~plausible, _NEVER)}

    def greedy_values(
        self, obs: Obs, state: NDArray[np.float32] | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the value [K] of the best plausible action, and its gap [K] to the second, infinite without one."""
        best, gap = super().greedy_values(obs, state)
        return best, np.where(gap > -_NEVER / 2, np.inf, gap)

    def imitation_loss(self, rows: TensorBatch) -> Loss:
        """Return the cross-entropy to the data's actions, and the weighted squares of the logits."""
        logits = self.plausible.logits(rows.obs)
        legal_logits = masked(logits, rows.legal)
        share = self.plausible.among(legal_logits.detach()).to(logits.dtype)  # [B, A]
        error = functional.cross_entropy(legal_logits, rows.action, reduction="none")
        squares = self.logit_weight * logits.square().mean(dim=1)
        return Loss(error + squares, metrics={"plausible_share": share})


def masked(logits: Tensor, legal: Tensor | None) -> Tensor:
    """Return logits [B, A] with -inf for illegal actions; rows without a legal action are unchanged."""
    if legal is None:
        return logits
    return logits.masked_fill(~(legal | ~legal.any(dim=1, keepdim=True)), -torch.inf)
