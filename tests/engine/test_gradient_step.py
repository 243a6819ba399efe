"""The gradient step against its slow reference: plain autograd, `torch.optim.Adam` and torch's clips."""

import copy
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from tests.helpers.learning import assert_same, linear, parameters_of, small_net
from tests.helpers.torch_step import Ours, Reference, TorchStep, assert_nets_close, square_loss
from trainkit import Adam, Clip, ConfigError, TorchOptimizer
from trainkit.core.schedules import Scheduled
from trainkit.engine import gradient_step
from trainkit.engine.device import convolutions_timed


def pair(adam: Adam, clip: Clip | None = None, net: nn.Module | None = None) -> tuple[Ours, Reference]:
    net = small_net() if net is None else net
    return Ours(copy.deepcopy(net), adam, clip), Reference(copy.deepcopy(net), adam, clip)


LRS: list[Scheduled] = [1e-2, [(0, 1e-2), (30, 1e-3)], lambda step: 1e-2 / (1 + step)]


@pytest.mark.one_of_each
@pytest.mark.parametrize("lr", LRS, ids=["constant", "knots", "function"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize(
    "clip",
    [None, Clip(0.5), Clip(0.2, by="norm"), Clip(0.02, by="value"), Clip(1e6), Clip(1e6, "norm"), Clip(1e6, "value")],
    ids=str,
)
def test_moves_like_torchs_adam_and_clips(clip: Clip | None, weight_decay: float, lr: Scheduled) -> None:
    ours, reference = pair(Adam(lr, weight_decay=weight_decay), clip)

    for steps in (range(1), range(1, 50)):
        assert_close(ours.train(steps), reference.train(steps), rtol=1e-4, atol=1e-6)
        assert_nets_close(ours.net, reference.net)


def test_moves_like_torchs_adam_with_other_betas_and_eps() -> None:
    ours, reference = pair(Adam(1e-2, betas=(0.5, 0.9), eps=1e-2))
    ours.train(range(100))
    reference.train(range(100))

    assert_nets_close(ours.net, reference.net)


def test_parameters_are_laid_out_once() -> None:
    ours, _ = pair(Adam(1e-2))
    ours.train(range(2))
    groups = ours.step.groups
    ours.train(range(2, 5))
    assert ours.step.is_laid_out
    assert ours.step.groups is groups


def test_default_numbers_are_the_papers() -> None:
    assert Adam() == Adam(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)


def test_the_norm_is_of_all_gradients_before_the_clip() -> None:
    net = nn.ParameterList([torch.zeros(1), torch.zeros(1)])
    step = TorchStep(net, Adam(), Clip(1e-3))
    _, norm, skipped, _ = step(lambda: 3 * net[0].sum() - 4 * net[1].sum(), step=0)

    assert (norm, skipped) == (5.0, 0.0)


def test_a_first_step_is_the_learning_rate_whatever_the_gradient() -> None:
    net = nn.ParameterList([torch.zeros(2)])
    TorchStep(net, Adam(0.25))(lambda: (net[0] * torch.tensor([3.0, -1e-3])).sum(), step=0)

    assert_close(net[0].detach(), torch.tensor([-0.25, 0.25]), rtol=1e-4, atol=0)


def test_returns_the_learning_rate_of_a_step() -> None:
    step = TorchStep(small_net(), Adam([(0, 1.0), (10, 0.0)]))

    assert [step.lr(at) for at in (0, 5, 10, 99)] == [1.0, 0.5, 0.0, 0.0]


def test_the_loss_is_called_once_per_step() -> None:
    ours, calls = Ours(small_net(), Adam()), []
    for i in range(3):
        ours.step(lambda i=i: calls.append(i) or square_loss(ours.net, i), step=i)

    assert calls == [0, 1, 2]


class Halves(nn.Module):
    """A network whose second half is used only on request."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = small_net((4, 6, 3)), small_net((4, 5, 3), seed=1)
        self.uses_both = False

    def forward(self, x: Tensor) -> Tensor:
        used: Tensor = self.used(x)
        return used + self.unused(x) if self.uses_both else used


@pytest.mark.parametrize("weight_decay", [0.0, 0.5])
def test_parameters_without_gradient_never_move(weight_decay: float) -> None:
    ours, reference = pair(Adam(1e-2, weight_decay=weight_decay), net=Halves())
    before = parameters_of(ours.net)["unused.0.weight"]
    ours.train(range(50))
    reference.train(range(50))

    assert_close(ours.net.get_parameter("unused.0.weight").detach(), before, rtol=0, atol=0)
    assert_nets_close(ours.net, reference.net)


def test_parameters_without_gradient_never_move_with_moments() -> None:
    adagrad = TorchOptimizer(partial(torch.optim.Adagrad, lr=1e-2, weight_decay=0.5))
    ours = Ours(Halves(), adagrad)
    before = parameters_of(ours.net)
    ours.train(range(3))
    ours.step.load_state_dict(saved(ours.step.state_dict()))
    ours.train(range(3, 6))

    for name, parameter in parameters_of(ours.net).items():
        assert torch.equal(parameter, before[name]) is name.startswith("unused")


def test_frozen_parameters_never_move() -> None:
    net = small_net()
    net[0].weight.requires_grad_(False)
    before = net[0].weight.clone()
    Ours(net, Adam(1e-2, weight_decay=0.5)).train(range(10))

    assert_close(net[0].weight, before, rtol=0, atol=0)


def test_a_parameter_with_a_late_first_gradient_moves_from_then_on() -> None:
    ours = Ours(Halves(), Adam(1e-2))
    ours.train(range(10))
    before = parameters_of(ours.net)
    ours.net.uses_both = True
    ours.train(range(10, 12))

    for name, parameter in parameters_of(ours.net).items():
        assert (parameter != before[name]).all()


@pytest.mark.parametrize("clip", [None, Clip(0.5), Clip(0.2, "norm"), Clip(0.02, "value")], ids=str)
def test_a_parameter_with_a_late_first_gradient_counts_its_own_steps(clip: Clip | None) -> None:
    ours, reference = pair(Adam(1e-2), clip, net=Halves())
    norms: list[list[float]] = []
    for side in (ours, reference):
        side.train(range(10))
        side.net.uses_both = True
        norms.append(side.train(range(10, 60)))

    assert_close(*norms, rtol=1e-4, atol=1e-6)
    assert_nets_close(ours.net, reference.net)


def test_a_parameter_that_is_not_used_any_more_has_gradient_0_and_moves_by_its_momentum() -> None:
    ours, reference = pair(Adam(1e-2), net=Halves())
    for side in (ours, reference):
        side.net.uses_both = True
        side.train(range(10))
        side.net.uses_both = False
    ours.train(range(10, 13))
    for i in range(10, 13):
        reference.optimizer.zero_grad(set_to_none=False)
        square_loss(reference.net, i).backward()
        reference.optimizer.step()

    assert not ours.net.unused[0].weight.grad.any()
    assert_nets_close(ours.net, reference.net)


def test_states_with_counts_of_their_own_pass_both_ways() -> None:
    ours, reference = pair(Adam(1e-2), net=Halves())
    for side in (ours, reference):
        side.train(range(10))
        side.net.uses_both = True
        side.train(range(10, 15))
    mine, theirs = saved(ours.step.state_dict()), saved(reference.optimizer.state_dict())
    assert [float(mine["state"][i]["step"]) for i in range(8)] == [15] * 4 + [5] * 4
    ours.step.load_state_dict(theirs)
    reference.optimizer.load_state_dict(mine)
    ours.train(range(15, 40))
    reference.train(range(15, 40))

    assert_nets_close(ours.net, reference.net)


def test_a_bad_number_in_a_part_that_came_late_stops_all_of_them() -> None:
    ours = Ours(Halves(), Adam(1e-2))
    ours.train(range(10))
    ours.net.uses_both = True
    ours.train(range(10, 15))
    before = snapshot(ours)
    _, _, skipped, _ = ours.step(lambda: square_loss(ours.net, 0) + ours.net.unused[0].bias[1] * math.nan, step=15)

    assert skipped == 1.0
    assert_same(snapshot(ours), before)


# ---- parameters replaced behind its back ----


def test_what_is_frozen_stays_where_it_is_and_continues_with_its_moments() -> None:
    ours = Ours(small_net(), Adam(1e-2))
    ours.train(range(5))
    first = ours.net[0]
    first.requires_grad_(False)
    frozen, others = parameters_of(first), parameters_of(ours.net[2])
    ours.train(range(5, 10))

    assert_same(parameters_of(first), frozen)
    assert not torch.equal(ours.net[2].weight, others["weight"])
    first.requires_grad_(True)
    ours.train(range(10, 15))
    assert not torch.equal(first.weight, frozen["weight"])


def test_a_layer_that_was_replaced_learns_and_the_others_keep_their_moments() -> None:
    ours = Ours(small_net(), Adam(1e-2))
    ours.train(range(5))
    new = ours.net[2] = small_net(seed=1)[2]
    before = parameters_of(new)
    ours.train(range(5, 6))

    assert not torch.equal(new.weight, before["weight"])
    assert [moment["step"].item() for moment in ours.step.state_dict()["state"].values()] == [6.0] * 4


def test_a_layer_that_is_added_learns_and_the_others_keep_their_moments() -> None:
    ours = Ours(small_net(), Adam(1e-2))
    ours.train(range(5))
    new = small_net((3, 3))
    before = parameters_of(new)
    ours.net.append(new)
    ours.train(range(5, 6))

    assert not torch.equal(new[0].weight, before["0.weight"])
    assert [moment["step"].item() for moment in ours.step.state_dict()["state"].values()] == [6.0] * 4 + [1.0] * 2


def test_another_number_of_parameters_takes_no_moments_of_others() -> None:
    ours = Ours(small_net((4, 8, 8, 3)), Adam(1e-2))
    ours.train(range(5))
    ours.net[2].bias = ours.net[0].bias
    ours.train(range(5, 10))

    assert ours.net[2].bias is ours.net[0].bias
    assert all(torch.isfinite(parameter).all() for parameter in ours.net.parameters())


def convert_and_back(net: nn.Module) -> None:
    net.double()
    net.float()


def assign(net: nn.Module) -> None:
    net.load_state_dict({name: tensor.clone() for name, tensor in net.state_dict().items()}, assign=True)


def forget_gradients(net: nn.Module) -> None:
    net.zero_grad()


def forget_gradients_of_a_middle_layer(net: nn.Module) -> None:
    net[2].zero_grad()


def zero_gradients(net: nn.Module) -> None:
    net.zero_grad(set_to_none=False)


def put_new_storage_under_all(net: nn.Module) -> None:
    for parameter in net.parameters():
        parameter.data = parameter.data.clone()


def put_new_storage_under_a_middle_layer(net: nn.Module) -> None:
    net[2].weight.data = net[2].weight.data.clone()


def load_in_place(net: nn.Module) -> None:
    net.load_state_dict({name: tensor.clone() for name, tensor in net.state_dict().items()})


MEDDLINGS = [
    convert_and_back,
    forget_gradients,
    zero_gradients,
    put_new_storage_under_all,
    load_in_place,
    assign,
    forget_gradients_of_a_middle_layer,
    put_new_storage_under_a_middle_layer,
]


@pytest.mark.parametrize("meddle", MEDDLINGS)
def test_replaced_parameters_are_noticed_and_keep_their_moments(meddle: Callable[[nn.Module], None]) -> None:
    straight = Ours(small_net((4, 8, 8, 3)), Adam(1e-2))
    meddled = Ours(small_net((4, 8, 8, 3)), Adam(1e-2))
    straight.train(range(20))
    meddled.train(range(20))
    meddle(meddled.net)
    straight.train(range(20, 30))
    meddled.train(range(20, 30))

    assert_same(parameters_of(meddled.net), parameters_of(straight.net))


def test_a_change_of_dtype_is_followed() -> None:
    ours, reference = pair(Adam(1e-2))
    ours.train(range(20))
    reference.train(range(20))
    ours.net.double()
    reference.net.double()
    reference.optimizer.load_state_dict(reference.optimizer.state_dict())  # casts the moments as well
    ours.train(range(20, 40))
    reference.train(range(20, 40))

    assert next(ours.net.parameters()).dtype == torch.float64
    assert_nets_close(ours.net, reference.net)


def test_a_deep_copy_goes_its_own_way_from_the_same_moments() -> None:
    straight, original = Ours(small_net(), Adam(1e-2)), Ours(small_net(), Adam(1e-2))
    straight.train(range(20))
    original.train(range(20))
    copied = copy.deepcopy(original)
    before = parameters_of(original.net)

    copied.train(range(20, 30))
    assert_same(parameters_of(original.net), before)
    straight.train(range(20, 30))
    assert_same(parameters_of(copied.net), parameters_of(straight.net))
    original.train(range(20, 30))
    assert_same(parameters_of(original.net), parameters_of(straight.net))


def test_modules_keep_their_names_and_shapes() -> None:
    net = small_net()
    shapes = {name: parameter.shape for name, parameter in net.named_parameters()}
    Ours(net, Adam()).train(range(3))

    assert {name: parameter.shape for name, parameter in net.named_parameters()} == shapes


# ---- warm-up ----


def test_convolutions_are_timed_on_the_parameters_device_in_the_first_three_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    devices: list[torch.device] = []

    def timed(device: torch.device) -> Any:
        devices.append(device)
        return convolutions_timed(torch.device("cuda"))

    monkeypatch.setattr(gradient_step, "convolutions_timed", timed)
    step, seen = TorchStep(net := small_net(), Adam()), []
    for i in range(5):
        step(lambda: seen.append(torch.backends.cudnn.benchmark) or net(torch.ones(2, 4)).sum(), step=i)
    assert seen == [True, True, True, False, False]
    assert devices == [torch.device("cpu")] * 3
    assert not torch.backends.cudnn.benchmark


# ---- saved state ----


def saved(state: Any) -> Any:
    """Pass a state through a file's worth of copying, as a checkpoint does."""
    return copy.deepcopy(state)


def test_torchs_adam_continues_from_our_state() -> None:
    ours, reference = pair(Adam(1e-2))
    ours.train(range(20))
    reference.net.load_state_dict(ours.net.state_dict())
    reference.optimizer.load_state_dict(saved(ours.step.state_dict()))
    ours.train(range(20, 40))
    reference.train(range(20, 40))

    assert_nets_close(ours.net, reference.net)


def test_adam_continues_from_the_state_of_torchs() -> None:
    ours, reference = pair(Adam(1e-2))
    reference.train(range(20))
    ours.net.load_state_dict(reference.net.state_dict())
    ours.step.load_state_dict(saved(reference.optimizer.state_dict()))
    ours.train(range(20, 40))
    reference.train(range(20, 40))

    assert_nets_close(ours.net, reference.net)


def test_our_state_has_the_names_and_shapes_of_torchs() -> None:
    ours, reference = pair(Adam(1e-2, weight_decay=0.1), net=Halves())
    ours.train(range(7))
    reference.train(range(7))
    mine, theirs = ours.step.state_dict(), reference.optimizer.state_dict()

    assert mine["state"].keys() == theirs["state"].keys() == {0, 1, 2, 3}
    for index, moments in theirs["state"].items():
        assert mine["state"][index].keys() == moments.keys()
        assert_close(mine["state"][index], moments, rtol=1e-4, atol=1e-6)
    group = mine["param_groups"][0]
    assert group["params"] == theirs["param_groups"][0]["params"]
    assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (1e-2, (0.9, 0.999), 1e-8, 0.1)


def test_our_own_state_continues_bit_by_bit() -> None:
    straight = Ours(small_net(), Adam(1e-2), Clip(0.5))
    straight.train(range(20))
    resumed = Ours(small_net(seed=9), Adam(1e-2), Clip(0.5))
    resumed.net.load_state_dict(straight.net.state_dict())
    resumed.step.load_state_dict(saved(straight.step.state_dict()))
    straight.train(range(20, 40))
    resumed.train(range(20, 40))

    assert_same(parameters_of(resumed.net), parameters_of(straight.net))


def test_a_state_before_the_first_step_is_empty_and_can_be_loaded() -> None:
    fresh, used = Ours(small_net(), Adam(1e-2)), Ours(small_net(), Adam(1e-2))
    state = fresh.step.state_dict()
    assert state["state"] == {}

    used.train(range(5))
    used.step.load_state_dict(state)
    used.net.load_state_dict(small_net().state_dict())
    used.train(range(5))
    fresh.train(range(5))
    assert_same(parameters_of(used.net), parameters_of(fresh.net))


# ---- what is not finite ----


def snapshot(ours: Ours) -> Any:
    return copy.deepcopy((parameters_of(ours.net), ours.step.state_dict()["state"]))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("clip", [None, Clip(0.5), Clip(0.5, "norm"), Clip(0.5, "value")], ids=str)
def test_a_step_with_a_gradient_that_is_not_finite_is_not_taken(clip: Clip | None, bad: float) -> None:
    ours = Ours(small_net(), Adam(1e-2, weight_decay=0.1), clip)
    ours.train(range(10))
    before = snapshot(ours)
    _, norm, skipped, _ = ours.step(lambda: square_loss(ours.net, 0) * bad, step=10)

    assert skipped == 1.0
    assert not math.isfinite(norm)
    assert_same(snapshot(ours), before)


def test_one_bad_number_among_good_ones_is_enough() -> None:
    ours = Ours(small_net(), Adam(1e-2))
    ours.train(range(10))
    before = snapshot(ours)
    ours.step(lambda: square_loss(ours.net, 0) + ours.net[2].bias[1] * math.nan, step=10)

    assert_same(snapshot(ours), before)


def test_a_bad_step_leaves_no_trace_in_later_ones() -> None:
    straight, stumbled = Ours(small_net(), Adam(1e-2)), Ours(small_net(), Adam(1e-2))
    straight.train(range(10))
    stumbled.train(range(5))
    stumbled.step(lambda: square_loss(stumbled.net, 0) * math.nan, step=5)
    stumbled.train(range(5, 10))

    assert_same(parameters_of(stumbled.net), parameters_of(straight.net))


def test_a_first_step_that_is_bad_is_not_taken_either() -> None:
    ours = Ours(small_net(), Adam(1e-2))
    before = parameters_of(ours.net)
    ours.step(lambda: square_loss(ours.net, 0) * math.inf, step=0)

    assert_same(parameters_of(ours.net), before)


# ---- denormals ----

TINY = 1e-40


@pytest.fixture
def has_denormals() -> Iterator[None]:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    torch.set_flush_denormal(False)
    yield
    torch.set_flush_denormal(False)


def keeps_denormals() -> bool:
    return (torch.full((64,), TINY) * 0.5).sum().item() != 0.0


@pytest.mark.usefixtures("has_denormals")
@pytest.mark.parametrize("flushes", [True, False])
def test_denormals_are_flushed_within_the_step_only(flushes: bool) -> None:
    ours = Ours(small_net(), Adam(), flush_denormals=flushes)
    seen = []
    ours.step(lambda: seen.append(keeps_denormals()) or square_loss(ours.net, 0), step=0)

    assert seen == [not flushes]
    assert keeps_denormals()


@pytest.mark.usefixtures("has_denormals")
def test_denormals_come_back_after_a_loss_that_raises() -> None:
    def loss() -> Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TorchStep(small_net(), Adam())(loss, step=0)

    assert keeps_denormals()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Adam(-1e-3), "Adam.lr must be in [0, inf), got -0.001"),
        (lambda: Adam(math.nan), "Adam.lr must be in [0, inf), got nan"),
        (lambda: Adam(math.inf), "Adam.lr must be in [0, inf), got inf"),
        (lambda: Adam("1e-3"), "Adam.lr must be in [0, inf), got '1e-3'"),
        (lambda: Adam(True), "Adam.lr must be in [0, inf), got True"),
        (lambda: Adam([(0, 1e-3), (10, -1.0)]), "Adam.lr must be in [0, inf), got -1.0"),
        (lambda: Adam(betas=(0.9,)), "Adam.betas must be two numbers, got (0.9,)"),
        (lambda: Adam(betas=(0.9, 1.5)), "Adam.betas must be in [0, 1], got 1.5"),
        (lambda: Adam(betas=(0.9, 1.0)), "Adam.betas must be below 1, got 1"),
        (lambda: Adam(eps=0), "Adam.eps must be in (0, inf), got 0"),
        (lambda: Adam(weight_decay=-0.1), "Adam.weight_decay must be in [0, inf), got -0.1"),
        (lambda: Clip(0), "Clip.limit must be in (0, inf), got 0"),
        (lambda: Clip(-1.0), "Clip.limit must be in (0, inf), got -1.0"),
        (lambda: Clip(math.inf), "Clip.limit must be in (0, inf), got inf"),
        (lambda: Clip(1.0, by="global-norm"), "Clip.by must be one of ['global_norm', 'norm', 'value'], got 'global-"),
    ],
)
def test_wrong_input_is_refused_by_name_and_rule(make: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        make()

    assert message in str(refusal.value)


def test_a_sparse_gradient_is_refused_by_the_parameters_name() -> None:
    net = nn.Sequential(nn.Embedding.from_pretrained(torch.ones(5, 3), freeze=False, sparse=True))
    step = TorchStep(net, Adam(1e-2))
    message = r"needs dense gradients, but that of 0\.weight is sparse: make its module with sparse=False"
    with pytest.raises(ConfigError, match=message):
        step(lambda: net(torch.tensor([1, 3])).sum(), step=0)


def test_everything_wrong_with_a_clip_is_said_at_once() -> None:
    with pytest.raises(ConfigError) as refusal:
        Clip(0, by="x")

    assert str(refusal.value).count("Clip.") == 2


def test_everything_wrong_with_adam_is_said_at_once() -> None:
    with pytest.raises(ConfigError) as refusal:
        Adam(-1.0, betas=(2.0, 0.9), eps=0, weight_decay=-1)

    assert str(refusal.value).count("Adam.") == 4


def test_betas_that_are_one_number_are_refused_like_any_other() -> None:
    with pytest.raises(ConfigError, match=r"Adam\.betas must be two numbers, got 0\.9"):
        Adam(betas=0.9)


def test_moments_follow_a_linear_change_of_gradients() -> None:
    gradient, matrix = torch.tensor([[1.0, -2.0], [3.0, 4.0]]), torch.tensor([[1.0, 0.5], [0.0, 0.5]])
    net = linear([[0.0, 0.0], [0.0, 0.0]])
    step = TorchStep(net, Adam(1e-3))
    step(lambda: (net.weight * gradient).sum() + net.bias.sum(), step=0)
    step.map_moments([net.weight], lambda moment: matrix @ moment)
    weight, bias = copy.deepcopy(step.state_dict()["state"]).values()
    assert_close(weight["exp_avg"], torch.tensor([[0.25, 0.0], [0.15, 0.2]]))  # of 0.1, -0.2, 0.3, 0.4
    assert_close(weight["exp_avg_sq"], 1e-3 * torch.tensor([[6.25, 16.0], [2.25, 4.0]]))  # of 1, 2, 3, 4, squared last
    assert_close(bias["exp_avg"], torch.full((2,), 0.1))
    step(lambda: (net.weight * gradient).sum() + net.bias.sum(), step=1)
    assert_close(step.state_dict()["state"][0]["exp_avg"], 0.9 * weight["exp_avg"] + 0.1 * gradient)


def test_momentum_of_a_torch_optimizer_follows_a_linear_change_of_gradients() -> None:
    net = linear([[0.0, 0.0]])
    step = TorchStep(net, lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
    step(lambda: (net.weight * torch.tensor([[1.0, -2.0]])).sum(), step=0)
    step.map_moments([net.weight], lambda moment: 3.0 * moment)
    assert_close(step.state_dict()["state"][0]["momentum_buffer"], torch.tensor([[3.0, -6.0]]))
