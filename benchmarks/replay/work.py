"""The work of every side of `replay_speed`, as numbers that all share.

A round is: sample a batch, gather it (with n-step returns), write its priorities back. For every line that a side reads
it measures a block of rounds and prints one line of JSON: `us` are microseconds of CPU time per round, `done` is what
was done.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

OBS = 4  # numbers per observation, float32
ALPHA, BETA = 0.6, 0.4
GAMMA = 0.99
EPISODE = 200  # rows
ROUNDS = 150  # of a block
PER_ROUND = 16
OWN, IN_ROUNDS, UNIFORM = "prioritized", f"prioritized, in rounds of {PER_ROUND}", "uniform, to tensors"
ADDS = ADD_PRIORITIZED, ADD_UNIFORM = "add, prioritized", "add, uniform"
N_INPUTS = 50  # different priorities that are written, steps that are stored
N_ENVS = 10  # rows of a vector step
STEPS_BEFORE = 1_000  # that are stored before the measurement; they fill the smallest buffer

Play = Callable[[int], object]  # a round, by the number of its input


def columns(n_rows: int) -> dict[str, Any]:
    """Return rows in time order, of episodes of equal length that end for good."""
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((n_rows, OBS), np.float32)
    done = np.arange(1, n_rows + 1) % EPISODE == 0
    after = np.roll(obs, -1, axis=0)  # an episode continues: the next observation is the next row's
    return {
        "obs": obs,
        "action": rng.integers(2, size=n_rows),
        "reward": rng.standard_normal(n_rows).astype(np.float32),
        "next_obs": np.where(done[:, None], rng.standard_normal((n_rows, OBS), np.float32), after),
        "done": done,
    }


def steps() -> list[dict[str, Any]]:
    """Return vector steps to store, round after round; an episode ends in one of them."""
    rng = np.random.default_rng(2)

    def step(i: int) -> dict[str, Any]:
        obs, next_obs = rng.standard_normal((2, N_ENVS, OBS), np.float32)
        reward = rng.standard_normal(N_ENVS).astype(np.float32)
        done = (np.arange(N_ENVS) == 0) & (i == 0)
        action = rng.integers(2, size=N_ENVS)
        return {"obs": obs, "action": action, "reward": reward, "next_obs": next_obs, "done": done}

    return [step(i) for i in range(N_INPUTS)]


def priorities(n_rows: int) -> list[Any]:
    """Return the priorities that are written back, round after round."""
    rng = np.random.default_rng(1)
    return [rng.uniform(0.01, 2.0, n_rows) for _ in range(N_INPUTS)]


def storing(add: Callable[[Any], object], steps: Sequence[Any]) -> Play:
    """Return a function that stores one of the vector steps, after many that fill the smallest buffer."""
    for i in range(STEPS_BEFORE):
        add(steps[i % N_INPUTS])
    return lambda i: add(steps[i])


def answer(ways: Mapping[str, Play], version: str, done: Mapping[str, Any]) -> None:
    """Measure a block of every way for each line that is read, and print the time of a round."""
    for play in ways.values():
        _microseconds(play)  # warms up
    for _ in sys.stdin:
        us = {name: _microseconds(play) / (PER_ROUND if name == IN_ROUNDS else 1) for name, play in ways.items()}
        print(json.dumps({"us": us, "done": done, "version": version}), flush=True)


def _microseconds(play: Play) -> float:
    """Return the time of a round, in a block of them."""
    started = time.process_time()
    for i in range(ROUNDS):
        play(i % N_INPUTS)
    return (time.process_time() - started) / ROUNDS * 1e6
