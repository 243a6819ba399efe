"""Soft actor-critic: a squashed normal policy that two critics teach, as undecided as a temperature asks for."""

import math
from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from gymnasium import Space
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit.core import tree
from trainkit.core.data import ActOutput, Horizon, Obs
from trainkit.core.errors import Checks, DivergedError, SpaceMismatchError, all_made, check_flag
from trainkit.core.protocols import EnvSpaces
from trainkit.core.schedules import Scheduled, as_schedule
from trainkit.core.signatures import checked
from trainkit.core.spaces import zeros_of
from trainkit.core.stats import Summary
from trainkit.engine.device import TensorBatch
from trainkit.engine.engine import EngineName
from trainkit.engine.gradient_step import Adam, Clip
from trainkit.engine.loss import Loss
from trainkit.nets.action_scale import ActionScale
from trainkit.nets.actor_critic import ActorNetwork, CriticNetwork
from trainkit.nets.distributions import ActionStd, SquashedGaussian, bounded_box
from trainkit.nets.preprocess import Preprocess
from trainkit.policy.base import Policy
from trainkit.policy.export import reasons
from trainkit.policy.refusals import trying
from trainkit.policy.target import Target


@checked
class SACPolicy(Policy):
    """Learn to act well and unpredictably (Haarnoja et al., 2018, "Soft actor-critic algorithms and applications").

    The update, in order: the critics towards reward + discount * (min of the target critics - temperature * log pi) at
    an action drawn for the next observation (equations 5 and 6), the actor towards what the critics' minimum and its
    entropy say (equation 9), the temperature towards the entropy asked for (equation 18), the target critics' turn.

    The networks work in policy units, [-1, 1], which `action_scale` maps to the bounds of the space: entropies, and
    the target for them, do not depend on the units of the space.

    Args:
        actor: features -> numbers [B, 2 D]: means and logarithms of deviations, as `ActorNetwork`.
        critics: (features, actions [B, D] in -1..1) -> values [B, C], whose minimum counts, as `CriticNetwork`.
        temperature: what a nat of entropy is worth, a schedule of the environment step, or "auto": it is learnt.
        initial_temperature: where learning it starts.
        target_entropy: what it is learnt to reach, in nats; default -D.
        horizon: the return to learn from; of n steps only the last one's entropy is counted.
        target: when the target critics follow; default: 0.005 of the way at every update.
        optimizer: of the actor, and of the others that are not given: `critic_optimizer`, `temperature_optimizer`.
        clip: of the actor's and the critics' gradients; None clips nothing.
        action_space: a Box of floats, bounded in every dimension.
        observation_space, preprocess, device, seed, engine: as in `Policy`.
        flush_denormals: see `GradientStep`.

    Metrics: critic_loss, actor_loss, temperature_loss (where it is learnt), grad_norm and lr of each, q_mean, q_max,
    q_min, td_abs_mean, td_abs_max, entropy, temperature, weight_mean, effective_share (of the weights),
    target_followed.
    """

    unwatched = frozenset({"_action_std"})

    def __init__(
        self,
        actor: nn.Module,
        critics: nn.Module,
        *,
        action_space: Space[Any],
        temperature: Literal["auto"] | Scheduled = "auto",
        initial_temperature: float = 1.0,
        target_entropy: float | None = None,
        horizon: Horizon | None = None,
        target: Target | None = None,
        optimizer: Adam | None = None,
        critic_optimizer: Adam | None = None,
        temperature_optimizer: Adam | None = None,
        clip: Clip | None = None,
        preprocess: nn.Module | None = None,
        observation_space: Space[Any] | None = None,
        device: str | torch.device = "auto",
        seed: int | None = None,
        engine: EngineName = "auto",
        flush_denormals: bool = True,
    ) -> None:
        name = type(self).__name__
        box = bounded_box(name, action_space)
        checks = Checks(name)
        is_learnt = temperature == "auto"
        checks.number("initial_temperature", initial_temperature, low=0, above_low=True)
        if target_entropy is not None:
            checks.number("target_entropy", target_entropy)
            checks.require(is_learnt, f".target_entropy needs temperature='auto', got {temperature!r}")
        if not is_learnt:
            told = f".temperature must be 'auto', a number or a schedule, got {temperature!r}"
            if checks.require(not isinstance(temperature, str), told):
                checks.gather(lambda: as_schedule(name, "temperature", temperature, low=0))
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
        self.distribution = SquashedGaussian(box, log_std=None)
        self._scale = self.action_scale = ActionScale(box)
        self.target_entropy = -float(self.distribution.n_dimensions) if target_entropy is None else target_entropy
        self.actor, self.critics = actor, critics
        self.learnt_temperature = Logarithm(initial_temperature) if is_learnt else None
        self._schedule = None if is_learnt else as_schedule(name, "temperature", temperature, low=0)
        self.to(self.device)
        usual = Adam(3e-4) if optimizer is None else optimizer
        own = usual if critic_optimizer is None else critic_optimizer
        how: dict[str, Any] = {"flush_denormals": flush_denormals}
        self.add_gradient_step("critic", critics, own, clip, loss=self.critic_loss, **how)
        self.add_gradient_step("actor", actor, usual, clip, loss=self.actor_loss, **how)
        if self.learnt_temperature is not None:
            own = usual if temperature_optimizer is None else temperature_optimizer
            self.add_gradient_step("temperature", self.learnt_temperature, own, loss=self.temperature_loss, **how)
        soft = Target(every=1, unit="updates", tau=0.005)
        self.target_critics = self.add_target("critic", critics, soft if target is None else target)
        self._action_std = ActionStd(self.distribution)
        self.eval()

    @classmethod
    def for_envs(
        cls,
        envs: EnvSpaces,
        *,
        hidden: Sequence[int] = (256, 256),
        normalize_obs: bool = False,
        n_step: int | tuple[int, int] = 1,
        gamma: float = 0.99,
        reward: Any = None,
        lr: Any = 3e-4,
        tau: Scheduled = 0.005,
        max_grad_norm: float | None = None,
        **parts: Any,
    ) -> Self:
        """Make a policy for environments, by short words.

        Args:
            envs: anything with `observation_space` and `action_space`.
            hidden: layers of the actor and of each critic.
            normalize_obs: as `normalize` in `Preprocess`.
            n_step, gamma, reward: as in `Horizon`.
            lr, max_grad_norm: of Adam, and the clip of the global norm; None clips nothing.
            tau: how far the target critics follow at every update.
            parts: arguments of `SACPolicy`; `optimizer`, `clip`, `target` and `horizon` replace the words above.
        """
        n_places = math.prod(bounded_box(cls.__name__, envs.action_space).shape)
        preprocess = Preprocess(envs.observation_space, normalize=normalize_obs)
        defaults: dict[str, Any] = {
            **all_made(
                optimizer=lambda: Adam(lr),
                clip=lambda: None if max_grad_norm is None else Clip(max_grad_norm),
                horizon=lambda: Horizon(n_step, gamma, reward),
                target=lambda: Target(every=1, unit="updates", tau=tau),
            ),
            "observation_space": envs.observation_space,
            "action_space": envs.action_space,
            "preprocess": preprocess,
        }
        actor = ActorNetwork(preprocess.shapes, 2 * n_places, hidden=hidden)
        critics = CriticNetwork(preprocess.shapes, n_places, hidden=hidden)
        return cls(actor, critics, **defaults | parts)

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
        """Draw an action of each row's distribution or, without exploring, take the one at its mean."""
        check_flag(self, "act(explore=)", explore)
        self.enter(training=False)
        noise = self.distribution.draw_noise(len(tree.first_leaf(obs)), self.generator) if explore else None
        answer = self._engine.call("act", self._answer, (obs, noise))
        unit, numbers = answer["unit"], answer["numbers"]
        if explore:
            self._action_std.add(numbers)
        action = self._scale.to_space(unit)
        if not np.isfinite(action).all():
            row = int(np.argwhere(~np.isfinite(action))[0][0])
            env = row if env_ids is None else int(env_ids[row])
            raise DivergedError(f"{type(self).__name__} gives action {action[row]} for env {env} at step {step}")
        return ActOutput(action, {}, state)

    def read_action_std(self) -> Summary:
        """Return the standard deviations of the draws since the last call, in policy units and before tanh."""
        return self._action_std.read()

    def _answer(self, given: Any) -> dict[str, Tensor]:
        """Return actions [K, ...] in policy units, by noise [K, D] or None, and network outputs [K, 2 D]."""
        obs, noise = given
        numbers = self.actor(self.preprocess(obs))
        family = self.distribution
        unit = family.mode(numbers, None) if noise is None else family.sample(numbers, None, noise)
        return {"unit": unit, "numbers": numbers}

    def greedy(self, obs: Any) -> dict[str, Tensor]:
        """Return the action [B, ...] at each row's mean for raw observations on the device, and its `reasons`."""
        numbers = self.actor(self.preprocess(obs))
        action = self._scale.to_space(self.distribution.mode(numbers, None))
        return {"action": action, **reasons(self.distribution, numbers, None)}

    # ---- learning ----

    def loss_inputs(self, n_rows: int, *, step: int) -> dict[str, Any]:
        """Draw noise [B, D] for this and for the next observation's action; the temperature where it is not learned."""
        noise, next_noise = self._noise(2, n_rows)
        inputs: dict[str, Any] = {"noise": noise, "next_noise": next_noise}
        if self._schedule is not None:
            inputs["temperature"] = self._schedule(step)
        return inputs

    def critic_loss(self, rows: TensorBatch) -> Loss:
        """Return half the squared TD errors of all critics (equations 5 and 6); the priority is their mean size."""
        with torch.no_grad():
            next_unit, log_prob = self.distribution.draw(self.actor(rows.next_obs), rows.inputs["next_noise"])
            after = self.target_critics(rows.next_obs, next_unit).amin(dim=1) - self._temperature(rows) * log_prob
            goal = rows.reward + torch.where(rows.discount > 0, rows.discount * after, 0.0)
        unit = self._scale.to_unit(rows.action).reshape(len(rows.action), -1).clamp(-1.0, 1.0)
        q = self.critics(rows.obs, unit)
        td = q - goal.unsqueeze(1)  # [B, C]
        priority = td.detach().abs().mean(dim=1)
        metrics = {"q_mean": q.mean(), "q_max": q.max(), "q_min": q.min()}
        metrics |= {"td_abs_mean": priority.mean(), "td_abs_max": priority.max()}
        return Loss(0.5 * td.square().sum(dim=1), priority, metrics)

    def actor_loss(self, rows: TensorBatch) -> Loss:
        """Return what the critics' minimum and the entropy say of an action drawn (equation 9)."""
        temperature = self._temperature(rows)
        unit, log_prob = self.distribution.draw(self.actor(rows.obs), rows.inputs["noise"])
        q = self.critics(rows.obs, unit).amin(dim=1)
        metrics = {"entropy": -log_prob.mean(), "temperature": temperature}
        return Loss(temperature * log_prob - q, metrics=metrics, outputs={"log_prob": log_prob})

    def temperature_loss(self, rows: TensorBatch) -> Loss:
        """Return the logarithm of the temperature times the surplus of entropy (equation 18)."""
        assert self.learnt_temperature is not None, "else there is no such step"
        surplus = -(rows.inputs["log_prob"] + self.target_entropy)
        return Loss(self.learnt_temperature.log * surplus)

    def _noise(self, *rows: int) -> Tensor:
        """Draw standard normal noise, [..., D], on the device."""
        how: dict[str, Any] = {"generator": self.generator, "device": self.device, "dtype": torch.float32}
        return torch.randn(*rows, self.distribution.n_dimensions, **how)

    def _temperature(self, rows: TensorBatch) -> Tensor:
        """Return the temperature, a scalar without a gradient."""
        if self.learnt_temperature is not None:
            return self.learnt_temperature.log.detach().exp()
        temperature: Tensor = rows.inputs["temperature"]
        return temperature

    def train(self, mode: bool = True) -> Self:
        """Switch modes; the target critics always stay in eval mode."""
        super().train(mode)
        self.target_critics.eval()
        return self

    def check_spaces(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        """Refuse environments that the networks cannot see or act in, by trying them on one blank observation."""
        self._refuse_other_spaces(observation_space, action_space)
        self.enter(training=False)
        with trying(f"{type(self).__name__}'s networks", observation_space):
            features = self.features(zeros_of(observation_space))
            numbers = self.actor(features)
            values = self.critics(features, torch.zeros_like(numbers[:, : self.distribution.n_dimensions]))
        shape, width = tuple(numbers.shape), self.distribution.width
        if shape != (1, width):
            raise SpaceMismatchError(
                f"{type(self).__name__}'s actor gives {shape} for one observation, but {action_space} needs "
                f"{(1, width)}: a mean and the logarithm of a deviation for each place"
            )
        if values.dim() != 2 or len(values) != 1:
            raise SpaceMismatchError(
                f"{type(self).__name__}'s critics give {tuple(values.shape)} for one observation and action: they must "
                "give [B, C], a value from each of C critics"
            )
        super().check_spaces(observation_space, action_space)


class Logarithm(nn.Module):
    """One positive number that is learnt, by its logarithm."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(initial), dtype=torch.float32))
