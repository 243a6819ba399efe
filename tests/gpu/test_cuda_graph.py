"""Graphs, pinned memory and bfloat16 where they belong: the numbers of plain updates on CUDA, and nothing waits."""

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.testing import assert_close

from tests.extensions.cuda.graph_learners import ELSEWHERE, IN_PLACE, NAN, Curious
from tests.helpers.accelerator import computing_in_float32
from tests.helpers.learning import PARTS, assert_same, batch_of, made, parameters_of
from trainkit import Collector, ConfigError, DQNPolicy, OffpolicyTrainer, PrioritizedReplayBuffer, make_envs
from trainkit.engine.device import PinnedBatch
from trainkit.errors import DivergedError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),  # warned of once, at its first use
]

CUDA = "cuda"
IMAGES = spaces.Box(0, 255, (4, 44, 44), np.uint8)
SWITCHES: list[Any] = [
    pytest.param({"engine": "torch"}, id="eager"),
    pytest.param({"engine": "cuda_graph"}, id="graph"),
    pytest.param({"engine": "cuda_graph", "precision": "bf16"}, id="graph bf16"),
    pytest.param({"engine": "cuda_graph", "precision": "tf32"}, id="graph tf32"),
]


def learn(policy: DQNPolicy, steps: range, **options: Any) -> list[Any]:
    return [policy.update(batch_of(16, seed=step, **options), step=step).read_priority() for step in steps]


def n_recorded(policy: DQNPolicy) -> int:
    graphs = policy.engine._graphs
    return graphs["update", ""].n_recordings if graphs else 0


