"""The target network: when it follows, how far, that its clock never drifts, and its flat memory."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from tests.helpers.learning import linear
from tests.helpers.torch_step import TorchStep
from trainkit import Adam, ConfigError, Target
from trainkit.policy.target import TargetNetwork


def follower(spec: Target, online: float = 1.0, target: float = 0.0) -> tuple[TargetNetwork, nn.Linear]:
    """Make a target network of one weight, `target`, that follows `online`."""
    network = linear([[target]])
    pair = TargetNetwork(network, spec)
    with torch.no_grad():
        network.weight.fill_(online)
    return pair, network


def weight(pair: TargetNetwork) -> float:
    return next(iter(pair.network.parameters())).item()


def test_starts_as_a_copy_of_its_own() -> None:
    network = linear([[1.0, 2.0]])
    pair = TargetNetwork(network, Target())

    assert_close(pair.network.weight, network.weight)
    assert pair.network.weight.data_ptr() != network.weight.data_ptr()
    assert not any(parameter.requires_grad for parameter in pair.network.parameters())
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_follows_when_a_multiple_of_k_env_steps_is_passed() -> None:
    pair, _ = follower(Target(every=10))
    steps = [1, 5, 9, 10, 11, 19, 20, 27, 34, 39, 40]

    assert [step for step in steps if pair.follow(step=step, n_updates=0)] == [10, 20, 34, 40]


def test_follows_every_k_updates_from_the_first_on() -> None:
    pair, _ = follower(Target(every=3, unit="updates"))

    assert [n for n in range(1, 10) if pair.follow(step=1000, n_updates=n)] == [3, 6, 9]


def test_does_not_follow_just_because_learning_starts() -> None:
    pair, _ = follower(Target(every=10))

    assert not pair.follow(step=1005, n_updates=1)
    assert weight(pair) == 0.0
    assert pair.follow(step=1010, n_updates=2)


def test_several_updates_at_one_step_follow_once() -> None:
    pair, _ = follower(Target(every=10))
    pair.follow(step=5, n_updates=1)

    assert [pair.follow(step=10, n_updates=n) for n in (2, 3, 4)] == [True, False, False]
    assert pair.n_updates == 1


@given(every=st.integers(1, 20), jumps=st.lists(st.integers(0, 50), min_size=1, max_size=30))
def test_phase_never_drifts(every: int, jumps: list[int]) -> None:
    pair, _ = follower(Target(every=every))
    step = 0
    pair.follow(step=0, n_updates=0)
    for jump in jumps:
        crossed = any(at % every == 0 for at in range(step + 1, step + jump + 1))
        step += jump
        assert pair.follow(step=step, n_updates=0) == crossed


def test_a_hard_copy_is_exact() -> None:
    pair, online = follower(Target(every=1, unit="updates"), online=0.1)
    pair.follow(step=0, n_updates=1)

    assert weight(pair) == online.weight.item()


def test_a_soft_one_goes_part_of_the_way() -> None:
    pair, online = follower(Target(every=1, unit="updates", tau=0.25), online=1.0, target=0.0)

    pair.follow(step=0, n_updates=1)
    assert weight(pair) == 0.25
    pair.follow(step=0, n_updates=2)
    assert weight(pair) == 0.4375  # 0.25 + 0.75 * 0.25
    with torch.no_grad():
        online.weight.fill_(-1.0)
    pair.follow(step=0, n_updates=3)
    assert weight(pair) == 0.078125  # -0.25 + 0.75 * 0.4375


def test_the_online_network_is_left_alone() -> None:
    pair, online = follower(Target(every=1, unit="updates", tau=0.25))
    pair.follow(step=0, n_updates=1)

    assert online.weight.item() == 1.0


def test_one_call_catches_up_with_several_multiples() -> None:
    pair, _ = follower(Target(every=10, tau=0.25))
    pair.follow(step=5, n_updates=0)
    pair.follow(step=38, n_updates=0)

    assert weight(pair) == pytest.approx(1 - 0.75**3)
    assert pair.n_updates == 1


def test_tau_follows_the_step() -> None:
    pair, _ = follower(Target(every=1, unit="updates", tau=[(0, 1.0), (100, 0.5)]))

    pair.follow(step=100, n_updates=1)
    assert weight(pair) == 0.5


def test_buffers_are_copied_whole_even_when_softly_followed() -> None:
    network = nn.BatchNorm1d(2)
    pair = TargetNetwork(network, Target(every=1, unit="updates", tau=0.5))
    network(torch.tensor([[1.0, 10.0], [3.0, 30.0]]))  # in train mode: running means move

    pair.follow(step=0, n_updates=1)
    assert_close(pair.network.running_mean, network.running_mean)
    assert_close(pair.network.running_var, network.running_var)
    assert pair.network.num_batches_tracked.item() == 1
    assert pair.network.running_mean is not network.running_mean


def test_is_in_eval_mode_whatever_the_online_network_is_in() -> None:
    pair = TargetNetwork(nn.Sequential(nn.Dropout(0.5)).train(), Target())

    assert not any(module.training for module in pair.network.modules())


@pytest.mark.parametrize("unit", ["env_steps", "updates"])
def test_saved_counters_continue_in_the_same_phase(unit: Any) -> None:
    straight, _ = follower(Target(every=10, unit=unit))
    for clock in range(0, 37, 4):
        straight.follow(step=clock, n_updates=clock)
    resumed, _ = follower(Target(every=10, unit=unit))
    resumed.load_state_dict(straight.state_dict())

    clocks = range(37, 80, 3)
    expected = [40, 52, 61, 70]
    for pair in (straight, resumed):
        assert [clock for clock in clocks if pair.follow(step=clock, n_updates=clock)] == expected
    assert resumed.n_updates == straight.n_updates


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Target(every=0), "Target.every must be a whole number >= 1, got 0"),
        (lambda: Target(every=2.5), "Target.every must be a whole number >= 1, got 2.5"),
        (lambda: Target(every=True), "Target.every must be a whole number >= 1, got True"),
        (
            lambda: Target(unit="update"),
            "Target.unit must be one of ['env_steps', 'updates'], got 'update', did you",
        ),
        (lambda: Target(tau=0), "Target.tau must be in (0, 1], got 0"),
        (lambda: Target(tau=1.01), "Target.tau must be in (0, 1], got 1.01"),
        (lambda: Target(tau=float("nan")), "Target.tau must be in (0, 1], got nan"),
        (lambda: Target(tau=[(0, 0.5), (10, 0.0)]), "Target.tau must be in (0, 1], got 0.0"),
    ],
)
def test_wrong_input_is_refused_by_name_and_rule(make: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        make()

    assert message in str(refusal.value)


def test_everything_wrong_with_a_target_is_said_at_once() -> None:
    with pytest.raises(ConfigError) as refusal:
        Target(every=0, unit="x", tau=2.0)

    assert str(refusal.value).count("Target.") == 3


# ---- parameters in flat memory ----


class Layers(nn.Module):
    """Layers of odd sizes with a buffer, of which one layer may get no gradient."""

    def __init__(self, *, used: bool = True) -> None:
        super().__init__()
        self.first, self.second, self.third = linear(torch.ones(7, 3).tolist()), nn.Identity(), linear([[0.5] * 7])
        self.apart = linear([[1.0, 2.0, 3.0]])
        self.last = linear([[0.25]])
        self.register_buffer("shift", torch.zeros(2))
        self.used = used

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.third(self.second(self.first(x))))
        return y + self.apart(x) if self.used else y


class Learning:
    """A target network and an online network that learns by `GradientStep`, as in a policy."""

    def __init__(self, online: Layers, tau: float) -> None:
        self.online = online
        self.tau = 1.0 - (1.0 - tau)  # as after one period
        self.step = TorchStep(online, Adam(lr=0.1))
        self.pair = TargetNetwork(online, Target(every=1, unit="updates", tau=tau))
        self.n_updates = 0

    def update(self) -> None:
        """Take a gradient step and follow; the target has the bits of a copy parameter by parameter."""
        x = torch.linspace(-1, 1, 6).view(2, 3).to(self.online.first.weight.dtype)
        self.step(lambda: (self.online(x).square().mean(), None), step=0)
        with torch.no_grad():
            self.online.shift.add_(1.0)
        followed = dict(self.online.named_parameters())
        names = [name for name, _ in self.pair.network.named_parameters()]
        expected = [parameter.clone() for parameter in self.pair.network.parameters()]
        with torch.no_grad():
            torch._foreach_lerp_(expected, [followed[name] for name in names], self.tau)
        self.n_updates += 1
        self.pair.follow(step=0, n_updates=self.n_updates)
        for own, wanted in zip(self.pair.network.parameters(), expected, strict=True):
            assert_close(own, wanted, rtol=0, atol=0)
        assert_close(self.pair.network.shift, self.online.shift, rtol=0, atol=0)

    def n_copied(self) -> list[int]:
        """Return how many tensors each call takes that moves the target's parameters."""

        class Calls(TorchDispatchMode):
            def __init__(self) -> None:
                super().__init__()
                self.n_tensors: list[int] = []

            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if "_foreach_" in str(func):
                    self.n_tensors.append(len(args[0]))
                return func(*args, **(kwargs or {}))

        with Calls() as calls:
            self.pair.follow(step=0, n_updates=self.n_updates + 1)
        self.n_updates += 1
        return calls.n_tensors


