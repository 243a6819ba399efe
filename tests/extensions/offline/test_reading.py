"""Rows are read by slot, by position and step by step along their episode, and buffers are joined."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from tests.buffer import programs
from tests.buffer.programs import Run
from tests.buffer.reference import Row, assert_same
from tests.buffer.stream import CONTINUES, IS_TRUNCATED, TERMINATES, Stream, stacked, where
from trainkit import MixedBuffer, RolloutBuffer
from trainkit.buffer import PrioritizedReplayBuffer, ReplayBuffer
from trainkit.buffer.storage import row_spec
from trainkit.core import tree
from trainkit.core.data import ACTION_MASK, Horizon, Obs, TransitionBatch
from trainkit.core.errors import ConfigError, MissingRowError, SpaceMismatchError

KINDS: list[type[ReplayBuffer]] = [ReplayBuffer, PrioritizedReplayBuffer]
every_kind = pytest.mark.parametrize("kind", KINDS)
COLUMNS = ("env_id", "t", "episode", "terminated", "truncated")


class Reading(Run):
    """A buffer whose every row is read in every way after every operation."""

    def sample(self, batch_size: int) -> TransitionBatch:
        rows = [row for ring in self.reference.rings for row in ring]
        slots = [row.slot for row in rows]
        assert self.buffer.slots().tolist() == slots
        order = np.random.default_rng(0).permutation(len(rows))
        given_slots = np.array(slots)[order]
        self.assert_are(self.buffer.get(given_slots, COLUMNS), [rows[i] for i in order])
        self.assert_are(self.buffer[1:-1:2], rows[1:-1:2])
        if rows:
            self.assert_are(self.buffer[-1], rows[-1:])
        position = {slot: i for i, slot in enumerate(slots)}

        def next_to(step: int) -> list[int]:
            found = []
            for i, row in enumerate(rows):
                other = rows[i + step] if 0 <= i + step < len(rows) else row
                is_same = (other.env, other.episode) == (row.env, row.episode)
                found.append(other.slot if is_same else row.slot)
            return found

        assert self.buffer.prev(slots).tolist() == next_to(-1)
        assert self.buffer.next(slots).tolist() == next_to(1)
        newest = [ring[-1] for ring in self.reference.rings if ring]
        still_open = [row.slot for row in newest if self.reference.steps[row.env] > 0]
        assert self.buffer.unfinished().tolist() == still_open
        gone = sorted(self.reference.slots_ever - position.keys())[-20:]
        assert not self.buffer.is_stored(np.array(gone, np.int64)).any()
        for stack in (1, 3):
            if rows and (self.stream.stack == 1 or stack <= self.stream.stack):
                step = self.buffer.get(slots, stack=stack)
                assert_same(step.obs, stacked([self.frames(row, stack, 0) for row in rows]))
                assert_same(step.next_obs, stacked([self.frames(row, stack, 1) for row in rows]))
        return super().sample(batch_size)

    def assert_are(self, step: Any, rows: list[Row]) -> None:
        """Check every column of rows that were read."""
        assert len(step.reward) == len(rows)
        if not rows:
            return
        assert_same(step.obs, stacked([row.obs for row in rows]))
        assert_same(step.next_obs, stacked([row.next_obs for row in rows]))
        result = {
            "action": [row.action for row in rows],
            "reward": [row.reward for row in rows],
            "terminated": [row.terminated for row in rows],
            "truncated": [row.truncated for row in rows],
            "env_ids": [row.env for row in rows],
        }
        for name, values in result.items():
            assert_array_equal(getattr(step, name), values, err_msg=name)
        extras = {
            "log_prob": [row.extras["log_prob"] for row in rows],
            "hidden": [row.extras["hidden"] for row in rows],
            "t": [row.t for row in rows],
            "episode": [row.episode for row in rows],
        }
        for name, values in extras.items():
            if name in step.extras:
                assert_array_equal(step.extras[name], values, err_msg=name)

    def frames(self, row: Row, stack: int, ahead: int) -> Obs:
        """Return the last `stack` frames up to a row's observation, or the one after it, of what is stored."""
        if self.stream.stack > 1:
            whole = row.next_obs if ahead else row.obs

            def last(leaf: Any) -> Any:
                return leaf[-1] if stack == 1 else leaf[-stack:]

            obs = tree.map_tree(last, whole)
        else:
            ring = self.reference.rings[row.env]
            at = next(i for i, other in enumerate(ring) if other is row)
            line = [other.obs for other in ring[: at + 1] if other.episode == row.episode]
            line += [row.next_obs] * ahead
            padded = [line[0]] * stack + line
            if stack == 1:
                return line[-1]
            obs = tree.map_tree(lambda *leaves: np.stack(leaves), *padded[-stack:])
            whole = line[-1]
        if isinstance(obs, dict) and ACTION_MASK in obs:
            obs[ACTION_MASK] = whole[ACTION_MASK]
        return obs


