"""An environment that fails as configured, once, and a table of the ways to fail; it imports nothing of trainkit.

So peers' workers can be given the same (`make faults-peers`).
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

FAULTY = 1  # the environment that fails
EPISODE, STEP = 1, 2  # when: in the third step of its second episode, or in the reset of that


def length(env: int) -> int:
    """Return how long the episodes of an environment are."""
    return 4 + env


class FaultyEnv(gym.Env[Any, Any]):
    """Observe (environment, life, episode, step); a life is what lies between being made and being rebuilt.

    Args:
        env: number of the environment.
        fault: what goes wrong in the first life; None is nothing.
        lives: an empty folder, in which the lives of all environments leave a mark.
    """

    observation_space = gym.spaces.Box(-1, 10_000, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, env: int, fault: "Fault | None", lives: Path) -> None:
        self.env, self.fault = env, fault
        self.life = len(list(lives.glob(f"{env}-*")))
        (lives / f"{env}-{self.life}-{os.getpid()}").touch()
        self.episode = -1
        if self._fails("make"):
            raise OSError("no licence")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episode += 1
        self.step_ = 0
        first = self._observe()
        if self.episode == EPISODE and self._fails("reset"):
            assert self.fault is not None
            return self.fault.act((first, {}))
        return first, {}

    def step(self, action: Any) -> Any:
        self.step_ += 1
        answer = self._observe(), float(self.step_), self.step_ == length(self.env), False, {}
        if (self.episode, self.step_) == (EPISODE, STEP + 1) and self._fails("step"):
            assert self.fault is not None
            return self.fault.act(answer)
        return answer

    def _observe(self) -> Any:
        return np.array([self.env, self.life, self.episode, self.step_], np.float32)

    def _fails(self, where: str) -> bool:
        """Whether it is time for the fault; a constructor fails when it is called a second and a third time."""
        fault = self.fault
        if fault is None or self.env != FAULTY:
            return False
        if where == "make":
            return 0 < self.life <= fault.n_failing_makes
        return fault.where == where and self.life <= fault.n_failing_makes


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One way to fail.

    Attributes:
        name: of the case.
        where: in "reset" or in "step".
        act: turns a sound answer into what is returned, if it returns.
        words: what the error must say.
        cause: what must have been raised; None: nothing was.
        only_apart: whether it would end the whole program in the same process.
        n_failing_makes: how often the constructor fails afterwards.
    """

    name: str
    where: str = "step"
    act: Callable[[Any], Any]
    words: str
    cause: type[BaseException] | None = None
    only_apart: bool = False
    n_failing_makes: int = 0

    def __str__(self) -> str:
        return self.name


def fail(error: BaseException) -> Callable[[Any], Any]:
    """Return something that raises."""

    def act(answer: Any) -> Any:
        raise error

    return act


def replace(place: int, value: Any) -> Callable[[Any], Any]:
    """Return something that replaces one part of an answer."""
    return lambda answer: (*answer[:place], value, *answer[place + 1 :])


def hang(answer: Any) -> Any:
    time.sleep(1_000)


def die(answer: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1_000)


def leave(answer: Any) -> Any:
    os._exit(3)


def exit_(answer: Any) -> Any:
    sys.exit("enough")


NAN = np.array([1, 0, np.nan, 0], np.float32)
SHORT = np.zeros(3, np.float32)

FAULTS = [
    Fault(name="step raises", act=fail(OSError("no wheels")), words="raised OSError in step: no wheels", cause=OSError),
    Fault(name="step exits", act=exit_, words="raised SystemExit in step: enough", cause=SystemExit),
    Fault(name="step gives another shape", act=replace(0, SHORT), words=r"observation of shape \(3,\), the space says"),
    Fault(name="step gives another type", act=replace(0, None), words="observation .*None|shape"),
    Fault(name="step gives nan", act=replace(0, NAN), words=r"observation nan at index \(2,\)"),
    Fault(name="reward is nan", act=replace(1, np.nan), words="reward nan"),
    Fault(name="reward is no number", act=replace(1, "much"), words="reward 'much', which is not a number"),
    Fault(name="flag is no bool", act=replace(2, None), words="terminated = None, which is not a bool"),
    Fault(name="info is no dict", act=replace(4, None), words="info None from step, which is not a dict"),
    Fault(name="step gives four values", act=lambda answer: answer[:4], words="returned 4 values from step"),
    Fault(
        name="constructor raises, too",
        act=fail(OSError("no wheels")),
        words="raised OSError when it was made: no licence",
        cause=OSError,
        n_failing_makes=2,
    ),
    Fault(
        name="reset raises",
        where="reset",
        act=fail(OSError("no map")),
        words="raised OSError in reset: no map",
        cause=OSError,
    ),
    Fault(name="reset gives another shape", where="reset", act=replace(0, SHORT), words=r"observation of shape \(3,\)"),
    Fault(name="reset gives nan", where="reset", act=replace(0, NAN), words=r"observation nan at index \(2,\)"),
    Fault(name="reset gives no info", where="reset", act=lambda answer: answer[0], words=r"not \(obs, info\)"),
    Fault(name="step hangs", act=hang, words="gave no answer within 0.5 s in step, and was killed", only_apart=True),
    Fault(name="step is killed", act=die, words="died in step: its process was killed by SIGKILL", only_apart=True),
    Fault(name="step leaves", act=leave, words="died in step: its process exited with code 3", only_apart=True),
    Fault(name="reset hangs", where="reset", act=hang, words="gave no answer within 0.5 s in reset", only_apart=True),
    Fault(
        name="reset is killed",
        where="reset",
        act=die,
        words="died in reset: its process was killed by SIG",
        only_apart=True,
    ),
    Fault(
        name="info cannot be sent",
        act=replace(4, {"why": lambda: None}),
        words="raised TypeError in step: what it returned cannot be sent from its process",
        cause=TypeError,
        only_apart=True,
    ),
]
