"""The Q-learner on CUDA: the same path as on the CPU, the same numbers, and nothing waits for the device."""

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

from tests.helpers.learning import MASKED, PARTS, Spaces, assert_same, batch_of, is_legal, made, observations
from trainkit import (
    CategoricalValue,
    Collector,
    DQNPolicy,
    EpsilonGreedy,
    OffpolicyTrainer,
    PrioritizedReplayBuffer,
    Target,
    make_envs,
)
from trainkit.errors import DeviceError, DivergedError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),  # warned of once, at its first use
]

CUDA = "cuda"
RAINBOW: dict[str, Any] = {
    "double": True,
    "dueling": True,
    "noisy": True,
    "value": CategoricalValue(11, -3, 3),
    "n_step": 3,
}


def on_cpu(tree: Any) -> Any:
    """Copy a tree of tensors to the CPU."""
    if isinstance(tree, dict):
        return {key: on_cpu(child) for key, child in tree.items()}
    return tree.detach().cpu().clone() if isinstance(tree, torch.Tensor) else copy.deepcopy(tree)


def weights(policy: DQNPolicy) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = on_cpu(policy.state_dict())
    return state


def learn(policy: DQNPolicy, steps: range, space: Any = None) -> list[Any]:
    """Update for some steps and return the priorities."""
    options = {} if space is None else {"space": space}
    return [policy.update(batch_of(16, seed=step, **options), step=step).read_priority() for step in steps]


@contextmanager
def waiting_is(what: str) -> Iterator[None]:
    """Let torch raise or warn of whatever waits for the device."""
    torch.cuda.set_sync_debug_mode(what)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_auto_puts_everything_on_cuda() -> None:
    policy = made(**RAINBOW, device="auto")

    assert policy.device.type == CUDA
    assert {tensor.device.type for tensor in (*policy.parameters(), *policy.buffers())} == {CUDA}


def test_a_gpu_beyond_the_last_is_rejected() -> None:
    with pytest.raises(DeviceError, match="must have a number below"):
        made(device=f"cuda:{torch.cuda.device_count()}")


@pytest.mark.parametrize("options", PARTS)
def test_a_seed_draws_the_same_weights_as_on_the_cpu(options: Any) -> None:
    at_construction, later = made(**options, device=CUDA, seed=1), made(**options, device=CUDA, seed=None)
    later.seed(1)

    assert_same(weights(at_construction), weights(made(**options, seed=1)))
    assert_same(weights(later), weights(at_construction))