@pytest.mark.parametrize("tau", [0.005, 0.75, 1.0])
def test_all_parameters_that_learn_are_copied_as_one_tensor(tau: float) -> None:
    learning = Learning(Layers(), tau)
    for _ in range(3):
        learning.update()

    assert learning.n_copied() == [1]


def test_a_layer_without_gradient_is_copied_apart() -> None:
    learning = Learning(Layers(used=False), 0.5)
    learning.update()

    assert learning.n_copied() == [3]  # the layers before it, the layer itself, the one after it


def test_nothing_is_searched_for_again_while_nothing_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    learning = Learning(Layers(), 0.5)
    learning.update()
    learning.pair.copy(0.5)
    for name in ("parameters", "buffers", "modules"):
        monkeypatch.setattr(nn.Module, name, None)

    learning.pair.copy(0.5)


def convert(learning: Learning) -> None:
    learning.online.double()
    learning.pair.network.double()


def assign(learning: Learning) -> None:
    for module in (learning.online, learning.pair.network):
        weights = {name: weight + 1.0 for name, weight in module.state_dict().items()}
        module.load_state_dict(weights, assign=True)
    learning.pair.network.requires_grad_(False)


def load(learning: Learning) -> None:
    learning.online.load_state_dict({name: weight + 1.0 for name, weight in learning.online.state_dict().items()})


