"""Behavior cloning: the loss by hand, every space of actions and observations, masks, and what is refused."""

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from tests.helpers.learning import FOUR_NUMBERS, MASKED, Spaces, batch_of, is_legal, observations
from tests.trainer.toys import N_ROWS, Walk, columns, make_offline_trainer
from trainkit import Adam, BCPolicy, ConfigError, ReplayBuffer, SpaceMismatchError, make_envs
from trainkit.errors import DivergedError
from trainkit.nets import QNetwork

ACTIONS: list[gym.Space[Any]] = [
    spaces.Discrete(3),
    spaces.MultiDiscrete([2, 3], start=[1, 5]),
    spaces.MultiBinary(3),
    spaces.Box(-1, 1, (2,)),
    spaces.Box(-1, 1, (2, 2)),
]


def made(space: Any = FOUR_NUMBERS, action_space: Any = ACTIONS[0], **parts: Any) -> BCPolicy:
    return BCPolicy.for_envs(Spaces(space, action_space), **{"hidden": (8,), "device": "cpu", "seed": 0} | parts)


def echo(action_space: Any, **parts: Any) -> BCPolicy:
    """Make a policy whose numbers are the observation itself, times a weight of 1 that can be learned."""
    return BCPolicy(Scaled(), action_space=action_space, device="cpu", seed=0, **parts)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def has_learned(policy: BCPolicy, obs: Any, action: Any, weight: Any = (1.0, 1.0)) -> dict[str, float]:
    """Return what one update of two rows says."""
    given = np.array(obs, np.float32)
    rows = {"obs": given, "next_obs": given, "weight": np.array(weight, np.float32)}
    policy.update(batch_of(2, action=np.array(action), **rows), step=0)
    return policy.read_metrics()


class TestByHand:
    def test_discrete_is_the_cross_entropy_weighted(self) -> None:
        logits = [[0.0, math.log(3.0)], [0.0, math.log(3.0)]]  # probabilities 1/4 and 3/4
        received = has_learned(echo(spaces.Discrete(2)), logits, [0, 1], weight=[1.0, 0.5])
        assert received["loss"] == pytest.approx((math.log(4.0) + 0.5 * math.log(4.0 / 3.0)) / 2)
        assert received["accuracy"] == 0.5
        assert received["entropy"] == pytest.approx(0.25 * math.log(4.0) + 0.75 * math.log(4.0 / 3.0))
        assert received["weight_mean"] == 0.75

    def test_multi_discrete_adds_its_places_and_is_accurate_where_all_are(self) -> None:
        logits = [[0.0, math.log(3.0), 0.0, 0.0]] * 2
        received = has_learned(echo(spaces.MultiDiscrete([2, 2])), logits, [[1, 0], [0, 0]])
        assert received["loss"] == pytest.approx(math.log(2.0) + (math.log(4.0 / 3.0) + math.log(4.0)) / 2)
        assert received["accuracy"] == 0.5

    def test_multi_binary_adds_its_coins(self) -> None:
        received = has_learned(echo(spaces.MultiBinary(2)), [[math.log(3.0), 0.0]] * 2, [[1, 0], [0, 1]])
        assert received["loss"] == pytest.approx(math.log(2.0) + (math.log(4.0 / 3.0) + math.log(4.0)) / 2)

    def test_box_is_the_density_in_policy_units_of_a_normal_of_deviation_1_at_first(self) -> None:
        received = has_learned(echo(spaces.Box(-9, 9, (1,))), [[0.0], [1.0]], np.array([[0.0], [-9.0]], np.float32))
        assert received["loss"] == pytest.approx(0.5 * math.log(2 * math.pi) + 2.0 / 2)  # squares 0 and 4, halved
        assert "accuracy" not in received

    def test_mse_is_the_squared_distance_in_policy_units_and_leaves_the_deviation_alone(self) -> None:
        policy = echo(spaces.Box(-9, 9, (2,)), loss="mse", optimizer=Adam(0.1))
        received = has_learned(policy, [[1.0, 0.0], [0.5, 0.0]], np.array([[9.0, 9.0], [-9.0, 0.0]], np.float32))
        assert received["loss"] == pytest.approx(
            (1.0 + 1.5**2) / 2
        )  # the actions are (1, 1) and (-1, 0) in policy units
        assert policy.distribution.log_std.tolist() == [0.0, 0.0]  # type: ignore[attr-defined]  # a Gaussian
        assert policy.network.module.scale.item() != 1.0  # type: ignore[union-attr]  # ours

    def test_an_illegal_action_has_no_share(self) -> None:
        policy = made(MASKED)
        batch = batch_of(8, space=MASKED)
        batch.obs["action_mask"][:] = 0
        batch.obs["action_mask"][np.arange(8), batch.action] = 1  # what was done is all that was legal
        policy.update(batch, step=0)
        received = policy.read_metrics()
        assert received["loss"] == 0.0
        assert received["entropy"] == 0.0


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("action_space", ACTIONS, ids=str)
def test_it_learns_to_do_as_the_data_in_any_space_of_actions(action_space: Any) -> None:
    policy = made(action_space=action_space, lr=1e-2)
    policy.check_spaces(FOUR_NUMBERS, action_space)
    action_space.seed(0)
    one, other = action_space.sample(), action_space.sample()
    while np.array_equal(one, other):
        other = action_space.sample()
    for seed in range(100):  # one action where the first number is positive, another one elsewhere
        obs = observations(FOUR_NUMBERS, 32, seed)
        is_one = (obs[:, 0] > 0).reshape(-1, *[1] * np.ndim(one))
        policy.update(batch_of(32, obs=obs, action=np.where(is_one, one, other)), step=seed)
    for sign, expected in ((5.0, one), (-5.0, other)):
        obs = np.zeros(4, np.float32)
        obs[0] = sign
        np.testing.assert_allclose(policy.predict(obs), expected, atol=0.3)
    assert policy.act(observations(FOUR_NUMBERS, 7), explore=True).action.shape == (7, *action_space.shape)


