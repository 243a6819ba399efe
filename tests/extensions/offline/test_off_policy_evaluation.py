"""Off-policy estimation: worked by hand, unbiased on a problem with a known answer, strict about probabilities."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from trainkit import (
    Collector,
    ConfigError,
    DQNPolicy,
    EpsilonGreedy,
    Greedy,
    PPOPolicy,
    RandomPolicy,
    ReplayBuffer,
    SoftQ,
    Transition,
    load_dataset,
    make_envs,
)
from trainkit.callbacks import DatasetWriter
from trainkit.datasets import (
    Estimate,
    direct_method,
    doubly_robust,
    importance_sampling,
    weighted_importance_sampling,
)
from trainkit.extensions.offline.off_policy_evaluation import per_decision

BOTH = [importance_sampling, weighted_importance_sampling]


class Always:
    """Take action 1 with one probability everywhere, or as the observation's table says."""

    last_step = 7

    def __init__(self, *likely: float) -> None:
        self.likely = np.asarray(likely)
        self.calls: list[tuple[int, bool]] = []

    def action_probability(self, obs: Any, *, step: int = 0, explore: bool = False) -> NDArray[np.float64]:
        self.calls.append((step, explore))
        ones = self.likely[obs[:, 0].astype(int)] if len(self.likely) > 1 else np.full(len(obs), self.likely[0])
        return np.stack([1 - ones, ones], axis=1)


def dataset(
    actions: list[list[int]], rewards: list[list[float]], likely: Any, *, name: str = "action_prob", end: str = "both"
) -> ReplayBuffer:
    """Make episodes of these actions, rewards and probabilities; observations count the steps."""
    lengths = [len(one) for one in actions]
    t = np.concatenate([np.arange(n) for n in lengths])
    ends = np.zeros(len(t), np.bool_)
    ends[np.cumsum(lengths) - 1] = True
    none = np.zeros(len(t), np.bool_)
    given = {} if likely is None else {name: np.concatenate(likely)}
    buffer = ReplayBuffer.from_arrays(
        obs=t[:, None].astype(np.float32),
        next_obs=t[:, None].astype(np.float32) + 1,
        action=np.concatenate(actions),
        reward=np.concatenate(rewards),
        terminated=ends if end == "both" else none,
        truncated=ends if end == "truncated" else none,
        ends=ends,
        extras={one: np.nan_to_num(column, posinf=1) for one, column in given.items()},
    )
    for one, column in given.items():
        buffer._storage.extras[one][: len(column)] = column  # as no file and no array could have it
    return buffer


