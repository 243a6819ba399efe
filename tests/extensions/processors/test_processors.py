"""Processors: what they see of every row, in which order, and whose fault it is when one fails."""

import json
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import trainkit as tk
from tests.helpers.doubles import Ledger, Player, Still
from tests.helpers.scripted_env import OBS, ScriptedEnv, ScriptedVectorEnv, answer
from tests.helpers.tagged import Form, decode, legal, reward
from tests.helpers.truth import IN_PROCESS, IN_PROCESSES, assert_rows_are_real, tagged_envs
from trainkit.buffer import ReplayBuffer
from trainkit.collector import Collector
from trainkit.core import tree
from trainkit.core.data import ACTION_MASK, Horizon, Obs, Transition
from trainkit.core.errors import BadEnvDataError, CheckpointError, ConfigError, EnvError, SpaceMismatchError
from trainkit.envs import (
    DiscretizeActions,
    Envs,
    Flatten,
    MapActions,
    MapObs,
    PreviousStep,
    Processor,
    TimeFeature,
    flat_actions,
    make_envs,
)

BOX = gym.spaces.Box(-1, 1, (3,), np.float32)


class Journey(Processor):
    """Let the policy see the sum of the steps of its episode so far: which needs state."""

    def bind(self, observation_space: Any, action_space: Any, n: int) -> Any:
        self.total = np.zeros(n)
        inner = observation_space if isinstance(observation_space, gym.spaces.Dict) else {"obs": observation_space}
        travelled = gym.spaces.Box(0, np.inf, (), np.float32)
        return gym.spaces.Dict({**inner, "travelled": travelled}), action_space

    def begin(self, obs: Obs, env_ids: Any) -> Obs:
        self.total[env_ids] = 0
        return self.seen(obs, env_ids)

    def observe(self, obs: Obs, action: Any, reward: Any, env_ids: Any) -> Obs:
        assert len(env_ids), "processors are not called without rows"
        self.total[env_ids] += decode(obs)[:, 2]
        return self.seen(obs, env_ids)

    def seen(self, obs: Obs, env_ids: Any) -> Obs:
        inner = obs if isinstance(obs, dict) else {"obs": obs}
        return {**inner, "travelled": self.total[env_ids].astype(np.float32)}


def assert_seen_as_it_was(obs: Obs, limit: int = 5) -> None:
    """Check each frame by itself against what its tag says, one after the other: the slow reference."""
    tags = decode(obs).reshape(-1, 4)
    if not len(tags):
        return
    seen = {name: obs[name].reshape(len(tags), -1)[:, 0] for name in ("prev_action", "prev_reward", "time")}
    travelled = obs["travelled"].reshape(-1)
    for row, (env, episode, step, action) in enumerate(tags.tolist()):
        assert seen["prev_action"][row] == (3 if step == 0 else action)
        assert seen["prev_reward"][row] == (0 if step == 0 else reward(env, episode, step - 1))
        assert seen["time"][row] == np.float32(min(step / limit, 1.0))
        assert travelled[row] == sum(range(step + 1))


def all_of_them() -> list[Processor]:
    return [Journey(), PreviousStep(), TimeFeature(5)]


@pytest.mark.one_of_each
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(
    ("way", "form", "stack"),
    [
        *[(way, form, stack) for way in IN_PROCESS for form, stack in (("array", 1), ("dict", 3))],
        *[(way, "dict", 3) for way in (IN_PROCESSES[0], "AsyncVectorEnv NEXT_STEP")],
    ],
)
def test_every_row_is_processed_by_itself_and_no_episode_sees_the_one_before(way: str, form: Form, stack: int) -> None:
    ledger = Ledger()
    envs = tagged_envs(way, 3, form, stack=stack, processors=all_of_them())
    collector = Collector(Player(), envs, ledger)
    collector.collect(n_step=150)
    collector.collect(n_episode=5)
    collector.collect(n_step=30)
    rows = ledger.rows()
    assert_rows_are_real(rows, 3)
    assert (rows.terminated | rows.truncated).sum() > 20
    assert_seen_as_it_was(rows.obs)
    assert_seen_as_it_was(rows.next_obs)
    envs.close()


@settings(max_examples=25)
@given(way=st.sampled_from(IN_PROCESS), n=st.integers(1, 5), n_step=st.integers(1, 60), data=st.data())
def test_any_play_is_processed_row_by_row(way: str, n: int, n_step: int, data: st.DataObject) -> None:
    envs = tagged_envs(way, n, processors=all_of_them())
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    envs.reset()
    for _ in range(n_step):
        ids = envs.ready
        outcome = envs.step(rng.integers(3, size=len(ids)), ids)
        if len(ids):
            assert_seen_as_it_was(outcome.next_obs)
        if outcome.over.any():
            envs.begin(ids[outcome.over])
        assert_seen_as_it_was(tree.map_tree(lambda leaf: leaf[envs.ready], envs.obs))


