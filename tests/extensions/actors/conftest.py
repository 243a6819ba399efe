"""Fixtures of the tests of actors."""

from collections.abc import Iterator

import pytest

from tests.extensions.actors.test_actors import Here
from trainkit.extensions.actors import actor_runner


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Here]]:
    """Let actors in processes be in this process."""
    monkeypatch.setattr(actor_runner, "actor_process", Here)
    Here.made.clear()
    yield Here.made
    Here.made.clear()
