"""Rows lie where they should: rings of exact capacity, observations stored once, slots used once."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from tests.buffer.stream import CONTINUES, IS_TRUNCATED, TERMINATES, Stream, where
from trainkit.buffer import PrioritizedReplayBuffer, ReplayBuffer
from trainkit.core.data import ArraySpec, Horizon, RowSpec, Transition
from trainkit.core.errors import ConfigError, MissingRowError

ONE = Horizon(1)


def everything(buffer: ReplayBuffer) -> set[tuple[int, int, int]]:
    """Return (env, episode, step) of every row that can be drawn."""
    return set(where(buffer.sample(100 * len(buffer), horizon=ONE).obs))


@pytest.mark.parametrize(("capacity", "n_envs"), [(1, 1), (7, 1), (9, 3), (10, 3), (11, 3), (4, 4)])
def test_a_full_buffer_holds_exactly_its_capacity_shared_evenly(capacity: int, n_envs: int) -> None:
    buffer, stream = ReplayBuffer(capacity, seed=1), Stream(n_envs)
    for t in range(3 * capacity):
        buffer.add(stream.next())
        assert len(buffer) == min(capacity, (t + 1) * n_envs)
    newest = 3 * capacity - 1
    share = [capacity // n_envs + (env < capacity % n_envs) for env in range(n_envs)]
    assert everything(buffer) == {(env, 0, newest - back) for env in range(n_envs) for back in range(share[env])}


def test_an_environment_that_steps_more_often_does_not_push_out_the_others() -> None:
    buffer, stream = ReplayBuffer(6, n_envs=2, seed=1), Stream(2)
    buffer.add(stream.next())
    for _ in range(10):
        buffer.add(stream.next([1]))
    assert everything(buffer) == {(0, 0, 0), (1, 0, 8), (1, 0, 9), (1, 0, 10)}


def test_every_row_is_drawn_equally_often_whatever_the_lengths_of_the_rings() -> None:
    buffer, stream = ReplayBuffer(40, n_envs=3, seed=1), Stream(3)
    for env_ids in [[0, 1, 2], [0], [0, 2], [2], [2]] * 3:
        buffer.add(stream.next(env_ids))
    _, counts = np.unique(buffer.sample(30_000, horizon=ONE).slots, return_counts=True)
    expected = 30_000 / len(buffer)
    assert len(counts) == len(buffer) == 24
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 49.7  # 23 degrees of freedom, 1 in 1,000


DTYPES = (
    "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 complex64 datetime64[s]".split()
)


@pytest.mark.parametrize("shape", [(), (2, 1, 2)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_shape_comes_back_as_it_went_in(dtype: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    values = (
        rng.integers(0, 2, (9, 2, *shape)).astype(dtype) if dtype == "bool" else rng.integers(0, 100, (9, 2, *shape))
    )
    rows = values.astype(dtype)  # [T + 1, N, ...]
    buffer, slots = ReplayBuffer(16, seed=1), []
    for t in range(8):
        flags = np.full(2, t == 5)
        slots.append(
            buffer.add(
                Transition(
                    rows[t], rows[t], np.zeros(2), rows[t + 1], flags, flags, np.arange(2), {"extra": rows[t + 1]}
                )
            )
        )
    batch = buffer.sample(64, horizon=ONE, columns=["extra"])
    t, env = (np.array([np.argwhere(np.array(slots) == slot)[0] for slot in batch.slots])).T
    for ours, theirs in [
        (batch.obs, rows[t, env]),
        (batch.action, rows[t, env]),
        (batch.next_obs, rows[t + 1, env]),
        (batch.extras["extra"], rows[t + 1, env]),
    ]:
        assert ours.dtype == np.dtype(dtype)
        assert_array_equal(ours, theirs, strict=True)


def test_the_observation_after_an_end_is_the_episodes_own_not_the_next_ones_first() -> None:
    buffer, stream = ReplayBuffer(20, seed=1), Stream(2)
    for ends in [CONTINUES, [TERMINATES, CONTINUES], CONTINUES, [CONTINUES, IS_TRUNCATED], CONTINUES]:
        buffer.add(stream.next(ends=ends))
    batch = buffer.sample(300, horizon=ONE)
    after = {(env, episode, step + 1) for env, episode, step in where(batch.obs)}
    assert set(where(batch.next_obs)) == after
    assert {(0, 0, 2), (1, 0, 4)} <= after


def test_the_newest_row_already_knows_its_next_observation() -> None:
    buffer, stream = ReplayBuffer(3, seed=1), Stream(1)
    for step in range(8):
        buffer.add(stream.next())
        batch = buffer.sample(50, horizon=ONE)
        assert (0, 0, step + 1) in where(batch.next_obs)


def test_a_stack_repeats_its_episodes_first_frame_before_it_began() -> None:
    buffer, stream = ReplayBuffer(10, stack=3, seed=1), Stream(1, stack=3)
    for ends in [CONTINUES, TERMINATES, CONTINUES, CONTINUES, CONTINUES]:
        buffer.add(stream.next(ends=ends))
    batch = buffer.sample(200, horizon=ONE)
    steps = {tuple(map(tuple, stack[:, 1:].astype(int).tolist())) for stack in batch.obs}
    assert steps == {
        ((0, 0), (0, 0), (0, 0)),
        ((0, 0), (0, 0), (0, 1)),
        ((1, 0), (1, 0), (1, 0)),
        ((1, 0), (1, 0), (1, 1)),
        ((1, 0), (1, 1), (1, 2)),
    }
    ended = batch.next_obs[np.array(where(batch.obs))[:, 1:].tolist().index([0, 1])]
    assert_array_equal(ended[:, 1:], [(0, 0), (0, 1), (0, 2)])


def test_the_oldest_rows_stack_reaches_behind_the_tail() -> None:
    buffer, stream = ReplayBuffer(5, stack=4, seed=1), Stream(1, stack=4)
    for _ in range(23):
        buffer.add(stream.next())
    batch = buffer.sample(200, horizon=ONE)
    assert set(where(batch.obs)) == {(0, 0, step) for step in range(18, 23)}
    newest = batch.obs[:, -1, 2]
    assert_array_equal(batch.obs[:, :, 2], newest[:, None] + np.arange(-3, 1))
    assert_array_equal(batch.next_obs[:, :, 2], newest[:, None] + np.arange(-2, 2))


def test_a_slot_is_never_used_twice() -> None:
    buffer, stream = ReplayBuffer(7, n_envs=2, seed=1), Stream(2)
    seen: set[int] = set()
    for round_ in range(60):
        env_ids = [[0, 1], [1], [0]][round_ % 3]
        slots = buffer.add(stream.next(env_ids)).tolist()
        assert seen.isdisjoint(slots)
        seen.update(slots)
        if round_ % 10 == 5:
            buffer.drop([1])
            stream.begin([1])
        if round_ == 30:
            buffer.clear()
            stream.begin([0, 1])
    assert set(buffer.sample(200, horizon=ONE).slots.tolist()) <= seen


def test_a_slot_names_its_row_until_it_is_overwritten_or_dropped_or_cleared() -> None:
    buffer, stream = ReplayBuffer(4, n_envs=2, seed=1), Stream(2)
    first = buffer.add(stream.next())
    buffer.add(stream.next([0]))
    buffer.add(stream.next([0]))  # pushes the first row of environment 0 out
    second = buffer.add(stream.next([1]))
    buffer.rewrite(first, reward=[-1.0, -2.0])
    assert set(buffer.sample(100, horizon=ONE).reward.tolist()) == {2.0, 3.0, -2.0, 20.0}
    buffer.drop(1)
    buffer.add(stream.next([1]))
    buffer.rewrite(second, reward=-3.0)
    assert -3.0 not in buffer.sample(100, horizon=ONE).reward
    newest = buffer.add(stream.next())
    buffer.clear()
    buffer.add(stream.next())
    buffer.rewrite(newest, reward=-4.0)
    assert -4.0 not in buffer.sample(100, horizon=ONE).reward


@pytest.mark.parametrize("slot", [*range(-6, 0), 10**15])
def test_a_slot_that_was_never_given_names_nothing(slot: int) -> None:
    buffer, stream = PrioritizedReplayBuffer(4, seed=1), Stream(1)
    given = buffer.add(stream.next())
    buffer.rewrite(np.array([slot]), reward=-1.0)
    with pytest.raises(MissingRowError):
        buffer.update_priorities(np.array([slot]), np.array([9.0]))
    batch = buffer.sample(50, horizon=ONE)
    assert_array_equal(batch.slots, np.repeat(given, 50))
    assert_array_equal(batch.reward, 1.0)


def test_a_step_of_no_environment_stores_nothing() -> None:
    buffer, stream = ReplayBuffer(8, seed=1), Stream(2)
    step = stream.next()
    buffer.add(step)
    nothing = Transition(
        *(column[:0] for column in step[:-1]), {name: column[:0] for name, column in step.extras.items()}
    )
    assert buffer.add(nothing).shape == (0,)
    buffer.add(stream.next())
    assert everything(buffer) == {(env, 0, step) for env in range(2) for step in range(2)}


@pytest.mark.parametrize("ids", [[1, 0], [0, 0], [0, 2], [-1, 0], [1, 1, 1]])
def test_ids_that_do_not_rise_within_the_environments_are_refused(ids: list[int]) -> None:
    buffer, stream = ReplayBuffer(8, seed=1), Stream(3)
    buffer.add(stream.next([0, 1]))
    rows = stream.next(sorted({0, 1, 2})[: len(ids)])
    with pytest.raises(ConfigError, match=r"env_ids must rise within \[0, 2\), got \["):
        buffer.add(rows._replace(env_ids=np.array(ids)))
    assert len(buffer) == 2


@pytest.mark.parametrize("ids", [[0.0, 1.0], [True, False], [[1, 0]], 1])
def test_ids_that_are_not_integers_are_refused(ids: Any) -> None:
    buffer, stream = ReplayBuffer(8, seed=1), Stream(2)
    buffer.add(stream.next())
    with pytest.raises(ConfigError, match=r"env_ids must be integers \[K\], got .*: "):
        buffer.add(stream.next()._replace(env_ids=np.array(ids)))
    assert len(buffer) == 2


def test_ids_may_be_a_list() -> None:
    buffer, stream = ReplayBuffer(8, seed=1), Stream(2)
    for ids in ([0, 1], [1]):
        buffer.add(stream.next(ids)._replace(env_ids=ids))  # type: ignore[arg-type]  # what users pass
    assert everything(buffer) == {(0, 0, 0), (1, 0, 0), (1, 0, 1)}


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
def test_ids_may_be_of_any_whole_dtype(dtype: type[Any]) -> None:
    buffer, stream = ReplayBuffer(8, seed=1), Stream(2)
    for _ in range(3):
        step = stream.next()
        buffer.add(step._replace(env_ids=step.env_ids.astype(dtype)))
    assert everything(buffer) == {(env, 0, step) for env in range(2) for step in range(3)}


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float16, np.float32, np.float64])
def test_flags_of_any_dtype_end_an_episode(dtype: type[Any]) -> None:
    buffer, stream = ReplayBuffer(8, seed=1), Stream(2)
    for ends in ([CONTINUES, CONTINUES], [TERMINATES, CONTINUES], [CONTINUES, IS_TRUNCATED]):
        step = stream.next(ends=ends)
        flags = {"terminated": step.terminated.astype(dtype), "truncated": step.truncated.astype(dtype)}
        buffer.add(step._replace(**flags))
    episodes = [(len(episode), episode.terminated, episode.truncated) for episode in buffer.episodes()]
    assert episodes == [(2, True, False), (1, False, False), (3, False, True)]


@pytest.mark.parametrize("dtype", [np.uint64, np.uint32, np.int32])
def test_slots_may_be_of_any_whole_dtype(dtype: type[Any]) -> None:
    buffer = PrioritizedReplayBuffer(8, alpha=1.0)
    slots = buffer.add(Stream(2).next())
    buffer.update_priorities(slots.astype(dtype), np.array([3.0, 4.0]))
    buffer.rewrite(slots.astype(dtype), reward=[5.0, 6.0])
    np.testing.assert_allclose(buffer.priorities(), [3.0, 4.0])
    assert [episode.reward.tolist() for episode in buffer.episodes()] == [[5.0], [6.0]]


def test_episodes_are_numbered_by_environment_and_dropped_ones_are_not_counted() -> None:
    buffer, stream = ReplayBuffer(50, seed=1), Stream(2)
    buffer.add(stream.next(ends=[TERMINATES, CONTINUES]))
    buffer.add(stream.next())
    assert buffer.drop([0, 1]) == 3
    assert buffer.drop([0, 1]) == 0
    stream.begin([0, 1])
    buffer.cut([0, 1])  # nothing is open
    buffer.add(stream.next())
    batch = buffer.sample(60, horizon=ONE, columns=["episode", "env_id", "t"])
    expected = {
        tuple(row) for row in np.stack([batch.extras[name] for name in ("env_id", "episode", "t")], axis=1).tolist()
    }
    assert expected == {(0, 0, 0), (0, 1, 0), (1, 0, 0)}


def test_dropping_an_episode_longer_than_the_ring_leaves_nothing_of_it() -> None:
    buffer, stream = ReplayBuffer(6, stack=2, seed=1), Stream(1, stack=2)
    buffer.add(stream.next(ends=TERMINATES))
    for _ in range(9):
        buffer.add(stream.next())
    assert buffer.drop(0) == 6
    assert len(buffer) == 0
    stream.begin([0])
    buffer.add(stream.next())
    assert everything(buffer) == {(0, 2, 0)}


# ---- memory ----


def atari_like(n_steps: int, capacity: int, mean_length: int) -> PrioritizedReplayBuffer:
    """Fill a buffer with 84x84 frames, stacks of 4, from 8 environments with episodes of random length."""
    rng = np.random.default_rng(0)
    buffer = PrioritizedReplayBuffer(capacity, seed=1)
    frame = ArraySpec(shape=(84, 84), dtype=np.dtype(np.uint8), stack=4)
    buffer.bind(RowSpec(n_envs=8, obs=frame, action=ArraySpec(shape=(), dtype=np.dtype(np.int64)), extras={}))
    obs, nothing = np.zeros((8, 4, 84, 84), np.uint8), np.zeros(8, np.bool_)
    for _ in range(n_steps // 8):
        ends = rng.random(8) < 1 / mean_length
        buffer.add(Transition(obs, np.zeros(8, np.int64), np.zeros(8), obs, ends, nothing, np.arange(8), {}))
    return buffer


def test_ten_thousand_stacks_of_frames_cost_72_megabytes() -> None:
    buffer = atari_like(n_steps=12_000, capacity=10_000, mean_length=200)
    assert len(buffer) == 10_000
    assert 84 * 84 * 10_000 < buffer.nbytes <= 72e6


def test_memory_is_claimed_at_binding_and_flat_once_the_ring_has_wrapped() -> None:
    claimed = atari_like(n_steps=0, capacity=2_000, mean_length=20).nbytes
    full = atari_like(n_steps=6_000, capacity=2_000, mean_length=20).nbytes
    later = atari_like(n_steps=20_000, capacity=2_000, mean_length=20).nbytes
    assert full < 1.12 * claimed  # the true final observations
    assert later < 1.02 * full


def test_the_stack_costs_no_memory() -> None:
    sizes = []
    for stack in (1, 4):
        buffer, stream = ReplayBuffer(1000, stack=stack), Stream(1, "pixels", stack)
        buffer.add(stream.next())
        sizes.append(buffer.nbytes)
    assert sizes[1] < 1.01 * sizes[0]


def test_final_observations_are_given_back_when_their_rows_die() -> None:
    buffer, stream = ReplayBuffer(20, seed=1), Stream(2)
    for _ in range(30):
        buffer.add(stream.next(ends=TERMINATES))
    before = buffer.nbytes
    for round_ in range(300):
        buffer.add(stream.next(ends=TERMINATES))
        if round_ % 50 == 0:
            buffer.clear()
    assert buffer.nbytes == before


@pytest.mark.parametrize("batch_size", [8, 32])
def test_a_batch_stays_as_it_is_until_the_second_next_sample(batch_size: int) -> None:
    buffer, stream = ReplayBuffer(50, seed=1), Stream(2)
    for t in range(20):
        step = stream.next(ends=TERMINATES if t % 5 == 4 else CONTINUES)
        large = [np.broadcast_to(obs[:, 2, None, None], (2, 64, 64)).copy() for obs in (step.obs, step.next_obs)]
        buffer.add(step._replace(obs=large[0], next_obs=large[1]))

    def parts(batch: Any) -> list[NDArray[Any]]:
        return [batch.obs, batch.next_obs]

    held = buffer.sample(batch_size, horizon=ONE)
    for _ in range(5):
        kept = [part.copy() for part in parts(held)]
        newer = buffer.sample(batch_size, horizon=ONE)
        copied = newer.copy()
        for part, before in zip(parts(held), kept, strict=True):
            assert_array_equal(part, before)
        for part in parts(newer):
            assert not any(np.shares_memory(part, other) for other in [*parts(held), *parts(copied)])
        held = newer