def test_sampled_windows_and_stacks_are_seen_as_they_were() -> None:
    buffer = ReplayBuffer(300, seed=0)
    processors = [PreviousStep(), TimeFeature(5), Journey()]
    collector = Collector(Player(), tagged_envs("sync", 3, stack=3, processors=processors), buffer)
    collector.collect(n_step=400)
    batch = buffer.sample(500, horizon=Horizon(n_step=3, gamma=0.5))
    assert_seen_as_it_was(batch.obs)
    assert_seen_as_it_was(batch.next_obs)


def test_a_lost_life_starts_no_episode_for_a_processor() -> None:
    ledger = Ledger()
    envs = tagged_envs("sync", 3, stack=2, lives_key="lives", processors=all_of_them())
    Collector(Player(), envs, ledger).collect(n_step=200)
    rows = ledger.rows()
    assert_rows_are_real(rows, 3, counts_lives=True)
    assert_seen_as_it_was(rows.obs)
    assert_seen_as_it_was(rows.next_obs)


@pytest.mark.parametrize("options", [{"mask_key": "legal"}, {}], ids=["lifted", "own"])
def test_a_mask_stays_what_it_was(options: dict[str, Any]) -> None:
    ledger = Ledger()
    form: Form = "array" if options else "masked"
    envs = tagged_envs("SyncVectorEnv SAME_STEP", 3, form, stack=2, processors=all_of_them(), **options)
    Collector(Player(), envs, ledger).collect(n_step=100)
    rows = ledger.rows()
    tags = decode(rows.obs)[:, -1, :3]  # which checks the masks, too
    np.testing.assert_array_equal(rows.obs[ACTION_MASK], legal(*tags.T))
    assert sorted(rows.obs) == [ACTION_MASK, "obs", "prev_action", "prev_reward", "time", "travelled"]
    assert rows.obs["prev_action"].shape == (len(tags), 2)
    assert rows.obs[ACTION_MASK].shape == (len(tags), 3)


# ---- order ----


def doubled(action: NDArray[Any]) -> NDArray[Any]:
    return action * 2


def test_observations_go_out_through_all_and_actions_in() -> None:
    space = gym.spaces.Discrete(100, start=5)
    calls: list[str] = []

    class Scribe(Processor):
        def __init__(self, name: str, adds: int = 0) -> None:
            self.name, self.adds = name, adds

        def begin(self, obs: Obs, env_ids: Any) -> Obs:
            calls.append(f"{self.name} begins")
            return obs

        def observe(self, obs: Obs, action: Any, reward: Any, env_ids: Any) -> Obs:
            calls.append(f"{self.name} sees {action.tolist()}")
            return obs

        def act(self, action: Any, env_ids: Any) -> Any:
            calls.append(f"{self.name} takes {action.tolist()}")
            return action + self.adds

    chain = [Scribe("inner", adds=1), MapActions(doubled, gym.spaces.Discrete(10, start=3)), Scribe("outer")]
    envs = make_envs(partial(ScriptedEnv, action_space=space), 2, processors=chain)
    assert envs.action_space == gym.spaces.Discrete(10)
    envs.reset()
    envs.step(np.array([0, 9]), envs.all_ids)
    assert calls == [
        "inner begins",
        "outer begins",
        "outer takes [3, 12]",
        "inner takes [6, 24]",
        "inner sees [6, 24]",
        "outer sees [3, 12]",
    ]
    assert log_calls(envs, "actions") == [[7], [25]]


def log_calls(envs: Envs, name: str) -> list[Any]:
    return [getattr(env, name) for env in envs.runner.envs]  # type: ignore[attr-defined]  # Processed, Sync


def test_the_policys_own_actions_and_observations_are_stored() -> None:
    ledger = Ledger()
    box = gym.spaces.Box(-2, 2, (1,), np.float32)
    lever = MapActions(lambda action: np.array([[-9.0], [1.5]])[action], gym.spaces.Discrete(2))
    seen = MapObs(lambda obs: obs[:, :2] * 2, gym.spaces.Box(-2, 2, (2,), np.float32))
    envs = make_envs(partial(ScriptedEnv, action_space=box), 2, processors=[lever, seen])
    Collector(Still(1), envs, ledger).collect(n_step=2)
    rows = ledger.rows()
    assert rows.action.tolist() == [1, 1]
    np.testing.assert_array_equal(rows.obs, [[0, 1], [0, 1]])
    np.testing.assert_array_equal(rows.next_obs, [[0, 1], [0, 1]])
    assert [one.tolist() for (one,) in log_calls(envs, "actions")] == [[1.5], [1.5]]
    Collector(Still(0), envs, ledger).collect(n_step=2)
    assert [one[-1].tolist() for one in log_calls(envs, "actions")] == [[-2.0], [-2.0]]  # within the Box


