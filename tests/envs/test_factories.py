"""Factories receive their context, given spaces replace the declared ones, a user's function validates."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.helpers.doubles import Ledger, Still
from tests.helpers.scripted_env import STEP, ScriptedEnv
from tests.helpers.tagged import N_ACTIONS, TaggedEnv
from trainkit import RandomPolicy, evaluate, presets
from trainkit.collector import Collector
from trainkit.core.errors import BadEnvDataError, ConfigError
from trainkit.core.seeding import derive
from trainkit.envs import EnvContext, Envs, check_env, make_envs
from trainkit.envs.factories import accepts_context

forks = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


class Knowing(ScriptedEnv):
    """Keep the context of the factory."""

    def __init__(self, context: EnvContext, word: str = "") -> None:
        super().__init__()
        self.context, self.word = context, word


def knowing(context: EnvContext, *, word: str = "") -> Knowing:
    return Knowing(context, word)


@pytest.mark.parametrize("backend", ["sync", pytest.param("async", marks=forks)])
def test_a_factory_with_one_required_parameter_receives_its_context(backend: Any) -> None:
    envs = make_envs(knowing, 3, seed=7, backend=backend, env_kwargs={"word": "hi"})
    assert envs.call("word") == ["hi"] * 3
    contexts = envs.call("context")
    envs.close()
    assert contexts == [
        EnvContext(index=index, n_envs=3, seed=derive(7, "context", index), in_evaluation=False) for index in range(3)
    ]
    assert len({context.seed for context in contexts}) == 3


def test_each_factory_of_a_list_receives_its_own_index() -> None:
    envs = make_envs([knowing, lambda context: Knowing(context)])
    assert [(context.index, context.n_envs) for context in envs.call("context")] == [(0, 2), (1, 2)]


def test_without_a_seed_the_context_has_none() -> None:
    (context,) = make_envs(knowing).call("context")
    assert context.seed is None


def test_the_context_of_evaluation_environments_is_marked() -> None:
    made: list[EnvContext] = []

    def factory(context: EnvContext) -> gym.Env[Any, Any]:
        made.append(context)
        return TaggedEnv(context.index)

    make_envs(factory, 2, in_evaluation=True)
    evaluate(RandomPolicy(gym.spaces.Discrete(N_ACTIONS), seed=0), factory, n_episode=2, seed=0)
    assert [context.in_evaluation for context in made] == [True] * 4


def test_presets_mark_the_context_of_their_evaluation_environments() -> None:
    made: list[EnvContext] = []

    def factory(context: EnvContext) -> gym.Env[Any, Any]:
        made.append(context)
        return TaggedEnv(context.index)

    presets.dqn(factory, n_envs=2, n_test_envs=3, seed=0).close()
    assert [context.in_evaluation for context in made] == [False] * 2 + [True] * 3


class Called:
    def __call__(self, context: Any) -> None: ...

    def method(self, context: Any) -> None: ...


@pytest.mark.parametrize(
    ("factory", "given", "wants"),
    [
        pytest.param(lambda: None, {}, False, id="nothing"),
        pytest.param(lambda context: None, {}, True, id="one"),
        pytest.param(lambda context, /: None, {}, True, id="positional-only"),
        pytest.param(lambda env=3: None, {}, False, id="a default"),
        pytest.param(lambda a, b: None, {}, False, id="two"),
        pytest.param(lambda a, b: None, {"b": 1}, True, id="two, one given"),
        pytest.param(lambda a: None, {"a": 1}, False, id="one, given"),
        pytest.param(lambda *a: None, {}, False, id="any number"),
        pytest.param(lambda *, a: None, {}, False, id="by name only"),
        pytest.param(lambda context, *, a=1, **more: None, {}, True, id="and more by name"),
        pytest.param(partial(TaggedEnv, 3), {}, False, id="a class's partial"),
        pytest.param(partial(knowing, word="x"), {}, True, id="a function's partial"),
        pytest.param(TaggedEnv, {}, False, id="a class"),
        pytest.param(Called(), {}, True, id="callable"),
        pytest.param(Called().method, {}, True, id="method"),
        pytest.param(min, {}, False, id="built in"),
    ],
)
def test_only_a_single_positional_parameter_without_a_default_receives_the_context(
    factory: Any, given: dict[str, Any], wants: bool
) -> None:
    assert accepts_context(factory, given) is wants


NARROW = gym.spaces.Box(-5, 5, (3,), np.float32)
ways = pytest.mark.parametrize("way", ["sync", pytest.param("async", marks=forks), "vector"])


def envs_of(way: str, made: Callable[[], Any], **options: Any) -> Envs:
    if way == "vector":
        return make_envs(SyncVectorEnv([made, made], autoreset_mode=AutoresetMode.NEXT_STEP), **options)
    return make_envs(made, 2, backend=way, **options)


@ways
def test_given_spaces_stand_instead_of_the_environments_own(way: str) -> None:
    box = gym.spaces.Box(-2, 2, (2,), np.float32)
    half = gym.spaces.Box(-1, np.array([0, 1], np.float32), (2,), np.float32)
    envs = envs_of(way, partial(ScriptedEnv, action_space=box), observation_space=NARROW, action_space=half)
    assert (envs.observation_space, envs.action_space) == (NARROW, half)
    ledger = Ledger()
    Collector(Still(np.array([-1.0, 0.5], np.float32)), envs, ledger).collect(n_step=4)
    assert ledger.rows().obs.dtype == np.float32
    envs.close()


def test_actions_are_clipped_to_the_given_space() -> None:
    box = gym.spaces.Box(-2, 2, (1,), np.float32)
    env = ScriptedEnv(action_space=box)
    envs = make_envs(lambda: env, action_space=gym.spaces.Box(-1, 1, (1,), np.float32))
    envs.reset()
    envs.step(np.array([[-3.0]], np.float32), envs.all_ids)
    assert env.actions[0].tolist() == [-1.0]


def test_a_given_discrete_space_is_a_part_of_the_environments() -> None:
    env = ScriptedEnv(action_space=gym.spaces.Discrete(6))
    envs = make_envs(lambda: env, action_space=gym.spaces.Discrete(3, start=2))
    assert envs.action_space == gym.spaces.Discrete(3)
    Collector(Still(2), envs).collect(n_step=1)
    assert env.actions == [4]


def test_an_environment_without_spaces_has_those_given() -> None:
    class Bare(gym.Env[Any, Any]):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return np.zeros(3, np.float32), {}

        def step(self, action: Any) -> Any:
            return STEP

    envs = make_envs(Bare, observation_space=NARROW, action_space=gym.spaces.Discrete(2))
    assert Collector(Still(), envs).collect(n_step=3).n_step == 3


@pytest.mark.one_of_each
@ways
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"observation_space": gym.spaces.Box(-1, 1, (4,), np.float32)},
            r"make_envs.observation_space Box.* has other shapes than the environment's Box.*: give one of the same",
        ),
        (
            {"observation_space": gym.spaces.Dict(a=NARROW)},
            r"make_envs.observation_space Dict.* has other shapes than the environment's",
        ),
        ({"observation_space": gym.spaces.Text(3)}, r"make_envs.observation_space is a Text, which has no fixed array"),
        (
            {"action_space": gym.spaces.Discrete(3)},
            r"make_envs.action_space Discrete\(3\) is not within .*Discrete\(2\)",
        ),
        (
            {"action_space": gym.spaces.Discrete(2, start=1)},
            r"make_envs.action_space Discrete\(2, start=1\) is not within",
        ),
        ({"action_space": gym.spaces.MultiBinary(2)}, r"make_envs.action_space MultiBinary\(2\) is not within"),
        ({"observation_space": (3,)}, r"make_envs.observation_space must be a Space.*, got \(3,\)"),
        ({"action_space": 2}, r"make_envs.action_space must be a Space.*, got 2"),
    ],
)
def test_spaces_that_do_not_fit_the_environment_are_rejected(way: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        envs_of(way, ScriptedEnv, **options)


@ways
def test_an_observation_that_does_not_fit_a_given_space_raises(way: str) -> None:
    space = gym.spaces.Box(0, 255, (3,), np.uint8)  # and 0.5 comes
    envs = envs_of(way, ScriptedEnv, observation_space=space)
    with pytest.raises(BadEnvDataError, match="which does not fit the space's uint8"):
        Collector(Still(), envs).collect(n_step=1)
    envs.close()


def test_a_given_box_is_within_the_environments_in_every_dimension() -> None:
    own = gym.spaces.Box(np.array([-1, -9], np.float32), np.array([1, 9], np.float32))
    for low, high in (([-2, 0], [1, 1]), ([0, 0], [1, 10])):
        given = gym.spaces.Box(np.array(low, np.float32), np.array(high, np.float32))
        with pytest.raises(ConfigError, match="is not within"):
            make_envs(partial(ScriptedEnv, action_space=own), action_space=given)


# ---- a function of one's own ----


@pytest.mark.parametrize("backend", ["sync", pytest.param("async", marks=forks)])
def test_a_function_of_ones_own_validates_every_environment_where_it_runs(backend: Any, tmp_path: Any) -> None:
    def validate(env: Any) -> None:
        assert isinstance(env, gym.wrappers.TimeLimit)  # the wrappers are on it
        env.reset(seed=0)
        (tmp_path / f"{os.getpid()}-{len(list(tmp_path.iterdir()))}").touch()

    make_envs(ScriptedEnv, 3, backend=backend, max_episode_steps=5, validate_env=validate).close()
    pids = {path.name.split("-")[0] for path in tmp_path.iterdir()}
    assert len(list(tmp_path.iterdir())) == 3
    assert (pids == {str(os.getpid())}) == (backend == "sync")


@pytest.mark.parametrize("backend", ["sync", pytest.param("async", marks=forks)])
def test_an_environment_that_the_function_rejects_is_named(backend: Any) -> None:
    def validate(env: Any) -> bool:
        if env.unwrapped.number == 1:
            raise ValueError("one is not a number I like")
        return bool(env.unwrapped.number != 2)

    def numbered(number: int) -> ScriptedEnv:
        env = ScriptedEnv()
        env.number = number  # type: ignore[attr-defined]  # of ours
        return env

    made = [partial(numbered, number) for number in (0, 3)]
    make_envs(made, backend=backend, validate_env=validate).close()
    for number, message in ((1, "ValueError: one is not a number I like"), (2, "it returned False for")):
        with pytest.raises(ConfigError, match=f"make_envs.validate_env rejects env 2: {message}"):
            make_envs([*made, partial(numbered, number)], backend=backend, validate_env=validate)


def test_a_function_cannot_look_into_a_vector_environment() -> None:
    with pytest.raises(
        ConfigError, match="validate_env is called with single environments, which a vector environment"
    ):
        make_envs("CartPole-v1", 2, backend="vector", validate_env=print)
    with pytest.raises(ConfigError, match="validate_env must be a function of an environment, got 'yes'"):
        make_envs("CartPole-v1", validate_env="yes")  # type: ignore[arg-type]  # on purpose
    envs = make_envs(ScriptedEnv)
    with pytest.raises(ConfigError, match="validate_env, observation_space came too late"):
        make_envs(envs, validate_env=print, observation_space=NARROW)


def test_check_env_reports_what_the_function_rejects() -> None:
    def validate(env: Any) -> None:
        raise ValueError("too small")

    (finding, *_) = check_env(ScriptedEnv, n_steps=2, validate_env=validate)
    assert (finding.level, finding.what) == ("error", "validate_env rejects the environment: ValueError: too small")
    assert all(finding.level != "error" for finding in check_env(ScriptedEnv, n_steps=2, validate_env=lambda env: None))
