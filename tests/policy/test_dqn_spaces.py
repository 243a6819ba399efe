"""The Q-learner meets environments: what is refused, and `for_envs` for any observation."""

import math
import re
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from torch import nn

import trainkit as tk
from tests.helpers.learning import (
    MASKED,
    Spaces,
    batch_of,
    is_legal,
    made,
    observations,
    small_net,
    wide_net,
)
from trainkit import Adam, CategoricalValue, ConfigError, DoubleBackup, DQNPolicy, Greedy, MaxBackup, SpaceMismatchError
from trainkit.core import tree


class TestMismatches:
    def refusal(self, policy: DQNPolicy, observation_space: Any, action_space: Any) -> str:
        with pytest.raises(SpaceMismatchError) as refusal:
            policy.check_spaces(observation_space, action_space)
        return str(refusal.value)

    def test_environments_that_fit_pass(self) -> None:
        policy = DQNPolicy(small_net((4, 3)), device="cpu")
        policy.check_spaces(*Spaces())

        assert policy.predict(np.zeros(4, np.float32)) in (0, 1, 2)

    def test_other_observations_than_the_policy_was_made_for_are_refused(self) -> None:
        said = self.refusal(made(), spaces.Box(-1, 1, (5,)), spaces.Discrete(3))

        assert "DQNPolicy.observation_space is Box(-10.0, 10.0, (4,), float32), the environments' is Box(-1.0" in said

    def test_other_actions_than_the_policy_was_made_for_are_refused(self) -> None:
        said = self.refusal(made(), Spaces().observation_space, spaces.Discrete(6))

        assert "DQNPolicy.action_space is Discrete(3), the environments' is Discrete(6)" in said

    def test_a_network_that_cannot_take_the_observation_is_refused_with_its_own_words(self) -> None:
        said = self.refusal(DQNPolicy(small_net((5, 3)), device="cpu"), *Spaces())

        assert "DQNPolicy's network cannot take an observation of Box(-10.0, 10.0, (4,), float32)" in said
        assert "shapes cannot be multiplied" in said

    def test_a_network_of_another_number_of_actions_is_refused(self) -> None:
        said = self.refusal(DQNPolicy(small_net((4, 5)), device="cpu"), *Spaces())

        assert "gives outputs (1, 5, 1) for one observation, but Discrete(3) and ExpectedValue need (1, 3, 1)" in said

    def test_a_network_of_another_width_than_the_value_part_is_refused(self) -> None:
        policy = DQNPolicy(wide_net(7), value=CategoricalValue(5, -1, 1), device="cpu")

        assert "(1, 3, 7) for one observation, but Discrete(3) and CategoricalValue need (1, 3, 5)" in self.refusal(
            policy, *Spaces()
        )

    def test_a_network_that_gives_no_action_values_is_refused(self) -> None:
        policy = DQNPolicy(nn.Flatten(0), device="cpu")

        assert "a network must map observations to [B, A, W] or [B, A], got (4,)" in self.refusal(policy, *Spaces())

    @pytest.mark.parametrize(
        ("action_space", "rule"),
        [
            (spaces.Box(-1, 1, (2,)), "needs a Discrete, MultiDiscrete or MultiBinary action space, got Box"),
            (spaces.MultiBinary(14), "gives each joint action a number of its own, and MultiBinary(14) has 16,384"),
            (spaces.MultiDiscrete([101, 100]), "gives each joint action a number of its own, and MultiDiscrete"),
        ],
        ids=["box", "many bits", "many choices"],
    )
    def test_actions_that_cannot_be_counted_are_refused(self, action_space: Any, rule: str) -> None:
        said = f"DQNPolicy {rule}"

        assert said in self.refusal(
            DQNPolicy(small_net((4, 3)), device="cpu"), Spaces().observation_space, action_space
        )
        with pytest.raises(SpaceMismatchError, match=re.escape(said)):
            DQNPolicy.for_envs(Spaces(action_space=action_space))

    def test_a_policy_that_refused_one_environment_takes_the_next(self) -> None:
        policy = DQNPolicy(small_net((4, 3)), device="cpu")
        self.refusal(policy, spaces.Box(-1, 1, (5,)), spaces.Discrete(3))

        policy.check_spaces(*Spaces())

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"n_step": 0}, "Horizon.n_step must be a whole number >= 1, got 0"),
            ({"n_step": 2.5}, "Horizon.n_step must be a whole number >= 1, got 2.5"),
            ({"n_step": True}, "Horizon.n_step must be a whole number >= 1, got True"),
            ({"n_step": (5, 2)}, "Horizon.n_step must be a whole number >= 5, got 2"),
            ({"n_step": (0, 2)}, "Horizon.n_step must be a whole number >= 1, got 0"),
            ({"n_step": (2,)}, "Horizon.n_step must be (lo, hi), got (2,)"),
            ({"gamma": 5}, "Horizon.gamma must be in [0, 1], got 5"),
            ({"gamma": math.nan}, "Horizon.gamma must be in [0, 1], got nan"),
            ({"reward": (1.0, -1.0)}, "Horizon.reward as a clip must be (lo, hi) with lo < hi, got (1.0, -1.0)"),
            ({"reward": math.inf}, "Horizon.reward must be in (-inf, inf), got inf"),
            ({"lr": -1.0}, "Adam.lr must be in [0, inf), got -1.0"),
            ({"max_grad_norm": 0}, "Clip.limit must be in (0, inf), got 0"),
            ({"hidden": (0,)}, "QNetwork.hidden and head sizes must be a whole number >= 1, got 0"),
        ],
        ids=lambda case: str(case) if isinstance(case, dict) else "",
    )
    def test_wrong_numbers_are_refused_by_name_and_rule(self, options: Any, message: str) -> None:
        with pytest.raises(ConfigError) as refusal:
            made(**options)

        assert message in str(refusal.value)

    def test_all_that_is_wrong_with_a_horizon_is_said_at_once(self) -> None:
        with pytest.raises(ConfigError) as refusal:
            made(n_step=0, gamma=5, reward=(1.0, 1.0))

        assert str(refusal.value).count("Horizon.") == 3


