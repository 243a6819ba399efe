"""What passes between the rooms keeps its promises."""

import json
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest

from trainkit.core.data import (
    ActOutput,
    ArraySpec,
    EpochResult,
    Horizon,
    RowSpec,
    Transition,
    TransitionBatch,
    any_true,
    is_finite,
)
from trainkit.core.errors import ConfigError
from trainkit.core.stats import CollectStats, EpochStats, RunInfo, TimeStats


def test_a_horizon_has_the_defaults_of_one_step_q_learning() -> None:
    assert Horizon() == Horizon(n_step=1, gamma=0.99, reward=None)


@pytest.mark.parametrize(("n_step", "longest"), [(1, 1), (3, 3), ((2, 5), 5), ((4, 4), 4)])
def test_a_horizon_knows_its_longest_window(n_step: Any, longest: int) -> None:
    assert Horizon(n_step).longest == longest


@pytest.mark.parametrize("rule", [None, "sign", (-1.0, 1.0), (0, 5), 0.1, -2, lambda columns: columns["reward"]])
def test_every_reward_rule_is_taken(rule: Any) -> None:
    assert Horizon(reward=rule).reward is rule


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_step": 0}, "Horizon.n_step must be a whole number >= 1, got 0"),
        ({"n_step": 2.0}, "Horizon.n_step must be a whole number >= 1, got 2.0"),
        ({"n_step": True}, "Horizon.n_step must be a whole number >= 1, got True"),
        ({"n_step": (3, 2)}, "Horizon.n_step must be a whole number >= 3, got 2"),
        ({"n_step": (0, 2)}, "Horizon.n_step must be a whole number >= 1, got 0"),
        ({"n_step": (1, 2, 3)}, r"Horizon.n_step must be \(lo, hi\), got \(1, 2, 3\)"),
        ({"gamma": 1.01}, r"Horizon.gamma must be in \[0, 1\], got 1.01"),
        ({"gamma": -0.1}, r"Horizon.gamma must be in \[0, 1\], got -0.1"),
        ({"gamma": float("nan")}, r"Horizon.gamma must be in \[0, 1\], got nan"),
        ({"reward": (1.0, -1.0)}, r"Horizon.reward as a clip must be \(lo, hi\) with lo < hi, got \(1.0, -1.0\)"),
        ({"reward": (1.0,)}, r"Horizon.reward as a clip must be \(lo, hi\) with lo < hi, got \(1.0,\)"),
        (
            {"reward": "signs"},
            r'Horizon.reward must be "sign", "return_scale", a clip \(lo, hi\), a factor or a function of columns, got '
            r"'signs', did you mean 'sign'\?",
        ),
        ({"reward": float("inf")}, r"Horizon.reward must be in \(-inf, inf\), got inf"),
    ],
)
def test_a_horizon_that_cannot_work_is_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}$"):
        Horizon(**options)


def test_all_that_is_wrong_with_a_horizon_is_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        Horizon(n_step=0, gamma=5, reward="clip")  # type: ignore[arg-type]  # the mistakes tested
    assert len(str(caught.value).splitlines()) == 3


def batch() -> TransitionBatch:
    return TransitionBatch(
        obs={"a": np.zeros((3, 2)), "b": (np.ones(3),)},
        action=np.arange(3),
        reward=np.zeros(3, np.float32),
        discount=np.ones(3, np.float32),
        next_obs={"a": np.zeros((3, 2)), "b": (np.ones(3),)},
        weight=np.ones(3, np.float32),
        slots=np.arange(3),
        extras={"n": np.ones(3, np.int64)},
    )


def test_a_copied_batch_shares_no_memory_that_is_used_again() -> None:
    one = batch()
    other = one.copy()
    assert len(one) == len(other) == 3
    one.obs["a"][:] = one.obs["b"][0][:] = one.next_obs["a"][:] = one.action[:] = one.extras["n"][:] = 9
    assert other.obs["a"].max() == other.next_obs["a"].max() == 0
    assert other.obs["b"][0].max() == other.extras["n"].max() == 1
    np.testing.assert_array_equal(other.action, [0, 1, 2])


