"""Whatever drives the environments, what is stored is what happened."""

import multiprocessing
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.helpers.doubles import Ledger, Player, Still
from tests.helpers.scripted_env import STEP, ScriptedEnv, ScriptedVectorEnv
from tests.helpers.tagged import Form, TaggedEnv, decode, length
from tests.helpers.truth import (
    IN_PROCESS,
    IN_PROCESSES,
    assert_batch_is_true,
    assert_nothing_is_missing,
    assert_rows_are_real,
    tagged_envs,
)
from trainkit.buffer import ReplayBuffer
from trainkit.collector import Collector
from trainkit.core.data import Horizon
from trainkit.core.errors import BadEnvDataError, ConfigError, EnvError
from trainkit.envs import Envs, make_envs
from trainkit.envs.backends import ListInfos
from trainkit.envs.vector import VectorInfos

every_way_here = pytest.mark.parametrize("way", IN_PROCESS)
# Python 3.12 warns of fork() in a process with threads.
forks = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


def collect_and_check(way: str, n: int, n_step: int) -> None:
    """Collect in pieces of any size, with a forced reset now and then, and whole episodes at the end."""
    envs, ledger = tagged_envs(way, n), Ledger()
    collector = Collector(Player(), envs, ledger)
    while len(ledger) < n_step:
        piece = 1 + (7 * len(ledger) + n_step) % (n_step // 10)
        collector.collect(n_step=piece)
        if piece % 3 == 0:
            collector.reset()
    collector.collect(n_episode=3 * envs.n - 1)
    collector.collect(n_step=2 * envs.n)
    rows = ledger.rows()
    n_cut = assert_rows_are_real(rows, envs.n)
    assert 0 < n_cut <= envs.n * len(ledger.cuts)
    assert_nothing_is_missing(rows, envs.call("log"), has_extra_steps=way != "sync")
    assert collector.env_step == len(ledger) >= n_step
    envs.close()


@every_way_here
def test_every_stored_row_is_a_real_step_with_its_true_successor(way: str) -> None:
    collect_and_check(way, 8, 15_000)


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("way", IN_PROCESSES)
@forks
def test_every_stored_row_from_other_processes_is_a_real_step_with_its_true_successor(way: str) -> None:
    collect_and_check(way, 3, 1_500)


@pytest.mark.parametrize("way", IN_PROCESS + IN_PROCESSES)
@pytest.mark.slow
@forks
def test_a_million_stored_rows_are_real_steps(way: str) -> None:
    collect_and_check(way, 10, 130_000)  # times 8 ways


def sample_and_check(envs: Envs, capacity: int, n_rounds: int) -> None:
    """Collect into a ring that wraps around, and hold what is sampled on the way against the environments' logs."""
    buffer = ReplayBuffer(capacity, seed=1)
    collector = Collector(Player(), envs, buffer)
    for round_ in range(n_rounds):
        collector.collect(n_step=1 + 13 * round_ % 90)
        if round_ % 7 == 3:
            collector.reset()
        for n_step in (1, 3, 5):
            batch = buffer.sample(32, horizon=Horizon(n_step, gamma=0.5))
            assert_batch_is_true(batch, envs.call("log"), n_step, gamma=0.5)


@pytest.mark.one_of_each
@every_way_here
@pytest.mark.parametrize("stack", [1, 4])
@pytest.mark.parametrize(("form", "mask_key"), [("array", None), ("dict", None), ("masked", None), ("dict", "legal")])
def test_every_sampled_number_is_what_the_environments_logged(
    way: str, stack: int, form: Form, mask_key: str | None
) -> None:
    sample_and_check(tagged_envs(way, 4, form, stack=stack, mask_key=mask_key), capacity=101, n_rounds=12)


@pytest.mark.parametrize("way", IN_PROCESSES)
@forks
def test_every_sampled_number_from_other_processes_is_what_the_environments_logged(way: str) -> None:
    envs = tagged_envs(way, 2, "dict", stack=3, mask_key="legal")
    sample_and_check(envs, capacity=51, n_rounds=8)
    envs.close()


@every_way_here
def test_stacked_rows_repeat_an_episodes_first_frame_and_never_reach_into_the_one_before(way: str) -> None:
    ledger = Ledger()
    Collector(Player(), tagged_envs(way, 3, "masked", stack=4), ledger).collect(n_step=800)
    assert_rows_are_real(ledger.rows(), 3)


@pytest.mark.one_of_each
@every_way_here
@pytest.mark.parametrize("options", [{}, {"form": "dict", "stack": 3, "mask_key": "legal"}])
def test_one_environment_alone_is_enough(way: str, options: dict[str, Any]) -> None:
    ledger = Ledger()
    stats = Collector(Player(), tagged_envs(way, 1, **options), ledger).collect(n_step=500)
    assert stats.n_step == len(ledger) == 500
    assert assert_rows_are_real(ledger.rows(), 1) == 0
    lengths = [length(0, episode) for episode in range(stats.n_episode)]
    assert stats.lengths.mean == pytest.approx(np.mean(lengths))


def test_no_row_no_action_and_no_clock_tick_belongs_to_a_reset_step() -> None:
    ledger, player = Ledger(), Player()
    collector = Collector(player, tagged_envs("SyncVectorEnv NEXT_STEP", 3), ledger)
    stats = collector.collect(n_step=1_000)
    acted_on = sum(len(call.env_ids) for call in player.calls)
    assert acted_on == stats.n_step == collector.env_step == len(ledger) >= 1_000
    # The resets took vector steps of their own, in which the policy did not act for that environment.
    assert stats.n_vector_step * 3 >= stats.n_step + stats.n_episode - 3
    assert all(step.env_ids.size for step in ledger.steps)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_the_players_tags_prove_that_an_environment_acts_on_its_newest_observation(mode: AutoresetMode) -> None:
    player = Player()
    Collector(player, tagged_envs(f"SyncVectorEnv {mode.name}", 4)).collect(n_step=300)
    for env in range(4):
        seen = [tuple(tag[1:3]) for call in player.calls for tag in call.tags.tolist() if tag[0] == env]
        episodes = range(seen[-1][0] + 1)
        assert seen == [(episode, step) for episode in episodes for step in range(length(env, episode))][: len(seen)]


@pytest.mark.parametrize("n", [1, 7])
def test_gymnasiums_own_vector_cartpole_gives_real_rows(n: int) -> None:
    ledger = Ledger()
    collector = Collector(Still(1), make_envs(gym.make_vec("CartPole-v1", n), seed=3), ledger)
    stats = collector.collect(n_step=200 * n)
    rows = ledger.rows()
    assert stats.n_step == len(rows.reward) >= 200 * n
    moved = np.abs(rows.next_obs - rows.obs).max(axis=1)
    assert moved.max() < 0.6  # a reset between the two would jump back from the fallen pole's speed
    np.testing.assert_allclose(rows.next_obs[:, 0], rows.obs[:, 0] + 0.02 * rows.obs[:, 1], atol=1e-6)  # the physics
    np.testing.assert_allclose(rows.next_obs[:, 2], rows.obs[:, 2] + 0.02 * rows.obs[:, 3], atol=1e-6)
    fallen = (np.abs(rows.next_obs[:, 2]) > 12 * np.pi / 180) | (np.abs(rows.next_obs[:, 0]) > 2.4)
    np.testing.assert_array_equal(rows.terminated, fallen)
    assert 8 <= stats.returns.min <= stats.returns.max <= 11  # pushing one way; gymnasium counts no step twice
    assert stats.returns.count == rows.terminated.sum()


def test_a_vector_environment_that_reuses_its_arrays_cannot_change_rows() -> None:
    ledger = Ledger()
    factories = [lambda env=env: TaggedEnv(env) for env in range(3)]
    vector_env = SyncVectorEnv(factories, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)
    Collector(Player(), make_envs(vector_env), ledger).collect(n_step=300)
    assert_rows_are_real(ledger.rows(), 3)


@pytest.mark.parametrize("autoreset_mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_ale_pys_vector_environment_gives_frames_that_follow_each_other(autoreset_mode: AutoresetMode) -> None:
    ale_py = pytest.importorskip("ale_py", reason="ale-py has a vector environment of its own")
    options = {"stack_num": 1, "max_num_frames_per_episode": 40, "autoreset_mode": autoreset_mode}
    envs = make_envs(ale_py.AtariVectorEnv("pong", 2, **options), seed=2**62)
    ledger = Ledger()
    stats = Collector(Still(2), envs, ledger).collect(n_step=60)  # the paddle moves
    rows = ledger.rows()
    assert stats.n_episode >= 4
    for env in range(2):
        here = rows.env_ids == env
        continues = ~(rows.terminated | rows.truncated)[here][:-1]
        np.testing.assert_array_equal(rows.obs[here][1:][continues], rows.next_obs[here][:-1][continues])
        assert (rows.obs[here][1:][~continues] != rows.next_obs[here][:-1][~continues]).any()
    envs.close()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"obs": np.zeros((2, 3), np.float32)}, r"observations of shape \(2, 3\), the space says \(2, 4\)"),
        ({"obs": np.zeros((2, 4), "U1")}, "dtype <U1"),
        ({"reward": np.ones((2, 1))}, r"rewards float64 \(2, 1\), not 2 numbers"),
        ({"reward": np.array([1.0, None])}, r"rewards object \(2,\)"),
        ({"terminated": np.array([0.0, np.nan])}, "terminated = 0.0, which is not a bool"),
        ({"terminated": np.array([False, None])}, "terminated = None"),
        ({"truncated": np.array([0, 2])}, "truncated = 2"),
        ({"truncated": np.False_}, r"truncated of shape \(\), not 2 bools"),
        ({"infos": {}, "more": 0}, r"returned 6 values from step, not \(obs, reward, terminated, truncated, info\)"),
    ],
)
def test_a_vector_environment_that_breaks_the_contract_is_named_with_what_it_returned(
    answer: dict[str, Any], message: str
) -> None:
    envs = make_envs(ScriptedVectorEnv(AutoresetMode.NEXT_STEP, **answer))
    with pytest.raises(
        BadEnvDataError, match=f"^ScriptedVectorEnv: .*{message}|^ScriptedVectorEnv: returned {message}"
    ):
        Collector(Still(), envs).collect(n_step=2)


