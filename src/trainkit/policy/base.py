"""What every policy is: a module that acts on observations, and keeps the books of what it learns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import torch
from gymnasium import Space, spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit.core import seeding, tree
from trainkit.core.data import (
    ACTION_PROB,
    COLUMN_SPECS,
    ActOutput,
    ArraySpec,
    Horizon,
    Obs,
    Transition,
    TransitionBatch,
)
from trainkit.core.errors import Checks, ConfigError, SpaceMismatchError, check_flag
from trainkit.core.protocols import Dataset
from trainkit.core.return_scale import ReturnScale
from trainkit.core.signatures import checked
from trainkit.core.spaces import check_space_keys
from trainkit.core.structured_actions import flat_actions, structure_of
from trainkit.engine.cuda_graph import CudaGraph
from trainkit.engine.device import (
    CPU,
    Staging,
    TensorBatch,
    in_float32,
    resolve_device,
    rows_of,
    scalar,
    to_device,
    with_room,
)
from trainkit.engine.device_frames import frames_of, gathered, places_of
from trainkit.engine.engine import Engine, EngineName
from trainkit.engine.gradient_step import Adam, Clip, GradientStep, Scalar, Taken
from trainkit.engine.loss import Loss, objective
from trainkit.nets.action_scale import ActionScale
from trainkit.nets.preprocess import WithoutMask
from trainkit.nets.weights import seeded_parts
from trainkit.policy.divergence import OnNan, Skips, diverged, diverged_among
from trainkit.policy.export import Exportable, export_onnx
from trainkit.policy.meter import Meter, UpdateResult
from trainkit.policy.refusals import read_rows
from trainkit.policy.saved import Saved
from trainkit.policy.showing import policy_table
from trainkit.policy.statistics import Statistics
from trainkit.policy.target import Target, TargetNetwork
from trainkit.policy.torch_threads import Threaded

_NUMBERS = int, float, np.number


@checked
class Policy(Saved, Threaded):
    """Base of the policies: spaces, device, random streams, `predict`, and the books of learning.

    A subclass gives `act`, and lists its gradient steps and targets when it is built (`add_gradient_step`,
    `add_target`). An update takes the gradient steps that have a loss in their order, then the targets follow; counts,
    metrics, seeds and checkpoints work by themselves. Acting is in eval mode, updating in train mode; noise follows
    `explore`, never the mode.

    A subclass may write `update` itself instead: it takes its gradient steps with `minimise` and ends with
    `end_update`, and torch executes it, whatever the engine.

    Args:
        observation_space: of one environment, for `predict` and checks; a collector tells it otherwise.
        action_space: of one environment.
        preprocess: from raw observation tensors to what networks take; default: the mask taken out.
        horizon: the return to learn from.
        device: "auto", "cpu", "cuda" or a torch device.
        seed: root of initial weights, noise and exploration; None takes the trainer's. A module of your own is
            initialised by you.
        engine: what executes losses and forward passes: "auto", "torch", "numpy", "compile" or "cuda_graph", see
            `trainkit.engine`. May be set between any two steps.

    Attributes:
        columns: names of stored columns that updates need, besides the usual ones: of `extras_spec`, of
            `Collector(extra_columns=)`, or of those every buffer has, such as "t" (see `ReplayBuffer.sample`). Trainers
            ask the buffer for them; they arrive in `batch.extras`, and on the device in `self.tensors(batch).extras`.
        n_updates: updates ever taken.
        on_nan: what becomes of an update whose loss or gradient is not finite, which is never taken: "raise", or
            "skip" it, up to ten in a row, and show the share of `skipped` ones. May be set between any two steps.
        last_step: the environment step of the last one, where schedules are read outside of training.
        rng: numpy's stream, for exploring.
        generator: torch's stream, on the device, for noise.
        action_scale: the map from the policy's units to actions with floats of a Box, None for other spaces and
            policies without one.
        recipe: how `for_envs` made it, None where it did not.
        unwatched: names of attributes that change while a policy acts and learns, and that no loss reads: the engine
            records a function again when any other attribute changes.
    """

    columns: Sequence[str] = ()
    unwatched: frozenset[str] = frozenset()

    def __init__(
        self,
        *,
        observation_space: Space[Any] | None = None,
        action_space: Space[Any] | None = None,
        preprocess: nn.Module | None = None,
        horizon: Horizon | None = None,
        device: str | torch.device = "auto",
        seed: int | None = None,
        engine: EngineName = "auto",
    ) -> None:
        checks = Checks(type(self).__name__)
        if seed is not None:
            checks.integer("seed", seed, low=0)
        checks.gather(lambda: check_space_keys(observation_space, f"{type(self).__name__}.observation_space"))
        checks.done()
        super().__init__()
        self.observation_space = observation_space
        self.action_space = None if action_space is None else flat_actions(action_space)
        self.action_scale: ActionScale | None = None
        self.preprocess = WithoutMask() if preprocess is None else preprocess
        self.horizon = Horizon() if horizon is None else horizon
        if self.horizon.reward == "return_scale":
            self.horizon = replace(self.horizon, reward=ReturnScale(self.horizon.gamma))  # whose state is ours
        self.device = resolve_device(device)
        self.statistics = Statistics(self.preprocess, self.horizon, self.device)
        self.is_seeded = seed is not None
        self._seed = seed  # for networks that are added later
        self.start_streams(seeding.fresh_root() if seed is None else seed)
        self.n_updates = self.last_step = self._n_updates_read = 0
        self.on_nan: OnNan = "raise"
        self._skips = Skips(self.device)
        self._slots: NDArray[np.int64] | None = None  # of the rows that are learnt from
        self._gradient_steps: dict[str, GradientStep] = {}
        self._targets: dict[str, TargetNetwork] = {}
        self._meter = Meter()
        self._staging = Staging(self.device)
        self._extras_spec: Mapping[str, ArraySpec] = {}
        self._shown: dict[str, Scalar] = {}  # of the update that runs
        self._frames: Any = None  # what the places among the observations of the update that runs are of
        self._engine: Engine
        self._graph: CudaGraph | None
        self._of_base = frozenset(vars(self)) | {"_engine", "_graph", "_of_base", "recipe"}
        self.engine = engine

    _repr_html_ = policy_table

    @property
    def engine(self) -> Engine:
        """What executes losses and forward passes, and why that: `policy.engine.name`, `policy.engine.reason`."""
        return self._engine

    @engine.setter
    def engine(self, wanted: EngineName) -> None:
        self._engine = Engine(self, wanted, self.device, self._of_base | self.unwatched)
        self._graph = CudaGraph(self._recorded_steps, self) if wanted == "cuda_graph" else None
        for gradient_step in self._gradient_steps.values():
            gradient_step.use(**self._how)

    @property
    def _how(self) -> dict[str, bool]:
        """How gradient steps are computed where torch executes them."""
        return {"compile": self._engine.wanted == "compile", "recorded": self._engine.wanted == "cuda_graph"}

    @property
    def extras_spec(self) -> Mapping[str, ArraySpec]:
        """Columns that `act` gives with each action, to be stored; none unless a subclass says so."""
        return self._extras_spec

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
            obs: raw observations, as the environments gave them.
            step: the environment step, for schedules.
            explore: whether to explore; if not, nothing random is drawn.
            state: what the last call returned, None at first.
            starts: [K], whose episode begins here.
            env_ids: [K], which environments these rows are.
        """
        raise TypeError(f"{type(self).__name__} must define act")

    def action_probability(self, obs: Obs, *, step: int = 0, explore: bool = False) -> NDArray[np.float64]:
        """Return how likely each action is, [K, A], to be taken by `act` so called; refused where nobody can tell."""
        raise ConfigError(f"{type(self).__name__} cannot tell how likely each action is: only Discrete ones are listed")

    @overload
    def predict(self, obs: Obs, *, explore: bool = False, return_extra: Literal[False] = False) -> Any: ...

    @overload
    def predict(
        self, obs: Obs, *, explore: bool = False, return_extra: Literal[True]
    ) -> tuple[Any, dict[str, NDArray[Any]]]: ...

    def predict(self, obs: Obs, *, explore: bool = False, return_extra: bool = False) -> Any:
        """Choose an action for one observation, or actions [K, ...] for K of them; in a Box always inside the space.

        Where the environment's action space is a Dict or Tuple, actions are nested as it says, with leaves [K, ...].

        Args:
            obs: one observation, or K of them, as the environment gives them.
            explore: whether to explore; if not, nothing random is drawn.
            return_extra: return (action, extra), where `extra` holds arrays of the same leading shape by name: what the
                action was chosen by ("q_values" of Q-learners; "probability" of every Discrete action, else "numbers"
                of the distribution, and "value" of actor-critics), the columns that `act` stores with it ("log_prob",
                "policy_action"), and "action_prob", the probability with which this call took a Discrete action, where
                the policy can tell. This takes a second forward pass.
        """
        check_flag(self, "predict(explore=)", explore)
        check_flag(self, "predict(return_extra=)", return_extra)
        if self.observation_space is None:
            raise ConfigError(f"{type(self).__name__}.predict needs an observation_space: give one at construction")
        rows, is_one = read_rows(f"{type(self).__name__}.predict", obs, self.observation_space)
        if is_one:
            rows = tree.map_tree(lambda leaf: leaf[None], rows)
        output = self.act(rows, step=self.last_step, explore=explore)
        action = output.action
        structure = structure_of(self.action_space)
        chosen = action[0] if is_one else action
        chosen = chosen if structure is None else structure.unpack(chosen)
        if not return_extra:
            return chosen
        extra = {**self._reasons(rows), **output.extras, **self._chosen_probability(rows, action, explore)}
        told = {name: np.asarray(column)[0] if is_one else np.asarray(column) for name, column in extra.items()}
        return chosen, told

    def _reasons(self, obs: Obs) -> dict[str, NDArray[Any]]:
        """Return what greedy actions are chosen by, as `greedy` names it; nothing where a policy has none."""
        if not isinstance(self, Exportable):
            return {}
        with torch.no_grad():
            answer = self.greedy(to_device(obs, self.device))
        return {name: leaf.cpu().numpy() for name, leaf in answer.items() if name != "action"}

    def _chosen_probability(self, obs: Obs, action: NDArray[Any], explore: bool) -> dict[str, NDArray[np.float64]]:
        """Return the column "action_prob" [K] of these actions; nothing where the policy cannot tell."""
        if not isinstance(self.action_space, spaces.Discrete):
            return {}
        try:
            probability = self.action_probability(obs, step=self.last_step, explore=explore)
        except ConfigError:
            return {}
        return {ACTION_PROB: probability[np.arange(len(action)), action]}

    def export(self, path: str | Path) -> None:
        """Write the greedy policy as one ONNX file, preprocessing and mask inside; see `export_onnx`."""
        export_onnx(self, path)

    def check_spaces(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        """Refuse environments whose spaces are not those the policy was made for; take over what it was not told."""
        self._refuse_other_spaces(observation_space, action_space)
        self.observation_space, self.action_space = observation_space, flat_actions(action_space)

    def _refuse_other_spaces(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        pairs = {
            "observation_space": (self.observation_space, observation_space),
            "action_space": (self.action_space, flat_actions(action_space)),
        }
        wrong = [
            f"{type(self).__name__}.{name} is {own}, the environments' is {theirs}: make one fit the other"
            for name, (own, theirs) in pairs.items()
            if own is not None and own != theirs
        ]
        if wrong:
            raise SpaceMismatchError("\n".join(wrong))

    # ---- running statistics ----

    @property
    def observes(self) -> bool:
        """Whether there are statistics that learn from rows, of observations or of rewards."""
        return self.statistics.are_there

    def observe(self, transition: Transition) -> None:
        """Let running statistics learn from K new rows, and use them from now on."""
        self.statistics.note(transition)
        self.statistics.fold()

    def merge_statistics(self, other: "Policy") -> None:
        """Take in all that another policy's running statistics have observed, exactly, as if it had been seen here.

        For actors of your own: give each a policy of the same kind that has observed nothing, let it observe, merge it
        into the learner, and give the actor a new one (or the same rows are counted again).

        Raises:
            ConfigError: the policies do not normalize the same.
        """
        self.statistics.merge(other.statistics)

    def cut(self, env_ids: NDArray[np.intp]) -> None:
        """Hear that the episodes of these environments were ended where they are."""
        self.statistics.cut(env_ids)

    def study(self, dataset: Dataset) -> None:
        """Learn the statistics of a whole dataset, those that have learnt of nothing yet."""
        self.statistics.study(dataset)

    @cached_property
    def _has_modes(self) -> bool:
        """Whether there are modules besides our own, which know no modes, and torch's plainest."""
        parts = {type(part) for part in self.modules() if part is not self}
        plain = {nn.Linear, nn.Conv2d, nn.ModuleList}
        return any(not kind.__module__.startswith("trainkit.") and kind not in plain for kind in parts)

    # ---- learning ----

    @property
    def learns_by(self) -> set[str]:
        """The methods through which it learns: "update" from batches, "learn" from rollouts; none where it does not."""
        has_loss = any(gradient_step.loss is not None for gradient_step in self._gradient_steps.values())
        has = {"update": has_loss or type(self).update is not Policy.update, "learn": hasattr(self, "learn")}
        return {name for name, is_there in has.items() if is_there}

    def add_gradient_step(
        self,
        name: str,
        module: nn.Module,
        optimizer: Adam,
        clip: Clip | None = None,
        *,
        loss: Callable[[Any], Loss] | None = None,
        flush_denormals: bool = True,
    ) -> None:
        """Move a module's parameters in each update, after the steps that were added before; draw them if seeded.

        Args:
            name: of the step, for `minimise` and metrics.
            module: whose parameters to move, to the device.
            optimizer, clip, flush_denormals: as in `GradientStep`.
            loss: rows -> `Loss`. Rows are a `TensorBatch`, with what `loss_inputs` returns in `rows.inputs`. None for a
                step that an `update` of your own takes by `minimise`.
        """
        module.to(self.device)
        step = GradientStep(module, optimizer, clip, loss=loss, flush_denormals=flush_denormals, **self._how)
        self._gradient_steps[name] = step
        if self._seed is not None:
            self._draw_weights(name, self._seed)

    def add_target(self, name: str, online: nn.Module, spec: Target) -> nn.Module:
        """Return a delayed copy of a module that follows it at the end of updates; keep it as an attribute."""
        self._targets[name] = TargetNetwork(online.to(self.device), spec)
        return self._targets[name].network

    def features(self, obs: Obs) -> Any:
        """Return raw observations [K, ...] as what networks take, on the device."""
        return self.preprocess(to_device(obs, self.device))

    def tensors(self, batch: TransitionBatch) -> TensorBatch:
        """Return a batch on the device, its observations through the preprocessing."""
        columns = self._columns(batch)
        if self.device == CPU:
            columns = to_device(columns, CPU)
        else:
            columns = tree.map_tree(lambda leaf: leaf.to(self.device, non_blocking=True), columns)
        return rows_of(columns, self.preprocess, frames_of(batch))

    def _columns(self, batch: TransitionBatch) -> Any:
        """Return a batch's columns: arrays on the CPU, else tensors in pinned memory."""
        self._note_rows(batch)
        missing = [name for name in self.columns if name not in batch.extras]
        if missing:
            raise ConfigError(
                f"{type(self).__name__}.columns names {missing}, which the batch does not have: sample it with "
                "columns=policy.columns"
            )
        extras, batch = dict(batch.extras), in_float32(batch)
        columns = batch.obs, batch.action, batch.reward, batch.discount, batch.next_obs, batch.weight, extras
        if not isinstance(batch.obs, np.ndarray):
            columns = places_of(columns)
        return columns if self.device == CPU else self._staging(columns)

    def _check_discrete(self, batch: TransitionBatch) -> None:
        """Raise `ConfigError` where the actions of a Discrete space are not integers."""
        if batch.action.dtype.kind not in "iub":
            raise ConfigError(
                f"{type(self).__name__}: actions of {self.action_space or 'a Discrete space'} must be integers, got "
                f"{batch.action.dtype}: cast them"
            )

    def _blank_extras(self) -> dict[str, Tensor] | None:
        """Return one row of zeros of each of `columns`, as far as their shapes are known; None if one is not."""
        blank: dict[str, Tensor] = {}
        known = {**COLUMN_SPECS, **self.extras_spec}
        for name in self.columns:
            if name not in known:
                return None
            blank |= to_device({name: np.zeros((1, *known[name].shape), known[name].dtype)}, self.device)
        return blank

    def _note_rows(self, batch: TransitionBatch) -> None:
        object.__setattr__(self, "_slots", batch.slots)  # for errors; nn.Module's own way takes 2 us more

    def update(self, batch: TransitionBatch, *, step: int) -> UpdateResult:
        """Take the gradient steps in their order, let the targets follow, and return the priorities.

        Raises:
            DivergedError: see `minimise`.
        """
        if not any(one.loss is not None for one in self._gradient_steps.values()):
            raise TypeError(f"{type(self).__name__} must define update, or give add_gradient_step a loss")
        self.enter(training=True)
        frames = None if isinstance(batch.obs, np.ndarray) else frames_of(batch)
        if frames is not None and self._engine.is_numpy:
            batch, frames = gathered(batch), None
        if frames is not self._frames:
            self._frames = frames
        given = self._columns(batch), self._inputs(len(batch), step)
        results = self._take_steps(given, step=step) if self._graph is None else self._replay(self._graph, given, step)
        if frames is not None:
            self._frames = None  # as the buffer may be given up
        priority = results.pop("priority", None)
        return self.end_update(step=step, priority=priority, **results)

    def loss_inputs(self, n_rows: int, *, step: int) -> Any:
        """Return what losses need besides their rows, in `rows.inputs`: noise, numbers on a schedule.

        Everything that changes from update to update must be there, or in a parameter or buffer; any other number that
        a loss reads is a constant of its recording. A dict by name of numbers, which become scalars in float32, arrays
        and tensors on the device; or another tree of arrays and tensors.

        Args:
            n_rows: B.
            step: the environment step.
        """
        return {}

    def _inputs(self, n_rows: int, step: int) -> Any:
        """Return `loss_inputs`, with tensors on the device, or arrays, in the place of numbers."""
        inputs = self.loss_inputs(n_rows, step=step)
        if not isinstance(inputs, dict):
            return inputs
        return {name: scalar(x, self.device) if isinstance(x, _NUMBERS) else x for name, x in inputs.items()}

    def rows(self, given: Any) -> Any:
        """Return what losses are given, a `TensorBatch`, from an update's columns and inputs on the device."""
        columns, inputs = given
        return rows_of(columns, self.preprocess, self._frames)._replace(inputs=inputs)

    def _take_steps(self, given: Any, *, step: int) -> dict[str, Any]:
        """Take the gradient steps that have a loss, and return their metrics, and the priority, by name."""
        columns, inputs = given
        results: dict[str, Any] = {}
        for name, gradient_step in self._gradient_steps.items():
            if gradient_step.loss is None:
                continue
            outcome = self._take_step(name, (columns, inputs), with_weights=not results, step=step)
            results |= outcome["metrics"]
            if "priority" in outcome:
                results["priority"] = outcome["priority"]
            if outcome["outputs"]:
                inputs = {**inputs, **outcome["outputs"]}
        return results

    def _recorded_steps(self, given: Any, frames: Any, *, step: int) -> dict[str, Any]:
        """Take the gradient steps, and return all that is to be reported of them, from tensors alone."""
        self._frames = frames
        results = self._take_steps(given, step=step)
        shown, self._shown = self._shown, {}
        return {**shown, **results}

    def _take_step(self, name: str, given: Any, *, with_weights: bool, step: int) -> dict[str, Any]:
        """Take one gradient step down its loss, and return what `objective` does but the loss."""
        gradient_step = self._gradient_steps[name]
        loss = gradient_step.loss
        assert loss is not None, "steps without one are taken by minimise"

        def function(rows: Any) -> dict[str, Any]:
            return objective(loss, rows, with_weights=with_weights)

        minimize = partial(self._engine.minimize, gradient_step, name, self.rows, function, given, step=step)
        taken = self._within_memory(minimize, step)
        outcome: dict[str, Any] = self._note_taken(name, taken, step)
        return outcome

    def _within_memory(self, take: Callable[[], Taken], step: int) -> Taken:
        """Take a step; where the device's memory does not hold it, free what torch keeps and take it again."""
        if self.device == CPU:
            return take()
        return with_room(take, f"{type(self).__name__}: update {self.n_updates + 1} at step {step}")

    def _replay(self, graph: CudaGraph, given: Any, step: int) -> dict[str, Any]:
        """Do what `_take_steps` does by one launch, and bring the priorities out of the way of the next."""
        for gradient_step in self._gradient_steps.values():
            gradient_step.prepare(step)
        results = {**graph(given, self._frames, step=step)}
        if "priority" in results:
            results["priority"] = results["priority"].clone()
        return results

    def minimise(self, name: str, loss: Callable[[], Any], *, step: int) -> Any:
        """Take one gradient step down `loss`, a mean over rows; return what it returned besides, `(loss, besides)`.

        For an `update` of your own: torch executes it. It shows loss, grad_norm (before the clip) and lr among the
        metrics, `name` before them where there are several gradient steps.

        Raises:
            DivergedError: on the CPU, when the loss or a gradient is not finite; nothing has moved then. On CUDA
                such a step is not taken either, and the next `check_divergence` or `read_metrics` raises. Not where
                `on_nan` is "skip".
            DeviceError: the device's memory does not hold it; nothing has moved then.
        """
        taken = self._within_memory(partial(self._gradient_steps[name], loss, step=step), step)
        return self._note_taken(name, taken, step)

    def _note_taken(self, name: str, taken: Taken, step: int) -> Any:
        """Raise `DivergedError` for a step that was not taken, note its metrics, and return what its loss returned."""
        is_seen = self.device == CPU and isinstance(taken.skipped, float)  # else nobody waits to be told
        if is_seen and taken.skipped and self.on_nan == "raise":
            self._shown = {}
            facts = {"update": self.n_updates + 1, "step": step, "loss": float(taken.loss)}
            facts |= {"grad_norm": float(taken.norm), "lr": self._gradient_steps[name].lr(step)}
            slots = {} if self._slots is None else {"slots": self._slots.copy()}
            raise diverged(type(self).__name__, {**facts, **slots})
        which = f"{name}_" if len(self._gradient_steps) > 1 else ""
        self._shown[f"{which}loss"] = taken.loss
        self._shown[f"{which}grad_norm"] = taken.norm
        skipped = self._shown.get("skipped")
        self._shown["skipped"] = taken.skipped if skipped is None else skipped + taken.skipped
        return taken.shown

    def enter(self, *, training: bool) -> None:
        """Switch to training or evaluation, where any module does one thing in the one and another in the other."""
        if self.training != training and self._has_modes:
            self.train(training)

    def end_update(
        self, *, step: int, priority: Tensor | NDArray[np.float32] | None = None, **metrics: Scalar
    ) -> UpdateResult:
        """Count the update, let the targets follow, and note its scalars for `read_metrics`.

        Args:
            step: the environment step.
            priority: [B], for a prioritised buffer.
            metrics: scalars on the device, the same names at every update.
        """
        object.__setattr__(self, "n_updates", self.n_updates + 1)  # nn.Module's own way takes 2 us more
        object.__setattr__(self, "last_step", step)
        steps = self._gradient_steps
        rates = {f"{name}_lr" if len(steps) > 1 else "lr": one.lr(step) for name, one in steps.items()}
        followed = [target.follow(step=step, n_updates=self.n_updates) for target in self._targets.values()]
        if followed:
            rates["target_followed"] = sum(followed) / len(followed)
        shown = {**self._shown, **metrics}
        self._shown.clear()
        if self.on_nan == "raise":
            self._meter.add(shown, **rates)
            return UpdateResult(priority)
        kept = self._skips.leave_out(shown)
        self._meter.add(kept, **rates)
        if self.device == CPU:
            self._skips.refuse(type(self).__name__, self.n_updates)
        return UpdateResult(priority, is_lost=kept["skipped"])

    def check_divergence(self) -> None:
        """Refuse to go on after an update that could not be taken; a trainer asks once per collect.

        On CUDA this waits for the updates so far; on the CPU `minimise` has seen to it.
        """
        if self.device == CPU:
            return
        if self.on_nan == "skip":
            self._skips.refuse(type(self).__name__, self.n_updates)
        elif self._meter.total("skipped") > 0:
            self.read_metrics()

    def read_metrics(self) -> dict[str, float]:
        """Return the means over all updates since the last call, and begin anew; empty when there were none."""
        metrics = self._meter.read(left_out="skipped" if self.on_nan == "skip" else None)
        first, self._n_updates_read = self._n_updates_read + 1, self.n_updates
        if self.on_nan == "raise" and metrics.pop("skipped", 0.0) > 0:
            raise diverged_among(type(self).__name__, first, self.n_updates)
        return metrics

    def explore_metrics(self, step: int) -> dict[str, float]:
        """Return what dashboards show about exploration; nothing unless a subclass says so."""
        return {}

    # ---- seeds and states ----

    def seed(self, root: int) -> None:
        """Start all random streams anew, and draw initial weights again unless they were trained or loaded."""
        self._seed = root
        self.start_streams(root)
        self.is_seeded = True
        for name in self._gradient_steps:
            self._draw_weights(name, root)

    def _draw_weights(self, name: str, root: int) -> None:
        """Draw the untouched parts of a module from a root seed, each from a stream of its own."""
        module = self._gradient_steps[name].module
        for path, part in seeded_parts(module):
            if part.is_untouched:
                part.draw(seeding.derive(root, "policy", "weights", name + path))
                for target in self._targets.values():
                    if part in set(target.online.modules()):
                        target.copy()

    def start_streams(self, root: int) -> None:
        """Start the random streams anew from a root seed, and nothing else."""
        self.rng = seeding.generator(root, "policy", "explore")
        self.generator = torch.Generator(self.device).manual_seed(seeding.derive(root, "policy", "noise"))
