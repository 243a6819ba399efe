"""Rows added by hand may skip steps of their episode: each keeps the next observation it was given."""

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from tests.buffer.small_buffers import number, row, successors
from trainkit import Horizon, PrioritizedReplayBuffer, ReplayBuffer, RolloutBuffer
from trainkit.core.data import ArraySpec, RowSpec

BUFFERS = [ReplayBuffer, PrioritizedReplayBuffer]


@pytest.mark.parametrize("kind", BUFFERS)
def test_a_row_that_does_not_continue_the_last_one_leaves_it_its_next_observation(kind: type[ReplayBuffer]) -> None:
    buffer = kind(10, n_envs=1, seed=0)
    buffer.add(row(number(0), number(1)))
    buffer.add(row(number(77), number(78)))

    assert successors(buffer) == {0.0: (1.0, 0.5), 77.0: (78.0, 0.5)}


def test_no_window_crosses_skipped_rows_and_the_bootstrap_stays() -> None:
    buffer = ReplayBuffer(10, n_envs=1, seed=0)
    for obs, after in ((0, 1), (1, 2), (5, 6), (6, 7)):
        buffer.add(row(number(obs), number(after), reward=10.0**obs))
    batch = buffer.sample(200, horizon=Horizon(n_step=3, gamma=0.5), columns=("episode", "t"))
    seen = {
        obs: rest
        for obs, *rest in zip(
            batch.obs[:, 0].tolist(),
            batch.reward.tolist(),
            batch.discount.tolist(),
            batch.next_obs[:, 0].tolist(),
            batch.extras["episode"].tolist(),
            batch.extras["t"].tolist(),
            strict=True,
        )
    }

    assert seen == {
        0.0: [6.0, 0.25, 2.0, 0, 0],
        1.0: [10.0, 0.5, 2.0, 0, 1],
        5.0: [600_000.0, 0.25, 7.0, 1, 0],
        6.0: [1_000_000.0, 0.5, 7.0, 1, 1],
    }


def test_only_the_environment_whose_rows_were_skipped_ends_its_episode() -> None:
    buffer = ReplayBuffer(12, n_envs=3, seed=0)
    buffer.add(row(number(0, 10, 20), number(1, 11, 21), (0, 1, 2)))
    buffer.add(row(number(1, 15, 21), number(2, 16, 22), (0, 1, 2)))
    buffer.add(row(number(16), number(17), (1,)))

    assert successors(buffer, n_step=2) == {
        0.0: (2.0, 0.25),
        1.0: (2.0, 0.5),
        10.0: (11.0, 0.5),
        15.0: (17.0, 0.25),
        16.0: (17.0, 0.5),
        20.0: (22.0, 0.25),
        21.0: (22.0, 0.5),
    }


def test_one_changed_number_anywhere_in_a_dict_observation_is_noticed() -> None:
    def obs(a: float, b: float) -> dict[str, Any]:
        return {"a": number(a), "b": (np.array([b]),)}

    buffer = ReplayBuffer(10, n_envs=1, seed=0)
    buffer.add(row(obs(0, 0), obs(1, 1)))
    buffer.add(row(obs(1, 2), obs(2, 3)))
    batch = buffer.sample(50, horizon=Horizon())

    pairs = set(zip(batch.obs["b"][0].tolist(), batch.next_obs["b"][0].tolist(), strict=True))
    assert pairs == {(0.0, 1.0), (2.0, 3.0)}


@pytest.mark.parametrize("ends", [None, np.array([False, False, True])])
def test_arrays_whose_rows_do_not_follow_keep_their_next_observations(ends: NDArray[np.bool_] | None) -> None:
    buffer = ReplayBuffer.from_arrays(
        obs=number(0, 1, 77),
        next_obs=number(1, 2, 78),
        action=np.zeros(3, np.int64),
        reward=np.ones(3),
        terminated=np.zeros(3, np.bool_),
        ends=ends,
        seed=0,
    )

    assert successors(buffer, n_step=2) == {0.0: (2.0, 0.25), 1.0: (2.0, 0.5), 77.0: (78.0, 0.5)}