@pytest.mark.parametrize(
    ("reset", "message"),
    [
        (np.zeros((2, 4), np.float32), r"returned ndarray from reset, not \(obs, info\)"),
        ((np.zeros((4, 2), np.float32), {}), r"observations of shape \(4, 2\), the space says \(2, 4\)"),
        (({"obs": 0}, {}), "observations of shape"),
    ],
)
def test_a_vector_environments_reset_is_read_as_strictly(reset: Any, message: str) -> None:
    vector_env = ScriptedVectorEnv(AutoresetMode.NEXT_STEP)
    vector_env.first = reset
    with pytest.raises(BadEnvDataError, match=message):
        make_envs(vector_env).reset()


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        ({"place": np.zeros((2, 4), np.float32)}, r"returned observation with keys \['place'\], the space says"),
        ({"place": np.zeros((2, 4), np.float32), "pair": np.zeros(2)}, r"observation\['pair'\] array.* a tuple of 1"),
        ({"place": np.zeros(2, np.float32), "pair": (np.zeros(2),)}, r"observations\['place'\] of shape \(2,\), the"),
    ],
)
def test_a_part_of_an_observation_that_is_missing_or_of_another_kind_is_named_by_its_path(
    obs: dict[str, Any], message: str
) -> None:
    vector_env = ScriptedVectorEnv(AutoresetMode.NEXT_STEP)
    place = vector_env.single_observation_space
    vector_env.single_observation_space = gym.spaces.Dict(place=place, pair=gym.spaces.Tuple([gym.spaces.Discrete(2)]))
    vector_env.first = obs, {}
    with pytest.raises(BadEnvDataError, match=message):
        make_envs(vector_env).reset()


