"""A factory that asks is told which environment it makes."""

from functools import partial
from typing import Any

import gymnasium as gym
import pytest

from tests.helpers.tagged import N_ACTIONS, TaggedEnv
from tests.helpers.told import ToldEnv
from trainkit import RandomPolicy, evaluate, presets
from trainkit.core.seeding import derive
from trainkit.envs import EnvContext, make_envs
from trainkit.envs.context import takes_context

forks = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


class Knowing(ToldEnv):
    """Keep what the factory was told."""

    def __init__(self, context: EnvContext, word: str = "") -> None:
        super().__init__()
        self.context, self.word = context, word


def knowing(context: EnvContext, *, word: str = "") -> Knowing:
    return Knowing(context, word)


@pytest.mark.parametrize("backend", ["sync", pytest.param("async", marks=forks)])
def test_a_factory_with_one_open_parameter_is_told_its_context(backend: Any) -> None:
    envs = make_envs(knowing, 3, seed=7, backend=backend, env_kwargs={"word": "hi"})
    assert envs.call("word") == ["hi"] * 3
    told = envs.call("context")
    envs.close()
    assert told == [
        EnvContext(index=index, n_envs=3, seed=derive(7, "context", index), in_evaluation=False) for index in range(3)
    ]
    assert len({context.seed for context in told}) == 3


def test_each_factory_of_a_list_is_told_its_own_place() -> None:
    envs = make_envs([knowing, lambda context: Knowing(context)])
    assert [(context.index, context.n_envs) for context in envs.call("context")] == [(0, 2), (1, 2)]


def test_without_a_seed_the_context_has_none() -> None:
    (context,) = make_envs(knowing).call("context")
    assert context.seed is None


def test_environments_of_an_evaluation_are_told_so() -> None:
    made: list[EnvContext] = []

    def factory(context: EnvContext) -> gym.Env[Any, Any]:
        made.append(context)
        return TaggedEnv(context.index)

    make_envs(factory, 2, in_evaluation=True)
    evaluate(RandomPolicy(gym.spaces.Discrete(N_ACTIONS), seed=0), factory, n_episode=2, seed=0)
    assert [context.in_evaluation for context in made] == [True] * 4


def test_presets_tell_their_evaluations_environments_so() -> None:
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
def test_only_one_positional_parameter_without_a_default_asks_for_the_context(
    factory: Any, given: dict[str, Any], wants: bool
) -> None:
    assert takes_context(factory, given) is wants
