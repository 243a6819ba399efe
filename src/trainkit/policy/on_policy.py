"""What on-policy learners share: act by a distribution, then learn from all of a rollout while it is theirs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from gymnasium import Space
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit.core import tree
from trainkit.core.data import POLICY_ACTION, ActOutput, ArraySpec, Horizon, Obs, Rollout, Transition, TransitionBatch
from trainkit.core.errors import Checks, ConfigError, SpaceMismatchError, all_made, check_flag
from trainkit.core.protocols import EnvSpaces
from trainkit.core.signatures import checked
from trainkit.core.spaces import checked_legal, zeros_of
from trainkit.core.stats import Summary
from trainkit.engine.device import CPU, legal_mask, to_device
from trainkit.engine.engine import EngineName
from trainkit.engine.gradient_step import Adam, Clip, Scalar
from trainkit.engine.loss import Loss
from trainkit.nets.action_scale import ActionBound, action_scale_for
from trainkit.nets.actor_critic import ActorCriticNetwork
from trainkit.nets.distributions import ActionStd, Categorical, Distribution, distribution_for
from trainkit.nets.preprocess import Preprocess
from trainkit.policy.advantages import gae
from trainkit.policy.base import Policy
from trainkit.policy.exploration import one_hot
from trainkit.policy.export import reasons
from trainkit.policy.meter import UpdateResult
from trainkit.policy.refusals import refuse_unsound, trying
from trainkit.policy.rollout_rows import RolloutRows

_FLOAT32 = np.dtype(np.float32)
_STORED = {name: ArraySpec(shape=(), dtype=_FLOAT32) for name in ("log_prob", "value")}


class OnpolicyPolicy(Policy):
    """Base of the on-policy learners: a subclass gives `loss`, and names its schedules.

    They learn in eval mode, too: with dropout or batch statistics the first ratio would not be 1.

    In a Box the network and the distribution work in policy units. `act` returns the action mapped to the space and
    clipped to it, which is what environments take and datasets store, and in the column `policy_action` the action as
    it was drawn, in policy units: `log_prob` is its log-density, and it is what the policy learns from.

    Args:
        network: features -> `ActorCriticOutput`, as `ActorCriticNetwork`.
        distribution: of actions, those of a Box in policy units; default: the one for the action space.
        action_scaling: policy units -1 and 1 are the bounds of a Box; False: they are those of the space. See
            `ActionScale`.
        horizon: gamma, and the rule of rewards.
        lam: of `gae`.
        normalize_advantage: give each batch's advantages mean 0 and deviation 1.
        optimizer: Adam's numbers.
        clip: of gradients; None clips nothing.
        observation_space, action_space, preprocess, device, seed, engine: as in `Policy`.
        flush_denormals: see `GradientStep`.
    """

    unwatched = frozenset({"_action_std"})
    _scheduled: tuple[str, ...] = ()  # schedules whose numbers the loss finds in `rows.inputs`

    @checked
    def __init__(
        self,
        network: nn.Module,
        *,
        action_space: Space[Any],
        distribution: Distribution | None = None,
        action_scaling: bool = True,
        horizon: Horizon | None = None,
        lam: float = 0.95,
        normalize_advantage: bool = False,
        optimizer: Adam | None = None,
        clip: Clip | None = None,
        preprocess: nn.Module | None = None,
        observation_space: Space[Any] | None = None,
        device: str | torch.device = "auto",
        seed: int | None = None,
        engine: EngineName = "auto",
        flush_denormals: bool = True,
    ) -> None:
        checks = Checks(type(self).__name__)
        checks.number("lam", lam, low=0, high=1)
        if horizon is not None:
            one_step = horizon.n_step == 1
            checks.require(one_step, f".horizon.n_step must be 1, got {horizon.n_step}: lam says how far to look")
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
        self.lam, self.normalize_advantage = lam, normalize_advantage
        self.distribution = distribution_for(action_space) if distribution is None else distribution
        self._scale = self.action_scale = action_scale_for(action_space, scaling=action_scaling)
        self._extras_spec = dict(_STORED)
        if self._scale is not None:
            self._extras_spec[POLICY_ACTION] = ArraySpec(shape=self._scale.low.shape, dtype=_FLOAT32)
        self.network = network
        self.to(self.device)
        adam = Adam() if optimizer is None else optimizer
        self.add_gradient_step("model", self, adam, clip, loss=self.loss, flush_denormals=flush_denormals)
        self._action_std = ActionStd(self.distribution)
        self.eval()

    @classmethod
    @checked
    def for_envs(
        cls,
        envs: EnvSpaces,
        *,
        hidden: Sequence[int] | None = None,
        shared: bool | None = None,
        normalize_obs: bool = False,
        action_bound_method: ActionBound = "clip",
        log_std: float | None = None,
        gamma: float = 0.99,
        reward: Any = None,
        lr: Any = 3e-4,
        adam_eps: float = 1e-5,
        max_grad_norm: float | None = 0.5,
        **parts: Any,
    ) -> Self:
        """Make a policy for environments, by short words.

        Args:
            envs: anything with `observation_space` and `action_space`.
            hidden, shared: as in `ActorCriticNetwork`; layers default to (64, 64) in a torso each, for images to
                (512,) in a shared one.
            normalize_obs: as `normalize` in `Preprocess`.
            action_bound_method: how actions of a Box are kept within the bounds: "clip" them, or squash them by
                "tanh", which needs finite bounds.
            log_std: initial logarithm of their deviations; None is 0.
            gamma, reward: as in `Horizon`.
            lr, adam_eps, max_grad_norm: of Adam, and the clip of the global norm; None clips nothing.
            parts: arguments of the class; `optimizer` and `clip` replace `lr` and `max_grad_norm`.
        """
        if "distribution" in parts and (action_bound_method != "clip" or log_std is not None):
            raise ConfigError(
                f"{cls.__name__}.for_envs was given distribution, and action_bound_method or log_std too: give one"
            )
        preprocess = Preprocess(envs.observation_space, normalize=normalize_obs)
        sees_images = preprocess.sees_images
        distribution = parts.get("distribution")
        if distribution is None:
            how: dict[str, Any] = {"action_bound_method": action_bound_method, "log_std": log_std}
            distribution = distribution_for(envs.action_space, **how)
        network = ActorCriticNetwork(
            preprocess.shapes,
            distribution.width,
            hidden=((512,) if sees_images else (64, 64)) if hidden is None else hidden,
            shared=sees_images if shared is None else shared,
            activation=torch.relu if sees_images else torch.tanh,
        )
        defaults: dict[str, Any] = {
            **all_made(
                optimizer=lambda: Adam(lr, eps=adam_eps),
                clip=lambda: None if max_grad_norm is None else Clip(max_grad_norm),
                horizon=lambda: Horizon(1, gamma, reward),
            ),
            "observation_space": envs.observation_space,
            "action_space": envs.action_space,
            "preprocess": preprocess,
        }
        return cls(network, **defaults | parts | {"distribution": distribution})

    # ---- acting ----

    @property
    def extras_spec(self) -> Mapping[str, ArraySpec]:
        """Columns to store: `log_prob` of each action, `value` of each observation, in a Box `policy_action`."""
        return self._extras_spec

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
        """Draw an action of each row's distribution or, without exploring, take its mode."""
        check_flag(self, "act(explore=)", explore)
        checked_legal(obs, env_ids)
        noise = self.distribution.draw_noise(len(tree.first_leaf(obs)), self.generator) if explore else None
        answer = self._engine.call("act", self._answer, (obs, noise))
        action, log_prob, value, numbers = (answer[name] for name in ("action", "log_prob", "value", "numbers"))
        if explore:
            self._action_std.add(numbers)
        is_sound = np.isfinite(log_prob + value)
        refuse_unsound(f"{type(self).__name__} gives", is_sound, numbers, env_ids, step)
        extras = {"log_prob": log_prob, "value": value}
        if self._scale is not None:
            extras[POLICY_ACTION] = action
            action = self._scale.to_space(action)
        return ActOutput(action, extras, state)

    def read_action_std(self) -> Summary:
        """Return the standard deviations of the draws since the last call, in policy units and before any tanh."""
        return self._action_std.read()

    def _answer(self, given: Any) -> dict[str, Tensor]:
        """Act on raw observations on the device, by noise [K, N] or None; actions of a Box are in policy units."""
        obs, noise = given
        legal, family = legal_mask(obs), self.distribution
        numbers, value = self.network(self.preprocess(obs))
        action = family.mode(numbers, legal) if noise is None else family.sample(numbers, legal, noise)
        log_prob = family.log_prob(numbers, action, legal)
        return {"action": action, "log_prob": log_prob, "value": value, "numbers": numbers}

    def action_probability(self, obs: Obs, *, step: int = 0, explore: bool = False) -> NDArray[np.float64]:
        """Return how likely each action is to be taken, [K, A]: drawn where exploring, else the mode for sure."""
        check_flag(self, "action_probability(explore=)", explore)
        if not isinstance(self.distribution, Categorical):
            return super().action_probability(obs)
        checked_legal(obs)
        with torch.no_grad():
            on_device = to_device(obs, self.device)
            numbers, _ = self.network(self.preprocess(on_device))
            probability = self.distribution.probability(numbers.double(), legal_mask(on_device)).cpu().numpy()
        return probability if explore else one_hot(probability.argmax(axis=1), probability.shape[1])

    def greedy(self, obs: Any) -> dict[str, Tensor]:
        """Return each row's mode [B, ...] for raw observations on the device, its `reasons`, and the value [B]."""
        legal = legal_mask(obs)
        numbers, value = self.network(self.preprocess(obs))
        action = self.distribution.mode(numbers, legal)
        if self._scale is not None:
            action = self._scale.to_space(action)
        return {"action": action, **reasons(self.distribution, numbers, legal), "value": value}

    # ---- learning ----

    @property
    def learns_by(self) -> set[str]:
        """The method through which it learns, "learn"."""
        return {"learn"}

    def update(self, batch: TransitionBatch, *, step: int) -> UpdateResult:
        """Raise `ConfigError`: an on-policy learner learns from whole rollouts."""
        raise ConfigError(
            f"{type(self).__name__} learns from rollouts, not batches: call learn, or give it to an OnpolicyTrainer"
        )

    def observe(self, transition: Transition) -> None:
        """Note K new rows for running statistics; features stay as they are until the rollout has been learnt."""
        self.statistics.note(transition)

    def learn(
        self, rollout: Rollout, *, step: int, batch_size: int | None = None, repeat: int = 1
    ) -> Iterator[UpdateResult]:
        """Learn from all rows `repeat` times, each time in another order, in batches of about `batch_size`.

        Batches are of equal size, give or take a row, so that none is left over. None is all rows at once. Running
        statistics of observations move at the end.
        """
        yield from self._updates(rollout, step, batch_size, repeat)
        self.statistics.fold()

    def _updates(self, rollout: Rollout, step: int, batch_size: int | None, repeat: int) -> Iterator[UpdateResult]:
        rows = self._rows(rollout)
        n_rows = len(rollout)
        n_batches = 1 if batch_size is None else max(round(n_rows / batch_size), 1)
        for _ in range(repeat):
            order = torch.randperm(n_rows, generator=self.generator, device=self.device)
            shuffled = rows.at(order)
            dealt = shuffled.normalized_in(n_batches) if self.normalize_advantage else shuffled
            dealt = dealt.in_arrays() if self.device == CPU else dealt
            for batch in dealt.deal(n_batches):
                metrics = self._update_on(batch, step)
                yield self.end_update(step=step, **metrics)
                if self._is_enough(metrics):
                    return

    def _update_on(self, batch: RolloutRows, step: int) -> dict[str, Any]:
        """Take a gradient step on a batch, and return its metrics."""
        given = tuple(batch), self._inputs(len(batch.action), step)
        metrics = self._take_steps(given, step=step) if self._graph is None else self._replay(self._graph, given, step)
        metrics.pop("priority", None)
        return metrics

    def loss_inputs(self, n_rows: int, *, step: int) -> dict[str, Any]:
        """Return the scheduled numbers of the loss."""
        return {name: getattr(self, name)(step) for name in self._scheduled}

    def rows(self, given: Any) -> RolloutRows:
        """Return B rows of a rollout, as losses are given them."""
        columns, inputs = given
        return RolloutRows(*columns)._replace(inputs=inputs)

    def _rows(self, rollout: Rollout) -> RolloutRows:
        """Move a rollout to the device, judge what followed it, and estimate advantages; [T, N] becomes [B]."""
        is_row = rollout.is_row
        flat = np.flatnonzero(is_row)
        on_device = to_device(tree.map_tree(lambda leaf: _flat(leaf)[flat], rollout.obs), self.device)
        missing = [name for name in (*self.columns, *self.extras_spec) if name not in rollout.extras]
        if missing:
            raise ConfigError(
                f"{type(self).__name__} needs the columns {missing}, which the rollout does not have: read it with "
                "columns=policy.columns"
            )
        own_columns = {name: np.asarray(rollout.extras[name], spec.dtype) for name, spec in self.extras_spec.items()}
        columns = np.asarray(rollout.reward, np.float32), own_columns["value"], rollout.terminated, rollout.ended
        reward, value, terminated, ended = to_device(columns, self.device)
        with torch.no_grad():
            next_value = torch.cat([value[1:], torch.zeros_like(value[:1])])
            if len(rollout.last_rows):
                last = self._values(rollout.last_obs)
                legal = legal_mask(to_device(rollout.last_obs, self.device))
                if legal is not None:
                    last = last * legal.any(dim=1)  # without a legal action nothing follows
                next_value.view(-1)[torch.as_tensor(rollout.last_rows, device=self.device)] = last
            over = ended | ~torch.as_tensor(is_row, device=self.device)
            advantage = self._advantages(reward, value, next_value, terminated, over)
        index = torch.as_tensor(flat, device=self.device)
        own_action = rollout.action if self._scale is None else own_columns[POLICY_ACTION]
        action, log_prob = to_device((_flat(own_action)[flat], _flat(own_columns["log_prob"])[flat]), self.device)
        own = advantage.view(-1)[index]
        old = value.view(-1)[index]
        extras = to_device({name: _flat(rollout.extras[name])[flat] for name in self.columns}, self.device)
        with torch.no_grad():
            features = self.preprocess(on_device)
        return RolloutRows(features, legal_mask(on_device), action, log_prob, old, own, own + old, extras)

    def _values(self, obs: Obs) -> Tensor:
        """Return the values [K] of raw observations, without gradients."""
        return torch.from_numpy(self._engine.call("values", self._value_of, obs)["value"]).to(self.device)

    def _value_of(self, obs: Any) -> dict[str, Tensor]:
        return {"value": self.network(self.preprocess(obs))[1]}

    def _advantages(
        self, reward: Tensor, value: Tensor, next_value: Tensor, terminated: Tensor, ended: Tensor
    ) -> Tensor:
        """Estimate advantages [T, N]."""
        return gae(reward, value, next_value, terminated, ended, gamma=self.horizon.gamma, lam=self.lam)

    def loss(self, rows: RolloutRows) -> Loss:
        """Return the loss of B rows."""
        raise TypeError(f"{type(self).__name__} must define loss")

    def _is_enough(self, shown: Mapping[str, Scalar]) -> bool:
        """Whether to stop learning from this rollout early, after an update that showed these scalars."""
        return False

    def check_spaces(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        """Refuse environments that the network cannot see or act in, by trying it on one blank observation."""
        self._refuse_other_spaces(observation_space, action_space)
        with trying(f"{type(self).__name__}'s network", observation_space):
            numbers, value = self.network(self.features(zeros_of(observation_space)))
        shapes, expected = (tuple(numbers.shape), tuple(value.shape)), ((1, self.distribution.width), (1,))
        if shapes != expected:
            raise SpaceMismatchError(
                f"{type(self).__name__}'s network gives {shapes} for one observation, but {action_space} needs "
                f"{expected}: numbers [B, width] and values [B]"
            )
        super().check_spaces(observation_space, action_space)


def _flat(column: NDArray[Any]) -> NDArray[Any]:
    """Turn [T, N, ...] into [T * N, ...]."""
    return column.reshape(-1, *column.shape[2:])
