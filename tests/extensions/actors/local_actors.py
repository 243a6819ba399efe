"""Environments that count their steps, actors in this process, and what their rows must be."""

import os
import time
from collections import Counter
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

import trainkit as tk
from trainkit.core.worker_protocol import answer_to
from trainkit.extensions.actors.actor_runner import ActorRunner, HostedActor


class Counting(gym.Env[NDArray[np.float32], int]):
    """Observations are the episode, which the seed names, and the step in it; an episode has 7 to 16 steps."""

    observation_space = gym.spaces.Box(-1, 1e6, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self._episode, self._t = int(self.np_random.integers(10**6)), 0
        self._last = 7 + self._episode % 10
        return self._obs(), {}

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self._t += 1
        if self._t == 5 and self._episode % 3 == 0 and self.fails:
            raise ValueError("step 5")
        return self._obs(), 1.0, self._t == self._last, False, {}

    def _obs(self) -> NDArray[np.float32]:
        return np.array([self._episode, self._t], np.float32)

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails

    def pid(self) -> int:
        return os.getpid()

    def check(self) -> None:
        if self.fails:
            raise ValueError("it fails")


class Here:
    """An actor in this process: messages go through pickle, and it can die."""

    made: list["Here"] = []  # noqa: RUF012  # of the running test

    def __init__(self, factories: bytes) -> None:
        self.host = HostedActor(factories)
        self._answers: list[bytes] = []
        self.limits_s: list[float] = []  # of each answer that has a limit
        self.is_dead = False
        self.made.append(self)

    def send(self, message: bytes) -> None:
        if not self.is_dead:
            self._answers.append(answer_to(message, self.host))

    def poll(self, seconds: float) -> bool:
        self.limits_s.append(seconds)
        return True

    def receive(self) -> bytes:
        if self.is_dead:
            raise EOFError
        return self._answers.pop(0)

    def end(self) -> str:
        return "was killed by the test"

    def request_close(self) -> None:
        self.host.close()

    def stop(self, deadline: float) -> None:
        assert deadline > time.monotonic()


def check_rows(collector: tk.Collector) -> None:
    """Check that every stored row is once there, with its true successor, in episodes without gaps from their start."""
    rows = collector.buffer.sample(None, horizon=tk.Horizon(), step=0, columns=("env_id",))  # type: ignore[union-attr]
    obs, following = rows.obs.astype(int), rows.next_obs.astype(int)
    assert max(Counter(map(tuple, obs.tolist())).values()) == 1
    np.testing.assert_array_equal(following - obs, np.tile([0, 1], (len(obs), 1)))
    for episode in np.unique(obs[:, 0]):
        steps = np.sort(obs[obs[:, 0] == episode, 1])
        np.testing.assert_array_equal(steps, np.arange(len(steps)))


def is_alive(pid: int) -> bool:
    """Return whether a process lives after up to 20 s."""
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.1)
    return True


def runner_of(collector: Any) -> ActorRunner:
    runner = collector.envs.runner
    assert isinstance(runner, ActorRunner)
    return runner
