"""The engine: what executes a policy's losses and forward passes, and what it must notice."""

import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from tests.extensions.numpy_engine.numpy_passes import note_numpy_passes
from tests.helpers.learning import (
    FOUR_NUMBERS,
    THREE_ACTIONS,
    Spaces,
    batch_of,
    made,
    observations,
    parameters_of,
    small_net,
)
from trainkit import Adam, ConfigError, DQNPolicy, Policy
from trainkit.engine.loss import Loss, TensorBatch
from trainkit.extensions.numpy_engine import numpy_function


class TwoSteps(Policy):
    """Two networks, each of which learns what the other one says."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.first, self.second = small_net(seed=1), small_net(seed=2)
        self.add_gradient_step("first", self.first, Adam(1e-2), loss=self.first_loss)
        self.add_gradient_step("second", self.second, Adam(1e-2), loss=self.second_loss)

    def first_loss(self, rows: TensorBatch) -> Loss:
        return Loss((self.first(rows.obs) - self.second(rows.obs).detach()).square().sum(dim=1))

    def second_loss(self, rows: TensorBatch) -> Loss:
        return Loss((self.second(rows.obs) - self.first(rows.obs).detach() - 1.0).square().sum(dim=1))


def test_a_loss_sees_the_parameters_that_a_later_step_moves() -> None:
    mine, theirs = (TwoSteps(device="cpu", seed=0, engine=engine) for engine in ("numpy", "torch"))
    for step in range(10):
        for policy in (mine, theirs):
            policy.update(batch_of(8, seed=step), step=step)
    torch.testing.assert_close(parameters_of(mine), parameters_of(theirs), rtol=1e-5, atol=1e-6)


class Unrelated(DQNPolicy):
    """Minimize something that no parameter changes."""

    def loss(self, rows: TensorBatch) -> Loss:
        return Loss(rows.reward)


@pytest.mark.parametrize("engine", ["torch", "numpy"])
def test_a_loss_that_no_parameter_changes_is_rejected(engine: Any) -> None:
    policy = Unrelated.for_envs(Spaces(), hidden=(8,), device="cpu", seed=0, engine=engine)
    with pytest.raises(ConfigError, match="the loss of QNetwork has no gradient"):
        policy.update(batch_of(8), step=0)


@pytest.mark.parametrize("n_before", [0, 3])
@pytest.mark.parametrize("engine", ["torch", "numpy"])
def test_a_network_without_a_trainable_parameter_is_rejected(engine: Any, n_before: int) -> None:
    policy = made(engine=engine)
    for step in range(n_before):
        policy.update(batch_of(8), step=step)
    policy.network.requires_grad_(False)
    with pytest.raises(ConfigError, match="the loss of QNetwork has no gradient"):
        policy.update(batch_of(8), step=3)


def test_images_are_learned_from_as_by_torch() -> None:
    frames = spaces.Box(0, 255, (40, 40), np.uint8)
    mine, theirs = (
        DQNPolicy.for_envs(Spaces(frames), head=(8,), device="cpu", seed=0, engine=engine)
        for engine in ("auto", "torch")
    )
    for step in range(6):
        for policy in (mine, theirs):
            policy.update(batch_of(4, seed=step, space=frames), step=step)
    torch.testing.assert_close(parameters_of(mine), parameters_of(theirs), rtol=1e-4, atol=1e-6)
    obs = observations(frames, 3)
    np.testing.assert_allclose(mine.action_values(obs), theirs.action_values(obs), rtol=1e-4, atol=1e-5)


class Labels(nn.Module):
    """Classify actions, where the label -100 is ignored."""

    def __init__(self) -> None:
        super().__init__()
        self.head = small_net((8, 3))

    def forward(self, features: Tensor, rows: TensorBatch) -> Tensor:
        label = torch.where(rows.reward > 5.0, -100, rows.action)
        return functional.cross_entropy(self.head(features), label, reduction="none")


@pytest.mark.parametrize("steps", [{0, 1}, {5, 6, 8}])
def test_labels_that_are_ignored_are_left_to_torch(steps: set[int]) -> None:
    mine, theirs = (made(engine=engine, auxiliary=Labels()) for engine in ("numpy", "torch"))
    for step in range(12):
        batch = batch_of(8, seed=step)
        if step in steps:
            batch.reward[::2] = 9.0
        for policy in (mine, theirs):
            policy.update(batch, step=step)
        assert_alike(mine, theirs, **CLOSE)


# ---- what cannot be recorded, or not for long ----


class Own(DQNPolicy):
    """Scale the loss by something."""

    def loss(self, rows: TensorBatch) -> Loss:
        result = super().loss(rows)
        return replace(result, per_row=self.network.module.scale() * result.per_row)  # type: ignore[operator, union-attr]


class Scaled(nn.Module):
    """A network that knows the scale of its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.factor = small_net(), 1.0

    def scale(self) -> Any:
        return self.factor

    def forward(self, features: Tensor) -> Tensor:
        outputs: Tensor = self.inner(features)
        return outputs


