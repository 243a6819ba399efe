"""How tests notice that numpy executes a function."""

from collections.abc import Callable
from typing import Any

import pytest

from trainkit.extensions.numpy_engine.program import Program


def note_numpy_passes(monkeypatch: pytest.MonkeyPatch, note: Callable[[], object]) -> None:
    """Call `note` before each run of a program that was derived into numpy."""
    call = Program.__call__

    def noted(program: Program, inputs: Any) -> Any:
        note()
        return call(program, inputs)

    monkeypatch.setattr(Program, "__call__", noted)
