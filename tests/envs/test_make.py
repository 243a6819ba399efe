"""Environments are made from whatever names them, or refused with what to do instead."""

import logging
import multiprocessing
import sys
from functools import partial
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.helpers.scripted_env import ScriptedEnv
from trainkit.core.data import ACTION_MASK
from trainkit.core.errors import ConfigError, EnvError, MissingExtraError
from trainkit.envs import factories, make_envs
from trainkit.envs.sync import SyncRunner

MADE: list[ScriptedEnv] = []


def kept(**options: Any) -> ScriptedEnv:
    """Make an environment and keep hold of it."""
    MADE.append(ScriptedEnv(**options))
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
        (ScriptedEnv, 2, "ScriptedEnv"),
        (lambda: ScriptedEnv(), 2, "<lambda>"),
        ([ScriptedEnv, ScriptedEnv, ScriptedEnv], 1, "custom"),
        ([ScriptedEnv, ScriptedEnv], 2, "custom"),
        ("tests.helpers.scripted_env.ScriptedEnv", 2, "tests.helpers.scripted_env.ScriptedEnv"),
    ],
)
def test_environments_are_made_from_an_id_a_class_a_factory_or_a_list(spec: Any, n: int, name: str) -> None:
    envs = make_envs(spec, n)
    assert envs.n == (len(spec) if isinstance(spec, list) else n)
    assert envs.name == name
    made = envs.runner
    assert isinstance(made, SyncRunner)
    assert len({id(env.unwrapped) for env in made.envs}) == envs.n
    envs.close()


