"""A gradient step that takes itself on a loss, as an engine takes it."""

from collections.abc import Callable
from typing import Any

from trainkit.engine.gradient_step import GradientStep, Taken, denormals_flushed


class TorchStep(GradientStep):
    """A gradient step by torch, without an engine."""

    def __call__(self, loss: Callable[[], Any], *, step: int) -> Taken:
        """Take one step on a loss, which returns the scalar to minimize, or (the scalar, more)."""
        with denormals_flushed(self.flush_denormals):
            with self.differentiation():
                result = loss()
                value, more = result if isinstance(result, tuple) else (result, ())
                self.differentiate(value)
            return self.apply(value.detach(), more, step=step)
