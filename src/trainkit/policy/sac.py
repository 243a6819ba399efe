"""Soft actor-critic: a squashed normal policy with two critics and an entropy bonus."""

import math
from collections.abc import Sequence
from typing import Any, Literal, Self, Unpack

import numpy as np
import torch
from gymnasium import Space
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit.core import tree
from trainkit.core.assignments import fixed_options
from trainkit.core.config import Part
from trainkit.core.data import Horizon, Obs
from trainkit.core.errors import Checks, SpaceMismatchError
from trainkit.core.protocols import EnvSpaces
from trainkit.core.schedules import Scheduled, as_schedule
from trainkit.core.signatures import checked
from trainkit.core.spaces import zeros_of
from trainkit.engine.device import to_device
from trainkit.engine.gradient_step import Clip
from trainkit.engine.loss import Loss, Max, Metric, Min, TensorBatch
from trainkit.engine.optimizers import Adam, LearningRate, OptimizerSpec, spec_with_lr
from trainkit.nets.actor_critic import ActorNetwork, CriticNetwork
from trainkit.nets.distributions import SquashedGaussian, bounded_box
from trainkit.nets.encoders import EncoderLike, Recurrent, stateful_encoders
from trainkit.nets.layers import Activation, Norm
from trainkit.nets.preprocess import Preprocess
from trainkit.policy.base import PolicyOptions, parts_for
from trainkit.policy.checks import forward_on
from trainkit.policy.network_state import state_of
from trainkit.policy.noise import Noise
from trainkit.policy.persistence import recorded
from trainkit.policy.statistics import ActionStd
from trainkit.policy.stochastic import StochasticPolicy
from trainkit.policy.target import Target


