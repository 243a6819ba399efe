"""The numpy engine reads images on the CPU that a batch refers to, and executes a copy to act on the CPU."""

import pytest

from tests.extensions.cuda.frames_and_arrays import SMALL, Source
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
    policy, obs = made(), batch_of(3).obs
    policy.enter(training=False)
    for most, is_numpy in ((numpy_function.MOST_MULTIPLICATIONS, True), (100, False)):
        monkeypatch.setattr(numpy_function, "MOST_MULTIPLICATIONS", most)
        own = CpuCopy()
        assert own.supports((policy.preprocess, policy.network, policy.value))
        own.action_values(obs, None, n_updates=policy.n_updates)
        assert bool(passes) is is_numpy
        passes.clear()
