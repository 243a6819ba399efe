"""Copies of buffers, by `copy.deepcopy` or pickle: they continue as the original does, and apart from it."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.buffer.stream import CONTINUES, TERMINATES, Stream
from trainkit import PrioritizedReplayBuffer, ReplayBuffer
from trainkit.core.data import Horizon

HORIZON = Horizon(n_step=3, gamma=0.9)
BUFFERS: dict[str, Callable[[], ReplayBuffer]] = {
    "uniform": lambda: ReplayBuffer(25, seed=1),
    "prioritised": lambda: PrioritizedReplayBuffer(25, seed=1),
    "with a least": lambda: PrioritizedReplayBuffer(25, normalize="buffer", seed=1),
}


def unpickled(buffer: ReplayBuffer) -> ReplayBuffer:
    again: ReplayBuffer = pickle.loads(pickle.dumps(buffer))  # noqa: S301  # our own
    return again


def advance(buffer: ReplayBuffer, stream: Stream, n_steps: int, seed: int) -> list[Any]:
    """Add steps, draw and write priorities; return all that was drawn."""
    rng, drawn = np.random.default_rng(seed), []
    for _ in range(n_steps):
        buffer.add(stream.next(ends=np.where(rng.random(stream.n_envs) < 0.2, TERMINATES, CONTINUES)))
        batch = buffer.sample(8, horizon=HORIZON)
        buffer.update_priorities(batch.slots, rng.random(8))
        columns = batch.obs, batch.action, batch.reward, batch.discount, batch.next_obs, batch.weight, batch.slots
        drawn.append([column.tolist() for column in columns])
    return drawn


@pytest.mark.one_of_each
@pytest.mark.parametrize("kind", BUFFERS)
@pytest.mark.parametrize("copied", [copy.deepcopy, unpickled])
@pytest.mark.parametrize("n_before", [0, 40])
def test_a_copy_continues_like_the_original_and_independently_of_it(
    kind: str, copied: Callable[[Any], Any], n_before: int
) -> None:
    original, stream = BUFFERS[kind](), Stream(3)
    advance(original, stream, n_before, seed=0)
    other, other_stream = copied(original), copy.deepcopy(stream)

    expected = advance(original, stream, 12, seed=1)
    assert advance(other, other_stream, 12, seed=1) == expected
    before = pickle.dumps(other.state_dict())
    advance(original, stream, 12, seed=2)
    assert pickle.dumps(other.state_dict()) == before
    assert len(other) == len(original) == 25