def test_a_vector_environment_has_them_too() -> None:
    vector_env = ScriptedVectorEnv(AutoresetMode.NEXT_STEP)
    envs = make_envs(vector_env, processors=[MapObs(lambda obs: obs[:, :1] + 1, gym.spaces.Box(0, 9, (1,)))], stack=2)
    assert envs.observation_space.shape == (2, 1)
    np.testing.assert_array_equal(envs.reset(), np.ones((2, 2, 1)))


# ---- what is theirs ----


class Meddler(Processor):
    """Try to write into what is borrowed."""

    def observe(self, obs: Obs, action: Any, reward: Any, env_ids: Any) -> Obs:
        kept.append((obs, obs.copy()))
        return obs


kept: list[tuple[Any, Any]] = []


@pytest.mark.parametrize("way", IN_PROCESS)
def test_processors_change_no_array_that_they_received_or_returned(way: str) -> None:
    kept.clear()
    envs = tagged_envs(way, 3, processors=[Meddler(), *all_of_them()])
    envs.reset()
    outcomes = []
    for _ in range(20):
        ids = envs.ready
        outcome = envs.step(np.zeros(len(ids), np.int64), ids)
        outcomes.append((outcome.next_obs, tree.map_tree(np.copy, outcome.next_obs)))
        if outcome.over.any():
            envs.begin(ids[outcome.over])
    for now, then in [*kept, *outcomes]:
        for own, old in zip(tree.leaves(now), tree.leaves(then), strict=True):
            np.testing.assert_array_equal(own, old)


def test_each_set_of_environments_has_its_own() -> None:
    clock = TimeFeature(4)
    one, other = (tagged_envs("sync", 2, processors=[clock]) for _ in range(2))
    for envs in (one, other):
        envs.reset()
    one.step(np.zeros(1, np.int64), np.array([1]))
    one.step(np.zeros(1, np.int64), np.array([1]))
    assert one.obs["time"][:, 0].tolist() == [0.0, 0.5]
    one.step(np.zeros(1, np.int64), np.array([0]))
    assert one.obs["time"][:, 0].tolist() == [0.25, 0.5]  # by environment
    other.step(np.zeros(1, np.int64), np.array([1]))
    assert other.obs["time"][:, 0].tolist() == [0.0, 0.25]


