"""A side of `loops`: whole training loops of the trainkit that PYTHONPATH names, block by block.

It reads the name of a loop per line and answers with a line of JSON: the CPU seconds of one block, and what was done.
A loop is built when it is first named, and stays: its blocks continue one another. Only what every compared version has
is used.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch

import trainkit as tk
from benchmarks.side_trainkit import Ours
from benchmarks.work import WORKS, Work
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


class Blocks:
    """A workload of `peers`, in blocks of some tenths of a second."""

    def __init__(self, work: Work, n_blocks: int = 1) -> None:
        self._work, self._n_blocks = work, n_blocks
        self._ours = Ours(self._work)
        self._ours.collect(self._work.warmup)

    def block(self) -> tuple[int, int]:
        """Collect a block, or train one; return the environment steps and the updates until now."""
        for _ in range(self._n_blocks):
            (self._ours.loop if self._work.rate == "loop" else self._ours.collect)(self._work.block)
        return self._ours.collector.env_step, self._ours.n_updates()


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


def collecting(n_envs: int, n_steps: int) -> Blocks:
    """Return stepping, acting and storing in so many environments, without updates."""
    work = replace(WORKS["Collecting, 8 environments"], n_envs=n_envs, steps_per_update=n_envs, block=n_steps)
    return Blocks(work)


LOOPS: dict[str, Callable[[], Any]] = {
    "DQN": lambda: Blocks(WORKS["DQN 64-64, batch 32"]),
    "prioritized": lambda: Blocks(WORKS["Prioritized double DQN, 3-step, 128-128-128, batch 64"]),
    "Rainbow": lambda: Blocks(WORKS["Rainbow, 128-128, batch 32"]),
    "PPO": lambda: Blocks(WORKS["PPO 64-64, batch 256"]),
    "SAC": lambda: Blocks(WORKS["SAC 64-64, batch 64"], 4),
    "R2D2": r2d2,
    "MAPPO": mappo,
    "collecting, 1": lambda: collecting(1, 1_600),
    "collecting, 4": lambda: collecting(4, 3_200),
    "collecting, 32": lambda: collecting(32, 6_400),
    "collecting, 64": lambda: collecting(64, 12_800),
}


def main() -> None:
    """Answer every line."""
    torch.set_num_threads(1)
    made: dict[str, Any] = {}
    for line in sys.stdin:
        name = line.strip()
        if name not in made:
            made.clear()  # frees the last loop
            made[name] = LOOPS[name]()
        before = time.process_time()
        steps, updates = made[name].block()
        answer = {"seconds": time.process_time() - before, "done": {"steps": steps, "updates": updates}}
        print(json.dumps({**answer, "at": tk.__file__}), flush=True)


if __name__ == "__main__":
    main()
