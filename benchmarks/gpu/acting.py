"""Calls of `act` per second, by policy, rows and engine: each sends observations and reads actions."""

import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.gpu.record import Piece, Row, Setup, Unit
from benchmarks.gpu.timing import rates, table
from benchmarks.gpu.workloads import WORKLOADS, Workload, drawn


def acting(setup: Setup, workload: Workload, n_rows: int, engine: str, left_s: float) -> Row:
    """Measure calls that explore."""
    policy, step = workload.make(setup.device, engine=engine), iter(range(10**6, 10**9))
    obs = drawn(workload.obs, n_rows, np.random.default_rng(0))
    return {"rates": rates(lambda: policy.act(obs, step=next(step), explore=True), setup), "n_rows": n_rows}


def units(setup: Setup) -> list[Unit]:
    """List every policy, for few and for many environments."""
    return [
        Unit(f"{workload.name}, {n_rows} rows, {engine}", partial(acting, setup, workload, n_rows, engine), 15)
        for workload in WORKLOADS
        for n_rows in ((2,) if setup.is_rehearsal else (8, 64))
        for engine in dict.fromkeys(("torch", setup.fastest))
    ]


def section(rows: list[Row]) -> Iterator[str]:
    """Yield the table of rates."""
    cells: list[tuple[Any, ...]] = []
    for row in rows:
        rate = statistics.median(row["rates"])
        cells.append((row["unit"], f"{rate:,.0f}", f"{1e6 / rate:,.1f}", f"{row['n_rows'] * rate:,.0f}"))
    yield from table("what | calls/s | us per call | actions/s", cells)


PIECE = Piece("acting", "Acting", units, section)