class Counting(Scaled):
    """Count calls, and scale by their number."""

    def scale(self) -> Any:
        self.factor += 1.0
        return self.factor


class Lazy(Scaled):
    """Make a tensor at the first call."""

    made: Tensor | None = None

    def scale(self) -> Any:
        if self.made is None:
            self.made = torch.tensor(2.0)
        return self.made


FACTOR = [1.0]


class Hidden(Scaled):
    """Read a global variable."""

    def scale(self) -> Any:
        return FACTOR[0]


def scaled(network: nn.Module, engine: Any = "auto") -> Own:
    return Own(network, observation_space=FOUR_NUMBERS, action_space=THREE_ACTIONS, device="cpu", seed=0, engine=engine)


def assert_alike(mine: Policy, theirs: Policy, **how: Any) -> None:
    torch.testing.assert_close(parameters_of(mine), parameters_of(theirs), **how)


CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def test_a_function_that_changes_what_it_reads_is_left_to_torch() -> None:
    mine, theirs = scaled(Counting()), scaled(Counting(), "torch")
    for step in range(6):
        for policy in (mine, theirs):
            policy.update(batch_of(8, seed=step), step=step)
        if step == 0:
            theirs.network.module.factor += 1.0  # type: ignore[operator, union-attr]  # it was recorded twice
        else:
            assert_alike(mine, theirs, **CLOSE)
    assert str(mine.engine) == "torch (network changes Counting.factor while it runs)"
    with pytest.raises(ConfigError, match=r"Own\.engine 'numpy' cannot .*: network changes Counting\.factor while it"):
        scaled(Counting(), "numpy").update(batch_of(8), step=0)


def test_what_the_first_call_makes_is_recorded_with_the_rest() -> None:
    mine, theirs = scaled(Lazy(), "numpy"), scaled(Lazy(), "torch")
    for step in range(6):
        for policy in (mine, theirs):
            policy.update(batch_of(8, seed=step), step=step)
        assert_alike(mine, theirs, **CLOSE)


def test_what_changes_at_every_call_is_honored_and_left_to_torch_in_the_end() -> None:
    mine, theirs = scaled(Scaled()), scaled(Scaled(), "torch")
    for step in range(15):
        for policy in (mine, theirs):
            policy.network.module.factor = 1.0 + step  # type: ignore[union-attr]
            policy.update(batch_of(8, seed=step), step=step)
        assert_alike(mine, theirs, **CLOSE)
    assert str(mine.engine) == "torch (Scaled.factor changes between all calls of network)"


def test_what_changes_now_and_then_is_recorded_again() -> None:
    mine, theirs = scaled(Scaled(), "numpy"), scaled(Scaled(), "torch")
    for step in range(60):
        for policy in (mine, theirs):
            policy.network.module.factor = 1.0 + step // 2  # type: ignore[union-attr]
            policy.update(batch_of(8, seed=step), step=step)
    assert_alike(mine, theirs, rtol=1e-4, atol=1e-5)


class Block(nn.Module):
    """A part of a network that is not used at first."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.is_used = small_net((3, 3), seed=1), False

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x) if self.is_used else x


class Growing(Scaled):
    """A network with settings of its layers, a block, and a list of further modules."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.block, self.more = self.inner[0], Block(), nn.ModuleList()
        self.first.gain = 1.0
        patch(self.first, 1.5)

    def forward(self, features: Tensor) -> Tensor:
        x: Tensor = self.block(self.first.gain * self.inner(features))
        for module in self.more:
            x = module(x)
        return x


def patch(layer: nn.Module, factor: float) -> None:
    layer.forward = lambda x: factor * functional.linear(x, layer.weight, layer.bias)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda network: setattr(network.block, "is_used", True), id="a block is used"),
        pytest.param(lambda network: setattr(network.first, "gain", 3.0), id="an attribute of a plain layer is set"),
        pytest.param(lambda network: patch(network.first, 0.2), id="a plain layer is patched again"),
        pytest.param(lambda network: network.more.append(nn.Tanh()), id="a module is appended to an empty list"),
    ],
)
def test_a_network_that_changes_is_recorded_again(change: Any) -> None:
    mine, theirs = scaled(Growing(), "numpy"), scaled(Growing(), "torch")
    for step in range(7):
        for policy in (mine, theirs):
            if step == 5:  # which is not compared
                change(policy.network.module)
            policy.update(batch_of(8, seed=step), step=step)
        assert_alike(mine, theirs, **CLOSE)


class Weighted:
    """An auxiliary loss with a weight that may be set."""

    def __init__(self) -> None:
        self.weight = 1.0

    def __call__(self, features: Tensor, rows: TensorBatch) -> Tensor:
        return self.weight * features.square().mean(dim=1)


def test_an_auxiliary_loss_that_is_an_object_is_watched() -> None:
    mine, theirs = (made(engine=engine, auxiliary=Weighted()) for engine in ("numpy", "torch"))
    for step in range(7):
        for policy in (mine, theirs):
            if step == 5:
                policy.auxiliary.weight = 10.0  # type: ignore[union-attr]
            policy.update(batch_of(8, seed=step), step=step)
        assert_alike(mine, theirs, **CLOSE)


