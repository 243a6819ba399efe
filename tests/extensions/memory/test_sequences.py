"""Sequences for recurrent policies, held against lists of rows and against what tagged environments really did."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as rules
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.buffer.programs import ALPHA, EPS, Run, operations, settings
from tests.buffer.reference import COLUMNS, Row, SlowReplay, assert_same
from tests.buffer.stream import IS_TRUNCATED, Stream
from tests.helpers.doubles import Player
from tests.helpers.tagged import decode, is_terminated, length, reward
from tests.helpers.truth import IN_PROCESS, tagged_envs
from trainkit import Collector
from trainkit.buffer import Horizon, PrioritizedReplayBuffer, ReplayBuffer, SequenceBatch, Sequences, sample_sequences
from trainkit.core import tree
from trainkit.core.config import from_plain, to_plain
from trainkit.core.data import ActOutput, ArraySpec, Obs, Transition
from trainkit.core.errors import ConfigError, EmptyBufferError

LENGTHS: list[tuple[int, int | None]] = [(1, 0), (4, 0), (3, 2), (2, 5), (6, 6), (5, None)]


class Remembering(Stream):
    """Steps that also say which state came before them: where they are."""

    def next(self, *given: Any, **options: Any) -> Transition:
        before = list(zip(range(self.n_envs), self.episode, self.step, strict=True))
        step = super().next(*given, **options)
        state = np.array([before[env] for env in step.env_ids.tolist()], np.float32)
        return step._replace(extras={**step.extras, "state": state})


class SequenceRun(Run):
    """A program whose samples are sequences."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.stream = Remembering(self.stream.n_envs, self.stream.form, self.stream.stack)
        self.n_samples = 0

    def sample(self, batch_size: int) -> Any:
        size, burn_in = LENGTHS[self.n_samples % len(LENGTHS)]
        self.n_samples += 1
        options: dict[str, Any] = {"length": size, "burn_in": burn_in, "horizon": self.horizon, "columns": COLUMNS}
        batch = sample_sequences(self.buffer, batch_size // 4, **options)
        assert_sequences_are_true(self.reference, batch, self.horizon, size, burn_in)
        if self.kind is PrioritizedReplayBuffer:
            masses = self.reference.masses(ALPHA, EPS)
            drawn = np.array([masses[slot] for slot in batch.slots.tolist()])
            smallest = drawn.min() if self.normalize == "batch" else min(masses.values())
            np.testing.assert_allclose(batch.weight, smallest / drawn, rtol=1e-6)
        return batch


def expected_rows(reference: SlowReplay, slot: int, size: int, burn_in: int | None) -> tuple[Row, dict[int, Row]]:
    """Return the first row of the sequence of a drawn slot, and its rows by position."""
    drawn = reference.living()[slot]
    episode = [row for row in reference.rings[drawn.env] if row.episode == drawn.episode]
    at, has_start = next(i for i, row in enumerate(episode) if row is drawn), episode[0].t == 0
    if burn_in is None:
        first, offset = 0, 0 if has_start else size
    elif at >= burn_in:
        first, offset = at - burn_in, 0
    else:
        first, offset = 0, burn_in if has_start else 0
    n_positions = size + (burn_in or 0)
    rows = {offset + i: row for i, row in enumerate(episode[first:]) if offset + i < n_positions}
    return episode[first], rows


def assert_sequences_are_true(
    reference: SlowReplay, batch: SequenceBatch, horizon: Horizon, size: int, burn_in: int | None
) -> None:
    """Check every number at every position of every sequence."""
    n_positions = size + (burn_in or 0)
    assert batch.valid.shape == batch.starts.shape == batch.reward.shape == (n_positions, len(batch))
    assert batch.burn_in == (burn_in or 0)
    next_obs, seen = batch.next_obs, batch.obs
    for column, slot in enumerate(batch.slots.tolist()):
        first, rows = expected_rows(reference, slot, size, burn_in)
        assert set(np.flatnonzero(batch.valid[:, column]).tolist()) == rows.keys()
        assert batch.state is not None
        np.testing.assert_array_equal(batch.state[column], first.extras["state"])
        for position, row in rows.items():
            at = position, column
            n = int(batch.extras["n"][at])
            window = reference.window(row, n)
            lo, hi = horizon.n_step if isinstance(horizon.n_step, tuple) else (horizon.n_step, horizon.n_step)
            longest = len(reference.window(row, hi))
            assert min(lo, longest) <= n <= longest
            gain = sum(horizon.gamma**i * one.reward for i, one in enumerate(window))
            np.testing.assert_allclose(batch.reward[at], gain, rtol=1e-6)
            np.testing.assert_allclose(batch.discount[at], 0 if window[-1].terminated else horizon.gamma**n, rtol=1e-6)
            assert_same(tree.map_tree(lambda leaf, at=at: leaf[at], seen), row.obs)
            assert_same(tree.map_tree(lambda leaf, at=at: leaf[at], next_obs), window[-1].next_obs)
            assert batch.action[at] == row.action
            assert batch.starts[at] == (row.t == 0)
            for name, expected in {"t": row.t, "env_id": row.env, "log_prob": row.extras["log_prob"]}.items():
                assert batch.extras[name][at] == expected
            np.testing.assert_array_equal(batch.extras["hidden"][at], row.extras["hidden"])
        resets = np.flatnonzero(batch.starts[:, column])
        assert set(resets.tolist()) <= {0, batch.burn_in}
        assert not (batch.starts & ~batch.valid)[:, column].any()


@rules(max_examples=25)
@given(settings(), st.data())
def test_sequences_are_those_of_a_list_of_rows_in_any_program(options: dict[str, Any], data: st.DataObject) -> None:
    run = SequenceRun(**options)
    for operation in data.draw(operations(options["n_envs"])):
        run.do(*operation)


@pytest.mark.one_of_each
@pytest.mark.parametrize("form", ["array", "views"])
@pytest.mark.parametrize(("stack", "n_step"), [(1, 1), (3, 3), (2, (1, 4))])
def test_sequences_are_true_while_small_rings_wrap_around(form: Any, stack: int, n_step: Any) -> None:
    run = SequenceRun(PrioritizedReplayBuffer, capacity=23, n_envs=2, stack=stack, form=form, n_step=n_step)
    for end in (0, 9, 4, 0):
        run.do("run", None, 13, end)
        run.do("learn")
        run.do("cut", [1])
        run.do("drop", [0])
        run.do("learn_late")


# ---- against environments ----


class Counter(Player):
    """A policy whose state is [env, episode, steps of it seen]: what its memory of an episode is."""

    def __init__(self) -> None:
        super().__init__()
        self.extras_spec: Mapping[str, ArraySpec] = {"state": ArraySpec(shape=(3,), dtype=np.dtype(np.float32))}

    def act(self, obs: Obs, **given: Any) -> ActOutput:
        action = super().act(obs, **given).action
        env_ids, starts = given["env_ids"], given["starts"]
        state = np.zeros((8, 3), np.float32) if given["state"] is None else given["state"].copy()
        state[env_ids[starts]] = 0.0
        before = state[env_ids]
        tags = decode(obs)
        state[env_ids] = np.stack([tags[:, 0], tags[:, 1], before[:, 2] + 1], axis=1)
        return ActOutput(action, {"state": before}, state)


def truth_of(tag: NDArray[np.int64], log: Sequence[int], n_step: int, gamma: float) -> tuple[float, float, int]:
    """Walk a window by hand: its return, its discount and the step after it."""
    env, episode, step = tag[:3].tolist()
    end = min(step + n_step, len(log))
    total = sum(gamma**i * reward(env, episode, at) for i, at in enumerate(range(step, end)))
    is_over = end == length(env, episode) and is_terminated(env, episode)
    return total, 0.0 if is_over else gamma ** (end - step), end


def assert_tagged_sequences_are_true(way: str, form: Any, n_sequences: int) -> None:
    """Sample sequences while environments step, and check every valid position against what they logged."""
    n_step, gamma = 3, 0.5
    envs = tagged_envs(way, 3, form, seed=1)
    buffer = PrioritizedReplayBuffer(120, seed=2)
    collector = Collector(Counter(), envs, buffer)
    rng, n_checked = np.random.default_rng(3), 0
    while n_checked < n_sequences:
        collector.collect(n_step=23)
        batch = sample_sequences(buffer, 100, length=4, burn_in=3, horizon=Horizon(n_step, gamma))
        logs, tags, after = envs.call("log"), decode(batch.obs), decode(batch.next_obs)
        assert batch.state is not None
        for column in range(len(batch)):
            (positions,) = np.nonzero(batch.valid[:, column])
            own = tags[positions, column]
            env, episode, step = own[0, :3].tolist()
            np.testing.assert_array_equal(np.diff(positions), 1)
            np.testing.assert_array_equal(
                own[:, :3], [[env, episode, step + i] for i in range(len(own))], err_msg="one episode, in order"
            )
            np.testing.assert_array_equal(batch.state[column], [0, 0, 0] if step == 0 else [env, episode, step])
            log = logs[env][episode]
            for position, tag in zip(positions.tolist(), own, strict=True):
                at = position, column
                total, discount, end = truth_of(tag, log, n_step, gamma)
                assert (batch.reward[at], batch.discount[at], batch.action[at]) == (total, discount, log[tag[2]])
                assert batch.starts[at] == (tag[2] == 0)
                np.testing.assert_array_equal(after[at], [env, episode, end, log[end - 1]])
            n_checked += 1
        buffer.update_priorities(batch.slots, rng.random(len(batch)))
    collector.close()


@pytest.mark.one_of_each
@pytest.mark.parametrize("way", IN_PROCESS)
@pytest.mark.parametrize("form", ["array", "dict", "masked"])
def test_sequences_are_what_environments_did_in_every_autoreset_mode(way: str, form: Any) -> None:
    assert_tagged_sequences_are_true(way, form, 100)


@pytest.mark.slow
@pytest.mark.parametrize("way", IN_PROCESS)
def test_no_number_of_a_hundred_thousand_sequences_is_wrong(way: str) -> None:
    assert_tagged_sequences_are_true(way, "array", 25_000)


# ---- worked by hand ----


def eleven_steps(**options: Any) -> tuple[ReplayBuffer, NDArray[np.int64]]:
    """Return a buffer of one environment with an episode of 6 steps and 5 of the next, and their slots."""
    buffer, stream = ReplayBuffer(20, seed=1, **options), Stream(1)
    slots = [buffer.add(stream.next(ends=IS_TRUNCATED if step == 5 else 0)) for step in range(11)]
    return buffer, np.concatenate(slots)


def positions_of(batch: SequenceBatch, slot: int) -> list[int | None]:
    """Return the step that is at each position of the sequence of a slot, None where none is."""
    column = int(np.flatnonzero(batch.slots == slot)[0])
    steps, valid = batch.obs[:, column, 2].astype(int), batch.valid[:, column]
    return [step if is_there else None for step, is_there in zip(steps.tolist(), valid.tolist(), strict=True)]


def test_rows_before_the_drawn_one_are_burnt_in_except_where_the_episode_starts() -> None:
    buffer, slots = eleven_steps()
    batch = sample_sequences(buffer, 200, length=3, burn_in=2, horizon=Horizon())
    assert positions_of(batch, slots[0]) == [None, None, 0, 1, 2]
    assert positions_of(batch, slots[1]) == [None, None, 0, 1, 2]
    assert positions_of(batch, slots[2]) == [0, 1, 2, 3, 4]
    assert positions_of(batch, slots[4]) == [2, 3, 4, 5, None]
    assert positions_of(batch, slots[10]) == [2, 3, 4, None, None]
    assert batch.starts[2, batch.slots == slots[0]].all()
    assert batch.starts[0, batch.slots == slots[2]].all()
    assert batch.state is None


def test_sequences_begin_with_their_episodes_without_a_burn_in() -> None:
    buffer, slots = eleven_steps()
    batch = sample_sequences(buffer, 200, length=4, burn_in=None, horizon=Horizon())
    for slot in slots:
        assert positions_of(batch, slot) == [0, 1, 2, 3]


def test_an_episode_without_its_oldest_rows_is_learned_from_after_the_burn_in_only() -> None:
    buffer, stream = ReplayBuffer(5, seed=1), Stream(1)
    slots = np.concatenate([buffer.add(stream.next()) for _ in range(9)])  # 4 to 8 are left
    batch = sample_sequences(buffer, 100, length=2, burn_in=3, horizon=Horizon())
    assert positions_of(batch, slots[4]) == [4, 5, 6, 7, 8]
    assert positions_of(batch, slots[8]) == [5, 6, 7, 8, None]
    assert not batch.starts.any()
    whole = sample_sequences(buffer, 10, length=2, burn_in=None, horizon=Horizon())
    assert not whole.valid.any()


def test_the_true_final_observation_follows_the_last_row() -> None:
    buffer, slots = eleven_steps()
    batch = sample_sequences(buffer, 100, length=4, burn_in=0, horizon=Horizon(3, 0.5))
    column = int(np.flatnonzero(batch.slots == slots[4])[0])
    assert batch.after[:2, column].tolist() == [2, 2]
    assert batch.next_obs[:2, column].tolist() == [[0, 0, 6], [0, 0, 6]]
    assert batch.discount[:2, column].tolist() == [0.25, 0.5]


def test_a_copy_owns_its_arrays() -> None:
    batch = sample_sequences(eleven_steps()[0], 3, length=4, burn_in=2, horizon=Horizon(2), columns=["t"])
    again = batch.copy()
    for name in SequenceBatch.__slots__:
        own, theirs = getattr(batch, name), getattr(again, name)
        for left, right in zip(tree.leaves(own), tree.leaves(theirs), strict=True):
            np.testing.assert_array_equal(left, right)
            assert not np.shares_memory(left, right) or not isinstance(left, np.ndarray)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "length must be a whole number >= 1, got 0"),
        ({"length": 2, "burn_in": -1}, "burn_in must be a whole number >= 0, got -1"),
        ({"length": 2, "horizon": None}, "needs a horizon"),
        ({"length": 2, "columns": ["stat"]}, "has no column 'stat'"),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sample_sequences(eleven_steps()[0], 2, **{"horizon": Horizon(), **options})


def test_an_empty_buffer_has_no_sequences() -> None:
    with pytest.raises(EmptyBufferError, match="is empty"):
        sample_sequences(ReplayBuffer(5), 1, length=1, horizon=Horizon())


def test_sequences_are_described_in_files_by_their_arguments_and_the_extension() -> None:
    part = Sequences(20, None, False, 0.5)
    of = {"length": 20, "burn_in": None, "stored_state": False, "eta": 0.5}
    assert to_plain(part) == {"part": "Sequences", "extension": "memory", "of": of}
    assert from_plain({"part": "Sequences", "of": of}) == from_plain(to_plain(part)) == part
