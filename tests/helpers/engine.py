"""What executes a policy's losses and forward passes: how tests choose it, and how they notice numpy."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch

P = TypeVar("P")
COMPILES = "isolate_recompiles" in inspect.signature(torch.compile).parameters
needs_compile = pytest.mark.skipif(
    not COMPILES, reason=f"engine='compile' needs torch 2.13, and this is {torch.__version__}"
)


def torch_only(policy: P) -> P:
    """Let torch execute a policy, or a copy of one, and return it."""
    if hasattr(policy, "engine"):
        policy.engine = "torch"
        return policy
    for name in ("_host", "_host_learner"):  # at commits without engines, which `tests.digests` compares with
        if hasattr(policy, name):
            setattr(policy, name, None)
    return policy


def note_numpy_passes(monkeypatch: pytest.MonkeyPatch, note: Callable[[], object]) -> None:
    """Call `note` before each run of a program that was derived into numpy."""
    from trainkit.engine.program import Program  # which older commits do not have

    call = Program.__call__

    def noted(program: Program, inputs: Any) -> Any:
        note()
        return call(program, inputs)

    monkeypatch.setattr(Program, "__call__", noted)
