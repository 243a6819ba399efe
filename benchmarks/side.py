"""How a side of `peers` is asked, timed, and how it answers.

A side runs in an environment of its own as `python -m benchmarks.side_NAME WORK`. For every line that it reads, a rate,
it does a block of work and prints one line of JSON: `rates` are what is compared, `done` is what was done and must be
equal on all sides. Seconds are of CPU time, so that what else the core did does not count; with two threads, of the
clock.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from benchmarks.work import COLLECT, LOOP, RATES, UPDATES, WORKS, Work


class Side(Protocol):
    """A library that was given a work."""

    version: str

    def collect(self, n_steps: int) -> int:
        """Store rows without learning, and return how many."""

    def update(self) -> object:
        """Draw a batch and learn from it."""

    def loop(self, n_steps: int) -> int:
        """Collect and learn in turn by the library's own loop, and return how many rows came."""

    def n_updates(self) -> int:
        """Count the updates so far."""

    def told(self) -> dict[str, Any]:
        """Read back from the parts what they were given, and how many numbers are learnt."""


def options() -> argparse.ArgumentParser:
    """Return what every side is asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=list(WORKS))
    parser.add_argument("--threads", type=int, default=1)
    return parser


def measure(
    side: Side, work: Work, rates: Sequence[str] = RATES, clock: Callable[[], float] = time.process_time
) -> tuple[dict[str, float], dict[str, Any]]:
    """Let a side that has rows do a block of each kind of work; return what it reached, and what was done."""
    reached, done = {}, {}
    if COLLECT in rates:
        began = clock()
        n_rows = side.collect(work.collect_steps)
        reached[COLLECT] = n_rows / (clock() - began)
        done["collected"] = n_rows
    if UPDATES in rates:
        for _ in range(work.updates // 10):
            side.update()
        before, began = side.n_updates(), clock()
        for _ in range(work.updates):
            side.update()
        reached[UPDATES] = work.updates / (clock() - began)
        done["updates"] = side.n_updates() - before
    if LOOP in rates:
        before, began = side.n_updates(), clock()
        n_rows = side.loop(work.loop_steps)
        reached[LOOP] = n_rows / (clock() - began)
        done |= {"loop_steps": n_rows, "loop_updates": side.n_updates() - before}
    return reached, done | side.told() | {"threads": torch.get_num_threads()}


def play(make: Callable[[Work], Side], asked: argparse.Namespace) -> None:
    """Do what is asked for, line by line."""
    torch.set_num_threads(asked.threads)
    work = WORKS[asked.work]
    side = make(work)
    side.collect(work.warmup_steps)
    clock = time.process_time if asked.threads == 1 else time.perf_counter
    for line in sys.stdin:
        rates, done = measure(side, work, [line.strip()], clock)
        print(json.dumps({"rates": rates, "done": done, "version": side.version}), flush=True)
