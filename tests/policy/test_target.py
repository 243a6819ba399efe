"""The target network: when it follows, how far, and that its clock never drifts."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from tests.helpers.learning import linear
from trainkit import ConfigError, Target
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
def test_saved_counters_go_on_in_the_same_phase(unit: Any) -> None:
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
