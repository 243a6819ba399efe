"""How a rate is measured on a device: calls in a row, and one wait at the end."""

import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu.record import Setup

WARM_UP = 20  # calls, in which graphs are compiled and recorded
ROUNDS = 3
ROUND_S = 0.7
REHEARSED = 5  # calls, of which the fourth is recorded
QUEUED = 64  # calls; torch and CUDA queue some hundred launches before one waits


def wait(device: str) -> None:
    """Wait until the device has done all that it was given."""
    if device != "cpu":
        torch.accelerator.synchronize()


def rates(work: Callable[[], Any], setup: Setup) -> list[float]:
    """Return calls per second of each round, slowest first."""
    if setup.is_rehearsal:
        return [1 / seconds(work, REHEARSED, setup.device)]
    for _ in range(WARM_UP):
        work()
    n_calls = max(1, round(ROUND_S / seconds(work, 5, setup.device)))
    return sorted(1 / seconds(work, n_calls, setup.device) for _ in range(ROUNDS))


def host_us(work: Callable[[], Any], setup: Setup) -> float:
    """Return the microseconds that the CPU is busy with a call, of calls that the device has room to queue."""
    n_calls = 1 if setup.is_rehearsal else QUEUED
    wait(setup.device)
    began = time.perf_counter()
    for _ in range(n_calls):
        work()
    took_s = time.perf_counter() - began
    wait(setup.device)
    return 1e6 * took_s / n_calls


def seconds(work: Callable[[], Any], n_calls: int, device: str) -> float:
    """Return the seconds of a call, the mean of n_calls."""
    wait(device)
    began = time.perf_counter()
    for _ in range(n_calls):
        work()
    wait(device)
    return (time.perf_counter() - began) / n_calls


def table(header: str, rows: list[tuple[Any, ...]]) -> list[str]:
    """Return the lines of a table, whose header is given as "side | rate"."""
    columns = header.split(" | ")
    lines = [f"| {header} |", "|---" * len(columns) + "|"]
    return [*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)]