def test_what_changes_unseen_is_found_by_a_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = scaled(Hidden()), scaled(Hidden(), "torch")
    for step in range(7):
        mine.update(batch_of(8, seed=step), step=step)
    monkeypatch.setattr(f"{__name__}.FACTOR", [3.0])
    mine.update(batch_of(8, seed=7), step=7)  # the eighth is compared
    assert mine.engine.name == "numpy"
    theirs.load_training_state(copy.deepcopy(mine.training_state()))
    for step in range(8, 12):
        for policy in (mine, theirs):
            policy.update(batch_of(8, seed=step), step=step)
        assert_alike(mine, theirs, **CLOSE)
    assert mine.engine.name == "torch"
    assert "numpy and torch differ in loss of network: it reads something that changes unseen" in mine.engine.reason


@pytest.mark.one_of_each
@pytest.mark.parametrize("n_before", [1, 2, 5, 9])
@pytest.mark.parametrize("network", [Scaled, Counting, Lazy])
@pytest.mark.parametrize("changes", [False, True])
def test_a_resumed_policy_continues_to_the_bit(network: type[nn.Module], changes: bool, n_before: int) -> None:
    straight, resumed = scaled(network()), scaled(network())
    for step in range(14):
        if step == n_before:
            resumed.load_training_state(copy.deepcopy(straight.training_state()))
            resumed.network.module.factor = straight.network.module.factor  # type: ignore[union-attr]
        for policy in (straight, resumed) if step >= n_before else (straight,):
            if changes:
                policy.network.module.factor = 1.0 + step  # type: ignore[union-attr]
            policy.update(batch_of(8, seed=step), step=step)
    assert_alike(resumed, straight, rtol=0, atol=0)
    assert resumed.engine.name == straight.engine.name


class Optional(DQNPolicy):
    """Add one of two inputs to the loss, or subtract the other."""

    def loss_inputs(self, n_rows: int, *, step: int) -> Any:
        bonus = np.full(n_rows, 1.0 + step, np.float32)
        own = {"more": bonus, "less": None} if step % 2 else {"more": None, "less": bonus}
        return super().loss_inputs(n_rows, step=step) | own

    def loss(self, rows: TensorBatch) -> Loss:
        result = super().loss(rows)
        more, less = rows.inputs["more"], rows.inputs["less"]
        return replace(result, per_row=result.per_row * more if less is None else result.per_row / less)


def test_inputs_that_are_present_in_turns_are_distinguished() -> None:
    options: dict[str, Any] = {"hidden": (8,), "device": "cpu", "seed": 0}
    mine, theirs = (Optional.for_envs(Spaces(), engine=engine, **options) for engine in ("numpy", "torch"))
    for step in range(8):
        for policy in (mine, theirs):
            policy.update(batch_of(8, seed=step), step=step)
        assert_alike(mine, theirs, **CLOSE)


def test_threads_may_call_one_policy_at_a_time() -> None:
    policy = made(hidden=(128, 128), engine="numpy")
    obs = [observations(FOUR_NUMBERS, 32, seed) for seed in range(3)]
    expected = [policy.action_values(rows) for rows in obs]

    def n_wrong(i: int) -> int:
        return sum(not np.array_equal(policy.action_values(obs[i]), expected[i]) for _ in range(1_000))

    with ThreadPoolExecutor() as pool:
        assert list(pool.map(n_wrong, range(3))) == [0, 0, 0]


def test_batches_of_ever_new_sizes_are_left_to_torch_and_those_of_known_sizes_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine, theirs = made(engine="numpy"), made(engine="torch")
    passes: list[int] = []
    note_numpy_passes(monkeypatch, lambda: passes.append(1))
    sizes = [*range(1, 21), 5, 5, 21, 21]
    for step, n_rows in enumerate(sizes):
        for policy in (mine, theirs):
            policy.update(batch_of(n_rows, seed=step), step=step)
    assert len(passes) == 8 + 4
    assert_alike(mine, theirs, rtol=1e-4, atol=1e-5)


def test_memory_for_large_batches_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_function, "_MOST_BYTES", 2**18)
    policy = made(hidden=(64,), engine="numpy")
    for step in range(8):
        for n_rows in (200 + step, 8):
            policy.update(batch_of(n_rows, seed=step), step=step)
    (function,) = policy.engine._functions.values()
    assert sum(one.program.n_bytes for one in function._derived.values()) <= 2**18
    assert 1 < len(function._derived) < 8


def test_a_first_batch_whose_columns_are_one_array_is_learned_from_as_any_other() -> None:
    mine, theirs = made(engine="numpy"), made(engine="torch")
    for step in range(4):
        batch = batch_of(8, seed=step)
        if step == 0:
            ones = np.ones(8, np.float32)
            batch = replace(batch, next_obs=batch.obs, reward=ones, discount=ones, weight=ones)
        for policy in (mine, theirs):
            policy.update(batch, step=step)
        assert_alike(mine, theirs, **CLOSE)