def freeze(learning: Learning) -> None:
    learning.online.apart.requires_grad_(False)


def replace_a_layer(learning: Learning) -> None:
    learning.online.third = linear([[2.0] * 7])


def replace_a_layer_of_the_target(learning: Learning) -> None:
    learning.pair.network.third = linear([[2.0] * 7]).requires_grad_(False)


def add_a_layer(learning: Learning) -> None:
    learning.online.second = linear(torch.eye(7).tolist())
    learning.pair.network.second = linear(torch.eye(7).tolist()).requires_grad_(False)


def register_a_layer_again(learning: Learning) -> None:
    """Change the order of the online network's parameters."""
    last = learning.online.last
    del learning.online.first, learning.online.last
    learning.online.last, learning.online.first = last, linear(torch.full((7, 3), 2.0).tolist())


def replace_a_buffer(learning: Learning) -> None:
    learning.online.shift = torch.full((2,), 5.0)


def replace_the_data(learning: Learning) -> None:
    learning.online.first.weight.data = torch.zeros(7, 3)
    learning.pair.network.last.weight.data = torch.zeros(1, 1)


def transpose(learning: Learning) -> None:
    weight = learning.pair.network.first.weight
    weight.data = weight.data.T.contiguous().T


CHANGES = [
    *(convert, assign, load, freeze, replace_a_layer, replace_a_layer_of_the_target, add_a_layer, replace_a_buffer),
    *(replace_the_data, transpose, register_a_layer_again),
]


