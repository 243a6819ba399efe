"""Rewards at the scale of one return: the running deviation, by hand and by a slow twin."""

import numpy as np
import pytest

from trainkit import ConfigError, Horizon, ReturnScale


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


def test_it_agrees_with_a_slow_twin_over_many_environments_in_any_order() -> None:
    rng = np.random.default_rng(0)
    reward, ended = rng.normal(3, 2, (200, 5)), rng.random((200, 5)) < 0.1
    scale = ReturnScale(gamma=0.9)
    for rewards, ends in zip(reward, ended, strict=True):
        ids = np.sort(rng.permutation(5)[:3])
        rest = np.setdiff1d(np.arange(5), ids)
        for some in (ids, rest):
            scale.observe(rewards[some], ends[some], some)
    assert scale.deviation == pytest.approx(np.std(returns_of(reward, ended, 0.9)), rel=1e-6)


def test_a_record_of_many_rows_at_once_counts_as_row_by_row() -> None:
    rng = np.random.default_rng(1)
    reward, ended, env_ids = rng.normal(size=60), rng.random(60) < 0.2, np.repeat([0, 1, 2], 20)
    at_once = ReturnScale(gamma=0.9)
    at_once.observe(reward[:30], ended[:30], env_ids[:30])
    at_once.observe(reward[30:], ended[30:], env_ids[30:])
    every = [
        found for n in range(3) for found in returns_of(reward[env_ids == n, None], ended[env_ids == n, None], 0.9)
    ]
    assert at_once.deviation == pytest.approx(np.std(every), rel=1e-6)


def test_rewards_keep_their_sign_and_are_clipped() -> None:
    scale = ReturnScale(gamma=0.0, clip=3.0)
    scale.observe(np.array([1.0, -1.0]), np.array([False, False]), np.array([0, 1]))  # mean 0, deviation 1
    np.testing.assert_allclose(scale({"reward": np.array([0.5, -2.0, 50.0])}), [0.5, -2.0, 3.0], rtol=1e-6)


def test_before_any_reward_was_seen_nothing_is_scaled() -> None:
    np.testing.assert_array_equal(ReturnScale()({"reward": np.array([0.5, -2.0])}), [0.5, -2.0])
    scale = ReturnScale()
    scale.observe(np.zeros(0), np.zeros(0, np.bool_), np.zeros(0, np.intp))
    assert scale.deviation == 1.0


def test_a_loaded_scale_goes_on_as_the_saved_one() -> None:
    first, second = ReturnScale(), ReturnScale()
    step = (np.array([1.0, 5.0]), np.array([False, True]), np.array([0, 2]))
    first.observe(*step)
    second.load_state_dict(first.state_dict())
    for scale in (first, second):
        scale.observe(*step)
    assert first.deviation == second.deviation != 1.0


def test_a_horizon_makes_a_scale_of_its_own_with_its_discount() -> None:
    one, other = Horizon(1, 0.9, "return_scale"), Horizon(1, 0.9, "return_scale")
    assert one.return_scale is not None
    assert one.return_scale.gamma == 0.9
    assert one.return_scale is not other.return_scale
    assert Horizon(1, 0.9, "sign").return_scale is None
    own = ReturnScale(0.5, clip=2.0)
    assert Horizon(reward=own).return_scale is own


@pytest.mark.parametrize("options", [{"gamma": 1.5}, {"clip": 0.0}, {"clip": -1.0}])
def test_refuses_what_cannot_be(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="ReturnScale"):
        ReturnScale(**options)
