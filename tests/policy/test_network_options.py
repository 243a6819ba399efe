"""`encoder`, `activation` and `norm` in every policy: it learns, is saved and loaded, and acts as before."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.testing import assert_array_equal
from torch import nn

from tests.helpers.learning import FOUR_NUMBERS, observations
from tests.helpers.of_extensions import learners_of_extensions
from tests.policy.learners import Squares, assert_acts_alike, every_learner, learned
from trainkit import (
    ConfigError,
    load_policy,
)
from trainkit.errors import CheckpointError

IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
MIXED = spaces.Dict({"camera": IMAGE, "speed": FOUR_NUMBERS})


@pytest.mark.global_rng  # a module of the user's
@pytest.mark.one_of_each
@every_learner
@pytest.mark.parametrize(
    "options",
    [{"norm": "layer", "activation": nn.SiLU}, {"norm": "rms"}, {"encoder": Squares}],
    ids=lambda options: "-".join(options),
)
def test_every_policy_learns_with_them_and_is_loaded_by_their_names(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    policy = learned(name, **options)

    loaded = load_policy(policy.save(tmp_path), device="cpu")
    assert_acts_alike(loaded, policy)
    assert policy.config["unknown"] == {}
    assert sum(p.numel() for p in policy.parameters()) == sum(p.numel() for p in loaded.parameters())


@pytest.mark.parametrize("name", ["iqn", "sac", "ppo"])
def test_dict_observations_have_an_encoder_per_leaf(name: str, tmp_path: Path) -> None:
    policy = learned(name, MIXED, encoder={"camera": "impala", "speed": "test_squares"}, norm="layer")

    assert {type(module).__name__ for module in policy.modules()} >= {"ImpalaCNN", "Squares"}
    assert_acts_alike(load_policy(policy.save(tmp_path), device="cpu"), policy, MIXED)


@pytest.mark.parametrize("name", ["dqn", "sac", "ppo"])
def test_they_change_the_network_and_none_is_the_default(name: str) -> None:
    obs = observations(FOUR_NUMBERS, 5)
    plain, same, other = (
        learned(name, **options).predict(obs, return_extra=True)[1]
        for options in ({}, {"activation": None, "norm": None, "encoder": None}, {"activation": "elu"})
    )

    for column in plain:
        assert_array_equal(plain[column], same[column])
    assert any((plain[column] != other[column]).any() for column in plain)


@pytest.mark.global_rng
@pytest.mark.parametrize("name", ["dqn", "sac", "ppo"])
def test_an_encoder_that_no_file_can_hold_is_given_to_load_policy(name: str, tmp_path: Path) -> None:
    def make(shape: Any) -> nn.Module:
        return nn.Sequential(nn.Linear(*shape, 7), nn.Tanh())

    policy = learned(name, encoder=make, activation=lambda x: x.sin())
    folder = policy.save(tmp_path)

    with pytest.raises(CheckpointError, match=r"cannot restore encoder=.*, activation=.* of its policy.*give") as error:
        load_policy(folder, device="cpu")
    assert "encoder=..., activation=...)" in str(error.value)
    assert "register_encoder" in str(error.value)
    loaded = load_policy(folder, device="cpu", encoder=make, activation=torch.sin)
    assert_acts_alike(loaded, policy)
    with pytest.raises(CheckpointError, match="other parameters than those given"):
        load_policy(folder, device="cpu", encoder="mlp", activation=torch.sin)


def test_load_policy_rejects_arguments_that_for_envs_does_not_have(tmp_path: Path) -> None:
    folder = learned("dqn").save(tmp_path)

    with pytest.raises(ConfigError, match="load_policy: unknown option 'encodr', did you mean 'encoder'"):
        load_policy(folder, encodr="mlp")
    with pytest.raises(ConfigError, match="both policy and encoder: give one"):
        load_policy(folder, policy=learned("dqn"), encoder="mlp")


def test_a_seed_decides_the_weights_of_an_encoder_of_ones_own() -> None:
    one, same, other = (learned("ppo", encoder=Squares, n_updates=0, seed=seed) for seed in (1, 1, 2))

    for name, weight in one.get_weights().items():
        assert_array_equal(weight, same.get_weights()[name])
    key = "network.actor_torso.encoders.0.module.layer.weight"
    assert (one.get_weights()[key] != other.get_weights()[key]).all()
    assert (one.get_weights()[key] != one.get_weights()[key.replace("actor", "critic")]).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder": "impalla"}, "got 'impalla', did you mean 'impala'"),
        ({"encoder": "nature"}, "encoder 'nature' is for images"),
        ({"activation": "rellu"}, "got 'rellu', did you mean 'relu'"),
        ({"norm": "batch"}, "norm must be 'layer' or 'rms' or None, got 'batch'"),
        ({"nrom": "layer"}, "unknown option 'nrom', did you mean 'norm'"),
    ],
)
@pytest.mark.parametrize("name", ["dqn", "sac", "ppo", *learners_of_extensions()])
def test_what_is_misspelled_is_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        learned(name, **options)
