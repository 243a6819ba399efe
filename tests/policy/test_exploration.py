"""Exploration: a coin per row, epsilon by the step and the environment, legal actions only, repeats exactly resumed."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

import trainkit as tk
from tests.helpers.doubles import Ledger
from tests.helpers.learning import THREE_ACTIONS, Spaces, assert_same
from tests.helpers.of_extensions import learners_of_extensions
from tests.helpers.tagged import decode
from tests.helpers.truth import tagged_envs
from trainkit import Collector, ConfigError, DQNPolicy, EpsilonGreedy, EZGreedy, Greedy, SoftQ
from trainkit.schedules import Piecewise


def prefer(action: int, n_rows: int = 1, n_actions: int = 4) -> NDArray[np.float32]:
    """Make values [K, A] of which one action is the best."""
    return np.eye(n_actions, dtype=np.float32)[np.full(n_rows, action)]


def choose(
    exploration: Any,
    q: NDArray[np.float32],
    *,
    legal: NDArray[np.bool_] | None = None,
    step: int = 0,
    env_ids: Any = None,
    seed: int = 0,
) -> NDArray[np.int64]:
    masked = q if legal is None else np.where(legal, q, -np.inf)
    ids = None if env_ids is None else np.asarray(env_ids, np.intp)
    return exploration.choose(masked, legal, step=step, env_ids=ids, rng=np.random.default_rng(seed))


def share_away_from(action: int, chosen: NDArray[np.int64]) -> float:
    return float((chosen != action).mean())


def test_greedy_takes_the_best_and_draws_nothing() -> None:
    rng = np.random.default_rng(0)
    before = copy.deepcopy(rng.bit_generator.state)
    q = np.array([[0.0, 2, 1], [3, 2, 1]], np.float32)

    assert Greedy().choose(q, None, step=0, env_ids=None, rng=rng).tolist() == [1, 0]
    assert rng.bit_generator.state == before


def test_greedy_shows_no_numbers() -> None:
    assert Greedy().metrics(0) == {}


def test_epsilon_0_takes_the_best() -> None:
    assert (choose(EpsilonGreedy(0), prefer(2, 1000)) == 2).all()


def test_epsilon_1_is_uniform_over_all_actions() -> None:
    counts = np.bincount(choose(EpsilonGreedy(1), prefer(2, 40_000)), minlength=4)

    np.testing.assert_allclose(counts, 10_000, atol=5 * np.sqrt(40_000 * 0.25 * 0.75))


def test_every_row_has_a_coin_of_its_own() -> None:
    for seed in range(20):
        away = share_away_from(2, choose(EpsilonGreedy(0.5), prefer(2, 1000), seed=seed))
        assert away == pytest.approx(0.5 * 3 / 4, abs=5 * np.sqrt(0.375 * 0.625 / 1000))


def test_rows_that_explore_do_not_explore_alike() -> None:
    assert len(set(choose(EpsilonGreedy(1), prefer(2, 100)).tolist())) == 4


def test_coins_and_actions_of_neighbouring_rows_are_independent() -> None:
    pairs = choose(EpsilonGreedy(1), prefer(0, 32_000)).reshape(-1, 2)
    counts = np.bincount(pairs[:, 0] * 4 + pairs[:, 1], minlength=16)

    np.testing.assert_allclose(counts, 1000, atol=5 * np.sqrt(1000))


def test_exploring_may_choose_the_best_action_too() -> None:
    assert (choose(EpsilonGreedy(1), prefer(2, 100)) == 2).any()


def test_epsilon_follows_the_step() -> None:
    exploration = EpsilonGreedy([(0, 1.0), (100, 0.0)])

    for step, share in [(0, 0.75), (50, 0.375), (100, 0.0), (10_000, 0.0)]:
        away = share_away_from(1, choose(exploration, prefer(1, 10_000), step=step))
        assert away == pytest.approx(share, abs=0.025)


def test_linear_anneals_and_holds() -> None:
    exploration = EpsilonGreedy.linear(1.0, 0.1, 1000)

    shown = [exploration.metrics(step)["epsilon"] for step in (0, 500, 1000, 5000)]
    assert shown == pytest.approx([1.0, 0.55, 0.1, 0.1])


@pytest.mark.parametrize("epsilon", [0.25, [(0, 0.25)], Piecewise([(0, 0.25)]), lambda step: 0.25])
def test_epsilon_may_be_a_number_knots_or_any_function_of_the_step(epsilon: Any) -> None:
    assert EpsilonGreedy(epsilon).metrics(7) == {"epsilon": 0.25}


def test_factors_belong_to_environments_not_to_rows() -> None:
    exploration = EpsilonGreedy(1.0, per_env=[0.0, 1.0, 0.0])
    env_ids = np.tile([2, 1], 5000)
    chosen = choose(exploration, prefer(3, 10_000), env_ids=env_ids)

    assert (chosen[env_ids == 2] == 3).all()
    assert share_away_from(3, chosen[env_ids == 1]) == pytest.approx(0.75, abs=0.03)


def test_factors_multiply_the_scheduled_epsilon() -> None:
    exploration = EpsilonGreedy([(0, 1.0), (100, 0.5)], per_env=[0.5])
    chosen = choose(exploration, prefer(3, 10_000), step=100, env_ids=np.zeros(10_000))

    assert share_away_from(3, chosen) == pytest.approx(0.25 * 0.75, abs=0.02)


def test_factors_without_ids_belong_to_rows_in_order() -> None:
    chosen = [choose(EpsilonGreedy(1.0, per_env=[0.0, 1.0]), prefer(3, 2), seed=seed) for seed in range(200)]

    assert {int(rows[0]) for rows in chosen} == {3}
    assert {int(rows[1]) for rows in chosen} == {0, 1, 2, 3}


def test_more_environments_than_factors_are_an_error() -> None:
    exploration = EpsilonGreedy(1.0, per_env=[0.0, 1.0])
    with pytest.raises(ConfigError, match=r"per_env has 2 factors, and environment 3 acts: give one for each"):
        choose(exploration, prefer(3, 2), env_ids=np.array([0, 3]))
    with pytest.raises(ConfigError, match=r"per_env has 2 factors, and environment 2 acts: give one for each"):
        exploration.probability(prefer(3, 2), None, step=0, env_ids=np.array([1, 2]))
    with pytest.raises(ConfigError, match=r"per_env has 2 factors, and environment 3 acts: give one for each"):
        choose(exploration, prefer(3, 4))


def test_factors_may_come_as_an_array() -> None:
    EpsilonGreedy(0.4, per_env=0.4 ** np.linspace(0, 7, 4))


def test_exploring_is_uniform_over_legal_actions_only() -> None:
    legal = np.tile([[True, False, True, True], [False, True, False, False]], (15_000, 1))
    chosen = choose(EpsilonGreedy(1.0), prefer(1, 30_000), legal=legal)

    counts = np.bincount(chosen[::2], minlength=4)
    assert counts[1] == 0
    np.testing.assert_allclose(counts[[0, 2, 3]], 5000, atol=5 * np.sqrt(15_000 * 2 / 9))
    assert (chosen[1::2] == 1).all()


def test_the_best_legal_action_is_taken_when_not_exploring() -> None:
    q = np.array([[3.0, 2, 1], [-5, -4, -3]], np.float32)
    legal = np.array([[False, True, True], [True, False, False]])

    assert choose(EpsilonGreedy(0.0), q, legal=legal).tolist() == [1, 0]


def test_the_same_generator_gives_the_same_choice() -> None:
    first, second = (choose(EpsilonGreedy(0.5), prefer(1, 100), seed=3) for _ in range(2))
    other = choose(EpsilonGreedy(0.5), prefer(1, 100), seed=4)

    np.testing.assert_array_equal(first, second)
    assert (first != other).any()


@pytest.mark.parametrize("is_masked", [False, True])
def test_a_choice_draws_the_same_numbers_whatever_epsilon_is(is_masked: bool) -> None:
    legal = np.tile([[True, False, True, True]], (7, 1)) if is_masked else None
    generators = [np.random.default_rng(3) for _ in range(3)]
    for epsilon, rng in zip((0.0, 0.4, 1.0), generators, strict=True):
        EpsilonGreedy(epsilon).choose(prefer(0, 7), legal, step=0, env_ids=None, rng=rng)

    states = [rng.bit_generator.state for rng in generators]
    assert states[0] == states[1] == states[2] != np.random.default_rng(3).bit_generator.state


def follow(
    exploration: EZGreedy, n_steps: int, *, n_envs: int = 1, starts: Any = (), legal: Any = None, seed: int = 0
) -> NDArray[np.int64]:
    """Return the actions [T, N] of environments whose best action is 0, with episodes starting at some steps."""
    rng, ids = np.random.default_rng(seed), np.arange(n_envs)
    masks = [None if legal is None else legal(t) for t in range(n_steps)]
    q = [prefer(0, n_envs) if mask is None else np.where(mask, prefer(0, n_envs), -np.inf) for mask in masks]
    return np.array(
        [
            exploration.choose(q[t], masks[t], step=t, env_ids=ids, starts=np.full(n_envs, t in starts), rng=rng)
            for t in range(n_steps)
        ]
    )


class Scripted:
    """A generator whose coins, lengths and actions [3, K] are given, in this order."""

    def __init__(self, *draws: Any) -> None:
        self.draws = iter(draws)

    def random(self, size: Any) -> NDArray[np.float64]:
        drawn = np.array(next(self.draws), np.float64)
        assert drawn.shape == size
        return drawn


class TestEZGreedy:
    """With mu=2 and at most 3 steps, n is 1, 2, 3 with the probabilities 36/49, 9/49, 4/49."""

    def test_repeats_by_hand(self) -> None:
        explore = EZGreedy(0.5, max_repeat=3)
        never, always = 0.9, 0.1
        rng: Any = Scripted(
            [[always, never], [0.99, 0.0], [0.3, 0.0]],  # action 1 for three steps; greedy
            [[always, always], [0.0, 0.8], [0.9, 0.9]],  # its second; action 3 for two steps
            [[always, always], [0.0, 0.0], [0.9, 0.3]],  # its third; its second
            [[never, always], [0.0, 0.0], [0.9, 0.6]],  # greedy; action 2 for one step
            [[never, never], [0.0, 0.0], [0.9, 0.6]],
        )
        taken = [
            explore.choose(prefer(0, 2), None, step=0, env_ids=np.arange(2), starts=None, rng=rng).tolist()
            for _ in range(5)
        ]
        assert taken == [[1, 0], [1, 3], [1, 3], [0, 2], [0, 0]]

    def test_lengths_come_with_their_probabilities(self) -> None:
        explore, n_envs = EZGreedy(1.0, max_repeat=3), 49_000
        follow(explore, 1, n_envs=n_envs)
        counts = np.bincount(explore.state_dict()["n_left"].numpy())
        expected = n_envs * np.array([36, 9, 4]) / 49
        np.testing.assert_allclose(counts, expected, atol=5 * np.sqrt(n_envs * 0.25))

    def test_as_many_actions_are_random_as_the_formula_says(self) -> None:
        mean, epsilon, n_steps = (36 + 2 * 9 + 3 * 4) / 49, 0.2, 400
        taken = follow(EZGreedy(epsilon, max_repeat=3), n_steps, n_envs=500)[20:]
        share = epsilon * mean / (1 - epsilon + epsilon * mean)
        assert (taken != 0).mean() == pytest.approx(0.75 * share, abs=0.005)

    def test_no_repeats_are_epsilon_greedy(self) -> None:
        taken = follow(EZGreedy([(0, 1.0), (100, 0.0)], max_repeat=1), 101, n_envs=2_000)
        for step, share in [(0, 0.75), (50, 0.375), (100, 0.0)]:
            assert share_away_from(0, taken[step]) == pytest.approx(share, abs=0.05)
        assert (taken[1:] == taken[:-1]).mean() < 0.7

    def test_a_repeat_ends_where_an_episode_starts(self) -> None:
        explore = EZGreedy(1.0, mu=1.001, max_repeat=10_000)  # most repeats are longer than 6 steps
        taken = follow(explore, 6, n_envs=1_000, starts=(3,))
        changes = (taken[1:] != taken[:-1]).mean(axis=1)
        assert changes[2] == pytest.approx(0.75, abs=0.07)
        assert changes[[0, 1, 3, 4]].max() < 0.15

    def test_a_repeat_ends_where_its_action_is_illegal_and_every_action_is_legal(self) -> None:
        rng = np.random.default_rng(5)
        masks = rng.random((50, 200, 4)) < 0.5
        masks[:, :, 1] |= ~masks.any(axis=2)
        explore = EZGreedy(0.9, mu=1.001)
        taken = follow(explore, 50, n_envs=200, legal=lambda t: masks[t])
        assert np.take_along_axis(masks, taken[:, :, None], axis=2).all()
        stays = np.take_along_axis(masks[1:], taken[:-1, :, None], axis=2)[:, :, 0]
        assert (taken[1:] == taken[:-1])[stays].mean() > 0.7

    def test_environments_repeat_their_own_actions_whichever_others_act(self) -> None:
        explore = EZGreedy([(0, 1.0), (1, 0.0)], mu=1.001)
        rng: Any = Scripted([[0.0, 0.0], [0.99, 0.99], [0.3, 0.6]], [[0.9], [0.0], [0.0]], [[0.9] * 2, [0.0] * 2] * 2)
        q = prefer(0, 2)
        assert explore.choose(q, None, step=0, env_ids=np.array([4, 1]), starts=None, rng=rng).tolist() == [1, 2]
        assert explore.choose(q[:1], None, step=1, env_ids=np.array([1]), starts=None, rng=rng).tolist() == [2]
        rng = np.random.default_rng(0)
        assert explore.choose(q, None, step=1, env_ids=np.array([0, 4]), starts=None, rng=rng).tolist() == [0, 1]

    def test_rows_of_no_environment_repeat_nothing(self) -> None:
        explore = EZGreedy(1.0, mu=1.001)
        rng = np.random.default_rng(0)
        taken = np.array([explore.choose(prefer(0), None, step=0, env_ids=None, rng=rng) for _ in range(400)])
        assert (taken[1:] == taken[:-1]).mean() == pytest.approx(0.25, abs=0.12)
        assert len(explore.state_dict()["n_left"]) == 0

    def test_its_probabilities_are_not_stored(self) -> None:
        with pytest.raises(ConfigError, match="EZGreedy has no method `probability`; use EpsilonGreedy"):
            DQNPolicy.for_envs(Spaces(), exploration=EZGreedy(0.1), store_action_prob=True)

    def test_joint_actions_are_repeated(self) -> None:
        space = spaces.MultiDiscrete([3, 4])
        policy = DQNPolicy.for_envs(
            Spaces(action_space=space), exploration=EZGreedy([(0, 1.0), (1, 0.0)], mu=1.001), device="cpu", seed=1
        )
        obs, ids = np.zeros((50, 4), np.float32), np.arange(50)
        taken = [policy.act(obs, explore=True, step=step, env_ids=ids).action for step in (0, 1)]
        assert len(np.unique(taken[0], axis=0)) > 8
        assert (taken[0] == taken[1]).all(axis=1).mean() > 0.8

    def test_a_copy_of_its_streams_continues_repeats_and_a_restart_ends_them(self) -> None:
        one, other = (DQNPolicy.for_envs(Spaces(), exploration=EZGreedy(0.9), device="cpu", seed=1) for _ in range(2))
        obs, ids = np.zeros((9, 4), np.float32), np.arange(9)

        def acted(policy: DQNPolicy) -> list[Any]:
            return [policy.act(obs, explore=True, env_ids=ids).action for _ in range(8)]

        acted(one)
        state = one.streams_state()
        expected = acted(one)
        other.load_streams_state(state)
        assert_same(acted(other), expected)
        one.load_streams_state(state)
        assert_same(acted(one), expected)
        one.exploration = EZGreedy(0.9)  # the former one's repeats are its own
        one.start_streams(3)
        assert len(one.streams_state()["exploration"]["EZGreedy"]["n_left"]) == 0

    def test_the_state_of_another_exploration_is_not_loaded(self) -> None:
        one, other = (DQNPolicy.for_envs(Spaces(), exploration=EZGreedy(0.9), device="cpu", seed=1) for _ in range(2))
        one.act(np.zeros((9, 4), np.float32), explore=True, env_ids=np.arange(9))
        state = one.streams_state()
        other.load_streams_state({**state, "exploration": {"Other": {}}})
        assert len(other.streams_state()["exploration"]["EZGreedy"]["n_left"]) == 0
        state["exploration"]["EZGreedy"]["action"] -= 9
        with pytest.raises(ValueError, match="repeated actions"):
            other.load_streams_state(state)

    @pytest.mark.parametrize("evaluation", ["greedy", "exploring"])
    def test_a_resumed_run_repeats_with_the_same_bits(self, evaluation: str, tmp_path: Path) -> None:
        def run_of(**more: Any) -> Any:
            envs = [tk.make_envs("CartPole-v1", 3) for _ in range(2)]
            policy = DQNPolicy.for_envs(envs[0], hidden=(8,), exploration=EZGreedy(0.9, mu=1.1), device="cpu")
            evaluator = tk.Evaluation(Collector(policy, envs[1]), duration=2, explore=evaluation == "exploring")
            trained = Collector(policy, envs[0], tk.ReplayBuffer(200))
            how: dict[str, Any] = {"max_epoch": 3, "step_per_epoch": 33, "batch_size": 8, "learning_starts": 9}
            return tk.OffpolicyTrainer(policy, trained, evaluation=evaluator, verbose=False, **how | {"seed": 1} | more)

        whole = run_of()
        next(whole)
        saved = whole.save(tmp_path / "saved")  # in the middle of repeats
        assert (whole.policy.exploration.state_dict()["n_left"] > 0).any()
        whole.run()
        resumed = run_of(seed=9, resume_from=saved)
        resumed.run()
        assert_same(resumed.policy.training_state(), whole.policy.training_state())


class TestSoftQ:
    """At temperature 1 the values 0 and ln 3 have the probabilities 1/4 and 3/4."""

    q = np.array([[0.0, np.log(3.0)]], np.float32)

    def probability(self, q: Any, *, temperature: Any = 1.0, step: int = 0) -> NDArray[np.float64]:
        return SoftQ(temperature).probability(np.asarray(q, np.float32), None, step=step)

    def test_probabilities_by_hand(self) -> None:
        np.testing.assert_allclose(self.probability(self.q), [[0.25, 0.75]], rtol=1e-6)
        np.testing.assert_allclose(self.probability(2 * self.q, temperature=2.0), [[0.25, 0.75]], rtol=1e-6)
        np.testing.assert_allclose(self.probability(2 * self.q), [[0.1, 0.9]], rtol=1e-6)  # 1 : 9

    def test_probabilities_add_up_to_1_row_by_row(self) -> None:
        q = np.random.default_rng(0).normal(0, 50, (100, 6))

        np.testing.assert_allclose(self.probability(q).sum(axis=1), 1.0)

    def test_probabilities_do_not_change_with_the_level_of_values(self) -> None:
        np.testing.assert_allclose(self.probability(self.q + 64), [[0.25, 0.75]], rtol=1e-4)

    def test_illegal_actions_have_probability_0_and_are_never_chosen(self) -> None:
        q = np.tile(np.array([[-np.inf, 0.0, -np.inf, np.log(3.0)]], np.float32), (4000, 1))

        np.testing.assert_allclose(self.probability(q[:1]), [[0, 0.25, 0, 0.75]], rtol=1e-6)
        legal = np.tile([[False, True, False, True]], (4000, 1))
        assert set(choose(SoftQ(100.0), np.zeros((4000, 4), np.float32), legal=legal).tolist()) == {1, 3}

    def test_the_only_legal_action_is_taken(self) -> None:
        legal = np.tile([[False, True, False, False]], (100, 1))

        assert (choose(SoftQ(1.0), prefer(2, 100), legal=legal) == 1).all()

    @pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
    def test_actions_are_chosen_as_often_as_their_probability_says(self, temperature: float) -> None:
        odds = np.exp(np.array([0.0, 1.0, -1.0, 2.0]) / temperature)
        share, n_rows = odds / odds.sum(), 40_000
        q = np.tile(np.array([[0.0, 1.0, -1.0, 2.0]], np.float32), (n_rows, 1))
        counts = np.bincount(choose(SoftQ(temperature), q), minlength=4)

        assert (np.abs(counts - n_rows * share) < 5 * np.sqrt(n_rows * share * (1 - share))).all()
        np.testing.assert_allclose(self.probability(q[:1], temperature=temperature), [share], rtol=1e-5)

    def test_rows_draw_one_by_one(self) -> None:
        chosen = choose(SoftQ(1.0), np.zeros((30, 4), np.float32))

        assert len(set(chosen.tolist())) == 4

    def test_near_temperature_0_it_is_greedy(self) -> None:
        q = np.random.default_rng(0).normal(0, 100, (500, 4)).astype(np.float32)

        np.testing.assert_array_equal(choose(SoftQ(1e-8), q), q.argmax(axis=1))
        np.testing.assert_array_equal(self.probability(q, temperature=1e-8), np.eye(4)[q.argmax(axis=1)])

    def test_a_huge_temperature_is_uniform(self) -> None:
        counts = np.bincount(choose(SoftQ(1e9), prefer(2, 40_000)), minlength=4)

        np.testing.assert_allclose(counts, 10_000, atol=5 * np.sqrt(40_000 * 0.25 * 0.75))

    @pytest.mark.parametrize(
        ("large", "temperature"),
        [
            (1e30, 1e-3),
            (3e38, 1.0),
            (3e38, 0.1),
            (5.0, 1e-40),
        ],
    )
    def test_large_values_and_small_temperatures_do_not_overflow(self, large: float, temperature: float) -> None:
        q = np.array([[0.0, large / 2, large]], np.float32)

        assert choose(SoftQ(temperature), q).tolist() == [2]
        assert self.probability(q, temperature=temperature).tolist() == [[0, 0, 1]]

    def test_temperature_follows_the_step(self) -> None:
        soft = SoftQ([(0, 2.0), (100, 1.0)])
        q = np.tile(2 * self.q, (40_000, 1))

        assert [soft.metrics(step)["temperature"] for step in (0, 50, 100, 101)] == [2.0, 1.5, 1.0, 1.0]
        for step, share in ((0, 0.25), (100, 0.1)):
            np.testing.assert_allclose(soft.probability(q[:1], None, step=step)[0, 0], share, rtol=1e-5)
            assert (choose(soft, q, step=step) == 0).mean() == pytest.approx(share, abs=5 * np.sqrt(0.25 / 40_000))

    def test_values_are_left_as_they_are(self) -> None:
        q = self.q.copy()
        choose(SoftQ(0.5), q)
        SoftQ(0.5).probability(q, None, step=0)

        np.testing.assert_array_equal(q, self.q)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EpsilonGreedy(1.5), "EpsilonGreedy.epsilon must be in [0, 1], got 1.5"),
        (lambda: EpsilonGreedy(-0.1), "EpsilonGreedy.epsilon must be in [0, 1], got -0.1"),
        (lambda: EpsilonGreedy(float("nan")), "EpsilonGreedy.epsilon must be in [0, 1], got nan"),
        (lambda: EpsilonGreedy(True), "EpsilonGreedy.epsilon must be in [0, 1], got True"),
        (lambda: EpsilonGreedy("0.1"), "EpsilonGreedy.epsilon must be in [0, 1], got '0.1'"),
        (lambda: EpsilonGreedy(None), "EpsilonGreedy.epsilon must be in [0, 1], got None"),
        (lambda: EpsilonGreedy([(0, 1.0), (10, 2.0)]), "EpsilonGreedy.epsilon must be in [0, 1], got 2.0"),
        (lambda: EpsilonGreedy([(5, 1.0)]), "EpsilonGreedy.epsilon: Piecewise's first knot must be at step 0"),
        (lambda: EpsilonGreedy([(0, 1.0), (0, 0.5)]), "EpsilonGreedy.epsilon: Piecewise's steps must grow strictly"),
        (lambda: EpsilonGreedy(0.1, per_env=[0.5, 1.5]), "EpsilonGreedy.per_env must be in [0, 1], got 1.5"),
        (lambda: EZGreedy(2.0), "EZGreedy.epsilon must be in [0, 1], got 2.0"),
        (lambda: EZGreedy(0.1, mu=-0.5), "EZGreedy.mu must be in [0, inf), got -0.5"),
        (lambda: EZGreedy(0.1, max_repeat=0), "EZGreedy.max_repeat must be"),
        (lambda: SoftQ(0), "SoftQ.temperature must be in (0, inf), got 0"),
        (lambda: SoftQ(-1.0), "SoftQ.temperature must be in (0, inf), got -1.0"),
        (lambda: SoftQ(float("inf")), "SoftQ.temperature must be in (0, inf), got inf"),
        (lambda: SoftQ(True), "SoftQ.temperature must be in (0, inf), got True"),
        (lambda: SoftQ([(0, 1.0), (10, 0.0)]), "SoftQ.temperature must be in (0, inf), got 0.0"),
        (lambda: EpsilonGreedy.linear(3.0, 0.1, 10), "EpsilonGreedy.epsilon must be in [0, 1], got 3.0"),
        (
            lambda: EpsilonGreedy.linear(1.0, 0.1, 0.5),
            "EpsilonGreedy.linear.n_steps must be a whole number >= 1, got 0.5",
        ),
    ],
)
def test_wrong_input_is_refused_by_name_and_rule(make: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        make()

    assert message in str(refusal.value)


class Persistent:
    """Draw one action per episode and repeat it: state of an episode, which `starts` begins again."""

    def __init__(self, n_envs: int) -> None:
        self.held = np.zeros(n_envs, np.int64)

    def choose(self, q: Any, legal: Any, *, step: int, env_ids: Any, starts: Any, rng: Any) -> Any:
        begins = env_ids[starts]
        self.held[begins] = rng.integers(q.shape[1], size=len(begins))
        return self.held[env_ids]

    def metrics(self, step: int) -> dict[str, float]:
        return {}


@pytest.mark.parametrize("way", ["sync", "SyncVectorEnv NEXT_STEP"])
def test_an_exploration_receives_the_starts_of_episodes(way: str) -> None:
    ledger = Ledger()
    envs = tagged_envs(way, 4)
    policy = DQNPolicy.for_envs(envs, hidden=(4,), exploration=Persistent(4), device="cpu", seed=1)
    Collector(policy, envs, ledger).collect(n_step=400)
    rows = ledger.rows()
    tags = decode(rows.obs)
    episodes = {(env, episode) for env, episode in tags[:, :2].tolist()}
    assert len(episodes) > 40
    held = [set(rows.action[(tags[:, :2] == one).all(axis=1)].tolist()) for one in sorted(episodes)]
    assert {len(actions) for actions in held} == {1}
    assert {action for actions in held for action in actions} == {0, 1, 2}


class Reversed(tk.Greedy):
    """Choose among the policy's values with the opposite sign."""

    def own_values(self, policy: Any, obs: Any, q: Any, *, step: int, env_ids: Any, starts: Any) -> Any:
        return -policy.action_values(obs)


