"""Q-learning in numpy: the same losses, gradients and steps as torch's, and torch itself wherever there is no twin."""

import copy
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.helpers.engine import torch_only
from tests.helpers.learning import (
    FOUR_NUMBERS,
    MASKED,
    PARTS,
    Spaces,
    assert_same,
    batch_of,
    linear,
    made,
    parameters_of,
    small_net,
)
from trainkit import (
    MLP,
    CategoricalValue,
    Clip,
    ConservativePenalty,
    DivergedError,
    DoubleBackup,
    DQNPolicy,
    ExpectedValue,
    MaxBackup,
    MunchausenBackup,
    QNetwork,
    QuantileValue,
    Target,
)
from trainkit.policy.device import TensorBatch
from trainkit.policy.host.values import host_value

NESTED = spaces.Dict({"place": spaces.Discrete(5), "speed": FOUR_NUMBERS, "action_mask": spaces.MultiBinary(3)})
MORE_PARTS: list[Any] = [
    *(part for part in PARTS if part.id in ("dqn", "double dueling, lr knots", "rainbow", "soft target")),
    pytest.param({"value": ExpectedValue("mse"), "max_grad_norm": None}, id="mse"),
    pytest.param({"value": ExpectedValue(delta=0.3), "double": True, "max_grad_norm": 0.05}, id="delta, clipped"),
    pytest.param({"value": CategoricalValue(7, -1, 1, priority="ce"), "head": (6,), "hidden": ()}, id="heads alone"),
    pytest.param({"noisy": True, "head": (6,), "max_grad_norm": 0.5}, id="noisy"),
    pytest.param({"value": QuantileValue(7), "double": True, "dueling": True}, id="quantiles"),
    pytest.param({"value": QuantileValue(3, kappa=0.0), "space": MASKED}, id="plain quantiles, masked"),
    pytest.param({"backup": MunchausenBackup()}, id="munchausen"),
    pytest.param({"backup": MunchausenBackup(0.5, lowest=-0.3), "space": MASKED, "dueling": True}, id="soft, masked"),
    pytest.param({"backup": MunchausenBackup(0.2), "value": QuantileValue(5), "noisy": True}, id="munchausen, all"),
    pytest.param({"dueling": True, "double": True, "space": MASKED}, id="dueling, masked"),
    pytest.param(
        {"dueling": True, "noisy": True, "value": CategoricalValue(5, -2, 2), "space": MASKED}, id="all, masked"
    ),
    pytest.param({"clip": Clip(0.01, by="norm"), "dueling": True}, id="clipped one by one"),
    pytest.param({"space": NESTED, "double": True}, id="nested"),
    pytest.param({"space": NESTED, "normalize_obs": True, "dueling": True}, id="nested, normalised"),
]


def gradients_of(policy: DQNPolicy) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in policy.network.named_parameters() if p.grad is not None}


def pair(parts: dict[str, Any]) -> tuple[DQNPolicy, DQNPolicy, Any]:
    """Make one policy that learns in numpy and one that learns by torch, and their observation space."""
    space = parts.get("space", FOUR_NUMBERS)
    rest = {name: part for name, part in parts.items() if name != "space"}
    mine, theirs = made(space, **rest), torch_only(made(space, **rest))
    assert mine._host_learner is not None
    return mine, theirs, space