def test_a_vector_environment_and_made_environments_are_taken_as_they_are() -> None:
    vector_env = SyncVectorEnv([ScriptedEnv] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    envs = make_envs(vector_env, seed=4)
    assert envs.n == 3
    assert envs.is_seeded
    assert make_envs(envs) is envs
    assert make_envs(gym.make_vec("CartPole-v1", 2)).name == "CartPole-v1"


def test_wrappers_apply_from_the_inside_out_and_arguments_reach_the_constructor() -> None:
    space = spaces.Discrete(7)
    inner = partial(Outer, word="inner")
    envs = make_envs(ScriptedEnv, 2, wrappers=[inner, Outer], env_kwargs={"action_space": space})
    assert envs.call("words") == [["inner", "outer"]] * 2
    assert envs.action_space == space


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(
    ("spec", "backend"),
    [
        *[("CartPole-v1", backend) for backend in ("sync", "async", "vector")],
        *[(ScriptedEnv, backend) for backend in ("sync", "async")],  # only ids have vector environments
    ],
)
def test_a_limit_of_steps_truncates_there(spec: Any, backend: Any) -> None:
    envs = make_envs(spec, 1, max_episode_steps=3, backend=backend)
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
        (
            "no.such.Class",
            {},
            "'no.such.Class' is neither a registered id nor a class that can be imported: No module",
        ),
        ("tests.helpers.scripted_env.Nobody", {}, "has no attribute 'Nobody'"),
        (5, {}, "needs an id, a factory, a list of factories or a vector environment, got 5"),
        ([], {}, r"needs an id, a factory, .* got \[\]"),
        (["CartPole-v1"], {}, "needs an id, a factory, a list of factories"),
        ([ScriptedEnv, ScriptedEnv], {"n": 3}, "n is 3, but 2 factories were given: leave n out"),
        (lambda: 5, {}, "the factory must return a gymnasium.Env.*, got 5"),
        (ScriptedEnv, {"n": 0}, "make_envs.n must be a whole number >= 1, got 0"),
        (ScriptedEnv, {"n": True}, "make_envs.n must be a whole number >= 1, got True"),
        (ScriptedEnv, {"stack": 0, "seed": -1}, r"stack must be .* got 0\nmake_envs.seed must be .* got -1"),
        (ScriptedEnv, {"max_episode_steps": 0}, "max_episode_steps must be a whole number >= 1, got 0"),
        (ScriptedEnv, {"backend": "asnyc"}, "backend must be one of .* got 'asnyc', did you mean 'async'"),
        (
            ScriptedEnv,
            {"backend": "vector"},
            """backend "vector" needs a registered id, got .*ScriptedEnv.*: use "sync"$""",
        ),
        (
            "tests.helpers.scripted_env.ScriptedEnv",
            {"backend": "vector"},
            """"vector" needs a registered id, got 'tests.helpers""",
        ),
        ([ScriptedEnv], {"backend": "vector"}, """"vector" needs a registered id, got """),
        ("Acrobot-v1", {"backend": "vector"}, 'Acrobot-v1 has no vector environment of its own: use backend="sync"$'),
        ("CartPol-v1", {"backend": "vector"}, "CartPol.* doesn't exist. Did you mean: `CartPole`"),
        (
            "CartPole-v1",
            {"backend": "vector", "wrappers": [Outer]},
            'no single environments to apply wrappers .* "sync"$',
        ),
        (
            ScriptedEnv,
            {"mask_key": "legal", "env_kwargs": {"action_space": spaces.Box(-1, 1)}},
            "mask needs a Discrete action",
        ),
    ],
)
def test_invalid_specs_and_options_are_rejected(spec: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_envs(spec, **options)


# ---- an id's own vector environment, and ids that a package registers ----


@pytest.fixture
def registered_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ids of the namespace "Told" that only an import registers."""
    for env_id in [env_id for env_id in gym.registry if env_id.startswith("Told/")]:
        monkeypatch.delitem(gym.registry, env_id)
    monkeypatch.delitem(sys.modules, "tests.helpers.registering", raising=False)
    monkeypatch.setitem(factories._PACKAGES, "Told", ("tests.helpers.registering", "told"))


def test_an_ids_own_vector_environment_gets_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    stepped, step = [], CartPoleVectorEnv.step
    monkeypatch.setattr(CartPoleVectorEnv, "step", lambda env, action: stepped.append(env) or step(env, action))
    envs = make_envs("CartPole-v1", 3, backend="vector", env_kwargs={"sutton_barto_reward": True})
    assert (envs.n, envs.name) == (3, "CartPole-v1")
    envs.reset(seed=0)
    assert envs.step(np.zeros(3, np.int64), envs.all_ids).reward.tolist() == [0, 0, 0]  # Sutton and Barto's
    assert len(stepped) == 1


def test_an_ids_own_vector_environment_plays_the_same_episodes_from_the_same_seed() -> None:
    one, same, other = (make_envs("CartPole-v1", 3, backend="vector", seed=seed).reset() for seed in (4, 4, 5))
    np.testing.assert_array_equal(one, same)
    assert (one != other).all()


@pytest.mark.usefixtures("registered_ids")
@pytest.mark.parametrize("env_id", ["Told/Alone-v0", "tests.helpers.registering:Told/Alone-v0"])
def test_an_id_that_a_package_registers_needs_no_import(env_id: str) -> None:
    envs = make_envs(env_id, 2)
    assert (envs.n, envs.name) == (2, env_id)
    envs.close()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            'MuJoCo is not installed, run `pip install "gymnasium[mujoco]"`',
            "make_envs: env 0 needs gymnasium[mujoco]: pip install 'trainkit-rl[mujoco]', or '.[mujoco]' in a clone",
        ),
        ("pygame is not installed", "make_envs: pygame is not installed"),
    ],
)
def test_what_gymnasium_lacks_is_named_with_our_extra_where_there_is_one(text: str, error: str) -> None:
    def lacking() -> Any:
        raise gym.error.DependencyNotInstalled(text)

    with pytest.raises(MissingExtraError) as caught:
        make_envs(lacking)
    assert str(caught.value) == error


@pytest.mark.usefixtures("registered_ids")
@pytest.mark.parametrize("env_id", ["Told/Stacking-v0", "tests.helpers.registering:Told/Stacking-v0"])
def test_an_id_that_a_package_registers_has_its_own_vector_environment(env_id: str) -> None:
    envs = make_envs(env_id, 5, backend="vector")
    assert (envs.n, envs.name, envs.observation_space.shape) == (5, env_id, (4, 3))


@pytest.mark.parametrize("backend", ["sync", "async", "vector"])
def test_a_package_that_is_not_installed_is_named_with_its_extra(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(
        MissingExtraError, match=r"ALE/Pong-v5 needs ale_py .*: pip install 'trainkit-rl\[atari\]'"
    ) as caught:
        make_envs("ALE/Pong-v5", 2, backend=backend)
    assert isinstance(caught.value, ImportError)


@pytest.mark.usefixtures("registered_ids")
def test_stacks_of_stacks_are_rejected_and_the_vector_environment_closed() -> None:
    message = 'stack is 2, but Stacking stacks 4 frames itself: set it to single frames, env_kwargs={"stack_num": 1}'
    with pytest.raises(ConfigError, match=message):
        make_envs("Told/Stacking-v0", 2, backend="vector", stack=2)
    (refused,) = sys.modules["tests.helpers.registering"].MADE
    assert refused.n_closed == 1
    with pytest.raises(ConfigError, match=message):
        make_envs(type(refused)(2), stack=2)
    envs = make_envs("Told/Stacking-v0", 2, backend="vector", stack=2, env_kwargs={"stack_num": 1})
    assert envs.observation_space.shape == (2, 1, 3)


@pytest.mark.usefixtures("registered_ids")
def test_arguments_that_a_vector_environment_does_not_have_are_rejected() -> None:
    make = partial(make_envs, "Told/Stacking-v0", 2, backend="vector")
    with pytest.raises(ConfigError, match=r'Told/Stacking-v0 takes none: give env_kwargs a limit it has, or .*"sync"$'):
        make(max_episode_steps=5)
    with pytest.raises(EnvError, match=r"Told/Stacking-v0 raised TypeError when it was made: .* 'length'"):
        make(env_kwargs={"length": 5})
    message = r"metadata\['autoreset_mode'\] must be .* got 'when it likes'"
    with pytest.warns(UserWarning, match="autoreset_mode"), pytest.raises(ConfigError, match=message):
        make(env_kwargs={"mode": "when it likes"})
    assert sys.modules["tests.helpers.registering"].MADE[-1].n_closed == 1


def test_a_single_environment_object_is_rejected() -> None:
    with pytest.raises(ConfigError, match="not one of them: pass its id, its class and env_kwargs=, or a factory"):
        make_envs(ScriptedEnv())  # type: ignore[arg-type]  # the mistake itself


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 3}, "n is 3, but 2 environments were given: leave n out"),
        ({"wrappers": [Outer]}, "make_envs: wrappers came too late for environments already made"),
        ({"max_episode_steps": 5}, "came too late"),
        ({"backend": "async"}, "make_envs: backend came too late"),
        ({"env_kwargs": {"a": 1}, "max_episode_steps": 5}, "make_envs: max_episode_steps, env_kwargs came too late"),
    ],
)
def test_options_that_come_too_late_for_existing_environments_are_rejected(
    options: dict[str, Any], message: str
) -> None:
    for made in (SyncVectorEnv([ScriptedEnv] * 2), make_envs(ScriptedEnv, 2)):
        with pytest.raises(ConfigError, match=message):
            make_envs(made, **options)


def test_a_factory_that_returns_the_same_environment_twice_is_rejected() -> None:
    one = ScriptedEnv()
    with pytest.raises(
        ConfigError, match="factory 1 returned an environment a second time: make a new one at each call"
    ):
        make_envs(lambda: one, 2)
    assert one.n_closed == 1


@pytest.mark.parametrize(
    "other", [{"action_space": spaces.Discrete(3)}, {"observation_space": spaces.Box(-2, 1, (3,), np.float32)}]
)
def test_environments_with_unequal_spaces_are_rejected_and_all_closed(other: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"env 2 has spaces .*, env 0 has .*: they must be equal"):
        make_envs([kept, kept, partial(kept, **other)])
    assert [env.n_closed for env in MADE] == [1, 1, 1]


def test_a_constructor_that_raises_is_named_by_its_index_and_the_others_are_closed() -> None:
    fault = OSError("no licence")
    with pytest.raises(EnvError, match=r"^make_envs: env 2 raised OSError when it was made: no licence$") as caught:
        make_envs([kept, kept, partial(kept, made=fault)])
    assert caught.value.__cause__ is fault
    assert [env.n_closed for env in MADE] == [1, 1]


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(
    ("specs", "message"),
    [
        (
            [ScriptedEnv, partial(ScriptedEnv, action_space=spaces.Discrete(3))],
            r"env 1 has spaces .*Discrete\(3\)\), env 0 has",
        ),
        ([partial(ScriptedEnv, observation_space=spaces.Text(3))] * 2, "the observation space is a Text"),
    ],
)
def test_no_process_remains_after_a_rejection(specs: list[Any], message: str) -> None:
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
def test_an_observation_space_that_is_no_array_of_numbers_is_rejected_and_all_closed(space: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_envs(partial(kept, observation_space=space), 2)
    assert [env.n_closed for env in MADE] == [1, 1]


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (
            spaces.Dict(a=spaces.Discrete(2, start=2**60), b=spaces.Box(0, 1)),
            r"the action space\['a'\] is Discrete.*: next to a Box its numbers become floats, so start it at 0",
        ),
        (
            spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 9, (2,), np.uint8))),
            r"the action space\[1\] is Box\(0, 9, \(2,\), uint8\): make it a Box of float32",
        ),
        (spaces.Dict(), "the action space is an empty Dict"),
        (spaces.Text(2), "the action space is a Text"),
    ],
)
def test_an_action_space_that_is_no_array_is_rejected(space: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_envs(partial(ScriptedEnv, action_space=space))
    with pytest.raises(ConfigError, match=message):
        make_envs(SyncVectorEnv([partial(ScriptedEnv, action_space=space)]))


def test_a_mask_in_the_observation_excludes_a_mask_key() -> None:
    space = spaces.Dict({ACTION_MASK: spaces.MultiBinary(2)})
    with pytest.raises(ConfigError, match="has a leaf 'action_mask' already: leave mask_key out"):
        make_envs(partial(kept, observation_space=space), mask_key="legal")
    assert [env.n_closed for env in MADE] == [1]


def test_a_mask_with_continuous_actions_is_rejected() -> None:
    space = spaces.Dict({ACTION_MASK: spaces.MultiBinary(2)})
    with pytest.raises(ConfigError, match="an action mask needs a Discrete action space"):
        make_envs(partial(ScriptedEnv, observation_space=space, action_space=spaces.Box(-1, 1)))


def test_making_environments_logs_and_prints_nothing(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG):
        make_envs("CartPole-v1", 2).close()
    assert caplog.messages == []
    assert capsys.readouterr() == ("", "")


def test_an_id_of_minatar_is_registered_by_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "MinAtar/Breakout-v1"
    monkeypatch.setattr(gym.envs.registration, "registry", registry := dict(gym.registry))
    monkeypatch.setattr(gym, "registry", registry)
    registry.pop(name, None)
    monkeypatch.setitem(sys.modules, "minatar.gym", None)  # importing it raises
    with pytest.raises(MissingExtraError, match=r"MinAtar/Breakout-v1 needs minatar .*: pip install --no-deps minatar"):
        make_envs(name)
    package = ModuleType("minatar.gym")
    monkeypatch.setattr(package, "register_envs", lambda: gym.register(name, ScriptedEnv), raising=False)
    monkeypatch.setitem(sys.modules, "minatar", ModuleType("minatar"))
    monkeypatch.setitem(sys.modules, "minatar.gym", package)
    envs = make_envs(name)
    assert envs.name == name
    envs.close()
    assert factories.is_registered("MinAtar/Asterix-v1")
