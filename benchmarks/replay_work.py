"""The work every side of replay's speed does, in numbers that all share.

A round is: draw a batch, gather it (n-step returns where asked for), write its priorities back. A side is a script
that runs in an environment of its own, takes `--rows --batch --n-step`, and prints one line of JSON: `us` are
microseconds of CPU time per round, `done` is what was done. With `--adds` it measures vector steps that are stored.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

OBS = 4  # numbers per observation, float32
ALPHA, BETA = 0.6, 0.4
GAMMA = 0.99
EPISODE = 200  # rows
ROUNDS, BLOCKS = 150, 5  # the median over blocks counts
PER_ROUND = 16
N_ENVS = 10  # rows of a vector step
STEPS_BEFORE = 1_000  # that are stored before the measurement; they fill the smallest buffer


def options() -> argparse.Namespace:
    """Read what is asked of a side."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--n-step", type=int, default=1)
    parser.add_argument("--adds", action="store_true")
    return parser.parse_args()


def columns(n_rows: int) -> dict[str, Any]:
    """Return rows in time order, of episodes of equal length that end for good."""
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((n_rows, OBS), np.float32)
    done = np.arange(1, n_rows + 1) % EPISODE == 0
    after = np.roll(obs, -1, axis=0)  # an episode goes on: what comes next is what is acted on next
    return {
        "obs": obs,
        "action": rng.integers(2, size=n_rows),
        "reward": rng.standard_normal(n_rows).astype(np.float32),
        "next_obs": np.where(done[:, None], rng.standard_normal((n_rows, OBS), np.float32), after),
        "done": done,
    }


def steps() -> list[dict[str, Any]]:
    """Return vector steps to be stored, round after round; an episode ends in one of them."""
    rng = np.random.default_rng(2)

    def step(i: int) -> dict[str, Any]:
        obs, next_obs = rng.standard_normal((2, N_ENVS, OBS), np.float32)
        reward = rng.standard_normal(N_ENVS).astype(np.float32)
        done = (np.arange(N_ENVS) == 0) & (i == 0)
        action = rng.integers(2, size=N_ENVS)
        return {"obs": obs, "action": action, "reward": reward, "next_obs": next_obs, "done": done}

    return [step(i) for i in range(50)]


def priorities(n_rows: int) -> list[Any]:
    """Return what is written back, round after round."""
    rng = np.random.default_rng(1)
    return [rng.uniform(0.01, 2.0, n_rows) for _ in range(50)]


def microseconds(play: Callable[[int], object]) -> float:
    """Return the median time of a round."""
    for i in range(50):
        play(i % 50)
    blocks = []
    for _ in range(BLOCKS):
        began = time.process_time()
        for i in range(ROUNDS):
            play(i % 50)
        blocks.append((time.process_time() - began) / ROUNDS * 1e6)
    return statistics.median(blocks)


def microseconds_to_add(add: Callable[[Any], object], steps: Sequence[Any]) -> float:
    """Return the median time of storing a vector step."""
    for i in range(STEPS_BEFORE):
        add(steps[i % 50])
    return microseconds(lambda i: add(steps[i]))


def show(us: Mapping[str, float], version: str, asked: argparse.Namespace) -> None:
    """Print the line."""
    print(json.dumps({"us": us, "done": vars(asked), "version": version}))
