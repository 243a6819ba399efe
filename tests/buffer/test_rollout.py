"""The rows of one collect: packed per environment, cut where they are open, forgotten after."""

from collections.abc import Mapping
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray

from tests.helpers.doubles import Ledger, Player
from tests.helpers.tagged import decode, is_terminated, is_truncated, length, reward
from tests.helpers.truth import IN_PROCESS, tagged_envs
from trainkit import Collector, ConfigError, Horizon, RolloutBuffer, Transition
from trainkit.buffer import Rollout
from trainkit.core import tree
from trainkit.core.data import ArraySpec, RowSpec
from trainkit.errors import EmptyBufferError

FLOAT = np.dtype(np.float32)
SPEC = RowSpec(
    n_envs=3,
    obs=ArraySpec(shape=(2,), dtype=FLOAT),
    action=ArraySpec(shape=(), dtype=np.dtype(np.int64)),
    extras={"log_prob": ArraySpec(shape=(), dtype=FLOAT)},
)


def bound(spec: RowSpec = SPEC) -> RolloutBuffer:
    buffer = RolloutBuffer()
    buffer.bind(spec)
    return buffer


def rows(env_ids: list[int], at: list[int], *, terminated: Any = (), truncated: Any = ()) -> Transition:
    """Make one row per environment: the observation is (environment, time), the reward 10 ** environment."""
    ids, time = np.array(env_ids, np.intp), np.array(at)
    return Transition(
        obs=np.stack([ids, time], axis=1).astype(np.float32),
        action=ids * 100 + time,
        reward=10.0**ids,
        next_obs=np.stack([ids, time + 1], axis=1).astype(np.float32),
        terminated=np.isin(ids, terminated),
        truncated=np.isin(ids, truncated),
        env_ids=ids,
        extras={"log_prob": -(ids * 100.0 + time).astype(np.float32)},
    )


def lasts(rollout: Rollout) -> dict[int, list[float]]:
    """Return {row: observation after it} of the rows to bootstrap from."""
    return dict(zip(rollout.last_rows.tolist(), rollout.last_obs.tolist(), strict=True))


class TestPacking:
    def test_each_environments_rows_lie_without_gaps(self) -> None:
        buffer = bound()
        slots = [buffer.add(rows([0, 1, 2], [0, 0, 0])), buffer.add(rows([1], [1])), buffer.add(rows([1, 2], [2, 1]))]
        rollout = buffer.read()
        assert [own.tolist() for own in slots] == [[0, 1, 2], [4], [7, 5]]  # t * 3 + n
        assert rollout.n_rows.tolist() == [1, 3, 2]
        assert rollout.is_row.tolist() == [[True, True, True], [False, True, True], [False, True, False]]
        assert len(rollout) == len(buffer) == 6
        for env, count in enumerate([1, 3, 2]):
            assert rollout.obs[:count, env].tolist() == [[env, t] for t in range(count)]
            assert rollout.action[:count, env].tolist() == [env * 100 + t for t in range(count)]
            assert rollout.extras["log_prob"][:count, env].tolist() == [-(env * 100 + t) for t in range(count)]
            assert rollout.reward[:count, env].tolist() == [10.0**env] * count

    def test_columns_grow_and_keep_what_is_there(self) -> None:
        buffer = bound()
        for t in range(200):
            buffer.add(rows([0, 2], [t, t]))
        rollout = buffer.read()
        assert rollout.reward.shape == (200, 3)
        for env in (0, 2):
            np.testing.assert_array_equal(rollout.obs[:, env, 1], np.arange(200))
            np.testing.assert_array_equal(rollout.action[:, env], env * 100 + np.arange(200))
            np.testing.assert_array_equal(rollout.extras["log_prob"][:, env], -(env * 100.0 + np.arange(200)))
        assert rollout.ended.sum() == 2
        assert lasts(rollout) == {199 * 3: [0, 200], 199 * 3 + 2: [2, 200]}

    def test_one_row_more_than_there_is_room_for_grows_it_once(self) -> None:
        buffer = bound()
        for t in range(64):
            buffer.add(rows([0], [t]))
        claimed = buffer.nbytes
        assert claimed > 0
        buffer.add(rows([0], [64]))
        assert buffer.nbytes == 2 * claimed
        buffer.clear()
        assert buffer.nbytes == 2 * claimed


