"""A stream yields what a buffer stores: every step once, in order, as copies."""

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import trainkit as tk
from tests.helpers.small_envs import Count


def make(n: int, buffer: tk.ReplayBuffer | None = None, **options: Any) -> tk.Collector:
    envs = tk.make_envs(Count, n, seed=0, **options)
    return tk.Collector(tk.RandomPolicy(envs.action_space, seed=1), envs, buffer)


def test_batches_together_are_every_row_once_in_order() -> None:
    buffer = tk.ReplayBuffer(100)
    batches = list(itertools.islice(make(3, buffer).stream(7), 4))
    # 7, 14, 21 and 28 steps, each reached by a vector step
    assert [len(batch.reward) for batch in batches] == [9, 6, 6, 9]
    names = "env_ids", "obs", "next_obs", "terminated"
    rows = [np.concatenate([getattr(batch, name) for batch in batches]) for name in names]
    env_ids, obs, following, terminated = rows
    assert_array_equal(env_ids, np.tile([0, 1, 2], 10))
    assert_array_equal(obs[:, 0], np.repeat(np.arange(10), 3))
    assert_array_equal(following, obs + 1)
    assert_array_equal(terminated, np.isin(following[:, 0], [3, 7]))  # episodes of 3 and 4 steps
    assert len(buffer) == 30


def test_the_rows_are_those_of_a_collect_and_exploration_is_a_choice() -> None:
    plain, streamed = tk.ReplayBuffer(100), tk.ReplayBuffer(100)
    make(2, plain).collect(n_step=20)
    rows = next(make(2, streamed).stream(20))
    for buffer in (plain, streamed):
        (batch,) = [buffer.sample(1_000, horizon=tk.Horizon(1, 0.9))]
        pairs = set(zip(np.asarray(batch.obs)[:, 0].tolist(), batch.reward.tolist(), strict=True))
        assert pairs == set(zip(np.asarray(rows.obs)[:, 0].tolist(), rows.reward.tolist(), strict=True))

    envs = tk.make_envs(Count, 1)
    policy = tk.DQNPolicy.for_envs(envs, hidden=(8,), exploration=tk.EpsilonGreedy(1.0), seed=1)
    collector = tk.Collector(policy, envs)
    assert set(next(collector.stream(40)).action.tolist()) == {0, 1}
    greedy = next(collector.stream(40, explore=False))
    assert_array_equal(greedy.action, policy.predict(greedy.obs))


def test_batches_are_copies_and_steps_in_advance_count() -> None:
    collector = make(8)
    stream = collector.stream(1)
    first = next(stream)
    kept = np.array(first.obs)
    second = next(stream)  # seven collects have nothing left to do
    assert_array_equal(first.obs, kept)
    assert_array_equal(np.asarray(second.obs)[:, 0], np.ones(8))
    assert collector.env_step == 16


def test_between_batches_the_collector_is_free_and_afterwards_as_before() -> None:
    collector = make(2)
    for number, rows in enumerate(collector.stream(4)):
        assert collector.recorders == []
        collector.reset()
        collector.collect(n_episode=2, explore=False)
        if number == 1:
            break
        assert len(rows.reward) == 4
    assert collector.recorders == []


def test_wrong_options_are_refused_at_once() -> None:
    collector = make(1)
    with pytest.raises(tk.ConfigError, match=r"Collector.stream.n_step must be a whole number >= 1, got 0"):
        collector.stream(0)
    with pytest.raises(tk.ConfigError, match=r"explore must be True or False or None, got 'no'"):
        next(collector.stream(1, explore="no"))  # type: ignore[arg-type]
