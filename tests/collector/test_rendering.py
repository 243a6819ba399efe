"""`collect(render=)` shows what is collected, at a pace a person can follow."""

import time
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.helpers.doubles import Still
from tests.helpers.scripted_env import ScriptedEnv
from trainkit.collector import Collector
from trainkit.core.errors import ConfigError
from trainkit.envs import make_envs


class Shown(ScriptedEnv):
    """Count how often it is shown."""

    def __init__(self, render_mode: str | None = "human") -> None:
        super().__init__()
        self.render_mode = render_mode
        self.n_shown = 0

    def render(self) -> None:
        self.n_shown += 1


def test_environments_are_rendered_after_every_vector_step_and_not_sooner_than_requested() -> None:
    envs = make_envs(Shown, 2)
    collector = Collector(Still(), envs)
    began = time.perf_counter()
    collector.collect(n_step=10, render=0.02)
    assert time.perf_counter() - began >= 5 * 0.02
    assert envs.call("n_shown") == [5, 5]
    collector.collect(n_step=10)  # another collect renders nothing
    assert envs.call("n_shown") == [5, 5]
    collector.collect(n_step=10, render=0)
    assert envs.call("n_shown") == [10, 10]


def test_a_vector_environment_is_rendered_as_a_whole() -> None:
    made = SyncVectorEnv([Shown, Shown], autoreset_mode=AutoresetMode.NEXT_STEP)
    made.render_mode = "human"
    shown: list[Any] = []
    made.render = lambda: shown.append(1)  # type: ignore[method-assign]  # counted
    Collector(Still(), make_envs(made)).collect(n_step=6, render=0)
    assert len(shown) == 3


def test_an_interrupted_collect_is_still_shown_when_it_is_resumed() -> None:
    envs = make_envs(Shown)
    collector = Collector(Still(), envs)
    steps = iter([None, None])
    collector.between_steps = lambda: next(steps)
    with pytest.raises(StopIteration):
        collector.collect(n_step=5, render=0)
    collector.between_steps = None
    collector.resume()
    assert envs.call("n_shown") == [5]


@pytest.mark.parametrize("mode", [None, "rgb_array"])
def test_environments_that_show_nothing_are_rejected(mode: str | None) -> None:
    collector = Collector(Still(), make_envs(Shown, env_kwargs={"render_mode": mode}))
    message = (
        rf"collect\(render=\) needs environments made with env_kwargs={{'render_mode': 'human'}}, Shown has {mode!r}"
    )
    with pytest.raises(ConfigError, match=message):
        collector.collect(n_step=1, render=0.1)
    collector.collect(n_step=1)


def test_a_pause_is_a_number() -> None:
    collector = Collector(Still(), make_envs(Shown))
    for wrong in (-1, float("nan"), "slow", True):
        with pytest.raises(ConfigError, match=r"Collector.collect.render must be in \[0, inf\)"):
            collector.collect(n_step=1, render=wrong)  # type: ignore[arg-type]  # on purpose


def test_a_gymnasium_environment_is_shown() -> None:
    pytest.importorskip("pygame")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SDL_VIDEODRIVER", "dummy")
        envs = make_envs("CartPole-v1", env_kwargs={"render_mode": "human"})
        collector = Collector(Still(0), envs)
        assert collector.collect(n_step=3, render=0.01).n_step == 3
        assert isinstance(envs.call("unwrapped")[0], gym.Env)
        envs.close()
