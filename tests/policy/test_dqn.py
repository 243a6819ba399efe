"""The Q-learner acts: greedy among legal actions, exploring by rows, noisy by `explore` alone."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.testing import assert_close

from tests.helpers.learning import (
    FOUR_NUMBERS,
    MASKED,
    NEVER,
    Spaces,
    assert_same,
    batch_of,
    echo,
    made,
    observations,
    small_net,
)
from trainkit import CategoricalValue, DoubleBackup, DQNPolicy, EpsilonGreedy, ExpectedValue, Greedy
from trainkit.errors import DivergedError, NoLegalActionError
from trainkit.nets import Prediction, QNetwork


def masked(q: Any, mask: Any) -> dict[str, Any]:
    return {"obs": np.asarray(q, np.float32), "action_mask": np.asarray(mask, np.int8)}


class TestActing:
    def test_takes_the_action_of_the_largest_value(self) -> None:
        obs = np.array([[1.0, 3, 2], [0, -1, -2]], np.float32)

        assert echo().act(obs).action.tolist() == [1, 0]
        assert echo().act(obs, explore=True).action.tolist() == [1, 0]

    def test_takes_the_largest_mean_of_distributions(self) -> None:
        # Logits of atoms 0 and 1: the second action is the surer of 1, though no single logit of it is the largest.
        obs = np.array([[[9.0, 8.0], [0.0, 5.0], [0.0, 0.0]]], np.float32)

        assert echo(value=CategoricalValue(2, 0.0, 1.0)).act(obs).action.tolist() == [1]

    def test_takes_legal_actions_only(self) -> None:
        obs = masked([[1, 3, 2], [-9, -8, -7]], [[1, 0, 1], [1, 0, 0]])

        for explore in (False, True):
            assert echo().act(obs, explore=explore).action.tolist() == [2, 0]

    def test_explores_legal_actions_only_and_each_as_often(self) -> None:
        obs = masked(np.tile([1, 3, 2], (20_000, 1)), np.tile([1, 0, 1], (20_000, 1)))
        action = echo(exploration=EpsilonGreedy(1.0)).act(obs, explore=True).action

        counts = np.bincount(action, minlength=3)
        assert counts[1] == 0
        assert counts[0] == pytest.approx(10_000, abs=350)

    def test_predicts_legal_actions_only(self) -> None:
        policy = echo(
            observation_space=spaces.Dict({"obs": spaces.Box(-9, 9, (3,)), "action_mask": MASKED["action_mask"]})
        )

        assert policy.predict({"obs": np.array([1, 3, 2], np.float32), "action_mask": np.array([1, 0, 1])}) == 2
        assert policy.predict(masked([[1, 3, 2]] * 2, [[1, 0, 1], [0, 1, 0]])).tolist() == [2, 1]

    def test_masks_may_be_bools_or_numbers(self) -> None:
        for dtype in (np.bool_, np.int8, np.int64, np.float32):
            obs = masked([[1, 3, 2]], [[1, 0, 1]])
            obs["action_mask"] = obs["action_mask"].astype(dtype)
            assert echo().act(obs).action.tolist() == [2]

    def test_returns_the_values_of_illegal_actions_too(self) -> None:
        assert echo().action_values(masked([[1, 3, 2]], [[1, 0, 1]])).tolist() == [[1, 3, 2]]

    def test_the_best_legal_value_and_its_gap_to_the_second(self) -> None:
        obs = masked([[1, 3, 2], [1, 3, 2], [-9, -8, -7], [1, 2, 3]], [[1, 1, 1], [1, 0, 1], [1, 0, 0], [0, 0, 0]])

        best, gap = echo().greedy_values(obs)
        assert best.tolist() == [3, 2, -9, -math.inf]
        assert gap[:3].tolist() == [1, 1, math.inf]
        assert echo().greedy_values(np.array([[5.0]], np.float32))[1].tolist() == [math.inf]  # one action alone

    def test_names_the_environment_that_allows_nothing(self) -> None:
        obs = masked([[1, 3, 2]] * 2, [[1, 1, 1], [0, 0, 0]])

        for explore in (False, True):
            with pytest.raises(NoLegalActionError, match="env 7 allows no action"):
                echo().act(obs, explore=explore, env_ids=np.array([3, 7]))

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_names_the_environment_and_step_of_a_value_that_is_not_finite(self, bad: float) -> None:
        obs = np.array([[1.0, 3, 2], [0, bad, 1]], np.float32)

        with pytest.raises(DivergedError, match=r"DQNPolicy gives values \[.*\] for env 7 at step 42"):
            echo().act(obs, step=42, env_ids=np.array([3, 7]))
        with pytest.raises(DivergedError, match="for env 1 at step 0"):
            echo().act(obs)

    def test_is_not_upset_by_large_values_whose_sum_overflows(self) -> None:
        assert echo().act(np.array([[3e38, 2e38, 0]], np.float32)).action.tolist() == [0]

    def test_hands_the_state_back_and_stores_nothing_extra(self) -> None:
        out = echo().act(np.zeros((1, 3), np.float32), state="mine")

        assert out.state == "mine"
        assert out.extras == {}

    def test_epsilon_follows_the_step(self) -> None:
        policy = echo(exploration=EpsilonGreedy([(0, 1.0), (100, 0.0)]))
        obs = np.tile(np.array([[0, 1, 0]], np.float32), (1000, 1))

        assert len(set(policy.act(obs, step=0, explore=True).action.tolist())) == 3
        assert set(policy.act(obs, step=100, explore=True).action.tolist()) == {1}

    def test_epsilon_may_differ_by_environment(self) -> None:
        policy = echo(exploration=EpsilonGreedy(1.0, per_env=[0.0, 1.0]))
        obs = np.tile(np.array([[0, 1, 0]], np.float32), (1000, 1))
        env_ids = np.tile([1, 0], 500)
        action = policy.act(obs, explore=True, env_ids=env_ids).action

        assert set(action[env_ids == 0].tolist()) == {1}
        assert set(action[env_ids == 1].tolist()) == {0, 1, 2}

    def test_rows_explore_one_by_one(self) -> None:
        policy = echo(exploration=EpsilonGreedy(0.5))
        obs = np.tile(np.array([[0, 1, 0]], np.float32), (1000, 1))

        for _ in range(10):
            away = (policy.act(obs, explore=True).action != 1).mean()
            assert away == pytest.approx(1 / 3, abs=0.08)  # of one coin for all it would be 0 or 2/3

    def test_exploration_may_be_replaced_between_two_steps(self) -> None:
        policy, obs = echo(), np.tile(np.array([[0, 1, 0]], np.float32), (100, 1))
        assert set(policy.act(obs, explore=True).action.tolist()) == {1}

        policy.exploration = EpsilonGreedy(1.0)
        assert len(set(policy.act(obs, explore=True).action.tolist())) == 3
        assert policy.explore_metrics(0) == {"epsilon": 1.0}

    def test_explores_from_1_to_a_twentieth_by_default(self) -> None:
        policy = DQNPolicy(nn.Identity(), device="cpu")

        assert [policy.explore_metrics(step)["epsilon"] for step in (0, 10_000)] == pytest.approx([1.0, 0.05])


class TestValuesThatAreNotFinite:
    """Of a whole network, not of an echo: no warning of numpy may come before our own words."""

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_come_with_the_observation(self, bad: float) -> None:
        obs = np.array([[0, 0, 0, 0], [bad, -bad, bad, 1e10]], np.float32)
        with pytest.raises(DivergedError, match=r"gives values .* for env 1 at step 5"):
            made().act(obs, step=5, env_ids=np.arange(2))

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_come_with_the_weights(self, bad: float) -> None:
        policy = made()
        with torch.no_grad():
            next(policy.network.parameters())[0, 0] = bad
        with pytest.raises(DivergedError, match=r"gives values .* for env 0 at step 0"):
            policy.act(np.ones((1, 4), np.float32))


class Doubled(QNetwork):
    """A network with a forward pass of its own."""

    def forward(self, features: Any, noise: Tensor | None = None, legal: Tensor | None = None) -> Prediction:
        return Prediction(2 * super().forward(features, noise, legal).outputs)


class Negated(ExpectedValue):
    """A value part with a mean of its own."""

    def mean(self, numbers: Tensor) -> Tensor:
        return -super().mean(numbers)


class TestPartsOfOnesOwn:
    """What acts is what learns: the fast way of acting takes no short cut past a user's own code."""

    obs = batch_of(5).obs

    def test_a_networks_own_forward_pass_acts_too(self) -> None:
        policy = DQNPolicy(Doubled((4,), 3, hidden=(8,)), device="cpu", seed=0)
        plain = DQNPolicy(QNetwork((4,), 3, hidden=(8,)), device="cpu", seed=0)

        np.testing.assert_allclose(policy.action_values(self.obs), 2 * plain.action_values(self.obs), rtol=1e-5)

    def test_a_value_parts_own_mean_acts_too(self) -> None:
        own, plain = made(value=Negated()), made()

        np.testing.assert_allclose(own.action_values(self.obs), -plain.action_values(self.obs), rtol=1e-5)

    def test_a_new_body_in_a_network_acts_too(self) -> None:
        policy = made()
        policy.network.encoder.body = small_net((4, 8))
        with torch.no_grad():
            expected = policy.network(torch.from_numpy(self.obs)).outputs[:, :, 0]

        np.testing.assert_allclose(policy.action_values(self.obs), expected, rtol=1e-5)

    def test_new_weights_act_at_once(self) -> None:
        policy, other = made(), made(seed=5)
        policy.act(self.obs)
        policy.load_state_dict(other.state_dict())
        np.testing.assert_array_equal(policy.action_values(self.obs), other.action_values(self.obs))
        with torch.no_grad():
            for parameter in policy.network.parameters():
                parameter.zero_()

        assert (policy.action_values(self.obs) == 0).all()

    def test_many_rows_act_as_few_do(self) -> None:
        policy = made(dueling=True)
        obs = batch_of(500).obs
        few = np.concatenate([policy.action_values(obs[i : i + 5]) for i in range(0, 500, 5)])

        np.testing.assert_allclose(policy.action_values(obs), few, rtol=1e-4, atol=1e-5)


