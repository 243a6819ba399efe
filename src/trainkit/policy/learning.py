"""How a policy learns: its gradient steps in their order, its target networks, and what is reported of an update."""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from trainkit.core.errors import ConfigError
from trainkit.engine.device import CPU, BatchMemory, to_device, with_room
from trainkit.engine.gradient_step import GradientStep, Scalar, Taken
from trainkit.engine.loss import Objective, OwnObjective
from trainkit.engine.process_group import ONE_PROCESS, ProcessGroup
from trainkit.policy.layer_streams import drops
from trainkit.policy.target import TargetNetwork
from trainkit.policy.update_result import DeviceSums, DivergenceGuard, MeanMetrics, PeriodicMeans, UpdateResult

if TYPE_CHECKING:
    from trainkit.policy.base import Policy

T = TypeVar("T")
Sums = tuple[DeviceSums | None, DeviceSums | None]  # of an update's metrics: those that are reported, and watched


class StepResults:
    """Results of an update's gradient steps so far.

    Args:
        subject: the policy's class, for errors.

    Attributes:
        metrics: of all.
        priority: [B], None where none has any.
        outputs: by gradient step.
    """

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self.metrics: dict[str, Scalar] = {}
        self.priority: Any = None
        self.outputs: dict[str, Mapping[str, Any]] = {}

    def outputs_for(self, reads: str | None) -> Mapping[str, Any]:
        """Return the outputs of the step that a later one reads."""
        return {} if reads is None else self.outputs[reads]

    def explained(self, name: str, missing: KeyError, inputs: Mapping[str, Any], columns: Iterable[str]) -> ConfigError:
        """Return the error of a loss that looked up a name that is not there.

        Args:
            name: of the gradient step.
            missing: what its loss raised.
            inputs: `rows.inputs`.
            columns: the names in `rows.extras`.
        """
        key = missing.args[0] if missing.args else None
        for earlier, outputs in self.outputs.items():
            if key in outputs:
                return ConfigError(
                    f"{self._subject}: the loss of gradient step {name!r} reads {key!r}, an output of "
                    f"{earlier!r}, which it must declare: add_gradient_step({name!r}, ..., reads={earlier!r})"
                )
        of_inputs, of_extras = (", ".join(map(repr, names)) or "nothing" for names in (inputs, columns))
        return ConfigError(
            f"{self._subject}: the loss of gradient step {name!r} raised KeyError({key!r}): rows.inputs has "
            f"{of_inputs} (what loss_noise and loss_inputs return), rows.extras {of_extras} (what the policy's columns "
            "name): return it from one of them, or correct the name"
        )

    def add(self, name: str, results: Mapping[str, Any]) -> None:
        """Add a step's results.

        Raises:
            ConfigError: one before has the same metrics, or a priority, too.
        """
        if repeated := self.metrics.keys() & results["metrics"].keys():
            raise ConfigError(
                f"{self._subject}: gradient step {name!r} and one before it have the metrics "
                f"{', '.join(sorted(repeated))}: give them different names"
            )
        self.metrics |= results["metrics"]
        self.outputs[name] = results["outputs"]
        if "priority" in results:
            if self.priority is not None:
                raise ConfigError(
                    f"{self._subject}: gradient step {name!r} and one before it have a priority: return it from one "
                    "loss"
                )
            self.priority = results["priority"]