# ---- by short words ----

LEAVES = {
    "vector": spaces.Box(-1, 1, (4,), np.float32),
    "scalar": spaces.Box(-1, 1, (), np.float32),
    "float64 vector": spaces.Box(-1, 1, (4,), np.float64),
    "grid of bits": spaces.Box(0, 1, (4, 4, 2), np.bool_),
    "small uint8 grid": spaces.Box(0, 255, (7, 7, 3), np.uint8),
    "image H,W": spaces.Box(0, 255, (36, 38), np.uint8),
    "image H,W,C": spaces.Box(0, 255, (36, 38, 3), np.uint8),
    "image C,H,W": spaces.Box(0, 255, (3, 36, 38), np.uint8),
    "stacked S,H,W": spaces.Box(0, 255, (4, 36, 38), np.uint8),
    "stacked S,H,W,C": spaces.Box(0, 255, (4, 36, 38, 3), np.uint8),
    "discrete": spaces.Discrete(5),
    "discrete from 2": spaces.Discrete(5, start=2),
    "digits": spaces.MultiDiscrete([2, 3, 4]),
    "grid of digits": spaces.MultiDiscrete([[2, 3], [4, 5]]),
    "bits": spaces.MultiBinary(6),
}
TREES = {
    "masked vector": MASKED,
    "dict of image, vector and mask": spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (36, 38, 3), np.uint8),
            "speed": spaces.Box(-1, 1, (2,), np.float32),
            "action_mask": spaces.MultiBinary(3),
        }
    ),
    "tuple": spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,)), spaces.Box(0, 255, (3, 36, 36), np.uint8)]),
    "nested": spaces.Dict({"a": spaces.Tuple([spaces.MultiBinary(2), spaces.Discrete(2)]), "b": LEAVES["vector"]}),
}


@pytest.mark.parametrize("name", [*LEAVES, *TREES])
def test_for_envs_makes_a_policy_for_any_observation(name: str) -> None:
    space = (LEAVES | TREES)[name]
    policy = made(space, double=True, dueling=True)
    policy.check_spaces(space, spaces.Discrete(3))
    obs = observations(space, 5)

    action = policy.act(obs, explore=True).action
    assert action.shape == (5,)
    if "mask" in name:
        assert is_legal(action, obs["action_mask"] != 0)
        assert is_legal(policy.act(obs).action, obs["action_mask"] != 0)
    np.testing.assert_array_equal(policy.predict(obs), policy.act(obs).action)
    one = tree.map_tree(lambda leaf: leaf[2], obs)
    assert policy.predict(one) == policy.act(obs).action[2]

    batch = batch_of(8, space=space)
    losses = []
    for step in range(15):
        policy.update(batch, step=step)
        losses.append(policy.read_metrics()["loss"])
    assert losses[-1] < losses[0]


def test_for_envs_sees_images_through_the_papers_layers_and_vectors_through_two_of_128() -> None:
    image, vector = (
        DQNPolicy.for_envs(Spaces(LEAVES[name]), device="cpu", seed=0).network for name in ("image C,H,W", "vector")
    )

    assert [tuple(weight.shape) for weight in list(vector.parameters())[::2]] == [(128, 4), (128, 128), (3, 128)]
    assert [tuple(weight.shape) for weight in list(image.parameters())[-4::2]] == [(512, 64), (3, 512)]


def test_for_envs_sees_grids_through_a_convolution_and_a_layer_of_128() -> None:
    board = Spaces(spaces.Box(0, 1, (10, 10, 4), np.bool_))
    layers = {
        kind: [tuple(weight.shape) for weight in kind.for_envs(board, device="cpu", seed=0).network.parameters()]
        for kind in (DQNPolicy, tk.PPOPolicy)
    }
    convolution = [(16, 4, 3, 3), (16,)]
    assert layers[DQNPolicy] == [*convolution, (128, 1024), (128,), (3, 128), (3,)]
    assert layers[tk.PPOPolicy] == [*convolution, (128, 1024), (128,), (3, 128), (3,), (1, 128), (1,)]


def test_for_envs_short_words_mean_these_parts() -> None:
    policy = made(double=True, n_step=(2, 5), gamma=0.9, reward="sign", lr=0.125, max_grad_norm=None)
    policy.update(batch_of(4), step=0)

    assert isinstance(policy.backup, DoubleBackup)
    assert (policy.horizon.n_step, policy.horizon.gamma, policy.horizon.reward) == ((2, 5), 0.9, "sign")
    assert policy.read_metrics()["lr"] == 0.125
    assert isinstance(made().backup, MaxBackup)


def test_for_envs_takes_whole_parts_instead_of_short_words() -> None:
    policy = made(lr=0.5, optimizer=Adam(0.25), exploration=Greedy())
    policy.update(batch_of(4), step=0)

    assert policy.read_metrics()["lr"] == 0.25
    assert isinstance(policy.exploration, Greedy)