class TestByHand:
    """Two episodes, gamma 1/2; the target takes 1 with 3/4, the behavior either action with 1/2.

    Ratios are 3/2 for action 1 and 1/2 for action 0.

        episode 0: actions 1, 0, rewards 8, 4: rho 3/2, 3/4
        episode 1: action  0,    reward  6:    rho 1/2
    """

    data = ([[1, 0], [0]], [[8.0, 4.0], [6.0]], [[0.5, 0.5], [0.5]])

    def test_ordinary(self) -> None:
        result = importance_sampling(Always(0.75), dataset(*self.data), gamma=0.5)

        # 3/2 * 8 + 1/2 * 3/4 * 4 = 13.5 and 1/2 * 6 = 3
        assert_allclose(result.per_episode, [13.5, 3.0])
        assert result.value == 8.25
        assert result.behavior == (8 + 0.5 * 4 + 6) / 2 == 8.0
        assert_allclose(result.std_error, np.std([13.5, 3.0], ddof=1) / np.sqrt(2))
        # whole ratios 3/4 and 1/2: (5/4)**2 / (9/16 + 1/4)
        assert_allclose(result.effective_sample_size, (25 / 16) / (13 / 16))
        assert (result.n_episodes, result.n_skipped) == (2, 0)

    def test_weighted(self) -> None:
        result = weighted_importance_sampling(Always(0.75), dataset(*self.data), gamma=0.5)

        # w_0 = (3/2 + 1/2) / 2 = 1; episode 1 is over and keeps its 1/2: w_1 = (3/4 + 1/2) / 2 = 5/8
        # 3/2 * 8 + 1/2 * (3/4) / (5/8) * 4 = 14.4 and 1/2 * 6 = 3
        assert_allclose(result.per_episode, [14.4, 3.0])
        assert_allclose(result.value, 8.7)
        assert result.behavior == 8.0

    def test_weighted_by_the_linearised_error(self) -> None:
        result = weighted_importance_sampling(Always(0.75), dataset(*self.data), gamma=0.5)

        # The target's mean rewards: r_0 = (3/2 * 8 + 1/2 * 6) / 2 = 7.5, r_1 = (6/5 * 4 + 4/5 * 0) / 2 = 2.4.
        # RecordedEpisode 0: 3/2 * (8 - 7.5) + 7.5 + 1/2 * (6/5 * (4 - 2.4) + 2.4) = 8.25 + 2.16
        # RecordedEpisode 1: 1/2 * (6 - 7.5) + 7.5 + 1/2 * (4/5 * (0 - 2.4) + 2.4) = 6.75 + 0.24
        assert_allclose(result.std_error, np.std([10.41, 6.99], ddof=1) / np.sqrt(2))

    @pytest.mark.parametrize("estimate", BOTH)
    def test_the_estimate_for_the_behavior_is_its_own_return(self, estimate: Any) -> None:
        result = estimate(Always(0.5), dataset(*self.data), gamma=0.5)

        assert result.value == result.behavior == 8.0
        assert result.effective_sample_size == 2.0
        assert_allclose(result.per_episode, [10.0, 6.0])

    @pytest.mark.parametrize("estimate", BOTH)
    def test_a_target_that_shares_no_action_has_an_estimate_of_zero(self, estimate: Any) -> None:
        result = estimate(Always(1.0), dataset([[0], [0, 0]], [[1.0], [1.0, 1.0]], [[0.5], [0.5, 0.5]]), gamma=0.5)

        assert (result.value, result.effective_sample_size) == (0.0, 0.0)

    def test_the_target_is_queried_for_every_observation_but_the_last(self) -> None:
        result = importance_sampling(Always(0.0, 1.0, -9.0), dataset([[0, 1]], [[1.0, 2.0]], [[0.5, 0.5]]), gamma=1.0)

        assert result.value == 2 * 1 + 4 * 2
        assert result.std_error is None  # unknown for one episode


def slow_reference(ratios: list[Any], rewards: list[Any], gamma: float, is_weighted: bool) -> float:
    """Add up the formulas term by term."""
    total = 0.0
    for ratio, reward in zip(ratios, rewards, strict=True):
        for t in range(len(ratio)):
            weight = sum(np.prod(other[: t + 1]) for other in ratios) / len(ratios) if is_weighted else 1.0
            if weight > 0:
                total += gamma**t * np.prod(ratio[: t + 1]) / weight * reward[t]
    return total / len(ratios)


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_sum_of_its_terms(is_weighted: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 9, size=12)
    ratios = [rng.choice([0.0, 0.5, 1.0, 2.0], n, p=[0.1, 0.3, 0.3, 0.3]) for n in lengths]
    rewards = [rng.normal(size=n) for n in lengths]
    result = per_decision(ratios, rewards, gamma=0.9, is_weighted=is_weighted)

    assert_allclose(result.value, slow_reference(ratios, rewards, 0.9, is_weighted))


# ---- a problem with a known answer ----
#
# Three steps at most. Action 1 earns 1 and continues, action 0 earns 0 and ends the episode half the time. With
# probability p of action 1, the value of n steps left is v_n = p * (1 + g v_(n-1)) + (1 - p) * 0.5 * g v_(n-1).


def true_value(p: float, gamma: float) -> float:
    value = 0.0
    for _ in range(3):
        value = p * (1 + gamma * value) + (1 - p) * 0.5 * gamma * value
    return value


def play(rng: np.random.Generator, n_episodes: int, behavior: float) -> tuple[Any, Any, Any]:
    actions, rewards, likely = [], [], []
    for _ in range(n_episodes):
        did: list[int] = []
        for _ in range(3):
            did.append(int(rng.random() < behavior))
            if not did[-1] and rng.random() < 0.5:
                break
        actions.append(did)
        rewards.append([float(action) for action in did])
        likely.append([behavior if action else 1 - behavior for action in did])
    return actions, rewards, likely


