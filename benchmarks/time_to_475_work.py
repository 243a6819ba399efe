"""What is raced for on CartPole, in numbers that both sides share.

A side runs in an environment of its own, learns until the judge has seen it solve the task, and prints one line of
JSON: `steps` and `seconds` it took, None where the limit came first, and `done`, which must be equal.
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks.same_work import Judge

TASK, SOLVED = "CartPole-v1", 475.0
SEEDS = tuple(range(1, 11))

# Those of rl-baselines3-zoo for DQN, of one environment; what it leaves is Stable-Baselines3's default.
STEPS_PER_ROUND, UPDATES_PER_ROUND = 256, 128
TARGET_EVERY = 10  # environment steps: at every step of a round but while its updates run
LIMIT = 196 * STEPS_PER_ROUND  # environment steps: the first whole round after 50,000
HIDDEN = (256, 256)
LR = 2.3e-3
BATCH = 64
CAPACITY = 100_000
GAMMA = 0.99
CLIP = 10.0
LEARNING_STARTS = 1_000
EPSILON, EPSILON_STEPS = (1.0, 0.04), 8_000  # 16 % of 50,000
EVERY = 4 * STEPS_PER_ROUND  # environment steps from judge to judge
SETTINGS = [STEPS_PER_ROUND, UPDATES_PER_ROUND, TARGET_EVERY, LIMIT, HIDDEN, LR, BATCH, CAPACITY, GAMMA, CLIP]
SETTINGS += [LEARNING_STARTS, EPSILON, EPSILON_STEPS, EVERY]

N_PARAMETERS = (4 + 1) * 256 + (256 + 1) * 256 + (256 + 1) * 2


def n_updates(steps: int) -> int:
    """Count the updates of both sides: the round that passes the start of learning has the first."""
    return max(steps // STEPS_PER_ROUND - LEARNING_STARTS // STEPS_PER_ROUND, 0) * UPDATES_PER_ROUND


class Race:
    """Ask the judge now and then; the clock, of CPU time, stands while it plays."""

    def __init__(self, seed: int) -> None:
        self._judge = Judge(TASK, seed)
        self._seconds = 0.0
        self._began = time.process_time()

    def is_over(self, act: Callable[[Any], Any]) -> bool:
        """Let the policy play, and say whether it has solved the task."""
        self._seconds += time.process_time() - self._began
        self._judge.play(act)
        self._began = time.process_time()
        return self._judge.returns[-1] >= SOLVED

    def show(self, *, steps: int, updates: int, parameters: int, versions: Mapping[str, str]) -> None:
        """Print the line."""
        is_won = self._judge.returns[-1] >= SOLVED
        done = {"updates": updates, "parameters": parameters, "threads": torch.get_num_threads()}
        result = {
            "steps": steps if is_won else None,
            "seconds": self._seconds if is_won else None,
            "returns": self._judge.returns,
            "ended_at": steps,
            "cpu_seconds": self._seconds,
            "done": done,
            "versions": {**versions, "torch": torch.__version__},
        }
        print(json.dumps(result))


def options() -> argparse.ArgumentParser:
    """Return what both sides are asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    return parser
