"""Environments that count their steps, move a clock on, or wait for a file or a gate."""

import multiprocessing
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tests.helpers.scripted_env import ScriptedEnv
from tests.helpers.tagged import TaggedEnv
from trainkit.core.errors import ConfigError
from trainkit.envs import Envs, make_envs


class Count(gym.Env[Any, Any]):
    """Observe the number of steps ever; episodes end after 3, 4, 5, 3 ... steps."""

    observation_space = gym.spaces.Box(-1e6, 1e6, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self.n_steps, self.n_episodes = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.n_left = 3 + self.n_episodes % 3
        self.n_episodes += 1
        return np.array([self.n_steps], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.n_steps += 1
        self.n_left -= 1
        return np.array([self.n_steps], np.float32), float(action), self.n_left == 0, False, {}


class Counter(gym.Env[Any, Any]):
    """Observe the own level and the number of steps so far."""

    observation_space = gym.spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    closed: list[float] = []  # noqa: RUF012  # levels of those that were closed, in this process

    def __init__(self, level: float = 0.0, n_values: int = 2) -> None:
        self.level, self.n_steps = level, 0
        if level < 0:
            raise ValueError("there is no such level")
        self.observation_space = gym.spaces.Box(-1e6, 1e6, (n_values,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.n_steps = 0
        return np.array([self.level, 0], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.n_steps += 1
        return np.array([self.level, self.n_steps], np.float32), 1.0, False, self.n_steps == 7, {}

    def close(self) -> None:
        Counter.closed.append(self.level)


def drawn_env(now: list[float]) -> type[gym.Env[Any, Any]]:
    """Return an environment whose resets, steps and images move a clock on by 1,000, 1 and 100 s."""

    class Drawn(gym.Env[Any, Any]):
        observation_space, action_space = gym.spaces.Box(0, 1, (1,)), gym.spaces.Discrete(2)
        render_mode = "rgb_array"

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            now[0] += 1000.0
            return np.zeros(1, np.float32), {}

        def step(self, action: Any) -> Any:
            now[0] += 1.0
            return np.zeros(1, np.float32), 0.0, False, False, {}

        def render(self) -> Any:
            now[0] += 100.0
            return np.zeros((2, 2, 3), np.uint8)

    return Drawn


class Waits(gym.Env[Any, int]):
    """A step that only ends when a file is there, which only the work makes."""

    observation_space = gym.spaces.Box(-1.0, 1e6, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, sign: Path | None = None) -> None:
        self._sign = sign

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._clock = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        deadline = time.monotonic() + 20.0
        while self._sign is not None and not self._sign.exists():
            if time.monotonic() > deadline:
                raise TimeoutError("no work was done")
            time.sleep(0.001)
        self._clock += 1
        return np.full(1, self._clock, np.float32), 1.0, self._clock == 4, False, {}


class Gated(TaggedEnv):
    """A tagged environment that steps while its gate is open; its episodes are the seed's."""

    def __init__(self, env: int, gate: Any) -> None:
        super().__init__(env)
        self.gate = gate

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        assert seed is not None
        self.episode = seed % 1_009
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        deadline = time.monotonic() + 20
        while not self.gate.value:  # no Event, whose lock dies with a process that is killed
            assert time.monotonic() < deadline, "the gate stayed closed"
            time.sleep(0.001)
        return super().step(action)


def gated_envs(gates: list[Any], **options: Any) -> Envs:
    return make_envs([partial(Gated, *pair) for pair in enumerate(gates)], backend="async", wait_num=1, **options)


def gates(n: int = 3) -> list[Any]:
    return [multiprocessing.RawValue("i", 1) for _ in range(n)]


class Seen(ScriptedEnv):
    """Render a given image."""

    def __init__(self, frame: Any = None) -> None:
        super().__init__()
        self.frame = frame

    def render(self) -> Any:
        return self.frame

    def add(self, first: int, second: int) -> int:
        return first + second

    def fail(self) -> None:
        raise LookupError("not today")


def check_which_calls_can_be_sent(envs: Envs) -> None:
    """Send what can be pickled to environments `Seen` in another process, and what cannot."""
    envs.reset()
    with pytest.raises(ConfigError, match=r'the arguments of add cannot be sent to another process: .*backend="sync"'):
        envs.call("add", 3, lambda: 4)
    envs.options = {"reward": lambda: 4}
    with pytest.raises(ConfigError, match="the arguments of reset cannot be sent to another process: "):
        envs.reset()
    envs.options = None
    envs.reset()
    assert envs.call("add", 3, 4) == [7, 7]
    envs.close()


LENGTH = 5


class Lamp(gym.Env[np.ndarray, int]):
    """Count steps; the info has the count's square from step 2 on, a pair of numbers, and a word."""

    observation_space = gym.spaces.Box(0, 100, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Any:
        self._t += 1
        info: dict[str, Any] = {"pair": np.array([self._t, -self._t]), "is_odd": self._t % 2 == 1, "word": "x"}
        if self._t >= 2:
            info["square"] = self._t**2
        return np.array([self._t], np.float32), 1.0, self._t >= LENGTH, False, info