@pytest.fixture(scope="module")
def many() -> dict[Any, list[Estimate]]:
    """Estimate a target of 0.7 from 100 data sets of 40 episodes of a behavior of 0.4."""
    rng = np.random.default_rng(0)
    data = [dataset(*play(rng, 40, 0.4)) for _ in range(100)]
    return {estimate: [estimate(Always(0.7), one, gamma=0.9) for one in data] for estimate in BOTH}


def test_the_ordinary_estimate_is_unbiased(many: Any) -> None:
    values = np.array([one.value for one in many[importance_sampling]])

    assert abs(values.mean() - true_value(0.7, 0.9)) < 3 * values.std() / np.sqrt(len(values))
    behavior = np.array([one.behavior for one in many[importance_sampling]])
    assert abs(behavior.mean() - true_value(0.4, 0.9)) < 3 * behavior.std() / np.sqrt(len(values))
    assert true_value(0.7, 0.9) - true_value(0.4, 0.9) > 20 * behavior.std() / np.sqrt(len(values))


def test_the_weighted_estimate_varies_less(many: Any) -> None:
    ordinary, weighted = (np.array([one.value for one in many[estimate]]) for estimate in BOTH)

    assert weighted.std() < 0.8 * ordinary.std()


def test_the_weighted_estimate_is_consistent_when_the_targets_episodes_are_longer() -> None:
    result = weighted_importance_sampling(Always(0.7), dataset(*play(np.random.default_rng(1), 6000, 0.4)), gamma=0.9)

    assert result.std_error is not None
    assert result.std_error < 0.03
    assert abs(result.value - true_value(0.7, 0.9)) < 3 * result.std_error


@pytest.mark.parametrize("estimate", BOTH)
def test_the_standard_error_is_the_spread_of_estimates(estimate: Any, many: Any) -> None:
    values = np.array([one.value for one in many[estimate]])
    errors = np.array([one.std_error for one in many[estimate]])

    assert np.sqrt(np.square(errors).mean()) == pytest.approx(values.std(), rel=0.2)


def test_the_effective_sample_size_decreases_with_the_weights_variance(many: Any) -> None:
    sizes = np.array([one.effective_sample_size for one in many[importance_sampling]])

    assert 10 < sizes.mean() < 35  # of 40


# ---- what is refused ----


@pytest.mark.parametrize("estimate", BOTH)
@pytest.mark.parametrize(
    ("likely", "message"),
    [
        (None, r"needs the column 'action_prob', the dataset has \[\]: record it with"),
        ([[0.5, 0.5], [0.5, 0.0]], r"needs probabilities in \(0, 1\] .*, got 0.0 at step 1 of episode 1$"),
        ([[0.5, np.nan], [0.5, 0.5]], r"got nan at step 1 of episode 0$"),
        ([[0.5, 0.5], [1.5, 0.5]], r"got 1.5 at step 0 of episode 1$"),
        ([[-0.7, -0.1], [-0.2, -0.3]], r"got -0.7 at step 0 of episode 0; is it a logarithm\? give exp of it"),
        ([[np.inf, 0.5], [0.5, 0.5]], r"got inf at step 0 of episode 0$"),
    ],
)
def test_an_invalid_probability_is_rejected_by_name(estimate: Any, likely: Any, message: str) -> None:
    data = dataset([[1, 0], [0, 1]], [[1.0, 1.0], [1.0, 1.0]], likely)
    with pytest.raises(ConfigError, match=rf"^{estimate.__name__} .*{message}"):
        estimate(Always(0.5), data, gamma=0.9)