class OneUpdate:
    """The work of one update: its gradient steps in their order, each by `Engine.minimize`; an `UpdateWork`.

    Args:
        learning: of the policy.
        policy: whose update it is.
        due: names of the steps that are taken.
        n_rows: B.
        step: the environment step.
    """

    __slots__ = ("_due", "_learning", "_n_rows", "_policy", "_step")

    def __init__(self, learning: "Learning", policy: "Policy", due: tuple[str, ...], n_rows: int, step: int) -> None:
        self._learning, self._policy, self._due, self._n_rows, self._step = learning, policy, due, n_rows, step

    def __call__(
        self, columns: Any, inputs: Any, frames: Any, rates: Mapping[str, Tensor] = MappingProxyType({})
    ) -> tuple[dict[str, Scalar], tuple[Mapping[str, Scalar], Sums]]:
        """Take the gradient steps in their order, and add up their metrics; arguments as of `UpdateWork`.

        Returns:
            The priority [B] and whether the update was skipped, where they are known, the metrics, and their sums.
        """
        learning, policy, step = self._learning, self._policy, self._step
        if policy.device != CPU:
            columns = learning.with_room(partial(to_device, columns, policy.device, self.memory), step)
        inputs = {**inputs, **policy.loss_noise(self._n_rows)}
        results = StepResults(type(policy).__name__)
        for name in self._due:
            gradient_step = learning.gradient_steps[name]
            if gradient_step.loss is None:
                continue
            policy.enter_step(gradient_step)
            what = name, gradient_step.loss, policy.rows, gradient_step.module, frames
            objective = Objective(*what, with_weights=not results.outputs)
            own = columns, {**inputs, **results.outputs_for(gradient_step.reads)}
            minimize = partial(policy.engine.minimize, gradient_step, objective, own, step=step, lr=rates.get(name))
            try:
                taken = minimize() if policy.device == CPU else learning.with_room(minimize, step)
            except KeyError as error:
                raise results.explained(name, error, own[1], policy.columns) from error
            learning.record(name, taken, step)
            results.add(name, taken.results)
        policy.enter(training=False)
        kept = {} if results.priority is None else {"priority": results.priority}
        is_lost, sums = learning.add_to_sums(results.metrics, self._due)
        return kept if is_lost is None else {**kept, "is_lost": is_lost}, (results.metrics, sums)

    @property
    def name(self) -> str:
        """Names of the steps that are due, "" where all are."""
        return "" if len(self._due) == len(self._learning.gradient_steps) else "+".join(self._due)

    @property
    def variant(self) -> str:
        """What happens to an update that is not finite."""
        return self._learning.divergence.on_nan

    @property
    def gradient_steps(self) -> list[GradientStep]:
        """All of the policy, those that are not due as well."""
        return list(self._learning.gradient_steps.values())

    @property
    def memory(self) -> BatchMemory:
        """The memory that a device reads batches from."""
        return self._learning.memory

    def rates(self) -> dict[str, float]:
        """Return the learning rates of the steps that are due."""
        return {name: self._learning.gradient_steps[name].lr(self._step) for name in self._due}

    def written(self) -> tuple[Tensor, ...]:
        """Return the sums of metrics, what remembers updates that are not finite, and counts of gradient steps."""
        learning = self._learning
        counts = [count for name in self._due for count in learning.gradient_steps[name].counts]
        watched = () if learning.watched is None else learning.watched.sums.on_device(self._due)
        return (*learning.metrics.on_device(self._due), *watched, *learning.divergence.memory, *counts)


