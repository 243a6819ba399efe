"""Soft actor-critic: a squashed normal policy that two critics teach, as undecided as a temperature asks for."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from gymnasium import Space
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit import tree
from trainkit.data import ActOutput, Horizon, Obs, TransitionBatch
from trainkit.errors import Checks, DivergedError, SpaceMismatchError, all_made, check_flag
from trainkit.policy.action_scale import ActionScale
from trainkit.policy.base import Policy
from trainkit.policy.compiling import Compile
from trainkit.policy.critics import ActorNetwork, CriticNetwork
from trainkit.policy.deviations import Deviations
from trainkit.policy.device import TensorBatch, in_float32
from trainkit.policy.export import reasons
from trainkit.policy.gradient_step import Adam, ByHand, Clip
from trainkit.policy.host.acting import HostActor
from trainkit.policy.host.layers import mean
from trainkit.policy.host.layers import weight_metrics as host_weight_metrics
from trainkit.policy.host.preprocess import HostPreprocess
from trainkit.policy.host.sac import HostSAC, teach_temperature
from trainkit.policy.host.values import td_metrics
from trainkit.policy.host.watchers import learns_alone
from trainkit.policy.meter import UpdateResult, weight_metrics
from trainkit.policy.preprocess import Preprocess
from trainkit.policy.refusals import trying
from trainkit.policy.squashed import SquashedGaussian, bounded_box
from trainkit.policy.target import Target
from trainkit.protocols import EnvSpaces
from trainkit.schedules import Scheduled, as_schedule
from trainkit.spaces import zeros_of
from trainkit.stats import Summary


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
        observation_space, preprocess, device, seed: as in `Policy`.
        flush_denormals, compile: see `GradientStep`.

    Metrics: critic_loss, actor_loss, temperature_loss (where it is learnt), grad_norm and lr of each, q_mean, q_max,
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
        flush_denormals: bool = True,
        compile: Compile = False,
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
        )
        self.distribution = SquashedGaussian(box, log_std=None)
        self._scale = self.action_scale = ActionScale(box)
        self.target_entropy = -float(self.distribution.n_places) if target_entropy is None else target_entropy
        self.actor, self.critics = actor, critics
        self.learnt_temperature = Logarithm(initial_temperature) if is_learnt else None
        self._schedule = None if is_learnt else as_schedule(name, "temperature", temperature, low=0)
        self.to(self.device)
        usual = Adam(3e-4) if optimizer is None else optimizer
        own = usual if critic_optimizer is None else critic_optimizer
        how: dict[str, Any] = {"flush_denormals": flush_denormals, "compile": compile}
        self.add_gradient_step("critic", critics, own, clip, **how)
        self.add_gradient_step("actor", actor, usual, clip, **how)
        if self.learnt_temperature is not None:
            own = usual if temperature_optimizer is None else temperature_optimizer
            self.add_gradient_step("temperature", self.learnt_temperature, own, **how)
        soft = Target(every=1, unit="updates", tau=0.005)
        self.target_critics = self.add_target("critic", critics, soft if target is None else target)
        features = HostPreprocess.for_module(self.preprocess, self.device)
        sees_as_we_do = self._keeps(Policy, "features")
        self._deviations = Deviations(self.distribution)
        self._host = HostActor.for_network(features, self.actor, self.distribution) if sees_as_we_do else None
        self._host_learner: HostSAC | None = None
        if compile is not True and self._keeps(SACPolicy, "_learn", "_goal", "minimise", "tensors", "_columns"):
            parts = self.actor, self.critics, self.target_critics, self.distribution
            self._host_learner = HostSAC.for_parts(features, *parts, self._scale)
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
        host, n_rows = self._host, len(tree.first_leaf(obs))
        if host is not None and host.takes(obs, n_rows, self.preprocess, self.actor, self.distribution):
            unit, numbers = host.act(obs, self._noise(n_rows).numpy() if explore else None)
        else:
            with torch.no_grad():
                numbers = self.actor(self.features(obs))
                family = self.distribution
                drawn = family.sample(numbers, None, self.generator) if explore else family.mode(numbers, None)
                unit = drawn.cpu().numpy()
        if explore:
            self._deviations.note(numbers)
        action = self._scale.to_space(unit)
        if not np.isfinite(action).all():
            row = int(np.argwhere(~np.isfinite(action))[0][0])
            env = row if env_ids is None else int(env_ids[row])
            raise DivergedError(f"{type(self).__name__} gives action {action[row]} for env {env} at step {step}")
        return ActOutput(action, {}, state)

    def read_action_std(self) -> Summary:
        """Return the standard deviations of the draws since the last call, in policy units and before tanh."""
        return self._deviations.read()

    def greedy(self, obs: Any) -> dict[str, Tensor]:
        """Return the action [B, ...] at each row's mean for raw observations on the device, and its `reasons`."""
        numbers = self.actor(self.preprocess(obs))
        action = self._scale.to_space(self.distribution.mode(numbers, None))
        return {"action": action, **reasons(self.distribution, numbers, None)}

    # ---- learning ----

    def update(self, batch: TransitionBatch, *, step: int) -> UpdateResult:
        """Learn from one batch and return its priorities, mean over the critics of |td|."""
        self.enter(training=True)
        noise, next_noise = self._noise(2, len(batch))
        drawn = Drawn(noise, next_noise, self._temperature(step))
        learner = self._host_learner
        parts = self.actor, self.critics, self.target_critics, self.distribution
        if learner is not None and learner.takes(batch, self.preprocess, *parts) and self._warms_alone():
            told = self._learn_by_hand(learner, batch, drawn, step)
        else:
            told = self._learn(self.tensors(batch), drawn, step)
        return self.end_update(step=step, temperature=drawn.temperature, **told)

    def _learn(self, rows: TensorBatch, drawn: "Drawn", step: int) -> dict[str, Any]:
        """Take the gradient steps on rows that are on the device; return what there is to tell `end_update`."""
        noise, next_noise, temperature = drawn

        def critic_loss() -> tuple[Tensor, tuple[Tensor, Tensor]]:
            goal = self._goal(rows, next_noise, temperature)
            unit = self._scale.to_unit(rows.action).reshape(len(rows.action), -1).clamp(-1.0, 1.0)
            q = self.critics(rows.obs, unit)
            td = q - goal.unsqueeze(1)  # [B, C]
            return _weighted(rows, 0.5 * td.square().sum(dim=1)), (td.detach().abs().mean(dim=1), q.detach())

        def actor_loss() -> tuple[Tensor, Tensor]:
            unit, log_prob = self.distribution.draw(self.actor(rows.obs), noise)
            q = self.critics(rows.obs, unit).amin(dim=1)
            return _weighted(rows, temperature * log_prob - q), log_prob.detach()

        priority, q = self.minimise("critic", critic_loss, step=step)
        with _frozen(self.critics):
            log_prob = self.minimise("actor", actor_loss, step=step)
        learnt = self.learnt_temperature
        if learnt is not None:
            surplus = -(log_prob + self.target_entropy)  # of entropy, row by row
            self.minimise("temperature", lambda: _weighted(rows, learnt.log * surplus), step=step)
        shown = {"q_mean": q.mean(), "q_max": q.max(), "q_min": q.min()}
        shown |= {"td_abs_mean": priority.mean(), "td_abs_max": priority.max(), "entropy": -log_prob.mean()}
        return {"priority": priority, **shown, **weight_metrics(rows.weight)}

    def _learn_by_hand(self, learner: HostSAC, batch: TransitionBatch, drawn: "Drawn", step: int) -> dict[str, Any]:
        """Take the gradient steps in numpy."""
        self._note_rows(batch)
        batch = in_float32(batch)
        noise, next_noise, temperature = drawn.noise.numpy(), drawn.next_noise.numpy(), float(drawn.temperature)
        critics = ByHand(partial(learner.teach_critics, batch, next_noise, temperature), (self.critics,))
        td, q = self.minimise("critic", critics, step=step)
        actor = ByHand(partial(learner.teach_actor, batch, noise, temperature), (self.actor,))
        log_prob = self.minimise("actor", actor, step=step)
        learnt = self.learnt_temperature
        if learnt is not None:
            surplus = -(log_prob + float(self.target_entropy))
            by_hand = ByHand(partial(teach_temperature, learnt.log, surplus, batch.weight), (learnt,))
            self.minimise("temperature", by_hand, step=step)
        priority = np.abs(td).mean(axis=0)
        shown = {"q_mean": float(q.mean()), "q_max": float(q.max()), "q_min": float(q.min())}
        shown |= {**td_metrics(priority), "entropy": -mean(log_prob)}
        return {"priority": priority, **shown, **host_weight_metrics(batch.weight)}

    def _warms_alone(self) -> bool:
        """Whether the temperature is told, or learns and nobody else waits for its gradient."""
        return self.learnt_temperature is None or learns_alone(self.learnt_temperature.log)

    def _goal(self, rows: TensorBatch, noise: Tensor, temperature: Tensor) -> Tensor:
        """Return what the critics should have said, [B]."""
        with torch.no_grad():
            unit, log_prob = self.distribution.draw(self.actor(rows.next_obs), noise)
            after = self.target_critics(rows.next_obs, unit).amin(dim=1) - temperature * log_prob
            return rows.reward + torch.where(rows.discount > 0, rows.discount * after, 0.0)

    def _noise(self, *rows: int) -> Tensor:
        """Draw standard normal noise, [..., D], on the device."""
        how: dict[str, Any] = {"generator": self.generator, "device": self.device, "dtype": torch.float32}
        return torch.randn(*rows, self.distribution.n_places, **how)

    def _temperature(self, step: int) -> Tensor:
        """Return the temperature, a scalar without a gradient."""
        if self.learnt_temperature is not None:
            return self.learnt_temperature.log.detach().exp()
        assert self._schedule is not None, "one of the two is there"
        return torch.full((), self._schedule(step), device=self.device, dtype=torch.float32)

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
            values = self.critics(features, torch.zeros_like(numbers[:, : self.distribution.n_places]))
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


class Drawn(NamedTuple):
    """What one update is given besides its rows."""

    noise: Tensor  # [B, D], of this observation's action
    next_noise: Tensor  # [B, D], of the next one's
    temperature: Tensor


class Logarithm(nn.Module):
    """One positive number that is learnt, by its logarithm."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(initial), dtype=torch.float32))


def _weighted(rows: TensorBatch, per_row: Tensor) -> Tensor:
    """Return the mean over rows of importance weight times loss [B]."""
    return (rows.weight * per_row).mean()


@contextmanager
def _frozen(module: nn.Module) -> Iterator[None]:
    """Let no gradient of a module's parameters be computed from what is done here."""
    moving = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in moving:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in moving:
            parameter.requires_grad_(True)