class TestEnds:
    def test_a_termination_ends_without_a_bootstrap_a_truncation_and_a_cut_with_one(self) -> None:
        buffer = bound()
        buffer.add(rows([0, 1, 2], [0, 0, 0], terminated=[0], truncated=[1]))
        rollout = buffer.read()
        assert rollout.terminated.tolist() == [[True, False, False]]
        assert rollout.ended.tolist() == [[True, True, True]]
        assert lasts(rollout) == {1: [1, 1], 2: [2, 1]}

    def test_both_flags_end_without_a_bootstrap(self) -> None:
        buffer = bound()
        buffer.add(rows([0], [0], terminated=[0], truncated=[0]))
        rollout = buffer.read()
        assert rollout.terminated[0, 0]
        assert rollout.ended[0, 0]
        assert lasts(rollout) == {}
        assert rollout.last_obs.shape == (0, 2)

    def test_a_row_in_the_middle_of_an_episode_does_not_end(self) -> None:
        buffer = bound()
        buffer.add(rows([0], [0]))
        buffer.add(rows([0], [1]))
        rollout = buffer.read()
        assert rollout.ended[:, 0].tolist() == [False, True]
        assert lasts(rollout) == {3: [0, 2]}

    def test_a_cut_ends_the_episodes_it_names_and_those_only_once(self) -> None:
        buffer = bound()
        buffer.add(rows([0, 1, 2], [0, 0, 0], terminated=[2]))
        buffer.cut([0, 2])
        buffer.cut(0)
        buffer.add(rows([0, 1, 2], [7, 1, 5]))
        rollout = buffer.read()
        assert rollout.ended.tolist() == [[True, False, True], [True, True, True]]
        assert lasts(rollout) == {0: [0, 1], 3: [0, 8], 4: [1, 2], 5: [2, 6]}
        assert len(rollout.last_rows) == 4

    def test_reading_twice_gives_the_same(self) -> None:
        buffer = bound()
        buffer.add(rows([0, 1, 2], [0, 0, 0], truncated=[1]))
        one, two = buffer.read(), buffer.read()
        assert lasts(one) == lasts(two)
        assert len(one.last_rows) == len(two.last_rows) == 3

    def test_an_episode_that_continues_in_the_next_rollout_leaves_nothing_of_the_last(self) -> None:
        buffer = bound()
        for t in range(3):
            buffer.add(rows([0, 1, 2], [t, t, t], terminated=[1] if t == 1 else []))
        buffer.read()
        buffer.clear()
        assert len(buffer) == 0
        buffer.add(rows([0, 1], [3, 3]))
        buffer.add(rows([0, 1], [4, 4]))
        rollout = buffer.read()
        assert rollout.n_rows.tolist() == [2, 2, 0]
        assert rollout.obs[:, 0].tolist() == [[0, 3], [0, 4]]
        assert rollout.terminated[:, 1].tolist() == [False, False]
        assert rollout.ended[:, :2].tolist() == [[False, False], [True, True]]
        assert lasts(rollout) == {3: [0, 5], 4: [1, 5]}


