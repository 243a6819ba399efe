"""Our side of `loops`: whole training loops of the trainkit of this checkout, block by block."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

import trainkit as tk
from benchmarks.sides.trainkit import Ours
from benchmarks.speed.loops_work import Loop, serve, shared_loops
from examples.two_agents import TwoPoles

QUIET: dict[str, Any] = {"verbose": False, "show_progress": False}
EPOCHS = 1_000_000  # never reached


class Epochs:
    """A trainer whose epochs are the blocks.

    Args:
        trainer: with epochs of one block.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer, self._epochs = trainer, iter(trainer)

    def block(self) -> tuple[int, int]:
        """Train an epoch; return the environment steps and the updates until now."""
        next(self._epochs)
        return self._trainer.env_step, self._trainer.gradient_step


class StatedPoles(TwoPoles):
    """CartPole for two, whose state are both poles; 0 for one that has left."""

    state_space = gym.spaces.Box(-np.inf, np.inf, (8,), np.float32)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], ...]:
        """Put both poles up and return (observations, infos)."""
        obs, infos = super().reset(seed, options)
        self._obs = obs
        return obs, infos

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Move everyone who plays and return (observations, rewards, terminated, truncated, infos)."""
        result = super().step(actions)
        self._obs = result[0]
        return result

    def state(self) -> np.ndarray:
        """Return what both see, [8]."""
        gone = np.zeros(4, np.float32)
        return np.concatenate([self._obs.get(name, gone) for name in self.possible_agents])


def r2d2() -> Epochs:
    """Return R2D2 with its preset's settings, on CartPole."""
    settings: dict[str, Any] = {"zoo": False, "seed": 1, "device": "cpu", "evaluation": None, "learning_starts": 256}
    settings |= {"step_per_epoch": 512, "max_epoch": EPOCHS, **QUIET}
    return Epochs(tk.presets.r2d2("CartPole-v1", **settings))


def mappo() -> Epochs:
    """Return MAPPO on CartPole for two agents."""
    settings: dict[str, Any] = {"seed": 1, "device": "cpu", "evaluation": None, "step_per_collect": 512}
    settings |= {"step_per_epoch": 512, "batch_size": 128, "repeat_per_collect": 4, "max_epoch": EPOCHS, **QUIET}
    return Epochs(tk.presets.mappo(StatedPoles, **settings))


LOOPS: dict[str, Callable[[], Loop]] = {**shared_loops(Ours), "R2D2": r2d2, "MAPPO": mappo}


if __name__ == "__main__":
    serve(LOOPS, tk.__file__)