@given(how=programs.settings(), data=st.data())
@settings(max_examples=20)
def test_every_row_reads_as_the_reference(how: dict[str, Any], data: st.DataObject) -> None:
    run = Reading(**how)
    for operation in data.draw(programs.operations(how["n_envs"])):
        run.do(*operation)


@every_kind
@pytest.mark.parametrize("stack", [1, 4])
def test_long_runs_that_wrap_around_read_right(kind: type[ReplayBuffer], stack: int) -> None:
    run = Reading(kind, capacity=11, n_envs=2, stack=stack)
    for length in (0, 5, 9, 3):
        run.do("run", None, 13, length)
        run.do("run", [1], 3, length)


def filled(n_steps: int = 10, n_envs: int = 2, **options: Any) -> tuple[ReplayBuffer, Stream]:
    buffer, stream = ReplayBuffer(40, n_envs=n_envs, seed=0, **options), Stream(n_envs)
    for t in range(n_steps):
        buffer.add(stream.next(ends=TERMINATES if t % 4 == 3 else CONTINUES))
    return buffer, stream


class TestWhatCannotBeRead:
    def test_a_slot_that_is_gone_or_never_was_is_named(self) -> None:
        buffer, stream = filled()
        first = buffer.slots()[:1]
        for _ in range(30):
            buffer.add(stream.next())
        with pytest.raises(
            MissingRowError, match=rf"does not hold slot {first[0]} and 1 more of the 3 given.*is_stored"
        ):
            buffer.get([first[0], buffer.slots()[0], 10**12])
        for read in (buffer.prev, buffer.next):
            with pytest.raises(MissingRowError):
                read(first)

    @pytest.mark.parametrize("index", [20, -21])
    def test_a_position_beyond_the_last_is_named(self, index: int) -> None:
        with pytest.raises(MissingRowError, match=f"no row at position {index}: it holds 20"):
            filled()[0][index]

    @pytest.mark.parametrize("index", [True, np.arange(3), [1, 2], 1.0, "obs"])
    def test_an_index_that_is_no_position_gets_the_remedy(self, index: Any) -> None:
        with pytest.raises(ConfigError, match=r"rows of slots are get\(slots\)"):
            filled()[0][index]

    def test_a_column_that_is_not_there_is_named_with_the_nearest(self) -> None:
        buffer, _ = filled()
        with pytest.raises(ConfigError, match=r"get has no column 'episodes'.*did you mean 'episode'"):
            buffer.get(buffer.slots(), columns=("episodes",))
        with pytest.raises(ConfigError, match=r"get\.stack must be a whole number >= 1, got 0"):
            buffer.get(buffer.slots(), stack=0)

    @pytest.mark.parametrize("slots", [[0.0], ["a"], [[0, 1]], None])
    def test_invalid_slots_are_rejected(self, slots: Any) -> None:
        buffer, _ = filled()
        for take in (buffer.get, buffer.prev, buffer.next, buffer.is_stored, lambda one: buffer.rewrite(one, reward=0)):
            with pytest.raises(ConfigError, match="slots must be integers"):
                take(slots)

    def test_a_buffer_that_was_never_written_to_is_empty(self) -> None:
        buffer = ReplayBuffer(10)
        assert len(buffer.slots()) == len(buffer.unfinished()) == 0
        with pytest.raises(MissingRowError):
            buffer[0]


def test_a_loop_over_a_buffer_yields_each_row_once() -> None:
    buffer, _ = filled()
    assert [step.reward.tolist() for step in buffer] == [[r] for r in buffer[:].reward.tolist()]  # type: ignore[attr-defined]