class TestRewards:
    @pytest.mark.parametrize(
        ("rule", "expected"),
        [
            (None, [-3.0, 0.0, 0.5]),
            ("sign", [-1.0, 0.0, 1.0]),
            ((-1.0, 0.25), [-1.0, 0.0, 0.25]),
            (2.0, [-6.0, 0.0, 1.0]),
            (0, [0.0, 0.0, 0.0]),
        ],
    )
    def test_are_shaped_by_the_horizons_rule_and_stay_as_they_were_inside(self, rule: Any, expected: Any) -> None:
        buffer = bound()
        slots = buffer.add(rows([0, 1, 2], [0, 0, 0]))
        buffer.rewrite(slots, reward=[-3.0, 0.0, 0.5])
        for _ in range(2):
            rollout = buffer.read(Horizon(reward=rule))
            assert rollout.reward.tolist() == [expected]
            assert rollout.reward.dtype == np.float32
        assert buffer.read().reward.tolist() == [[-3.0, 0.0, 0.5]]

    def test_a_function_sees_the_columns_and_the_policys_own(self) -> None:
        def rule(columns: Mapping[str, Any]) -> NDArray[Any]:
            assert columns["obs"].shape == (1, 6, 2)
            return columns["reward"] + columns["action"] + columns["log_prob"] + 1000.0 * columns["terminated"]

        buffer = bound()
        buffer.add(rows([0, 1, 2], [0, 0, 0], terminated=[1]))
        buffer.add(rows([0, 1, 2], [1, 1, 1]))
        assert buffer.read(Horizon(reward=rule)).reward.tolist() == [[1, 1010, 100], [1, 10, 100]]

    def test_a_function_sees_rows_only_and_the_same_columns_as_in_replay(self) -> None:
        seen: dict[str, Any] = {}

        def rule(columns: Mapping[str, Any]) -> NDArray[Any]:
            seen.update(columns)
            return columns["reward"]

        buffer = bound()
        buffer.add(rows([0, 1, 2], [0, 0, 0], truncated=[1], terminated=[2]))
        buffer.add(rows([0], [1]))
        rollout = buffer.read(Horizon(reward=rule))
        assert {"obs", "next_obs", "action", "reward", "terminated", "truncated", "t", "log_prob"} == set(seen)
        assert seen["obs"].tolist() == [[[0, 0], [1, 0], [2, 0], [0, 1]]]
        assert seen["next_obs"].tolist() == [[[0, 1], [1, 1], [2, 1], [0, 2]]]
        assert seen["truncated"].tolist() == [[False, True, False, False]]
        assert rollout.reward.tolist() == [[1, 10, 100], [1, 0, 0]]  # padding stays 0

    def test_steps_are_counted_from_the_episodes_beginning_across_rollouts(self) -> None:
        def t(columns: Mapping[str, Any]) -> NDArray[Any]:
            counted: NDArray[Any] = columns["t"]
            return counted

        buffer = bound()
        for time in range(2):
            buffer.add(rows([0, 1, 2], [time] * 3))
        buffer.add(rows([0, 1, 2], [2, 2, 2], terminated=[1], truncated=[2]))
        assert buffer.read(Horizon(reward=t)).reward.tolist() == [[0, 0, 0], [1, 1, 1], [2, 2, 2]]
        buffer.clear()
        buffer.add(rows([0, 1, 2], [3, 3, 3]))
        assert buffer.read(Horizon(reward=t)).reward.tolist() == [[3, 0, 0]]
        buffer.clear()
        buffer.cut([0])  # a reset between rollouts
        buffer.add(rows([0, 1, 2], [4, 4, 4]))
        assert buffer.read(Horizon(reward=t)).reward.tolist() == [[0, 1, 1]]

    def test_a_function_of_the_wrong_shape_is_refused(self) -> None:
        buffer = bound()
        buffer.add(rows([0], [0]))
        with pytest.raises(ConfigError, match=r"one reward per row \[1, 1\], got \(1,\)"):
            buffer.read(Horizon(reward=lambda columns: np.zeros(1)))

    def test_can_be_rewritten_by_slot(self) -> None:
        buffer = bound()
        buffer.add(rows([0, 1], [0, 0]))
        slots = buffer.add(rows([1, 2], [1, 0]))
        buffer.rewrite(slots, reward=[7.0, 8.0])
        rollout = buffer.read()
        assert rollout.reward[:1].tolist() == [[1, 10, 8]]
        assert rollout.reward[1, 1] == 7


