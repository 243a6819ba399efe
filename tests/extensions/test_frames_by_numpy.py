"""Images on the CPU that a batch refers to are read by the numpy engine."""

import pytest

from tests.extensions.cuda.test_device_frames import SMALL, Source
from tests.helpers.learning import made
from tests.helpers.numpy_passes import note_numpy_passes
from trainkit.core.data import Lookup


def test_a_stack_too_small_for_convolutions_is_read_by_the_learner_in_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    note_numpy_passes(monkeypatch, lambda: passes.append(1))
    policy, source = made(SMALL, engine="numpy"), Source(SMALL)
    source.write(3)
    batch = source.draw()[1]
    assert isinstance(batch.obs, Lookup)
    policy.update(batch, step=0)
    assert passes
