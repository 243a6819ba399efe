"""Environments are made from whatever names them, or refused with what to do instead."""

import logging
import multiprocessing
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.helpers.told import ToldEnv
from tests.helpers.truth import ask
from trainkit.collector import make_envs
from trainkit.collector.backends import SyncBackend
from trainkit.data import ACTION_MASK
from trainkit.errors import ConfigError, EnvError

MADE: list[ToldEnv] = []


def kept(**options: Any) -> ToldEnv:
    """Make an environment and keep hold of it."""
    MADE.append(ToldEnv(**options))
    return MADE[-1]


@pytest.fixture(autouse=True)
def nothing_made_before() -> None:
    MADE.clear()


class Outer(gym.Wrapper[Any, Any, Any, Any]):
    """Add a word to the name of what it wraps."""

    def __init__(self, env: gym.Env[Any, Any], word: str = "outer") -> None:
        super().__init__(env)
        self.words = [*getattr(env, "words", []), word]


@pytest.mark.parametrize(
    ("spec", "n", "name"),
    [
        ("CartPole-v1", 3, "CartPole-v1"),
        (ToldEnv, 2, "ToldEnv"),
        (lambda: ToldEnv(), 2, "<lambda>"),
        ([ToldEnv, ToldEnv, ToldEnv], 1, "custom"),
        ([ToldEnv, ToldEnv], 2, "custom"),
        ("tests.helpers.told.ToldEnv", 2, "tests.helpers.told.ToldEnv"),
    ],
)
def test_environments_are_made_from_an_id_a_class_a_factory_or_a_list(spec: Any, n: int, name: str) -> None:
    envs = make_envs(spec, n)
    assert envs.n == (len(spec) if isinstance(spec, list) else n)
    assert envs.name == name
    made = envs._backend
    assert isinstance(made, SyncBackend)
    assert len({id(env.unwrapped) for env in made.envs}) == envs.n
    envs.close()


def test_a_vector_environment_and_made_environments_are_taken_as_they_are() -> None:
    vector_env = SyncVectorEnv([ToldEnv] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    envs = make_envs(vector_env, seed=4)
    assert envs.n == 3
    assert envs.is_seeded
    assert make_envs(envs) is envs
    assert make_envs(gym.make_vec("CartPole-v1", 2)).name == "CartPole-v1"


def test_wrappers_go_on_from_the_inside_out_and_arguments_reach_the_constructor() -> None:
    space = spaces.Discrete(7)
    inner = partial(Outer, word="inner")
    envs = make_envs(ToldEnv, 2, wrappers=[inner, Outer], env_kwargs={"action_space": space})
    assert ask(envs, "words") == [["inner", "outer"]] * 2
    assert envs.action_space == space


@pytest.mark.parametrize("spec", ["CartPole-v1", ToldEnv])
def test_a_limit_of_steps_truncates_there(spec: Any) -> None:
    envs = make_envs(spec, 1, max_episode_steps=3)
    envs.reset(seed=0)
    truncated = [bool(envs.step(np.zeros(1, np.int64), envs.all_ids).truncated[0]) for _ in range(3)]
    assert truncated == [False, False, True]
    envs.close()


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("CartPol-v1", {}, "CartPol.* doesn't exist. Did you mean: `CartPole`"),
        ("CartPole-v9", {}, "make_envs: .*v9"),
        ("Nowhere/Pong-v5", {}, "make_envs: Namespace Nowhere not found"),
        ("not an id", {}, "make_envs: Malformed environment ID"),
        ("no.such.Class", {}, "'no.such.Class' is neither a registered id nor a class that can be imported: No module"),
        ("tests.helpers.told.Nobody", {}, "has no attribute 'Nobody'"),
        (5, {}, "needs an id, a factory, a list of factories or a vector environment, got 5"),
        ([], {}, r"needs an id, a factory, .* got \[\]"),
        (["CartPole-v1"], {}, "needs an id, a factory, a list of factories"),
        ([ToldEnv, ToldEnv], {"n": 3}, "n is 3, but 2 factories were given: leave n out"),
        (lambda: 5, {}, "the factory must return a gymnasium.Env, got 5"),
        (ToldEnv, {"n": 0}, "make_envs.n must be a whole number >= 1, got 0"),
        (ToldEnv, {"n": True}, "make_envs.n must be a whole number >= 1, got True"),
        (ToldEnv, {"stack": 0, "seed": -1}, r"stack must be .* got 0\nmake_envs.seed must be .* got -1"),
        (ToldEnv, {"max_episode_steps": 0}, "max_episode_steps must be a whole number >= 1, got 0"),
        (ToldEnv, {"backend": "asink"}, "backend must be one of .* got 'asink', did you mean 'async'"),
        (
            ToldEnv,
            {"mask_key": "legal", "env_kwargs": {"action_space": spaces.Box(-1, 1)}},
            "mask needs a Discrete action",
        ),
    ],
)
def test_what_cannot_be_made_is_refused(spec: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_envs(spec, **options)


def test_one_environment_is_no_recipe_for_many() -> None:
    with pytest.raises(ConfigError, match="needs an id or a factory, not one environment: pass `lambda: env`"):
        make_envs(ToldEnv())  # type: ignore[arg-type]  # the mistake itself


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 3}, "n is 3, but 2 environments were given: leave n out"),
        ({"wrappers": [Outer]}, "come too late for environments already made"),
        ({"max_episode_steps": 5}, "come too late"),
        ({"env_kwargs": {"a": 1}}, "come too late"),
    ],
)
def test_what_comes_too_late_for_made_environments_is_refused(options: dict[str, Any], message: str) -> None:
    for made in (SyncVectorEnv([ToldEnv] * 2), make_envs(ToldEnv, 2)):
        with pytest.raises(ConfigError, match=message):
            make_envs(made, **options)


