"""Rewards at the scale of one return: the running deviation, by hand and by a slow reference."""

import numpy as np
import pytest

from trainkit import ConfigError, Horizon, Policy, ReplayBuffer
from trainkit.buffer import ReturnScale


def returns_of(reward: np.ndarray, ended: np.ndarray, gamma: float) -> list[float]:
    """List every running return of [T, N] rewards, row by row."""
    found, running = [], [0.0] * reward.shape[1]
    for rewards, ends in zip(reward, ended, strict=True):
        for n, (own, is_end) in enumerate(zip(rewards, ends, strict=True)):
            running[n] = gamma * running[n] + own
            found.append(running[n])
            if is_end:
                running[n] = 0.0
    return found


def test_the_deviation_is_of_the_discounted_returns_so_far_worked_by_hand() -> None:
    scale = ReturnScale(gamma=0.5)
    one = np.array([0])
    for reward, is_end in ((4.0, False), (2.0, True), (0.0, False)):
        scale.observe(np.array([reward]), np.array([is_end]), one)
    # running returns 4, 0.5 * 4 + 2 = 4, then 0 in a new episode: mean 8/3, population variance 32/9
    assert scale.deviation == pytest.approx((32 / 9 + 1e-8) ** 0.5)


def test_it_agrees_with_a_slow_reference_over_many_environments_in_any_order() -> None:
    rng = np.random.default_rng(0)
    reward, ended = rng.normal(3, 2, (200, 5)), rng.random((200, 5)) < 0.1
    scale = ReturnScale(gamma=0.9)
    for rewards, ends in zip(reward, ended, strict=True):
        ids = np.sort(rng.permutation(5)[:3])
        rest = np.setdiff1d(np.arange(5), ids)
        for some in (ids, rest):
            scale.observe(rewards[some], ends[some], some)
    assert scale.deviation == pytest.approx(np.std(returns_of(reward, ended, 0.9)), rel=1e-6)


def test_whole_episodes_count_as_step_by_step() -> None:
    rng = np.random.default_rng(1)
    episodes = [rng.normal(size=length) for length in (3, 1, 7, 7, 2)]
    at_once, one_by_one = ReturnScale(gamma=0.9), ReturnScale(gamma=0.9)
    at_once.study(episodes)
    for rewards in episodes:
        for t, reward in enumerate(rewards):
            one_by_one.observe(np.array([reward]), np.array([t == len(rewards) - 1]), np.array([0]))
    assert at_once.n_observed == one_by_one.n_observed == 20
    assert at_once.deviation == pytest.approx(one_by_one.deviation, rel=1e-9)


def test_a_cut_ends_the_running_return() -> None:
    scale = ReturnScale(gamma=1.0)
    ids = np.array([0, 1])
    scale.observe(np.array([1.0, 1.0]), np.array([False, False]), ids)
    scale.cut(np.array([1, 5]))
    scale.observe(np.array([1.0, 1.0]), np.array([False, False]), ids)
    assert scale.deviation == pytest.approx(np.std([1, 1, 2, 1]), rel=1e-6)


def test_rewards_keep_their_sign_and_are_clipped() -> None:
    scale = ReturnScale(gamma=0.0, clip=3.0)
    scale.observe(np.array([1.0, -1.0]), np.array([False, False]), np.array([0, 1]))  # mean 0, deviation 1
    np.testing.assert_allclose(scale({"reward": np.array([0.5, -2.0, 50.0])}), [0.5, -2.0, 3.0], rtol=1e-6)


def test_before_any_reward_was_seen_nothing_is_scaled() -> None:
    np.testing.assert_array_equal(ReturnScale()({"reward": np.array([0.5, -2.0])}), [0.5, -2.0])
    scale = ReturnScale()
    scale.observe(np.zeros(0), np.zeros(0, np.bool_), np.zeros(0, np.intp))
    assert scale.deviation == 1.0


def test_a_loaded_scale_continues_as_the_saved_one() -> None:
    first, second = ReturnScale(), ReturnScale()
    step = (np.array([1.0, 5.0]), np.array([False, True]), np.array([0, 2]))
    first.observe(*step)
    second.load_state_dict(first.state_dict())
    for scale in (first, second):
        scale.observe(*step)
    assert first.deviation == second.deviation != 1.0


def test_a_horizon_names_the_rule_and_each_policy_makes_a_scale_of_its_own() -> None:
    horizon = Horizon(1, 0.9, "return_scale")
    assert horizon == Horizon(1, 0.9, "return_scale")
    assert horizon.return_scale is None
    one, other = (Policy(horizon=horizon, device="cpu").horizon.return_scale for _ in range(2))
    assert one is not None
    assert one.gamma == 0.9
    assert one is not other
    assert not Policy(horizon=Horizon(1, 0.9, "sign"), device="cpu").observes
    own = ReturnScale(0.5, clip=2.0)
    assert Policy(horizon=Horizon(reward=own), device="cpu").horizon.return_scale is own


def test_a_buffer_alone_cannot_scale() -> None:
    buffer = ReplayBuffer.from_arrays(
        obs=np.zeros((2, 1)), action=np.zeros(2, np.int64), reward=np.ones(2), terminated=np.array([False, True])
    )
    with pytest.raises(ConfigError, match=r"'return_scale' is learned by a policy: sample with policy\.horizon"):
        buffer.sample(1, horizon=Horizon(reward="return_scale"))


@pytest.mark.parametrize("options", [{"gamma": 1.5}, {"clip": 0.0}, {"clip": -1.0}])
def test_rejects_what_cannot_be(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="ReturnScale"):
        ReturnScale(**options)
