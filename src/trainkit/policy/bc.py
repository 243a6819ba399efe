"""Behaviour cloning: do what the data's actors did."""

from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from gymnasium import Space, spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit.core import tree
from trainkit.core.data import ActOutput, Horizon, Obs, TransitionBatch
from trainkit.core.errors import Checks, SpaceMismatchError, all_made, check_flag
from trainkit.core.protocols import EnvSpaces
from trainkit.core.signatures import checked
from trainkit.core.spaces import checked_legal, zeros_of
from trainkit.core.structured_actions import StructuredHybrid, flat_actions
from trainkit.engine.device import TensorBatch, legal_mask, to_device
from trainkit.engine.engine import EngineName
from trainkit.engine.gradient_step import Adam, Clip
from trainkit.engine.loss import Loss
from trainkit.nets.action_scale import action_scale_for
from trainkit.nets.distributions import Categorical, Distribution, distribution_for
from trainkit.nets.networks import ActionValues, PlainModule, QNetwork
from trainkit.nets.preprocess import Preprocess
from trainkit.policy.base import Policy
from trainkit.policy.exploration import one_hot
from trainkit.policy.export import reasons
from trainkit.policy.meter import UpdateResult
from trainkit.policy.refusals import refuse_unsound, trying


@checked
class BCPolicy(Policy):
    """Raise the likelihood of the actions in the data (Pomerleau, 1989); rewards are not looked at.

    loss = mean over rows of -log p(action | obs): the cross-entropy for Discrete actions, places of the others added.
    For Box actions p is a normal with deviations that do not depend on the observation, or the loss is "mse":
    |mode - action|**2. Both are in policy units, to which the data's actions, in units of the space, are mapped.
    Of structured actions with discrete leaves and Boxes, the log-probabilities of all columns add up.

    Args:
        network: a `QNetwork`, or any module that maps features to numbers [B, width], as the distribution needs them.
        action_space: of one environment.
        distribution: of actions, those of a Box in policy units; default: the one for the action space.
        action_scaling: policy units -1 and 1 are the bounds of a Box; False: they are those of the space. See
            `ActionScale`.
        loss: "likelihood", or "mse" of Box actions.
        optimizer: Adam's numbers.
        clip: of gradients; None clips nothing.
        horizon, observation_space, preprocess, device, seed, engine: as in `Policy`.
        flush_denormals: see `GradientStep`.

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
        optimizer: Adam | None = None,
        clip: Clip | None = None,
        horizon: Horizon | None = None,
        preprocess: nn.Module | None = None,
        observation_space: Space[Any] | None = None,
        device: str | torch.device = "auto",
        seed: int | None = None,
        engine: EngineName = "auto",
        flush_denormals: bool = True,
    ) -> None:
        flat = flat_actions(action_space)
        is_box = isinstance(flat, spaces.Box)
        checks = Checks(type(self).__name__)
        if checks.one_of("loss", loss, ["likelihood", "mse"]):
            fits = loss == "likelihood" or is_box
            checks.require(fits, f".loss 'mse' measures distances, which {action_space} has none of: use 'likelihood'")
        checks.done()
        super().__init__(
            observation_space=observation_space,
            action_space=action_space,
            preprocess=preprocess,
            horizon=horizon,
            device=device,
            seed=seed,
            engine=engine,
        )
        self.distribution = distribution_for(action_space) if distribution is None else distribution
        self._scale = self.action_scale = action_scale_for(action_space, scaling=action_scaling)
        self._is_box, self._is_mse = is_box, loss == "mse"
        self._counted: slice | list[int] = slice(None)  # columns whose hits `accuracy` counts
        if isinstance(flat, StructuredHybrid):
            self._counted = np.flatnonzero(flat.structure.is_discrete).tolist()
        self.network = network if isinstance(network, ActionValues) else PlainModule(network)
        self.to(self.device)
        adam = Adam() if optimizer is None else optimizer
        self.add_gradient_step("model", self, adam, clip, loss=self.loss, flush_denormals=flush_denormals)
        self.eval()

    @classmethod
    def for_envs(
        cls,
        envs: EnvSpaces,
        *,
        hidden: Sequence[int] | None = None,
        normalize_obs: bool = False,
        lr: Any = 1e-3,
        max_grad_norm: float | None = None,
        **parts: Any,
    ) -> Self:
        """Make a policy for environments, by short words.

        Args:
            envs: anything with `observation_space` and `action_space`.
            hidden: layers; default (128, 128), for images (512,).
            normalize_obs: as `normalize` in `Preprocess`.
            lr, max_grad_norm: of Adam, and the clip of the global norm; None clips nothing.
            parts: arguments of the class; `optimizer` and `clip` replace `lr` and `max_grad_norm`.
        """
        preprocess = Preprocess(envs.observation_space, normalize=normalize_obs)
        distribution = parts.pop("distribution", None) or distribution_for(envs.action_space)
        usual = (512,) if preprocess.sees_images else (128, 128)
        network = QNetwork(preprocess.shapes, distribution.width, hidden=usual if hidden is None else hidden)
        defaults: dict[str, Any] = {
            **all_made(
                optimizer=lambda: Adam(lr),
                clip=lambda: None if max_grad_norm is None else Clip(max_grad_norm),
            ),
            "observation_space": envs.observation_space,
            "action_space": envs.action_space,
            "preprocess": preprocess,
            "distribution": distribution,
        }
        return cls(network, **defaults | parts)

    # ---- acting ----

    def act(
        self,
        obs: Obs,
        *,
        step: int = 0,
        explore: bool = False,
        state: Any = None,
        starts: NDArray[np.bool_] | None = None,
        env_ids: NDArray[np.intp] | None = None,
    ) -> ActOutput:
        """Take each row's likeliest action or, exploring, draw one as likely as in the data."""
        check_flag(self, "act(explore=)", explore)
        checked_legal(obs, env_ids)
        self.enter(training=False)
        noise = self.distribution.draw_noise(len(tree.first_leaf(obs)), self.generator) if explore else None
        answer = self._engine.call("act", self._answer, (obs, noise))
        action, numbers = answer["action"], answer["numbers"]
        refuse_unsound(f"{type(self).__name__} gives", np.isfinite(numbers).all(axis=1), numbers, env_ids, step)
        return ActOutput(action if self._scale is None else self._scale.to_space(action), {}, state)

    def _answer(self, given: Any) -> dict[str, Tensor]:
        """Return actions [K, ...] for raw observations on the device, by noise [K, N] or None, and network outputs."""
        obs, noise = given
        legal, numbers = legal_mask(obs), self._numbers(self.preprocess(obs))
        family = self.distribution
        action = family.mode(numbers, legal) if noise is None else family.sample(numbers, legal, noise)
        return {"action": action, "numbers": numbers}

    def action_probability(self, obs: Obs, *, step: int = 0, explore: bool = False) -> NDArray[np.float64]:
        """Return how likely each action is to be taken, [K, A]: drawn where exploring, else the likeliest for sure."""
        check_flag(self, "action_probability(explore=)", explore)
        if not isinstance(self.distribution, Categorical):
            return super().action_probability(obs)
        checked_legal(obs)
        self.enter(training=False)
        with torch.no_grad():
            on_device = to_device(obs, self.device)
            numbers = self._numbers(self.preprocess(on_device)).double()
            probability = self.distribution.probability(numbers, legal_mask(on_device)).cpu().numpy()
        return probability if explore else one_hot(probability.argmax(axis=1), probability.shape[1])

    def greedy(self, obs: Any) -> dict[str, Tensor]:
        """Return each row's likeliest action [B, ...] for raw observations on the device, and its `reasons`."""
        legal, numbers = legal_mask(obs), self._numbers(self.preprocess(obs))
        action = self.distribution.mode(numbers, legal)
        if self._scale is not None:
            action = self._scale.to_space(action)
        return {"action": action, **reasons(self.distribution, numbers, legal)}

    # ---- learning ----

    def update(self, batch: TransitionBatch, *, step: int) -> UpdateResult:
        """Learn from one batch; raise `DivergedError` as `minimise` does. There are no priorities."""
        if isinstance(self.distribution, Categorical):
            self._check_discrete(batch)
        return super().update(batch, step=step)

    def loss(self, rows: TensorBatch) -> Loss:
        """Return minus the log-likelihood of the data's actions, or their squared distance from the mode."""
        numbers, legal = self._numbers(rows.obs), rows.legal
        action = rows.action if self._scale is None else self._scale.to_unit(rows.action)
        if self._is_mse:
            loss = (self.distribution.mode(numbers, legal) - action).reshape(len(action), -1).square().sum(dim=1)
        else:
            loss = -self.distribution.log_prob(numbers, action, legal)
        with torch.no_grad():
            metrics = {"entropy": self.distribution.entropy(numbers, legal).mean()}
            if not self._is_box:
                is_same = (self.distribution.mode(numbers, legal) == action).view(len(action), -1)
                metrics["accuracy"] = is_same[:, self._counted].all(dim=1).to(loss.dtype).mean()
        return Loss(loss, metrics=metrics)

    def _numbers(self, features: Any) -> Tensor:
        """Return the numbers [B, width] for the distribution."""
        numbers: Tensor = self.network(features).numbers.squeeze(2)
        return numbers

    def check_spaces(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        """Refuse environments that the network cannot see or act in, by trying it on one blank observation."""
        self._refuse_other_spaces(observation_space, action_space)
        blank = to_device(zeros_of(observation_space), self.device)
        with trying(f"{type(self).__name__}'s network", observation_space):
            shape = tuple(self._numbers(self.preprocess(blank)).shape)
        if shape != (1, self.distribution.width):
            raise SpaceMismatchError(
                f"{type(self).__name__}'s network gives numbers {shape} for one observation, but {action_space} needs "
                f"{(1, self.distribution.width)}"
            )
        super().check_spaces(observation_space, action_space)
