"""Auxiliary losses: their gradient by hand, in every policy and engine, trained, saved and loaded."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.testing import assert_allclose, assert_array_equal
from torch import Tensor, nn

from tests.helpers.learning import FOUR_NUMBERS, Spaces, batch_of
from tests.helpers.of_extensions import learners_of_extensions
from tests.policy.learners import RewardModel, Squares, assert_acts_alike, every_learner, learned
from trainkit import ConfigError, DQNPolicy, SACPolicy, load_policy, presets
from trainkit.engine import Adam
from trainkit.nets import MLP
from trainkit.policy import Policy


def energy(features: Tensor, rows: Any) -> Tensor:
    return features.square().sum(dim=1)


def gradient_of_first_layer(**options: Any) -> Any:
    policy = learned("dqn", hidden=(5,), n_updates=0, engine="torch", max_grad_norm=None, **options)
    layer = policy.network.encoder.body.layers[0]
    weight, bias = layer.weight.detach().double().numpy().copy(), layer.bias.detach().double().numpy().copy()
    policy.update(batch_of(12), step=0)
    return weight, bias, layer.weight.grad.double().numpy()


def test_the_gradient_is_the_mean_over_weighted_rows_of_the_terms_own() -> None:
    weight, bias, with_it = gradient_of_first_layer(auxiliary=energy)
    _, _, without = gradient_of_first_layer()

    batch = batch_of(12)
    x, w = np.asarray(batch.obs, float), np.asarray(batch.weight, float)
    features = np.maximum(x @ weight.T + bias, 0.0)
    by_hand = (2 * features * w[:, None] / 12).T @ x  # d/dW of mean w |relu(W x + b)|^2
    assert_allclose(with_it - without, by_hand, rtol=1e-4, atol=1e-4 * np.abs(with_it).max())


@pytest.mark.global_rng
@pytest.mark.parametrize("name", ["sac", "ppo", *learners_of_extensions()])
def test_its_parameters_are_saved_and_acting_does_not_need_them(name: str, tmp_path: Path, caplog: Any) -> None:
    caplog.set_level(logging.WARNING)
    policy = learned(name, auxiliary=RewardModel(8), encoder=Squares)
    folder = policy.save(tmp_path)

    assert_acts_alike(load_policy(folder, device="cpu"), policy)
    assert "cannot say what auxiliary of its policy was: made without" in caplog.text
    own = RewardModel(8)
    loaded = load_policy(folder, device="cpu", auxiliary=own)
    assert loaded.auxiliary is own
    assert_array_equal(own.head.layers[0].weight.detach(), policy.auxiliary.head.layers[0].weight.detach())
    resumed = learned(name, n_updates=0, auxiliary=RewardModel(8), encoder=Squares, seed=9)
    resumed.load_training_state(policy.training_state())
    for key, weight in policy.get_weights().items():
        assert_array_equal(weight, resumed.get_weights()[key])


@every_learner
def test_networks_start_with_the_same_weights_as_without_it(name: str) -> None:
    encoder = {"encoder": "test_squares"}
    plain = learned(name, n_updates=0, **encoder)
    with_it = learned(name, n_updates=0, auxiliary=RewardModel(8), **encoder)

    for key, weight in plain.get_weights().items():
        assert_array_equal(weight, with_it.get_weights()[key])


def test_the_encoder_is_called_once_for_the_loss_and_the_term() -> None:
    policy = learned("dqn", n_updates=0, engine="torch", auxiliary=energy)
    calls: list[bool] = []
    forward = policy.network.encoder.forward

    def counted(features: Tensor) -> Tensor:
        calls.append(torch.is_grad_enabled())
        return forward(features)

    policy.network.encoder.forward = counted
    policy.update(batch_of(12), step=0)

    assert calls == [True]  # the target network has an encoder of its own


def test_a_network_of_ones_own_has_features_if_it_has_an_encoder() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.last = MLP((4, 6)), MLP((6, 3))

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.encoder(x))

    sizes: list[Any] = []

    def noted(features: Tensor, rows: Any) -> Tensor:
        sizes.append(tuple(features.shape))
        return energy(features, rows)

    at = Spaces()
    policy = DQNPolicy(
        Own(), observation_space=at.observation_space, action_space=at.action_space, auxiliary=noted, engine="torch"
    )
    policy.update(batch_of(12), step=0)

    assert sizes == [(12, 6)]
    with pytest.raises(ConfigError, match=r"auxiliary needs the features of an encoder.*MLP a module `encoder`"):
        DQNPolicy(MLP((4, 3)), auxiliary=noted)


@pytest.mark.parametrize(
    ("auxiliary", "message"),
    [
        (lambda features, rows: features.mean(), r"a loss per row, \[B\] = \[12\], got \[\]: the mean over rows"),
        (lambda features, rows: 0.0, r"a loss per row, \[B\] = \[12\], got float"),
    ],
)
def test_what_is_no_loss_per_row_is_an_error(auxiliary: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        learned("dqn", auxiliary=auxiliary)


@pytest.mark.parametrize("auxiliary", [lambda features: features.mean(1), nn.Linear(6, 1), 3])
def test_what_cannot_be_called_with_features_and_rows_is_an_error(auxiliary: Any) -> None:
    with pytest.raises(ConfigError, match=r"DQNPolicy.auxiliary must be a function or a module \(features, rows\)"):
        learned("dqn", auxiliary=auxiliary)


def test_an_auxiliary_without_effect_is_an_error() -> None:
    at = Spaces(FOUR_NUMBERS, spaces.Box(-1.0, 1.0, (2,), np.float32))
    with pytest.raises(
        ConfigError, match=r"SACPolicy.auxiliary has no effect: the encoder of its CriticNetwork has no"
    ):
        SACPolicy.for_envs(at, auxiliary=energy)
    with pytest.raises(ConfigError, match=r"DQNPolicy.auxiliary must be a function or a module .* got 3"):
        learned("dqn", auxiliary=3)

    class Forgetful(Policy):
        def __init__(self) -> None:
            super().__init__(auxiliary=energy)
            self.network = MLP((4, 3))
            self.add_gradient_step("network", self.network, Adam(), loss=lambda rows: rows)

    with pytest.raises(ConfigError, match=r"Forgetful.auxiliary has no effect: .*features_of=network"):
        Forgetful().check_spaces(*at)


def test_each_run_of_a_preset_trains_its_own_copy_of_a_module() -> None:
    module = RewardModel(8)
    config = presets.dqn.config("CartPole-v1", network={"auxiliary": module}, hidden=(8,), evaluation=None, seed=1)
    policies = [config.build().policy for _ in range(2)]

    assert len({id(policy.auxiliary) for policy in policies} | {id(module)}) == 3
    assert_array_equal(*(policy.auxiliary.head.layers[0].weight.detach() for policy in policies))
