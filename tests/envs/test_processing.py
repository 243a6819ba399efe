"""Processors: what they see of every row, in which order, and whose fault it is when one fails."""

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.helpers.doubles import Ledger, Player, Still
from tests.helpers.tagged import Form, decode, legal, reward
from tests.helpers.told import OBS, ToldEnv, ToldVectorEnv, answer
from tests.helpers.truth import IN_PROCESS, IN_PROCESSES, assert_rows_are_real, tagged_envs
from trainkit.buffer import ReplayBuffer
from trainkit.collector import Collector
from trainkit.core import tree
from trainkit.core.data import ACTION_MASK, Horizon, Obs, Transition
from trainkit.core.errors import BadEnvDataError, CheckpointError, ConfigError, EnvError
from trainkit.envs import Envs, MapActions, MapObs, PreviousStep, Processor, TimeFeature, make_envs

BOX = gym.spaces.Box(-1, 1, (3,), np.float32)


class Journey(Processor):
    """Let the policy see the sum of the steps of its episode so far: something only kept state can tell."""

    def bind(self, observation_space: Any, action_space: Any, n: int) -> Any:
        self.total = np.zeros(n)
        inner = observation_space if isinstance(observation_space, gym.spaces.Dict) else {"obs": observation_space}
        travelled = gym.spaces.Box(0, np.inf, (), np.float32)
        return gym.spaces.Dict({**inner, "travelled": travelled}), action_space

    def begin(self, obs: Obs, env_ids: Any) -> Obs:
        self.total[env_ids] = 0
        return self.seen(obs, env_ids)

    def observe(self, obs: Obs, action: Any, reward: Any, env_ids: Any) -> Obs:
        assert len(env_ids), "nobody is called for no rows"
        self.total[env_ids] += decode(obs)[:, 2]
        return self.seen(obs, env_ids)

    def seen(self, obs: Obs, env_ids: Any) -> Obs:
        inner = obs if isinstance(obs, dict) else {"obs": obs}
        return {**inner, "travelled": self.total[env_ids].astype(np.float32)}


def assert_seen_as_it_was(obs: Obs, limit: int = 5) -> None:
    """Check each frame by itself against what its tag says, one after the other: the slow twin."""
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
    heard: list[str] = []

    class Scribe(Processor):
        def __init__(self, name: str, adds: int = 0) -> None:
            self.name, self.adds = name, adds

        def begin(self, obs: Obs, env_ids: Any) -> Obs:
            heard.append(f"{self.name} begins")
            return obs

        def observe(self, obs: Obs, action: Any, reward: Any, env_ids: Any) -> Obs:
            heard.append(f"{self.name} sees {action.tolist()}")
            return obs

        def act(self, action: Any, env_ids: Any) -> Any:
            heard.append(f"{self.name} takes {action.tolist()}")
            return action + self.adds

    chain = [Scribe("inner", adds=1), MapActions(doubled, gym.spaces.Discrete(10, start=3)), Scribe("outer")]
    envs = make_envs(partial(ToldEnv, action_space=space), 2, processors=chain)
    assert envs.action_space == gym.spaces.Discrete(10)
    envs.reset()
    envs.step(np.array([0, 9]), envs.all_ids)
    assert heard == [
        "inner begins",
        "outer begins",
        "outer takes [3, 12]",
        "inner takes [6, 24]",
        "inner sees [6, 24]",
        "outer sees [3, 12]",
    ]
    assert ask_told(envs, "actions") == [[7], [25]]


def ask_told(envs: Envs, name: str) -> list[Any]:
    return [getattr(env, name) for env in envs._backend._backend.envs]  # type: ignore[attr-defined]  # Processed, Sync


def test_the_policys_own_actions_and_observations_are_stored() -> None:
    ledger = Ledger()
    box = gym.spaces.Box(-2, 2, (1,), np.float32)
    lever = MapActions(lambda action: np.array([[-9.0], [1.5]])[action], gym.spaces.Discrete(2))
    seen = MapObs(lambda obs: obs[:, :2] * 2, gym.spaces.Box(-2, 2, (2,), np.float32))
    envs = make_envs(partial(ToldEnv, action_space=box), 2, processors=[lever, seen])
    Collector(Still(1), envs, ledger).collect(n_step=2)
    rows = ledger.rows()
    assert rows.action.tolist() == [1, 1]
    np.testing.assert_array_equal(rows.obs, [[0, 1], [0, 1]])
    np.testing.assert_array_equal(rows.next_obs, [[0, 1], [0, 1]])
    assert [one.tolist() for (one,) in ask_told(envs, "actions")] == [[1.5], [1.5]]
    Collector(Still(0), envs, ledger).collect(n_step=2)
    assert [one[-1].tolist() for one in ask_told(envs, "actions")] == [[-2.0], [-2.0]]  # within the Box


def test_a_vector_environment_has_them_too() -> None:
    vector_env = ToldVectorEnv(AutoresetMode.NEXT_STEP)
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
    later = [own.state_dict()["processors"][1]["rng"]["state"]["state"] for own in (one, other)]
    assert later[0] == later[1] != envs().state_dict()["processors"][1]["rng"]["state"]["state"]
    with pytest.raises(CheckpointError, match="2 processors were saved, but there are 1: make_envs as before"):
        tagged_envs("sync", 2, processors=[Sticky(3)]).load_state_dict(one.state_dict())


# ---- whose fault ----


class Faulty(Processor):
    """Fail in one method, or answer what it is told to."""

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
    envs = make_envs(partial(ToldEnv, **parts), 2, processors=[PreviousStep(), *processors][-len(processors) :])
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
        make_envs(ToldEnv, 2, processors=processors)


def test_environments_that_are_made_take_no_processors() -> None:
    with pytest.raises(ConfigError, match="processors came too late for environments already made"):
        make_envs(make_envs(ToldEnv), processors=[PreviousStep()])


def test_environments_rejected_by_a_processor_are_closed() -> None:
    made: list[ToldEnv] = []

    def factory() -> ToldEnv:
        made.append(ToldEnv())
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
