"""The other learners on CUDA, on-policy, SAC and offline: the numbers of the CPU, and nothing waits for the device."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.testing import assert_close

import trainkit as tk
from tests.helpers.learning import FOUR_NUMBERS, MASKED, Spaces, batch_of
from tests.helpers.rollouts import played

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),  # warned of once, at its first use
]

CUDA = "cuda"
BOX = spaces.Box(-2.0, 2.0, (2,), np.float32)
CONTINUOUS = Spaces(FOUR_NUMBERS, BOX)
LEARNERS: list[Any] = [
    pytest.param(lambda device: tk.SACPolicy.for_envs(CONTINUOUS, hidden=(8, 8), device=device, seed=0), id="sac"),
    pytest.param(
        lambda device: tk.SACPolicy.for_envs(
            CONTINUOUS, hidden=(8,), temperature=0.1, normalize_obs=True, device=device, seed=0
        ),
        id="sac normalised",
    ),
    pytest.param(lambda device: tk.BCPolicy.for_envs(Spaces(), hidden=(8,), device=device, seed=0), id="bc"),
    pytest.param(lambda device: tk.BCPolicy.for_envs(CONTINUOUS, hidden=(8,), device=device, seed=0), id="bc box"),
    pytest.param(
        lambda device: tk.DQNPolicy.for_envs(
            Spaces(), hidden=(8,), penalty=tk.ConservativePenalty(1.0), device=device, seed=0
        ),
        id="cql",
    ),
    pytest.param(lambda device: tk.DiscreteBCQPolicy.for_envs(Spaces(), hidden=(8,), device=device, seed=0), id="bcq"),
]


def batch(policy: Any, seed: int) -> tk.TransitionBatch:
    rows = batch_of(16, seed=seed)
    if isinstance(policy.action_space, spaces.Box):
        rng = np.random.default_rng(seed)
        return batch_of(16, seed=seed, action=rng.uniform(-1.9, 1.9, (16, 2)).astype(np.float32))
    return rows


def transition(seed: int) -> tk.Transition:
    rows, flags = batch_of(8, seed=seed), np.zeros(8, np.bool_)
    return tk.Transition(rows.obs, rows.action, rows.reward, rows.next_obs, flags, flags, np.arange(8), {})


def on_cpu(policy: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in policy.state_dict().items()}


@contextmanager
def waiting_is(what: str) -> Iterator[None]:
    """Let torch raise or warn of whatever waits for the device."""
    torch.cuda.set_sync_debug_mode(what)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("make", LEARNERS)
def test_a_learner_lives_on_cuda_and_starts_with_the_cpus_weights(make: Any) -> None:
    here, there = make("cpu"), make(CUDA)
    assert {tensor.device.type for tensor in (*there.parameters(), *there.buffers())} == {CUDA}
    assert_close(on_cpu(there), on_cpu(here), rtol=0, atol=0)


@pytest.mark.parametrize("make", LEARNERS)
def test_an_update_moves_all_to_finite_weights_and_acting_follows(make: Any) -> None:
    policy = make(CUDA)
    before = on_cpu(policy)
    for step in range(5):
        policy.update(batch(policy, step), step=step)
    after = on_cpu(policy)
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert all(tensor.isfinite().all() for tensor in after.values())
    assert all(np.isfinite(number) for number in policy.read_metrics().values())
    action = policy.act(batch_of(5).obs, explore=True).action
    assert np.isfinite(action).all()


@pytest.mark.parametrize("make", LEARNERS)
def test_updates_do_not_wait_for_the_device(make: Any) -> None:
    policy = make(CUDA)
    batches = [batch(policy, step) for step in range(8)]
    for step in range(3):  # parameters are laid out at the first
        policy.update(batches[step], step=step)
    with waiting_is("error"):
        for step in range(3, 8):
            policy.update(batches[step], step=step)


@pytest.mark.parametrize("space", [FOUR_NUMBERS, MASKED], ids=["all legal", "masked"])
@pytest.mark.parametrize("kind", [tk.PPOPolicy, tk.A2CPolicy, tk.ReinforcePolicy])
def test_a_rollout_is_learned_from_as_on_the_cpu(kind: Any, space: Any) -> None:
    here, there = (kind.for_envs(Spaces(space), hidden=(8,), device=device, seed=0) for device in ("cpu", CUDA))
    rollout = played(here, space)
    for policy in (here, there):
        for step in range(5):
            for _ in policy.learn(rollout, step=step, batch_size=None, repeat=2):
                pass
    assert_close(on_cpu(there), on_cpu(here), rtol=1e-3, atol=1e-4)
    assert there.read_metrics() == pytest.approx(here.read_metrics(), rel=1e-3, abs=1e-4)


def test_statistics_of_observations_are_those_of_the_cpu_without_a_wait() -> None:
    here, there = (
        tk.PPOPolicy.for_envs(Spaces(), hidden=(8,), normalize_obs=True, device=device, seed=0)
        for device in ("cpu", CUDA)
    )
    there.observe(transition(0))
    here.observe(transition(0))
    with waiting_is("error"):
        for seed in range(1, 4):
            there.observe(transition(seed))
    for seed in range(1, 4):
        here.observe(transition(seed))
    for policy in (here, there):
        policy.preprocess.fold()
    assert_close(on_cpu(there), on_cpu(here))


@pytest.mark.parametrize("preset", ["ppo", "sac"])
def test_a_run_on_cuda_reports_finite_numbers(preset: str) -> None:
    small: dict[str, Any] = {"ppo": {}, "sac": {"learning_starts": 64, "batch_size": 32}}[preset]
    trainer = tk.presets.PRESETS[preset](
        "Pendulum-v1", seed=1, device=CUDA, max_epoch=1, step_per_epoch=400, n_test_envs=2, verbose=False, **small
    )
    with trainer:
        (result,) = trainer
    assert all(np.isfinite(number) for number in tk.scalars(result.stats).values())


def test_the_weights_of_an_lstm_are_one_block_which_cudnn_does_not_copy() -> None:
    policy = tk.DQNPolicy.for_envs(Spaces(), hidden=(8,), recurrent="lstm", device=CUDA, seed=0)
    lstm = policy.network.encoder.memory
    assert len({parameter.untyped_storage().data_ptr() for parameter in lstm.parameters()}) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.lstm(
            torch.zeros(2, 3, 8, device=CUDA), tuple(torch.zeros(2, 1, 3, 8, device=CUDA)), list(lstm.parameters()),
            True, 1, 0.0, False, False, False,
        )  # fmt: skip
