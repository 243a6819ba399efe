"""Whether somebody waits for what torch does and numpy would not: a module's passes, a weight's gradient."""

from typing import Any

from torch import nn

Hooks = list[dict[Any, Any]]  # of modules; they stay the same ones, empty or not


def hooks_of(module: nn.Module) -> Hooks:
    """List the hooks of a module and of all its parts, as torch keeps them."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return [getattr(part, kind) for part in module.modules() for kind in kinds]


def learns_alone(parameter: nn.Parameter) -> bool:
    """Whether a weight learns, and nobody else waits for its gradient."""
    hooks = parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None)
    return parameter.requires_grad and not hooks
