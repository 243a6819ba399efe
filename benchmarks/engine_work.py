"""What the sides of `engine_speed` share: the sizes of blocks, and how a side answers.

A side reads "CELL|SIZE|ROWS" or "loop|NAME" per line, and answers with the CPU seconds of a call.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import gymnasium as gym
import torch

SECONDS = 0.02  # of a block
WARM_UP = 5  # epochs of a loop before it is measured
LOOPS = "dqn", "prioritized", "rainbow", "ppo", "sac"


def serve(
    update_of: Callable[[str, tuple[int, ...], int], Callable[[], object]],
    loop_of: Callable[[str], Iterator[Any]],
    step_left_out: Callable[[], AbstractContextManager[None]],
) -> None:
    """Answer every line.

    Args:
        update_of: a cell's name, the sizes of hidden layers and the number of rows -> what takes an update.
        loop_of: a loop's name -> an iterator whose steps are epochs.
        step_left_out: updates in this context end with the gradients: no clip, no Adam, no statistics.
    """
    torch.set_num_threads(1)
    work: dict[str, tuple[Callable[[], object], int]] = {}
    gym.logger.min_level = gym.logger.ERROR if hasattr(gym.logger, "ERROR") else 40
    for line in sys.stdin:
        word = line.strip()
        name, *rest = word.split("|")
        with nullcontext() if name == "loop" else step_left_out():
            if word not in work:
                if name == "loop":
                    work[word] = _warm(loop_of(rest[0])), 1
                else:
                    call = update_of(name, tuple(map(int, rest[0].split("-"))), int(rest[1]))
                    work[word] = call, max(int(SECONDS / _seconds(call, 20, 10)), 2)
            call, n_calls = work[word]
            print(json.dumps({"seconds": _seconds(call, 1, n_calls), "done": {}}), flush=True)


def _warm(loop: Iterator[Any]) -> Callable[[], object]:
    for _ in range(WARM_UP):
        next(loop)
    return lambda: next(loop)


def _seconds(call: Callable[[], object], n_before: int, n_calls: int) -> float:
    """Return the CPU seconds of a call, after some that are not measured."""
    for _ in range(n_before):
        call()
    started = time.process_time()
    for _ in range(n_calls):
        call()
    return (time.process_time() - started) / n_calls
