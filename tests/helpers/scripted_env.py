"""Environments that return scripted data, valid or not."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

OBS = np.array([0.0, 0.5, 1.0], np.float32)
STEP = (OBS, 1.0, False, False, {})
SPACE = gym.spaces.Box(-1, 1, (3,), np.float32)


def answer(**parts: Any) -> tuple[Any, ...]:
    """Return a faultless step's answer with some parts replaced."""
    return tuple({"obs": OBS, "reward": 1.0, "terminated": False, "truncated": False, "info": {}, **parts}.values())


class ScriptedEnv(gym.Env[Any, Any]):
    """Answer resets and steps from lists, the last entry for ever; an exception among them is raised."""

    def __init__(
        self,
        *,
        steps: Sequence[Any] = (STEP,),
        resets: Sequence[Any] = ((OBS, {}),),
        made: Exception | None = None,
        observation_space: gym.Space[Any] = SPACE,
        action_space: gym.Space[Any] | None = None,
    ) -> None:
        if made is not None:
            raise made
        self.observation_space = observation_space
        self.action_space = gym.spaces.Discrete(2) if action_space is None else action_space
        self.steps, self.resets = list(steps), list(resets)
        self.actions: list[Any] = []
        self.n_closed = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return _next(self.resets)

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        return _next(self.steps)

    def close(self) -> None:
        self.n_closed += 1


class ScriptedVectorEnv(VectorEnv[Any, Any, Any]):
    """Two environments in one array, whose every step gives the same answer, in a given autoreset mode."""

    def __init__(self, mode: object, **parts: Any) -> None:
        self.metadata = {"autoreset_mode": mode}
        self.num_envs = 2
        self.single_observation_space = gym.spaces.Box(-1, 5, (4,), np.float32)
        self.single_action_space = gym.spaces.Discrete(2)
        obs, no = np.zeros((2, 4), np.float32), np.zeros(2, np.bool_)
        self.answer = {"obs": obs, "reward": np.ones(2), "terminated": no, "truncated": no, "infos": {}, **parts}
        self.first: Any = (obs, {})  # a reset's answer
        self.seeds: list[Any] = []

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.seeds.append(seed)
        return self.first

    def step(self, actions: Any) -> Any:
        return tuple(self.answer.values())


def _next(answers: list[Any]) -> Any:
    now = answers.pop(0) if len(answers) > 1 else answers[0]
    if isinstance(now, BaseException):
        raise now
    return now
