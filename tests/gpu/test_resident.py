"""Frames on the GPU: the numbers of frames that are sent, in a graph too, and nothing waits for them to arrive."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import trainkit as tk
from tests.extensions.cuda.frames_and_arrays import MIXED, STACKED, Source
from tests.helpers.accelerator import computing_in_float32
from tests.helpers.learning import made, parameters_of
from trainkit.engine.lookups import frames_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),  # warned of once, at its first use
]

CUDA = "cuda"


@pytest.fixture(autouse=True)
def _float32() -> Iterator[None]:
    """Compute convolutions in float32: what is compared is where they are computed, not how they are rounded."""
    with computing_in_float32():
        yield


SWITCHES: list[Any] = [
    pytest.param({}, id="eager"),
    pytest.param({"engine": "cuda_graph"}, id="graph"),
    pytest.param({"engine": "cuda_graph", "precision": "bf16"}, id="graph bf16"),
]
DQN: dict[str, Any] = {"hidden": None, "head": (32,), "double": True, "device": CUDA}


def learn_alike(plain: tk.DQNPolicy, resident: tk.DQNPolicy, source: Source, n_updates: int) -> None:
    """Take the same updates, with rows written in between."""
    for step in range(n_updates):
        source.write(3)
        arrays, places = source.draw()
        one, other = (policy.update(batch, step=step) for policy, batch in ((plain, arrays), (resident, places)))
        np.testing.assert_allclose(other.read_priority(), one.read_priority(), rtol=1e-3, atol=1e-4)
    assert_close(parameters_of(resident), parameters_of(plain), rtol=1e-3, atol=1e-4)


@contextmanager
def waiting_is(what: str) -> Iterator[None]:
    """Let torch raise or warn of whatever waits for the device."""
    torch.cuda.set_sync_debug_mode(what)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("n_rows", [1, 64, 1_000])
def test_images_arrive_whole_and_come_back(n_rows: int) -> None:
    rng = np.random.default_rng(0)
    column = rng.integers(0, 255, (2_000, 84, 84), np.uint8)
    rows, places = rng.permutation(2_000)[:n_rows], rng.permutation(3_000)[:n_rows]
    frames = tk.engine.DeviceFrames(CUDA).claim("Buffer", 3_000, (84, 84))
    expected = column[rows]
    frames.write(places, column, rows)
    column[:] = 0  # which may still be on its way
    np.testing.assert_array_equal(frames.read(places), expected)


@pytest.mark.parametrize("space", [STACKED, MIXED], ids=["images", "mixed"])
@pytest.mark.parametrize("switches", SWITCHES)
def test_a_learner_of_places_learns_as_one_of_arrays(switches: Any, space: Any) -> None:
    learn_alike(made(space, **DQN, **switches), made(space, **DQN, **switches), Source(space, CUDA), 12)


def test_a_graph_is_recorded_again_when_images_are_allocated_again() -> None:
    source = Source(STACKED, CUDA, capacity=100)
    source.write(3)
    before = frames_of(source.draw()[1])
    learn_alike(made(STACKED, **DQN), made(STACKED, **DQN, engine="cuda_graph"), source, 14)
    assert frames_of(source.draw()[1]) != before


@pytest.mark.parametrize("switches", SWITCHES)
def test_writing_sampling_and_learning_do_not_wait(switches: Any) -> None:
    policy, source = made(STACKED, **DQN, **switches), Source(STACKED, CUDA)
    source.write(40)  # so that final images find their room
    for step in range(6):
        source.write()
        policy.update(source.draw()[1], step=step)
    with waiting_is("error"):
        for step in range(6, 16):
            source.write()
            result = policy.update(source.draw()[1], step=step)
    assert np.isfinite(np.asarray(result.read_priority())).all()


def test_rows_written_after_an_update_was_requested_do_not_reach_it() -> None:
    def learned(in_a_hurry: bool) -> Any:
        policy, source = made(STACKED, **DQN, engine="cuda_graph"), Source(STACKED, CUDA)
        for step in range(12):
            source.write(20)  # the whole ring
            policy.update(source.draw(512)[1], step=step)
            if not in_a_hurry:
                torch.cuda.synchronize()
        return parameters_of(policy)

    assert_close(learned(True), learned(False), rtol=1e-3, atol=1e-4)


def test_more_than_the_gpu_has_is_refused_when_the_buffer_is_bound() -> None:
    free, _ = torch.cuda.mem_get_info()
    capacity = 2 * free // (36 * 38)
    frames = tk.engine.DeviceFrames(CUDA)
    with pytest.raises(
        tk.errors.DeviceError, match=r"ReplayBuffer\.frames need .* on cuda:\d, for .*: lower the capacity"
    ):
        frames.claim("ReplayBuffer", capacity, (36, 38))


def test_a_policy_on_the_cpu_is_refused() -> None:
    source = Source(STACKED, CUDA)
    source.write(4)
    with pytest.raises(tk.errors.DeviceError, match="frames are on cuda:0, the policy that learns from them is on cpu"):
        made(STACKED, hidden=None, head=(8,)).update(source.draw()[1], step=0)


@pytest.mark.parametrize("refresh", ["update", "late"])
@pytest.mark.parametrize("switches", SWITCHES)
def test_a_run_with_frames_on_the_gpu_waits_no_more_often_than_one_without(switches: Any, refresh: Any) -> None:
    def waits(on_device: bool) -> int:
        box = tk.testing.FakeVectorEnv(STACKED, tk.make_envs("CartPole-v1", 1).action_space, n=4)
        envs = tk.make_envs(box)
        policy = tk.DQNPolicy.for_envs(envs, head=(32,), device=CUDA, **switches)
        frames = tk.engine.DeviceFrames(CUDA) if on_device else None
        own: dict[str, Any] = {"max_epoch": 2, "step_per_epoch": 200, "update_per_step": 0.25, "batch_size": 16}
        own |= {"log_every": 10**9, "refresh_priorities": refresh, "seed": 1, "verbose": False, "show_progress": False}
        collector = tk.Collector(policy, envs, tk.PrioritizedReplayBuffer(300, frames=frames))
        with tk.OffpolicyTrainer(policy, collector, **own) as trainer:
            next(trainer)
            torch.cuda.set_sync_debug_mode("warn")
            try:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    result = next(trainer)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        assert all(np.isfinite(number) for number in result.stats.update.values())
        return sum("synchronizing" in str(one.message) for one in caught)

    assert waits(True) <= waits(False)