def test_walking_back_from_unfinished_rows_sums_the_returns_so_far() -> None:
    buffer, _ = filled()  # the last episodes of both environments have 2 steps: 8 and 9
    slots = buffer.unfinished()
    total = np.zeros(len(slots))
    while True:
        total += buffer.get(slots).reward
        before = buffer.prev(slots)
        if (before == slots).all():
            break
        slots = before

    assert total.tolist() == [3 + 2 * 2000, 30 + 2 * 2000]  # rewards 10**env * (1 + step) + 1000 * episode


class TestRewriting:
    def test_stored_columns_change_by_name_and_rows_that_are_gone_do_not(self) -> None:
        buffer, stream = filled()
        slots = buffer.slots()
        for _ in range(15):
            buffer.add(stream.next())
        held = buffer.is_stored(slots)
        assert 0 < held.sum() < len(held)
        buffer.rewrite(slots, reward=7.0, log_prob=np.arange(20), hidden=[5, 6])
        step = buffer.get(slots[held])

        assert_array_equal(step.extras["log_prob"], np.arange(20)[held])
        assert step.extras["log_prob"].dtype == np.float32
        assert_array_equal(step.extras["hidden"], np.broadcast_to([5, 6], (held.sum(), 2)))
        assert (step.reward == 7).all()
        assert np.count_nonzero(buffer[:].reward == 7) == held.sum()

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"reward": [1.0, 2.0]}, r"reward must be float64\[20\], or one value for all rows, got \[1.0, 2.0\]"),
            ({"reward": "x"}, r"reward must be float64\[20\]"),
            ({"reward": np.nan}, "reward must be finite"),
            ({"reward": 1.0, "hidden": np.zeros(3)}, r"hidden must be int64\[20, 2\]"),
        ],
    )
    def test_values_that_do_not_fit_are_rejected_and_nothing_changes(self, values: Any, message: str) -> None:
        buffer, _ = filled()
        rollout = RolloutBuffer()
        rollout.bind(buffer.spec)  # type: ignore[arg-type]  # it is bound
        stream = Stream(2)
        slots = np.concatenate([rollout.add(stream.next()) for _ in range(10)])
        both: list[tuple[Any, Any]] = [(buffer, buffer.slots()), (rollout, slots)]
        for own, names in both:
            before = own.get(names).reward
            with pytest.raises(ConfigError, match=message):
                own.rewrite(names, **values)
            assert_array_equal(own.get(names).reward, before)

    def test_a_column_that_is_not_stored_is_rejected(self) -> None:
        buffer, _ = filled()
        with pytest.raises(ConfigError, match="rewrite: unknown option 'log_probs', did you mean 'log_prob'"):
            buffer.rewrite(buffer.slots(), log_probs=1.0)


class TestExtending:
    def rows_of(self, buffer: ReplayBuffer) -> list[tuple[Any, ...]]:
        step = buffer[:]
        columns = (where(step.obs), where(step.next_obs), step.reward.tolist(), step.terminated.tolist())
        return sorted(zip(*columns, step.truncated.tolist(), step.extras["log_prob"].tolist(), strict=True))

    @every_kind
    @pytest.mark.parametrize(("ours", "theirs"), [(2, 2), (1, 3), (4, 1), (3, 2)])
    @pytest.mark.parametrize("stack", [1, 3])
    def test_both_buffers_rows_are_there_with_their_successors(
        self, kind: type[ReplayBuffer], ours: int, theirs: int, stack: int
    ) -> None:
        one, two = kind(200, n_envs=ours, stack=stack, seed=0), ReplayBuffer(80, n_envs=theirs, stack=stack, seed=0)
        for buffer, n_envs in ((one, ours), (two, theirs)):
            stream = Stream(n_envs, stack=stack)
            for t in range(14):
                buffer.add(stream.next(ends=(CONTINUES, TERMINATES, CONTINUES, IS_TRUNCATED)[t % 4]))
                if t % 5 == 4:
                    buffer.cut(0)
                    stream.begin([0])
        expected = sorted(self.rows_of(one) + self.rows_of(two))
        slots = one.extend(two)

        assert len(slots) == len(two)
        assert one.is_stored(slots).all()
        assert self.rows_of(one) == expected
        assert len(one.unfinished()) == 0  # nothing continues an episode of the other
        batch = one.sample(300, horizon=Horizon(n_step=3, gamma=0.5))
        for obs, after in zip(where(batch.obs), where(batch.next_obs), strict=True):
            assert obs[:2] == after[:2]  # no window joins two episodes

    def test_an_episode_cut_at_its_start_keeps_its_rows_without_stacks_alone(self) -> None:
        for stack, left in ((1, 6), (2, 4)):
            other, stream = ReplayBuffer(6, n_envs=1, stack=stack, seed=0), Stream(1, stack=stack)
            for t in range(8):
                other.add(stream.next(ends=TERMINATES if t == 3 else CONTINUES))
            buffer = ReplayBuffer(20, n_envs=1, stack=stack, seed=0)
            assert len(buffer.extend(other)) == left == len(buffer)

    def test_more_rows_than_there_is_room_for_leave_the_newest(self) -> None:
        other, _ = filled()
        buffer = ReplayBuffer(6, n_envs=1, seed=0)
        slots = buffer.extend(other)
        assert len(slots) == 20
        assert_array_equal(buffer.slots(), slots[-6:])

    def test_an_empty_buffer_adds_nothing(self) -> None:
        buffer, _ = filled()
        assert len(buffer.extend(ReplayBuffer(10))) == 0
        assert len(buffer) == 20

    def test_buffers_that_cannot_be_joined_are_rejected(self) -> None:
        buffer, _ = filled()
        with pytest.raises(ConfigError, match="extend takes another ReplayBuffer"):
            buffer.extend(buffer)
        other = ReplayBuffer(10, n_envs=1)
        other.add(Stream(1, "pixels").next())
        with pytest.raises(SpaceMismatchError, match="extend: rows have obs"):
            buffer.extend(other)


