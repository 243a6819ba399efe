"""The engine of a policy: executes its losses with their gradients, and its forward passes for acting.

`Engine` executes them by torch, eagerly, on any device. The engines of extensions derive from it and execute the same
functions in other ways; nothing outside of an engine depends on which one does. `engine_for` chooses: an engine by its
name, or for "auto" the first of those that are there and serve the policy's device, else torch.
"""

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal, Protocol, Self, get_args

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit.core import tree, user_code
from trainkit.core.errors import Checks
from trainkit.core.extensions import table
from trainkit.engine.device import BatchMemory, to_arrays, to_device
from trainkit.engine.gradient_step import GradientStep, Scalar, Taken, denormals_flushed
from trainkit.engine.loss import Objective, OwnObjective
from trainkit.engine.moving_buffers import copied, movable_buffers, undo_where
from trainkit.engine.precision import LearningPrecision

EngineName = Literal["auto", "torch", "numpy", "compile", "cuda_graph"]  # with those of trainkit's own extensions
Function = Callable[[Any], Mapping[str, Any]]  # a tree of tensors -> tensors by name, or dicts of them
Results = dict[str, Any]  # what a function returned
Kept = tuple[Mapping[str, Any], Any]  # (results that the second update after this one overwrites, those of the next)


class UpdateWork(Protocol):
    """The work of an update, which takes gradient steps, for an engine to do as it is or to record as a whole.

    Attributes:
        name: of the kind of update; those of one kind do the same.
        variant: what else a recording depends on.
        gradient_steps: that it may take.
        memory: has some of its columns in pinned memory already.
    """

    @property
    def name(self) -> str: ...

    @property
    def variant(self) -> Hashable: ...

    @property
    def gradient_steps(self) -> Sequence[GradientStep]: ...

    @property
    def memory(self) -> BatchMemory: ...

    def __call__(self, columns: Any, inputs: Any, frames: Any, rates: Mapping[str, Tensor] = ...) -> Kept:
        """Take the gradient steps by `minimize`.

        Args:
            columns: of the rows, a tree of arrays or of tensors on the device.
            inputs: of losses, a tree of arrays, numbers, tensors on the device and None.
            frames: the images that columns of indices refer to, where they are; None without any.
            rates: learning rates on the device by gradient step, in a recording.
        """

    def rates(self) -> dict[str, float]:
        """Return the learning rates by gradient step, for a recording, which cannot read them."""

    def written(self) -> tuple[Tensor, ...]:
        """Return tensors on the device that the work writes where they are."""


