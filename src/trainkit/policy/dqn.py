"""`DQNPolicy`, the Q-learner: its parts make it DQN, C51, QR-DQN, IQN, Rainbow or a new algorithm."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Self, Unpack

import numpy as np
import torch
from gymnasium import Space
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit.core import tree
from trainkit.core.assignments import Elsewhere, fixed_options
from trainkit.core.config import Part
from trainkit.core.data import (
    ACTION_PROB,
    COLUMN_SPECS,
    Q_VALUES,
    ActOutput,
    ArraySpec,
    Batch,
    Horizon,
    Obs,
    is_finite,
)
from trainkit.core.errors import ConfigError, check_flag
from trainkit.core.protocols import EnvSpaces
from trainkit.core.schedules import check_lengths
from trainkit.core.signatures import checked, mismatch
from trainkit.core.spaces import checked_legal, count_actions, joint_actions, legal_actions, zeros_of
from trainkit.engine.device import to_device
from trainkit.engine.gradient_step import Clip
from trainkit.engine.lookups import frames_of
from trainkit.engine.loss import Loss, Max, Metric, Min, TensorBatch, blank_row, legal_mask, tensor_batch
from trainkit.engine.optimizers import Adam, LearningRate, OptimizerSpec, spec_with_lr
from trainkit.nets.encoders import EncoderLike, Recurrent, default_hidden
from trainkit.nets.layers import Activation, Norm
from trainkit.nets.networks import ActionValues, ImplicitQNetwork, PlainModule, Prediction, QNetwork, RandomInputs
from trainkit.nets.noisy import initial_noise, sample_noise, sample_noises
from trainkit.nets.preprocess import Preprocess
from trainkit.policy.acting_copy import ActOn, Parts, acting_copy
from trainkit.policy.backups import Backup, DoubleBackup, MaxBackup, Penalty, best_action, pick
from trainkit.policy.base import Policy, PolicyOptions, parts_for
from trainkit.policy.checks import (
    blank_columns,
    check_loss,
    check_prediction,
    check_priority,
    forward_on,
    non_integer_actions,
)
from trainkit.policy.exploration import (
    ACTION_PROB_SPEC,
    ChecksPolicy,
    EpsilonGreedy,
    Exploration,
    Greedy,
    HasOwnValues,
    HasState,
    non_finite_values,
    require_probability,
)
from trainkit.policy.network_state import state_of
from trainkit.policy.persistence import recorded
from trainkit.policy.support import add_support
from trainkit.policy.target import Target
from trainkit.policy.values import Distributional, DrawnFractions, ExpectedValue, Value, own_tensors

_log = logging.getLogger(__name__)
_MANY_JOINT_ACTIONS = 256


@checked
@fixed_options(
    *("act_on", "activation", "clip", "dueling", "encoder", "flush_denormals", "head", "hidden"),
    *("max_grad_norm", "noisy", "norm", "normalize_obs", "optimizer", "recurrent", "reward", "store_action_prob"),
    *("store_q_values", "target"),
)
class DQNPolicy(Policy):
    """Q-learner (Mnih et al., 2015) made of the parts passed in.

    The loss of a row: the value part's, of the chosen action's outputs and the TD target computed from the backup's
    next value, plus the penalty. An update takes one gradient step on the mean of importance weight times loss, and
    then moves the target network.

    Args:
        network: a `QNetwork`, or any module that maps observations to [B, A, W] or [B, A].
        value: the meaning of the W outputs.
        backup: the next value.
        penalty: added to the loss, as `ConservativePenalty`; None for nothing.
        exploration: chooses actions that are not greedy; may be set between any two steps.
        target: when the target network moves.
        optimizer: `Adam`, `TorchOptimizer`, or a factory such as `torch.optim.AdamW`.
        clip: of gradients; None clips nothing.
        action_space: Discrete, or joint actions (MultiDiscrete, MultiBinary, a Dict or Tuple of them) of at most 10,000
            combinations, with a value each.
        flush_denormals: see `GradientStep`.
        act_on: "policy", the policy's device, or "cpu", a copy that is kept up to date; the same for one on the CPU.
        store_action_prob: store the probability of each action, as `action_prob`.
        store_q_values: store the values [A] that each action was chosen by, also of illegal actions, as `q_values`.
        sequences: what a network that carries a state learns from, by default `Sequences()`; others learn from rows.
        options: observation_space, preprocess, horizon, device, seed, engine, precision and auxiliary, as in `Policy`.

    Metrics: loss, q_mean, q_max, q_min (of the chosen actions of a batch), weight_mean, effective_share (of the
    weights), grad_norm (before the clip), lr, target_followed, penalty_mean (if there is a penalty), and the value
    part's own.
    """

    unwatched: ClassVar[frozenset[str]] = frozenset({"_exploration", "_own_values", "_joint", "_acting_copy"})
    epsilon = Elsewhere("policy.exploration.epsilon = 0.1 is for actions that follow")
    eps = Elsewhere("policy.exploration.epsilon = 0.1 is for actions that follow")
    set_eps = Elsewhere("policy.exploration.epsilon = 0.1 is for actions that follow")
    learning_rate = Elsewhere("policy.lr = 1e-4 is for updates that follow")
    alpha = Elsewhere("it is the buffer's, fixed at construction: give PrioritizedReplayBuffer(..., alpha=...)")
    beta = Elsewhere("buffer.beta = 0.7 is for batches that follow")
    target_every = Elsewhere("it is fixed at construction: give target=Target(every) there")
    tau = Elsewhere("it is fixed at construction: give target=Target(every, tau=...) there")
    target_tau = Elsewhere("it is fixed at construction: give target=Target(every, tau=...) there")
    _exploration: Exploration = Greedy()  # until the constructor sets it

    def __init__(
        self,
        network: nn.Module,
        *,
        value: Value | None = None,
        backup: Backup | None = None,
        penalty: Penalty | None = None,
        exploration: Exploration | None = None,
        target: Target | None = None,
        optimizer: OptimizerSpec | None = None,
        clip: Clip | None = None,
        action_space: Space[Any] | None = None,
        flush_denormals: bool = True,
        act_on: ActOn = "policy",
        store_action_prob: bool = False,
        store_q_values: bool = False,
        sequences: Part | None = None,
        **options: Unpack[PolicyOptions],
    ) -> None:
        super().__init__(action_space=action_space, **options)
        name = type(self).__name__
        self.network = network if isinstance(network, ActionValues) else PlainModule(network)
        self._network_state = state_of(name, (self.network,), sequences, self.auxiliary, learns_from="replay")
        self.value: Value = ExpectedValue() if value is None else own_tensors(value)
        self.backup: Backup = MaxBackup() if backup is None else backup
        self.columns = (*type(self).columns, *getattr(self.backup, "columns", ()))
        self.penalty = penalty
        self.exploration = EpsilonGreedy.linear(1.0, 0.05, 10_000) if exploration is None else exploration
        if store_action_prob:
            require_probability(name, self.exploration, self.network.noise_size)
            self._extras_spec = ACTION_PROB_SPEC
        if store_q_values:
            if action_space is None:
                raise ConfigError(f"{name}.store_q_values needs an action_space: give it, too")
            n_actions = count_actions(name, action_space)
            values = ArraySpec(shape=(n_actions,), dtype=np.dtype(np.float32))
            self._extras_spec = {**self._extras_spec, Q_VALUES: values}
        self._extras_spec = {**self._extras_spec, **self._network_state.spec}
        self._draws_fractions = isinstance(self.value, DrawnFractions)
        self._joint = joint_actions(name, action_space)
        if self._joint is not None and self._joint.n > _MANY_JOINT_ACTIONS:
            _log.warning(
                "%s gives each of the %s joint actions of %s an output of its own, which is slow to compute and to "
                "learn: ppo and a2c learn each part by itself",
                *(name, f"{self._joint.n:,}", action_space),
            )
        default: OptimizerSpec = Adam() if optimizer is None else optimizer
        how: dict[str, Any] = {"flush_denormals": flush_denormals, "features_of": self.network}
        self.add_gradient_step("network", self.network, default, clip, loss=self.loss, **how)
        self.target_network = self.add_target("network", self.network, Target() if target is None else target)
        add_support(self, self.value, [self.network, self.target_network], self.logits, learns_by="network")
        self._is_ours = type(self).action_values is DQNPolicy.action_values  # else `act` follows the subclass's
        can_copy = self._is_ours and type(self)._q_values is DQNPolicy._q_values
        how = {"can_copy": can_copy, "state_size": self.state_size}
        self._acting_copy = acting_copy(name, act_on, self.device, **how)
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
        recurrent: Recurrent | None = None,
        dueling: bool = False,
        noisy: bool | float = False,
        double: bool = False,
        value: Value | None = None,
        normalize_obs: bool = False,
        n_step: int | tuple[int, int] = 1,
        gamma: float = 0.99,
        reward: Any = None,
        optimizer: OptimizerSpec | None = None,
        lr: LearningRate = 5e-4,
        max_grad_norm: float | None = 10.0,
        **parts: Any,
    ) -> Self:
        """Make a policy for environments from the most common options.

        Args:
            envs: anything with `observation_space` and `action_space`.
            hidden, head, encoder, activation, norm, recurrent, dueling, noisy: as in `QNetwork`;
                layers default to (128, 128) shared and none per head, for images to none and (512,) as in the paper,
                with `recurrent` (512,) and none, for grids to (128,) and none; noisy heads explore by themselves.
            double: `DoubleBackup`.
            normalize_obs: as `normalize` in `Preprocess`.
            n_step, gamma, reward: as in `Horizon`.
            optimizer, lr: as in `DQNPolicy` and `Adam`; an optimizer with a learning rate of its own ignores numbers
                and schedules of the step in `lr`.
            max_grad_norm: the clip of the global norm; None clips nothing.
            value, parts: arguments of `DQNPolicy`; `clip` replaces `max_grad_norm`.
        """
        n_actions = count_actions(cls.__name__, envs.action_space)
        if double and "backup" in parts:
            raise ConfigError(f"{cls.__name__}.for_envs was given both double and backup: give one")
        value = ExpectedValue() if value is None else value
        preprocess = Preprocess(envs.observation_space, normalize=normalize_obs)
        heads: dict[str, Any] = {"head": head, "dueling": dueling, "noisy": noisy}
        heads |= {"encoder": encoder, "activation": activation, "norm": norm, "recurrent": recurrent}
        network = default_network(preprocess, n_actions, value, hidden, **heads)
        defaults = parts_for(
            envs,
            preprocess,
            max_grad_norm=max_grad_norm,
            optimizer=lambda: spec_with_lr(optimizer, Adam(5e-4), lr),
            horizon=lambda: Horizon(n_step, gamma, reward),
        )
        defaults |= {
            "backup": DoubleBackup() if double else None,
            "exploration": None if initial_noise(noisy) is None else Greedy(),
        }
        return cls(network, value=value, **defaults | parts)

    @property
    def double(self) -> Callable[[], Self]:
        """Double Q-learning is `policy.backup = DoubleBackup()`; called, this converts to float64 as in torch."""
        return super().double

    @property
    def exploration(self) -> Exploration:
        """What chooses among the values while exploring; another one is for actions that follow."""
        return self._exploration

    @exploration.setter
    def exploration(self, exploration: Exploration) -> None:
        if problem := mismatch(exploration, Exploration):
            raise ConfigError(f"{type(self).__name__}.exploration {problem}")
        check_lengths(exploration)
        if isinstance(exploration, ChecksPolicy):
            exploration.check_policy(self)
        self._exploration = exploration
        self._own_values = exploration if isinstance(exploration, HasOwnValues) else None

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
        """Choose the action of the largest value or, exploring, let `exploration` choose.

        The network is called with all rows, also those whose action is random; its noise is sampled per row.
        """
        check_flag(self, "act(explore=)", explore)
        obs = self._rows_to_act_on(obs, env_ids)
        legal, exploration = checked_legal(obs, env_ids), self._exploration if explore else Greedy()
        carried = self._network_state.carry(state, len(tree.first_leaf(obs)), starts, env_ids)
        values, after = self._values_to_act_by(obs, carried.rows, explore=explore)  # [K, A]
        q = self._legal_values(values, legal, step, env_ids)
        if explore and self._own_values is not None:
            values = self._own_values.own_values(self, obs, q, step=step, env_ids=env_ids, starts=starts)
            q = self._legal_values(values, legal, step, env_ids)
        action = exploration.choose(q, legal, step=step, env_ids=env_ids, starts=starts, rng=self.rng)  # [K]
        stored: dict[str, NDArray[Any]] = {**carried.columns}
        if ACTION_PROB in self._extras_spec:
            stored[ACTION_PROB] = self._probability_of(action, exploration, q, legal, step, env_ids)
        if Q_VALUES in self._extras_spec:
            stored[Q_VALUES] = values
        return ActOutput(action if self._joint is None else self._joint.actions(action), stored, carried.after(after))

    def _legal_values(
        self, values: NDArray[np.float32], legal: Any, step: int, env_ids: NDArray[np.intp] | None
    ) -> NDArray[np.float32]:
        """Return values [K, A], -inf where an action is illegal; raise `DivergedError` unless all are finite."""
        if not is_finite(values):
            raise non_finite_values(type(self).__name__, values, step, env_ids)
        return values if legal is None else np.where(legal, values, -np.inf)

    def _probability_of(
        self, action: NDArray[Any], exploration: Exploration, q: Any, legal: Any, step: int, env_ids: Any
    ) -> NDArray[np.float64]:
        """Return the probabilities [K] with which actions [K] were chosen."""
        explained = require_probability(type(self).__name__, exploration)
        probability = explained.probability(q, legal, step=step, env_ids=env_ids)
        taken: NDArray[np.float64] = probability[np.arange(len(action)), action]
        return taken

    def action_values(
        self, obs: Obs, *, explore: bool = False, state: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """Return the expected return [K, A] of every action, also illegal ones, for raw observations [K, ...].

        Of one observation it is [A]. A network that carries a state takes those before them, [K, S]; without, they are
        the first of their episodes.

        Raises:
            SpaceMismatchError: they are not of the observation space.
        """
        check_flag(self, "action_values(explore=)", explore)
        rows, is_one = self._read("action_values", obs)
        before = self._network_state.check_state(type(self).__name__, state, len(tree.first_leaf(rows)))
        values, _ = self._values(rows, before, explore=explore)
        return values[0] if is_one else values

    def _values_to_act_by(
        self, obs: Obs, state: Any, *, explore: bool
    ) -> tuple[NDArray[np.float32], Mapping[str, Any]]:
        """Return the values [K, A] to choose by, a subclass's own where it has some, and the states after them."""
        if self._is_ours:
            return self._values(obs, state, explore=explore)
        return self.action_values(obs, explore=explore), {}

    def _values(self, obs: Obs, state: Any, *, explore: bool = False) -> tuple[NDArray[np.float32], Mapping[str, Any]]:
        """Return the expected returns [K, A] of rows [K, ...] that were checked, and the states after them by name."""
        self.enter(training=False)
        n_noise = self.network.noise_size if explore else 0
        draw = partial(sample_noise, len(tree.first_leaf(obs)), n_noise, self.generator) if n_noise else None
        if self._acting_copy is not None and self._acting_copy.supports(self._acting_parts):
            noise = None if draw is None else draw()
            return self._acting_copy.action_values(obs, noise, n_updates=self.n_updates), {}
        results = self._engine.call("q_values", self._q_values, (obs, state, None), draw=draw)
        return results["q_values"], results

    def greedy_values(
        self, obs: Obs, state: NDArray[np.float32] | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the value [K] of the best legal action for raw observations [K, ...], and its gap [K] to the second.

        Of one observation they are two numbers. The gap is infinite where no second action is allowed. `state` is as in
        `action_values`.
        """
        rows, is_one = self._read("greedy_values", obs)
        values, legal = self.action_values(rows, state=state), legal_actions(rows)
        values = values if legal is None else np.where(legal, values, -np.inf)
        below = np.full((len(values), 1), -np.inf, np.float32)  # so that there are two columns
        second, best = np.partition(np.concatenate([below, values], axis=1), -2, axis=1)[:, -2:].T
        with np.errstate(invalid="ignore"):  # where nothing is allowed
            gap = best - second
        return (best[0], gap[0]) if is_one else (best, gap)

    def action_probability(self, obs: Obs, *, step: int = 0, explore: bool = False) -> NDArray[np.float64]:
        """Return the probability of each action, [K, A]: by `exploration` if exploring, else of the greedy action.

        Of one observation it is [A]. A network that carries a state takes them for the first of their episodes.
        """
        check_flag(self, "action_probability(explore=)", explore)
        rows, is_one = self._read("action_probability", obs)
        name, legal = type(self).__name__, checked_legal(rows)
        noise_size = self.network.noise_size
        exploration = require_probability(name, self.exploration, noise_size) if explore else Greedy()
        values = self.action_values(rows)
        if not is_finite(values):
            raise non_finite_values(name, values, step)
        q = values if legal is None else np.where(legal, values, -np.inf)
        probability = exploration.probability(q, legal, step=step)
        return probability[0] if is_one else probability

    @property
    def _acting_parts(self) -> Parts:
        """The parts that map raw observations to action values."""
        return self.preprocess, self.network, self.value

    def _predict(self, obs: Any, state: Any = (), noise: Tensor | None = None) -> tuple[Prediction, dict[str, Tensor]]:
        """Call the online network with raw observations and states on the device; return the states after, too."""
        fractions = self.value.acting_fractions if isinstance(self.value, DrawnFractions) else None
        network, legal = RandomInputs(noise, fractions).fixed_in(self.network), legal_mask(obs)
        return self._network_state.call(lambda features: network(features, legal), self.preprocess(obs), state)

    def _q_values(self, given: Any) -> dict[str, Tensor]:
        """Return the expected returns [K, A], and the next states, of observations, states and noise on the device."""
        prediction, after = self._predict(*given)
        return {"q_values": self.value.mean(prediction.outputs), **after}

    def greedy(self, obs: Any, state: Any = ()) -> dict[str, Tensor]:
        """Return the best action [B] for raw observations on the device, and the values [B, A] it was chosen by.

        With the states before them [B, S] the next ones are "state_out".
        """
        results = self._q_values((obs, state, None))
        return {"action": self._actions(best_action(results["q_values"], legal_mask(obs))), **results}

    def _actions(self, index: Tensor) -> Tensor:
        """Return indices of actions [B] as the environments' actions [B, ...]."""
        return index if self._joint is None else to_device(self._joint.table, index.device)[index]

    @checked
    def return_distribution(
        self, obs: Obs, state: NDArray[np.float32] | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the returns [K, A, W] and their probabilities [K, A, W] for raw observations [K, ...], without noise.

        Of one observation they are [A, W]. Quantiles are sorted and have equal probabilities. A value without a
        `distribution` has one return, the expected one, with probability 1. `state` is as in `action_values`.
        """
        rows, is_one = self._read("return_distribution", obs)
        self.enter(training=False)
        before = self._network_state.check_state(type(self).__name__, state, len(tree.first_leaf(rows)))
        with torch.no_grad():
            outputs = self._predict(*to_device((rows, before), self.device))[0].outputs
            if isinstance(self.value, Distributional):
                returns, probability = self.value.distribution(outputs)
            else:
                returns = self.value.mean(outputs).unsqueeze(-1)
                probability = torch.ones_like(returns)
        if is_one:
            returns, probability = returns[0], probability[0]
        return returns.cpu().numpy(), probability.cpu().numpy()

    def action_numbers(self, action: NDArray[Any]) -> NDArray[Any]:
        """Return the columns [K] of `action_values` that actions [K, ...] have."""
        return action if self._joint is None else self._joint.numbers(action)

    def start_streams(self, root: int) -> None:
        """Restart the random streams from a root seed, and nothing else."""
        super().start_streams(root)
        if isinstance(self.exploration, HasState):
            self.exploration.reset()

    def streams_state(self) -> dict[str, Any]:
        """Return the state of the random streams, and of an exploration that has one."""
        state = super().streams_state()
        if isinstance(self.exploration, HasState):
            state["exploration"] = {type(self.exploration).__name__: self.exploration.state_dict()}
        return state

    def load_streams_state(self, state: Mapping[str, Any]) -> None:
        """Load the state of the random streams; an exploration without a saved state starts from none."""
        super().load_streams_state(state)
        if isinstance(self.exploration, HasState):
            self.exploration.reset()
            saved = state.get("exploration", {}).get(type(self.exploration).__name__)
            if saved is not None:
                self.exploration.load_state_dict(saved)

    def explore_metrics(self, step: int) -> dict[str, float]:
        """Return the metrics of `exploration`."""
        return self.exploration.metrics(step)

    # ---- learning ----

    def _columns(self, batch: Batch) -> Any:
        """Return a batch's columns, with an index for each action."""
        if batch.action.dtype.kind not in "iub":
            raise non_integer_actions(self, batch.action)
        if self._joint is not None:
            shape = batch.reward.shape
            rows = batch.action.reshape(batch.reward.size, *batch.action.shape[len(shape) :])
            whole: Any = batch
            batch = replace(whole, action=self.action_numbers(rows).reshape(shape))
        return super()._columns(batch)

    @torch.no_grad()
    def logits(self, batch: Batch) -> Tensor:
        """Return the outputs [N, W] of both networks for all actions in a batch's obs and next_obs."""
        self.enter(training=False)
        rows = self.rows(to_device(self._columns(batch), self.device), {}, frames_of(batch))
        networks: list[Any] = [self.network, self.target_network]
        outputs = [
            network(obs, None, legal).outputs.flatten(0, 1)
            for network in networks
            for obs, legal in ((rows.obs, rows.legal), (rows.next_obs, rows.next_legal))
        ]
        return torch.cat(outputs)

    def loss_noise(self, n_rows: int) -> dict[str, Any]:
        """Sample the noise and the quantile fractions of the "online" and of the "target" network."""
        n_noise, value = self.network.noise_size, self.value
        noise: Sequence[Tensor | None] = (None, None)
        if n_noise:
            noise = sample_noises(2, n_noise, self.generator)
        fractions: tuple[Tensor | None, Tensor | None] = None, None
        if self._draws_fractions and isinstance(value, DrawnFractions):
            fractions = value.draw(n_rows, self.generator)
        return {"online": RandomInputs(noise[0], fractions[0]), "target": RandomInputs(noise[1], fractions[1])}

    def loss(self, rows: TensorBatch, /) -> Loss:
        """Return the value part's loss of the chosen actions towards the TD target, plus the penalty."""
        online = RandomInputs(*rows.inputs["online"]).fixed_in(self.network)
        target = RandomInputs(*rows.inputs["target"]).fixed_in(self.target_network)
        prediction = online(rows.obs, rows.legal)
        chosen = pick(prediction.outputs, rows.action)  # [B, W]
        with torch.no_grad():
            after, reward = self.backup(online, target, rows, self.value)
            td_target = self.value.target(after, reward, rows.discount)  # [B, W]
        if prediction.fractions is not None and isinstance(self.value, DrawnFractions):
            loss, priority = self.value.loss(chosen, td_target, prediction.fractions)
        else:
            loss, priority = self.value.loss(chosen, td_target)
        with torch.no_grad():
            q = self.value.mean(chosen)
            metrics: dict[str, Metric] = {"q_mean": q, "q_max": Max(q), "q_min": Min(q)}
            metrics |= self.value.metrics(chosen, td_target, after, reward, rows.discount)
        if self.penalty is not None:
            penalty = self.penalty(self.value.mean(prediction.outputs), rows.action, rows.legal)
            loss, metrics["penalty_mean"] = loss + penalty, penalty.detach()
        return Loss(loss, priority, metrics)

    def check_spaces(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        """Raise for spaces that differ from the policy's or do not fit its networks, else store them."""
        super().check_spaces(observation_space, action_space)
        self._joint = joint_actions(type(self).__name__, action_space)

    def check_networks(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        """Raise for spaces that do not fit the network, and for parts that do not fit each other."""
        name = type(self).__name__
        self.enter(training=False)
        blank = zeros_of(observation_space)
        obs = to_device(blank, self.device)
        with forward_on(f"{name}'s network", observation_space):
            prediction, _ = self._predict(obs)
        check_prediction(name, prediction, action_space, self.value)
        specs = {**COLUMN_SPECS, **self.extras_spec, **getattr(self.backup, "column_specs", {})}
        extras = blank_columns(self.columns, specs, self.device)
        if extras is not None:
            streams = self.streams_state()
            inputs = to_device(self.loss_inputs(1, step=self.last_step), self.device) | self.loss_noise(1)
            self.load_streams_state(streams)
            rows = tensor_batch(blank_row(obs, extras), self.preprocess)._replace(inputs=inputs)
            parts = f"{name}'s {type(self.backup).__name__} and {type(self.value).__name__}"
            of_backup = "a backup (outputs [B, W], reward [B])"
            check_priority(parts, check_loss(parts, lambda: rows.reduce(self.loss(rows)), of_backup))
        if self._acting_copy is not None:
            self._acting_copy.check(name, self._acting_parts, blank, n_updates=self.n_updates)


def default_network(
    preprocess: Preprocess,
    n_actions: int,
    value: Value,
    hidden: Sequence[int] | None,
    *,
    head: Sequence[int] | None,
    **options: Any,
) -> nn.Module:
    """Return the network for a value part; its default sizes for images and grids are the papers'."""
    default = default_hidden(preprocess)
    is_apart = preprocess.sees_images and options.get("recurrent") is None
    shared, own = ((), default) if is_apart else (default, ())
    layers = {
        "hidden": shared if hidden is None else hidden,
        "head": own if head is None else head,
        **options,
    }
    if isinstance(value, DrawnFractions):
        return ImplicitQNetwork(preprocess.shapes, n_actions, **layers)
    return QNetwork(preprocess.shapes, n_actions, width=value.width, **layers)