@pytest.mark.parametrize("tau", [0.3, 1.0])
@pytest.mark.parametrize("change", CHANGES)
def test_whatever_is_replaced_is_followed(change: Callable[[Learning], None], tau: float) -> None:
    learning = Learning(Layers(), tau)
    for _ in range(2):
        learning.update()
    change(learning)
    for _ in range(3):
        learning.update()


class Positive(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.abs()


NO = "no such tensor"


@pytest.mark.parametrize("tau", [0.3, 1.0])
@pytest.mark.parametrize(
    ("change", "name", "online", "target"),
    [
        (
            lambda network: parametrize.register_parametrization(network.apart, "weight", Positive()),
            "apart.parametrizations.weight.original",
            "(1, 3)",
            NO,
        ),
        (lambda network: prune.l1_unstructured(network.last, "weight", amount=1), "last.weight_orig", "(1, 1)", NO),
        (lambda network: setattr(network, "second", linear([[1.0]])), "second.weight", "(1, 1)", NO),
        (
            lambda network: setattr(network, "second", nn.BatchNorm1d(7, affine=False)),
            "second.running_mean",
            "(7,)",
            NO,
        ),
        (lambda network: setattr(network, "apart", nn.Identity()), "apart.weight", NO, "(1, 3)"),
        (lambda network: setattr(network, "apart", linear([[1.0]])), "apart.weight", "(1, 1)", "(1, 3)"),
        (lambda network: setattr(network, "shift", torch.zeros(1)), "shift", "(1,)", "(2,)"),
    ],
)
def test_names_and_shapes_that_differ_are_refused(
    change: Callable[[Layers], None], name: str, online: str, target: str, tau: float
) -> None:
    learning = Learning(Layers(), tau)
    learning.update()
    before = [tensor.clone() for tensor in learning.pair.network.state_dict().values()]
    change(learning.online)

    with pytest.raises(ConfigError) as refusal:
        learning.pair.copy(tau)
    assert str(refusal.value) == (
        f"Target: {name} must be alike in both networks, got {online} in the online network and {target} in the target "
        "network: change the layers of both"
    )
    assert_close(list(learning.pair.network.state_dict().values()), before, rtol=0, atol=0)

    change(learning.pair.network)
    learning.pair.copy(1.0)
    assert_close(dict(learning.pair.network.state_dict()), dict(learning.online.state_dict()))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])  # noqa: S301
def test_a_copy_follows_its_own_online_network(duplicate: Callable[[Learning], Learning]) -> None:
    learning = Learning(Layers(), 0.3)
    for _ in range(2):
        learning.update()
    other = duplicate(learning)
    kept = [parameter.clone() for parameter in learning.pair.network.parameters()]
    for _ in range(3):
        other.update()

    assert other.n_copied() == [1]
    for now, before in zip(learning.pair.network.parameters(), kept, strict=True):
        assert_close(now, before, rtol=0, atol=0)
    learning.update()


def test_a_module_of_several_dtypes_is_followed() -> None:
    online = nn.ModuleList([linear([[1.0]]), linear([[2.0]]).half(), linear([[3.0]])])
    pair = TargetNetwork(online, Target())
    with torch.no_grad():
        for parameter in online.parameters():
            parameter.zero_()
    pair.copy(0.5)

    assert [parameter.item() for parameter in pair.network.parameters()] == [0.5, 0.0, 1.0, 0.0, 1.5, 0.0]


def test_layers_continue_to_share_a_parameter() -> None:
    online = nn.Sequential(linear([[1.0]]), linear([[1.0]]))
    online[1].weight = online[0].weight
    pair = TargetNetwork(online, Target())
    with torch.no_grad():
        online[0].weight.fill_(3.0)
    pair.copy(0.5)

    assert pair.network[0].weight is pair.network[1].weight
    assert pair.network[1].weight.item() == 2.0