class Sticky(Processor):
    """Hold on to the last action now and then: random, and so with a state that outlives an episode."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def bind(self, observation_space: Any, action_space: Any, n: int) -> Any:
        self.last = np.zeros(n, np.int64)
        return observation_space, action_space

    def act(self, action: Any, env_ids: Any) -> Any:
        action = np.where(self.rng.random(len(action)) < 0.5, self.last[env_ids], action)
        self.last[env_ids] = action
        return action

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rng.bit_generator.state = state["rng"]


def test_state_that_outlives_an_episode_is_saved_with_the_environments(tmp_path: Path) -> None:
    def envs() -> Envs:
        return tagged_envs("sync", 2, seed=1, processors=[PreviousStep(), Sticky(3)])

    one, other = envs(), envs()
    one.reset()
    one.step(np.ones(2, np.int64), one.all_ids)
    other.load_state_dict(one.state_dict())
    later = [own.state_dict()["backend"][1]["rng"]["state"]["state"] for own in (one, other)]
    assert later[0] == later[1] != envs().state_dict()["backend"][1]["rng"]["state"]["state"]
    with pytest.raises(CheckpointError, match="2 processors were saved, but there are 1: make_envs as before"):
        tagged_envs("sync", 2, processors=[Sticky(3)]).load_state_dict(one.state_dict())


# ---- whose fault ----


class Faulty(Processor):
    """Fail in one method, or return a given value."""

    def __init__(self, method: str, does: Any) -> None:
        self.method, self.does = method, does

    def change(self, method: str, given: Any) -> Any:
        return self.does(given) if method == self.method else given

    def bind(self, observation_space: Any, action_space: Any, n: int) -> Any:
        return self.change("bind", (observation_space, action_space))

    def begin(self, obs: Obs, env_ids: Any) -> Obs:
        return self.change("begin", obs)

    def observe(self, obs: Obs, action: Any, reward: Any, env_ids: Any) -> Obs:
        return self.change("observe", obs)

    def act(self, action: Any, env_ids: Any) -> Any:
        return self.change("act", action)


def trips(_: Any) -> Any:
    raise KeyError("shoe")


def play(*processors: Processor, **parts: Any) -> None:
    envs = make_envs(partial(ScriptedEnv, **parts), 2, processors=[PreviousStep(), *processors][-len(processors) :])
    envs.reset()
    envs.step(np.array([0, 1]), envs.all_ids)


@pytest.mark.parametrize("method", ["begin", "observe", "act"])
def test_an_exception_names_the_processor_its_place_and_the_method(method: str) -> None:
    with pytest.raises(EnvError, match=rf"^custom: processors\[1\] \(Faulty\) raised KeyError in {method}: 'shoe'"):
        play(Processor(), Faulty(method, trips))


@pytest.mark.parametrize(
    ("method", "does", "message"),
    [
        ("observe", lambda obs: obs[:1], r"gave observations float32 \(1, 3\), its space says float32 \(2, 3\)"),
        (
            "begin",
            lambda obs: obs.astype(float),
            r"gave observations float64 \(2, 3\), its space says float32 \(2, 3\)",
        ),
        ("observe", lambda obs: {"obs": obs}, r"gave observations dict, its space says float32 \(2, 3\)"),
        ("act", lambda action: action + 1, r"gave actions array\(\[1, 2\]\), which Discrete\(2\) does not have"),
        ("act", lambda action: action[:1], r"gave actions of shape \(1,\), Discrete\(2\) needs \(2,\)"),
        ("act", lambda action: action / 2, r"gave actions array\(\[0. , 0.5\]\), which Discrete\(2\) does not have"),
    ],
)
def test_a_result_that_does_not_fit_names_the_processor(method: str, does: Any, message: str) -> None:
    with pytest.raises(EnvError, match=rf"processors\[0\] \(Faulty\) {message}"):
        play(Faulty(method, does))


def test_non_finite_observations_are_rejected_unless_a_processor_fixes_them() -> None:
    bad = {"steps": [answer(obs=np.full(3, np.nan, np.float32))]}
    message = r"env 0: returned \(through its processors\) observation nan at index"
    with pytest.raises(BadEnvDataError, match=message):
        play(Faulty("observe", np.copy), **bad)
    with pytest.raises(BadEnvDataError, match=message):
        play(Faulty("observe", lambda obs: obs * np.float32(np.nan)))
    play(MapObs(np.nan_to_num, BOX), **bad)


def test_a_nested_mismatch_is_named_by_its_path() -> None:
    space = gym.spaces.Dict(a=gym.spaces.Tuple((gym.spaces.Discrete(2), BOX)))
    obs = {"a": (0, OBS)}
    parts = {"observation_space": space, "resets": [(obs, {})], "steps": [answer(obs=obs)]}
    for does, message in [
        (lambda obs: {"a": (obs["a"][0], obs["a"][1][:, 0])}, r"observations\['a'\]\[1\] float32 \(2,\), its space"),
        (lambda obs: {"a": obs["a"][:1]}, r"observations\['a'\] tuple, its space says a tuple of 2"),
        (lambda obs: {"b": obs["a"]}, r"observations with keys \['b'\], its space says \['a'\]"),
    ]:
        with pytest.raises(EnvError, match=message):
            play(Faulty("observe", does), **parts)


MIXED = gym.spaces.Dict(aim=gym.spaces.Box(-1, 1, (1,), np.float32), fire=gym.spaces.Discrete(2))


def test_mixed_actions_are_clipped_and_unknown_choices_rejected() -> None:
    env = ScriptedEnv(action_space=MIXED)
    envs = make_envs(lambda: env, processors=[MapActions(lambda action: action + np.array([5, 0]), MIXED)])
    envs.reset()
    envs.step(np.array([[0.5, 1]], np.float32), envs.all_ids)
    assert env.actions == [{"aim": [1.0], "fire": 1}]
    assert MIXED.contains(env.actions[0])
    envs = make_envs(partial(ScriptedEnv, action_space=MIXED), processors=[Faulty("act", lambda action: action + 0.5)])
    envs.reset()
    with pytest.raises(BadEnvDataError, match=r"gave actions array\(\[\[1. , 1.5.*, which flat Dict.* does not have"):
        envs.step(np.array([[0.5, 1]], np.float32), envs.all_ids)


@pytest.mark.parametrize("nested", [gym.spaces.Dict(go=gym.spaces.Discrete(2)), MIXED])
def test_a_policy_acts_in_flat_rows_of_a_nested_space_that_a_processor_gives(nested: Any) -> None:
    def last_column(action: Any) -> Any:
        return action[:, -1].astype(int)

    for processor in (MapActions(last_column, nested), MapActions(last_column, flat_actions(nested))):
        env = ScriptedEnv()
        envs = make_envs(lambda env=env: env, processors=[processor])
        assert envs.action_space == flat_actions(nested)
        envs.reset()
        envs.step(np.ones((1, *envs.action_space.shape), envs.action_space.dtype), envs.all_ids)  # type: ignore[misc]
        assert env.actions == [1]


@pytest.mark.parametrize(
    ("processors", "message"),
    [
        ([PreviousStep], r"make_envs.processors\[0\] must be a Processor, got <class"),
        ([Faulty("bind", trips)], r"processors\[0\] \(Faulty\) raised KeyError in bind: 'shoe'"),
        (
            [Faulty("bind", lambda pair: pair[0])],
            r"\(Faulty\).bind must return an observation space and an action space",
        ),
        ([Faulty("bind", lambda pair: (gym.spaces.Text(3), pair[1]))], "is a Text, which has no fixed array"),
        (
            [Processor(), MapObs(lambda obs: obs, gym.spaces.Discrete(2))],
            r"processors\[1\] .*float32 \(3, 3\), its space",
        ),
        ([MapObs(trips, BOX)], r"MapObs.fn \(trips\) raised KeyError on blank rows of Box"),
        ([MapActions(trips, BOX)], r"MapActions.fn \(trips\) raised KeyError on blank rows of Box"),
        ([MapActions(np.copy, BOX)], r"MapActions.fn \(copy\) does not fit Discrete\(2\): it gives actions of shape"),
        (
            [PreviousStep(), PreviousStep()],
            r"\[1\] \(PreviousStep\): the observation has prev_action, prev_reward already",
        ),
    ],
)
def test_invalid_processors_are_rejected_when_environments_are_made(processors: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_envs(ScriptedEnv, 2, processors=processors)


def test_environments_that_are_made_take_no_processors() -> None:
    with pytest.raises(ConfigError, match="processors came too late for environments already made"):
        make_envs(make_envs(ScriptedEnv), processors=[PreviousStep()])


def test_environments_rejected_by_a_processor_are_closed() -> None:
    made: list[ScriptedEnv] = []

    def factory() -> ScriptedEnv:
        made.append(ScriptedEnv())
        return made[-1]

    with pytest.raises(ConfigError):
        make_envs(factory, 2, processors=[Faulty("bind", trips)])
    assert [env.n_closed for env in made] == [1, 1]


def test_the_slow_reference_detects_errors() -> None:
    """Rows of an episode that still sees the one before are found out."""

    class Forgetful(PreviousStep):
        def begin(self, obs: Obs, env_ids: Any) -> Obs:
            return self.observe(obs, np.ones(len(env_ids)), np.ones(len(env_ids)), env_ids)

    ledger = Ledger()
    envs = tagged_envs("sync", 2, processors=[Journey(), Forgetful(), TimeFeature(5)])
    Collector(Player(), envs, ledger).collect(n_step=20)
    rows: Transition = ledger.rows()
    with pytest.raises(AssertionError):
        assert_seen_as_it_was(rows.obs)


F32 = np.float32


def taken(space: gym.Space[Any], *processors: Any, actions: list[int]) -> list[Any]:
    """Return what an environment with these actions got for the policy's."""
    envs = make_envs(partial(ScriptedEnv, action_space=space), processors=processors)
    envs.reset()
    for action in actions:
        envs.step(np.array([action]), envs.all_ids)
    (env,) = envs.runner.envs  # type: ignore[attr-defined]  # Processed, SyncBackend
    return [np.asarray(one).tolist() for one in env.actions]


