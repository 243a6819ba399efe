"""Buffers that a loss moves, such as batch norm's running statistics or spectral norm's vectors.

They are results of the computation, as the loss is: a step that is not taken leaves them as they were, and a pass that
only compares does not move them.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from trainkit.engine.gradient_step import Scalar


def may_have_modes(kind: type[nn.Module]) -> bool:
    """Return whether modules of a class may compute differently while they learn, and may write their buffers then.

    Trainkit's own do not, except those of a class with `has_modes = True`.
    """
    return not kind.__module__.startswith("trainkit.") or getattr(kind, "has_modes", False)


def movable_buffers(policy: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that a loss of a policy may write, by name."""
    return {
        f"{path}.{name}" if path else name: buffer
        for path, module in policy.named_modules()
        if may_have_modes(type(module))
        for name, buffer in module.named_buffers(recurse=False)
    }


@torch.no_grad()
def copied(buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of buffers."""
    return {name: buffer.clone() for name, buffer in buffers.items()}


@torch.no_grad()
def undo_where(skipped: Scalar, buffers: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> None:
    """Give buffers the values that they had before a step, if it was skipped."""
    for name, buffer in buffers.items() if isinstance(skipped, Tensor) or skipped else ():
        buffer.copy_(torch.where(skipped > 0, before[name], buffer) if isinstance(skipped, Tensor) else before[name])
