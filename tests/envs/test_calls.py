"""Options of the next reset, calls of single environments' methods, and rendering."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.helpers.doubles import Player, Still
from tests.helpers.scripted_env import ScriptedEnv, ScriptedVectorEnv
from tests.helpers.small_envs import Seen, check_which_calls_can_be_sent
from tests.helpers.tagged import TaggedEnv
from tests.helpers.truth import tagged_envs
from trainkit.collector import Collector
from trainkit.core.errors import ConfigError, EnvError
from trainkit.envs import make_envs

EVERY_WAY = ["sync", "async", "SyncVectorEnv DISABLED"]
every_way = pytest.mark.parametrize("way", EVERY_WAY)
forks = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


# ---- options ----


@every_way
@forks
def test_options_reach_each_environment_at_its_next_reset_whenever_that_is(way: str) -> None:
    envs = tagged_envs(way, 3)
    collector = Collector(Player(), envs)
    collector.collect(n_step=3)
    envs.options = {"level": 2}
    n_before = [len(options) for options in envs.call("options")]
    collector.collect(n_step=120)
    envs.options = None
    collector.reset()
    received = envs.call("options")
    envs.close()
    for options, n in zip(received, n_before, strict=True):
        assert len(options) > n + 3
        assert not any(options[:n])
        assert options[n:-1] == [{"level": 2}] * (len(options) - n - 1)
        assert not options[-1]


def test_options_of_one_reset_go_before_those_that_stand() -> None:
    envs = make_envs(partial(TaggedEnv, 0))
    envs.options = {"level": 2}
    envs.reset(options={"level": 3})
    envs.reset()
    assert envs.call("options") == [[{"level": 3}, {"level": 2}]]


def test_an_environment_that_empties_its_options_takes_nothing_from_the_others() -> None:
    class Emptying(TaggedEnv):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            first = super().reset(seed=seed, options=dict(options or {}))
            (options or {}).clear()
            return first

    envs = make_envs([partial(Emptying, 0), partial(Emptying, 1)])
    envs.options = {"level": 2}
    envs.reset()
    envs.reset()
    assert envs.options == {"level": 2}
    assert envs.call("options") == [[{"level": 2}] * 2] * 2


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_environments_that_reset_themselves_reject_options(mode: AutoresetMode) -> None:
    envs = tagged_envs(f"SyncVectorEnv {mode.name}", 2)
    with pytest.raises(
        ConfigError, match=r"Envs.options cannot reach the environments of SyncVectorEnv, which reset th"
    ):
        envs.options = {"level": 2}
    envs.options = None


@pytest.mark.parametrize("options", [3, [3, None], [None]])
def test_options_are_a_dict_or_a_list_of_one_each(options: Any) -> None:
    with pytest.raises(ConfigError, match=r"Envs.options of ScriptedEnv must be a dict, None, or a list of 2, got"):
        make_envs(ScriptedEnv, 2).options = options


# ---- call ----


@every_way
@forks
def test_methods_are_called_and_attributes_read(way: str) -> None:
    envs = make_envs(SyncVectorEnv([Seen] * 2)) if " " in way else make_envs(Seen, 2, backend=way)  # type: ignore[arg-type]  # one of the two
    assert envs.call("add", 3, 4) == [7, 7]
    assert envs.call("n_closed") == [0, 0]
    envs.close()


def test_some_environments_alone_are_called() -> None:
    envs = make_envs([partial(TaggedEnv, env) for env in range(3)])
    assert envs.call("env", env_ids=np.array([2, 0])) == [2, 0]


def test_a_vector_environment_is_only_called_as_a_whole() -> None:
    envs = tagged_envs("SyncVectorEnv NEXT_STEP", 2)
    with pytest.raises(
        ConfigError, match="SyncVectorEnv supports log only for all environments at once: leave env_ids out"
    ):
        envs.call("log", env_ids=np.array([1]))
    with pytest.raises(ConfigError, match="ScriptedVectorEnv has no single environments that could be called: log"):
        make_envs(ScriptedVectorEnv(AutoresetMode.NEXT_STEP)).call("log")


def test_what_a_method_raises_is_reported_with_its_environment() -> None:
    envs = make_envs([ScriptedEnv, Seen])
    with pytest.raises(EnvError, match=r"^env 1 raised LookupError in fail: not today, at episode -1 step 0") as caught:
        envs.call("fail", env_ids=np.array([1]))
    assert isinstance(caught.value.__cause__, LookupError)
    with pytest.raises(EnvError, match="env 0 raised TypeError in n_closed: n_closed is a int, which cannot be called"):
        envs.call("n_closed", 1)
    with pytest.raises(EnvError, match="env 0 raised AttributeError in nothing"):
        envs.call("nothing")


@forks
def test_what_cannot_be_sent_to_another_process_is_rejected_with_the_remedy() -> None:
    check_which_calls_can_be_sent(make_envs(Seen, 2, backend="async"))


# ---- render ----


@pytest.mark.parametrize("backend", ["sync", pytest.param("async", marks=forks)])
def test_images_are_arrays_of_colors(backend: Any) -> None:
    envs = make_envs("CartPole-v1", 2, env_kwargs={"render_mode": "rgb_array"}, backend=backend, seed=1)
    pytest.importorskip("pygame", reason="CartPole draws with it")
    Collector(Still(1), envs).collect(n_step=2)
    frames = envs.render()
    envs.close()
    assert [(frame.shape, frame.dtype) for frame in frames] == [((400, 600, 3), np.uint8)] * 2
    assert (frames[0] != frames[1]).any()


def test_a_vector_environment_renders_as_a_whole() -> None:
    envs = make_envs(SyncVectorEnv([partial(Seen, np.full((2, 3, 3), shade, np.uint8)) for shade in (1, 2)]))
    assert [int(frame[0, 0, 0]) for frame in envs.render()] == [1, 2]


@pytest.mark.parametrize(
    ("frame", "got"),
    [
        (None, "NoneType"),
        ([np.zeros((2, 3, 3), np.uint8)], "list"),
        (np.zeros((2, 3, 3)), r"float64 \(2, 3, 3\)"),
        (np.zeros((2, 3), np.uint8), r"uint8 \(2, 3\)"),
        (np.zeros((3, 2, 4), np.uint8), r"uint8 \(3, 2, 4\)"),
    ],
)
def test_what_is_no_image_is_rejected_with_the_remedy(frame: Any, got: str) -> None:
    envs = make_envs(lambda: Seen(frame), 2)
    with pytest.raises(
        ConfigError, match=rf'env 1 must render uint8 .* got {got}: make it .*"render_mode": "rgb_array"'
    ):
        envs.render(np.array([1]))


@pytest.mark.filterwarnings("ignore:.*without specifying any render mode:UserWarning")  # gymnasium says so, too
@pytest.mark.parametrize("backend", ["sync", "vector"])
def test_environments_made_without_a_render_mode_are_rejected(backend: Any) -> None:
    envs = make_envs("CartPole-v1", 2, backend=backend)
    envs.reset()
    with pytest.raises(ConfigError, match=r"env 0 must render uint8 arrays .* got NoneType"):
        envs.render()
