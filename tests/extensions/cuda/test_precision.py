"""The precision of networks' products while they learn, against float32 and against torch's own autocast."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from tests.helpers.engine import AUTO
from tests.helpers.learning import assert_same, batch_of, parameters_of, small_net
from tests.helpers.user_networks import USER_POLICIES
from trainkit import Adam, ConfigError, Policy
from trainkit.engine.device import CPU
from trainkit.engine.engine import Engine
from trainkit.engine.gradient_step import GradientStep
from trainkit.engine.loss import Loss, OwnObjective, TensorBatch
from trainkit.engine.precision import Precision, precision_for

ROUNDING = 2.0**-8  # of a number in bfloat16, relative


class Scaled(nn.Module):
    """A user's network with all kinds of parameters: of products, of a normalization, and a scale of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small_net((4, 8, 3), seed=1)
        self.norm = nn.LayerNorm(3)
        self.log_scale = nn.Parameter(torch.zeros(3))
        self.seen: dict[str, set[torch.dtype]] = {}

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.net(x)
        tensors = {"activation": y, "weight": self.net[0].weight, "bias": self.net[0].bias}
        for name, tensor in (tensors | {"norm": self.norm.weight, "scale": self.log_scale}).items():
            self.seen.setdefault(name, set()).add(tensor.dtype)
        return {"y": self.norm(y) * self.log_scale.exp(), "raw": y}


class Own(Policy):
    """A user's own policy: two networks, of which one learns from the other."""

    def __init__(self, **options: Any) -> None:
        super().__init__(device="cpu", seed=0, **options)
        self.student, self.teacher = Scaled(), small_net((4, 8, 3), seed=2)
        self.add_gradient_step("student", self.student, Adam(1e-2), loss=self.loss)
        self.given: list[Any] = []

    def loss(self, rows: TensorBatch) -> Loss:
        with torch.no_grad():  # first, so that nothing that is kept from it may lack a gradient
            target = self.teacher(rows.obs) @ torch.eye(3) + self.student(rows.obs)["raw"]
        outputs = self.student(rows.obs)
        self.given.append((outputs, target, self.student.net[0].weight))
        return Loss((outputs["y"] - target).square().sum(dim=1) + outputs["raw"].square().sum(dim=1))


def learn(policy: Policy, n_updates: int = 4) -> list[float]:
    """Take updates and return their losses."""
    losses = []
    for step in range(n_updates):
        policy.update(batch_of(16, seed=step), step=step)
        losses.append(policy.read_metrics()["loss"])
    return losses


def test_networks_multiply_in_bf16_on_bf16_weights_and_everything_else_is_float32() -> None:
    policy = Own(precision="bf16")
    learn(policy, 1)

    low, full = {torch.bfloat16}, {torch.float32}
    assert policy.student.seen == {"activation": low, "weight": low, "bias": low, "norm": full, "scale": full}
    outputs, target, weight = policy.given[0]
    assert {outputs["y"].dtype, outputs["raw"].dtype, target.dtype} == full
    assert weight is policy.student.net[0].weight


def test_losses_and_gradients_are_those_of_float32_up_to_the_rounding_of_bf16() -> None:
    rough, exact = Own(precision="bf16"), Own(engine="torch")
    first, second = learn(rough), learn(exact)

    n_roundings = 2 * 3  # of inputs, weights and outputs, in both layers
    assert_close(first, second, rtol=n_roundings * ROUNDING, atol=0)
    assert first != second
    for name, parameter in exact.student.named_parameters():
        own = rough.student.get_parameter(name).grad
        assert own is not None
        assert own.dtype == torch.float32
        assert (own - parameter.grad).norm() <= 4 * n_roundings * ROUNDING * parameter.grad.norm(), name


def test_gradients_are_the_bits_of_autocast_on_rounded_weights() -> None:
    net, x = small_net((4, 8, 3)), torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    policy = nn.ModuleDict({"net": net})
    step, engine = GradientStep(net, Adam(0.0)), Engine(policy, "torch", CPU, precision_for(policy, "bf16", CPU))
    rounded = copy.deepcopy(net).bfloat16()
    for _ in range(2):  # before and after parameters are laid out
        engine.minimize(step, OwnObjective(lambda: net(x).square().mean()), (), step=0)

    rounded(x.bfloat16()).float().square().mean().backward()
    for parameter, expected in zip(net.parameters(), rounded.parameters(), strict=True):
        assert_same(parameter.grad, expected.grad.float())


def test_a_network_is_as_before_after_a_step_and_after_an_error_in_one() -> None:
    policy = Own(precision="bf16")
    learn(policy, 2)
    weights, outputs = parameters_of(policy), policy.student(torch.ones(2, 4))

    def interrupted(rows: TensorBatch) -> Loss:
        policy.student(rows.obs)
        raise RuntimeError("within the loss")

    policy.gradient_steps["student"].loss = interrupted
    with pytest.raises(RuntimeError, match="within the loss"):
        policy.update(batch_of(16), step=2)
    assert_same(parameters_of(policy), weights)
    assert_same(policy.student(torch.ones(2, 4)), outputs)
    assert all(type(parameter) is nn.Parameter for parameter in policy.parameters())
    assert not any("forward" in vars(module) for module in policy.modules())


def test_a_patched_forward_pass_counts_and_stays() -> None:
    policy, plain = Own(precision="bf16"), Own(precision="bf16")
    forward = policy.teacher.forward
    policy.teacher.forward = patched = lambda x: forward(x) + 1.0  # type: ignore[method-assign]
    assert learn(policy) != learn(plain)
    assert policy.teacher.forward is patched


