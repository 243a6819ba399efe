"""The Q-learner: one class, whose parts decide whether it is DQN, C51, Rainbow, or something new."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from gymnasium import Space, spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit import tree
from trainkit.data import ACTION_PROB, Q_VALUES, ActOutput, ArraySpec, Horizon, Obs, TransitionBatch
from trainkit.errors import ConfigError, all_made, check_flag
from trainkit.policy.backups import Backup, DoubleBackup, MaxBackup, Network, best_action, pick
from trainkit.policy.base import Policy
from trainkit.policy.compiling import Compile
from trainkit.policy.cpu_copy import ActOn, CpuCopy, Parts
from trainkit.policy.cuda_graph import CudaGraph, check_cuda_graph
from trainkit.policy.device import TensorBatch, blank_row, in_float32, legal_mask, rows_of, to_device
from trainkit.policy.draws import Draws, ask
from trainkit.policy.exploration import (
    ACTION_PROB_SPEC,
    EpsilonGreedy,
    Exploration,
    Greedy,
    chosen_probability,
    legal_values,
    require_probability,
)
from trainkit.policy.gradient_step import Adam, ByHand, Clip
from trainkit.policy.host.acting import HostNetwork
from trainkit.policy.host.preprocess import HostPreprocess
from trainkit.policy.host.q_learning import HostLearner
from trainkit.policy.implicit import usual_network
from trainkit.policy.meter import UpdateResult, weight_metrics
from trainkit.policy.networks import ActionValues, PlainModule, Prediction
from trainkit.policy.penalties import Penalty
from trainkit.policy.precision import Precision, in_precision
from trainkit.policy.preprocess import Preprocess
from trainkit.policy.refusals import refuse_losses, refuse_numbers, trying
from trainkit.policy.resident import frames_of
from trainkit.policy.target import Target
from trainkit.policy.values import ExpectedValue, Value
from trainkit.protocols import EnvSpaces
from trainkit.spaces import checked_legal, count_actions, zeros_of
from trainkit.structured_actions import JointActions, joint_actions


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
        flush_denormals, compile: see `GradientStep`; small networks learn in numpy on the CPU, unless compile is True.
        cuda_graph: record all that an update does on CUDA, from the fourth one on, and repeat it by one launch, with or
            without `compile`. What parts of yours do in Python they do once then: numbers that change must be tensors.
        precision: what networks multiply in while they learn, "float32" or "bf16"; parameters, losses, acting: float32.
        act_on: "policy", where the policy is, or "cpu", by a copy that keeps up with it; the same for one on the CPU.
        store_action_prob: store how likely each action was, as `action_prob`.
        store_q_values: store the values [A] that each action was chosen by, of illegal actions too, as `q_values`.

    Metrics: loss, q_mean, q_max, q_min (of the chosen actions of a batch), weight_mean, effective_share (of the
    weights), grad_norm (before the clip), lr, target_followed, penalty_mean (where there is one), and the value
    part's own.
    """

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
        flush_denormals: bool = True,
        compile: Compile = False,
        cuda_graph: bool = False,
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
        )
        self._joint_of: tuple[Space[Any] | None, JointActions | None] = None, None
        check_cuda_graph(type(self).__name__, cuda_graph, self.device)
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
        how: dict[str, Any] = {"flush_denormals": flush_denormals, "compile": compile, "recorded": cuda_graph}
        self.add_gradient_step("network", self.network, Adam() if optimizer is None else optimizer, clip, **how)
        self.target_network = self.add_target("network", self.network, Target() if target is None else target)
        features = HostPreprocess.for_module(self.preprocess, self.device)
        self._host = HostNetwork.for_network(features, self.network, self.value)
        is_ours = penalty is None and self._keeps(DQNPolicy, "_loss", "_learn", "minimise", "tensors", "_columns")
        by_torch = compile is True or cuda_graph or precision != "float32"
        parts = features, self.network, self.target_network, self.value, self.backup
        self._host_learner = HostLearner.for_parts(*parts) if is_ours and not by_torch else None
        self._graph = CudaGraph(self._learn_columns, self) if cuda_graph else None
        acts_as_we_do = self._keeps(DQNPolicy, "action_values", "values_here", "_predict")
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
        return self.values_here(obs, noise)

    @property
    def _acting_parts(self) -> Parts:
        """What turns raw observations into action values."""
        return Parts(self.preprocess, self.network, self.value)

    def values_here(self, obs: Obs, noise: Tensor | None) -> NDArray[np.float32]:
        """Return the expected returns [K, A] as they are found where the policy is."""
        if self._host is not None and self._host.takes(obs, len(tree.first_leaf(obs)), self.preprocess, self.network):
            return self._host.action_values(obs, None if noise is None else noise.numpy())
        with torch.no_grad():
            numbers = self._predict(to_device(obs, self.device), noise).numbers
            values: NDArray[np.float32] = self.value.mean(numbers).cpu().numpy()
        return values

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
        self.enter(training=True)
        joint = self._joint
        if joint is not None:
            batch = replace(batch, action=joint.numbers(batch.action))
        learner, own = self._host_learner, self._modules.get  # it takes nn.Module 1 us to look each of these up
        parts = own("preprocess"), own("network"), own("target_network"), own("value"), self.backup
        if learner is not None and self.penalty is None and learner.takes(batch, *parts):
            told = self._learn_by_hand(learner, batch, step)
        elif self._graph is None:
            told = self._learn(self.tensors(batch), step)
        else:
            told = self._replay(self._graph, batch, step)
        return self.end_update(step=step, **told)

    def _learn_by_hand(self, learner: HostLearner, batch: TransitionBatch, step: int) -> dict[str, Any]:
        """Take the gradient step in numpy."""
        self._note_rows(batch)
        batch = in_float32(batch)
        mine, theirs = self._draws.for_update(len(batch), self.generator)
        by_hand = ByHand(partial(learner, batch, mine.noise, theirs.noise), learner.modules)
        priority, shown = self.minimise("network", by_hand, step=step)
        return {"priority": priority, **shown}

    def _learn(self, rows: TensorBatch, step: int) -> dict[str, Any]:
        """Take the gradient step on rows that are on the device; return what there is to tell `end_update`."""
        mine, theirs = self._draws.for_update(len(rows.reward), self.generator)
        online = self._in_precision(ask(self.network, mine))
        target = self._in_precision(ask(self.target_network, theirs))

        def loss() -> tuple[Tensor, tuple[Tensor, dict[str, Tensor]]]:
            per_row, priority, shown = self._loss(rows, online, target)
            return (rows.weight * per_row).mean(), (priority, shown | weight_metrics(rows.weight))

        priority, shown = self.minimise("network", loss, step=step)
        return {"priority": priority, **shown}

    def _replay(self, graph: CudaGraph, batch: TransitionBatch, step: int) -> dict[str, Any]:
        """Do what `_learn` does by one launch, and bring the priorities out of the way of the next."""
        for gradient_step in self._gradient_steps.values():
            gradient_step.prepare(step)
        told = graph(self._columns(batch), frames_of(batch), step=step)
        return {**told, "priority": told["priority"].clone()}

    def _learn_columns(self, columns: Any, frames: Any, *, step: int) -> dict[str, Any]:
        """Do all of an update that is done on the device, and return all that there is to tell."""
        told = self._learn(rows_of(columns, self.preprocess, frames), step)
        shown, self._shown = self._shown, {}
        return {**shown, **told}

    def _loss(self, rows: TensorBatch, online: Network, target: Network) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return (loss [B], priority [B], scalars to show)."""
        prediction = online(rows.obs, rows.legal)
        chosen = pick(prediction.numbers, rows.action)
        with torch.no_grad():
            after, reward = self.backup(online, target, rows, self.value)
            goal = self.value.goal(after, reward, rows.discount)
        loss, priority = self._draws.loss(self.value, chosen, goal, prediction.fractions)
        with torch.no_grad():
            q = self.value.mean(chosen)
            shown = {"q_mean": q.mean(), "q_max": q.max(), "q_min": q.min()}
            shown |= self.value.metrics(chosen, goal, after, reward, rows.discount)
        if self.penalty is not None:
            penalty = self.penalty(self.value.mean(prediction.numbers), rows.action, rows.legal)
            loss, shown["penalty_mean"] = loss + penalty, penalty.detach().mean()
        return loss, priority, shown

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
        networks = [ask(network, self._draws.for_acting()) for network in (self.network, self.target_network)]
        parts = f"{type(self).__name__}'s {type(self.backup).__name__} and {type(self.value).__name__}"
        extras = self._blank_extras()
        if extras is not None:
            refuse_losses(parts, lambda: self._loss(blank_row(obs, self.preprocess, extras), *networks)[:2])
        if self._cpu_copy is not None:
            self._cpu_copy.check(type(self).__name__, self._acting_parts, blank, n_updates=self.n_updates)
        super().check_spaces(observation_space, action_space)
