"""`OnpolicyPolicy`, the base class of learners from rollouts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, Unpack

import numpy as np
import torch
from gymnasium import Space
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit.core import tree
from trainkit.core.assignments import fixed_options
from trainkit.core.config import Part
from trainkit.core.data import POLICY_ACTION, ArraySpec, Batch, Horizon, Rollout, Transition
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.protocols import EnvSpaces
from trainkit.core.signatures import checked, read_only
from trainkit.engine.device import CPU, to_device
from trainkit.engine.gradient_step import Clip, Scalar
from trainkit.engine.loss import Loss, legal_mask
from trainkit.engine.optimizers import Adam, LearningRate, OptimizerSpec, spec_with_lr
from trainkit.nets.action_scale import ActionBound
from trainkit.nets.actor_critic_networks import ActorCriticNetwork
from trainkit.nets.distributions import Distribution, distribution_for
from trainkit.nets.encoders import EncoderLike, Recurrent, default_hidden
from trainkit.nets.layers import Activation, Norm
from trainkit.nets.preprocess import Preprocess
from trainkit.policy.advantages import RolloutRows, TensorRollout, gae
from trainkit.policy.base import PolicyOptions, parts_for
from trainkit.policy.network_state import state_of
from trainkit.policy.noise import Noise
from trainkit.policy.persistence import recorded
from trainkit.policy.statistics import ActionStd
from trainkit.policy.stochastic import StochasticPolicy
from trainkit.policy.update_result import UpdateResult

_FLOAT32 = np.dtype(np.float32)
_STORED = {name: ArraySpec(shape=(), dtype=_FLOAT32) for name in ("log_prob", "value")}


@read_only
@fixed_options("action_bound_method", "action_scaling", "adam_eps", "critic_only", "log_std", "shared")
class OnpolicyPolicy(StochasticPolicy):
    """Base class of on-policy learners: a subclass defines `loss`, and names its schedules.

    Networks are in evaluation mode also while they learn: with dropout the first ratio would not be 1.

    In a Box the network and the distribution work in policy units. `act` returns the action mapped to the space and
    clipped to it, which environments take and datasets store, and in the column `policy_action` the sampled action in
    policy units, whose log-density is `log_prob` and from which the policy learns.

    Args:
        network: features -> `ActorCriticOutput`, as `ActorCriticNetwork`.
        distribution: of actions, those of a Box in policy units; default: the one for the action space.
        action_scaling: policy units -1 and 1 are the bounds of a Box; False: they are those of the space. See
            `ActionScale`.
        lam: of `gae`.
        normalize_advantage: normalize each batch's advantages to mean 0 and standard deviation 1.
        exploration: correlated noise of actions in a Box, as `ColoredNoise(0.5)` (Hollenstein et al., 2024); None:
            independent in every step. `log_prob` is that of an action given its observation alone, which neglects its
            correlation with earlier ones, as theirs.
        optimizer: `Adam`, `TorchOptimizer`, or a factory such as `torch.optim.AdamW`.
        clip: of gradients; None clips nothing.
        flush_denormals: see `GradientStep`.
        action_space: of one environment.
        sequences: how many rows of an environment a network that carries a state passes over at once, in `length`;
            without burn-in, as the states that rows are stored with are of today's network. Default: 16.
        options: observation_space, preprocess, horizon (gamma, and the rule of rewards), device, seed, engine,
            precision and auxiliary (on the features of the actor's torso, which `shared` makes the critic's too), as
            in `Policy`.
    """

    _scheduled: tuple[str, ...] = ()  # schedules whose values the loss reads in `rows.inputs`

    @checked
    def __init__(
        self,
        network: nn.Module,
        *,
        action_space: Space[Any],
        distribution: Distribution | None = None,
        action_scaling: bool = True,
        lam: float = 0.95,
        normalize_advantage: bool = False,
        exploration: Noise | None = None,
        optimizer: OptimizerSpec | None = None,
        clip: Clip | None = None,
        flush_denormals: bool = True,
        sequences: Part | None = None,
        **options: Unpack[PolicyOptions],
    ) -> None:
        name = type(self).__name__
        state = state_of(name, (network,), sequences, options.get("auxiliary"), learns_from="rollouts")
        with Checks(name) as checks:
            checks.number("lam", lam, low=0, high=1)
            if (horizon := options.get("horizon")) is not None:
                _check_one_step(checks, horizon)
        super().__init__(action_space=action_space, action_scaling=action_scaling, **options)
        self.lam, self.normalize_advantage = lam, normalize_advantage
        self.distribution = distribution_for(action_space) if distribution is None else distribution
        self._extras_spec = dict(_STORED)
        if self._action_scale is not None:
            self._extras_spec[POLICY_ACTION] = ArraySpec(shape=self._action_scale.low.shape, dtype=_FLOAT32)
        self._network_state = state
        self.columns = (*type(self).columns, *state.columns)
        self._extras_spec |= state.spec
        self.network = network
        default: OptimizerSpec = Adam() if optimizer is None else optimizer
        how: dict[str, Any] = {"flush_denormals": flush_denormals, "features_of": self.network}
        self.add_gradient_step("model", self, default, clip, loss=self.loss, training=False, **how)
        self._action_std = ActionStd(self.distribution)
        self.exploration = exploration
        self.eval()

    @classmethod
    @checked
    @recorded
    def for_envs(
        cls,
        envs: EnvSpaces,
        *,
        hidden: Sequence[int] | None = None,
        shared: bool | None = None,
        encoder: EncoderLike | None = None,
        activation: Activation | None = None,
        norm: Norm | None = None,
        recurrent: Recurrent | None = None,
        critic_only: Sequence[str] = (),
        normalize_obs: bool = False,
        action_bound_method: ActionBound = "clip",
        log_std: float | None = None,
        gamma: float = 0.99,
        reward: Any = None,
        optimizer: OptimizerSpec | None = None,
        lr: LearningRate = 3e-4,
        adam_eps: float = 1e-5,
        max_grad_norm: float | None = 0.5,
        **parts: Any,
    ) -> Self:
        """Make a policy for environments from the most common options.

        Args:
            envs: anything with `observation_space` and `action_space`.
            hidden, shared, encoder, activation, norm, recurrent, critic_only: as in `ActorCriticNetwork`; layers
                default to (64, 64) with tanh in a torso each, for images to (512,) and for grids to (128,) with relu in
                a shared one, unless the critic sees more.
            normalize_obs: as `normalize` in `Preprocess`.
            action_bound_method: how actions of a Box are kept within the bounds: "clip" them, or squash them by
                "tanh", which needs finite bounds.
            log_std: their initial log standard deviation; None is 0.
            gamma, reward: as in `Horizon`.
            optimizer, lr: as above and in `Adam`; an optimizer with a learning rate of its own ignores numbers and
                schedules of the step in `lr`.
            adam_eps: of Adam, if `optimizer` is None.
            max_grad_norm: the clip of the global norm; None clips nothing.
            parts: arguments of the class; `clip` replaces `max_grad_norm`.
        """
        if "distribution" in parts and (action_bound_method != "clip" or log_std is not None):
            raise ConfigError(
                f"{cls.__name__}.for_envs was given distribution, and action_bound_method or log_std too: give one"
            )
        preprocess = Preprocess(envs.observation_space, normalize=normalize_obs)
        distribution = parts.get("distribution")
        if distribution is None:
            how: dict[str, Any] = {"action_bound_method": action_bound_method, "log_std": log_std}
            distribution = distribution_for(envs.action_space, **how)
        of_layers: dict[str, Any] = {"encoder": encoder, "activation": activation, "norm": norm}
        of_layers |= {"recurrent": recurrent, "critic_only": critic_only}
        network = _default_network(preprocess, distribution.width, hidden, shared, **of_layers)
        defaults = parts_for(
            envs,
            preprocess,
            max_grad_norm=max_grad_norm,
            optimizer=lambda: spec_with_lr(optimizer, Adam(3e-4, eps=adam_eps), lr),
            horizon=lambda: Horizon(1, gamma, reward),
        )
        return cls(network, **defaults | parts | {"distribution": distribution})

    def _check_horizon(self, checks: Checks, horizon: Horizon) -> None:
        super()._check_horizon(checks, horizon)
        _check_one_step(checks, horizon)

    # ---- acting ----

    def _actor_outputs(self, features: Any) -> tuple[Tensor, dict[str, Tensor]]:
        outputs, value = self.network(features)
        return outputs, {"value": value}

    def _act(self, given: Any) -> dict[str, Tensor]:
        results = super()._act(given)
        log_prob = self.distribution.log_prob(results["outputs"], results["action"], legal_mask(given[0]))
        return {**results, "log_prob": log_prob}

    # ---- learning ----

    @property
    def learning_methods(self) -> set[str]:
        """The method by which the policy learns, "learn"."""
        return {"learn"}

    def update(self, batch: Batch, *, step: int) -> UpdateResult:
        """Raise `ConfigError`: on-policy algorithms learn from rollouts, with `learn`."""
        raise ConfigError(
            f"{type(self).__name__} learns from rollouts, not batches: call learn, or give it to an OnpolicyTrainer"
        )

    def observe(self, transition: Transition) -> None:
        """Add K rows to the running statistics, which features use once the policy has learned from the rollout."""
        self.statistics.observe(transition)

    def learn(
        self, rollout: Rollout | TensorRollout, *, step: int, batch_size: int | None = None, repeat: int = 1
    ) -> Iterator[UpdateResult]:
        """Learn from all rows `repeat` times, each time in another order, in batches of about `batch_size`.

        The batches' sizes differ by at most one row; None is one batch of all rows. Running statistics of observations
        are updated at the end.
        """
        yield from self._updates(rollout, step, batch_size, repeat)
        if isinstance(rollout, TensorRollout):  # its collector cannot show single steps to `observe`
            self.statistics.observe_obs(rollout.obs)
        self.statistics.fold()

    def _updates(
        self, rollout: Rollout | TensorRollout, step: int, batch_size: int | None, repeat: int
    ) -> Iterator[UpdateResult]:
        rows, n_rows = self._rows(rollout), len(rollout)
        n_batches = 1 if batch_size is None else max(round(n_rows / batch_size), 1)
        how: dict[str, Any] = {"normalize": self.normalize_advantage, "generator": self.generator, "repeat": repeat}
        for batch in self._network_state.batches(rows, rollout, n_batches, **how):
            result, metrics = self._learning.update(batch.columns(), len(batch.action), step=step)
            yield result
            if self._should_stop(metrics):
                return

    def loss_inputs(self, n_rows: int, *, step: int) -> dict[str, Any]:
        """Return the values of the loss's schedules."""
        return {name: getattr(self, name)(step) for name in self._scheduled}

    def rows(self, columns: Any, inputs: Any, frames: Any = None, module: nn.Module | None = None) -> RolloutRows:
        """Return B rows of a rollout as the argument of losses."""
        return self._network_state.rollout_rows(RolloutRows(*columns))._replace(inputs=inputs)

    def _rows(self, rollout: Rollout | TensorRollout) -> RolloutRows:
        """Return the rows of a rollout with their advantages."""
        if isinstance(rollout, Rollout):
            rollout = self._on_device(rollout)
        reward, value, terminated, ended = rollout.reward, rollout.value, rollout.terminated, rollout.ended
        with torch.no_grad():
            next_value = torch.cat([value[1:], torch.zeros_like(value[:1])])
            if len(rollout.last_rows):
                last = self._values(*self._network_state.before_last(rollout))
                legal = legal_mask(rollout.last_obs)
                if legal is not None:
                    last = last * legal.any(dim=1)  # without a legal action the episode is over
                next_value.view(-1)[rollout.last_rows] = last
            advantage = rollout.by_row(self._advantages(reward, value, next_value, terminated, ended))
            features = self.preprocess(rollout.obs)
        value, legal, action = rollout.by_row(value), legal_mask(rollout.obs), rollout.action
        extras = {name: rollout.extras[name] for name in self.columns}
        columns = features, legal, action, rollout.log_prob, value, advantage, advantage + value, extras
        return RolloutRows(*columns)

    def _on_device(self, rollout: Rollout) -> TensorRollout:
        """Send a rollout to the device by one copy, without positions that have no row."""
        missing = [name for name in (*self.columns, *self.extras_spec) if name not in rollout.extras]
        if missing:
            raise ConfigError(
                f"{type(self).__name__} needs the columns {missing}, which the rollout does not have: read it with "
                "columns=policy.columns"
            )
        is_row = rollout.is_row
        positions = np.flatnonzero(is_row)
        stored = {name: np.asarray(rollout.extras[name], spec.dtype) for name, spec in self.extras_spec.items()}
        by_row = {
            "obs": rollout.obs,
            "action": rollout.action if self._action_scale is None else stored[POLICY_ACTION],
            "log_prob": stored["log_prob"],
            "extras": {name: rollout.extras[name] for name in self.columns},
        }
        arrays = {
            **tree.map_tree(lambda leaf: _flat(leaf)[positions], by_row),
            "positions": positions,
            "reward": np.asarray(rollout.reward, np.float32),
            "value": stored["value"],
            "terminated": rollout.terminated,
            "ended": rollout.ended | ~is_row,
            "last_rows": np.asarray(rollout.last_rows),
            "last_obs": rollout.last_obs,
        }
        return TensorRollout(**to_device(arrays, self.device))

    def _values(self, *given: Any) -> Tensor:
        """Return the values [K] of what `NetworkState.before_last` returned, without gradients."""
        if self.device != CPU:
            with torch.no_grad():
                return self._value_of(given)["value"]
        arrays = tree.map_tree(np.asarray, given)
        return torch.from_numpy(self._engine.call("values", self._value_of, arrays)["value"])

    def _value_of(self, given: Any) -> dict[str, Tensor]:
        x = self._network_state.join_last(self.preprocess, given)
        return {"value": self.network(x)[1][-len(tree.first_leaf(given[0])) :]}

    def _advantages(
        self, reward: Tensor, value: Tensor, next_value: Tensor, terminated: Tensor, ended: Tensor
    ) -> Tensor:
        """Estimate advantages [T, N]."""
        return gae(reward, value, next_value, terminated, ended, gamma=self.horizon.gamma, lam=self.lam)

    def loss(self, rows: RolloutRows) -> Loss:
        """Return the loss of B rows."""
        raise TypeError(f"{type(self).__name__} must define loss")

    def _should_stop(self, metrics: Mapping[str, Scalar]) -> bool:
        """Return whether to stop learning from this rollout early, after an update with these metrics."""
        return False


def _default_network(
    preprocess: Preprocess,
    width: int,
    hidden: Sequence[int] | None,
    shared: bool | None,
    *,
    activation: Activation | None,
    critic_only: Sequence[str],
    **options: Any,
) -> ActorCriticNetwork:
    """Make the network of `OnpolicyPolicy.for_envs`, with its defaults where an option is None."""
    has_convolutions = preprocess.sees_images or preprocess.sees_grids
    return ActorCriticNetwork(
        preprocess.shapes,
        width,
        hidden=default_hidden(preprocess, vectors=(64, 64)) if hidden is None else hidden,
        shared=has_convolutions and not critic_only if shared is None else shared,
        activation=torch.relu if activation is None and has_convolutions else activation,
        critic_only=critic_only,
        **options,
    )


def _flat(column: NDArray[Any]) -> NDArray[Any]:
    """Reshape [T, N, ...] to [T * N, ...]."""
    return column.reshape(-1, *column.shape[2:])


def _check_one_step(checks: Checks, horizon: Horizon) -> None:
    one_step = horizon.n_step == 1
    checks.require(one_step, f".horizon.n_step must be 1, got {horizon.n_step}: lam says how far to look")