def test_what_was_replaced_or_moved_is_noticed() -> None:
    straight, changed = Own(precision="bf16"), Own(precision="bf16")
    learn(straight, 2)
    learn(changed, 2)
    for policy in (straight, changed):
        policy.student.net[2] = small_net((8, 3), seed=5)[0]
    for parameter in changed.parameters():
        parameter.data = parameter.data.clone()
    assert learn(changed) == learn(straight)


def test_a_hook_on_a_weight_receives_its_float32_gradient() -> None:
    policy, seen = Own(precision="bf16"), []
    weight = policy.student.net[0].weight
    weight.register_hook(lambda gradient: seen.append(gradient.dtype) or 2.0 * gradient)
    plain = Own(precision="bf16")
    learn(policy, 1)
    learn(plain, 1)
    assert seen == [torch.float32]
    assert_same(weight.grad, 2.0 * plain.student.net[0].weight.grad)


def test_a_deep_copy_learns_on_its_own_weights() -> None:
    straight, original = Own(precision="bf16"), Own(precision="bf16")
    learn(straight, 2)
    learn(original, 2)
    original.given.clear()  # tensors of a graph, which torch does not copy
    copied, before = copy.deepcopy(original), parameters_of(original)
    expected = learn(straight)
    assert learn(copied) == expected
    assert_same(parameters_of(original), before)
    assert learn(original) == expected


def test_a_frozen_weight_stays_and_the_others_learn() -> None:
    policy = Own(precision="bf16")
    learn(policy, 1)
    policy.student.net[0].weight.requires_grad_(False)
    before = parameters_of(policy.student)
    learn(policy, 2)
    after = parameters_of(policy.student)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == before.keys() - {"net.0.weight"}


# ---- networks of users ----


@pytest.mark.global_rng
@pytest.mark.parametrize("name", sorted(USER_POLICIES.keys() - {"bilinear"}))
def test_a_users_network_learns_nearly_the_same(name: str) -> None:
    exact = USER_POLICIES[name](engine="torch", device="cpu", seed=0)
    rough = copy.deepcopy(exact)
    rough.precision = "bf16"
    for step in range(2):
        batch = batch_of(32, seed=step, space=exact.observation_space)
        for policy in (rough, exact):
            policy.update(batch, step=step)
        losses, expected = (
            {key: metric for key, metric in policy.read_metrics().items() if key.endswith("loss")}
            for policy in (rough, exact)
        )
        assert losses == pytest.approx(expected, rel=0.1)  # some of these networks magnify roundings
        assert losses != expected


@pytest.mark.global_rng
def test_an_operation_that_needs_equal_dtypes_raises_with_the_remedy() -> None:
    rough = USER_POLICIES["bilinear"](precision="bf16", device="cpu", seed=0)
    with pytest.raises(RuntimeError, match="same dtype") as caught:
        rough.update(batch_of(8), step=0)
    assert caught.value.__notes__ == [
        "In a policy with precision='bf16' weights are bfloat16 while it learns: convert them or the other tensor in "
        "the network's forward, or choose another precision"
    ]
    assert all(type(parameter) is nn.Parameter for parameter in rough.parameters())


# ---- the choice ----


def test_precision_may_be_set_between_two_updates() -> None:
    policy, exact = Own(precision="bf16"), Own()
    policy.precision = "float32"
    assert learn(policy) == learn(exact)
    assert policy.engine.name == AUTO
    policy.precision = "bf16"
    assert policy.engine.name == "torch"
    policy.student.seen.clear()
    learn(policy, 1)
    assert policy.student.seen["weight"] == {torch.bfloat16}
    assert "precision='bf16'" in repr(policy)
    assert "bf16" in policy._repr_html_()


@pytest.mark.parametrize("wanted", ["fp16", "bfloat16", 16, None])
def test_an_unknown_precision_is_rejected(wanted: Any) -> None:
    with pytest.raises(ConfigError, match=r"Own\.precision must be one of \['float32', 'tf32', 'bf16'\], got"):
        Own(precision=wanted)


# ---- TF32 ----


def switches() -> list[str]:
    backends: Any = torch.backends
    return [one.fp32_precision for one in (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn)]


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_tf32_is_switched_on_for_the_loss_and_its_backward_pass_alone(precision: Precision) -> None:
    net, seen = small_net(), []
    net[0].weight.register_hook(lambda _: seen.append(switches()))
    step = GradientStep(net, Adam())
    engine = Engine(net, "torch", CPU, precision_for(net, precision, torch.device("cuda", 0)))
    before = switches()

    def loss() -> Tensor:
        seen.append(switches())
        return net(torch.ones(2, 4)).sum()

    engine.minimize(step, OwnObjective(loss), (), step=0)
    assert seen == [["tf32"] * 3 if precision == "tf32" else before] * 2
    assert switches() == before != ["tf32"] * 3
    with pytest.raises(ZeroDivisionError):
        engine.minimize(step, OwnObjective(lambda: 1 / 0), (), step=1)
    assert switches() == before


def test_tf32_on_the_cpu_is_float32() -> None:
    policy, exact = Own(precision="tf32"), Own()
    step = policy.gradient_steps["student"]
    before, seen = switches(), []
    loss = OwnObjective(lambda: seen.append(switches()) or policy.student(torch.ones(2, 4))["raw"].sum())
    policy.engine.minimize(step, loss, (), step=0)
    assert seen == [before]
    policy, exact = Own(precision="tf32"), Own()
    assert learn(policy) == learn(exact)
    assert policy.engine.name == exact.engine.name == AUTO
    np.testing.assert_equal(policy.get_weights(), exact.get_weights())
