"""Behavior cloning."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, Self, Unpack

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from trainkit.core.config import Part
from trainkit.core.data import Batch
from trainkit.core.errors import Checks
from trainkit.core.protocols import EnvSpaces
from trainkit.core.signatures import checked
from trainkit.core.spaces import StructuredHybrid, flat_actions
from trainkit.engine.gradient_step import Clip
from trainkit.engine.loss import Loss, TensorBatch
from trainkit.engine.optimizers import Adam, LearningRate, OptimizerSpec, spec_with_lr
from trainkit.nets.distributions import Categorical, Distribution, distribution_for
from trainkit.nets.encoders import EncoderLike, Recurrent, default_hidden
from trainkit.nets.layers import Activation, Norm
from trainkit.nets.networks import ActionValues, PlainModule, Prediction, QNetwork
from trainkit.nets.preprocess import Preprocess
from trainkit.policy.base import PolicyOptions, parts_for
from trainkit.policy.checks import non_integer_actions
from trainkit.policy.network_state import state_of
from trainkit.policy.persistence import recorded
from trainkit.policy.stochastic import StochasticPolicy
from trainkit.policy.update_result import UpdateResult


@checked
class BCPolicy(StochasticPolicy):
    """Behavior cloning: maximize the likelihood of the data's actions (Pomerleau, 1989); rewards have no effect.

    loss = mean over rows of -log p(action | obs): the cross-entropy for Discrete actions, summed over the dimensions of
    the others. For Box actions p is normal with standard deviations that do not depend on the observation, or the loss
    is "mse": |mode - action|**2. Both are in policy units, to which the data's actions, in units of the space, are
    mapped. Log-probabilities of all columns of structured actions add up.

    Args:
        network: a `QNetwork`, or any module that maps features to the distribution's parameters [B, width].
        action_space: of one environment.
        distribution: of actions, those of a Box in policy units; default: the one for the action space.
        action_scaling: policy units -1 and 1 are the bounds of a Box; False: they are those of the space. See
            `ActionScale`.
        loss: "likelihood", or "mse" of Box actions.
        optimizer: `Adam`, `TorchOptimizer`, or a factory such as `torch.optim.AdamW`.
        clip: of gradients; None clips nothing.
        flush_denormals: see `GradientStep`.
        sequences: what a network that carries a state learns from, without stored states, which data have not; by
            default `Sequences(stored_state=False)`.
        options: observation_space, preprocess, horizon, device, seed, engine, precision and auxiliary, as in `Policy`.

    Metrics: loss, accuracy (share of rows whose action is the most probable, in all discrete columns; not for Box),
    entropy, weight_mean, effective_share (of the weights), grad_norm, lr.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        action_space: Space[Any],
        distribution: Distribution | None = None,
        action_scaling: bool = True,
        loss: Literal["likelihood", "mse"] = "likelihood",
        optimizer: OptimizerSpec | None = None,
        clip: Clip | None = None,
        flush_denormals: bool = True,
        sequences: Part | None = None,
        **options: Unpack[PolicyOptions],
    ) -> None:
        flat = flat_actions(action_space)
        is_box = isinstance(flat, spaces.Box)
        name = type(self).__name__
        state = state_of(name, (network,), sequences, options.get("auxiliary"), learns_from="data")
        with Checks(name) as checks:
            if checks.one_of("loss", loss, ["likelihood", "mse"]):
                fits = loss == "likelihood" or is_box
                checks.require(
                    fits, f".loss 'mse' measures distances, which {action_space} has none of: use 'likelihood'"
                )
        super().__init__(action_space=action_space, action_scaling=action_scaling, **options)
        self.distribution = distribution_for(action_space) if distribution is None else distribution
        self._is_box, self._is_mse = is_box, loss == "mse"
        self._counted: slice | list[int] = slice(None)  # columns that `accuracy` counts
        if isinstance(flat, StructuredHybrid):
            self._counted = np.flatnonzero(flat.structure.is_discrete).tolist()
        self.network = network if isinstance(network, ActionValues) else PlainModule(network)
        self._network_state = state
        default: OptimizerSpec = Adam() if optimizer is None else optimizer
        how: dict[str, Any] = {"flush_denormals": flush_denormals, "features_of": self.network}
        self.add_gradient_step("model", self, default, clip, loss=self.loss, **how)
        self.eval()

    @classmethod
    @recorded
    def for_envs(
        cls,
        envs: EnvSpaces,
        *,
        hidden: Sequence[int] | None = None,
        encoder: EncoderLike | None = None,
        activation: Activation | None = None,
        norm: Norm | None = None,
        recurrent: Recurrent | None = None,
        normalize_obs: bool = False,
        optimizer: OptimizerSpec | None = None,
        lr: LearningRate = 1e-3,
        max_grad_norm: float | None = None,
        **parts: Any,
    ) -> Self:
        """Make a policy for environments from the most common options.

        Args:
            envs: anything with `observation_space` and `action_space`.
            hidden: layers; default (128, 128), for images (512,), for grids (128,).
            encoder, activation, norm, recurrent: as in `QNetwork`.
            normalize_obs: as `normalize` in `Preprocess`.
            optimizer, lr: as in `BCPolicy` and `Adam`; an optimizer with a learning rate of its own ignores numbers
                and schedules of the step in `lr`.
            max_grad_norm: the clip of the global norm; None clips nothing.
            parts: arguments of the class; `clip` replaces `max_grad_norm`.
        """
        preprocess = Preprocess(envs.observation_space, normalize=normalize_obs)
        distribution = parts.pop("distribution", None) or distribution_for(envs.action_space)
        network = QNetwork(
            preprocess.shapes,
            distribution.width,
            hidden=default_hidden(preprocess) if hidden is None else hidden,
            encoder=encoder,
            activation=activation,
            norm=norm,
            recurrent=recurrent,
        )
        spec = partial(spec_with_lr, optimizer, Adam(1e-3), lr)
        defaults = parts_for(envs, preprocess, max_grad_norm=max_grad_norm, optimizer=spec)
        return cls(network, **defaults | {"distribution": distribution} | parts)

    def _actor_outputs(self, features: Any) -> tuple[Tensor, dict[str, Tensor]]:
        return _outputs(self.network(features)), {}

    # ---- learning ----

    def update(self, batch: Batch, *, step: int) -> UpdateResult:
        """Learn from one batch; raise `DivergedError` as `minimize` does. There are no priorities."""
        if isinstance(self.distribution, Categorical) and batch.action.dtype.kind not in "iub":
            raise non_integer_actions(self, batch.action)
        return super().update(batch, step=step)

    def loss(self, rows: TensorBatch, /) -> Loss:
        """Return the negative log-likelihood of the data's actions, or their squared distance from the mode."""
        outputs, legal = _outputs(self.network(rows.obs)), rows.legal
        action = rows.action if self._action_scale is None else self._action_scale.to_unit(rows.action)
        if self._is_mse:
            loss = (self.distribution.mode(outputs, legal) - action).reshape(len(action), -1).square().sum(dim=1)
        else:
            loss = -self.distribution.log_prob(outputs, action, legal)
        with torch.no_grad():
            metrics = {"entropy": self.distribution.entropy(outputs, legal)}
            if not self._is_box:
                is_same = (self.distribution.mode(outputs, legal) == action).view(len(action), -1)
                metrics["accuracy"] = is_same[:, self._counted].all(dim=1).to(loss.dtype)
        return Loss(loss, metrics=metrics)


def _outputs(prediction: Prediction) -> Tensor:
    """Return the parameters [B, width] of the distribution."""
    return prediction.outputs.squeeze(2)