class Engine:
    """Execute a policy's functions by torch, eagerly: the base class of engines.

    Args:
        policy: whose functions they are.
        wanted: the name of the engine, or "auto".
        device: of the policy.
        precision: in which the policy's networks multiply while they learn, default float32.
        ignored: attributes of the policy that no loss reads.
        why: the reason for this engine.

    Attributes:
        wanted: as given.
    """

    _movable_buffers: dict[str, Tensor] | None

    def __init__(
        self,
        policy: nn.Module,
        wanted: str,
        device: torch.device,
        precision: LearningPrecision | None = None,
        ignored: frozenset[str] = frozenset(),
        why: str = "as requested",
    ) -> None:
        self._policy, self.wanted, self._device, self._ignored = policy, wanted, device, ignored
        self._precision = LearningPrecision() if precision is None else precision
        self._why = why
        self.forget()

    @classmethod
    def serves(cls, device: torch.device) -> bool:
        """Return whether "auto" may choose this engine for a policy on a device."""
        return False

    @classmethod
    def problem(cls, device: torch.device, precision: str) -> str | None:
        """Return why a policy on a device, of a precision, cannot have this engine, such as "needs ..."; else None."""
        return None

    @property
    def name(self) -> str:
        """The engine that executes now: never "auto"."""
        return "torch"

    @property
    def reason(self) -> str:
        """The reason why this engine executes."""
        return self._why

    @property
    def is_recording(self) -> bool:
        """Whether work is being recorded now, so that nothing may wait or free memory."""
        return False

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"

    __repr__ = __str__

    @property
    def _movable(self) -> dict[str, Tensor]:
        """The buffers that a loss of the policy may write, by name; where there are any, they may be replaced."""
        if self._movable_buffers is None or self._movable_buffers:
            self._movable_buffers = movable_buffers(self._policy)
        return self._movable_buffers

    # ---- execution ----

    def executable(self, work: UpdateWork) -> Callable[[Any, Any, Any], Kept]:
        """Return what executes the work of an update, given columns, inputs and frames: the work itself."""
        return work

    def minimize(
        self,
        gradient_step: GradientStep,
        objective: Objective | OwnObjective,
        given: Any,
        *,
        step: int,
        lr: Tensor | None = None,
    ) -> Taken:
        """Take one gradient step on an objective.

        Args:
            gradient_step: whose parameters to move.
            objective: what to minimize, a function of rows.
            given: (columns, inputs), a tree of arrays or tensors: all that changes from call to call.
            step: the environment step.
            lr: a learning rate on the device in the place of the step's, for a step that is recorded.

        Returns:
            The outcome; its `results` are the objective's other results by name.
        """
        with denormals_flushed(gradient_step.flush_denormals):
            rows = objective.rows(to_device(given, self._device))
            buffers = copied(self._movable)
            precision = self._precision.during_step(gradient_step.trainable)
            with user_code.running(), gradient_step.differentiation(), precision:
                results = objective(rows)
                gradient_step.differentiate(results["loss"])
            return self._apply(gradient_step, objective, results, buffers, step=step, lr=lr)

    def _apply(
        self,
        gradient_step: GradientStep,
        objective: Objective | OwnObjective,
        results: Results,
        buffers: Mapping[str, Tensor],
        *,
        step: int,
        lr: Tensor | None,
    ) -> Taken:
        """Take a step along its gradients; if it is skipped, `buffers` are what the movable ones were before it."""
        taken = gradient_step.apply(results.pop("loss").detach(), results, step=step, lr=lr)
        undo_where(taken.skipped, self._movable, buffers)
        self._follow_step(gradient_step, objective.name, taken.skipped)
        return taken

    def _follow_step(self, gradient_step: GradientStep, name: str | None, skipped: Scalar) -> None:
        """Give the parameters the values that the step's `after` returns, if it has one and was taken.

        Buffers that the loss may write, such as running statistics, become their means over all processes.
        """
        if gradient_step.process_group.n > 1:  # one process does not pay for looking them up
            gradient_step.process_group.share(self._movable.values())
        after, module = gradient_step.after, gradient_step.module
        if after is None or (not isinstance(skipped, Tensor) and skipped):
            return

        def values(_: Any) -> Mapping[str, Tensor]:
            return after({path: parameter.detach() for path, parameter in module.named_parameters()})

        results = self._evaluate(None if name is None else f"{name}.after", values)
        gradient_step.assign(tree.map_tree(torch.as_tensor, dict(results)), skipped)

    def _evaluate(self, name: str | None, function: Function) -> Mapping[str, Any]:
        """Return the results of a function without inputs, without gradients; a name of None is of no other use."""
        with torch.no_grad():
            return function(())

    def call(
        self, name: str, function: Function, inputs: Any, *, draw: Callable[[], Tensor] | None = None
    ) -> dict[str, NDArray[Any]]:
        """Return a function's results by name, in arrays, without gradients.

        Args:
            name: of the function.
            function: inputs -> tensors by name.
            inputs: a tree of arrays, numbers and None.
            draw: samples the last of `inputs`, which is None, on the policy's generator.
        """
        inputs = drawn(inputs, draw)
        with user_code.running(), torch.no_grad():
            return to_arrays(function(to_device(inputs, self._device)))

    def call_on_device(
        self, name: str, function: Function, inputs: Any, *, draw: Callable[[], Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Return a function's results as `call` does, of tensors on the device, as tensors there, without waiting."""
        with torch.no_grad():
            return dict(function(to_device(drawn(inputs, draw), self._device)))

    def check_steps(self, gradient_steps: Sequence[GradientStep]) -> None:
        """Check that the engine can take these steps, when a policy has got another one or another engine.

        Raises:
            ConfigError: it was chosen by its name and cannot.
        """

    # ---- copies and checkpoints ----

    def state_dict(self) -> dict[str, Any]:
        """Return the state from which a resumed run continues with the same bits."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved state, of this engine or of another one."""
        self.forget()

    def forget(self) -> None:
        """Forget what was found of the policy, and record everything again."""
        vars(self).update(self._uncopied())

    def _uncopied(self) -> dict[str, Any]:
        """Return the attributes of an engine that has executed nothing yet, as those of a copy are."""
        return {"_movable_buffers": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        clone = copy.copy(self)
        memo[id(self)] = clone
        own = {name: copy.deepcopy(vars(self)[name], memo) for name in ("_policy", "_precision")}
        vars(clone).update(clone._uncopied(), **own)
        return clone

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), **self._uncopied()}


def engine_for(
    policy: nn.Module,
    wanted: str,
    device: torch.device,
    precision: LearningPrecision | None = None,
    ignored: frozenset[str] = frozenset(),
) -> Engine:
    """Return the engine of a policy; see `Engine`.

    Args:
        policy, device, precision, ignored: as of `Engine`.
        wanted: "torch", a name in the `ENGINES` of an extension, or "auto" for one of these that serves the device.

    Raises:
        ConfigError: no extension that is there has an engine of this name, or it cannot be used.
    """
    engines, products = table("ENGINES"), "float32" if precision is None else precision.name
    how: dict[str, Any] = {"precision": precision, "ignored": ignored}
    if wanted == "auto":
        why = "on the CPU" if device.type == "cpu" else f"on {device.type}"
        for name, entry in engines.items():
            kind: type[Engine] = entry.load()
            if kind.serves(device):
                problem = kind.problem(device, products)
                if problem is None:
                    return kind(policy, wanted, device, **how, why=why)
                why = f"{name} {problem}"
        return Engine(policy, wanted, device, **how, why=why)
    with Checks(type(policy).__name__) as checks:
        names = ["auto", "torch", *engines]
        if wanted in get_args(EngineName) and wanted not in names:
            rule = f"must be one of {names}, got {wanted!r}, whose folder of trainkit/extensions is not there"
            checks.require(False, f".engine {rule}: install all of trainkit, or use 'auto'")
        elif checks.one_of("engine", wanted, names) and wanted in engines:
            problem = engines[wanted].load().problem(device, products)
            checks.require(problem is None, f".engine {wanted!r} {problem}: use 'auto'")
    kind = engines[wanted].load() if wanted in engines else Engine
    return kind(policy, wanted, device, **how)


def drawn(inputs: Any, draw: Callable[[], Tensor] | None) -> Any:
    """Return inputs with what `draw` samples as the last of them."""
    return inputs if draw is None else (*inputs[:-1], draw())