class TestDiscretizeActions:
    def test_values_are_evenly_spaced_between_bounds_that_are_met_exactly(self) -> None:
        box = gym.spaces.Box(-2, 2, (1,), F32)
        assert taken(box, DiscretizeActions(5), actions=[0, 1, 2, 3, 4]) == [[-2], [-1], [0], [1], [2]]
        narrow = gym.spaces.Box(-0.1, 0.7, (1,), F32)
        first, *_, last = taken(narrow, DiscretizeActions(7), actions=list(range(7)))
        assert (first, last) == ([float(F32(-0.1))], [float(F32(0.7))])

    def test_every_combination_of_axes_is_an_action_the_last_varying_fastest(self) -> None:
        box = gym.spaces.Box(np.array([-1, 0], F32), np.array([1, 4], F32))
        expected = [[-1, 0], [-1, 2], [-1, 4], [1, 0], [1, 2], [1, 4]]
        assert taken(box, DiscretizeActions([2, 3]), actions=list(range(6))) == expected

    def test_a_box_keeps_its_shape_and_dtype(self) -> None:
        box = gym.spaces.Box(-1, 1, (2, 1), np.float64)
        envs = make_envs(partial(ScriptedEnv, action_space=box), 3, processors=[DiscretizeActions(2)])
        assert envs.action_space == gym.spaces.Discrete(4)
        envs.reset()
        envs.step(np.array([0, 1, 3]), envs.all_ids)
        got = [env.actions[0] for env in envs.runner.envs]  # type: ignore[attr-defined]  # as above
        assert [one.tolist() for one in got] == [[[-1], [-1]], [[-1], [1]], [[1], [1]]]
        assert {one.dtype for one in got} == {np.dtype(np.float64)}

    @pytest.mark.parametrize(
        ("space", "bins", "message"),
        [
            (gym.spaces.Discrete(2), 3, r"needs a Box of real numbers to act in, got Discrete\(2\)"),
            (gym.spaces.Box(0, 9, (1,), np.int32), 3, "needs a Box of real numbers"),
            (gym.spaces.Box(-np.inf, 1, (1,)), 3, "needs bounds to space its values between, got Box"),
            (gym.spaces.Box(-1, 1, (2,)), [3], r"bins must be one number per axis of Box.*got \[3\]"),
            (gym.spaces.Box(-1, 1, (8,)), 5, "makes 390,625 actions of .*, more than 65,536: use fewer bins"),
        ],
    )
    def test_an_unsupported_space_or_number_of_bins_is_rejected(self, space: Any, bins: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=rf"processors\[0\] \(DiscretizeActions\): DiscretizeActions.*{message}"):
            make_envs(partial(ScriptedEnv, action_space=space), processors=[DiscretizeActions(bins)])

    @pytest.mark.parametrize("bins", [1, 2.5, [3, 1], True])
    def test_bins_are_whole_numbers_from_two_on(self, bins: Any) -> None:
        with pytest.raises(ConfigError, match=r"DiscretizeActions.bins must be a whole number >= 2"):
            DiscretizeActions(bins)


