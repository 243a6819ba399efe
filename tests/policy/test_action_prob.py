"""How likely an action was: told by the policies that can, by hand and by counting, and refused by the others."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from tests.helpers.doubles import Ledger
from trainkit import (
    Collector,
    ConfigError,
    DQNPolicy,
    EpsilonGreedy,
    Greedy,
    PPOPolicy,
    RandomPolicy,
    SoftQ,
    make_envs,
)
from trainkit.core.spaces import random_probability
from trainkit.schedules import Piecewise

LEGAL = np.array([[True, True, True, True], [True, False, True, False]])
Q = np.array([[0.0, 3.0, 1.0, 2.0], [0.0, -np.inf, 1.0, -np.inf]], np.float32)  # the best are 1 and 2


class Deaf:
    """Choose as Greedy does, and say nothing."""

    choose, metrics = Greedy.choose, Greedy.metrics


class FixedQ(torch.nn.Module):
    """Value four actions alike in every state."""

    def __init__(self) -> None:
        super().__init__()
        self.q = torch.nn.Parameter(torch.tensor([0.0, 3.0, 1.0, 2.0]))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.q.expand(len(features), 4)


def learner(exploration: Any, **parts: Any) -> DQNPolicy:
    return DQNPolicy(FixedQ(), exploration=exploration, device="cpu", seed=0, **parts)


def obs(n_rows: int = 1, mask: Any = None) -> Any:
    rows = np.zeros((n_rows, 2), np.float32)
    return rows if mask is None else {"obs": rows, "action_mask": np.tile(np.asarray(mask, np.int8), (n_rows, 1))}


class TestExplorations:
    def test_greedy_is_sure(self) -> None:
        np.testing.assert_array_equal(Greedy().probability(Q, LEGAL, step=0), [[0, 1, 0, 0], [0, 0, 1, 0]])

    def test_epsilon_is_shared_by_the_legal_actions_and_the_best_has_the_rest(self) -> None:
        probability = EpsilonGreedy(0.2).probability(Q, LEGAL, step=0)

        np.testing.assert_allclose(probability, [[0.05, 0.85, 0.05, 0.05], [0.1, 0, 0.9, 0]])

    def test_epsilon_without_a_mask_is_shared_by_all(self) -> None:
        np.testing.assert_allclose(EpsilonGreedy(1).probability(Q[:1], None, step=0), [[0.25] * 4])

    def test_epsilon_follows_the_step_and_the_environment(self) -> None:
        explore = EpsilonGreedy(Piecewise([(0, 1.0), (10, 0.0)]), per_env=[0.4, 0.8])
        ids = np.array([1, 0])

        probability = explore.probability(Q, LEGAL, step=5, env_ids=ids)  # 0.5 * 0.8 and 0.5 * 0.4
        np.testing.assert_allclose(probability, [[0.1, 0.7, 0.1, 0.1], [0.1, 0, 0.9, 0]])

    def test_an_epsilon_per_environment_needs_to_know_which(self) -> None:
        with pytest.raises(ConfigError, match=r"another policy in each environment: its probabilities need env_ids"):
            EpsilonGreedy(0.1, per_env=[0.5, 1.0]).probability(Q, LEGAL, step=0)

    @pytest.mark.parametrize(
        "exploration", [Greedy(), EpsilonGreedy(0.3), SoftQ(0.7)], ids=lambda one: type(one).__name__
    )
    @pytest.mark.parametrize("row", [0, 1])
    def test_actions_have_the_given_frequencies(self, exploration: Any, row: int) -> None:
        n = 20_000
        q, legal = np.tile(Q[row], (n, 1)), np.tile(LEGAL[row], (n, 1))
        chosen = exploration.choose(q, legal, step=0, env_ids=None, rng=np.random.default_rng(0))
        received = exploration.probability(Q[row : row + 1], LEGAL[row : row + 1], step=0)[0]

        assert received.sum() == pytest.approx(1.0)
        spread = 5 * np.sqrt(received * (1 - received) / n)
        np.testing.assert_array_less(np.abs(np.bincount(chosen, minlength=4) / n - received), spread + 1e-12)


class TestQLearner:
    def test_stores_nothing_by_default(self) -> None:
        policy = learner(EpsilonGreedy(0.2))

        assert dict(policy.extras_spec) == {}
        assert dict(policy.act(obs(), explore=True).extras) == {}

    def test_stores_how_likely_the_action_taken_was(self) -> None:
        policy = learner(EpsilonGreedy(0.4), store_action_prob=True)
        output = policy.act(obs(200, [1, 0, 1, 0]), explore=True)  # the best legal one is 2
        stored = output.extras["action_prob"]

        assert (stored.dtype, stored.shape) == (policy.extras_spec["action_prob"].dtype, (200,))
        np.testing.assert_allclose(stored, np.where(output.action == 2, 0.8, 0.2))
        assert set(output.action.tolist()) == {0, 2}

    def test_without_exploring_it_is_sure(self) -> None:
        output = learner(EpsilonGreedy(0.4), store_action_prob=True).act(obs(3), explore=False)

        np.testing.assert_array_equal(output.extras["action_prob"], [1.0] * 3)

    def test_storing_draws_nothing_more(self) -> None:
        received, quiet = learner(SoftQ(1.0), store_action_prob=True), learner(SoftQ(1.0))

        np.testing.assert_array_equal(
            received.act(obs(50), explore=True).action, quiet.act(obs(50), explore=True).action
        )

    def test_returns_the_probability_of_every_action(self) -> None:
        policy = learner(EpsilonGreedy(Piecewise([(0, 1.0), (10, 0.0)])))

        np.testing.assert_array_equal(policy.action_probability(obs(2)), [[0, 1, 0, 0]] * 2)
        received = policy.action_probability(obs(1, [1, 0, 1, 0]), step=5, explore=True)
        np.testing.assert_allclose(received, [[0.25, 0, 0.75, 0]])

    def test_an_exploration_without_probabilities_is_rejected(self) -> None:
        with pytest.raises(ConfigError, match=r"DQNPolicy does not know .*: Deaf has no method `probability`"):
            learner(Deaf(), store_action_prob=True)
        policy = learner(EpsilonGreedy(0.1), store_action_prob=True)
        policy.exploration = Deaf()
        with pytest.raises(ConfigError, match=r"Deaf has no method `probability`"):
            policy.act(obs(), explore=True)

    def test_noisy_layers_are_refused(self) -> None:
        envs = make_envs("CartPole-v1", 1)
        with pytest.raises(ConfigError, match=r"its noisy layers are random; use SoftQ"):
            DQNPolicy.for_envs(envs, hidden=(4,), noisy=True, store_action_prob=True)
        noisy = DQNPolicy.for_envs(envs, hidden=(4,), noisy=True, seed=0)
        rows = np.zeros((1, 4), np.float32)
        with pytest.raises(ConfigError, match=r"its noisy layers are random"):
            noisy.action_probability(rows, explore=True)
        assert noisy.action_probability(rows).max() == 1.0


class TestOnpolicy:
    def test_returns_the_softmax_when_exploring_and_the_mode_otherwise(self) -> None:
        envs = make_envs("CartPole-v1", 1)
        policy = PPOPolicy.for_envs(envs, hidden=(4,), seed=0)
        rows = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
        received = policy.action_probability(rows, explore=True)
        output = policy.act(rows, explore=True)

        np.testing.assert_allclose(received.sum(axis=1), 1.0)
        np.testing.assert_allclose(received[np.arange(30), output.action], np.exp(output.extras["log_prob"]), rtol=1e-5)
        modes = policy.action_probability(rows)
        np.testing.assert_array_equal(modes.argmax(axis=1), policy.act(rows).action)
        np.testing.assert_array_equal(modes.max(axis=1), 1.0)

    def test_continuous_actions_are_refused(self) -> None:
        policy = PPOPolicy.for_envs(make_envs("Pendulum-v1", 1), hidden=(4,))
        with pytest.raises(ConfigError, match=r"PPOPolicy has no action_probability: only Discrete"):
            policy.action_probability(np.zeros((1, 3), np.float32))


class TestRandom:
    def test_legal_actions_are_equally_likely(self) -> None:
        policy = RandomPolicy(spaces.Discrete(4), seed=0, store_action_prob=True)
        output = policy.act(obs(3, [1, 0, 1, 1]))

        np.testing.assert_allclose(output.extras["action_prob"], [1 / 3] * 3)
        np.testing.assert_allclose(policy.action_probability(obs(1, [1, 0, 1, 1])), [[1 / 3, 0, 1 / 3, 1 / 3]])
        np.testing.assert_allclose(policy.action_probability(obs(2)), [[0.25] * 4] * 2)
        assert dict(RandomPolicy(spaces.Discrete(4)).act(obs()).extras) == {}

    def test_every_finite_space_has_probabilities(self) -> None:
        def one(space: Any) -> NDArray[np.float64]:
            return random_probability(space, None, 2)

        np.testing.assert_allclose(one(spaces.Discrete(4)), [1 / 4] * 2)
        np.testing.assert_allclose(one(spaces.MultiDiscrete([2, 3])), [1 / 6] * 2)
        np.testing.assert_allclose(one(spaces.MultiBinary(3)), [1 / 8] * 2)

    def test_a_box_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"probabilities in a Discrete, MultiDiscrete or MultiBinary, got Box"):
            RandomPolicy(spaces.Box(-1, 1, (2,)), store_action_prob=True)
        with pytest.raises(ConfigError, match=r"RandomPolicy has no action_probability"):
            RandomPolicy(spaces.Box(-1, 1, (2,))).action_probability(obs())


def test_random_warm_up_fills_the_column() -> None:
    envs, ledger = make_envs("CartPole-v1", 2, seed=0), Ledger()
    policy = DQNPolicy.for_envs(envs, hidden=(4,), exploration=EpsilonGreedy(0.2), seed=0, store_action_prob=True)
    collector = Collector(policy, envs, ledger)
    collector.collect(n_step=20, random=True)
    collector.collect(n_step=20)
    received = ledger.rows().extras["action_prob"]

    np.testing.assert_array_equal(received[:20], 0.5)
    assert set(np.round(received[20:], 6)) <= {0.1, 0.9}