def test_a_batch_is_frozen_and_given_by_name() -> None:
    with pytest.raises(FrozenInstanceError):
        batch().reward = np.zeros(3)  # type: ignore[misc]  # the mistake tested
    with pytest.raises(TypeError, match="takes 1 positional argument but 8 were given"):
        TransitionBatch(1, 2, 3, 4, 5, 6, 7)  # type: ignore[misc]  # the mistake tested


def test_the_columns_made_each_step_are_read_by_name() -> None:
    assert Transition._fields == ("obs", "action", "reward", "next_obs", "terminated", "truncated", "env_ids", "extras")
    assert ActOutput._fields == ("action", "extras", "state")


def test_a_spec_is_read_off_rows_and_off_stacks_of_frames() -> None:
    rows = np.zeros((5, 4, 84, 84), np.uint8)
    assert ArraySpec.of(rows) == ArraySpec(shape=(4, 84, 84), dtype=np.dtype(np.uint8))
    assert ArraySpec.of(rows, stack=4) == ArraySpec(shape=(84, 84), dtype=np.dtype(np.uint8), stack=4)
    assert ArraySpec.of(np.zeros(5, np.float16)).shape == ()


def test_a_row_spec_survives_json() -> None:
    frame = ArraySpec(shape=(2, 3), dtype=np.dtype(">i2"), stack=4)
    number = ArraySpec(shape=(), dtype=np.dtype(np.bool_))
    obs = {"inner": (frame, {"deep": number}), "array": number, "dict": ()}
    spec = RowSpec(n_envs=7, obs=obs, action=number, extras={"log_prob": frame})
    assert RowSpec.from_plain(json.loads(json.dumps(spec.to_plain()))) == spec


def test_an_epochs_result_unpacks_and_has_names() -> None:
    time = TimeStats(seconds=1, collect=1, update=0, evaluate=0, other=0, steps_per_second=1)
    stats = EpochStats(train=CollectStats.merge([]), test=CollectStats.merge([]), time=time)
    info = RunInfo(
        epoch=2,
        env_step=0,
        gradient_step=0,
        n_episode=0,
        best_score=None,
        best_epoch=None,
        best_env_step=None,
        best_return=None,
        best_std=None,
        n_test_step=0,
        n_test_episode=0,
        collect_seconds=0.0,
        update_seconds=0.0,
        evaluate_seconds=0.0,
        other_seconds=0.0,
        steps_per_second=None,
        collect_steps_per_second=None,
        updates_per_second=None,
        last_test=CollectStats.merge([]),
        seconds=0,
        stop_reason=None,
        run_dir=None,
        date="2026-11-28T12:00:00+00:00",
    )
    result = EpochResult(2, stats, info)
    epoch, same_stats, same_info = result
    assert (result.epoch, result.stats, result.info) == (epoch, same_stats, same_info) == (2, stats, info)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_number_anywhere_is_seen(dtype: type, bad: float) -> None:
    for at in range(6):
        array = np.zeros((3, 2), dtype)
        array.flat[at] = bad
        assert not is_finite(array)
        assert not is_finite(array.T)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_whose_squares_overflow_are_finite(dtype: type) -> None:
    assert is_finite(np.full(4, np.finfo(dtype).max, dtype))


def test_nothing_is_finite() -> None:
    assert is_finite(np.zeros((0, 3)))


@pytest.mark.parametrize("size", [1, 10, 1_000])
def test_one_flag_anywhere_is_seen(size: int) -> None:
    for at in (0, size // 2, size - 1):
        flags = np.zeros(2 * size, np.bool_)
        flags[2 * at] = True
        assert any_true(flags)
        assert any_true(flags[::2])
        assert not any_true(flags[1::2])


def test_no_flag_is_none_set() -> None:
    assert not any_true(np.zeros(0, np.bool_))
