"""The compile engine: `torch.compile` of the same losses, inside what another engine records."""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from trainkit.core import user_code
from trainkit.engine.device import to_device
from trainkit.engine.engine import Engine, Function, Kept, UpdateWork, engine_for
from trainkit.engine.gradient_step import GradientStep, Taken, denormals_flushed
from trainkit.engine.loss import Objective, OwnObjective
from trainkit.engine.moving_buffers import copied
from trainkit.extensions.compile.compiling import LossGraph, missing


class CompileEngine(Engine):
    """Compile each loss with its gradients from its second step on; for arguments and attributes see `Engine`.

    All else is executed by the engine that "auto" chooses on an accelerator, on the CPU by torch. On CUDA it records
    updates as CUDA graphs, each with the compiled losses in it.
    """

    _compiled_graphs: dict[GradientStep, LossGraph]

    @cached_property
    def _outer(self) -> Engine:
        """The engine that executes all else."""
        name = "torch" if self._device.type == "cpu" else "auto"
        return engine_for(self._policy, name, self._device, self._precision, self._ignored)

    @classmethod
    def problem(cls, device: torch.device, precision: str) -> str | None:
        """Return what torch needs to compile for a device and is missing."""
        needed = missing(device)
        return None if needed is None else f"needs {needed}: install it, or choose another engine"

    @property
    def name(self) -> str:
        """The engine that executes."""
        return "compile"

    @property
    def reason(self) -> str:
        """The reason why this engine executes, and the one that its losses are executed in."""
        return self._why if self._device.type == "cpu" else f"{self._why}; all but losses by {self._outer}"

    @property
    def is_recording(self) -> bool:
        """Whether an update is being recorded now."""
        return self._outer.is_recording

    def minimize(
        self,
        gradient_step: GradientStep,
        objective: Objective | OwnObjective,
        given: Any,
        *,
        step: int,
        lr: Tensor | None = None,
    ) -> Taken:
        """Take one gradient step on an objective; arguments as of `Engine.minimize`."""
        if not gradient_step.is_laid_out:  # in its first step
            return super().minimize(gradient_step, objective, given, step=step, lr=lr)
        if gradient_step not in self._compiled_graphs:
            self._compiled_graphs[gradient_step] = LossGraph(gradient_step.module, lambda: self._movable)
        with denormals_flushed(gradient_step.flush_denormals):
            given = to_device(given, self._device)
            buffers = copied(self._movable)
            precision = self._precision.during_step(gradient_step.trainable, is_compiled=True)
            with user_code.running(), gradient_step.differentiation(), precision:
                graph, moving = self._compiled_graphs[gradient_step], gradient_step.moving
                results, gradients = graph(objective, given, moving)
            gradient_step.set_gradients(gradients)
            return self._apply(gradient_step, objective, results, buffers, step=step, lr=lr)

    # ---- what the other engine executes ----

    def executable(self, work: UpdateWork) -> Callable[[Any, Any, Any], Kept]:
        """Return what executes the work of an update, which calls `minimize` of this engine."""
        return self._outer.executable(work)

    def call(
        self, name: str, function: Function, inputs: Any, *, draw: Callable[[], Tensor] | None = None
    ) -> dict[str, NDArray[Any]]:
        """Return a function's results by name, in arrays, without gradients; arguments as of `Engine.call`."""
        return self._outer.call(name, function, inputs, draw=draw)

    def call_on_device(
        self, name: str, function: Function, inputs: Any, *, draw: Callable[[], Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Return a function's results as `call` does, as tensors on the device, without waiting."""
        return self._outer.call_on_device(name, function, inputs, draw=draw)

    def check_steps(self, gradient_steps: Sequence[GradientStep]) -> None:
        """Check that these steps can be taken."""
        self._outer.check_steps(gradient_steps)

    # ---- copies and checkpoints ----

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the other engine."""
        return self._outer.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of the other engine, and compile again."""
        self._outer.load_state_dict(state)
        super().load_state_dict(state)

    def forget(self) -> None:
        """Compile and record everything again."""
        super().forget()
        self._outer.forget()

    def __deepcopy__(self, memo: dict[int, Any]) -> "CompileEngine":
        clone = super().__deepcopy__(memo)
        clone._outer = copy.deepcopy(self._outer, memo)
        return clone

    def _uncopied(self) -> dict[str, Any]:
        return {**super()._uncopied(), "_compiled_graphs": {}}