def test_a_factory_that_returns_the_same_environment_twice_is_refused_and_the_environment_closed() -> None:
    one = ToldEnv()
    with pytest.raises(
        ConfigError, match="factory 1 returned an environment a second time: make a new one at each call"
    ):
        make_envs(lambda: one, 2)
    assert one.n_closed == 1


@pytest.mark.parametrize(
    "other", [{"action_space": spaces.Discrete(3)}, {"observation_space": spaces.Box(-2, 1, (3,), np.float32)}]
)
def test_environments_with_other_spaces_are_refused_and_all_closed(other: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"env 2 has spaces .*, env 0 has .*: they must be equal"):
        make_envs([kept, kept, partial(kept, **other)])
    assert [env.n_closed for env in MADE] == [1, 1, 1]


def test_a_constructor_that_raises_is_told_by_its_number_and_the_others_are_closed() -> None:
    fault = OSError("no licence")
    with pytest.raises(EnvError, match=r"^make_envs: env 2 raised OSError when it was made: no licence$") as caught:
        make_envs([kept, kept, partial(kept, made=fault)])
    assert caught.value.__cause__ is fault
    assert [env.n_closed for env in MADE] == [1, 1]


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ([ToldEnv, partial(ToldEnv, action_space=spaces.Discrete(3))], "action space different"),
        ([partial(ToldEnv, observation_space=spaces.Text(3))] * 2, "the observation space is a Text"),
    ],
)
def test_processes_that_are_refused_do_not_stay(specs: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_envs(specs, backend="async")
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Text(5), "the observation space is a Text, .* wrap the environment"),
        (spaces.Sequence(spaces.Discrete(2)), "is a Sequence, .*MiniGrid: ImgObsWrapper"),
        (spaces.Graph(spaces.Discrete(2), None), "is a Graph"),
        (spaces.Dict(a=spaces.Tuple([spaces.Discrete(2), spaces.Text(5)])), r"observation space\['a'\]\[1\] is a Text"),
        (spaces.Box(0, 1, (2, 0)), "must be a Box of numbers with no empty axis"),
        (spaces.Box(1, 1, (2,)), "has equal bounds everywhere"),
        (spaces.Dict(), "is an empty Dict"),
        (spaces.Tuple(()), "is an empty Tuple"),
        (
            spaces.Dict({ACTION_MASK: spaces.MultiBinary(3)}),
            r"'action_mask' must hold one bool .* \(2,\), got MultiBinary\(3\)",
        ),
        (spaces.Dict({ACTION_MASK: spaces.Box(0, 1, (2,))}), "'action_mask' must hold one bool or whole number"),
        (spaces.Dict({ACTION_MASK: spaces.Text(2)}), "'action_mask'"),
    ],
)
def test_an_observation_space_that_is_no_array_of_numbers_is_refused_and_all_closed(space: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_envs(partial(kept, observation_space=space), 2)
    assert [env.n_closed for env in MADE] == [1, 1]


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Dict(a=spaces.Discrete(2)), "the action space is a Dict, and an action must be one array"),
        (spaces.Tuple((spaces.Discrete(2),)), "the action space is a Tuple"),
        (spaces.Text(2), "the action space is a Text"),
    ],
)
def test_an_action_space_that_is_no_array_is_refused(space: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_envs(partial(ToldEnv, action_space=space))
    with pytest.raises(ConfigError, match=message):
        make_envs(SyncVectorEnv([partial(ToldEnv, action_space=space)]))


def test_a_mask_in_the_observation_and_a_mask_key_are_one_too_many() -> None:
    space = spaces.Dict({ACTION_MASK: spaces.MultiBinary(2)})
    with pytest.raises(ConfigError, match="has a leaf 'action_mask' already: leave mask_key out"):
        make_envs(partial(kept, observation_space=space), mask_key="legal")
    assert [env.n_closed for env in MADE] == [1]


def test_a_mask_beside_continuous_actions_is_refused() -> None:
    space = spaces.Dict({ACTION_MASK: spaces.MultiBinary(2)})
    with pytest.raises(ConfigError, match="an action mask needs a Discrete action space"):
        make_envs(partial(ToldEnv, observation_space=space, action_space=spaces.Box(-1, 1)))


def test_making_environments_says_nothing(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    with caplog.at_level(logging.DEBUG):
        make_envs("CartPole-v1", 2).close()
    assert caplog.messages == []
    assert capsys.readouterr() == ("", "")
