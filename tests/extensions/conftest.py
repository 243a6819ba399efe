"""Fixtures of the tests of one extension and of several; none needs its extension to be imported."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Let actors in processes be in this process."""
    from tests.extensions.actors.local_actors import Here

    monkeypatch.setattr("trainkit.extensions.actors.actor_runner.actor_process", Here)
    Here.made.clear()
    yield Here.made
    Here.made.clear()


@pytest.fixture
def single_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Have trainers take part in a group of one rank."""
    from trainkit.extensions.ranks.ranks import Ranks

    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    ranks = Ranks(0, 1)
    monkeypatch.setenv("WORLD_SIZE", "1")  # as torchrun does
    monkeypatch.setattr(Ranks, "launched", classmethod(lambda cls: ranks))
    yield ranks
    torch.distributed.destroy_process_group()