def drawn(policy: DQNPolicy) -> list[Any]:
    """Say how far the policy's two streams are."""
    state = policy.streams_state()
    return [str(state["rng"]), state["noise"]["state"].tolist()]


class TestNoise:
    obs = observations(Spaces().observation_space, 1).repeat(20, axis=0)  # the same row twenty times

    def test_noisy_policies_are_greedy_otherwise(self) -> None:
        assert isinstance(made(noisy=True).exploration, Greedy)
        assert isinstance(made(noisy=True, exploration=EpsilonGreedy(0.1)).exploration, EpsilonGreedy)
        assert isinstance(made().exploration, EpsilonGreedy)

    @pytest.mark.parametrize("is_training", [False, True])
    def test_follows_explore_and_never_the_mode(self, is_training: bool) -> None:
        policy = made(noisy=True).train(is_training)
        first, second = (policy.action_values(self.obs, explore=True) for _ in range(2))
        quiet, still = (policy.action_values(self.obs) for _ in range(2))

        assert (first != second).all()
        np.testing.assert_array_equal(quiet, still)
        np.testing.assert_allclose(quiet, quiet[:1].repeat(20, axis=0), rtol=1e-6)
        assert (first != quiet).all()

    def test_every_row_has_noise_of_its_own(self) -> None:
        values = made(noisy=True).action_values(self.obs, explore=True)

        assert len(np.unique(values[:, 0])) == 20

    def test_leads_to_different_actions_of_alike_rows(self) -> None:
        actions = made(noisy=5.0).act(self.obs, explore=True).action

        assert len(set(actions.tolist())) > 1

    @pytest.mark.parametrize("options", [{}, {"noisy": True}, {"exploration": EpsilonGreedy(1.0)}])
    def test_nothing_random_is_drawn_without_explore(self, options: Any) -> None:
        policy = made(**options)
        before = copy.deepcopy(policy.streams_state())
        policy.act(self.obs)
        policy.predict(self.obs[0])
        policy.action_values(self.obs)

        assert_same(policy.streams_state(), before)

    def test_exploring_does_draw(self) -> None:
        for options, moves in (({"noisy": True}, [False, True]), ({}, [True, False])):
            policy = made(**options)
            before = drawn(policy)
            policy.act(self.obs, explore=True)
            after = drawn(policy)
            assert [one != other for one, other in zip(before, after, strict=True)] == moves


