"""`Policy`, the base class of policies, and the specification of what a custom policy provides."""

import logging
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol, TypedDict, TypeVar, overload, runtime_checkable

import numpy as np
import torch
from gymnasium import Space, spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit.core import seeding, tree, user_code
from trainkit.core.assignments import fixed_options
from trainkit.core.checkpoint import save_checkpoint
from trainkit.core.config import Plain
from trainkit.core.data import (
    ACTION_PROB,
    ActOutput,
    Allocate,
    ArraySpec,
    Batch,
    Horizon,
    Obs,
    ReturnScale,
    Transition,
    TransitionBatch,
    check_act_output,
)
from trainkit.core.errors import Checks, ConfigError, all_made
from trainkit.core.observations import ObservationReader
from trainkit.core.protocols import BehaviorPolicy, Component, Dataset, EnvSpaces, GroupedEnvs, Learner, StepClock
from trainkit.core.schedules import Scheduled, as_schedule
from trainkit.core.signatures import checked
from trainkit.core.spaces import UNSCALED_REMEDY, flat_actions, leaf_spaces, structure_of
from trainkit.core.stats import html_table
from trainkit.core.unpacking import discards_second
from trainkit.engine.device import CPU, resolve_device, to_device
from trainkit.engine.engine import Engine, EngineName, engine_for
from trainkit.engine.gradient_step import Clip, GradientStep, Parameters, Scalar
from trainkit.engine.lookups import frame_indices, frames_of, gathered, with_frames
from trainkit.engine.loss import Loss, TensorBatch, tensor_batch
from trainkit.engine.moving_buffers import may_have_modes
from trainkit.engine.optimizers import OptimizerSpec
from trainkit.engine.precision import Precision, precision_for
from trainkit.engine.process_group import ProcessGroup
from trainkit.nets.action_scale import ActionScale, action_scale_for
from trainkit.nets.preprocess import Preprocess, WithoutMask
from trainkit.nets.weights import SeededModule, seeded_parts
from trainkit.policy.auxiliary import Auxiliary, AuxiliaryLoss, encoder_of, takes_features_and_rows
from trainkit.policy.checks import check_same_spaces
from trainkit.policy.layer_streams import LayerStreams
from trainkit.policy.learning import Learning
from trainkit.policy.network_state import NetworkState
from trainkit.policy.parts import LearningPart
from trainkit.policy.persistence import (
    KeyMap,
    about_policy,
    acting_state,
    action_units,
    as_array,
    check_action_units,
    load_policy,
    load_weights,
)
from trainkit.policy.settings import settings_of
from trainkit.policy.statistics import ObservedStatistics
from trainkit.policy.target import Target, TargetNetwork
from trainkit.policy.update_result import OnNan, UpdateResult

T = TypeVar("T")

_log = logging.getLogger(__name__)

_MODELESS = {nn.Linear, nn.Conv2d, nn.ModuleList, nn.Flatten, nn.LayerNorm, nn.RMSNorm}  # which have no modes


class PolicyOptions(TypedDict, total=False):
    """The keyword arguments of `Policy` that its subclasses' constructors pass on."""

    observation_space: Space[Any] | None
    preprocess: nn.Module | None
    horizon: Horizon | None
    device: str | torch.device
    seed: int | None
    engine: EngineName
    precision: Precision
    auxiliary: Auxiliary | None


def parts_for(
    envs: EnvSpaces, preprocess: nn.Module, *, max_grad_norm: float | None, **made: Callable[[], object]
) -> dict[str, Any]:
    """Return the arguments that every `for_envs` makes of its options; errors are reported together."""
    if isinstance(preprocess, Preprocess) and preprocess.unscaled:
        leaves = ", ".join(f"observation[{path}]" if path else "observation" for path in preprocess.unscaled)
        _log.warning("%s: uint8 from 0 to 255, no image, so its numbers are not scaled: %s", leaves, UNSCALED_REMEDY)
    return {
        **all_made(clip=lambda: None if max_grad_norm is None else Clip(max_grad_norm), **made),
        "observation_space": envs.observation_space,
        "action_space": envs.action_space,
        "preprocess": preprocess,
    }


def _of_first(after: Callable[[Parameters], Parameters]) -> Callable[[Parameters], Parameters]:
    """Return a function of a module's parameters as one of those of a list of modules, of which it is the first."""

    def changed(parameters: Parameters) -> Parameters:
        own = {path.removeprefix("0."): value for path, value in parameters.items() if path.startswith("0.")}
        return {f"0.{path}": value for path, value in after(own).items()}

    return changed


@runtime_checkable
class HasGreedy(Protocol):
    """A policy whose greedy actions are a function of tensors."""

    @property
    def greedy(self) -> Callable[..., Mapping[str, Tensor]]:
        """Returns "action" [B, ...] and what it was chosen by, for raw observations [B, ...] on the device.

        Of a policy that carries a state, the states [B, S] are the second argument, and the next ones are "state_out".
        """