class TestPreviousStep:
    @pytest.mark.parametrize(
        ("space", "action", "seen", "none", "before"),
        [
            (gym.spaces.Discrete(3, start=4), 2, gym.spaces.Discrete(4, start=4), 7, 6),
            (
                gym.spaces.MultiDiscrete([2, 3], start=[1, 5]),
                [2, 7],
                gym.spaces.MultiDiscrete([3, 4], start=[1, 5]),
                [3, 8],
                [2, 7],
            ),
            (gym.spaces.MultiBinary(2), [0, 1], gym.spaces.MultiDiscrete([3, 3]), [2, 2], [0, 1]),
            (gym.spaces.Box(1, 3, (1,), F32), [9.0], gym.spaces.Box(0, 3, (1,), F32), [0.0], [3.0]),
        ],
        ids=["Discrete", "MultiDiscrete", "MultiBinary", "Box"],
    )
    def test_each_kind_of_action_has_one_that_is_none(
        self, space: Any, action: Any, seen: Any, none: Any, before: Any
    ) -> None:
        envs = make_envs(
            partial(ScriptedEnv, action_space=space, steps=[answer(reward=2.5)]), processors=[PreviousStep()]
        )
        assert envs.observation_space["prev_action"] == seen
        first = envs.reset()
        assert first["prev_action"][0].tolist() == none
        assert first["prev_reward"].tolist() == [[0.0]]
        outcome = envs.step(np.array([action]), envs.all_ids)
        assert outcome.next_obs["prev_action"][0].tolist() == before
        assert outcome.next_obs["prev_reward"].tolist() == [[2.5]]
        for obs in (first, outcome.next_obs):
            assert envs.observation_space.contains({key: leaf[0] for key, leaf in obs.items()})

    def test_either_half_may_be_left_out_but_not_both(self) -> None:
        one, other = (
            make_envs(ScriptedEnv, processors=[half])
            for half in (PreviousStep(reward=False), PreviousStep(action=False))
        )
        assert sorted(one.reset()) == ["obs", "prev_action"]
        assert sorted(other.reset()) == ["obs", "prev_reward"]
        with pytest.raises(ConfigError, match="shows neither action nor reward: leave it out"):
            PreviousStep(action=False, reward=False)

    def test_a_policy_sees_one_number_per_action_and_one_for_none(self) -> None:
        envs = make_envs(ScriptedEnv, 2, processors=[PreviousStep()], stack=2)
        policy = tk.DQNPolicy.for_envs(envs, hidden=(8,), device="cpu", seed=0)
        obs = envs.reset()
        features = policy.features(obs)
        assert features["prev_action"].tolist() == [[0, 0, 1, 0, 0, 1]] * 2  # two frames of three numbers
        obs = envs.step(np.array([0, 1]), envs.all_ids).next_obs
        features = policy.features(obs)
        assert features["prev_action"].tolist() == [[0, 0, 1, 1, 0, 0], [0, 0, 1, 0, 1, 0]]
        assert features["prev_reward"].tolist() == [[0, 1], [0, 1]]


def test_time_runs_from_0_to_1_and_stays_there() -> None:
    envs = make_envs(ScriptedEnv, processors=[TimeFeature(2)])
    seen = [envs.reset()["time"].tolist()]
    seen += [envs.step(np.array([0]), envs.all_ids).next_obs["time"].tolist() for _ in range(3)]
    assert seen == [[[0.0]], [[0.5]], [[1.0]], [[1.0]]]
    with pytest.raises(ConfigError, match=r"TimeFeature.limit must be a whole number >= 1, got 0"):
        TimeFeature(0)


def test_a_method_that_an_object_chose_when_it_was_bound_is_called() -> None:
    class Tenfold(tk.envs.Processor):
        def bind(self, observation_space: Any, action_space: Any, n: int) -> Any:
            self.begin = lambda obs, env_ids: 10 * obs  # type: ignore[method-assign]
            return observation_space, action_space

    plain, tenfold = (tk.make_envs("CartPole-v1", 2, seed=1, processors=own) for own in ((), (Tenfold(),)))
    np.testing.assert_array_equal(tenfold.reset(), 10 * plain.reset())


