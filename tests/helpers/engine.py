"""What executes a policy's losses and forward passes: how tests choose it, and how they notice numpy."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch

from trainkit.engine.program import Program

P = TypeVar("P", bound=Any)
COMPILES = "isolate_recompiles" in inspect.signature(torch.compile).parameters
needs_compile = pytest.mark.skipif(
    not COMPILES, reason=f"engine='compile' needs torch 2.13, and this is {torch.__version__}"
)


def torch_only(policy: P) -> P:
    """Let torch execute a policy, or a copy of one, and return it."""
    policy.engine = "torch"
    return policy


def note_numpy_passes(monkeypatch: pytest.MonkeyPatch, note: Callable[[], object]) -> None:
    """Call `note` before each run of a program that was derived into numpy."""
    call = Program.__call__

    def noted(program: Program, inputs: Any) -> Any:
        note()
        return call(program, inputs)

    monkeypatch.setattr(Program, "__call__", noted)
