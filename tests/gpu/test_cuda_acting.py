"""Acting on the CPU while the policy learns on CUDA: the device's answers and noise, and nothing waits in vain."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import trainkit as tk
from tests.extensions.cuda.graph_learners import ELSEWHERE, IN_PLACE
from tests.helpers.accelerator import computing_in_float32
from tests.helpers.learning import MASKED, PARTS, batch_of, made

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


IMAGES = spaces.Box(0, 255, (4, 44, 44), np.uint8)
KINDS = [
    *PARTS,
    pytest.param({"space": MASKED, "dueling": True, "normalize_obs": True}, id="masked dueling normalised"),
    pytest.param({"space": IMAGES, "hidden": None, "head": (32,)}, id="images"),
]


def there(**options: Any) -> tk.DQNPolicy:
    return made(**{"device": CUDA, "act_on": "cpu", "exploration": tk.Greedy()} | options)


def assert_answers(policy: tk.DQNPolicy, obs: Any) -> None:
    """Query both ways, with the same noise, and compare."""
    other = copy.deepcopy(policy)
    other.network.register_forward_hook(lambda *given: None)  # no copy has hooks, so the device answers
    result, expected = (one.action_values(obs, explore=True) for one in (policy, other))
    assert torch.equal(policy.generator.get_state(), other.generator.get_state())
    np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("switches", [{}, {"engine": "cuda_graph"}], ids=["eager", "graph"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_copy_answers_as_the_device_does_after_every_update(kind: dict[str, Any], switches: Any) -> None:
    policy = there(**kind, **switches)
    options = {"space": kind["space"]} if "space" in kind else {}
    for step in range(10):
        assert_answers(policy, batch_of(5, seed=step, **options).obs)
        policy.update(batch_of(16, seed=step, **options), step=step)
    assert {tensor.device.type for tensor in (*policy.parameters(), *policy.buffers())} == {CUDA}


@pytest.mark.parametrize("meddle", [*IN_PLACE, *ELSEWHERE])
def test_what_is_replaced_is_acted_on(meddle: Callable[[tk.DQNPolicy], None]) -> None:
    policy = there(noisy=True, double=True, normalize_obs=True, engine="cuda_graph")
    for step in range(12):
        policy.update(batch_of(16, seed=step), step=step)
        assert_answers(policy, batch_of(5, seed=step).obs)
        if step == 6:
            meddle(policy)
            assert_answers(policy, batch_of(5, seed=step).obs)


def test_acting_on_the_cpu_waits_for_nothing_where_no_parameter_changed() -> None:
    policy, obs = there(), batch_of(5).obs
    policy.update(batch_of(16), step=0)
    policy.action_values(obs)
    torch.cuda.set_sync_debug_mode("error")
    try:
        policy.action_values(obs)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_deep_copy_acts_by_weights_of_its_own() -> None:
    policy = there(noisy=True)
    policy.update(batch_of(16), step=0)
    policy.action_values(batch_of(5).obs)
    for own in (copy.deepcopy(policy), policy):
        own.update(batch_of(16, seed=1), step=1)
        assert_answers(own, batch_of(5).obs)


def test_a_run_that_acts_on_the_cpu_reports_finite_numbers() -> None:
    envs = tk.make_envs("CartPole-v1", 4)
    policy = tk.DQNPolicy.for_envs(envs, hidden=(32,), noisy=True, device=CUDA, act_on="cpu", engine="cuda_graph")
    trainer = tk.OffpolicyTrainer(
        policy,
        tk.Collector(policy, envs, tk.PrioritizedReplayBuffer(2000)),
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
    assert all(np.isfinite(number) for epoch in epochs for number in epoch.stats.update.values())
