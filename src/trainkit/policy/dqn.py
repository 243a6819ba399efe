"""The Q-learner: one class, whose parts decide whether it is DQN, C51, Rainbow, or something new."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from gymnasium import Space, spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit.core import tree
from trainkit.core.data import ACTION_PROB, Q_VALUES, ActOutput, ArraySpec, Horizon, Obs, TransitionBatch
from trainkit.core.errors import ConfigError, all_made, check_flag
from trainkit.core.protocols import EnvSpaces
from trainkit.core.signatures import checked
from trainkit.core.spaces import checked_legal, count_actions, zeros_of
from trainkit.core.structured_actions import JointActions, joint_actions
from trainkit.engine.device import TensorBatch, blank_row, legal_mask, to_device
from trainkit.engine.engine import EngineName
from trainkit.engine.gradient_step import Adam, Clip
from trainkit.engine.loss import Loss
from trainkit.nets.networks import ActionValues, ImplicitQNetwork, PlainModule, Prediction, QNetwork
from trainkit.nets.preprocess import Preprocess
from trainkit.policy.backups import Backup, DoubleBackup, MaxBackup, best_action, pick
from trainkit.policy.base import Policy
from trainkit.policy.cpu_copy import ActOn, CpuCopy, Parts
from trainkit.policy.draws import Draw, Draws, ask
from trainkit.policy.exploration import (
    ACTION_PROB_SPEC,
    EpsilonGreedy,
    Exploration,
    Greedy,
    chosen_probability,
    legal_values,
    require_probability,
)
from trainkit.policy.meter import UpdateResult
from trainkit.policy.penalties import Penalty
from trainkit.policy.precision import Precision, in_precision
from trainkit.policy.quantiles import DrawnFractions
from trainkit.policy.refusals import refuse_losses, refuse_numbers, trying
from trainkit.policy.target import Target
from trainkit.policy.values import ExpectedValue, Value


@checked
class DQNPolicy(Policy):
    """Learn action values from transitions (Mnih et al., 2015), by the parts passed in.

    The update, in order: the chosen action's numbers, what the backup says follows, the value part's goal and loss,
    the penalty, the mean of importance weight times loss, one gradient step, and the target's turn to follow.

    Args:
        network: a `QNetwork`, or any module that maps observations to [B, A, W] or [B, A].
        value: what the W numbers mean.
        backup: which next value counts.
        penalty: what else it is charged for, as `ConservativePenalty`; None for nothing.
        exploration: how to leave the greedy path; may be set between any two steps.
        horizon: the return to learn from.
        target: when the target network follows.
        optimizer: Adam's numbers.
        clip: of gradients; None clips nothing.
        observation_space, action_space, preprocess, device, seed: as in `Policy`; actions are Discrete, or joint ones
            (MultiDiscrete, MultiBinary, a Dict or Tuple of them) of at most 10,000 combinations, with a value each.
        engine: as in `Policy`.
        flush_denormals: see `GradientStep`.
        precision: what networks multiply in while they learn, "float32" or "bf16"; parameters, losses, acting: float32.
        act_on: "policy", where the policy is, or "cpu", by a copy that keeps up with it; the same for one on the CPU.
        store_action_prob: store how likely each action was, as `action_prob`.
        store_q_values: store the values [A] that each action was chosen by, of illegal actions too, as `q_values`.

    Metrics: loss, q_mean, q_max, q_min (of the chosen actions of a batch), weight_mean, effective_share (of the
    weights), grad_norm (before the clip), lr, target_followed, penalty_mean (where there is one), and the value
    part's own.
    """

    unwatched = frozenset({"exploration", "_joint_of", "_cpu_copy"})

    def __init__(
        self,
        network: nn.Module,
        *,
        value: Value | None = None,
        backup: Backup | None = None,
        penalty: Penalty | None = None,
        exploration: Exploration | None = None,
        horizon: Horizon | None = None,
        target: Target | None = None,
        optimizer: Adam | None = None,
        clip: Clip | None = None,
        preprocess: nn.Module | None = None,
        observation_space: Space[Any] | None = None,
        action_space: Space[Any] | None = None,
        device: str | torch.device = "auto",
        seed: int | None = None,
        engine: EngineName = "auto",
        flush_denormals: bool = True,
        precision: Precision = "float32",
        act_on: ActOn = "policy",
        store_action_prob: bool = False,
        store_q_values: bool = False,
    ) -> None:
        super().__init__(
            observation_space=observation_space,
            action_space=action_space,
            preprocess=preprocess,
            horizon=horizon,
            device=device,
            seed=seed,
            engine=engine,
        )
        self._joint_of: tuple[Space[Any] | None, JointActions | None] = None, None
        self._in_precision = in_precision(type(self).__name__, precision, self.device)
        self.network = network if isinstance(network, ActionValues) else PlainModule(network)
        self.value: Value = ExpectedValue() if value is None else value
        self.backup: Backup = MaxBackup() if backup is None else backup
        self.penalty = penalty
        self.exploration: Exploration = EpsilonGreedy.linear(1.0, 0.05, 10_000) if exploration is None else exploration
        if store_action_prob:
            require_probability(type(self).__name__, self.exploration, self.network.noise_size)
            self._extras_spec = ACTION_PROB_SPEC
        if store_q_values:
            if action_space is None:
                raise ConfigError(f"{type(self).__name__}.store_q_values needs an action_space: give it, too")
            n_actions = count_actions(type(self).__name__, action_space)
            values = ArraySpec(shape=(n_actions,), dtype=np.dtype(np.float32))
            self._extras_spec = {**self._extras_spec, Q_VALUES: values}
        self._draws = Draws(self.network, self.value)
        self.to(self.device)
        adam = Adam() if optimizer is None else optimizer
        how: dict[str, Any] = {"loss": self.loss, "flush_denormals": flush_denormals}
        self.add_gradient_step("network", self.network, adam, clip, **how)
        self.target_network = self.add_target("network", self.network, Target() if target is None else target)
        acts_as_we_do = type(self).action_values is DQNPolicy.action_values
        self._cpu_copy = CpuCopy.wanted(type(self).__name__, act_on, self.device, can_copy=acts_as_we_do)
        self.eval()

    @classmethod
    def for_envs(
        cls,
        envs: EnvSpaces,
        *,
        hidden: Sequence[int] | None = None,
        head: Sequence[int] | None = None,
        dueling: bool = False,
        noisy: bool = False,
        sigma0: float = 0.5,
        channels_last: bool = False,
        double: bool = False,
        value: Value | None = None,
        normalize_obs: bool = False,
        n_step: int | tuple[int, int] = 1,
        gamma: float = 0.99,
        reward: Any = None,
        lr: Any = 5e-4,
        max_grad_norm: float | None = 10.0,
        **parts: Any,
    ) -> Self:
        """Make a policy for environments, by short words.

        Args:
            envs: anything with `observation_space` and `action_space`.
            hidden, head, dueling, noisy, sigma0, channels_last: as in `QNetwork`; layers default to (128, 128) shared
                and none per head, for images to none and (512,) as in the paper; noisy heads explore by themselves.
            double: choose by the online, judge by the target network.
            normalize_obs: as `normalize` in `Preprocess`.
            n_step, gamma, reward: as in `Horizon`.
            lr, max_grad_norm: of Adam, and the clip of the global norm; None clips nothing.
            value, parts: arguments of `DQNPolicy`; `optimizer` and `clip` replace `lr` and `max_grad_norm`.
        """
        n_actions = count_actions(cls.__name__, envs.action_space)
        if double and "backup" in parts:
            raise ConfigError(f"{cls.__name__}.for_envs was given both double and backup: give one")
        value = ExpectedValue() if value is None else value
        preprocess = Preprocess(envs.observation_space, normalize=normalize_obs)
        heads: dict[str, Any] = {"head": head, "dueling": dueling, "noisy": noisy, "sigma0": sigma0}
        network = usual_network(preprocess, n_actions, value, hidden, channels_last=channels_last, **heads)
        defaults: dict[str, Any] = {
            "backup": DoubleBackup() if double else None,
            **all_made(
                optimizer=lambda: Adam(lr),
                clip=lambda: None if max_grad_norm is None else Clip(max_grad_norm),
                horizon=lambda: Horizon(n_step, gamma, reward),
            ),
            "exploration": Greedy() if noisy else None,
            "observation_space": envs.observation_space,
            "action_space": envs.action_space,
            "preprocess": preprocess,
        }
        return cls(network, value=value, **defaults | parts)

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
        """Choose the action of the largest value, or let the exploration choose; noise is drawn row by row.

        The network is called with all rows, those of random actions too.
        """
        check_flag(self, "act(explore=)", explore)
        legal, name = checked_legal(obs, env_ids), type(self).__name__
        how = self.exploration if explore else Greedy()
        values = self.action_values(obs, explore=explore)
        q = legal_values(name, values, legal, step, env_ids)
        action = how.choose(q, legal, step=step, env_ids=env_ids, starts=starts, rng=self.rng)
        stored: dict[str, NDArray[Any]] = {}
        if ACTION_PROB in self._extras_spec:
            stored |= chosen_probability(require_probability(name, how), q, legal, action, step, env_ids)
        if Q_VALUES in self._extras_spec:
            stored[Q_VALUES] = values
        return ActOutput(self._taken(action), stored, state)

    @property
    def _joint(self) -> JointActions | None:
        """The numbers of joint actions, None where the action space is Discrete or not known."""
        space = self.action_space
        if space is None or isinstance(space, spaces.Discrete):
            return None
        if self._joint_of[0] is not space:
            self._joint_of = space, joint_actions(type(self).__name__, space)
        return self._joint_of[1]

    def _taken(self, action: NDArray[np.int64]) -> NDArray[Any]:
        """Return numbers of actions [K] as the environments' actions [K, ...]."""
        joint = self._joint
        return action if joint is None else joint.actions(action)

    def action_probability(self, obs: Obs, *, step: int = 0, explore: bool = False) -> NDArray[np.float64]:
        """Return how likely each action is to be taken, [K, A]: exploring as `exploration` does, or greedily."""
        check_flag(self, "action_probability(explore=)", explore)
        legal, name = checked_legal(obs), type(self).__name__
        how = require_probability(name, self.exploration, self._draws.noise_size) if explore else Greedy()
        q = legal_values(name, self.action_values(obs), legal, step)
        return how.probability(q, legal, step=step)

    def action_values(self, obs: Obs, *, explore: bool = False) -> NDArray[np.float32]:
        """Return the expected return [K, A] of every action, illegal ones too, for raw observations [K, ...]."""
        check_flag(self, "action_values(explore=)", explore)
        self.enter(training=False)
        noise = self._draws.noise(len(tree.first_leaf(obs)), self.generator) if explore else None
        if self._cpu_copy is not None and self._cpu_copy.takes(self._acting_parts):
            return self._cpu_copy.action_values(obs, noise, n_updates=self.n_updates)
        q_values: NDArray[np.float32] = self._engine.call("q_values", self._q_values, (obs, noise))["q_values"]
        return q_values

    @property
    def _acting_parts(self) -> Parts:
        """What turns raw observations into action values."""
        return self.preprocess, self.network, self.value

    def _q_values(self, given: Any) -> dict[str, Tensor]:
        """Return the expected returns [K, A] for raw observations, and noise [K, noise_size] or None, on the device."""
        obs, noise = given
        return {"q_values": self.value.mean(self._predict(obs, noise).numbers)}

    def greedy(self, obs: Any) -> dict[str, Tensor]:
        """Return the best action [B] for raw observations on the device, and the values [B, A] it was chosen by."""
        q_values = self.value.mean(self._predict(obs, None).numbers)
        return {"action": self._taken_tensors(best_action(q_values, legal_mask(obs))), "q_values": q_values}

    def _taken_tensors(self, action: Tensor) -> Tensor:
        """Return numbers of actions [B] as the environments' actions [B, ...]."""
        joint = self._joint
        return action if joint is None else torch.as_tensor(joint.table, device=action.device)[action]

    def explore_metrics(self, step: int) -> dict[str, float]:
        """Return what dashboards show about exploration."""
        return self.exploration.metrics(step)

    # ---- learning ----

    def update(self, batch: TransitionBatch, *, step: int) -> UpdateResult:
        """Learn from one batch and return its priorities; raise `DivergedError` as `minimise` does."""
        self._check_discrete(batch)
        joint = self._joint
        if joint is not None:
            batch = replace(batch, action=joint.numbers(batch.action))
        return super().update(batch, step=step)

    def loss_inputs(self, n_rows: int, *, step: int) -> dict[str, Any]:
        """Draw the noise and fractions of the "online" and of the "target" network."""
        online, target = self._draws.for_update(n_rows, self.generator)
        return {"online": online, "target": target}

    def loss(self, rows: TensorBatch) -> Loss:
        """Return the value part's loss of the chosen actions, and the penalty."""
        online = self._in_precision(ask(self.network, Draw(*rows.inputs["online"])))
        target = self._in_precision(ask(self.target_network, Draw(*rows.inputs["target"])))
        prediction = online(rows.obs, rows.legal)
        chosen = pick(prediction.numbers, rows.action)
        with torch.no_grad():
            after, reward = self.backup(online, target, rows, self.value)
            goal = self.value.goal(after, reward, rows.discount)
        loss, priority = self._draws.loss(self.value, chosen, goal, prediction.fractions)
        with torch.no_grad():
            q = self.value.mean(chosen)
            metrics = {"q_mean": q.mean(), "q_max": q.max(), "q_min": q.min()}
            metrics |= self.value.metrics(chosen, goal, after, reward, rows.discount)
        if self.penalty is not None:
            penalty = self.penalty(self.value.mean(prediction.numbers), rows.action, rows.legal)
            loss, metrics["penalty_mean"] = loss + penalty, penalty.detach().mean()
        return Loss(loss, priority, metrics)

    def _predict(self, obs: Any, noise: Tensor | None) -> Prediction:
        """Ask the online network about raw observations on the device."""
        return ask(self.network, self._draws.for_acting(noise))(self.preprocess(obs), legal_mask(obs))

    def train(self, mode: bool = True) -> Self:
        """Switch modes; the target network always stays in eval mode."""
        super().train(mode)
        self.target_network.eval()
        return self

    def check_spaces(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        """Refuse environments that the network cannot see or act in, by trying it on one blank observation."""
        self._refuse_other_spaces(observation_space, action_space)
        self.enter(training=False)
        blank = zeros_of(observation_space)
        obs = to_device(blank, self.device)
        with trying(f"{type(self).__name__}'s network", observation_space):
            prediction = self._predict(obs, None)
        refuse_numbers(type(self).__name__, prediction, action_space, self.value)
        parts = f"{type(self).__name__}'s {type(self.backup).__name__} and {type(self.value).__name__}"
        extras = self._blank_extras()
        if extras is not None:
            streams = self.streams_state()
            inputs = to_device(self._inputs(1, self.last_step), self.device)
            self.load_streams_state(streams)
            rows = blank_row(obs, self.preprocess, extras)._replace(inputs=inputs)
            refuse_losses(parts, lambda: self.loss(rows))
        if self._cpu_copy is not None:
            self._cpu_copy.check(type(self).__name__, self._acting_parts, blank, n_updates=self.n_updates)
        super().check_spaces(observation_space, action_space)


def usual_network(
    preprocess: Preprocess,
    n_actions: int,
    value: Value,
    hidden: Sequence[int] | None,
    *,
    head: Sequence[int] | None,
    **options: Any,
) -> nn.Module:
    """Return the network that gives what a value part reads: by default of the paper's size for images."""
    layers = {
        "hidden": (() if preprocess.sees_images else (128, 128)) if hidden is None else hidden,
        "head": ((512,) if preprocess.sees_images else ()) if head is None else head,
        **options,
    }
    if isinstance(value, DrawnFractions):
        return ImplicitQNetwork(preprocess.shapes, n_actions, **layers)
    return QNetwork(preprocess.shapes, n_actions, width=value.width, **layers)