def test_flags_of_zeros_and_ones_are_bools() -> None:
    ledger = Ledger()
    answer = {"terminated": np.array([0, 1]), "truncated": np.array([1, 0], np.uint8)}
    Collector(Still(), make_envs(ScriptedVectorEnv(AutoresetMode.NEXT_STEP, **answer)), ledger).collect(n_step=2)
    np.testing.assert_array_equal(ledger.rows().terminated, [False, True])
    np.testing.assert_array_equal(ledger.rows().truncated, [True, False])


@pytest.mark.parametrize(
    "final_obs",
    [
        pytest.param(np.array([[0, 0, 0, 0], [1, 5, 3, 2]], np.float32), id="dense"),
        pytest.param(np.array([None, np.array([1, 5, 3, 2], np.float32)], object), id="objects"),
    ],
)
def test_same_step_takes_the_successor_from_final_obs_dense_or_not(final_obs: Any) -> None:
    ledger = Ledger()
    ended = np.array([False, True])
    vector_env = ScriptedVectorEnv(AutoresetMode.SAME_STEP, terminated=ended, infos={"final_obs": final_obs})
    Collector(Still(), make_envs(vector_env), ledger).collect(n_step=2)
    np.testing.assert_array_equal(decode(ledger.rows().next_obs), [[0, 0, 0, 0], [1, 5, 3, 2]])