def test_other_mistakes_are_rejected() -> None:
    data = dataset([[1]], [[1.0]], [[0.5]])
    with pytest.raises(ConfigError, match=r"importance_sampling\.gamma must be in \[0, 1\], got 1.5"):
        importance_sampling(Always(0.5), data, gamma=1.5)
    with pytest.raises(ConfigError, match=r"importance_sampling\.dataset must be a ReplayBuffer, got 'runs'"):
        importance_sampling(Always(0.5), "runs", gamma=0.9)  # type: ignore[arg-type]  # the mistake
    with pytest.raises(ConfigError, match=r"found no episode with an end among 1: record whole ones"):
        importance_sampling(Always(0.5), dataset([[1]], [[1.0]], [[0.5]], end="cut"), gamma=0.9)
    continuous = ReplayBuffer.from_arrays(
        obs=np.zeros((1, 1)), action=np.zeros((1, 2)), reward=np.zeros(1), terminated=np.array([True])
    )
    with pytest.raises(ConfigError, match=r"needs Discrete actions, got float64 \(1, 2\)"):
        importance_sampling(Always(0.5), continuous, gamma=0.9)


def test_episodes_without_an_end_are_left_out_and_counted() -> None:
    data = ReplayBuffer(10, n_envs=1)
    for source in (dataset([[1, 1]], [[9.0, 9.0]], [[0.5, 0.5]], end="cut"), dataset([[0]], [[4.0]], [[0.5]])):
        for one in source.episodes():
            for t in range(len(one)):
                ends = one.terminated and t == len(one) - 1
                data.add(_step(one.obs[t : t + 2], one.action[t : t + 1], one.reward[t : t + 1], ends, one.extras, t))
        data.cut(0)
    result = importance_sampling(Always(0.5), data, gamma=0.9)

    assert (result.value, result.n_episodes, result.n_skipped) == (4.0, 1, 1)


def _step(obs: Any, action: Any, reward: Any, ends: bool, extras: Any, t: int) -> Any:
    likely = {name: column[t : t + 1] for name, column in extras.items()}
    none, end = np.array([False]), np.array([ends])
    return Transition(obs[:1], action, reward, obs[1:], end, none, np.array([0]), likely)


# ---- with policies ----


def test_a_recording_estimates_the_return_of_another_policy(tmp_path: Any) -> None:
    envs = make_envs("CartPole-v1", 8, seed=1)
    player = RandomPolicy(envs.action_space, seed=1, store_action_prob=True)
    with DatasetWriter(tmp_path).record(collector := Collector(player, envs)):
        collector.collect(n_episode=100)
    data = load_dataset(tmp_path)
    target = DQNPolicy.for_envs(data, hidden=(8,), exploration=EpsilonGreedy(0.8), device="cpu", seed=0)
    result = importance_sampling(target, data, gamma=0.5, explore=True)

    # CartPole earns 1 per step and no episode is shorter than 8: with gamma 1/2, 2 - 2**-7 at least, and 2 at most
    assert result.std_error is not None
    assert 0 < result.std_error < 0.2
    assert result.behavior == pytest.approx(2.0, abs=0.01)
    assert result.value == pytest.approx(2.0, abs=4 * result.std_error + 0.01)


def test_explore_selects_the_exploring_target() -> None:
    data = dataset([[1]], [[1.0]], [[0.5]])
    for explore in (False, True):
        target = Always(0.5)
        importance_sampling(target, data, gamma=0.9, explore=explore)
        assert target.calls == [(7, explore)]


def test_an_on_policy_learner_s_own_data_has_ratios_of_1(tmp_path: Any) -> None:
    envs = make_envs("CartPole-v1", 4, seed=1)
    policy = PPOPolicy.for_envs(envs, hidden=(8,), device="cpu", seed=0)
    with DatasetWriter(tmp_path).record(collector := Collector(policy, envs)):
        collector.collect(n_episode=20)
    result = weighted_importance_sampling(policy, load_dataset(tmp_path), gamma=0.9, explore=True)

    assert result.value == pytest.approx(result.behavior, rel=1e-5)
    assert result.effective_sample_size == pytest.approx(20, rel=1e-5)


