"""Fixtures of the tests of one extension and of several; none needs its extension to be imported."""

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Let actors in processes be in this process."""
    from tests.extensions.actors.local_actors import Here

    monkeypatch.setattr("trainkit.extensions.actors.actor_runner.actor_process", Here)
    Here.made.clear()
    yield Here.made
    Here.made.clear()


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let graphs be traced and run, but not compiled; no compiler is needed."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    monkeypatch.setattr("trainkit.extensions.compile.compile_engine.missing", lambda device: None)
    yield
    torch._dynamo.reset()  # type: ignore[no-untyped-call]  # torch's own