def test_same_step_without_a_final_obs_is_rejected() -> None:
    vector_env = ScriptedVectorEnv(AutoresetMode.SAME_STEP, truncated=np.array([False, True]))
    with pytest.raises(BadEnvDataError, match=r"SAME_STEP mode without infos\['final_obs'\]"):
        Collector(Still(), make_envs(vector_env)).collect(n_step=2)


def test_a_vector_environment_must_say_how_it_resets() -> None:
    with pytest.raises(ConfigError, match=r"ScriptedVectorEnv.metadata\['autoreset_mode'\] must be .* got None"):
        make_envs(ScriptedVectorEnv(None))


@forks
def test_a_failing_process_is_named_with_its_error_and_its_own_traceback() -> None:
    envs = make_envs(
        [ScriptedEnv, lambda: ScriptedEnv(steps=[STEP, STEP, OSError("the simulator is gone")])],
        backend="async",
        seed=5,
    )
    where = r"at episode 0 step 3 \(action 0\), episode seed \d+"
    with pytest.raises(EnvError, match=rf"^env 1 raised OSError in step: the simulator is gone, {where}") as caught:
        Collector(Still(), envs).collect(n_step=10)
    envs.close()
    cause = caught.value.__cause__
    assert isinstance(cause, OSError)
    assert "in the process of env 1:" in cause.__notes__[0]
    assert "tests/helpers/scripted_env.py" in cause.__notes__[0]