class Learning:
    """The updates of a policy.

    Args:
        policy: has the device, the engine, the schedules and noise of losses, and counts its updates.

    Attributes:
        gradient_steps: by name, in their order.
        targets: the target networks by name.
        metrics: of the updates since the last report.
        watched: those that the policy decides by; None where there are none.
        divergence: detects updates that are not finite.
        memory: has batches in memory that the device reads.
        process_group: the processes that learn together.
    """

    def __init__(self, policy: "Policy") -> None:
        self._policy = policy
        self._subject = type(policy).__name__
        self.gradient_steps: dict[str, GradientStep] = {}
        self.targets: dict[str, TargetNetwork] = {}
        self._taken: set[str] = set()  # gradient steps of the update in progress
        self.metrics = MeanMetrics()
        self.watched: PeriodicMeans | None = None
        self.divergence = DivergenceGuard(self._subject, policy.device)
        self.memory = BatchMemory()
        self.process_group: ProcessGroup = ONE_PROCESS

    @property
    def has_loss(self) -> bool:
        """Whether an update can be taken by the gradient steps' own losses."""
        return any(gradient_step.loss is not None for gradient_step in self.gradient_steps.values())

    @cached_property
    def drops(self) -> bool:
        """Whether a module drops some of its inputs in training mode."""
        return any(map(drops, self._policy.modules()))

    def update(
        self, columns: Any, n_rows: int, frames: Any = None, *, step: int
    ) -> tuple[UpdateResult, Mapping[str, Scalar]]:
        """Take one update on the columns of B rows; return its result and its metrics."""
        policy = self._policy
        number = policy.n_updates + 1
        due = tuple([name for name, one in self.gradient_steps.items() if number % one.every == 0])
        inputs = policy.loss_inputs(n_rows, step=step)
        with policy.layers_draw():
            work = OneUpdate(self, policy, due, n_rows, step)
            execute = policy.engine.executable(work)  # the work itself, unless an engine has recorded it
            kept, (metrics, sums) = execute(columns, inputs, frames)
        self._count(due, sums, step)
        return UpdateResult(kept.get("priority"), is_lost=kept.get("is_lost")), metrics

    def minimize(self, name: str, loss: Callable[[], Any], *, step: int) -> Any:
        """Take one gradient step on a loss by torch; return what else the loss returned."""
        policy, gradient_step = self._policy, self.gradient_steps[name]
        policy.enter_step(gradient_step)
        minimize = partial(policy.engine.minimize, gradient_step, OwnObjective(loss), (), step=step)
        with policy.layers_draw():
            taken: Taken = self.with_room(minimize, step)
        self.record(name, taken, step)
        return taken.results["other"]

    def end(
        self, priority: Tensor | NDArray[np.float32] | None, metrics: Mapping[str, Scalar], *, step: int
    ) -> UpdateResult:
        """Count an update whose gradient steps were taken by `minimize`."""
        taken = tuple(name for name in self.gradient_steps if name in self._taken)
        is_lost, sums = self.add_to_sums(metrics, taken)
        self._count(taken, sums, step)
        return UpdateResult(priority, is_lost)

    def with_room(self, take: Callable[[], T], step: int) -> T:
        """Do a part of an update; if the device runs out of memory, free torch's cache and do it again."""
        if self._policy.engine.is_recording:
            return take()
        return with_room(take, f"{self._subject}: update {self._policy.n_updates + 1} at step {step}")

    # ---- what is reported ----

    def record(self, name: str, taken: Taken, step: int) -> None:
        """Record loss, norm and skip of a gradient step for `add_to_sums`; raise if they are not finite."""
        pending, is_known = self.metrics.pending, self._policy.device == CPU and isinstance(taken.skipped, float)
        if is_known and taken.skipped and self.divergence.on_nan == "raise":
            pending.clear()
            self._taken.clear()
            lr = self.gradient_steps[name].lr(step)
            raise self.divergence.error(taken, update=self._policy.n_updates + 1, step=step, lr=lr)
        prefix = f"{name}_" if len(self.gradient_steps) > 1 else ""
        self._taken.add(name)
        pending[f"{prefix}loss"] = taken.loss
        pending[f"{prefix}grad_norm"] = taken.norm
        pending["skipped"] = pending["skipped"] + taken.skipped if "skipped" in pending else taken.skipped

    def add_to_sums(self, metrics: Mapping[str, Scalar], taken: tuple[str, ...]) -> tuple[Tensor | None, Sums]:
        """Add an update's metrics and those of the gradient steps it has taken to the sums for `read_metrics`.

        Returns:
            Whether the update was skipped, if it may be, and the sums to count it in.
        """
        recorded, self.metrics.pending = self.metrics.pending, {}
        if repeated := recorded.keys() & metrics.keys():
            raise ConfigError(
                f"{self._subject}: the metrics {', '.join(sorted(repeated))} are those of gradient steps: rename yours"
            )
        metrics = {**recorded, **metrics}
        is_lost: Tensor | None = None
        if self.divergence.on_nan == "skip" and taken:
            metrics = masked = self.divergence.mask_skipped(metrics)
            is_lost = masked["skipped"]
        is_recording = self._policy.engine.is_recording
        reported = self.metrics.add_to_sums(metrics, taken, is_recording=is_recording)
        if self.watched is None:
            return is_lost, (reported, None)
        return is_lost, (reported, self.watched.add_to_sums(metrics, taken, is_recording=is_recording))

    def _count(self, taken: tuple[str, ...], sums: Sums, step: int) -> None:
        """Count an update, move the target networks, and add the metrics that are known without the device."""
        policy, steps = self._policy, self.gradient_steps
        # Past `nn.Module.__setattr__`, which takes as long as a layer of a small network.
        vars(policy).update(n_updates=policy.n_updates + 1, last_step=step)
        self._taken.clear()
        plain = {f"{name}_lr" if len(steps) > 1 else "lr": steps[name].lr(step) for name in taken}
        for name in taken:
            steps[name].advance()
        moved = [target.follow(step=step, n_updates=policy.n_updates) for target in self.targets.values()]
        if moved:
            plain["target_followed"] = sum(moved) / len(moved)
        reported, watched = sums
        self.metrics.count(reported, **plain)
        if self.watched is not None:
            self.watched.sums.count(watched)
        if self.divergence.on_nan == "skip" and self._policy.device == CPU:
            self.divergence.check_skipped(policy.n_updates)

    def check_divergence(self) -> None:
        """Raise `DivergedError` for updates before the last call that could not be applied, without waiting."""
        if self._policy.device == CPU:
            return
        if self.divergence.on_nan == "skip":
            self.divergence.check_skipped(self._policy.n_updates)
        elif self.metrics.delayed_total("skipped") > 0 and self.metrics.total("skipped") > 0:
            self.read_metrics()

    def read_metrics(self) -> dict[str, float]:
        """Return the means over all updates since the last call, and reset them; empty if there were none."""
        raises, n_updates = self.divergence.on_nan == "raise", self._policy.n_updates
        first = n_updates - self.metrics.n_updates + 1
        metrics = self.metrics.read()
        if raises and metrics.pop("skipped", 0.0) > 0:
            raise self.divergence.error_among(first, n_updates)
        return metrics

    # ---- saving and resuming ----

    def state_dict(self) -> dict[str, Any]:
        """Return the states of optimizers, target networks and metrics."""
        return {
            "optimizers": {name: one.state_dict() for name, one in self.gradient_steps.items()},
            "targets": {name: one.state_dict() for name, one in self.targets.items()},
            "metrics": self.metrics.state_dict(),
            **({} if self.watched is None else {"watched": self.watched.sums.state_dict()}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the states of the same gradient steps and target networks."""
        for name, gradient_step in self.gradient_steps.items():
            gradient_step.load_state_dict(state["optimizers"][name])
        for name, target in self.targets.items():
            target.load_state_dict(state["targets"][name])
        self.metrics.load_state_dict(state["metrics"], self._policy.device)
        if self.watched is not None:
            self.watched.sums.load_state_dict(state["watched"], self._policy.device)