def test_a_mixed_buffer_reads_and_rewrites_rows_of_all_its_sources() -> None:
    online, _ = filled()
    demos, _ = filled(n_envs=1)
    mixed = MixedBuffer({online: 0.5, demos: 0.5}, seed=0)
    batch = mixed.sample(60, horizon=Horizon(1), columns=("t",))
    step = mixed.get(batch.slots, ("t",))
    assert_array_equal(step.obs, batch.obs)
    assert_array_equal(step.next_obs, batch.next_obs)
    assert_array_equal(step.extras["t"], batch.extras["t"])
    assert mixed.is_stored(batch.slots).all()
    assert not mixed.is_stored([10**9]).any()

    with pytest.raises(
        ConfigError, match=r"reward must be float64\[60\], or one value for all rows, got \[1.0, 2.0, 3.0\]"
    ):
        mixed.rewrite(batch.slots, reward=[1.0, 2.0, 3.0])
    mixed.rewrite(batch.slots, reward=np.arange(60), log_prob=3.0, hidden=[5, 6])
    again = mixed.get(batch.slots)
    last = {slot: i for i, slot in enumerate(batch.slots.tolist())}  # of a slot given twice the last one stays
    assert again.reward.tolist() == [last[slot] for slot in batch.slots.tolist()]
    assert (again.extras["log_prob"] == 3).all()
    assert (again.extras["hidden"] == [5, 6]).all()


def test_rows_of_a_rollout_are_read_by_slot_with_their_true_successors() -> None:
    stream = Stream(3, "dict")
    buffer = RolloutBuffer()
    first = stream.next()
    buffer.bind(row_spec(first, 3, 1))
    expected: list[tuple[int, Any, Any, float]] = []
    step = first
    for t in range(9):
        slots = buffer.add(step)
        for k, slot in enumerate(slots.tolist()):
            obs, after = (tree.map_tree(lambda leaf, k=k: leaf[k].copy(), one) for one in (step.obs, step.next_obs))
            expected.append((slot, obs, after, float(step.reward[k])))
        if t == 4:
            buffer.cut([1])
            stream.begin([1])
        step = stream.next([0, 1, 2] if t % 2 else [0, 2], TERMINATES if t % 3 == 2 else CONTINUES)
    for _ in range(2):
        order = np.random.default_rng(1).permutation(len(expected))
        read = buffer.get([expected[i][0] for i in order])
        assert_same(read.obs, stacked([expected[i][1] for i in order]))
        assert_same(read.next_obs, stacked([expected[i][2] for i in order]))
        assert read.reward.tolist() == [expected[i][3] for i in order]
        buffer.read()  # which cuts what is open: the rows are the same
    with pytest.raises(MissingRowError, match="RolloutBuffer does not hold slot"):
        buffer.get([999])
    buffer.clear()
    assert not buffer.is_stored([0, 1]).any()