class Seeing(gym.Env[Any, Any]):
    """Log what its actions are."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, action_space: gym.Space[Any]) -> None:
        self.action_space, self.log = action_space, []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.log.append((type(action), action.dtype, action.tolist(), action.ndim and action.flags.writeable))
        return np.zeros(1, np.float32), 0.0, False, False, {}


@forks
@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Discrete(3, start=1),
        gym.spaces.MultiDiscrete([3, 2]),
        gym.spaces.MultiBinary(4),
        gym.spaces.Box(-1, 1, (2, 3), np.float32),
        gym.spaces.Box(0, 255, (2,), np.uint8),
        gym.spaces.Dict({"a": gym.spaces.Box(-1, 1, (2,)), "b": gym.spaces.Box(-1, 1, ())}),
    ],
    ids=str,
)
def test_an_action_in_another_process_is_what_it_is_in_this_one(space: gym.Space[Any]) -> None:
    def log(backend: Any) -> Any:
        envs = make_envs(lambda: Seeing(space) if space.shape is not None else Nested(space), 2, backend=backend)
        envs.reset()
        rng = np.random.default_rng(1)
        low, high = (0, 2) if isinstance(envs.action_space, gym.spaces.Discrete) else (0, 1)
        shape = (2, *(envs.action_space.shape or ()))
        for _ in range(2):
            envs.step(rng.integers(low, high, shape, endpoint=True).astype(envs.action_space.dtype), envs.all_ids)
        found = envs.call("log")
        envs.close()
        return found

    assert log("async") == log("sync")


class Nested(Seeing):
    """The same of an action that is a Dict."""

    def step(self, action: Any) -> Any:
        return super().step(np.append(action["a"], action["b"]))


@forks
def test_an_environment_that_cannot_be_made_in_its_process_is_reported_as_in_this_one() -> None:
    with pytest.raises(EnvError, match="make_envs: env 1 raised OSError when it was made: no licence") as caught:
        make_envs([ScriptedEnv, lambda: ScriptedEnv(made=OSError("no licence"))], backend="async")
    assert isinstance(caught.value.__cause__, OSError)
    assert multiprocessing.active_children() == []


# ---- infos ----

COMMON: dict[str, Any] = {"common": 60, "short": np.array([4, 5]), "none": None}  # not one value per environment
# Two of three environments have a "score"; environment 1 just ended, and its last info lies in "final_info".
INFOS = {
    "score": np.array([10, 0, 30]),
    "_score": np.array([True, False, True]),
    "nested": {"deep": np.array([1, 2, 3]), "_deep": np.ones(3, np.bool_)},
    "_nested": np.ones(3, np.bool_),
    "dense": np.array([[0], [1], [2]]),
    "listed": ["a", "b", "c"],
    **COMMON,
    "final_info": {"score": np.array([0, 20, 0]), "_score": np.array([False, True, False])},
    "_final_info": np.array([False, True, False]),
    "final_obs": np.array([None, 0, None], object),
}


def test_a_vectors_info_comes_apart_into_rows() -> None:
    infos = VectorInfos(INFOS, 3, np.array([0, 1]))
    assert infos.row(0) == {"score": 10, "nested": {"deep": 1}, "dense": 0, "listed": "a", **COMMON}
    assert infos.row(1) == {"nested": {"deep": 2}, "dense": 1, "listed": "b", **COMMON}


def test_the_info_of_an_episodes_last_step_is_the_final_one() -> None:
    infos = VectorInfos(INFOS, 3, np.array([1, 2]), ended=np.array([False, True, False]))
    assert infos.row(0) == {"score": 20}
    assert infos.row(1) == {"score": 30, "nested": {"deep": 3}, "dense": 2, "listed": "c", **COMMON}
    assert infos.column("score") == [20, 30]


@pytest.mark.parametrize(
    ("key", "env_ids", "column"),
    [
        ("dense", [0, 2], [[0], [2]]),
        ("score", [2, 0], [30, 10]),
        ("score", [0, 1], [10, None]),
        ("nobody", [0, 1], [None, None]),
        ("common", [0, 2], [60, 60]),
        ("short", [0, 2], [[4, 5], [4, 5]]),
    ],
)
def test_a_column_of_infos_has_one_value_per_row_and_none_where_it_is_missing(
    key: str, env_ids: list[int], column: list[Any]
) -> None:
    assert [
        value if value is None else np.asarray(value).tolist()
        for value in VectorInfos(INFOS, 3, np.array(env_ids)).column(key)
    ] == column
    listed = ListInfos([VectorInfos(INFOS, 3, np.array(env_ids)).row(row) for row in range(2)])
    assert [value if value is None else np.asarray(value).tolist() for value in listed.column(key)] == column
