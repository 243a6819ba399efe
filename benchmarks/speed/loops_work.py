"""What the sides of `loops` share: the workloads that every compared version has, and how a side answers.

A side reads the name of a loop per line and answers with a line of JSON: the CPU seconds of one block, and what was
done. A loop is built when it is first named, and stays: its blocks continue one another.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import torch

from benchmarks.sides.work import COLLECT, WORKS, Work


class Loop(Protocol):
    """A whole training loop, or collecting alone."""

    def block(self) -> tuple[int, int]:
        """Run a block; return the environment steps and the updates until now."""


class Blocks:
    """A workload of `peers`, in blocks of some tenths of a second.

    Args:
        side: the library with the workload: `collect`, `loop`, `collector` and `n_updates`.
        work: the workload.
        n_blocks: of the workload, in one block.
    """

    def __init__(self, side: Any, work: Work, n_blocks: int = 1) -> None:
        self._side, self._work, self._n_blocks = side, work, n_blocks
        side.collect(work.warmup)

    def block(self) -> tuple[int, int]:
        """Collect a block, or train one."""
        for _ in range(self._n_blocks):
            (self._side.collect if self._work.rate == COLLECT else self._side.loop)(self._work.block)
        return self._side.collector.env_step, self._side.n_updates()


def _collecting(n_envs: int, n_steps: int) -> tuple[Work, int]:
    """Return the work of stepping, acting and storing in so many environments, without updates."""
    work = WORKS["Collecting, 8 environments"]
    return replace(work, n_envs=n_envs, steps_per_update=n_envs, block=n_steps), 1


# The work of each loop, and how many of its blocks are measured as one.
SHARED: dict[str, tuple[Work, int]] = {
    "DQN": (WORKS["DQN 64-64, batch 32"], 1),
    "prioritized": (WORKS["Prioritized double DQN, 3-step, 128-128-128, batch 64"], 1),
    "Rainbow": (WORKS["Rainbow, 128-128, batch 32"], 1),
    "PPO": (WORKS["PPO 64-64, batch 256"], 1),
    "SAC": (WORKS["SAC 64-64, batch 64"], 4),
    "collecting, 1": _collecting(1, 1_600),
    "collecting, 4": _collecting(4, 3_200),
    "collecting, 32": _collecting(32, 6_400),
    "collecting, 64": _collecting(64, 12_800),
}


def shared_loops(make: Callable[[Work], Any]) -> dict[str, Callable[[], Loop]]:
    """Return how a side makes each of the loops that all versions have; `make` gives a workload to its library."""

    def maker(work: Work, n_blocks: int) -> Callable[[], Loop]:
        return lambda: Blocks(make(work), work, n_blocks)

    return {name: maker(*shared) for name, shared in SHARED.items()}


def serve(loops: Mapping[str, Callable[[], Loop]], at: str) -> None:
    """Answer every line; `at` is the file of the package that is measured."""
    torch.set_num_threads(1)
    made: dict[str, Loop] = {}
    for line in sys.stdin:
        name = line.strip()
        if name not in made:
            made.clear()  # frees the last loop
            made[name] = loops[name]()
        before = time.process_time()
        steps, updates = made[name].block()
        answer = {"seconds": time.process_time() - before, "done": {"steps": steps, "updates": updates}}
        print(json.dumps({**answer, "at": at}), flush=True)