@checked
@fixed_options("action_scaling")
class Policy(nn.Module):
    """Base class of policies: a torch module that acts on observations and learns by gradient steps.

    To write your own, define

    - `__init__`: call `super().__init__`, make the networks, and list the gradient steps in their order with
      `add_gradient_step(name, module, optimizer, loss=...)` and the target networks with `add_target`. Both, and a
      collector, move all modules that the policy has to its device;
    - `act`: the actions for K observations;
    - each loss, a method `rows -> Loss`: `rows` is a `TensorBatch`, with what `loss_inputs` returned in `rows.inputs`;
    - `loss_inputs` and `loss_noise`, if a loss needs numbers on a schedule, or noise.

    An update then takes the gradient steps in order, updates the target networks and returns the priorities. Weighting,
    clipping, the divergence check, metrics, seeds, saving and loading are inherited. Optional are `greedy` (for
    `export` and `predict(return_extra=True)`), `action_probability`, `explore_metrics`, `check_networks`, `columns` and
    `extras_spec`. Modules are in evaluation mode while the policy acts; in a gradient step its own module is in
    training mode, every other in evaluation mode. Noise follows `explore`, never the mode.

    To write `update` yourself, take gradient steps with `minimize` and finish with `end_update`; torch then executes
    the update whatever the engine.

    Args:
        observation_space: of one environment, for `predict` and checks; a collector sets it otherwise.
        action_space: of one environment.
        action_scaling: policy units -1 and 1 are the bounds of a Box of floats; False: they are those of the space. See
            `ActionScale`.
        preprocess: maps raw observation tensors to features; by default it removes the action mask.
        horizon: the return to learn from.
        device: "auto", "cpu", "cuda", "cuda:1", "xpu", "mps" or a torch device.
        seed: root of initial weights, noise and exploration; None uses the trainer's. You initialize your own modules.
        engine: executes losses and forward passes: "auto", "torch", "numpy", "compile" or "cuda_graph", see
            `trainkit.engine`. May be set between any two steps.
        precision: of networks' products while they learn: "float32", rounded to "tf32" (on CUDA) or to "bf16".
            Parameters, losses, optimizer and acting are in float32. May be set between any two steps.
        auxiliary: a function or a module, (features [B, F], rows) -> [B], which is added to the loss of each row; the
            features are those of the encoder that learns from rewards. Parameters of a module are trained along.

    Attributes:
        columns: names of stored columns that updates need in addition to the usual ones: of `extras_spec`, of
            `Collector(extra_columns=)`, or of those every buffer has, such as "t" (see `ReplayBuffer.sample`). They
            arrive in `batch.extras`, and on the device in `rows.extras`.
        is_random: whether actions are random without exploration, too; evaluations then have random streams of their
            own.
        unwatched: names of attributes that change while the policy acts and learns and that no loss reads: the engine
            records a function again when any other attribute changes.
        config: class and arguments of the `for_envs` that made the policy; None otherwise.
        n_updates: number of updates taken.
        last_step: environment step of the last update, at which schedules are evaluated outside of training.
        rng: numpy's random stream, for exploration.
        generator: torch's random stream on the device, for noise.
    """

    columns: Sequence[str] = ()
    unwatched: ClassVar[frozenset[str]] = frozenset()
    is_random: ClassVar[bool] = False
    _network_state = NetworkState()
    config: Mapping[str, Any] | None = None

    def __init__(
        self,
        *,
        observation_space: Space[Any] | None = None,
        action_space: Space[Any] | None = None,
        action_scaling: bool = True,
        preprocess: nn.Module | None = None,
        horizon: Horizon | None = None,
        device: str | torch.device = "auto",
        seed: int | None = None,
        engine: EngineName = "auto",
        precision: Precision = "float32",
        auxiliary: Auxiliary | None = None,
    ) -> None:
        name = type(self).__name__
        with Checks(name) as checks:
            checks.integer("seed", seed, low=0, optional=True)
            rule = f".auxiliary must be a function or a module (features, rows) -> [B], got {auxiliary!r}"
            checks.require(auxiliary is None or takes_features_and_rows(auxiliary), rule)
            with checks.gather():
                tree.check_keys(f"{name}.observation_space", leaf_spaces(observation_space))
        super().__init__()
        self._observations = ObservationReader(observation_space)
        self._action_space = None if action_space is None else flat_actions(action_space)
        self._action_scaling = action_scaling
        self._action_scale = None if action_space is None else action_scale_for(action_space, scaling=action_scaling)
        self.preprocess = WithoutMask() if preprocess is None else preprocess
        self._horizon = Horizon() if horizon is None else horizon
        if self._horizon.reward == "return_scale":
            self._horizon = replace(self._horizon, reward=ReturnScale(self._horizon.gamma))  # with a state of its own
        self._device = resolve_device(device)
        self._statistics = ObservedStatistics(self.preprocess, self._horizon, self._device)
        self._is_seeded = seed is not None
        self._seed = seed  # of networks that are added later
        self.start_streams(seeding.fresh_root() if seed is None else seed)
        self.n_updates = self.last_step = 0
        self._learning = Learning(self)
        self._parts: tuple[LearningPart, ...] = ()
        self._drawn: dict[str, nn.Module] = {}  # whose initial weights are drawn, by the names of random streams
        self._auxiliary = None if isinstance(auxiliary, nn.Module) else auxiliary
        if isinstance(auxiliary, nn.Module):
            self._modules["auxiliary"] = auxiliary  # under the property's name, which no assignment replaces
        self._extras_spec: Mapping[str, ArraySpec] = {}
        self._precision = precision_for(self, precision, self.device)
        unread = vars(self).keys() - {"_auxiliary"} | {"_engine", "_ignored", "config"}
        self._ignored = frozenset(unread) | self.unwatched  # attributes that no loss reads
        self._use_engine(engine)

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
        """Choose actions [K, ...] for observations [K, ...].

        Args:
            obs: raw observations [K, ...], as the environments returned them; `predict` takes one, too.
            step: the environment step, for schedules.
            explore: whether to explore; if not, nothing random is sampled.
            state: what the last call returned, None at first.
            starts: [K], whether an episode starts at the row.
            env_ids: [K], the environment of each row.
        """
        raise TypeError(f"{type(self).__name__} must define act")

    def forward(self, *_: Any, **__: Any) -> Any:
        """Raise a ConfigError: a policy is not called as a network is."""
        raise ConfigError(
            f"{type(self).__name__} is not called itself: use predict(obs) for actions of one observation or of K, "
            "act(obs) for K rows as a collector has them, or a network of it, such as policy.network"
        )

    def action_probability(self, obs: Obs, *, step: int = 0, explore: bool = False) -> NDArray[np.float64]:
        """Return the probability of each action, [K, A], in `act` with these arguments; raise if it is unknown."""
        raise ConfigError(f"{type(self).__name__} has no action_probability: only Discrete actions have one each")

    # ---- as the only policy of a run: others consist of several ----

    @property
    def policies(self) -> Mapping[str, Any]:
        """The policies that it consists of by name: none."""
        return {}

    @property
    def policy_numbers(self) -> Mapping[str, int]:
        """The numbers of its policies by name: none."""
        return {}

    @property
    def configs(self) -> Mapping[str, Mapping[str, Any] | None]:
        """How each of its policies was made, by name: none."""
        return {}

    def behavior_for(
        self, envs: GroupedEnvs, *, in_evaluation: bool = False, rows_per_step: int = 1
    ) -> BehaviorPolicy | None:
        """Return None: this policy acts in all rows of a collector."""
        return None

    def buffer_for(self, buffer: Any) -> Any:
        """Return what stores the rows of a run whose only learner learns from this buffer: the buffer itself."""
        return buffer

    def learners(self, buffer: Any, clock: StepClock, names: Sequence[str] | None = None) -> list[Learner]:
        """Return this policy with what it learns from and the clock of its schedules, as trainers loop over them."""
        return [Learner(name="", policy=self, buffer=buffer, clock=clock)]

    def components(self) -> dict[str, Component]:
        """Return the components of a checkpoint by name, each with how its state is read and restored."""
        return {"policy": (self.training_state, self.load_training_state)}

    # ---- what it is made of ----

    @property
    def observation_space(self) -> Space[Any] | None:
        """Observation space of one environment, None until it is known; `check_spaces` sets it."""
        return self._observations.space

    @property
    def action_space(self) -> Space[Any] | None:
        """Action space of one environment, flat, None until it is known; `check_spaces` sets it."""
        return self._action_space

    @property
    def action_scale(self) -> ActionScale:
        """Maps policy units, [-1, 1], to the units of a Box of floats and back; raises for other spaces.

        `to_space(unit)` and `to_unit(action)` take tensors on the device, in losses, and arrays, in `act`.
        """
        if self._action_scale is None:
            had = (
                "no space yet: give action_space at construction" if self._action_space is None else self._action_space
            )
            raise ConfigError(f"{type(self).__name__}.action_scale is of actions in a Box of floats, got {had}")
        return self._action_scale

    @property
    def device(self) -> torch.device:
        """The device of networks and updates; another one needs `load_policy(path, device=...)`."""
        return self._device

    @property
    def statistics(self) -> ObservedStatistics:
        """Running statistics of observations and returns."""
        return self._statistics

    @property
    def sequences(self) -> Any:
        """What networks that carry a state learn from, the option of this name; None for a policy of rows."""
        return self._network_state.sequences

    @property
    def auxiliary(self) -> Auxiliary | None:
        """What is added to the loss of each row."""
        module: Any = self._modules.get("auxiliary")
        return self._auxiliary if module is None else module

    @property
    def is_seeded(self) -> bool:
        """Whether there is a seed; `seed(root)` sets one."""
        return self._is_seeded

    @property
    def horizon(self) -> Horizon:
        """The return to learn from; may be assigned between any two steps."""
        return self._horizon

    @horizon.setter
    def horizon(self, horizon: Horizon) -> None:
        with Checks(type(self).__name__) as checks:
            if checks.require(isinstance(horizon, Horizon), f".horizon must be a Horizon, got {horizon!r}"):
                self._check_horizon(checks, horizon)
        self._horizon = horizon

    def _check_horizon(self, checks: Checks, horizon: Horizon) -> None:
        """Note why a horizon cannot be assigned."""
        has_same_scale = horizon.return_scale is self._horizon.return_scale and horizon.reward != "return_scale"
        rule = ".horizon: whether rewards are divided by a return scale is fixed at construction: make another policy"
        checks.require(has_same_scale, rule)

    @property
    def gamma(self) -> float:
        """The discount per step of `horizon`; may be assigned."""
        return self._horizon.gamma

    @gamma.setter
    def gamma(self, gamma: float) -> None:
        self.horizon = replace(self._horizon, gamma=gamma)

    @property
    def n_step(self) -> int | tuple[int, int]:
        """The steps of a window of `horizon`; may be assigned."""
        return self._horizon.n_step

    @n_step.setter
    def n_step(self, n_step: int | tuple[int, int]) -> None:
        self.horizon = replace(self._horizon, n_step=n_step)

    @property
    def lr(self) -> float:
        """The learning rate at the last update, of the first gradient step; may be assigned, for all of them.

        A number, knots or a schedule of the environment step takes the place of the former one, also of a torch
        scheduler. The moments of the optimizers stay.
        """
        return next((one.lr(self.last_step) for one in self._learning.gradient_steps.values()), math.nan)

    @lr.setter
    def lr(self, lr: Scheduled) -> None:
        name, steps = type(self).__name__, self._learning.gradient_steps.values()
        schedule = as_schedule(name, "lr", lr, low=0)
        with Checks(name) as checks:
            rule = ".lr has no gradient step to set it of: give add_gradient_step an optimizer with it, Adam(lr)"
            checks.require(len(steps) > 0, rule)
        for gradient_step in steps:
            gradient_step.use_lr(schedule)

    @property
    def state_size(self) -> int:
        """S, of the state of a row that `act` carries from step to step; 0 without one."""
        return self._network_state.size

    @property
    def extras_spec(self) -> Mapping[str, ArraySpec]:
        """Columns that `act` returns with each action, to be stored."""
        return self._extras_spec

    def explore_metrics(self, step: int) -> dict[str, float]:
        """Return metrics of exploration at an environment step."""
        return {}

    @overload
    def predict(
        self, obs: Obs, *, explore: bool = False, return_extra: Literal[False] = False, state: Any = None
    ) -> Any: ...

    @overload
    def predict(
        self, obs: Obs, *, explore: bool = False, return_extra: Literal[True], state: Any = None
    ) -> tuple[Any, ...]: ...

    @checked
    def predict(self, obs: Obs, *, explore: bool = False, return_extra: bool = False, state: Any = None) -> Any:
        """Choose an action for one observation, or actions [K, ...] for K of them; in a Box always inside the space.

        Actions are the environment's own: those of a Discrete space begin at its start, and those of a Dict or Tuple
        are nested like it, with leaves [K, ...].

        Args:
            obs: one observation, or K of them, as the environment returns them.
            explore: whether to explore; if not, nothing random is sampled.
            return_extra: return (action, extra). `extra` has arrays of the same leading shape by name: what the action
                was chosen by ("q_values" of Q-learners; "probability" of every Discrete action, else "numbers" of the
                distribution, and "value" of actor-critics), the columns that `act` stores with it ("log_prob",
                "policy_action"), and "action_prob", the probability with which this call took a Discrete action, where
                it is known. This takes a second forward pass.
            state: of a policy that carries one, which returns (action, state), or (action, state, extra): the state
                that the last call for these episodes returned, None where they start.
        """
        if state is not None and self.state_size == 0:
            raise ConfigError(
                f"{type(self).__name__}.predict(state=) is of policies that carry a state, this one has none: leave it "
                "out"
            )
        if self.observation_space is None:
            raise ConfigError(f"{type(self).__name__}.predict needs an observation_space: give one at construction")
        rows, is_one = self._read("predict", obs)
        output = self.act(rows, step=self.last_step, explore=explore, state=state)
        check_act_output(self, output)
        structure = structure_of(self.action_space)
        action = output.action[0] if is_one else output.action
        action = action if structure is None else structure.unpack(action)
        results = (action,) if self.state_size == 0 else (action, output.state)
        if not return_extra:
            if len(results) == 2:
                return results
            if np.shape(action)[:1] == (2,) and discards_second("trainkit.core.signatures"):
                raise ConfigError(
                    f"{type(self).__name__}.predict returns the action alone, and `action, _ = ...` would split its "
                    "two parts: write action = policy.predict(obs); policies that carry a state return (action, state)"
                )
            return action
        extra = {**self._greedy_outputs(rows, state), **output.extras}
        extra |= self._action_prob(rows, output.action, explore) if state is None else {}
        columns = {name: np.asarray(column)[0] if is_one else np.asarray(column) for name, column in extra.items()}
        return *results, columns

    def _read(self, method: str, obs: Any) -> tuple[Obs, bool]:
        """Return one observation or K of them as rows [K, ...], checked in full, and whether it was one.

        Without an observation space they are rows as they are given.

        Raises:
            SpaceMismatchError: they are not of the observation space.
        """
        reader = self._observations
        if reader.space is None:
            return obs if isinstance(obs, (dict, tuple)) or hasattr(obs, "dtype") else np.asarray(obs), False
        rows, is_one = reader.read(f"{type(self).__name__}.{method}", obs)
        return (tree.map_tree(lambda leaf: leaf[None], rows) if is_one else rows), is_one

    def _rows_to_act_on(self, obs: Obs, env_ids: NDArray[np.intp] | None) -> Obs:
        """Return the rows [K, ...] of a call of `act`: those of environments as they are, others checked in full.

        Raises:
            SpaceMismatchError: they are one observation, or not of the observation space.
        """
        reader = self._observations
        return obs if env_ids is not None and reader.fits(obs) else reader.rows(f"{type(self).__name__}.act", obs)

    def _greedy_outputs(self, obs: Obs, state: Any) -> dict[str, NDArray[Any]]:
        """Return the outputs that greedy actions are chosen by; empty if the policy has no `greedy`."""
        if not isinstance(self, HasGreedy):
            return {}
        given = (obs,) if state is None else (obs, np.asarray(state, np.float32))
        with torch.no_grad():
            outputs = self.greedy(*to_device(given, self.device))
        return {name: leaf.cpu().numpy() for name, leaf in outputs.items() if name not in ("action", "state_out")}

    def _action_prob(self, obs: Obs, action: NDArray[Any], explore: bool) -> dict[str, NDArray[np.float64]]:
        """Return the column "action_prob" [K] of these actions; empty if it is unknown."""
        if not isinstance(self.action_space, spaces.Discrete):
            return {}
        try:
            probability = self.action_probability(obs, step=self.last_step, explore=explore)
        except ConfigError:
            return {}
        return {ACTION_PROB: probability[np.arange(len(action)), action]}

    def settings(self) -> dict[str, Plain]:
        """Return every setting by name, in plain values, for the record of a run: see `Trainer.describe`."""
        return settings_of(self, self._learning)

    # ---- spaces and devices ----

    def check_spaces(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        """Raise for spaces that differ from the policy's or do not fit its networks, else store them.

        Modules that are not on the device yet are moved there.
        """
        self._take_in_modules()
        if self.auxiliary is not None and not any(
            isinstance(one.loss, AuxiliaryLoss) for one in self._learning.gradient_steps.values()
        ):
            raise ConfigError(
                f"{type(self).__name__}.auxiliary has no effect: name the network that has the encoder, "
                "add_gradient_step(..., features_of=network)"
            )
        check_same_spaces(self, observation_space, action_space)
        self.check_networks(observation_space, action_space)
        if self._action_space is None:
            self._action_scale = action_scale_for(action_space, scaling=self._action_scaling)
        self._observations, self._action_space = ObservationReader(observation_space), flat_actions(action_space)

    def check_networks(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        """Raise for spaces that do not fit the networks, by a forward pass on one blank observation."""

    @property
    def engine(self) -> Engine:
        """The engine that executes losses and forward passes: see `policy.engine.name` and `policy.engine.reason`."""
        return self._engine

    @engine.setter
    def engine(self, wanted: EngineName) -> None:
        self._use_engine(wanted)

    def _use_engine(self, wanted: str) -> None:
        self._engine = engine_for(self, wanted, self.device, self._precision, self._ignored)
        self._check_steps()

    def _check_steps(self) -> None:
        """Let the engine check the gradient steps."""
        self._engine.check_steps(list(self._learning.gradient_steps.values()))

    @property
    def precision(self) -> Precision:
        """The precision of networks' products while they learn."""
        return self._precision.name

    @precision.setter
    def precision(self, precision: Precision) -> None:
        before, self._precision = self._precision, precision_for(self, precision, self.device)
        try:
            self._use_engine(self._engine.wanted)
        except ConfigError:
            self._precision = before
            raise

    @property
    def n_threads(self) -> int:
        """The number of threads torch computes on, in the whole process; may be set."""
        return torch.get_num_threads()

    @n_threads.setter
    def n_threads(self, count: int) -> None:
        torch.set_num_threads(count)

    def enter(self, *, training: bool) -> None:
        """Switch to training or evaluation mode, if a module depends on it."""
        if self._depends_on_mode and self.training != training:
            self.train(training)

    def enter_step(self, gradient_step: GradientStep) -> None:
        """Switch the module of a gradient step to the mode that it learns in, and all others to evaluation mode."""
        if self._depends_on_mode:
            self.enter(training=False)
            gradient_step.module.train(gradient_step.training)
            self.training = True  # until `enter` switches all modules back

    @cached_property
    def _depends_on_mode(self) -> bool:
        """Whether a module may depend on the mode: torch's simple layers do not."""
        kinds = {type(module) for module in self.modules() if module is not self} - _MODELESS
        return any(map(may_have_modes, kinds))

    def features(self, obs: Obs) -> Any:
        """Return raw observations [K, ...] as features on the device."""
        return self.preprocess(to_device(obs, self.device))

    def tensors(self, batch: TransitionBatch) -> TensorBatch:
        """Return a batch on the device with observations as features, for a custom `update`."""
        columns = to_device(self._columns(batch), self.device, self._learning.memory)
        return tensor_batch(with_frames(columns, batch.obs_fields, frames_of(batch)), self.preprocess)

    @property
    def batch_memory(self) -> Allocate | None:
        """Makes arrays for batches in memory that the device reads; None on the CPU."""
        return None if self.device == CPU else self._learning.memory.empty

    def _columns(self, batch: Batch) -> Any:
        """Return a batch's columns, in the order in which `rows` takes them."""
        self._learning.divergence.slots = batch.slots
        missing = [name for name in self.columns if name not in batch.extras]
        if missing:
            raise ConfigError(
                f"{type(self).__name__}.columns names {missing}, which the batch does not have: sample it with "
                "columns=policy.columns"
            )
        columns = self._network_state.to_columns(type(self).__name__, batch)
        return columns if isinstance(batch.obs, np.ndarray) else frame_indices(columns)

    # ---- running statistics ----

    @property
    def observes(self) -> bool:
        """Whether the policy has running statistics, of observations or of returns."""
        return self.statistics.observes

    def observe(self, transition: Transition) -> None:
        """Add K rows to the running statistics, and use these from now on."""
        self.statistics.observe(transition)
        self.statistics.fold()

    def merge_statistics(self, other: "Policy") -> None:
        """Merge all rows that another policy's running statistics have observed, exactly.

        For actors of your own: give each a policy of the same kind that has observed nothing, let it observe, merge it
        into the learner, and give the actor a new one (or the same rows are counted again).

        Raises:
            ConfigError: the policies do not normalize the same.
        """
        self.statistics.merge(other.statistics)

    def cut(self, env_ids: NDArray[np.intp]) -> None:
        """End the open episodes of these environments in the running statistics."""
        self.statistics.cut(env_ids)

    def fit_statistics(self, dataset: Dataset) -> None:
        """Compute the running statistics that have observed nothing yet from a whole dataset."""
        self.statistics.fit(dataset)

    # ---- learning ----

    @checked
    def add_gradient_step(
        self,
        name: str,
        module: nn.Module,
        optimizer: OptimizerSpec,
        clip: Clip | None = None,
        *,
        loss: Callable[[Any], Loss] | None = None,
        flush_denormals: bool = True,
        features_of: nn.Module | None = None,
        every: int = 1,
        after: Callable[[Parameters], Parameters] | None = None,
        reads: str | None = None,
        training: bool = True,
    ) -> None:
        """Add a gradient step on a module's parameters to every update, after those added before.

        Args:
            name: of the step, for `minimize` and metrics.
            module: its initial weights are drawn if the policy is seeded. It and all modules that the policy has now
                are moved to the device.
            optimizer, clip, flush_denormals, after, training: as in `GradientStep`.
            loss: rows -> `Loss`; None for a step that your `update` takes by `minimize`.
            features_of: the network whose `encoder` gives the features of the policy's `auxiliary`, which is added to
                this loss; None adds nothing.
            every: the step is part of each update whose number, from 1, is a multiple of it, as that of
                `Target(every=, unit="updates")`. The metrics of the others are missing in an update without it.
            reads: the name of an earlier step with the same `every`, whose loss's outputs this loss reads in
                `rows.inputs`.

        Raises:
            ConfigError: there is a gradient step of this name, or `reads` names none, or one with another `every`; or
                a module was assigned to an attribute that the policy has.
        """
        self._check_new("gradient_step", name, self._learning.gradient_steps)
        self._take_in_modules()
        if reads is not None:
            self._check_reads(name, reads, every)
        module.to(self.device)
        self._drawn[name] = trained = module
        if self.auxiliary is not None and features_of is not None:
            assert loss is not None, "an auxiliary loss is added to another"
            loss = AuxiliaryLoss(loss, self.auxiliary, encoder_of(type(self).__name__, features_of))
            if isinstance(self.auxiliary, nn.Module) and self.auxiliary not in set(module.modules()):
                self._drawn["auxiliary"] = self.auxiliary.to(self.device)
                trained = nn.ModuleList([module, self.auxiliary])
                after = None if after is None else _of_first(after)
        how: dict[str, Any] = {"flush_denormals": flush_denormals, "every": every, "after": after}
        how |= {"reads": reads, "training": training}
        self._learning.gradient_steps[name] = GradientStep(trained, optimizer, clip, loss=loss, **how)
        self._check_steps()
        if self._seed is not None:
            for own_name in {name, "auxiliary"} & self._drawn.keys():
                self._draw_weights(own_name, self._drawn[own_name], self._seed)

    def add_target(self, name: str, online: nn.Module, spec: Target) -> nn.Module:
        """Return a target network of a module, which updates move as specified; store it as an attribute.

        `name` is the target's in metrics and checkpoints; gradient steps have names of their own.

        Raises:
            ConfigError: there is a target of this name, or a module was assigned to an attribute that the policy has.
        """
        self._check_new("target", name, self._learning.targets)
        self._take_in_modules()
        self._learning.targets[name] = TargetNetwork(online.to(self.device), spec)
        return self._learning.targets[name].network

    def add_part(self, part: LearningPart) -> None:
        """Let a part act before and after the updates; only one may watch metrics."""
        self._parts = (*self._parts, part)
        if part.watched is not None:
            self._learning.watched = part.watched

    @property
    def last_target_update(self) -> int | None:
        """The environment step (offline: the update) at which a target network was updated last; None before."""
        steps = [one.last_update for one in self._learning.targets.values()]
        return max((step for step in steps if step is not None), default=None)

    def _check_reads(self, name: str, reads: str, every: int) -> None:
        """Raise unless an earlier gradient step of this name is taken in the same updates."""
        subject, known = (
            f"{type(self).__name__}.add_gradient_step({name!r}, reads={reads!r})",
            self._learning.gradient_steps,
        )
        if reads not in known:
            raise ConfigError(f"{subject} must name an earlier gradient step, got {reads!r}: there are {list(known)}")
        if known[reads].every != every:
            raise ConfigError(
                f"{subject} must be taken in the same updates as {reads!r}, every {known[reads].every}, got "
                f"every={every}: give both the same"
            )

    def _check_new(self, kind: str, name: str, known: Mapping[str, object]) -> None:
        """Raise if there is a gradient step or a target of this name, which another one would replace."""
        if name in known:
            raise ConfigError(
                f"{type(self).__name__}.add_{kind}: there is one named {name!r} already, and a second would replace "
                f"it: give it another name than {', '.join(map(repr, known))}"
            )

    def _take_in_modules(self) -> None:
        """Check the names of all modules that the policy has now, and move those that are elsewhere to its device."""
        self._check_names()
        if any(tensor.device != self.device for tensor in chain(self.parameters(), self.buffers())):
            self.to(self.device)

    def _check_names(self) -> None:
        """Raise `ConfigError` for a module under a name that reads something else of the class.

        torch stores a module that is assigned without looking at the class, whose properties do not see it.
        """
        for name, module in self._modules.items():
            if hasattr(type(self), name) and not self._reads(name, module):
                raise ConfigError(
                    f"{type(self).__name__}.{name} cannot be assigned, got {type(module).__name__}: reading it returns "
                    f"what the class has under this name, never the module: del policy.{name}, and give the module "
                    "another name"
                )

    def _reads(self, name: str, module: nn.Module | None) -> bool:
        """Return whether reading a name returns this module."""
        try:
            return getattr(self, name) is module
        except ConfigError:  # of a property that has nothing to return
            return False

    def check_modules(self) -> None:
        """Check that each gradient step and target updates a module of the policy; trainers do so as an epoch starts.

        Raises:
            ConfigError: a module was replaced by another one, which is not updated, or was assigned to an attribute
                that the policy has.
        """
        self._check_names()
        parameters, modules = set(self.parameters()), set(self.modules())
        moved = {
            name: set(one.module.parameters()) <= parameters for name, one in self._learning.gradient_steps.items()
        }
        moved |= {f"target {name}": one.network in modules for name, one in self._learning.targets.items()}
        lost = [name for name, is_there in moved.items() if not is_there]
        if lost:
            raise ConfigError(
                f"{type(self).__name__}: the module of {', '.join(lost)} is none of the policy's any more: another one "
                "was assigned, which updates do not move: load weights with load_weights, or make another policy"
            )

    @property
    def gradient_steps(self) -> Mapping[str, GradientStep]:
        """The gradient steps of an update by name, in their order."""
        return MappingProxyType(self._learning.gradient_steps)

    @property
    def learning_methods(self) -> set[str]:
        """The methods by which the policy learns: "update" from batches, "learn" from rollouts; may be empty."""
        has = {
            "update": self._learning.has_loss or type(self).update is not Policy.update,
            "learn": hasattr(self, "learn"),
        }
        return {name for name, is_there in has.items() if is_there}

    def loss_inputs(self, n_rows: int, *, step: int) -> dict[str, Any]:
        """Return the inputs of losses in addition to the batch, such as scheduled numbers, for `rows.inputs`.

        Everything that changes between updates must be here, in `loss_noise`, or in a parameter or buffer; any other
        number that a loss reads is a constant of its recording. By name: numbers, which become scalars in float32,
        arrays, and tensors on the device.

        Args:
            n_rows: B, of the rows that losses are given.
            step: the environment step.
        """
        return {}

    def loss_noise(self, n_rows: int) -> dict[str, Any]:
        """Sample the random inputs of losses by name, for `rows.inputs`, with `self.generator` on the device.

        It is called after `loss_inputs`, once per update. A CUDA graph records it, so that it must not depend on what
        changes between updates; `loss_inputs` may sample, too, with more launches.

        Args:
            n_rows: B, of the rows that losses are given.
        """
        return {}

    def rows(self, columns: Any, inputs: Any, frames: Any = None, module: nn.Module | None = None) -> Any:
        """Return an update's columns and inputs on the device as the argument of losses.

        Args:
            columns, inputs: on the device.
            frames: the images that columns of indices refer to, as `frames_of` returns them.
            module: the only one whose states need gradients; None for all.
        """
        columns = with_frames(columns, self.batch_type.obs_fields, frames)
        return self._network_state.to_rows(columns, self.preprocess, module)._replace(inputs=inputs)

    @property
    def batch_type(self) -> type[Batch]:
        """The class of what `sample_batch` returns."""
        return self._network_state.batch_type

    def sample_batch(self, buffer: Any, batch_size: int | None, *, step: int) -> Batch:
        """Sample what the policy learns from, rows unless its networks carry a state.

        Args:
            buffer: to sample from.
            batch_size: B; None samples every row once.
            step: the environment step.
        """
        how: dict[str, Any] = {"horizon": self.horizon, "step": step, "columns": self.columns}
        batch: Batch = self._network_state.sample_batch(buffer, batch_size, **how)
        return batch

    def check_draw(self, checks: Checks, buffer: Any, batch_size: int | None, per_round: int = 1) -> None:
        """Note a problem if the policy cannot learn from a buffer in this way, or in rounds of several batches."""
        self._network_state.check_draw(checks, type(self).__name__, buffer, batch_size, per_round)

    def before_updates(self, buffer: Any) -> None:
        """Let parts of the policy adapt to the rows in a buffer, as the support of a distribution of returns.

        Trainers call this before the first update.
        """
        for part in self._parts:
            part.before_updates(self, buffer)
            user_code.has_run()  # as a part may be a user's, and changes what it likes

    def extremes(self, bounds: tuple[float, float]) -> tuple[float, float]:
        """Return the smallest and the largest number of all processes that learn together."""
        lows, highs = zip(*self._learning.process_group.gather(bounds), strict=True)
        return min(lows), max(highs)

    def update(self, batch: Batch, *, step: int) -> UpdateResult:
        """Take the gradient steps that are due in their order, move the target networks, and return the priorities.

        Raises:
            DivergedError: as `minimize`, which is not called here: the steps are taken by `engine.minimize`.
        """
        if not self._learning.has_loss:
            raise TypeError(f"{type(self).__name__} must define update, or give add_gradient_step a loss")
        frames = None if isinstance(batch.obs, np.ndarray) else frames_of(batch)
        if frames is not None and self.device == CPU:
            batch, frames = gathered(batch), None
        for part in self._parts:
            part.before_update(self, batch)
            user_code.has_run()
        n_rows = self._network_state.n_rows(len(batch))
        result, _ = self._learning.update(self._columns(batch), n_rows, frames, step=step)
        for part in self._parts:
            part.after_update(self, batch)
            user_code.has_run()
        return result

    def minimize(self, name: str, loss: Callable[[], Any], *, step: int) -> Any:
        """Take one gradient step on `loss`, a mean over rows; it may return `(loss, other)`, and `other` is returned.

        For an `update` of your own, which torch executes. Metrics are loss, grad_norm (before the clip) and lr, with
        the step's name before them if there are several.

        Raises:
            DivergedError: on the CPU, when the loss or a gradient is not finite; nothing has changed then. On CUDA
                such a step is not applied either, and the next `check_divergence` or `read_metrics` raises. Not if
                `on_nan` is "skip".
            DeviceError: the device does not have enough memory; nothing has changed then.
        """
        return self._learning.minimize(name, loss, step=step)

    def end_update(
        self, *, step: int, priority: Tensor | NDArray[np.float32] | None = None, **metrics: Scalar
    ) -> UpdateResult:
        """Count the update, move the target networks, and record metrics for `read_metrics`.

        Args:
            step: the environment step.
            priority: [B], for a prioritized buffer.
            metrics: scalars on the device; each mean is over the updates that have it.
        """
        return self._learning.end(priority, metrics, step=step)

    @property
    def on_nan(self) -> OnNan:
        """What happens to an update whose loss or gradient is not finite, which is never applied; may be set.

        "raise", or "skip" up to ten in a row, with the share of `skipped` updates among the metrics.
        """
        return self._learning.divergence.on_nan

    @on_nan.setter
    def on_nan(self, on_nan: OnNan) -> None:
        with Checks(type(self).__name__) as checks:
            checks.one_of("on_nan", on_nan, ["raise", "skip"])
        self._learning.divergence.on_nan = on_nan

    def check_divergence(self) -> None:
        """Raise `DivergedError` for updates that could not be applied; trainers call this once per collect.

        It does not wait for the device: it raises for updates before the last call. On the CPU `minimize` has raised.
        """
        self._learning.check_divergence()

    def read_metrics(self) -> dict[str, float]:
        """Return the means over all updates since the last call, and reset them; empty if there were none."""
        return self._learning.read_metrics()

    def join(self, process_group: ProcessGroup) -> None:
        """Learn with other processes from now on, by averaged gradients, from the weights of the first."""
        with torch.no_grad():
            for tensor in self.state_dict().values():
                process_group.copy(tensor)
        self.statistics.join(process_group)
        self._learning.process_group = process_group
        for gradient_step in self._learning.gradient_steps.values():
            gradient_step.process_group = process_group
        self._check_steps()

    # ---- seeds ----

    def seed(self, root: int) -> None:
        """Restart all random streams, and draw initial weights again unless they were trained or loaded."""
        self._seed = root
        self.start_streams(root)
        self._is_seeded = True
        for name, module in self._drawn.items():
            self._draw_weights(name, module, root)
        if missed := self._missed_by_seed():
            _log.warning(
                "%s: the seed does not reach the weights of %s, which no gradient step or target has: those were drawn "
                "without a seed. Give the policy a seed at construction, or copy them after it has one",
                *(type(self).__name__, ", ".join(missed)),
            )

    def _missed_by_seed(self) -> list[str]:
        """Name the networks with initial weights that `seed` does not draw, such as copies that a constructor made."""
        drawn = [part for module in self._drawn.values() for _, part in seeded_parts(module)]
        reached = {one for part in drawn for one in part.modules()}
        reached |= {one for target in self._learning.targets.values() for one in target.network.modules()}
        unreached = [(name, one) for name, one in self.named_modules() if isinstance(one, SeededModule)]
        return [name for name, one in unreached if one not in reached and any(True for _ in one.parameters())]

    def _draw_weights(self, name: str, module: nn.Module, root: int) -> None:
        """Draw the untouched parts of a trained module, each from a stream of its own."""
        for path, part in seeded_parts(module):
            if part.is_untouched:
                part.draw(seeding.derive(root, "policy", "weights", name + path))
                for target in self._learning.targets.values():
                    if part in set(target.online.modules()):
                        target.copy()

    def reinitialize(self, name: str) -> None:
        """Draw the weights of a gradient step's networks again, from the policy's noise, and forget their moments.

        Targets become copies of them. Counters, schedules and statistics of observations stay, and so does an encoder
        that was given as a module, of which there is no factory.

        Raises:
            ConfigError: some of the parameters are of no `SeededModule`, which knows how to draw them.
        """
        step = self.gradient_steps[name]
        parts = self.drawable_parts(name)
        drawn = {parameter for part in parts for parameter in part.parameters()}
        for part in parts:
            part.draw(int(torch.randint(2**63 - 1, (), generator=self.generator, device=self.device)))
        with torch.no_grad():
            for tensor in step.module.state_dict().values():
                self._learning.process_group.copy(tensor)
        step.forget()
        for target in self._learning.targets.values():
            if not drawn.isdisjoint(target.online.parameters()):
                target.copy()
        user_code.has_run()  # as the parameters were written

    def drawable_parts(self, name: str) -> list[SeededModule]:
        """Return the modules whose weights `reinitialize` draws.

        Raises:
            ConfigError: some of the parameters are of no `SeededModule`, which knows how to draw them.
        """
        module = self.gradient_steps[name].module
        parts = [part for _, part in seeded_parts(module)]
        drawn = {parameter for part in parts for parameter in part.parameters()}
        rest = [path for path, parameter in module.named_parameters() if parameter not in drawn]
        if rest:
            raise ConfigError(
                f"{type(self).__name__}.reinitialize({name!r}) cannot draw {rest[0]} again: make "
                f"{type(module).__name__} a trainkit.nets.SeededModule, which draws its parameters"
            )
        return parts

    def start_streams(self, root: int) -> None:
        """Restart the random streams from a root seed, and nothing else."""
        self.rng = seeding.generator(root, "policy", "explore")
        self.generator = torch.Generator(self.device).manual_seed(seeding.derive(root, "policy", "noise"))
        self._layer_streams = LayerStreams(seeding.derive(root, "policy", "layers"), self.device)

    def layers_draw(self) -> AbstractContextManager[None]:
        """Return a context in which layers that draw from torch's global generators continue the policy's streams."""
        return self._layer_streams.drawn_from() if self._learning.drops else nullcontext()

    def streams_state(self) -> dict[str, Any]:
        """Return the state of the random streams."""
        noise = {"device": self.device.type, "state": self.generator.get_state()}
        return {"rng": self.rng.bit_generator.state, "noise": noise}

    def load_streams_state(self, state: Mapping[str, Any]) -> None:
        """Load the state of the random streams; noise saved on another type of device is not loaded."""
        self.rng.bit_generator.state = state["rng"]
        if state["noise"]["device"] == self.device.type:
            self.generator.set_state(torch.as_tensor(state["noise"]["state"]))

    # ---- saving and loading ----

    @checked
    def save(self, path: str | Path, *, compact: bool = False) -> Path:
        """Save everything that acting needs in a folder for `load_policy`, replacing a policy saved there before.

        Args:
            path: of the folder.
            compact: save weights in half precision and no target networks, which become copies of the online ones: a
                quarter of the size, and actions that can differ where two are nearly equal.
        """
        state = acting_state(self) | ({"weights": self._compact_weights()} if compact else {})
        return save_checkpoint(path, {"policy": state}, about_policy(self))

    def on_cpu(self) -> "Policy":
        """Return this policy, or an equal one on the CPU, to be sent to another process."""
        if self.device.type == "cpu":
            return self
        with tempfile.TemporaryDirectory() as folder:
            copied: Policy = load_policy(self.save(Path(folder) / "policy"), device="cpu")
        if hasattr(self, "exploration"):
            copied.exploration = self.exploration
        return copied

    def _compact_weights(self) -> dict[str, Tensor]:
        """Return the weights in half precision, buffers unchanged, without target networks."""
        targets = {id(target.network): target.network for target in self._learning.targets.values()}
        left_out = tuple(f"{name}." for name, module in self.named_modules() if id(module) in targets)
        parameters = {name for name, _ in self.named_parameters()}
        kept = {name: tensor for name, tensor in self.state_dict().items() if not name.startswith(left_out)}
        return {name: tensor.half() if name in parameters else tensor for name, tensor in kept.items()}

    def get_weights(self) -> dict[str, NDArray[Any]]:
        """Return copies of all weights by name, including targets and running statistics."""
        return {name: as_array(tensor) for name, tensor in self.state_dict().items()}

    def set_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Load copies of the weights that `get_weights` of an equal policy returned, all or nothing.

        Raises:
            CheckpointError: as `load_weights`.
        """
        self.load_weights(weights)

    @checked
    def load_weights(
        self,
        weights: Mapping[str, Tensor | NDArray[Any]] | str | Path,
        *,
        strict: bool = True,
        key_map: KeyMap | None = None,
    ) -> dict[str, str]:
        """Load the weights of a policy of the same parameters, all or nothing.

        A target network that is missing in them becomes a copy of what its online network is given.

        Args:
            weights: its `state_dict()`, or where it is: a checkpoint, a folder of them, whose newest is read, a file
                that `torch.save` wrote it to, or a `.safetensors` file.
            strict: reject all of them if one does not fit; if not, those that fit are loaded.
            key_map: from their names to ours, a dict or a function; None leaves one out, and what a dict does not name
                keeps its name.

        Returns:
            {name: why} of what did not fit and is unchanged; empty if `strict`.

        Raises:
            CheckpointError: one is missing, unknown, of another shape or not finite; or none fits.
            ConfigError: `key_map` does not map their names.
            MissingExtraError: safetensors is not installed.
        """
        networks = [(target.online, target.network) for target in self._learning.targets.values()]
        return load_weights(self, weights, networks, strict=strict, key_map=key_map)

    def training_state(self) -> dict[str, Any]:
        """Return everything that training continues from: weights, moments, counters, random streams."""
        layers = {"layers": self._layer_streams.state_dict()} if self._learning.drops else {}
        return (
            action_units(self)
            | layers
            | {
                "weights": self.state_dict(),
                **self._learning.state_dict(),
                "n_updates": self.n_updates,
                "last_step": self.last_step,
                "streams": self.streams_state(),
                "statistics": self.statistics.state_dict(),
                "engine": self._engine.state_dict(),
            }
        )

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Continue from the saved state of a policy made of the same parts."""
        check_action_units(self, state)
        load_weights(self, state["weights"], [])
        self._learning.load_state_dict(state)
        self.n_updates, self.last_step = state["n_updates"], state["last_step"]
        self.load_streams_state(state["streams"])
        self._layer_streams.load_state_dict(state.get("layers", {}))
        self.statistics.load_state_dict(state["statistics"])
        self._engine.load_state_dict(state["engine"])
        self._is_seeded = True

    def extra_repr(self) -> str:
        """Return the first line of `repr(policy)`, before its modules."""
        return f"device={str(self.device)!r}, engine={self._engine.wanted!r}, precision={self.precision!r}"

    def _repr_html_(self) -> str:
        """Return a table of the policy for notebooks."""
        rows: dict[str, Any] = {
            "observation_space": self.observation_space,
            "action_space": self.action_space,
            "horizon": self.horizon,
            "device": self.device,
            "precision": self.precision,
            "n_updates": self.n_updates,
        }
        for name, part in self.named_children():
            rows[name] = f"{type(part).__name__}, {sum(one.numel() for one in part.parameters()):,} parameters"
        return html_table(type(self).__name__, rows.items())