@pytest.mark.parametrize("size", [1, 5_000])  # compared as bytes, and as numbers
def test_nan_continues_nan_and_minus_zero_is_zero(size: int) -> None:
    def of(value: float) -> NDArray[np.float32]:
        return np.full((1, size), value, np.float32)

    buffer = ReplayBuffer(10, n_envs=1, seed=0)
    for obs, after in ((1.0, np.nan), (np.nan, -0.0), (0.0, 2.0)):
        buffer.add(row(of(obs), of(after)))

    assert buffer.metrics(0)["n_episodes"] == 1
    buffer.add(row(of(np.nan), of(1.0)))
    assert buffer.metrics(0)["n_episodes"] == 2


def test_observations_of_another_dtype_are_compared_as_they_are_stored() -> None:
    buffer = ReplayBuffer(10, n_envs=1, seed=0)
    buffer.add(row(number(0.1), number(0.2)))
    buffer.add(row(np.array([[0.2]]), np.array([[0.3]])))  # float64: 0.2 is not float32's 0.2

    assert buffer.metrics(0)["n_episodes"] == 1


def stack(*frames: float) -> NDArray[np.float32]:
    return np.array([frames], np.float32)[..., None]


@pytest.mark.parametrize("reuses", [True, False])
def test_stacked_rows_that_continue_stay_one_episode(reuses: bool) -> None:
    buffer = ReplayBuffer(10, n_envs=1, stack=3, seed=0)
    stacks = [stack(0, 0, 0), stack(0, 0, 1), stack(0, 1, 2), stack(1, 2, 3)]
    for obs, after in itertools.pairwise(stacks):
        buffer.add(row(obs if reuses else obs.copy(), after))

    assert buffer.metrics(0)["n_episodes"] == 1


def test_a_stack_that_differs_only_in_its_older_frames_starts_an_episode() -> None:
    buffer = ReplayBuffer(10, n_envs=1, stack=3, seed=0)
    buffer.add(row(stack(0, 0, 0), stack(0, 0, 1)))
    buffer.add(row(stack(1, 1, 1), stack(1, 1, 2)))  # the newest frame is the one awaited
    batch = buffer.sample(50, horizon=Horizon())

    pairs = {tuple(np.ravel(o)): tuple(np.ravel(n)) for o, n in zip(batch.obs, batch.next_obs, strict=True)}
    assert pairs == {(0, 0, 0): (0, 0, 1), (1, 1, 1): (1, 1, 2)}


def test_skipped_rows_of_stacks_leave_the_last_one_its_next_stack() -> None:
    buffer = ReplayBuffer(10, n_envs=1, stack=2, seed=0)
    buffer.add(row(stack(0, 0), stack(0, 1)))
    buffer.add(row(stack(7, 7), stack(7, 8)))
    batch = buffer.sample(50, horizon=Horizon())

    pairs = {tuple(np.ravel(o)): tuple(np.ravel(n)) for o, n in zip(batch.obs, batch.next_obs, strict=True)}
    assert pairs == {(0, 0): (0, 1), (7, 7): (7, 8)}


def test_rows_overwritten_around_a_border_stay_true() -> None:
    buffer = ReplayBuffer(4, n_envs=1, seed=0)
    for start in range(0, 300, 30):
        for obs in range(start, start + 3):
            buffer.add(row(number(obs), number(obs + 1)))

    assert successors(buffer, n_step=2) == {
        242.0: (243.0, 0.5),
        270.0: (272.0, 0.25),
        271.0: (273.0, 0.25),
        272.0: (273.0, 0.5),
    }


def test_a_rollout_bootstraps_from_the_next_observation_of_the_row_before_skipped_ones() -> None:
    buffer = RolloutBuffer()
    spec = ArraySpec(shape=(1,), dtype=np.dtype(np.float32))
    action = ArraySpec(shape=(), dtype=np.dtype(np.int64))
    buffer.bind(RowSpec(n_envs=2, obs=spec, action=action, extras={}))
    buffer.add(row(number(0, 10), number(1, 11), (0, 1)))
    buffer.add(row(number(77, 11), number(78, 12), (0, 1)))
    rollout = buffer.read()

    assert_array_equal(rollout.ended, [[True, False], [True, True]])
    assert dict(zip(rollout.last_rows.tolist(), rollout.last_obs[:, 0].tolist(), strict=True)) == {0: 1, 2: 78, 3: 12}