@checked
@fixed_options("critic_optimizer", "initial_temperature", "target", "tau", "temperature", "temperature_optimizer")
class SACPolicy(StochasticPolicy):
    """Soft actor-critic (Haarnoja et al., 2018, "Soft actor-critic algorithms and applications").

    The gradient steps, in order: the critics towards reward + discount * (minimum of the target critics - temperature *
    log pi) at an action sampled for the next observation (equations 5 and 6), the actor on temperature * log pi minus
    the critics' minimum (equation 9), the temperature towards the target entropy (equation 18).

    The networks work in policy units, [-1, 1], which `action_scale` maps to the bounds of the space: entropies, and
    their target, do not depend on the units of the space.

    Args:
        actor: features -> outputs [B, 2 D]: means and log standard deviations, as `ActorNetwork`.
        critics: (features, actions [B, D] in -1..1) -> values [B, C], whose minimum counts, as `CriticNetwork`.
        temperature: weight of the entropy, a schedule of the environment step, or "auto": it is learned.
        initial_temperature: if it is learned.
        target_entropy: of a learned temperature, in nats; default -D.
        exploration: correlated noise of sampled actions, as `ColoredNoise`; None: independent in every step. Losses
            draw independent noise.
        target: when the target critics move; default: by tau = 0.005 at every update.
        optimizer: of the actor, and of the others that are not given, `critic_optimizer` and `temperature_optimizer`:
            `Adam`, `TorchOptimizer`, or a factory such as `torch.optim.AdamW`.
        clip: of the actor's and the critics' gradients; None clips nothing.
        sequences: what networks that carry a state learn from, by default `Sequences()`. The states of the actor and of
            the critics are stored.
        action_space: a Box of floats, bounded in every dimension.
        flush_denormals: see `GradientStep`.
        options: observation_space, preprocess, horizon (of n steps only the last one's entropy counts), device, seed,
            engine, precision and auxiliary (on the features of the critics' encoder), as in `Policy`.

    Metrics: critic_loss, actor_loss, temperature_loss (if it is learned), grad_norm and lr of each, q_mean, q_max,
    q_min, td_abs_mean, td_abs_max, entropy, temperature, weight_mean, effective_share (of the weights),
    target_followed.
    """

    def __init__(
        self,
        actor: nn.Module,
        critics: nn.Module,
        *,
        action_space: Space[Any],
        temperature: Literal["auto"] | Scheduled = "auto",
        initial_temperature: float | None = None,
        target_entropy: float | None = None,
        exploration: Noise | None = None,
        target: Target | None = None,
        optimizer: OptimizerSpec | None = None,
        critic_optimizer: OptimizerSpec | None = None,
        temperature_optimizer: OptimizerSpec | None = None,
        clip: Clip | None = None,
        flush_denormals: bool = True,
        sequences: Part | None = None,
        **options: Unpack[PolicyOptions],
    ) -> None:
        name = type(self).__name__
        box = bounded_box(name, action_space)
        has_both = bool(stateful_encoders(actor)) == bool(stateful_encoders(critics))
        state = state_of(name, (actor, critics), sequences, options.get("auxiliary"), learns_from="replay")
        with Checks(name) as checks:
            checks.require(
                has_both, " needs a state in both the actor and the critics, or in neither: give both recurrent"
            )
            _check_temperature(checks, temperature, initial_temperature, target_entropy)
        super().__init__(action_space=action_space, **options)
        self.distribution: SquashedGaussian = SquashedGaussian(box, log_std=None)
        self._network_state = state
        self._extras_spec = dict(state.spec)
        self.target_entropy = -float(self.distribution.n_dimensions) if target_entropy is None else target_entropy
        self.actor, self.critics = actor, critics
        is_learned = temperature == "auto"
        self.learned_temperature = (
            LogTemperature(1.0 if initial_temperature is None else initial_temperature) if is_learned else None
        )
        self._schedule = None if is_learned else as_schedule(name, "temperature", temperature, low=0)
        default: OptimizerSpec = Adam(3e-4) if optimizer is None else optimizer
        of_critics = default if critic_optimizer is None else critic_optimizer
        how: dict[str, Any] = {"flush_denormals": flush_denormals}
        self.add_gradient_step("critic", critics, of_critics, clip, loss=self.critic_loss, features_of=critics, **how)
        self.add_gradient_step("actor", actor, default, clip, loss=self.actor_loss, **how)
        if self.learned_temperature is not None:
            own = default if temperature_optimizer is None else temperature_optimizer
            self.add_gradient_step(
                "temperature", self.learned_temperature, own, loss=self.temperature_loss, reads="actor", **how
            )
        soft = Target(every=1, unit="updates", tau=0.005)
        self.target_critics = self.add_target("critic", critics, soft if target is None else target)
        self._action_std = ActionStd(self.distribution)
        self.exploration = exploration
        self.eval()

    @classmethod
    @recorded
    def for_envs(
        cls,
        envs: EnvSpaces,
        *,
        hidden: Sequence[int] = (256, 256),
        encoder: EncoderLike | None = None,
        activation: Activation | None = None,
        norm: Norm | None = None,
        recurrent: Recurrent | None = None,
        normalize_obs: bool = False,
        n_step: int | tuple[int, int] = 1,
        gamma: float = 0.99,
        reward: Any = None,
        optimizer: OptimizerSpec | None = None,
        lr: LearningRate = 3e-4,
        tau: Scheduled = 0.005,
        max_grad_norm: float | None = None,
        **parts: Any,
    ) -> Self:
        """Make a policy for environments from the most common options.

        Args:
            envs: anything with `observation_space` and `action_space`.
            hidden: layers of the actor and of each critic.
            encoder, activation, norm, recurrent: as in `ActorNetwork` and `CriticNetwork`, with an encoder each; actor
                and critics do not share them.
            normalize_obs: as `normalize` in `Preprocess`.
            n_step, gamma, reward: as in `Horizon`.
            optimizer, lr: as in `SACPolicy` and `Adam`; an optimizer with a learning rate of its own ignores numbers
                and schedules of the step in `lr`.
            max_grad_norm: the clip of the global norm; None clips nothing.
            tau: of the target critics at every update.
            parts: arguments of `SACPolicy`; `clip`, `target` and `horizon` replace the options above.
        """
        n_dimensions = math.prod(bounded_box(cls.__name__, envs.action_space).shape)
        preprocess = Preprocess(envs.observation_space, normalize=normalize_obs)
        defaults = parts_for(
            envs,
            preprocess,
            max_grad_norm=max_grad_norm,
            optimizer=lambda: spec_with_lr(optimizer, Adam(3e-4), lr),
            horizon=lambda: Horizon(n_step, gamma, reward),
            target=lambda: Target(every=1, unit="updates", tau=tau),
        )
        how: dict[str, Any] = {"hidden": hidden, "encoder": encoder, "activation": activation, "norm": norm}
        how["recurrent"] = recurrent
        for name in {"critic_optimizer", "temperature_optimizer"} & parts.keys():
            parts[name] = None if parts[name] is None else spec_with_lr(parts[name], Adam(3e-4), lr)
        actor = ActorNetwork(preprocess.shapes, 2 * n_dimensions, **how)
        critics = CriticNetwork(preprocess.shapes, n_dimensions, **how)
        return cls(actor, critics, **defaults | parts)

    def _actor_outputs(self, features: Any) -> tuple[Tensor, dict[str, Tensor]]:
        return self.actor(features), {}

    def greedy_values(
        self, obs: Obs, state: NDArray[np.float32] | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the value [K] of the greedy action for raw observations [K, ...], and an infinite gap [K].

        Of one observation they are two numbers. The value is the critics' minimum; it includes the entropy bonuses of
        the future. `state` [K, S] is that before the observations, of networks that carry one; without, they are the
        first of their episodes.
        """
        rows, is_one = self._read("greedy_values", obs)
        before = self._network_state.check_state(type(self).__name__, state, len(tree.first_leaf(rows)))
        self.enter(training=False)
        with torch.no_grad():
            given = self.features(rows), to_device(before, self.device)
            best: NDArray[np.float32] = self._network_state.call(self._greedy_value, *given)[0].cpu().numpy()
        gap = np.full_like(best, np.inf)
        return (best[0], gap[0]) if is_one else (best, gap)

    def _greedy_value(self, features: Any) -> Tensor:
        """Return the critics' minimum [K] of the greedy action."""
        mode = self.distribution.mode(self.actor(features), None)
        value: Tensor = self.critics(features, mode.reshape(len(mode), -1)).amin(dim=1)
        return value

    # ---- learning ----

    def loss_inputs(self, n_rows: int, *, step: int) -> dict[str, Any]:
        """Return a scheduled temperature."""
        return {} if self._schedule is None else {"temperature": self._schedule(step)}

    def loss_noise(self, n_rows: int) -> dict[str, Any]:
        """Sample noise [B, D] for this and for the next observation's action."""
        how: dict[str, Any] = {"generator": self.generator, "device": self.device, "dtype": torch.float32}
        noise, next_noise = torch.randn(2, n_rows, self.distribution.n_dimensions, **how)
        return {"noise": noise, "next_noise": next_noise}

    def critic_loss(self, rows: TensorBatch, /) -> Loss:
        """Return half the squared TD errors of all critics (equations 5 and 6); the priority is their mean size."""
        with torch.no_grad():
            next_unit, log_prob = self.distribution.draw(self.actor(rows.next_obs), rows.inputs["next_noise"])
            after = self.target_critics(rows.next_obs, next_unit).amin(dim=1) - self._temperature(rows) * log_prob
            target = rows.reward + torch.where(rows.discount > 0, rows.discount * after, 0.0)
        unit = self.action_scale.to_unit(rows.action).reshape(len(rows.action), -1).clamp(-1.0, 1.0)
        q = self.critics(rows.obs, unit)
        td = q - target.unsqueeze(1)  # [B, C]
        priority = td.detach().abs().mean(dim=1)
        metrics: dict[str, Metric] = {"q_mean": q.detach(), "q_max": Max(q.detach()), "q_min": Min(q.detach())}
        metrics |= {"td_abs_mean": priority, "td_abs_max": Max(priority)}
        return Loss(0.5 * td.square().sum(dim=1), priority, metrics)

    def actor_loss(self, rows: TensorBatch, /) -> Loss:
        """Return temperature * log pi minus the critics' minimum for a sampled action (equation 9)."""
        temperature = self._temperature(rows)
        unit, log_prob = self.distribution.draw(self.actor(rows.obs), rows.inputs["noise"])
        q = self.critics(rows.obs, unit).amin(dim=1)
        metrics = {"entropy": -log_prob, "temperature": temperature}
        return Loss(temperature * log_prob - q, metrics=metrics, outputs={"log_prob": log_prob})

    def temperature_loss(self, rows: TensorBatch, /) -> Loss:
        """Return log temperature times (entropy - target entropy) (equation 18)."""
        assert self.learned_temperature is not None, "there is no such step otherwise"
        excess = -(rows.inputs["log_prob"] + self.target_entropy)
        return Loss(self.learned_temperature.log * excess)

    def _temperature(self, rows: TensorBatch) -> Tensor:
        """Return the temperature, a scalar without gradient."""
        if self.learned_temperature is not None:
            return self.learned_temperature.log.detach().exp()
        temperature: Tensor = rows.inputs["temperature"]
        return temperature

    def check_networks(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        """Raise for spaces that do not fit the actor or the critics."""
        super().check_networks(observation_space, action_space)
        with forward_on(f"{type(self).__name__}'s critics", observation_space):
            features = self.features(zeros_of(observation_space))
            values = self.critics(features, torch.zeros(1, self.distribution.n_dimensions, device=self.device))
        if values.dim() != 2 or len(values) != 1:
            raise SpaceMismatchError(
                f"{type(self).__name__}'s critics give {tuple(values.shape)} for one observation and action: they must "
                "give [B, C], a value from each of C critics"
            )


class LogTemperature(nn.Module):
    """A learned temperature, by its logarithm."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(initial), dtype=torch.float32))


def _check_temperature(
    checks: Checks, temperature: Literal["auto"] | Scheduled, initial: float | None, target_entropy: float | None
) -> None:
    is_learned = temperature == "auto"
    checks.number("initial_temperature", initial, low=0, above_low=True, optional=True)
    checks.number("target_entropy", target_entropy, optional=True)
    for name, value in (("initial_temperature", initial), ("target_entropy", target_entropy)):
        checks.require(is_learned or value is None, f".{name} needs temperature='auto', got {temperature!r}")
    if not is_learned:
        rule = f".temperature must be 'auto', a number or a schedule, got {temperature!r}"
        if checks.require(not isinstance(temperature, str), rule):
            with checks.gather():
                as_schedule(checks.subject, "temperature", temperature, low=0)