def test_an_exploration_may_choose_among_values_of_its_own() -> None:
    policy = DQNPolicy.for_envs(Spaces(), hidden=(4,), exploration=Reversed(), store_q_values=True, seed=1)
    obs = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    values = policy.action_values(obs)
    output = policy.act(obs, explore=True)
    assert output.action.tolist() == values.argmin(axis=1).tolist()
    np.testing.assert_array_equal(output.extras["q_values"], -values)
    assert policy.act(obs).action.tolist() == values.argmax(axis=1).tolist()
    policy.exploration = tk.Greedy()
    assert policy.act(obs, explore=True).action.tolist() == values.argmax(axis=1).tolist()
    policy.exploration = Reversed()
    assert policy.act(obs, explore=True).action.tolist() == values.argmin(axis=1).tolist()


BOX_SPACES = Spaces(action_space=spaces.Box(-1.0, 1.0, (2,), np.float32))


@pytest.mark.parametrize(
    ("policy", "methods"),
    [
        (DQNPolicy.for_envs(Spaces(), seed=1), ("act", "predict", "action_probability", "action_values")),
        (tk.PPOPolicy.for_envs(Spaces(), seed=1), ("act", "predict", "action_probability")),
        (tk.SACPolicy.for_envs(BOX_SPACES, seed=1), ("act", "predict")),
        (tk.RandomPolicy(THREE_ACTIONS, seed=1), ("act", "action_probability")),
        *(
            (kind.for_envs(Spaces(action_space=space), seed=1), ("act", "predict"))
            for kind, space, _ in learners_of_extensions().values()
        ),
    ],
    ids=["dqn", "ppo", "sac", "random", *learners_of_extensions()],
)
@pytest.mark.parametrize("explore", ["no", None, 0, 1.0])
def test_what_is_neither_true_nor_false_is_refused_wherever_a_policy_takes_explore(
    policy: Any, methods: tuple[str, ...], explore: Any
) -> None:
    obs = np.zeros((2, 4), np.float32)
    for method in methods:
        call = getattr(policy, method)
        option = r"\.explore" if method == "predict" else r"\(explore=\)"
        with pytest.raises(ConfigError, match=rf"^{type(policy).__name__}.{method}{option} must be True or False"):
            call(obs, explore=explore)
        call(obs, explore=True)
        call(obs, explore=np.False_)
