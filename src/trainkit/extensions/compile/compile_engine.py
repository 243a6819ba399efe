"""The compile engine: `torch.compile` of the same losses; torch executes what a policy acts by."""

from typing import Any

import torch
from torch import Tensor

from trainkit.core import user_code
from trainkit.engine.device import to_device
from trainkit.engine.engine import Engine
from trainkit.engine.gradient_step import GradientStep, Taken, denormals_flushed
from trainkit.engine.loss import Objective, OwnObjective
from trainkit.engine.moving_buffers import copied
from trainkit.extensions.compile.compiling import LossGraph, missing


class CompileEngine(Engine):
    """Compile each loss with its gradients from its second step on; for arguments and attributes see `Engine`."""

    _compiled_graphs: dict[GradientStep, LossGraph]

    @classmethod
    def problem(cls, device: torch.device, precision: str) -> str | None:
        """Return what torch needs to compile for a device and is missing."""
        needed = missing(device)
        return None if needed is None else f"needs {needed}: install it, or choose another engine"

    @property
    def name(self) -> str:
        """The engine that executes."""
        return "compile"

    def _uncopied(self) -> dict[str, Any]:
        return {**super()._uncopied(), "_compiled_graphs": {}}

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
            rows = objective.rows(to_device(given, self._device))
            buffers = copied(self._movable)
            precision = self._precision.during_step(gradient_step.trainable, is_compiled=True)
            with user_code.running(), gradient_step.differentiation(), precision:
                results = self._compiled_graphs[gradient_step](objective, rows, gradient_step.groups)
            return self._apply(gradient_step, objective, results, buffers, step=step, lr=lr)