class TestBinding:
    def test_twice_is_allowed_with_an_equal_spec_only(self) -> None:
        buffer = bound()
        buffer.add(rows([0], [0]))
        buffer.bind(SPEC)
        assert len(buffer) == 1
        with pytest.raises(ConfigError, match=r"RolloutBuffer holds rows of .* use a new buffer"):
            buffer.bind(RowSpec(n_envs=4, obs=SPEC.obs, action=SPEC.action, extras=SPEC.extras))

    def test_must_come_before_writing(self) -> None:
        with pytest.raises(ConfigError, match="RolloutBuffer must be bound before it is written to"):
            RolloutBuffer().add(rows([0], [0]))

    def test_an_unbound_one_can_be_cut_cleared_and_counted(self) -> None:
        buffer = RolloutBuffer()
        buffer.cut([0])
        buffer.clear()
        assert (len(buffer), buffer.nbytes, buffer.metrics(0), buffer.state_dict()) == (0, 0, {}, {})
        assert repr(buffer) == "RolloutBuffer(0 rows, 0 bytes)"

    def test_an_empty_one_cannot_be_read(self) -> None:
        cleared = bound()
        cleared.add(rows([0], [0]))
        cleared.clear()
        for buffer in (RolloutBuffer(), bound(), cleared):
            with pytest.raises(EmptyBufferError, match="RolloutBuffer is empty: collect before learning"):
                buffer.read()

    def test_a_loaded_buffer_has_the_rows_and_continues_with_their_episodes(self) -> None:
        saved, loaded = bound(), bound()
        loaded.add(rows([0, 1, 2], [50, 50, 50]))  # of another run
        saved.add(rows([0, 1, 2], [0, 0, 0]))
        saved.clear()  # their episodes continue
        saved.add(rows([0, 1], [1, 1], terminated=[1]))
        loaded.load_state_dict(saved.state_dict())
        assert len(loaded) == 2
        loaded.add(rows([0, 2], [2, 1]))
        rollout = loaded.read()
        np.testing.assert_array_equal(rollout.n_rows, [2, 1, 1])
        np.testing.assert_array_equal(rollout.obs[:2, 0, 1], [1, 2])
        np.testing.assert_array_equal(rollout.obs[0, :, 1], [1, 1, 1])
        assert lasts(rollout) == {3: [0.0, 3.0], 2: [2.0, 2.0]}

    def test_a_buffer_that_grew_is_loaded_into_one_that_did_not(self) -> None:
        saved, loaded = bound(), bound()
        for step in range(100):
            saved.add(rows([0], [step]))
        loaded.load_state_dict(saved.state_dict())
        np.testing.assert_array_equal(loaded.read().obs[:, 0, 1], np.arange(100))


# ---- through a collector ----


class Both:
    """Write to a rollout buffer and to a ledger."""

    def __init__(self) -> None:
        self.rollout, self.ledger = RolloutBuffer(), Ledger()

    def bind(self, spec: RowSpec) -> None:
        self.rollout.bind(spec)

    def add(self, transition: Transition) -> NDArray[np.int64]:
        self.ledger.add(transition)
        return self.rollout.add(transition)

    def cut(self, env_ids: Any) -> None:
        self.rollout.cut(env_ids)


