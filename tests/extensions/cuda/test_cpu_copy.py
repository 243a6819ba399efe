"""The copy on the CPU answers as its original would, whatever was done to that since, and belongs to no one.

The original is on the CPU too here; its slow reference is a deep copy made for every
question, which torch answers.
"""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.helpers.engine import torch_only
from tests.helpers.learning import MASKED, PARTS, Spaces, batch_of, made, observations, small_net
from trainkit import CategoricalValue, DQNPolicy, QuantileValue
from trainkit.core import tree
from trainkit.extensions.cuda import cpu_copy
from trainkit.extensions.cuda.cpu_copy import CpuCopy
from trainkit.nets import QNetwork
from trainkit.policy.acting_copy import Parts

IMAGES = spaces.Box(0, 255, (2, 36, 37), np.uint8)
NESTED = spaces.Dict({"place": spaces.Discrete(3), "speed": spaces.Box(-1, 1, (2,), np.float32)})
KINDS = [
    *PARTS,
    pytest.param({"normalize_obs": True, "value": QuantileValue(5)}, id="normalised quantiles"),
    pytest.param({"space": MASKED, "dueling": True, "normalize_obs": True}, id="masked dueling normalised"),
    pytest.param({"space": NESTED, "normalize_obs": True, "noisy": True}, id="nested noisy"),
    pytest.param({"space": IMAGES, "hidden": None, "head": (8,)}, id="images"),
    pytest.param({"hidden": (600,), "value": CategoricalValue(301, -1, 1)}, id="too large for numpy"),
]


def parts_of(policy: DQNPolicy) -> Parts:
    return policy.preprocess, policy.network, policy.value


def answer(own: CpuCopy, policy: DQNPolicy, obs: Any, noise: Tensor | None = None) -> Any:
    """Let the copy answer in the policy's place."""
    policy.enter(training=False)
    assert own.supports(parts_of(policy))
    return own.action_values(obs, noise, n_updates=policy.n_updates)


def slow(policy: DQNPolicy, obs: Any, noise: Tensor | None = None) -> Any:
    """Let a fresh deep copy answer, by torch."""
    counterpart = torch_only(copy.deepcopy(policy))
    counterpart.enter(training=False)
    return counterpart.engine.call("q_values", counterpart._q_values, (obs, (), noise))["q_values"]


def assert_answers(own: CpuCopy, policy: DQNPolicy, obs: Any) -> None:
    n_rows, size = len(tree.first_leaf(obs)), policy.network.noise_size
    noises = [None, torch.randn(n_rows, int(size), generator=torch.Generator().manual_seed(3))] if size else [None]
    for noise in noises:
        np.testing.assert_allclose(answer(own, policy, obs, noise), slow(policy, obs, noise), rtol=1e-5, atol=1e-5)


# ---- what may happen to an original ----


def weights(policy: DQNPolicy, factor: float) -> dict[str, Tensor]:
    return {name: factor * t if t.is_floating_point() else t for name, t in policy.state_dict().items()}


def learn(policy: DQNPolicy, space: Any) -> None:
    policy.update(batch_of(8, seed=policy.n_updates, space=space), step=policy.n_updates)


def write(policy: DQNPolicy, space: Any) -> None:
    with torch.no_grad():
        next(reversed(list(policy.network.parameters()))).add_(0.5)


def write_uncounted(policy: DQNPolicy, space: Any) -> None:
    """As the replay of a CUDA graph does."""
    for parameter in policy.network.parameters():
        parameter.data.mul_(0.9)
    policy.n_updates += 1


def lay_elsewhere(policy: DQNPolicy, space: Any) -> None:
    for parameter in policy.network.parameters():
        parameter.data = 0.8 * parameter.data


def lay_elsewhere_twice(policy: DQNPolicy, space: Any) -> None:
    """As memory that was given back is taken again, the second may lie where the first did."""
    lay_elsewhere(policy, space)
    lay_elsewhere(policy, space)


def follow(policy: DQNPolicy, space: Any) -> None:
    policy._learning.targets["network"].copy()


def load(policy: DQNPolicy, space: Any) -> None:
    policy.load_state_dict(weights(policy, 0.7))


def assign(policy: DQNPolicy, space: Any) -> None:
    policy.load_state_dict(weights(policy, 0.7), assign=True)


def set_weights(policy: DQNPolicy, space: Any) -> None:
    policy.set_weights({name: tensor.numpy() for name, tensor in weights(policy, 0.6).items()})