class Recorder(nn.Module):
    """A noisy network, after its interface, that writes down what it is asked."""

    noise_size = 5

    def __init__(self, calls: list[Any] | None = None) -> None:
        super().__init__()
        self.net = small_net((4, 3))
        self.calls: list[Any] = [] if calls is None else calls

    def __deepcopy__(self, memo: Any) -> "Recorder":
        return Recorder()

    def forward(self, features: Tensor, noise: Tensor | None = None, legal: Tensor | None = None) -> Prediction:
        self.calls.append((noise, legal, self.training))
        return Prediction(self.net(features).unsqueeze(2))


class TestFractionsOfTheNetwork:
    def test_one_noise_per_update_for_the_online_and_another_for_the_target_network(self) -> None:
        policy = DQNPolicy(Recorder(), backup=DoubleBackup(), device="cpu", seed=0)
        policy.update(batch_of(6), step=0)

        online = [noise for noise, *_ in policy.network.calls]
        target = [noise for noise, *_ in policy.target_network.calls]
        assert len(online) == 2
        assert len(target) == 1
        assert all(noise.shape == (1, 5) for noise in online + target)
        assert_close(online[0], online[1], rtol=0, atol=0)
        assert (online[0] != target[0]).all()

    def test_new_noise_for_every_update(self) -> None:
        policy = DQNPolicy(Recorder(), device="cpu", seed=0)
        for step in range(2):
            policy.update(batch_of(6), step=step)

        first, second = (noise for noise, *_ in policy.network.calls)
        assert (first != second).all()

    def test_noise_per_row_when_acting_and_none_without_explore(self) -> None:
        policy = DQNPolicy(Recorder(), exploration=Greedy(), device="cpu", seed=0)
        policy.act(np.zeros((6, 4), np.float32), explore=True)
        policy.act(np.zeros((6, 4), np.float32))

        (noisy, *_), (quiet, *_) = policy.network.calls
        assert noisy.shape == (6, 5)
        assert len(noisy.unique()) == 30
        assert quiet is None

    @pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0])
    @pytest.mark.parametrize("space", [FOUR_NUMBERS, MASKED])
    def test_all_rows_at_once_whatever_epsilon_is(self, space: Any, epsilon: float) -> None:
        policy = DQNPolicy.for_envs(Spaces(space), exploration=EpsilonGreedy(epsilon), device="cpu", seed=0)
        n_rows: list[int] = []
        policy.network.register_forward_hook(lambda module, args, output: n_rows.append(len(args[0])))
        for step in range(10):
            policy.act(observations(space, 6, seed=step), step=step, explore=True)
        assert n_rows == [6] * 10

    def test_values_that_are_not_finite_name_their_environment_where_the_action_is_random_too(self) -> None:
        policy = echo(exploration=EpsilonGreedy(1.0, per_env=[1.0, 1.0, 0.0, 1.0]), action_space=spaces.Discrete(3))
        obs = np.zeros((4, 3), np.float32)
        obs[2] = math.nan
        with pytest.raises(DivergedError, match="for env 3 at step 0"):
            policy.act(obs, explore=True, env_ids=np.array([0, 2, 3, 1]))

    def test_masks_of_each_observation_go_with_it(self) -> None:
        policy = DQNPolicy(Recorder(), backup=DoubleBackup(), device="cpu", seed=0)
        batch = batch_of(6, space=MASKED)
        policy.update(batch, step=0)
        policy.act(batch.obs)

        now, following = (torch.from_numpy(obs["action_mask"] != 0) for obs in (batch.obs, batch.next_obs))
        assert [legal.tolist() for _, legal, _ in policy.network.calls] == [
            mask.tolist() for mask in (now, following, now)
        ]
        assert [legal.tolist() for _, legal, _ in policy.target_network.calls] == [following.tolist()]

    def test_acting_is_in_eval_mode_learning_in_train_mode_and_the_target_always_in_eval_mode(self) -> None:
        policy = DQNPolicy(Recorder(), device="cpu", seed=0)
        policy.act(np.zeros((6, 4), np.float32))
        policy.update(batch_of(6), step=0)
        policy.act(np.zeros((6, 4), np.float32), explore=True)

        assert [training for *_, training in policy.network.calls] == [False, True, False]
        assert [training for *_, training in policy.target_network.calls] == [False]

    def test_the_target_stays_in_eval_mode_when_a_user_calls_train(self) -> None:
        policy = DQNPolicy(Recorder(), device="cpu", seed=0)
        policy.train()
        policy.update(batch_of(6), step=0)

        assert [training for *_, training in policy.target_network.calls] == [False]

    def test_batch_norm_learns_its_statistics_from_updates_only(self) -> None:
        policy = DQNPolicy(nn.Sequential(nn.BatchNorm1d(4), small_net((4, 3))), target=NEVER, device="cpu", seed=0)
        mean, target_mean = policy.network.module[0].running_mean, policy.target_network.module[0].running_mean
        policy.act(batch_of(6).obs, explore=True)
        assert (mean == 0).all()
        policy.update(batch_of(6), step=0)
        assert (mean != 0).all()
        assert (target_mean == 0).all()
