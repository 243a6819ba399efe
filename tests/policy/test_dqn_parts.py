"""Parts that do not fit each other are refused before the first step, by trying them on one row."""

import copy
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.helpers.learning import MASKED, Spaces, assert_same, batch_of, made, parameters_of, small_net
from trainkit import (
    CategoricalValue,
    Collector,
    ConfigError,
    DoubleBackup,
    DQNPolicy,
    ExpectedValue,
    ImplicitQuantileValue,
    MaxBackup,
    MunchausenBackup,
    QuantileValue,
    make_envs,
)
from trainkit.nets import QNetwork


def try_parts(space: Any = None, **options: Any) -> DQNPolicy:
    policy = made(space, **options)
    policy.check_spaces(*(Spaces() if space is None else Spaces(space)))
    return policy


def refusal(**options: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        try_parts(**options)
    return str(refused.value)


@pytest.mark.one_of_each
@pytest.mark.parametrize("space", [None, MASKED], ids=["all legal", "masked"])
@pytest.mark.parametrize("backup", [MaxBackup(), DoubleBackup(), MunchausenBackup()], ids=["max", "double", "soft"])
@pytest.mark.parametrize(
    "value",
    [ExpectedValue(), ExpectedValue(rescale=1e-3), QuantileValue(4), ImplicitQuantileValue(3, target_quantiles=2)],
    ids=["expected", "rescaled", "quantile", "implicit"],
)
def test_all_parts_of_returns_fit_each_other(value: Any, backup: Any, space: Any) -> None:
    policy = try_parts(space, value=value, backup=backup, dueling=True, noisy=True)

    assert policy.update(batch_of(4, space=space or Spaces().observation_space), step=0).read_priority().shape == (4,)


def test_a_soft_backup_of_a_distribution_is_refused_when_the_collector_is_made() -> None:
    envs = make_envs("CartPole-v1", 2)
    policy = DQNPolicy.for_envs(envs, value=CategoricalValue(5, 0, 1), backup=MunchausenBackup(), device="cpu")
    with pytest.raises(ConfigError, match=r"MunchausenBackup adds to returns, .* of CategoricalValue are not: use Exp"):
        Collector(policy, envs)


class Own(ExpectedValue):
    """A value part of one's own, with a loss to be replaced."""

    def __init__(self, loss: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.own = loss

    def loss(self, chosen: Tensor, td_target: Tensor) -> Any:
        return self.own(chosen, td_target)


def raising(*_: Any) -> Any:
    raise KeyError("mine")


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda chosen, td_target: ((chosen - td_target).mean(), (chosen - td_target).abs()[:, 0]), "loss per row, ()"),
        (lambda chosen, td_target: ((chosen - td_target)[:, 0], chosen - td_target), "priority per row, (1, 1)"),
        (lambda chosen, td_target: (chosen - td_target, (chosen - td_target)[:, 0]), "loss per row, (1, 1)"),
        (lambda chosen, td_target: ((chosen - td_target)[:, 0], None), "priority per row, None"),
    ],
    ids=["mean", "wide priority", "wide loss", "no priority"],
)
def test_a_loss_that_is_not_per_row_is_refused(loss: Any, said: str) -> None:
    what, got = said.split(", ", 1)

    assert f"DQNPolicy's MaxBackup and Own must give a {what}, (1,) for one, got {got}" in refusal(value=Own(loss))


def test_a_value_part_that_raises_is_refused_with_its_own_words() -> None:
    assert "DQNPolicy's MaxBackup and Own fail together on one row: KeyError: 'mine'" in refusal(value=Own(raising))


def test_a_backup_that_raises_is_refused_with_its_own_words() -> None:
    said = refusal(backup=lambda *_: raising())

    assert "and ExpectedValue fail together on one row: KeyError: 'mine'" in said


def test_a_backup_of_another_shape_than_the_value_needs_is_refused() -> None:
    def flat(online: Any, target: Any, batch: Any, value: Any) -> tuple[Tensor, Tensor]:
        return target(batch.next_obs, batch.next_legal).outputs[0, 0, :1].squeeze(), batch.reward

    assert "and CategoricalValue fail together on one row" in refusal(backup=flat, value=CategoricalValue(5, 0, 1))


def test_the_refusal_keeps_its_cause() -> None:
    with pytest.raises(ConfigError) as refused:
        try_parts(value=Own(raising))

    assert isinstance(refused.value.__cause__, KeyError)


def test_a_value_that_draws_fractions_needs_a_network_that_takes_them() -> None:
    policy = DQNPolicy(small_net(), value=ImplicitQuantileValue(3), device="cpu", seed=0)
    with pytest.raises(ConfigError):
        policy.check_spaces(*Spaces())


def test_a_network_that_takes_fractions_needs_a_value_that_draws_them() -> None:
    network = made(value=ImplicitQuantileValue(3)).network
    with pytest.raises(ConfigError):
        DQNPolicy(network, value=QuantileValue(32), device="cpu", seed=0).check_spaces(*Spaces())


@pytest.mark.parametrize(
    "options",
    [{}, {"noisy": True}, {"value": ImplicitQuantileValue(3), "noisy": True}, {"value": QuantileValue(3)}],
    ids=["dqn", "noisy", "implicit", "quantile"],
)
def test_trying_draws_nothing_moves_nothing_and_notes_nothing(options: Any) -> None:
    policy = made(**options)
    before = copy.deepcopy(policy.training_state())
    policy.check_spaces(*Spaces())

    assert_same(policy.training_state(), before)
    assert policy.read_metrics() == {}
    assert all(parameter.grad is None for parameter in policy.parameters())


def test_trying_leaves_statistics_of_batch_norm_as_they_are() -> None:
    net = nn.Sequential(nn.BatchNorm1d(4), small_net((4, 3)))
    policy = DQNPolicy(net, device="cpu", seed=0)
    policy.train()
    before = {name: buffer.clone() for name, buffer in policy.named_buffers()}
    policy.check_spaces(*Spaces())

    assert_same(dict(policy.named_buffers()), before)


def test_batch_norm_within_a_network_of_ours_learns_its_statistics_from_updates() -> None:
    network = QNetwork((4,), 3, hidden=(8,))
    network.encoder.body = nn.Sequential(nn.BatchNorm1d(4), small_net((4, 8)))
    policy = DQNPolicy(network, device="cpu", seed=0)
    policy.update(batch_of(8), step=0)

    assert network.encoder.body[0].num_batches_tracked.item() == 1


def test_the_row_that_is_tried_lies_within_the_space() -> None:
    seen: list[Tensor] = []

    class Seeing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x)
            return torch.zeros(len(x), 3)

    space = gym.spaces.Box(np.array([2.0, -5.0], np.float32), np.array([3.0, -4.0], np.float32))
    DQNPolicy(Seeing(), device="cpu", seed=0).check_spaces(space, gym.spaces.Discrete(3))

    assert all(x.tolist() == [[2, -4]] for x in seen)


def test_a_policy_whose_parts_were_refused_is_as_it_was() -> None:
    policy = made(value=Own(raising))
    before = parameters_of(policy)
    for _ in range(2):
        with pytest.raises(ConfigError):
            policy.check_spaces(*Spaces())

    assert_same(parameters_of(policy), before)
