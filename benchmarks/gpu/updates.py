"""Updates per second, by policy, batch, precision and engine, beside a plain loop and Stable-Baselines3."""

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import trainkit as tk
from benchmarks.gpu import limits, peer
from benchmarks.gpu.plain import LEARNERS
from benchmarks.gpu.record import MissingError, Piece, Record, Row, Setup, Unit
from benchmarks.gpu.timing import rates, table
from benchmarks.gpu.workloads import WORKLOADS, Workload

BATCHES = (32, 256)
PLAIN = "plain loop"


def ours(setup: Setup, workload: Workload, n_rows: int, engine: str, precision: str) -> list[float]:
    """Measure trainkit's updates.

    Raises:
        MissingError: the policy or this version of torch has no such engine or precision.
    """
    try:
        policy = workload.make(setup.device, engine=engine, precision=precision)
    except tk.errors.ConfigError as error:
        raise MissingError(str(error)) from error
    return rates(workload.updates(policy, n_rows), setup)


def units(setup: Setup) -> list[Unit]:
    """List all sides, workload by workload."""
    return [unit for workload in WORKLOADS for n_rows in batches(setup) for unit in sides(setup, workload, n_rows)]


def batches(setup: Setup) -> tuple[int, ...]:
    """Return the sizes of batches."""
    return (2,) if setup.is_rehearsal else BATCHES


def sides(setup: Setup, workload: Workload, n_rows: int) -> Iterator[Unit]:
    """Yield the sides of a workload at one batch size."""

    def unit(side: str, precision: str, measure: Callable[[], list[float]], needs_s: float) -> Unit:
        def row(left_s: float) -> Row:
            floor = limits.floor_s(workload, n_rows, precision, Record(setup.rows))
            return {"workload": workload.name, "batch": n_rows, "side": side, "rates": measure(), "floor_s": floor}

        return Unit(f"{workload.name}, batch {n_rows}: {side}", row, needs_s)

    if workload.name in LEARNERS:
        learner = partial(LEARNERS[workload.name], workload, n_rows, setup.device)
        yield unit(PLAIN, "float32", lambda: rates(learner().update, setup), 20)
    for engine in setup.engines:
        for precision in limits.PRECISIONS:
            measure = partial(ours, setup, workload, n_rows, engine, precision)
            yield unit(f"{engine}, {precision}", precision, measure, 90 if engine == "compile" else 20)
    if workload.name in peer.LEARNERS:
        yield unit("Stable-Baselines3", "float32", partial(peer.measured, setup, workload, n_rows), 60)


def section(rows: list[Row]) -> Iterator[str]:
    """Yield a table for each workload and batch."""
    for name, n_rows in dict.fromkeys((row["workload"], row["batch"]) for row in rows):
        own = [row for row in rows if (row["workload"], row["batch"]) == (name, n_rows)]
        loop = next((statistics.median(row["rates"]) for row in own if row["side"] == PLAIN), None)
        yield from ["", f"### {name}, batches of {n_rows}", ""]
        yield from table(
            "side | updates/s | lowest to highest round | us per update | floor, us | times the plain loop",
            [shown(row, loop) for row in own],
        )


def shown(row: Row, loop: float | None) -> tuple[Any, ...]:
    """Return the cells of a side."""
    rate = statistics.median(row["rates"])
    floor = "" if row["floor_s"] is None else f"{1e6 * row['floor_s']:,.1f}"
    times = "" if loop is None else f"{rate / loop:.2f}"
    span = f"{min(row['rates']):,.0f} to {max(row['rates']):,.0f}"
    return row["side"], f"{rate:,.0f}", span, f"{1e6 / rate:,.1f}", floor, times


PIECE = Piece("updates", "Updates per second", units, section)
