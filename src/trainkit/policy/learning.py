"""How a policy learns: its gradient steps in their order, its target networks, and what is reported of an update."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from trainkit.core.errors import ConfigError
from trainkit.engine.device import CPU, BatchMemory, with_room
from trainkit.engine.gradient_step import GradientStep, Scalar, Taken
from trainkit.engine.loss import objective
from trainkit.engine.ranks import Ranks
from trainkit.policy.target import TargetNetwork
from trainkit.policy.update_result import DivergenceGuard, MeanMetrics, PeriodicMeans, UpdateResult

if TYPE_CHECKING:
    from trainkit.policy.base import Policy

T = TypeVar("T")


class Learning:
    """The updates of a policy.

    Args:
        policy: has the device, the engine, the schedules and noise of losses, and counts its updates.

    Attributes:
        steps: the gradient steps by name, in their order.
        targets: the target networks by name.
        metrics: of the updates since the last report.
        watched: those that the policy decides by; None where there are none.
        divergence: detects updates that are not finite.
        memory: has batches in memory that the device reads.
        ranks: processes that learn together; None for one process.
    """

    def __init__(self, policy: "Policy") -> None:
        self._policy = policy
        self._subject = type(policy).__name__
        self.steps: dict[str, GradientStep] = {}
        self.targets: dict[str, TargetNetwork] = {}
        self.metrics = MeanMetrics()
        self.watched: PeriodicMeans | None = None
        self.divergence = DivergenceGuard(self._subject, policy.device)
        self.memory = BatchMemory()
        self.ranks: Ranks | None = None

    @property
    def has_loss(self) -> bool:
        """Whether an update can be taken by the gradient steps' own losses."""
        return any(gradient_step.loss is not None for gradient_step in self.steps.values())

    def update(
        self, columns: Any, n_rows: int, frames: Any = None, *, step: int
    ) -> tuple[UpdateResult, Mapping[str, Scalar]]:
        """Take one update on the columns of B rows; return its result and its metrics."""
        with self._policy.layers_draw():
            return self._update(columns, n_rows, frames, step=step)

    def _update(
        self, columns: Any, n_rows: int, frames: Any, *, step: int
    ) -> tuple[UpdateResult, Mapping[str, Scalar]]:
        policy, engine = self._policy, self._policy.engine
        inputs = policy.loss_inputs(n_rows, step=step)
        work = partial(self._work, n_rows=n_rows, step=step)
        if engine.is_graph:
            rates = {name: gradient_step.lr(step) for name, gradient_step in self.steps.items()}
            sums = [self.metrics.device_sums, None if self.watched is None else self.watched.sums.device_sums]
            fixed = frames, *sums, *self.divergence.memory
            variant = self.divergence.on_nan
            kept, metrics = engine.update(work, (columns, inputs, rates), fixed, memory=self.memory, variant=variant)
        else:
            kept, metrics = work((columns, inputs, {}), (frames,))
        self._count(step)
        return UpdateResult(kept.get("priority"), is_lost=kept.get("is_lost")), metrics

    def _work(
        self, given: Any, fixed: Any, *, n_rows: int, step: int
    ) -> tuple[dict[str, Scalar], Mapping[str, Scalar]]:
        """Sample noise, take the gradient steps and add up their metrics; a CUDA graph records this.

        Returns:
            The priority [B] and whether the update was skipped, where they are known, and the metrics.
        """
        columns, inputs, rates = given
        noise = self._policy.loss_noise(n_rows)
        results = self._take_steps((columns, {**inputs, **noise} if noise else inputs), fixed[0], rates, step=step)
        kept = {"priority": results.pop("priority")} if "priority" in results else {}
        is_lost = self._sum_up(results)
        return kept if is_lost is None else {**kept, "is_lost": is_lost}, results

    def _take_steps(self, given: Any, frames: Any, rates: Mapping[str, Tensor], *, step: int) -> dict[str, Any]:
        """Take the gradient steps that have a loss; return their metrics and the priority by name.

        `rates` are learning rates on the device, by gradient step, for steps that are recorded.
        """
        columns, inputs = given
        prepare = partial(self._policy.rows, frames=frames)
        results: dict[str, Any] = {}
        for name, gradient_step in self.steps.items():
            if gradient_step.loss is None:
                continue
            function = partial(objective, gradient_step.loss, with_weights=not results)
            minimize = partial(self._policy.engine.minimize, step=step, lr=rates.get(name))
            take = partial(minimize, gradient_step, name, prepare, function, (columns, inputs))
            taken = take() if self._policy.device == CPU else self.with_room(take, step)
            outcome: dict[str, Any] = self._record(name, taken, step)
            if repeated := results.keys() & outcome["metrics"].keys():
                raise ConfigError(
                    f"{self._subject}: gradient step {name!r} and one before it have the metrics "
                    f"{', '.join(sorted(repeated))}: give them different names"
                )
            results |= outcome["metrics"]
            if "priority" in outcome:
                if "priority" in results:
                    raise ConfigError(
                        f"{self._subject}: gradient step {name!r} and one before it have a priority: return it from "
                        "one loss"
                    )
                results["priority"] = outcome["priority"]
            if outcome["outputs"]:
                inputs = {**inputs, **outcome["outputs"]}
        return results

    def minimize(self, name: str, loss: Callable[[], Any], *, step: int) -> Any:
        """Take one gradient step on a loss by torch; return what else the loss returned."""
        with self._policy.layers_draw():
            taken: Taken = self.with_room(partial(self.steps[name], loss, step=step), step)
        return self._record(name, taken, step)

    def end(
        self, priority: Tensor | NDArray[np.float32] | None, metrics: Mapping[str, Scalar], *, step: int
    ) -> UpdateResult:
        """Count an update whose gradient steps were taken by `minimize`."""
        is_lost = self._sum_up(metrics)
        self._count(step)
        return UpdateResult(priority, is_lost)

    def with_room(self, take: Callable[[], T], step: int) -> T:
        """Do a part of an update; if the device runs out of memory, free torch's cache and do it again."""
        if self._policy.engine.is_recording:
            return take()
        return with_room(take, f"{self._subject}: update {self._policy.n_updates + 1} at step {step}")

    # ---- what is reported ----

    def _record(self, name: str, taken: Taken, step: int) -> Any:
        """Record loss, norm and skip of a gradient step for `_sum_up`; return other results; raise if not finite."""
        pending, is_known = self.metrics.pending, self._policy.device == CPU and isinstance(taken.skipped, float)
        if is_known and taken.skipped and self.divergence.on_nan == "raise":
            pending.clear()
            lr = self.steps[name].lr(step)
            raise self.divergence.error(taken, update=self._policy.n_updates + 1, step=step, lr=lr)
        prefix = f"{name}_" if len(self.steps) > 1 else ""
        pending[f"{prefix}loss"] = taken.loss
        pending[f"{prefix}grad_norm"] = taken.norm
        pending["skipped"] = pending["skipped"] + taken.skipped if "skipped" in pending else taken.skipped
        return taken.results

    def _sum_up(self, metrics: Mapping[str, Scalar]) -> Tensor | None:
        """Add an update's metrics and those of its gradient steps to the sums for `read_metrics`.

        Returns:
            Whether the update was skipped, if it may be.
        """
        recorded, self.metrics.pending = self.metrics.pending, {}
        if repeated := recorded.keys() & metrics.keys():
            raise ConfigError(
                f"{self._subject}: the metrics {', '.join(sorted(repeated))} are those of gradient steps: rename yours"
            )
        metrics = {**recorded, **metrics}
        is_lost: Tensor | None = None
        if self.divergence.on_nan == "skip":
            metrics = masked = self.divergence.mask_skipped(metrics)
            is_lost = masked["skipped"]
        self.metrics.sum_up(metrics)
        if self.watched is not None:
            self.watched.sum_up(metrics)
        return is_lost

    def _count(self, step: int) -> None:
        """Count an update, move the target networks, and add the metrics that are known without the device."""
        policy, steps = self._policy, self.steps
        policy.n_updates += 1
        policy.last_step = step
        plain = {f"{name}_lr" if len(steps) > 1 else "lr": one.lr(step) for name, one in steps.items()}
        for one in steps.values():
            one.advance()
        moved = [target.follow(step=step, n_updates=policy.n_updates) for target in self.targets.values()]
        if moved:
            plain["target_followed"] = sum(moved) / len(moved)
        self.metrics.count(**plain)
        if self.watched is not None:
            self.watched.sums.count()
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
        metrics = self.metrics.read(skipped=None if raises else "skipped")
        if raises and metrics.pop("skipped", 0.0) > 0:
            raise self.divergence.error_among(first, n_updates)
        return metrics

    # ---- saving and resuming ----

    def state_dict(self) -> dict[str, Any]:
        """Return the states of optimizers, target networks and metrics; keys are those of the file format."""
        return {
            "optimizers": {name: one.state_dict() for name, one in self.steps.items()},
            "targets": {name: one.state_dict() for name, one in self.targets.items()},
            "unread": self.metrics.state_dict(),
            **({} if self.watched is None else {"watched": self.watched.sums.state_dict()}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the states of the same gradient steps and target networks."""
        for name, gradient_step in self.steps.items():
            gradient_step.load_state_dict(state["optimizers"][name])
        for name, target in self.targets.items():
            target.load_state_dict(state["targets"][name])
        none: dict[str, Any] = {"n_updates": 0, "sums": {}}  # of older checkpoints
        self.metrics.load_state_dict(state.get("unread", none), self._policy.device)
        if self.watched is not None:
            self.watched.sums.load_state_dict(state["watched"], self._policy.device)