IMAGE = spaces.Box(0, 255, (40, 40, 1), np.uint8)
MIXED = spaces.Dict({"where": FOUR_NUMBERS, "what": spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary(2)))})


@pytest.mark.parametrize("space", [FOUR_NUMBERS, IMAGE, MIXED, MASKED, spaces.Discrete(4)], ids=str)
def test_it_learns_from_observations_of_any_space(space: Any) -> None:
    policy = made(space)
    policy.check_spaces(space, ACTIONS[0])
    batch = batch_of(6, space=space)
    if space is MASKED:
        batch.obs["action_mask"][np.arange(6), batch.action] = 1
    policy.update(batch, step=0)
    assert all(np.isfinite(list(policy.read_metrics().values())))


def test_it_never_does_what_is_illegal() -> None:
    policy = made(MASKED)
    obs = observations(MASKED, 200)
    for explore in (False, True):
        assert is_legal(policy.act(obs, explore=explore).action, obs["action_mask"])


def test_exploring_draws_from_streams_of_its_own_and_greedy_acting_draws_nothing() -> None:
    policy = made()
    obs = observations(FOUR_NUMBERS, 50)
    before = policy.generator.get_state()
    greedy = policy.act(obs).action
    assert torch.equal(policy.generator.get_state(), before)
    np.testing.assert_array_equal(policy.act(obs).action, greedy)
    assert not np.array_equal(policy.act(obs, explore=True).action, policy.act(obs, explore=True).action)


def test_numbers_that_are_not_finite_are_never_acted_on() -> None:
    policy = echo(spaces.Discrete(2))
    with pytest.raises(DivergedError, match=r"BCPolicy gives .*nan.* for env 7 at step 3"):
        policy.act(np.array([[0.0, 1.0], [np.nan, 0.0]], np.float32), step=3, env_ids=np.array([4, 7]))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="loss 'mse' measures distances"):
        made(loss="mse")
    with pytest.raises(ConfigError, match="loss must be one of"):
        made(loss="huber")
    with pytest.raises(SpaceMismatchError, match="there is no distribution"):
        made(action_space=spaces.Box(0, 5, (2,), np.int64))
    with pytest.raises(SpaceMismatchError, match=r"gives {'outputs': \(1, 4\)} .* needs {'outputs': \(1, 3\)}"):
        BCPolicy(QNetwork((4,), 4), action_space=ACTIONS[0], device="cpu").check_spaces(FOUR_NUMBERS, ACTIONS[0])
    with pytest.raises(SpaceMismatchError, match="cannot take an observation"):
        BCPolicy(QNetwork((5,), 3), action_space=ACTIONS[0], device="cpu").check_spaces(FOUR_NUMBERS, ACTIONS[0])


class TestCloning:
    def test_returns_the_softmax_when_exploring_and_the_most_probable_otherwise(self) -> None:
        policy = BCPolicy.for_envs(make_envs("CartPole-v1", 1), hidden=(4,), device="cpu", seed=0)
        rows = np.tile(np.random.default_rng(0).normal(size=(1, 4)), (20_000, 1)).astype(np.float32)
        received = policy.action_probability(rows[:1], explore=True)[0]
        share = policy.act(rows, explore=True).action.mean()

        assert received.sum() == pytest.approx(1.0)
        assert share == pytest.approx(received[1], abs=5 * np.sqrt(0.25 / 20_000))
        assert policy.action_probability(rows[:1])[0].tolist() == np.eye(2)[received.argmax()].tolist()

    def test_continuous_actions_are_refused(self) -> None:
        policy = BCPolicy.for_envs(make_envs("Pendulum-v1", 1), hidden=(4,), device="cpu")
        with pytest.raises(ConfigError, match=r"BCPolicy has no action_probability: only Discrete"):
            policy.action_probability(np.zeros((1, 3), np.float32))


def test_without_a_batch_size_the_loss_is_the_mean_over_the_whole_dataset() -> None:
    """Behavior cloning by full gradients: the logged loss is the dataset's mean negative log-likelihood."""
    envs = make_envs(Walk, 1)
    learner = BCPolicy.for_envs(envs, hidden=(), lr=0.0, seed=1)
    rows = columns()
    buffer = ReplayBuffer.from_arrays(**rows)
    stats = next(make_offline_trainer(policy=learner, buffer=buffer, batch_size=None, max_epoch=1)).stats
    probability = learner.action_probability(rows["obs"], explore=True)
    expected = -np.log(probability[np.arange(N_ROWS), rows["action"]]).mean()
    assert stats["update/loss"] == pytest.approx(expected, rel=1e-5)