class TestFlatten:
    SPACE = gym.spaces.Dict(
        {
            "b": gym.spaces.Tuple((gym.spaces.Discrete(3, start=5), gym.spaces.MultiBinary(2))),
            "a": gym.spaces.Box(-1, 9, (2, 2), np.int32),
            "c": gym.spaces.MultiDiscrete([[2], [3]], start=[[1], [4]]),
        }
    )
    OBS: ClassVar = {"b": (6, np.array([0, 1], np.int8)), "a": np.array([[1, 2], [3, -1]]), "c": np.array([[2], [4]])}
    FLAT: ClassVar = [1, 2, 3, -1, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0]  # a, both of b, c: by the names of their keys

    def test_every_leaf_becomes_numbers_in_the_order_of_its_key(self) -> None:
        nested = partial(
            ScriptedEnv, observation_space=self.SPACE, resets=[(self.OBS, {})], steps=[answer(obs=self.OBS)]
        )
        envs = make_envs(nested, 2, processors=[Flatten()])
        first = envs.reset()
        assert first.tolist() == [self.FLAT] * 2
        assert first.dtype == F32
        assert envs.step(np.array([0, 1]), envs.all_ids).next_obs.tolist() == [self.FLAT] * 2
        space = envs.observation_space
        assert isinstance(space, gym.spaces.Box)
        assert (space.low[:5].tolist(), space.high[:5].tolist()) == ([-1, -1, -1, -1, 0], [9, 9, 9, 9, 1])
        assert space.contains(first[0])

    def test_a_mask_stays_a_leaf_of_its_own(self) -> None:
        envs = tagged_envs("sync", 2, "masked", processors=[PreviousStep(action=False), Flatten()])
        obs = envs.reset()
        assert sorted(obs) == [ACTION_MASK, "obs"]
        assert obs["obs"].tolist() == [[0, 0, 0, -1, 0], [1, 0, 0, -1, 0]]
        np.testing.assert_array_equal(obs[ACTION_MASK], legal(np.arange(2), 0, 0))

    def test_a_policy_makes_the_same_of_it_as_of_the_tree(self) -> None:
        chain = [PreviousStep(), TimeFeature(9)]
        nested, flat = (make_envs(ScriptedEnv, 2, processors=own) for own in (chain, [*chain, Flatten()]))
        features = tk.nets.Preprocess(nested.observation_space)
        for envs in (nested, flat):
            envs.reset()
            envs.step(np.array([0, 1]), envs.all_ids)
        obs = {key: torch.as_tensor(leaf) for key, leaf in nested.obs.items()}
        joined = torch.cat([leaf for _, leaf in sorted(features(obs).items())], dim=1)
        np.testing.assert_array_equal(joined, flat.obs)


@pytest.mark.parametrize("kind", [MapObs, tk.envs.MapActions])
def test_a_function_and_its_space_are_required(kind: Any) -> None:
    with pytest.raises(ConfigError, match=r"fn must be callable, got 3"):
        kind(3, gym.spaces.Discrete(2))
    with pytest.raises(ConfigError, match=r"space must be a Space, got 'Box'"):
        kind(lambda rows: rows, "Box")


# ---- whole runs ----


@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_q_learner_drives_the_pendulum(backend: Any) -> None:
    options: dict[str, Any] = {"processors": [PreviousStep(), DiscretizeActions(5)]}
    envs = make_envs("Pendulum-v1", 2, backend=backend, **options)
    policy = tk.DQNPolicy.for_envs(envs, hidden=(8,), device="cpu")
    buffer = tk.ReplayBuffer(300)
    with tk.OffpolicyTrainer(
        policy,
        tk.Collector(policy, envs, buffer),
        max_epoch=1,
        step_per_epoch=300,
        batch_size=8,
        update_per_step=0.1,
        seed=1,
        verbose=False,
    ) as trainer:
        trainer.run()
    batch = buffer.sample(200, horizon=tk.Horizon())
    assert batch.action.dtype == np.int64
    assert set(batch.action.tolist()) == {0, 1, 2, 3, 4}
    np.testing.assert_array_equal(
        batch.next_obs["prev_action"][:, 0], [-2.0, -1.0, 0.0, 1.0, 2.0] @ np.eye(5)[batch.action].T
    )
    assert tk.evaluate(policy, "Pendulum-v1", n_episode=2, seed=1, **options).n_episode == 2


def test_a_preset_takes_them_for_training_and_evaluation() -> None:
    options = {"processors": [TimeFeature(200), DiscretizeActions(3)]}
    trainer = tk.presets.dqn(
        "Pendulum-v1", seed=1, env_options=options, max_epoch=1, step_per_epoch=424, learning_starts=400,
        step_per_collect=8, n_envs=2, n_test_envs=2, episode_per_test=2, hidden=(8,), device="cpu", verbose=False,
    )  # fmt: skip
    with trainer:
        assert trainer.run().env_step == 424