@pytest.mark.parametrize("parts", MORE_PARTS)
def test_an_update_is_torchs(parts: dict[str, Any]) -> None:
    mine, theirs, space = pair(parts)
    for step in range(30):
        batch = batch_of(16, seed=step, space=space)
        one, other = mine.update(batch, step=step), theirs.update(batch, step=step)
        np.testing.assert_allclose(one.read_priority(), other.read_priority(), rtol=1e-4, atol=2e-6)
        if step == 0:
            torch.testing.assert_close(gradients_of(mine), gradients_of(theirs), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(parameters_of(mine), parameters_of(theirs), rtol=1e-4, atol=1e-5)
    told, expected = mine.read_metrics(), theirs.read_metrics()
    assert told == {name: pytest.approx(number, rel=1e-4, abs=1e-6) for name, number in expected.items()}


@pytest.fixture(params=[1, 2])
def torchs_products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Let torch have so many threads, and note how many there are at each product that it makes."""
    before, made = torch.get_num_threads(), []
    matmul = torch.matmul

    def noted(*given: Any, **options: Any) -> Tensor:
        made.append(torch.get_num_threads())
        return matmul(*given, **options)

    monkeypatch.setattr(torch, "matmul", noted)
    torch.set_num_threads(request.param)
    yield made
    torch.set_num_threads(before)
    assert set(made) == ({2} if request.param == 2 else set())


@pytest.mark.parametrize(
    "parts",
    [
        {"hidden": (256, 256), "dueling": True, "double": True},
        {"hidden": (128,), "noisy": True, "dueling": True, "double": True, "value": CategoricalValue(51, -1, 1)},
    ],
    ids=["double, dueling", "rainbow"],
)
def test_so_is_one_of_many_rows_with_the_large_products_by_torchs_threads(
    parts: dict[str, Any], torchs_products: list[int]
) -> None:
    mine, theirs, space = pair(parts)
    for step in range(3):  # by the second, arrays of the tape are given out again
        batch = batch_of(512, seed=step, space=space)
        one, other = mine.update(batch, step=step), theirs.update(batch, step=step)
        np.testing.assert_allclose(one.read_priority(), other.read_priority(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(parameters_of(mine), parameters_of(theirs), rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("n_rows", [1, 64, 65])  # forward by columns up to 64
@pytest.mark.parametrize(
    "parts",
    [
        {"hidden": (256, 128), "double": True},
        {"hidden": (128,), "head": (128,), "noisy": True, "dueling": True, "value": CategoricalValue(7, -1, 1)},
    ],
    ids=["double", "noisy"],
)
def test_so_is_one_of_a_wide_network(parts: dict[str, Any], n_rows: int) -> None:
    mine, theirs, space = pair(parts)
    for step in range(3):
        batch = batch_of(n_rows, seed=step, space=space)
        one, other = mine.update(batch, step=step), theirs.update(batch, step=step)
        np.testing.assert_allclose(one.read_priority(), other.read_priority(), rtol=1e-4, atol=1e-5)
        if step == 0:
            torch.testing.assert_close(gradients_of(mine), gradients_of(theirs), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(parameters_of(mine), parameters_of(theirs), rtol=1e-3, atol=2e-5)


@given(
    seed=st.integers(0, 10_000),
    reward=st.sampled_from([0.0, 1.0, 100.0, -1e-6, 1e4]),
    discount=st.sampled_from([0.0, 0.5, 1.0]),
    value=st.sampled_from(
        [
            ExpectedValue(),
            ExpectedValue("mse"),
            ExpectedValue(delta=0.1),
            CategoricalValue(2, 0, 1),
            CategoricalValue(51, -10, 10, priority="ce"),
            QuantileValue(1),
            QuantileValue(8, kappa=0.3),
            QuantileValue(51, kappa=0.0),
            QuantileValue(200),
        ]
    ),
)
def test_values_are_torchs_whatever_the_rows(seed: int, reward: float, discount: float, value: Any) -> None:
    rng = np.random.default_rng(seed)
    twin = host_value(value)
    assert twin is not None
    scale = 10.0 ** rng.integers(-2, 3)
    chosen, after = (rng.normal(size=(2, 8, value.width)) * scale).astype(np.float32)
    rewards = (reward + rng.normal(size=8) * scale).astype(np.float32)
    discounts = np.full(8, discount, np.float32)
    after[0] = np.inf if discount == 0.0 else after[0]  # which counts nothing then
    with np.errstate(invalid="ignore"):
        goal = twin.goal(after, rewards, discounts)
    there = [torch.from_numpy(array) for array in (after, rewards, discounts)]
    their_goal = value.goal(*there)
    tolerance = {"rtol": 2e-4, "atol": 2e-5 * max(1.0, scale)}
    np.testing.assert_allclose(goal, their_goal.numpy(), **tolerance)

    leaf = torch.from_numpy(chosen.copy()).requires_grad_()
    their_loss, their_priority = value.loss(leaf, their_goal)
    their_loss.sum().backward()
    loss, priority, slope = twin.loss(chosen, their_goal.numpy())
    np.testing.assert_allclose(loss, their_loss.detach().numpy(), **tolerance)
    np.testing.assert_allclose(priority, their_priority.numpy(), **tolerance)
    assert leaf.grad is not None
    np.testing.assert_allclose(slope, leaf.grad.numpy(), **tolerance)
    np.testing.assert_allclose(twin.mean(chosen), value.mean(leaf).detach().numpy(), **tolerance)
    expected = value.metrics(leaf.detach(), their_goal, *there)
    with np.errstate(invalid="ignore"):
        told = twin.metrics(chosen, their_goal.numpy(), after, rewards, discounts)
    assert told == {name: pytest.approx(float(number), rel=1e-3, abs=1e-4) for name, number in expected.items()}


@pytest.mark.parametrize("kappa", [0.0, 1.0])
def test_quantiles_that_meet_their_goals_stay(kappa: float) -> None:
    value = QuantileValue(4, kappa=kappa)
    twin, numbers = host_value(value), np.array([[0, 0, 1, 2], [5, 5, 5, 5]], np.float32)
    assert twin is not None
    leaf = torch.from_numpy(numbers.copy()).requires_grad_()
    their_loss, their_priority = value.loss(leaf, torch.from_numpy(numbers))
    their_loss.sum().backward()
    assert leaf.grad is not None
    for mine, theirs in zip(twin.loss(numbers, numbers), (their_loss, their_priority, leaf.grad), strict=True):
        np.testing.assert_allclose(mine, theirs.detach().numpy(), atol=1e-7)


def test_quantiles_of_large_returns_lose_no_digits() -> None:
    value, rng = QuantileValue(200), np.random.default_rng(0)
    twin, place = host_value(value), 1e5
    assert twin is not None
    chosen, goal = (place + 0.01 * rng.normal(size=(2, 8, 200))).astype(np.float32)
    theirs = value.loss(torch.from_numpy(chosen).double(), torch.from_numpy(goal).double())[0]
    np.testing.assert_allclose(twin.loss(chosen, goal)[0], theirs.numpy(), rtol=1e-5)


def test_a_kappa_set_later_is_heard() -> None:
    mine, theirs, _ = pair({"value": QuantileValue(5)})
    for policy in (mine, theirs):
        assert isinstance(policy.value, QuantileValue)
        policy.value.kappa = 0.1
        policy.update(batch_of(16), step=0)
    assert mine.read_metrics()["loss"] == pytest.approx(theirs.read_metrics()["loss"], rel=1e-5)


def test_gradients_are_finite_differences() -> None:
    policy = made(dueling=True, double=True, value=CategoricalValue(5, -2, 2), noisy=True)
    batch = batch_of(8)
    noise = [policy._draws.noise(1, policy.generator) for _ in range(2)]
    learner = policy._host_learner
    assert learner is not None
    for parameter in policy.network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    learner(batch, *noise)
    rows = policy.tensors(batch)
    slopes = gradients_of(policy)

    def loss_in_float64(rows: TensorBatch) -> float:
        twin = copy.deepcopy(policy).double()
        online = lambda obs, legal: twin.network(obs.double(), noise[0].double(), legal)  # noqa: E731
        target = lambda obs, legal: twin.target_network(obs.double(), noise[1].double(), legal)  # noqa: E731
        fixed = [column.double() if column.is_floating_point() else column for column in rows[:6]]
        per_row, _, _ = twin._loss(TensorBatch(*fixed, None, None), online, target)
        return float((fixed[5] * per_row).mean().detach())

    # the goal moves with the double choice only where it changes; small steps do not change it
    for name, parameter in policy.network.named_parameters():
        for index in range(0, parameter.numel(), max(1, parameter.numel() // 3)):
            flat = parameter.data.view(-1)
            before, step = float(flat[index]), 1e-3
            flat[index] = before + step
            high = loss_in_float64(rows)
            flat[index] = before - step
            low = loss_in_float64(rows)
            flat[index] = before
            assert (high - low) / (2 * step) == pytest.approx(float(slopes[name].view(-1)[index]), abs=2e-4), name


# ---- where there is no twin, torch learns ----


class Own(DQNPolicy):
    """Charge something else."""

    def _loss(self, *args: Any) -> Any:
        loss, priority, shown = super()._loss(*args)
        return 2 * loss, priority, shown


@pytest.mark.parametrize(
    "parts",
    [
        {"value": QuantileValue(4, rescale=1e-2)},
        {"value": ExpectedValue(rescale=1e-2)},
        {"backup": type("OwnBackup", (MaxBackup,), {})()},
        {"penalty": ConservativePenalty(1.0)},
        {"hidden": (400, 400)},
    ],
    ids=str,
)
def test_other_parts_are_torchs(parts: dict[str, Any]) -> None:
    assert made(**parts)._host_learner is None


def test_a_loss_of_ones_own_is_torchs() -> None:
    assert Own.for_envs(Spaces(), hidden=(8,), device="cpu")._host_learner is None


def test_a_network_of_ones_own_is_torchs() -> None:
    assert DQNPolicy(small_net(), device="cpu", action_space=Spaces().action_space)._host_learner is None


def test_images_are_torchs() -> None:
    frames = Spaces(observation_space=spaces.Box(0, 255, (40, 40), np.uint8))
    assert DQNPolicy.for_envs(frames, head=(8,), device="cpu")._host_learner is None


def test_a_batch_too_large_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = made()
    asked: list[int] = []
    learnt = policy._learn
    monkeypatch.setattr(policy, "_learn", lambda rows, step: (asked.append(len(rows.reward)), learnt(rows, step))[1])
    policy.update(batch_of(512), step=0)
    assert asked == []
    policy.update(batch_of(513), step=1)
    assert asked == [513]
    policy.update(batch_of(8), step=2)
    assert policy.n_updates == 3


class Augmented(DQNPolicy):
    """Learn from rows of its own making."""

    def tensors(self, batch: Any) -> TensorBatch:
        return super().tensors(batch)


def test_a_subclass_with_rows_of_its_own_is_torchs() -> None:
    assert Augmented.for_envs(Spaces(), hidden=(8,), device="cpu")._host_learner is None


def freeze_the_body(policy: DQNPolicy) -> None:
    policy.network.encoder.requires_grad_(False)  # type: ignore[union-attr, operator]


def wait_for_a_gradient(policy: DQNPolicy) -> None:
    next(policy.network.parameters()).register_hook(lambda slope: 0.5 * slope)


def share_a_bias(policy: DQNPolicy) -> None:
    first, second, _ = policy.network.encoder.body.layers  # type: ignore[union-attr, misc]
    second.bias = first.bias


def judge_otherwise(policy: DQNPolicy) -> None:
    policy.value = ExpectedValue("mse")


def follow_otherwise(policy: DQNPolicy) -> None:
    policy.backup = DoubleBackup()


def charge_more(policy: DQNPolicy) -> None:
    policy.penalty = ConservativePenalty(1.0)


def wait_for_what_was_added_up(policy: DQNPolicy) -> None:
    def halve(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(0.5)

    next(policy.network.parameters()).register_post_accumulate_grad_hook(halve)


def wait_for_a_pass(policy: DQNPolicy) -> None:
    policy.network.register_forward_hook(lambda _, given, told: told._replace(numbers=2 * told.numbers))


def replace_the_preprocess(policy: DQNPolicy) -> None:
    policy.preprocess = torch.nn.Tanh()


def replace_the_target(policy: DQNPolicy) -> None:
    policy.target_network = copy.deepcopy(policy.network).requires_grad_(False)


def watch_the_preprocess(policy: DQNPolicy) -> None:
    policy.preprocess.register_forward_hook(lambda _, given, told: 2 * told)


def use_a_layer_twice(policy: DQNPolicy) -> None:
    layers = policy.network.encoder.body.layers  # type: ignore[union-attr]
    layers[1] = layers[0] if layers[0].in_features == 8 else layers[2]  # type: ignore[index, operator, union-attr]


def bend_otherwise(policy: DQNPolicy) -> None:
    policy.network.encoder.body.activation = torch.nn.functional.elu  # type: ignore[union-attr]


def another_head(policy: DQNPolicy) -> None:
    head = MLP([8, 8, 3], activation=torch.nn.functional.elu)
    head.load_state_dict({name: 0.1 + torch.zeros_like(tensor) for name, tensor in head.state_dict().items()})
    policy.network.heads.advantage = head  # type: ignore[union-attr]


def turn_sooner(policy: DQNPolicy) -> None:
    policy.value.delta = 0.1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "change",
    [
        freeze_the_body,
        wait_for_a_gradient,
        wait_for_what_was_added_up,
        wait_for_a_pass,
        replace_the_preprocess,
        replace_the_target,
        watch_the_preprocess,
        share_a_bias,
        use_a_layer_twice,
        bend_otherwise,
        another_head,
        turn_sooner,
        judge_otherwise,
        follow_otherwise,
        charge_more,
    ],
)
@pytest.mark.parametrize("n_before", [0, 3])
def test_what_changes_later_is_seen(change: Any, n_before: int) -> None:
    mine, theirs = made(hidden=(8, 8, 8)), torch_only(made(hidden=(8, 8, 8)))
    for policy in (mine, theirs):
        for step in range(n_before):
            policy.update(batch_of(8, seed=step), step=step)
        change(policy)
        for step in range(3, 8):
            policy.update(batch_of(8, seed=step), step=step)
    torch.testing.assert_close(parameters_of(mine), parameters_of(theirs), rtol=1e-4, atol=1e-5)


def test_another_network_than_its_own_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, asked = made(), []
    policy.update(batch_of(8), step=0)
    policy.network = copy.deepcopy(policy.network)
    monkeypatch.setattr(policy, "_learn", lambda rows, step: asked.append(step) or {})
    policy.update(batch_of(8), step=1)
    assert asked == [1]


def test_a_network_of_another_dtype_is_torchs_to_refuse() -> None:
    policy = made()
    policy.update(batch_of(8), step=0)
    policy.network.double()
    with pytest.raises(RuntimeError, match="dtype"):
        policy.update(batch_of(8), step=1)


# ---- weights that move behind its back ----


def load(policy: DQNPolicy) -> None:
    policy.load_state_dict({name: 0.5 * tensor for name, tensor in policy.state_dict().items()}, assign=True)


def convert(policy: DQNPolicy) -> None:
    policy.double()
    policy.float()


def forget(policy: DQNPolicy) -> None:
    policy.zero_grad()


def replace_a_layer(policy: DQNPolicy) -> None:
    network = policy.network
    assert isinstance(network, QNetwork)
    network.heads.advantage.layers[0] = linear(np.eye(3, 8))


def move_the_target(policy: DQNPolicy) -> None:
    for parameter in policy.target_network.parameters():
        parameter.data = parameter.data + 0.1


@pytest.mark.parametrize("change", [load, convert, forget, replace_a_layer, move_the_target])
def test_weights_that_were_replaced_are_learnt_on(change: Any) -> None:
    mine, theirs = made(), torch_only(made())
    for policy in (mine, theirs):
        for step in range(3):
            policy.update(batch_of(8, seed=step), step=step)
        change(policy)
        for step in range(3, 8):
            policy.update(batch_of(8, seed=step), step=step)
    torch.testing.assert_close(parameters_of(mine), parameters_of(theirs), rtol=1e-4, atol=1e-5)


def test_a_copy_learns_by_itself() -> None:
    policy = made()
    policy.update(batch_of(8), step=0)
    copied, before = copy.deepcopy(policy), parameters_of(policy)
    copied.update(batch_of(8, seed=1), step=1)
    assert_same(parameters_of(policy), before)
    policy.update(batch_of(8, seed=1), step=1)
    assert_same(parameters_of(policy), parameters_of(copied))


def test_an_action_below_0_is_refused() -> None:
    batch = batch_of(8)
    batch.action[3] = -1
    with pytest.raises(IndexError, match="at least 0, got -1"):
        made().update(batch, step=0)


def test_what_is_frozen_in_the_middle_is_gone_on_with_to_the_bit() -> None:
    straight, saved, resumed = made(), made(), made()
    for policy in (straight, saved):
        for step in range(3):
            policy.update(batch_of(8, seed=step), step=step)
        freeze_the_body(policy)
        policy.update(batch_of(8, seed=3), step=3)
    resumed.load_training_state(saved.training_state())
    freeze_the_body(resumed)
    for policy in (straight, resumed):
        for step in range(4, 8):
            policy.update(batch_of(8, seed=step), step=step)
        policy.network.requires_grad_(True)
        for step in range(8, 12):
            policy.update(batch_of(8, seed=step), step=step)
    assert_same(parameters_of(straight), parameters_of(resumed))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_moves_nothing(bad: float) -> None:
    policy = made(target=Target(every=1, unit="updates"))
    policy.update(batch_of(8), step=0)
    before = parameters_of(policy)
    reward = np.zeros(8, np.float32)
    reward[3] = bad
    with pytest.raises(DivergedError, match="update 2 at step 7"):
        policy.update(batch_of(8, reward=reward), step=7)
    assert_same(parameters_of(policy), before)


def test_skipped_updates_teach_no_priority() -> None:
    policy = made()
    policy.on_nan = "skip"
    policy.update(batch_of(8), step=0)
    result = policy.update(batch_of(8, reward=np.full(8, math.nan, np.float32)), step=1)
    assert result.read_priority() is None
    assert policy.read_metrics()["skipped"] == 0.5
