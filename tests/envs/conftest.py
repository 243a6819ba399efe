"""Fixtures of the tests of environments."""

from collections.abc import Iterator

import pytest

from tests.envs.test_actors import Here
from trainkit.envs import actors


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Here]]:
    """Let actors of backend "process" be in this process."""
    monkeypatch.setattr(actors, "_InProcess", Here)
    Here.made.clear()
    yield Here.made
    Here.made.clear()