@pytest.mark.parametrize("kind", ["off-policy", "on-policy"])
def test_a_run_with_processors_that_was_saved_is_the_run_that_never_stopped(kind: str, tmp_path: Path) -> None:
    def trainer(**more: Any) -> Any:
        options = {"processors": [PreviousStep(), TimeFeature(100)], "stack": 2}
        common: dict[str, Any] = {"seed": 1, "verbose": False, "hidden": (8,), "device": "cpu", "step_per_epoch": 64}
        preset = tk.presets.dqn if kind == "off-policy" else tk.presets.ppo
        own: dict[str, Any] = {"learning_starts": 32} if kind == "off-policy" else {"step_per_collect": 64}
        return preset("CartPole-v1", env_options=options, max_epoch=3, episode_per_test=2, **common, **own, **more)

    with trainer() as straight:
        next(straight)
        straight.save(tmp_path / "run")
        straight.run()
    with trainer(resume_from=tmp_path / "run") as again:
        assert again.run().epoch == 3
    weights = [torch.cat([own.detach().flatten() for own in one.policy.parameters()]) for one in (straight, again)]
    assert torch.equal(*weights)  # the episodes that were open continued where they were


class Angle(Processor):
    """Log the pole's angle after every step, and the number of episodes that begin."""

    def begin(self, obs: Obs, env_ids: Any) -> Obs:
        self.log("episodes/begun", 1 if len(env_ids) == 1 else np.ones(len(env_ids)))
        return obs

    def observe(self, obs: Obs, action: Any, reward: Any, env_ids: Any) -> Obs:
        self.log("angle", obs[:, 2])
        return obs


def test_what_processors_log_is_summarized_over_the_rows_of_the_epoch(tmp_path: Path) -> None:
    def trainer(**more: Any) -> Any:
        return tk.presets.ppo(
            "CartPole-v1", env_options={"processors": [Angle(), Angle()]}, seed=1, verbose=False, hidden=(8,),
            device="cpu", max_epoch=2, step_per_epoch=192, step_per_collect=64, n_envs=4, log_every=64, n_test_envs=2,
            episode_per_test=2, **more,
        )  # fmt: skip

    rows: list[Transition] = []

    def keep(trainer: Any, stats: Any) -> None:
        rows.append(trainer.buffer.get(trainer.train_collector.collected_slots))

    with trainer(logger=tk.JsonlLogger(tmp_path / "lines"), callbacks=tk.on(collect_end=keep)) as straight:
        _, first, _ = next(straight)
        angles = np.concatenate([step.next_obs[:, 2] for step in rows]).astype(np.float64)
        logged = first.train.processors["angle"]
        assert (logged.count, logged.min, logged.max) == (2 * 192, angles.min(), angles.max())  # of both processors
        np.testing.assert_allclose([logged.mean, logged.std], [angles.mean(), angles.std()], rtol=1e-9)
        assert first["train/processors/episodes/begun/mean"] == 1.0
        assert first.train.processors["episodes/begun"].count == 2 * (4 + first.train.n_episode)
        assert first.test.processors["angle"].count == 2 * first.test.n_step
        straight.save(tmp_path / "run")
        second = next(straight).stats.train.processors
    lines = [json.loads(line) for line in (tmp_path / "lines" / "numbers.jsonl").read_text().splitlines()]
    means = [line["train/processors/angle/mean"] for line in lines if "train/processors/angle/mean" in line]
    np.testing.assert_allclose(means[:3], [step.next_obs[:, 2].mean() for step in rows[:3]], rtol=1e-6)
    with trainer(resume_from=tmp_path / "run") as again:  # whose open episodes are replayed, and not logged twice
        assert next(again).stats.train.processors == second


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("angle", np.array([1.0, np.nan]), r"in observe: Processor.log needs finite numbers for 'angle', got array"),
        ("", 1.0, r"in observe: Processor.log needs a name, got ''"),
    ],
)
def test_what_cannot_be_summarized_is_rejected_where_it_is_logged(name: str, values: Any, message: str) -> None:
    class Bad(Processor):
        def observe(self, obs: Obs, action: Any, reward: Any, env_ids: Any) -> Obs:
            self.log(name, values)
            return obs

    with pytest.raises(EnvError, match=rf"processors\[0\] \(Bad\) raised ConfigError {message}"):
        play(Bad())


def test_a_policy_for_other_processors_is_rejected() -> None:
    policy = tk.DQNPolicy.for_envs(make_envs("CartPole-v1"), device="cpu")
    with pytest.raises(SpaceMismatchError, match="observation_space is Box"):
        tk.evaluate(policy, "CartPole-v1", n_episode=1, processors=[PreviousStep()])