@pytest.mark.parametrize(("exploration", "likely"), [(Greedy(), [0, 1]), (SoftQ(1.0), [0.25, 0.75])])
def test_a_q_learner_has_the_probabilities_of_its_exploration(exploration: Any, likely: list[float]) -> None:
    class Fixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = torch.nn.Parameter(torch.tensor([0.0, float(np.log(3.0))]))

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return self.q.expand(len(features), 2)

    policy = DQNPolicy(Fixed(), exploration=exploration, device="cpu")
    result = [
        importance_sampling(policy, dataset([[action]], [[1.0]], [[0.5]]), gamma=0.9, explore=True).value
        for action in (0, 1)
    ]

    assert_allclose(result, [likely[0] / 0.5, likely[1] / 0.5], rtol=1e-5)


@pytest.mark.parametrize("length", [600, 1_100])
def test_long_episodes_do_not_overflow(length: int) -> None:
    ratios, rewards = [np.full(length, 2.0)] * 2, [np.ones(length), np.full(length, 3.0)]
    found = per_decision(ratios, rewards, gamma=1.0, is_weighted=True)
    assert found.value == pytest.approx(2.0 * length)  # both are equally likely: the mean of their returns
    assert found.effective_sample_size == pytest.approx(2.0)
    if length > 1_024:  # 2**1024 is no number
        with pytest.raises(ConfigError, match="use weighted_importance_sampling"):
            per_decision(ratios, rewards, gamma=1.0, is_weighted=False)


def test_an_episode_that_cannot_be_the_targets_counts_nothing() -> None:
    ratios, rewards = [np.zeros(700), np.full(700, 2.0)], [np.ones(700), np.full(700, 3.0)]
    found = per_decision(ratios, rewards, gamma=1.0, is_weighted=True)
    assert found.value == pytest.approx(2_100.0)
    assert found.effective_sample_size == pytest.approx(1.0)
    none = per_decision([np.zeros(5)], [np.ones(5)], gamma=1.0, is_weighted=True)
    assert (none.value, none.effective_sample_size) == (0.0, 0.0)


# ---- with action values ----


class Table:
    """The same values of both actions in every state."""

    def __init__(self, *values: float) -> None:
        self.values = np.array(values)

    def action_values(self, obs: Any) -> NDArray[np.float64]:
        return np.tile(self.values, (len(obs), 1))


class TestDoublyRobustByHand:
    """The episodes of `TestByHand`, and q = 2 of action 0, 6 of action 1 everywhere: v = 1/4 * 2 + 3/4 * 6 = 5.

    episode 0: d_1 = 5 + 1/2 * (4 - 2) = 6, d_0 = 5 + 3/2 * (8 + 1/2 * 6 - 6) = 12.5
    episode 1: d_0 = 5 + 1/2 * (6 - 2) = 7, and truncated: 5 + 1/2 * (6 + 1/2 * 5 - 2) = 8.25
    """

    def test_terminated(self) -> None:
        rows = dataset(*TestByHand.data)
        estimate = doubly_robust(Always(0.75), rows, Table(2, 6), gamma=0.5)
        assert_allclose(estimate.per_episode, [12.5, 7])
        assert (estimate.value, estimate.behavior, estimate.n_episodes) == (9.75, 8, 2)
        assert_allclose(estimate.std_error, 5.5 / 2)
        assert_allclose(estimate.effective_sample_size, 1.25**2 / (0.75**2 + 0.5**2))

    def test_truncated(self) -> None:
        rows = dataset(*TestByHand.data, end="truncated")
        estimate = doubly_robust(Always(0.75), rows, Table(2, 6), gamma=0.5)
        assert_allclose(estimate.per_episode[1], 8.25)

    def test_without_values_it_is_importance_sampling(self) -> None:
        rows = dataset(*TestByHand.data)
        zero = doubly_robust(Always(0.75), rows, Table(0, 0), gamma=0.5)
        assert_allclose(zero.per_episode, importance_sampling(Always(0.75), rows, gamma=0.5).per_episode)

    def test_the_direct_method_needs_no_probabilities(self) -> None:
        rows = dataset(*TestByHand.data[:2], None)
        estimate = direct_method(Always(0.75), rows, Table(2, 6), gamma=0.5)
        assert (estimate.value, estimate.std_error, estimate.effective_sample_size) == (5, None, None)
        with pytest.raises(ConfigError, match=r"doubly_robust needs the column 'action_prob'"):
            doubly_robust(Always(0.75), rows, Table(2, 6), gamma=0.5)
