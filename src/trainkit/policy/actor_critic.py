"""`ActorCriticPolicy`, the off-policy actor-critic made of parts; `SACPolicy` is what its defaults make."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, Self, Unpack

import numpy as np
import torch
from gymnasium import Space
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit.core import tree
from trainkit.core.assignments import fixed_options
from trainkit.core.config import Part
from trainkit.core.data import COLUMN_SPECS, Batch, Horizon, Obs
from trainkit.core.errors import Checks, SpaceMismatchError
from trainkit.core.protocols import EnvSpaces
from trainkit.core.schedules import Schedule, Scheduled, as_schedule
from trainkit.core.signatures import checked
from trainkit.core.spaces import zeros_of
from trainkit.engine.device import to_device
from trainkit.engine.gradient_step import Clip
from trainkit.engine.lookups import frames_of
from trainkit.engine.loss import Loss, Max, Metric, Min, TensorBatch, blank_row, tensor_batch
from trainkit.engine.optimizers import Adam, LearningRate, OptimizerSpec, spec_with_lr
from trainkit.nets.actor_critic_networks import Networks, PlainNetworks
from trainkit.nets.distributions import DistributionOf, Reparameterized, family_of
from trainkit.nets.encoders import EncoderLike, Recurrent, stateful_encoders
from trainkit.nets.layers import Activation, Norm
from trainkit.nets.preprocess import Preprocess
from trainkit.nets.weights import SeededModule
from trainkit.policy.base import PolicyOptions, parts_for
from trainkit.policy.checks import blank_columns, check_loss, check_priority, forward_on
from trainkit.policy.critics import (
    CriticInputs,
    CriticPass,
    CriticReduction,
    DrawsNoise,
    MinOfCritics,
    Network,
    SeparatePasses,
    check_reduction,
    over_critics,
    with_noise,
    with_width,
)
from trainkit.policy.network_state import state_of
from trainkit.policy.noise import Noise
from trainkit.policy.persistence import recorded
from trainkit.policy.statistics import ActionStd
from trainkit.policy.stochastic import StochasticPolicy
from trainkit.policy.support import add_support
from trainkit.policy.target import Target
from trainkit.policy.values import DrawnFractions, ExpectedValue, Value, own_tensors


@checked
@fixed_options(
    *("actor_every", "actor_target", "critic_hidden", "critic_optimizer", "initial_temperature", "n_critics"),
    *("networks", "target", "tau", "temperature", "temperature_optimizer"),
)
class ActorCriticPolicy(StochasticPolicy):
    """Off-policy actor-critic made of the parts passed in; by default soft actor-critic.

    The gradient steps of an update, in their order:

    - "critic", the critics towards reward + discount * (reduction of the target critics - temperature * log pi) at the
      next action;
    - "actor", on temperature * log pi - reduction of the critics, in every `actor_every`-th update;
    - "temperature", towards the target entropy, together with the actor's, where it is learned.

    Then the target networks move. Without a temperature there are no terms of log pi.

    The networks work in policy units, [-1, 1], which `action_scale` maps to the bounds of the space: entropies, their
    target and noise do not depend on the units of the space.

    Args:
        actor: features -> outputs [B, width] of the distribution, as `ActorNetwork`.
        critics: (features, actions [B, D] in -1..1) -> outputs [B, C, W], or values [B, C], as `CriticNetwork`. A
            module that defines `constrained`, {name: parameter} -> {name: new value}, has it as the `after=` of its
            gradient step; an actor, too.
        distribution: makes the family of distributions for the space of actions; default `SquashedGaussians`.
        value: the meaning of a critic's W outputs, and its loss; the loss of a row is the sum over critics. Default
            `ExpectedValue("half_mse")`.
        reduction: of the target critics' outputs to the next value; default `MinOfCritics`.
        actor_reduction: of the critics' outputs to the value that the actor ascends; None is `reduction`.
        critic_pass: how the critics are called for their loss; default `SeparatePasses`.
        temperature: weight of the entropy, a schedule of the environment step; "auto": it is learned; None: none.
        initial_temperature: if it is learned.
        target_entropy: of a learned temperature, in nats; default -D.
        exploration: correlated noise of exploring actions, as `ColoredNoise`; None: independent in every step. Losses
            draw independent noise.
        target: when the target critics move; "none": there are none, and the critics take their place. Default: by
            tau = 0.005 at every update.
        actor_target: when a target actor moves, which chooses the next action; None: the actor does.
        actor_every: the actor learns in each update whose number is a multiple of it.
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
    target_followed; those of the value part that are not among these are means over critics.
    """

    def __init__(
        self,
        actor: nn.Module,
        critics: nn.Module,
        *,
        action_space: Space[Any],
        distribution: DistributionOf | None = None,
        value: Value | None = None,
        reduction: CriticReduction | None = None,
        actor_reduction: CriticReduction | None = None,
        critic_pass: CriticPass | None = None,
        temperature: Literal["auto"] | Scheduled | None = "auto",
        initial_temperature: float | None = None,
        target_entropy: float | None = None,
        exploration: Noise | None = None,
        target: Target | Literal["none"] | None = None,
        actor_target: Target | None = None,
        actor_every: int = 1,
        optimizer: OptimizerSpec | None = None,
        critic_optimizer: OptimizerSpec | None = None,
        temperature_optimizer: OptimizerSpec | None = None,
        clip: Clip | None = None,
        flush_denormals: bool = True,
        sequences: Part | None = None,
        **options: Unpack[PolicyOptions],
    ) -> None:
        name = type(self).__name__
        family = family_of(name, distribution, action_space)
        critic_pass = SeparatePasses() if critic_pass is None else critic_pass
        state = state_of(name, (actor, critics), sequences, options.get("auxiliary"), learns_from="replay")
        with Checks(name) as checks:
            _check_networks(checks, actor, critics)
            _check_parts(checks, family, value)
            critic_pass.check(checks, critics, has_target=target != "none")
            _check_temperature(checks, family, temperature, initial_temperature, target_entropy)
        super().__init__(action_space=action_space, **options)
        self.distribution: Reparameterized = family
        self._network_state = state
        self._extras_spec = dict(state.spec)
        self.value: Value = ExpectedValue("half_mse") if value is None else own_tensors(value)
        self.reduction = MinOfCritics() if reduction is None else reduction
        self.actor_reduction = actor_reduction
        self.critic_pass = critic_pass
        self.actor, self.critics = actor, critics
        self._draws_noise = critics.draw_noise if isinstance(critics, DrawsNoise) else None
        self.learned_temperature = LogTemperature(initial_temperature) if temperature == "auto" else None
        is_scheduled = temperature is not None and temperature != "auto"
        self._schedule = as_schedule(name, "temperature", temperature, low=0) if is_scheduled else None
        usual = None if temperature is None else -float(family.n_dimensions)
        self.target_entropy = usual if target_entropy is None else target_entropy
        default: OptimizerSpec = Adam(3e-4) if optimizer is None else optimizer
        of_critics = default if critic_optimizer is None else critic_optimizer
        of_temperature = default if temperature_optimizer is None else temperature_optimizer
        how: dict[str, Any] = {"flush_denormals": flush_denormals}
        own = {"features_of": critics, "after": getattr(critics, "constrained", None), **how}
        self.add_gradient_step("critic", critics, of_critics, clip, loss=self.critic_loss, **own)
        own = {"every": actor_every, "after": getattr(actor, "constrained", None), **how}
        self.add_gradient_step("actor", actor, default, clip, loss=self.actor_loss, **own)
        if self.learned_temperature is not None:
            own = {"every": actor_every, "reads": "actor", "loss": self.temperature_loss, **how}
            self.add_gradient_step("temperature", self.learned_temperature, of_temperature, **own)
        target = Target(every=1, unit="updates", tau=0.005) if target is None else target
        self.target_critics = None if target == "none" else self.add_target("critic", critics, target)
        self.target_actor = None if actor_target is None else self.add_target("actor", actor, actor_target)
        networks = [critics] if self.target_critics is None else [critics, self.target_critics]
        add_support(self, self.value, networks, self.logits, learns_by="critic")
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
        critic_hidden: Sequence[int] | None = None,
        n_critics: int = 2,
        networks: Networks | None = None,
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
        distribution: DistributionOf | None = None,
        value: Value | None = None,
        **parts: Any,
    ) -> Self:
        """Make a policy for environments from the most common options.

        Args:
            envs: anything with `observation_space` and `action_space`.
            hidden: layers of the actor and, unless `critic_hidden` is given, of each critic.
            critic_hidden: layers of each critic.
            n_critics: C.
            networks: makes the actor and the critics of these options; default `PlainNetworks`.
            encoder, activation, norm, recurrent: as in `ActorNetwork` and `CriticNetwork`, with an encoder each; actor
                and critics do not share them.
            normalize_obs: as `normalize` in `Preprocess`.
            n_step, gamma, reward: as in `Horizon`.
            optimizer, lr: as in `ActorCriticPolicy` and `Adam`; an optimizer with a learning rate of its own ignores
                numbers and schedules of the step in `lr`.
            max_grad_norm: the clip of the global norm; None clips nothing.
            tau: of the target critics at every update.
            distribution, value, parts: arguments of `ActorCriticPolicy`; `clip`, `target` and `horizon` replace the
                options above.
        """
        family = family_of(cls.__name__, distribution, envs.action_space)
        preprocess = Preprocess(envs.observation_space, normalize=normalize_obs)
        defaults = parts_for(
            envs,
            preprocess,
            max_grad_norm=max_grad_norm,
            optimizer=lambda: spec_with_lr(optimizer, Adam(3e-4), lr),
            horizon=lambda: Horizon(n_step, gamma, reward),
            target=lambda: Target(every=1, unit="updates", tau=tau),
        )
        how: dict[str, Any] = {"encoder": encoder, "activation": activation, "norm": norm, "recurrent": recurrent}
        for name in {"critic_optimizer", "temperature_optimizer"} & parts.keys():
            parts[name] = None if parts[name] is None else spec_with_lr(parts[name], Adam(3e-4), lr)
        made: Networks = PlainNetworks() if networks is None else networks
        width = None if value is None or value.width == 1 else value.width
        actor = made.actor(preprocess.shapes, family.width, hidden=hidden, **how)
        how |= {"n_critics": n_critics, "width": width, "hidden": hidden if critic_hidden is None else critic_hidden}
        critics = made.critics(preprocess.shapes, family.n_dimensions, **how)
        return cls(actor, critics, distribution=distribution, value=value, **defaults | parts)

    @property
    def _noise_std(self) -> Schedule | None:
        return self.distribution.noise_std

    def _actor_outputs(self, features: Any) -> tuple[Tensor, dict[str, Tensor]]:
        return self.actor(features), {}

    def greedy_values(
        self, obs: Obs, state: NDArray[np.float32] | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the value [K] of the greedy action for raw observations [K, ...], and an infinite gap [K].

        Of one observation they are two numbers. The value is that which the actor ascends, of SAC the critics' minimum;
        it includes the entropy bonuses of the future. `state` [K, S] is that before the observations, of networks that
        carry one; without, they are the first of their episodes.
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
        """Return the reduced critics' value [K] of the greedy action."""
        mode = self.distribution.mode(self.actor(features), None)
        return self._ascended(features, mode.reshape(len(mode), -1))

    # ---- learning ----

    @torch.no_grad()
    def logits(self, batch: Batch) -> Tensor:
        """Return the outputs [N, W] of critics and target critics for a batch's observations and actions."""
        self.enter(training=False)
        rows = self.rows(to_device(self._columns(batch), self.device), {}, frames_of(batch))
        action, networks = self._unit(rows), [self.critics, self.target_critics]
        return torch.cat([with_width(own(rows.obs, action)).flatten(0, 1) for own in networks if own is not None])

    def _unit(self, rows: TensorBatch) -> Tensor:
        """Return the stored actions [B, D] in policy units."""
        return self.action_scale.to_unit(rows.action).reshape(len(rows.action), -1).clamp(-1.0, 1.0)

    def loss_inputs(self, n_rows: int, *, step: int) -> dict[str, Any]:
        """Return a scheduled temperature."""
        return {} if self._schedule is None else {"temperature": self._schedule(step)}

    def loss_noise(self, n_rows: int) -> dict[str, Any]:
        """Sample noise [B, D] for this and for the next observation's action, and what reduction and critics draw."""
        how: dict[str, Any] = {"generator": self.generator, "device": self.device, "dtype": torch.float32}
        noise, next_noise = torch.randn(2, n_rows, self.distribution.n_dimensions, **how)
        inputs = {"noise": noise, "next_noise": next_noise}
        drawn = self.reduction.draw(self.critics, self.generator)
        if drawn is not None:
            inputs["drawn"] = drawn
        if self._draws_noise is not None:
            passes = "critic_noise", "target_noise", "actor_noise"
            inputs |= {name: self._draws_noise(n_rows, self.generator) for name in passes}
        return inputs

    def critic_loss(self, rows: TensorBatch, /) -> Loss:
        """Return the value part's loss of all critics towards the TD target; the priority is their mean one."""
        with torch.no_grad():
            next_actor = self.actor if self.target_actor is None else self.target_actor
            next_action, log_prob = self.distribution.draw_next(next_actor(rows.next_obs), rows.inputs["next_noise"])
        critics = with_noise(self.critics, rows.inputs.get("critic_noise"))
        target_critics: Network | None = self.target_critics
        if target_critics is not None:
            target_critics = with_noise(target_critics, rows.inputs.get("target_noise"))
        steps, next_steps = CriticInputs(rows.obs, self._unit(rows)), CriticInputs(rows.next_obs, next_action)
        both = self.critic_pass(critics, target_critics, steps, next_steps)
        outputs, next_outputs = map(with_width, both)  # [B, C, W]
        with torch.no_grad():
            after = self.reduction(next_outputs, self.value, rows.inputs.get("drawn"))  # [B, W']
            cost = self._cost(rows, log_prob)
            target = self.value.target(after, rows.reward, rows.discount, cost).unsqueeze(1)  # [B, 1, W]
        loss, priority = self.value.loss(outputs, target)  # [B, C]
        with torch.no_grad():
            q = self.value.mean(outputs)  # [B, C]
            metrics: dict[str, Metric] = {"q_mean": q, "q_max": Max(q), "q_min": Min(q)}
            reward = rows.reward if cost is None else rows.reward - rows.discount * cost
            of_value = self.value.metrics(outputs, target, after, reward, rows.discount)
            metrics |= {name: over_critics(metric) for name, metric in of_value.items()}
        return Loss(loss.sum(dim=1), priority.mean(dim=1), metrics)

    def actor_loss(self, rows: TensorBatch, /) -> Loss:
        """Return temperature * log pi minus the reduced critics' value, of an action drawn for each row."""
        action, log_prob = self.distribution.draw(self.actor(rows.obs), rows.inputs["noise"])
        q = self._ascended(rows.obs, action, rows.inputs.get("actor_noise"))
        cost = self._cost(rows, log_prob)
        if cost is None or log_prob is None:
            return Loss(-q)
        metrics = {"entropy": -log_prob, "temperature": self._temperature(rows)}
        return Loss(cost - q, metrics=metrics, outputs={"log_prob": log_prob})

    def temperature_loss(self, rows: TensorBatch, /) -> Loss:
        """Return log temperature times (entropy - target entropy)."""
        assert self.learned_temperature is not None, "there is no such step otherwise"
        assert self.target_entropy is not None, "there is a temperature"
        excess = -(rows.inputs["log_prob"] + self.target_entropy)
        return Loss(self.learned_temperature.log * excess)

    def _ascended(self, features: Any, action: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return the value [B] that the actor ascends, of actions [B, D]."""
        reduction = self.reduction if self.actor_reduction is None else self.actor_reduction
        outputs = reduction.read(with_noise(self.critics, noise), features, action)
        return self.value.mean(reduction(with_width(outputs), self.value))

    def _cost(self, rows: TensorBatch, log_prob: Tensor | None) -> Tensor | None:
        """Return temperature * log pi, [B]; None without a temperature."""
        has_temperature = self.learned_temperature is not None or self._schedule is not None
        return self._temperature(rows) * log_prob if has_temperature and log_prob is not None else None

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
            outputs = self.critics(features, torch.zeros(1, self.distribution.n_dimensions, device=self.device))
        width = self.value.width
        shapes = ["[B, C, W]", "[B, C]"] if width == 1 else ["[B, C, W]"]
        if outputs.dim() not in (2, 3) or len(outputs) != 1 or with_width(outputs).shape[2] != width:
            raise SpaceMismatchError(
                f"{type(self).__name__}'s critics give {tuple(outputs.shape)} for one observation and action: they "
                f"must give {' or '.join(shapes)}, {width} from each of C critics for {type(self.value).__name__}"
            )
        for part in (self.reduction, self.actor_reduction):
            if part is not None:
                check_reduction(part, with_width(outputs).expand(2, -1, -1), self.value)
        self._check_losses(to_device(zeros_of(observation_space), self.device))

    def _check_losses(self, obs: Any) -> None:
        """Raise unless the parts give losses together, on one blank row."""
        known = {**COLUMN_SPECS, **self.extras_spec}
        extras = blank_columns(self.columns, known, self.device)
        if extras is None or self.state_size > 0:
            return
        streams = self.streams_state()
        inputs = to_device(self.loss_inputs(1, step=self.last_step), self.device) | self.loss_noise(1)
        self.load_streams_state(streams)
        columns = blank_row(obs, extras)._replace(action=self.action_scale.middle.unsqueeze(0))
        rows = tensor_batch(columns, self.preprocess)._replace(inputs=inputs)
        parts = self.value, self.reduction, self.actor_reduction, self.critic_pass
        names = ", ".join(dict.fromkeys(type(part).__name__ for part in parts if part is not None))
        subject = f"{type(self).__name__}'s {names}"
        of_others = "a reduction outputs [B, W] of critics' outputs [B, C, W]"
        check_priority(subject, check_loss(subject, partial(self.critic_loss, rows), of_others))
        check_loss(subject, partial(self.actor_loss, rows), of_others)


class SACPolicy(ActorCriticPolicy):
    """Soft actor-critic (Haarnoja et al., 2018, "Soft actor-critic algorithms and applications").

    It is `ActorCriticPolicy` with its default parts. The critics learn towards reward + discount * (minimum of the
    target critics - temperature * log pi) at an action sampled for the next observation (equations 5 and 6), the actor
    on temperature * log pi minus the critics' minimum (equation 9), the temperature towards the target entropy
    (equation 18).

    Metrics: critic_loss, actor_loss, temperature_loss (if it is learned), grad_norm and lr of each, q_mean, q_max,
    q_min, td_abs_mean, td_abs_max, entropy, temperature, weight_mean, effective_share (of the weights),
    target_followed.
    """


class LogTemperature(SeededModule):
    """A learned temperature, by its logarithm; None starts it at 1."""

    def __init__(self, initial: float | None) -> None:
        super().__init__()
        self._initial = 1.0 if initial is None else initial
        self.log = nn.Parameter(torch.empty((), dtype=torch.float32))
        self.draw()

    def _initialize(self, generator: torch.Generator) -> None:
        with torch.no_grad():
            self.log.fill_(math.log(self._initial))


def _check_networks(checks: Checks, actor: nn.Module, critics: nn.Module) -> None:
    has_both = bool(stateful_encoders(actor)) == bool(stateful_encoders(critics))
    checks.require(has_both, " needs a state in both the actor and the critics, or in neither: give both recurrent")


def _check_parts(checks: Checks, family: Reparameterized, value: Value | None) -> None:
    has_parameters = isinstance(family, nn.Module) and any(True for _ in family.parameters())
    rule = f".distribution must have no parameters, which no gradient step moves, got {type(family).__name__}"
    checks.require(not has_parameters, f"{rule}: let the actor's outputs be all that it needs, as SquashedGaussians()")
    rule = f".value must have no fractions of its own, which critics do not take, got {type(value).__name__}"
    checks.require(not isinstance(value, DrawnFractions), f"{rule}: give QuantileValue()")


def _check_temperature(
    checks: Checks,
    family: Reparameterized,
    temperature: Literal["auto"] | Scheduled | None,
    initial: float | None,
    target_entropy: float | None,
) -> None:
    rule = f".temperature weights an entropy, which {type(family).__name__} does not have, got {temperature!r}"
    checks.require(family.has_density or temperature is None, f"{rule}: give temperature=None")
    is_learned = temperature == "auto"
    checks.number("initial_temperature", initial, low=0, above_low=True, optional=True)
    checks.number("target_entropy", target_entropy, optional=True)
    for name, value in (("initial_temperature", initial), ("target_entropy", target_entropy)):
        checks.require(is_learned or value is None, f".{name} needs temperature='auto', got {temperature!r}")
    if not is_learned and temperature is not None:
        rule = f".temperature must be 'auto', a number, a schedule or None, got {temperature!r}"
        if checks.require(not isinstance(temperature, str), rule):
            with checks.gather():
                as_schedule(checks.subject, "temperature", temperature, low=0)
