"""The numpy engine reads images on the CPU that a batch refers to, and executes a copy to act on the CPU."""

import pytest

from tests.extensions.cuda.test_cpu_copy import answer
from tests.extensions.cuda.test_device_frames import SMALL, Source
from tests.extensions.numpy_engine.numpy_passes import note_numpy_passes
from tests.helpers.learning import batch_of, made
from trainkit.core.data import Lookup
from trainkit.extensions.cuda.cpu_copy import CpuCopy
from trainkit.extensions.numpy_engine import numpy_function


def test_a_stack_too_small_for_convolutions_is_read_by_the_learner_in_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    note_numpy_passes(monkeypatch, lambda: passes.append(1))
    policy, source = made(SMALL, engine="numpy"), Source(SMALL)
    source.write(3)
    batch = source.draw()[1]
    assert isinstance(batch.obs, Lookup)
    policy.update(batch, step=0)
    assert passes


def test_numpy_evaluates_a_small_network_and_torch_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    note_numpy_passes(monkeypatch, lambda: passes.append(1))
    answer(CpuCopy(), made(), batch_of(3).obs)
    assert passes
    passes.clear()
    monkeypatch.setattr(numpy_function, "MOST_MULTIPLICATIONS", 100)
    answer(CpuCopy(), made(), batch_of(3).obs)
    assert not passes