def go_on(policy: DQNPolicy, space: Any) -> None:
    state = copy.deepcopy(policy.training_state())
    policy.load_training_state({**state, "weights": weights(policy, 0.5)})


def draw(policy: DQNPolicy, space: Any) -> None:
    for module in policy.network.modules():
        if isinstance(module, QNetwork):
            module.draw(7)


def observe(policy: DQNPolicy, space: Any) -> None:
    if policy.observes:
        rows = observations(space, 5, int(policy.preprocess.n_observed))  # type: ignore[arg-type]
        policy.preprocess.observe(tree.map_tree(torch.from_numpy, rows))  # type: ignore[operator]
        policy.preprocess.fold()  # type: ignore[operator]


def change_precision(policy: DQNPolicy, space: Any) -> None:
    policy.network.double().float()


def replace_parameters(policy: DQNPolicy, space: Any) -> None:
    for part in policy.network.modules():
        if isinstance(part, nn.Linear):
            part.weight = nn.Parameter(0.5 * part.weight.detach())


def replace_modules(policy: DQNPolicy, space: Any) -> None:
    for part in policy.network.modules():
        if isinstance(part, nn.ModuleList):
            for position, layer in enumerate(part):
                part[position] = copy.deepcopy(layer)
                with torch.no_grad():
                    for parameter in part[position].parameters():
                        parameter.mul_(1.5)


def replace_the_network(policy: DQNPolicy, space: Any) -> None:
    policy.network = copy.deepcopy(policy.network)
    draw(policy, space)


def replace_the_preprocessing(policy: DQNPolicy, space: Any) -> None:
    policy.preprocess = copy.deepcopy(policy.preprocess)
    observe(policy, space)


def change_an_attribute(policy: DQNPolicy, space: Any) -> None:
    for part in policy.modules():
        if hasattr(part, "activation"):
            part.activation = torch.tanh
        if hasattr(part, "clip"):
            part.clip = 0.5


IN_PLACE = [
    learn,
    write,
    write_uncounted,
    lay_elsewhere,
    lay_elsewhere_twice,
    follow,
    load,
    set_weights,
    go_on,
    observe,
]
MADE_AGAIN = [assign, draw, replace_parameters, replace_modules, replace_the_network, replace_the_preprocessing]
CHANGES = [*IN_PLACE, *MADE_AGAIN, change_precision, change_an_attribute]
LASTING = [change for change in CHANGES if change not in MADE_AGAIN[2:]]  # after which an optimizer knows its network


@pytest.mark.fast_cases(5)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(LASTING), max_size=8), st.lists(st.sampled_from(CHANGES[1:]), max_size=4))
def test_it_answers_as_a_fresh_copy_would_whatever_was_done(kind: Any, first: Any, then: Any) -> None:
    options = dict(kind)
    space = options.pop("space", Spaces().observation_space)
    policy, own, obs = made(space, **options), CpuCopy(), observations(space, 3)
    for change in (*first, *then):
        change(policy, space)
        assert_answers(own, policy, obs)
    before = answer(own, policy, obs)
    np.testing.assert_array_equal(answer(own, policy, obs), before)


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_seen(change: Callable[..., None]) -> None:
    space = Spaces().observation_space
    policy, own, obs = made(space, normalize_obs=True, hidden=(8,), head=(4,)), CpuCopy(), observations(space, 3)
    observe(policy, space)
    stale = answer(own, policy, obs)
    change(policy, space)
    assert_answers(own, policy, obs)
    received = answer(own, policy, obs)
    if change in (follow, change_precision):  # other memory, the same numbers
        np.testing.assert_array_equal(received, stale)
    else:
        assert not np.allclose(received, stale, atol=1e-6)


def test_a_network_of_another_shape_in_the_same_tensors_is_copied_again() -> None:
    policy, own, obs = made(), CpuCopy(), batch_of(3).obs
    answer(own, policy, obs)
    for parameter, other in zip(policy.network.parameters(), made(hidden=(5,)).network.parameters(), strict=True):
        parameter.data = other.data
    assert_answers(own, policy, obs)