def test_values_equal_those_of_the_cpu() -> None:
    obs = batch_of(100, space=MASKED).obs
    here, there = (made(MASKED, dueling=True, device=device) for device in ("cpu", CUDA))

    np.testing.assert_allclose(there.action_values(obs), here.action_values(obs), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(there.act(obs).action, there.predict(obs))


def test_explores_among_legal_actions_by_the_same_coins_as_on_the_cpu() -> None:
    obs = batch_of(100, space=MASKED).obs
    here, there = (made(MASKED, device=device, exploration=EpsilonGreedy(1.0)) for device in ("cpu", CUDA))
    action = there.act(obs, explore=True).action

    assert is_legal(action, obs["action_mask"] != 0)
    np.testing.assert_array_equal(action, here.act(obs, explore=True).action)


def test_noise_follows_explore_and_is_drawn_by_row() -> None:
    policy = made(noisy=True, device=CUDA)
    obs = batch_of(1).obs.repeat(20, axis=0)

    assert len(np.unique(policy.action_values(obs, explore=True)[:, 0])) == 20
    assert len(np.unique(policy.action_values(obs)[:, 0])) == 1


@pytest.mark.parametrize("space", [Spaces().observation_space, MASKED], ids=["all legal", "masked"])
@pytest.mark.parametrize(
    "options",
    [{}, {"double": True, "dueling": True, "value": CategoricalValue(11, -3, 3), "target": Target(3, "updates")}],
    ids=["dqn", "categorical double dueling"],
)
def test_updates_equal_those_of_the_cpu(options: Any, space: Any) -> None:
    here, there = (made(space, **options, device=device) for device in ("cpu", CUDA))
    for one, other in zip(learn(here, range(20), space), learn(there, range(20), space), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-3, atol=1e-4)

    assert_close(weights(there), weights(here), rtol=1e-3, atol=1e-4)
    assert there.read_metrics() == pytest.approx(here.read_metrics(), rel=1e-3, abs=1e-4)


def test_all_six_parts_learn_with_finite_priorities() -> None:
    policy = made(**RAINBOW, device=CUDA)
    before = weights(policy)
    for priority in learn(policy, range(20)):
        assert priority.shape == (16,)
        assert np.isfinite(priority).all()
        assert (priority >= 0).all()

    moved = {name: (tensor != before[name]).any() for name, tensor in weights(policy).items()}
    assert all(moved[name] for name in moved if name.startswith("network."))


def test_images_arrive_whole() -> None:
    space = spaces.Box(0, 255, (36, 38, 3), np.uint8)
    here, there = (made(space, device=device) for device in ("cpu", CUDA))
    obs = observations(space, 8)

    np.testing.assert_allclose(there.action_values(obs), here.action_values(obs), rtol=1e-2, atol=1e-3)
    assert there.update(batch_of(8, space=space), step=0).read_priority().shape == (8,)


def test_a_batch_may_be_overwritten_as_soon_as_update_returns() -> None:
    one, other = made(device=CUDA), made(device=CUDA)
    for step in range(10):
        kept, spoilt = (batch_of(4096, seed=step) for _ in range(2))
        one.update(kept, step=step)
        other.update(spoilt, step=step)
        spoilt.obs[:] = np.nan
        spoilt.reward[:] = np.nan

    assert_same(weights(one), weights(other))


@pytest.mark.parametrize("options", PARTS)
def test_updates_do_not_wait_for_the_device(options: Any) -> None:
    policy = made(**options, device=CUDA)
    learn(policy, range(3))  # parameters are laid out at the first
    batches = [batch_of(16, seed=step) for step in range(3, 8)]

    with waiting_is("error"):
        results = [policy.update(batch, step=10 * step) for step, batch in enumerate(batches)]
    assert all(np.isfinite(result.read_priority()).all() for result in results)


def test_acting_waits_for_its_answer_only() -> None:
    policy = made(**RAINBOW, device=CUDA)
    obs = batch_of(16).obs
    policy.act(obs, explore=True)
    with warnings.catch_warnings(record=True) as caught, waiting_is("warn"):
        warnings.simplefilter("always")
        policy.act(obs, explore=True)

    assert len([one for one in caught if "synchronizing" in str(one.message)]) == 1


def test_a_gradient_that_is_not_finite_moves_nothing_and_is_reported_at_the_next_read() -> None:
    policy = made(device=CUDA)
    learn(policy, range(3))
    policy.read_metrics()
    before = weights(policy)
    policy.update(batch_of(8, reward=np.full(8, np.nan, np.float32)), step=3)

    assert_same(weights(policy), before)
    with pytest.raises(DivergedError, match="among updates 4 to 4 was not finite"):
        policy.read_metrics()
    learn(policy, range(4, 6))
    assert np.isfinite(policy.read_metrics()["loss"])


def test_an_update_that_diverged_is_reported_when_a_trainer_queries() -> None:
    policy = made(device=CUDA)
    learn(policy, range(3))
    policy.check_divergence()
    policy.update(batch_of(8, reward=np.full(8, np.nan, np.float32)), step=3)
    policy.check_divergence()  # which starts to read what the next call knows
    with pytest.raises(DivergedError, match="among updates 1 to 4 was not finite"):
        policy.check_divergence()
    policy.check_divergence()


def test_skipped_updates_are_counted_on_the_device() -> None:
    policy = made(device=CUDA)
    policy.on_nan = "skip"
    learn(policy, range(3))
    before = weights(policy)
    spoilt = batch_of(8, reward=np.full(8, np.nan, np.float32))
    results = [policy.update(spoilt, step=3) for _ in range(10)]
    policy.check_divergence()
    assert results[-1].read_priority() is None
    assert_same(weights(policy), before)
    assert np.isfinite(list(policy.read_metrics().values())).all()
    policy.update(spoilt, step=3)
    policy.check_divergence()
    with pytest.raises(DivergedError, match="11 updates in a row up to update 14"):
        policy.check_divergence()


# ---- resuming ----


def compare(options: Any) -> Callable[[Any, Any], None]:
    """Compare bit by bit, but where atoms are added up in any order."""
    if "value" in options:
        return lambda one, other: assert_close(one, other, rtol=1e-3, atol=1e-4)
    return assert_same


@pytest.mark.parametrize("options", PARTS)
def test_training_continues_from_a_saved_state(options: Any) -> None:
    straight, resumed = made(**options, device=CUDA), made(**options, device=CUDA, seed=9)
    learn(straight, range(10))
    resumed.load_training_state(on_cpu(straight.training_state()))
    assert_same(on_cpu(resumed.training_state()), on_cpu(straight.training_state()))

    learn(straight, range(10, 20))
    learn(resumed, range(10, 20))
    compare(options)(weights(resumed), weights(straight))
    obs = batch_of(50).obs
    compare(options)(*(torch.from_numpy(p.action_values(obs, explore=True)) for p in (resumed, straight)))


@pytest.mark.parametrize(("start", "end"), [("cpu", CUDA), (CUDA, "cpu")])
def test_a_state_moves_between_cpu_and_cuda(start: str, end: str) -> None:
    straight, resumed = made(device=start), made(device=end, seed=9)
    learn(straight, range(10))
    resumed.load_training_state(on_cpu(straight.training_state()))
    assert_same(weights(resumed), weights(straight))

    learn(straight, range(10, 20))
    learn(resumed, range(10, 20))
    assert_close(weights(resumed), weights(straight), rtol=1e-3, atol=1e-4)


def test_a_run_on_cuda_reports_finite_numbers() -> None:
    envs = make_envs("CartPole-v1", 4)
    policy = DQNPolicy.for_envs(envs, hidden=(32,), **RAINBOW, device=CUDA)
    buffer = PrioritizedReplayBuffer(2000, alpha=0.6, beta=0.4)
    trainer = OffpolicyTrainer(
        policy,
        Collector(policy, envs, buffer),
        max_epoch=2,
        step_per_epoch=400,
        step_per_collect=4,
        update_per_step=0.25,
        batch_size=32,
        seed=1,
        verbose=False,
        show_progress=False,
    )
    with trainer:
        epochs = list(trainer)

    assert [epoch.info.env_step for epoch in epochs] == [400, 800]
    assert all(np.isfinite(number) for epoch in epochs for number in epoch.stats.update.values())
