"""Exploration: a coin per row, epsilon by the step and the environment, legal actions only."""

import copy
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

import trainkit as tk
from tests.helpers.doubles import Ledger
from tests.helpers.learning import THREE_ACTIONS, Spaces
from tests.helpers.tagged import decode
from tests.helpers.truth import tagged_envs
from trainkit import Collector, ConfigError, DQNPolicy, EpsilonGreedy, Greedy, SoftQ
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
        (lambda: EpsilonGreedy([(5, 1.0)]), "Piecewise's first knot must be at step 0, got step 5"),
        (lambda: EpsilonGreedy([(0, 1.0), (0, 0.5)]), "Piecewise's steps must grow strictly, got [0, 0]"),
        (lambda: EpsilonGreedy(0.1, per_env=[0.5, 1.5]), "EpsilonGreedy.per_env must be in [0, 1], got 1.5"),
        (lambda: SoftQ(0), "SoftQ.temperature must be in (0, inf), got 0"),
        (lambda: SoftQ(-1.0), "SoftQ.temperature must be in (0, inf), got -1.0"),
        (lambda: SoftQ(float("inf")), "SoftQ.temperature must be in (0, inf), got inf"),
        (lambda: SoftQ(True), "SoftQ.temperature must be in (0, inf), got True"),
        (lambda: SoftQ([(0, 1.0), (10, 0.0)]), "SoftQ.temperature must be in (0, inf), got 0.0"),
        (lambda: EpsilonGreedy.linear(3.0, 0.1, 10), "EpsilonGreedy.epsilon must be in [0, 1], got 3.0"),
        (lambda: EpsilonGreedy.linear(1.0, 0.1, 0.5), "Piecewise.knots step must be a whole number >= 0, got 0.5"),
    ],
)
def test_wrong_input_is_refused_by_name_and_rule(make: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        make()

    assert message in str(refusal.value)


class Persistent:
    """Draw one action per episode and repeat it: state of an episode, which `starts` begins anew."""

    def __init__(self, n_envs: int) -> None:
        self.held = np.zeros(n_envs, np.int64)

    def choose(self, q: Any, legal: Any, *, step: int, env_ids: Any, starts: Any, rng: Any) -> Any:
        begins = env_ids[starts]
        self.held[begins] = rng.integers(q.shape[1], size=len(begins))
        return self.held[env_ids]

    def metrics(self, step: int) -> dict[str, float]:
        return {}


@pytest.mark.parametrize("way", ["sync", "SyncVectorEnv NEXT_STEP"])
def test_an_exploration_hears_whose_episode_begins(way: str) -> None:
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


BOX_SPACES = Spaces(action_space=spaces.Box(-1.0, 1.0, (2,), np.float32))


@pytest.mark.parametrize(
    ("policy", "methods"),
    [
        (DQNPolicy.for_envs(Spaces(), seed=1), ("act", "predict", "action_probability", "action_values")),
        (tk.PPOPolicy.for_envs(Spaces(), seed=1), ("act", "predict", "action_probability")),
        (tk.BCPolicy.for_envs(Spaces(), seed=1), ("act", "predict", "action_probability")),
        (tk.SACPolicy.for_envs(BOX_SPACES, seed=1), ("act", "predict")),
        (tk.RandomPolicy(THREE_ACTIONS, seed=1), ("act", "action_probability")),
    ],
    ids=["dqn", "ppo", "bc", "sac", "random"],
)
@pytest.mark.parametrize("explore", ["no", None, 0, 1.0])
def test_what_is_neither_true_nor_false_is_refused_wherever_a_policy_takes_explore(
    policy: Any, methods: tuple[str, ...], explore: Any
) -> None:
    obs = np.zeros((2, 4), np.float32)
    for method in methods:
        call = getattr(policy, method)
        with pytest.raises(ConfigError, match=rf"^{type(policy).__name__}.{method}\(explore=\) must be True or False"):
            call(obs, explore=explore)
        call(obs, explore=True)
        call(obs, explore=np.False_)