# ---- what it costs ----


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Count the copies that are made again, and those of numbers."""
    counts = {"made": 0, "followed": 0}

    class Counting(cpu_copy._Copy):
        def __init__(self, *received: Any) -> None:
            counts["made"] += 1
            super().__init__(*received)

        def follow(self, tensors: list[Tensor]) -> None:
            counts["followed"] += 1
            super().follow(tensors)

    monkeypatch.setattr(cpu_copy, "_Copy", Counting)
    return counts


def test_nothing_is_copied_where_nothing_changed(copies: dict[str, int]) -> None:
    policy, own, obs = made(), CpuCopy(), batch_of(3).obs
    for _ in range(5):
        answer(own, policy, obs)
    assert copies == {"made": 1, "followed": 0}


def test_numbers_are_copied_once_after_any_number_of_updates_and_of_other_writes(copies: dict[str, int]) -> None:
    policy, own, obs, space = made(normalize_obs=True), CpuCopy(), batch_of(3).obs, Spaces().observation_space
    learn(policy, space)
    answer(own, policy, obs)
    for turn in range(1, 5):
        for _ in range(turn):
            learn(policy, space)
        observe(policy, space)
        write(policy, space)
        for _ in range(3):
            answer(own, policy, obs)
        assert copies == {"made": 1, "followed": turn}


@pytest.mark.parametrize("change", [*MADE_AGAIN, change_an_attribute])
def test_replaced_parts_are_copied_again(change: Callable[..., None], copies: dict[str, int]) -> None:
    policy, own, obs = made(normalize_obs=True), CpuCopy(), batch_of(3).obs
    answer(own, policy, obs)
    change(policy, Spaces().observation_space)
    answer(own, policy, obs)
    answer(own, policy, obs)
    assert copies["made"] == 2


# ---- whose it is ----


def test_it_shares_no_memory_with_its_original() -> None:
    policy, own = made(normalize_obs=True), CpuCopy()
    before = answer(own, policy, batch_of(3).obs)
    for tensor in (*policy.parameters(), *policy.buffers()):
        tensor.data.zero_()  # a write that torch does not count, so nothing is copied
    np.testing.assert_array_equal(answer(own, policy, batch_of(3).obs), before)
    assert before.any()


def test_another_policy_is_answered_for_by_its_own_numbers() -> None:
    one, other, own, obs = made(), made(seed=1), CpuCopy(), batch_of(3).obs
    for policy in (one, other, one):
        assert_answers(own, policy, obs)


def test_where_hooks_wait_it_takes_nothing() -> None:
    policy, own = made(), CpuCopy()
    answer(own, policy, batch_of(3).obs)
    hook = next(policy.network.children()).register_forward_hook(lambda *received: None)
    assert not own.supports(parts_of(policy))
    hook.remove()
    assert own.supports(parts_of(policy))


class Shifted:
    """A value part that is no module: a network's number, and a little more."""

    width = 1
    more = 1.0

    def mean(self, numbers: Tensor) -> Tensor:
        return numbers.squeeze(-1) + self.more


def test_a_value_part_that_is_no_module_is_called_directly() -> None:
    policy, own, obs = made(), CpuCopy(), batch_of(3).obs
    value: Any = Shifted()
    parts = (*parts_of(policy)[:2], value)
    received = []
    for value.more in (1.0, 2.0):
        assert own.supports(parts)
        received.append(own.action_values(obs, None, n_updates=0))
    np.testing.assert_allclose(received[1] - received[0], 1.0, atol=1e-6)


class Dropping(nn.Module):
    """A network of another's own that does one thing in training and another in evaluation, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.drop, self.n_calls = small_net(), nn.Dropout(0.9), 0
        self.norm = nn.BatchNorm1d(4)

    def forward(self, features: Tensor) -> Tensor:
        self.n_calls += 1
        numbers: Tensor = self.inner(self.drop(self.norm(features)))
        return numbers


@pytest.mark.global_rng  # which dropout draws from
def test_modes_and_counters_of_a_network_of_ones_own_are_as_its_original_has_them() -> None:
    at = Spaces()
    policy = DQNPolicy(Dropping(), observation_space=at.observation_space, action_space=at.action_space, device="cpu")
    own, obs = CpuCopy(), batch_of(3).obs
    for _ in range(3):
        assert_answers(own, policy, obs)
        learn(policy, at.observation_space)


def test_a_deep_copy_of_it_has_nothing_yet() -> None:
    policy, own = made(), CpuCopy()
    answer(own, policy, batch_of(3).obs)
    assert vars(copy.deepcopy(own)) == vars(CpuCopy())
