"""What executes a policy's losses and forward passes: how tests choose it."""

from typing import Any, TypeVar

from trainkit.core.extensions import table

P = TypeVar("P", bound=Any)


def engines(*names: str) -> list[str]:
    """Return those of these engines that are there, as extensions may be missing."""
    return [name for name in names if name in ("auto", "torch", *table("ENGINES"))]


def precisions(*names: str) -> list[str]:
    """Return those of these precisions that are there."""
    return [name for name in names if name in ("float32", *table("PRECISIONS"))]


AUTO = engines("numpy", "torch")[0]  # what "auto" is on the CPU


def torch_only(policy: P) -> P:
    """Let torch execute a policy, or a copy of one, and return it."""
    policy.engine = "torch"
    return policy
