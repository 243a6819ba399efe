"""The return of a window of steps, worked by hand: rewards are powers of ten, gamma is a half."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from tests.buffer.small_buffers import tape
from tests.buffer.stream import CONTINUES, IS_BOTH, IS_TRUNCATED, TERMINATES, Stream
from trainkit.buffer import ReplayBuffer
from trainkit.core.data import Horizon, TransitionBatch
from trainkit.core.errors import ConfigError


def read(buffer: ReplayBuffer, horizon: Horizon) -> dict[int, tuple[float, float, int]]:
    """Return (reward, discount, m) of the window from each stored row, counted from the first ever added."""
    batch = buffer.sample(64 * len(buffer), horizon=horizon, columns=["n"])
    first = min(batch.slots.tolist())
    serial = {slot: place for place, slot in enumerate(sorted(set(batch.slots.tolist())))}
    assert len(serial) == len(buffer), f"a row from slot {first} on was never drawn"
    return {
        serial[slot]: (float(reward), float(discount), int(n))
        for slot, reward, discount, n in zip(
            batch.slots.tolist(), batch.reward, batch.discount, batch.extras["n"], strict=True
        )
    }


def test_a_return_is_the_discounted_sum_of_the_windows_rewards() -> None:
    returns = read(tape([1, 10, 100, 1000, 10_000]), Horizon(3, gamma=0.5))
    assert returns[0] == (1 + 5 + 25, 0.125, 3)
    assert returns[1] == (10 + 50 + 250, 0.125, 3)


def test_one_step_is_its_reward_and_gamma() -> None:
    returns = read(tape([1, 10, 100], {1: TERMINATES}), Horizon(1, gamma=0.5))
    assert returns == {0: (1, 0.5, 1), 1: (10, 0, 1), 2: (100, 0.5, 1)}


def test_a_window_stops_at_the_newest_row_and_keeps_the_bootstrap() -> None:
    returns = read(tape([1, 10, 100]), Horizon(3, gamma=0.5))
    assert returns == {0: (31, 0.125, 3), 1: (10 + 50, 0.25, 2), 2: (100, 0.5, 1)}


def test_a_window_stops_at_termination_and_drops_the_bootstrap() -> None:
    returns = read(tape([1, 10, 100, 1000], {1: TERMINATES}), Horizon(3, gamma=0.5))
    assert returns == {0: (1 + 5, 0, 2), 1: (10, 0, 1), 2: (100 + 500, 0.25, 2), 3: (1000, 0.5, 1)}


def test_a_window_that_just_reaches_termination_drops_the_bootstrap_too() -> None:
    assert read(tape([1, 10, 100], {2: TERMINATES}), Horizon(3, gamma=0.5))[0] == (31, 0, 3)


def test_a_window_stops_at_truncation_but_keeps_the_bootstrap() -> None:
    returns = read(tape([1, 10, 100, 1000], {1: IS_TRUNCATED}), Horizon(3, gamma=0.5))
    assert returns == {0: (1 + 5, 0.25, 2), 1: (10, 0.5, 1), 2: (100 + 500, 0.25, 2), 3: (1000, 0.5, 1)}


def test_termination_wins_over_truncation_at_the_same_step() -> None:
    assert read(tape([1, 10, 100], {1: IS_BOTH}), Horizon(3, gamma=0.5))[0] == (6, 0, 2)


def test_a_window_stops_at_a_cut_but_keeps_the_bootstrap() -> None:
    buffer, stream = ReplayBuffer(10, seed=1), Stream(1)
    for t in range(4):
        if t == 2:
            buffer.cut(0)
            stream.begin([0])
        buffer.add(stream.next()._replace(reward=np.array([10.0**t])))
    returns = read(buffer, Horizon(3, gamma=0.5))
    assert returns == {0: (6, 0.25, 2), 1: (10, 0.5, 1), 2: (600, 0.25, 2), 3: (1000, 0.5, 1)}


def test_a_window_bootstraps_from_the_true_observation_after_its_last_step() -> None:
    buffer = tape([0] * 6, {2: IS_TRUNCATED, 4: TERMINATES})  # (env, episode, step) is the observation
    batch = buffer.sample(200, horizon=Horizon(2))
    seen = {(tuple(obs), tuple(after)) for obs, after in zip(batch.obs.tolist(), batch.next_obs.tolist(), strict=True)}
    assert seen == {
        ((0, 0, 0), (0, 0, 2)),
        ((0, 0, 1), (0, 0, 3)),  # the episode's last, never shown to a policy
        ((0, 0, 2), (0, 0, 3)),
        ((0, 1, 0), (0, 1, 2)),
        ((0, 1, 1), (0, 1, 2)),
        ((0, 2, 0), (0, 2, 1)),  # pending
    }


def test_a_window_may_be_longer_than_the_ring() -> None:
    returns = read(tape([1, 10, 100], capacity=2), Horizon(50, gamma=0.5))
    assert returns == {0: (10 + 50, 0.25, 2), 1: (100, 0.5, 1)}


def test_a_window_never_reads_on_from_the_newest_row_into_the_oldest() -> None:
    returns = read(tape([1, 10, 100, 1000, 10_000], capacity=3), Horizon(3, gamma=0.5))
    assert returns == {0: (100 + 500 + 2500, 0.125, 3), 1: (6000, 0.25, 2), 2: (10_000, 0.5, 1)}


def test_lengths_of_a_closed_range_come_equally_often_its_ends_included() -> None:
    batch = tape([0] * 5).sample(4000, horizon=Horizon((2, 4), gamma=0.5), columns=["n", "t"])
    n = batch.extras["n"][batch.extras["t"] <= 1]  # those with 4 steps ahead
    values, counts = np.unique(n, return_counts=True)
    assert_array_equal(values, [2, 3, 4])
    assert_allclose(counts / len(n), 1 / 3, atol=0.05)
    assert_array_equal(batch.discount, 0.5 ** batch.extras["n"])


def test_each_row_draws_its_own_length() -> None:
    batch = tape([0] * 50).sample(500, horizon=Horizon((1, 2)), columns=["n", "t"])
    pairs = set(zip(batch.extras["t"].tolist(), batch.extras["n"].tolist(), strict=True))
    assert len({t for t, n in pairs if n == 1} & {t for t, n in pairs if n == 2}) > 40


Rule = Any


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (None, 3 + 0.99 * 0 - 0.99**2),
        ("sign", 1 + 0 - 0.99**2),  # 0.0199, where the sign of the sum would be 1
        ((-0.5, 2.0), 2 + 0 - 0.99**2 * 0.5),
        (10.0, 30 + 0 - 0.99**2 * 10),
        (lambda columns: columns["reward"] ** 2, 9 + 0 + 0.99**2),
    ],
)
def test_a_reward_rule_shapes_each_reward_before_the_sum(rule: Rule, expected: float) -> None:
    buffer = tape([3, 0, -1], {2: IS_TRUNCATED})
    reward, _, _ = read(buffer, Horizon(3, gamma=0.99, reward=rule))[0]
    assert reward == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("rule", "expected"), [("sign", -1), ((-0.5, 2.0), -0.5), (10.0, -70), (np.negative, 7)])
def test_a_reward_rule_shapes_single_steps(rule: Rule, expected: float) -> None:
    if callable(rule):
        negative = rule
        rule = lambda columns: negative(columns["reward"])  # noqa: E731 - a parameter, wrapped
    assert read(tape([-7]), Horizon(1, reward=rule))[0][0] == expected


def test_a_reward_function_sees_every_column_of_its_windows() -> None:
    seen: dict[str, NDArray[Any]] = {}

    def look(columns: Mapping[str, Any]) -> NDArray[Any]:
        seen.update(columns)
        assert len(columns) == len(seen)
        reward: NDArray[Any] = columns["reward"]
        return reward

    buffer = tape([1, 10, 100, 1000], {3: TERMINATES})
    batch = buffer.sample(40, horizon=Horizon(2, gamma=0.5, reward=look), columns=["t"])
    t = np.minimum(batch.extras["t"] + np.arange(2)[:, None], 3)  # [n, B]
    assert set(seen) == set("reward action terminated truncated t obs next_obs log_prob hidden".split())
    assert_array_equal(seen["t"], t)
    assert_array_equal(seen["reward"], 10.0**t)
    assert_array_equal(seen["action"], 5 * t)
    assert_array_equal(seen["terminated"], t == 3)
    assert_array_equal(seen["truncated"], np.zeros_like(t, np.bool_))
    assert_array_equal(seen["log_prob"], -t)
    assert_array_equal(seen["obs"][..., 2], t)
    assert_array_equal(seen["next_obs"][..., 2], t + 1)
    assert seen["obs"].shape == (2, 40, 3)
    assert seen["hidden"].shape == (2, 40, 2)


@pytest.mark.parametrize("n_step", [1, 2, 5])
def test_a_reward_function_never_sees_a_row_outside_its_window(n_step: int) -> None:
    def no_zero(columns: Mapping[str, Any]) -> NDArray[Any]:
        assert (columns["reward"] > 0).all(), "rows never written, and the other episode's, have reward 0"
        return np.log10(columns["reward"])

    buffer = tape([0, 0, 10, 100], {1: TERMINATES})
    buffer.rewrite(buffer.sample(50, horizon=Horizon(1)).slots, reward=10.0)
    assert read(buffer, Horizon(n_step, gamma=1.0, reward=no_zero))[3][0] == 1


def test_a_reward_of_another_episode_cannot_spoil_a_window() -> None:
    returns = read(tape([1, np.inf, 100], {0: TERMINATES, 1: TERMINATES}), Horizon(2, gamma=0.5))
    assert returns[0] == (1, 0, 1)
    assert returns[2] == (100, 0.5, 1)


def test_a_reward_function_of_the_wrong_shape_is_refused() -> None:
    def summed(columns: Mapping[str, Any]) -> NDArray[Any]:
        total: NDArray[Any] = columns["reward"].sum(axis=0)
        return total

    message = r"Horizon.reward must give one reward per row \[3, 4\], got \(4,\)"
    with pytest.raises(ConfigError, match=message):
        tape([1, 10]).sample(4, horizon=Horizon(3, reward=summed))


def test_an_unknown_column_of_a_reward_function_is_a_key_error() -> None:
    rule: Callable[[Mapping[str, Any]], NDArray[Any]] = lambda columns: columns["rewards"]  # noqa: E731 - misspelt
    with pytest.raises(KeyError, match="rewards"):
        tape([1]).sample(1, horizon=Horizon(reward=rule))


def test_a_return_is_float32_summed_in_float64() -> None:
    batch = tape([1e8, 1, -1e8], {2: TERMINATES}).sample(30, horizon=Horizon(3, gamma=1.0), columns=["t"])
    assert batch.reward.dtype == batch.discount.dtype == np.float32
    assert_array_equal(batch.reward[batch.extras["t"] == 0], 1.0)


def test_sampling_of_equal_buffers_is_equal() -> None:
    one, other = (tape(range(20)).sample(64, horizon=Horizon((1, 5))) for _ in range(2))
    assert isinstance(one, TransitionBatch)
    assert_array_equal(one.reward, other.reward)
    assert_array_equal(one.slots, other.slots)


# ---- the range of returns ----


def test_the_range_of_returns_is_over_all_rows_windows_and_0() -> None:
    buffer = tape([1, 10, -100, 1000, -8], {2: TERMINATES})
    assert buffer.return_range(Horizon(1, gamma=0.5)) == (-100, 1000)  # to go: -19, -40, -100, 996, -8
    assert buffer.return_range(Horizon(2, gamma=0.5)) == (-100, 996)  # windows: 6, -40, -100, 996, -8
    assert buffer.return_range(Horizon(1, gamma=0.5, reward="sign")) == (-1, 1.25)  # to go: 1.25, 0.5, -1, 0.5, -1
    assert tape([5, 6]).return_range(Horizon(1, gamma=0.5)) == (0, 8)
    assert ReplayBuffer(10).return_range(Horizon(1)) == (0, 0)


@pytest.mark.parametrize("n_step", [1, 3, (2, 5)])
def test_the_range_of_returns_is_that_of_a_slow_sum(n_step: Any) -> None:
    rng, gamma, limit = np.random.default_rng(3), 0.9, 40
    for _ in range(20):
        buffer, stream = ReplayBuffer(2 * limit, seed=1), Stream(2)
        n_rows = int(rng.integers(1, 100))
        rewards = rng.normal(rng.normal(), 1.0, (n_rows, 2)).astype(np.float32)
        ends = rng.choice([CONTINUES, TERMINATES, IS_TRUNCATED], (n_rows, 2), p=[0.9, 0.05, 0.05])
        for reward, end in zip(rewards, ends, strict=True):
            buffer.add(stream.next(ends=end)._replace(reward=reward))
        sums = [0.0]
        shortest, longest = n_step if isinstance(n_step, tuple) else (n_step, n_step)
        for env in range(2):
            for t in range(max(0, n_rows - limit), n_rows):
                last = next((i for i in range(t, n_rows) if ends[i, env] != CONTINUES), n_rows - 1)
                rest = rewards[t : last + 1, env].tolist()
                windows = [rest[:n] for n in (*range(shortest, longest + 1), n_rows)]
                sums += [sum(gamma**i * reward for i, reward in enumerate(window)) for window in windows]
        assert_allclose(buffer.return_range(Horizon(n_step, gamma)), (min(sums), max(sums)), rtol=1e-5)
