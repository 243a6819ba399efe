"""Every loss's gradient, through the whole weighted mean of an update, against finite differences in float64."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.helpers.learning import NEVER, batch_of, objective, wide_net
from trainkit import (
    CategoricalValue,
    ConservativePenalty,
    DoubleBackup,
    DQNPolicy,
    ExpectedValue,
    HLGaussValue,
    ImplicitQuantileValue,
    MunchausenBackup,
    QuantileValue,
)
from trainkit.nets import ImplicitQNetwork, QNetwork

GAP = 1e-6


def loss_of_an_update(policy: DQNPolicy) -> Callable[[], Tensor]:
    """Return the loss that an update in float64 would minimize, to be called as often as one likes."""
    policy.double()
    batch = batch_of(6)
    wide = {name: getattr(batch, name).astype(np.float64) for name in ("obs", "next_obs")}
    rows = policy.tensors(replace(batch, **wide))._replace(inputs=policy.loss_noise(6))
    return lambda: objective(policy.loss, rows)["loss"]


def assert_gradient_is_true(policy: DQNPolicy) -> None:
    """Compare autograd with central differences, parameter by parameter."""
    loss = loss_of_an_update(policy)
    parameters = list(policy.network.parameters())
    gradients = torch.autograd.grad(loss(), parameters)
    largest = 0.0
    for parameter, gradient in zip(parameters, gradients, strict=True):
        flat, derivatives = parameter.detach().view(-1), torch.zeros(parameter.numel(), dtype=torch.float64)
        for place in range(len(flat)):
            before = flat[place].item()
            ends = []
            for end in (before + GAP, before - GAP):
                flat[place] = end
                with torch.no_grad():
                    ends.append(loss().item())
            flat[place] = before
            derivatives[place] = (ends[0] - ends[1]) / (2 * GAP)
        np.testing.assert_allclose(gradient.view(-1), derivatives, rtol=1e-4, atol=1e-7)
        largest = max(largest, gradient.abs().max().item())
    assert largest > 1e-3  # there is something to compare


RETURNS: list[Any] = [
    pytest.param(ExpectedValue("huber", delta=0.5), id="huber"),
    pytest.param(ExpectedValue("huber", rescale=1e-2), id="huber rescaled"),
    pytest.param(ExpectedValue("mse"), id="mse"),
    pytest.param(ExpectedValue("mse", rescale=1e-2), id="mse rescaled"),
    pytest.param(QuantileValue(5), id="quantile"),
    pytest.param(QuantileValue(5, kappa=0.0), id="quantile of kappa 0"),
    pytest.param(QuantileValue(5, kappa=0.3, rescale=1e-2), id="quantile rescaled"),
]


def plain(value: Any, **parts: Any) -> DQNPolicy:
    return DQNPolicy(wide_net(value.width), value=value, target=NEVER, device="cpu", seed=0, **parts)


@pytest.mark.parametrize("value", RETURNS)
def test_gradients_of_returns(value: Any) -> None:
    assert_gradient_is_true(plain(value))


@pytest.mark.parametrize("value", RETURNS)
def test_the_soft_backup_lets_no_gradient_through(value: Any) -> None:
    assert_gradient_is_true(plain(value, backup=MunchausenBackup(0.5)))


@pytest.mark.parametrize("backup", [None, DoubleBackup()], ids=["max", "double"])
def test_gradients_of_distributions(backup: Any) -> None:
    assert_gradient_is_true(plain(CategoricalValue(7, -2.0, 2.0), backup=backup))


@pytest.mark.parametrize("target", ["hl_gauss", "two_hot"])
def test_gradients_of_histograms(target: Any) -> None:
    assert_gradient_is_true(plain(HLGaussValue(7, -2.0, 2.0, target=target)))


@pytest.mark.parametrize("value", [*RETURNS, pytest.param(CategoricalValue(7, -2.0, 2.0), id="categorical")])
def test_gradients_of_the_conservative_penalty(value: Any) -> None:
    assert_gradient_is_true(plain(value, penalty=ConservativePenalty(0.7)))


@pytest.mark.parametrize("options", [{}, {"dueling": True, "noisy": True}], ids=["plain", "dueling noisy"])
@pytest.mark.parametrize(
    "value",
    [
        pytest.param(ImplicitQuantileValue(3, target_quantiles=4), id="implicit"),
        pytest.param(ImplicitQuantileValue(3, target_quantiles=4, kappa=0.3, rescale=1e-2), id="implicit rescaled"),
    ],
)
def test_gradients_of_implicit_quantiles(value: Any, options: Any) -> None:
    network = ImplicitQNetwork((4,), 3, hidden=(3,), n_cosines=5, activation=torch.tanh, **options)
    parts: dict[str, Any] = {"backup": DoubleBackup(), "penalty": ConservativePenalty(0.7)}
    policy = DQNPolicy(network, value=value, **parts, target=NEVER, device="cpu", seed=0)

    assert_gradient_is_true(policy)


def test_gradients_of_a_dueling_noisy_network() -> None:
    network = QNetwork((4,), 3, width=5, hidden=(4,), activation=torch.tanh, dueling=True, noisy=True)
    policy = DQNPolicy(network, value=QuantileValue(5), target=NEVER, device="cpu", seed=0)

    assert_gradient_is_true(policy)