def learn_alike(recorded: DQNPolicy, plain: DQNPolicy, steps: range, **options: Any) -> None:
    """Take the same updates; atoms are added up in any order, so not to the bit."""
    for one, other in zip(learn(recorded, steps, **options), learn(plain, steps, **options), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
    assert_close(parameters_of(recorded), parameters_of(plain), rtol=1e-3, atol=1e-4)
    assert recorded.read_metrics() == pytest.approx(plain.read_metrics(), rel=1e-3, abs=1e-4)


@contextmanager
def counted_waits() -> Iterator[list[Any]]:
    """List the calls that wait for the device; full when it is over."""
    found: list[Any] = []
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield found
    finally:
        torch.cuda.set_sync_debug_mode("default")
    found += [one for one in caught if "synchronizing" in str(one.message)]


# ---- the same numbers ----


@pytest.mark.parametrize("parts", PARTS)
def test_a_graph_learns_as_plain_updates_do(parts: dict[str, Any]) -> None:
    recorded, plain = made(**parts, device=CUDA, engine="cuda_graph"), made(**parts, device=CUDA, engine="torch")
    learn_alike(recorded, plain, range(30))
    assert n_recorded(recorded) == 1


def test_a_graph_of_convolutions_learns_as_plain_updates_do() -> None:
    options: dict[str, Any] = {"hidden": None, "head": (32,), "double": True, "device": CUDA}
    recorded, plain = made(IMAGES, **options, engine="cuda_graph"), made(IMAGES, **options, engine="torch")
    with computing_in_float32():
        learn_alike(recorded, plain, range(12), space=IMAGES)


@pytest.mark.slow
def test_what_is_compiled_learns_as_plain_updates_do() -> None:
    options: dict[str, Any] = {"double": True, "dueling": True, "noisy": True, "device": CUDA}
    learn_alike(made(**options, engine="compile"), made(**options, engine="torch"), range(20))


def test_every_update_counts_once() -> None:
    policy = made(device=CUDA, engine="cuda_graph")
    for n_updates in range(1, 8):
        learn(policy, range(n_updates, n_updates + 1))
        moments = policy.training_state()["optimizers"]["network"]["state"]
        assert {float(moment["step"]) for moment in moments.values()} == {n_updates}


@pytest.mark.parametrize(
    "options",
    [{"precision": "bf16"}, {"precision": "tf32"}],
    ids=["bf16", "tf32"],
)
def test_images_are_learned_from_nearly_as_on_the_cpu(options: Any) -> None:
    there = made(IMAGES, hidden=None, head=(32,), device=CUDA, **options)
    here = made(IMAGES, hidden=None, head=(32,))
    for one, other in zip(learn(there, range(5), space=IMAGES), learn(here, range(5), space=IMAGES), strict=True):
        np.testing.assert_allclose(one, other, rtol=0.05, atol=0.05)
    assert {tensor.dtype for tensor in there.parameters()} == {torch.float32}


# ---- what happens on the way ----


@pytest.mark.parametrize("meddle", [*IN_PLACE, *ELSEWHERE])
def test_training_continues_from_what_is_replaced(meddle: Callable[[DQNPolicy], None]) -> None:
    options: dict[str, Any] = {"noisy": True, "double": True, "normalize_obs": True, "device": CUDA}
    recorded, plain = made(**options, engine="cuda_graph"), made(**options, engine="torch")
    learn_alike(recorded, plain, range(6))
    for policy in (recorded, plain):
        meddle(policy)
    learn_alike(recorded, plain, range(6, 14))
    assert n_recorded(recorded) == 1


def test_a_copy_learns_on_by_itself() -> None:
    one, plain = made(noisy=True, device=CUDA, engine="cuda_graph"), made(noisy=True, device=CUDA, engine="torch")
    learn_alike(one, plain, range(6))
    other = copy.deepcopy(one)
    learn_alike(other, copy.deepcopy(plain), range(6, 12))
    learn_alike(one, plain, range(6, 12))


def test_a_batch_may_be_overwritten_as_soon_as_update_returns() -> None:
    one, other = (made(device=CUDA, engine="cuda_graph") for _ in range(2))
    for step in range(12):
        kept, spoilt = (batch_of(4096, seed=step) for _ in range(2))
        one.update(kept, step=step)
        other.update(spoilt, step=step)
        spoilt.obs[:] = np.nan
        spoilt.reward[:] = np.nan
    assert_same(parameters_of(one), parameters_of(other))


def test_priorities_may_be_read_after_the_next_update() -> None:
    late, at_once = (made(device=CUDA, engine="cuda_graph") for _ in range(2))
    before = late.update(batch_of(16), step=0)
    for step, expected in enumerate(learn(at_once, range(8))):
        after = late.update(batch_of(16, seed=step + 1), step=step + 1)
        assert_same(before.read_priority(), expected)
        before = after


def test_a_step_that_is_not_finite_is_skipped_and_reported_at_the_next_read() -> None:
    policy = made(device=CUDA, engine="cuda_graph")
    learn(policy, range(6))
    policy.check_divergence()
    before = parameters_of(policy)
    policy.update(batch_of(16, reward=NAN), step=6)
    assert_same(parameters_of(policy), before)
    policy.check_divergence()  # which starts to read what the next call knows
    with pytest.raises(DivergedError, match="among updates 1 to 7 was not finite"):
        policy.check_divergence()


def test_a_part_that_waits_for_the_device_is_refused_when_it_is_recorded() -> None:
    policy = made(backup=Curious(), device=CUDA, engine="cuda_graph")
    with pytest.raises(ConfigError, match="engine 'cuda_graph' cannot execute its functions: an update waits"):
        learn(policy, range(10))


# ---- who waits ----


def test_batches_travel_from_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = made(device=CUDA)
    sent: list[PinnedBatch] = []
    own = PinnedBatch.__init__

    def note(batch: PinnedBatch, *given: Any) -> None:
        own(batch, *given)
        sent.append(batch)

    monkeypatch.setattr(PinnedBatch, "__init__", note)
    policy.update(batch_of(16), step=0)
    assert [batch.block.is_pinned() for batch in sent] == [True] * len(sent) != []


@pytest.mark.parametrize("switches", SWITCHES)
@pytest.mark.parametrize("parts", PARTS)
def test_an_update_never_waits_and_reading_priorities_waits_once(parts: Any, switches: Any) -> None:
    policy = made(**parts, **switches, device=CUDA)
    learn(policy, range(6))
    batches = [batch_of(16, seed=step) for step in range(6, 16)]
    for step, batch in enumerate(batches):
        with counted_waits() as waits:
            result = policy.update(batch, step=10 * step)
        assert len(waits) == 0
        with counted_waits() as waits:
            assert np.isfinite(result.read_priority()).all()
        assert len(waits) == 1


@pytest.mark.parametrize("refresh", ["update", "late"])
@pytest.mark.parametrize("switches", SWITCHES)
def test_a_run_waits_to_act_for_priorities_and_for_divergence_and_for_nothing_else(switches: Any, refresh: Any) -> None:
    envs = make_envs("CartPole-v1", 4)
    policy = DQNPolicy.for_envs(envs, hidden=(32,), double=True, device=CUDA, **switches)
    buffer = PrioritizedReplayBuffer(2000)
    trainer = OffpolicyTrainer(
        policy,
        Collector(policy, envs, buffer),
        max_epoch=2,
        step_per_epoch=400,
        step_per_collect=4,
        update_per_step=0.25,
        batch_size=32,
        refresh_priorities=refresh,
        log_every=10**9,
        seed=1,
        verbose=False,
        show_progress=False,
    )
    with trainer:
        next(trainer)
        before = trainer.gradient_step
        with counted_waits() as waits:
            result = next(trainer)
        n_updates, n_acts = trainer.gradient_step - before, 100
    assert n_updates == 100
    assert len(waits) <= n_acts + 2 * n_updates + 20  # to act, for priorities, and for divergence once per collect
    assert all(np.isfinite(number) for number in result.stats.update.values())
