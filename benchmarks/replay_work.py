"""The work every side of replay's speed does, in numbers that all share.

A round is: draw a batch, gather it (n-step returns where asked for), write its priorities back. A side is a script
that runs in an environment of its own, takes `--rows --batch --n-step`, and prints one line of JSON: `us` are
microseconds of CPU time per round, `done` is what was done.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

OBS = 4  # numbers per observation, float32
ALPHA, BETA = 0.6, 0.4
GAMMA = 0.99
EPISODE = 200  # rows
ROUNDS, BLOCKS = 150, 5  # the median over blocks counts
PER_ROUND = 16


def options() -> argparse.Namespace:
    """Read what is asked of a side."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--n-step", type=int, default=1)
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


def show(us: Mapping[str, float], version: str, asked: argparse.Namespace) -> None:
    """Print the line."""
    print(json.dumps({"us": us, "done": vars(asked), "version": version}))