@pytest.mark.one_of_each
@pytest.mark.parametrize("way", IN_PROCESS)
@pytest.mark.parametrize(("form", "stack"), [("array", 1), ("dict", 1), ("masked", 1), ("array", 3)])
def test_rows_and_the_observations_after_them_are_what_the_environments_did(way: str, form: Any, stack: int) -> None:
    both = Both()
    collector = Collector(Player(has_extras=True), tagged_envs(way, 3, form, stack=stack), both)  # type: ignore[arg-type]  # what a collector needs of it
    for n_step in (50, 7, 250):
        collector.collect(n_step=n_step)
        seen, rollout = both.ledger.rows(), both.rollout.read()
        assert len(rollout) == len(seen.env_ids)
        after = dict(zip(rollout.last_rows.tolist(), range(10**6), strict=False))
        for env in range(3):
            own, count = seen.env_ids == env, int(rollout.n_rows[env])
            here = tree.map_tree(lambda leaf, env=env, count=count: leaf[:count, env], rollout.obs)
            tree.map_tree(lambda a, b, own=own: np.testing.assert_array_equal(a, b[own]), here, seen.obs)
            np.testing.assert_array_equal(rollout.action[:count, env], seen.action[own])
            np.testing.assert_array_equal(rollout.extras["wish"][:count, env], seen.extras["wish"][own])
            tags = decode(here)
            _, episode, step = (tags if stack == 1 else tags[:, -1])[:, :3].T
            ends = step + 1 == length(env, episode)
            np.testing.assert_array_equal(rollout.reward[:count, env], reward(env, episode, step))
            np.testing.assert_array_equal(rollout.terminated[:count, env], ends & is_terminated(env, episode))
            ended = ends.copy()
            ended[-1] = True  # cut
            np.testing.assert_array_equal(rollout.ended[:count, env], ended)
            bootstraps = ended & ~(ends & is_terminated(env, episode))
            assert (ends & is_truncated(env, episode) & ~is_terminated(env, episode))[bootstraps][:-1].all()
            expected = {t * 3 + env: t for t in np.flatnonzero(bootstraps).tolist()}
            assert {row for row in after if row % 3 == env} == expected.keys()
            for row, t in expected.items():
                last = tree.map_tree(lambda leaf, at=after[row]: leaf[at], rollout.last_obs)
                true = tree.map_tree(lambda leaf, own=own, t=t: leaf[own][t], seen.next_obs)
                tree.map_tree(np.testing.assert_array_equal, last, true)
        both.rollout.clear()
        both.ledger = Ledger()


# ---- against a list of rows ----

ways = st.lists(st.sampled_from(["", "go", "end", "cut", "both"]), min_size=3, max_size=3)  # "": no row
cuts = st.lists(st.integers(0, 2), unique=True, max_size=3)
ops = st.tuples(st.just("add"), ways) | st.tuples(st.just("cut"), cuts) | st.sampled_from([("clear", []), ("read", [])])


class Slow:
    """Keep a list of [time, terminated, ended, observation after it or None] per environment."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.rows: list[list[list[Any]]] = [[], [], []]

    def cut(self, env_ids: Any) -> None:
        for env in env_ids:
            if self.rows[env] and not self.rows[env][-1][2]:
                self.rows[env][-1][2:] = True, [env, self.rows[env][-1][0] + 1]

    def assert_is(self, rollout: Rollout) -> None:
        self.cut(range(3))
        assert rollout.n_rows.tolist() == [len(own) for own in self.rows]
        after = {}
        for env, own in enumerate(self.rows):
            for t, (time, terminated, ended, last) in enumerate(own):
                assert rollout.obs[t, env].tolist() == [env, time]
                assert rollout.terminated[t, env] == terminated
                assert rollout.ended[t, env] == ended
                if last is not None:
                    after[t * 3 + env] = last
        assert lasts(rollout) == after
        assert len(rollout.last_rows) == len(after)


@given(st.lists(ops, max_size=40))
def test_it_is_a_list_of_rows_whatever_is_done_to_it(program: list[tuple[str, Any]]) -> None:
    buffer, slow = bound(), Slow()
    for time, (op, what) in enumerate(program):
        if op == "add":
            how = dict(enumerate(what))
            ids = [env for env, way in how.items() if way]
            ends = [env for env in ids if how[env] in ("end", "both")]
            cut = [env for env in ids if how[env] in ("cut", "both")]
            buffer.add(rows(ids, [time] * len(ids), terminated=ends, truncated=cut))
            for env in ids:
                if slow.rows[env] and slow.rows[env][-1][0] != time - 1:  # a row between was not added
                    slow.cut([env])
                last = [env, time + 1] if how[env] == "cut" else None
                slow.rows[env].append([time, env in ends, how[env] != "go", last])
        elif op == "cut":
            buffer.cut(np.array(what, np.intp))
            slow.cut(what)
        elif op == "clear":
            buffer.clear()
            slow.clear()
        elif any(slow.rows):
            slow.assert_is(buffer.read())
    if any(slow.rows):
        slow.assert_is(buffer.read())
