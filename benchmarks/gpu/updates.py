"""Updates per second, by policy, batch, engine and precision, beside a plain loop and Stable-Baselines3."""

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import trainkit as tk
from benchmarks.gpu import limits, peer
from benchmarks.gpu.plain import LEARNERS, InGraph
from benchmarks.gpu.record import MissingError, Piece, Record, Row, Setup, Unit
from benchmarks.gpu.timing import host_us, rates, table
from benchmarks.gpu.workloads import WORKLOADS, Update, Workload

BATCHES = (32, 256)
PLAIN, IN_GRAPH, COMPILED = "plain loop", "plain loop in a graph", "plain loop compiled, in a graph"
SB3 = "Stable-Baselines3"
ROUNDS = ((IN_GRAPH, "cuda_graph"), (COMPILED, "compile"), (PLAIN, "torch", SB3))  # what decides most comes first
LOWER = ("tf32", "bf16")
NEEDS_S = {COMPILED: 60, "compile": 60, SB3: 60}


def ours(setup: Setup, workload: Workload, n_rows: int, engine: str, precision: str) -> Update:
    """Return an update of trainkit's.

    Raises:
        MissingError: the policy or this version of torch has no such engine or precision.
    """
    try:
        policy = workload.make(setup.device, engine=engine, precision=precision)
    except tk.errors.ConfigError as error:
        raise MissingError(str(error)) from error
    if policy.engine.name != engine:
        raise MissingError(f"{policy.engine.name} would execute it: {policy.engine.reason}")
    return workload.updates(policy, n_rows)


def plain(setup: Setup, workload: Workload, n_rows: int, side: str) -> Update:
    """Return an update of a plain loop, which a graph may repeat."""
    learner = LEARNERS[workload.name](workload, n_rows, setup.device)
    if side != PLAIN and "cuda_graph" not in setup.engines:
        raise MissingError(f"{setup.device} has no CUDA graphs")
    return learner.update if side == PLAIN else InGraph(learner, compiled=side == COMPILED).update


def measured(setup: Setup, make: Callable[[], Update]) -> Row:
    """Return the rates of an update, and how long the CPU is busy with it."""
    update = make()
    return {"rates": rates(update, setup), "host_us": host_us(update, setup)}


def batches(setup: Setup) -> tuple[int, ...]:
    """Return the sizes of batches."""
    return (2,) if setup.is_rehearsal else BATCHES


def unit(
    setup: Setup, workload: Workload, n_rows: int, side: str, precision: str, measure: Callable[[], Row], needs_s: float
) -> Unit:
    """Return what measures a side of a workload."""

    def row(left_s: float) -> Row:
        floor = limits.floor_s(workload, n_rows, precision, Record(setup.rows))
        return {"workload": workload.name, "batch": n_rows, "side": side, **measure(), "floor_s": floor}

    return Unit(f"{workload.name}, batch {n_rows}: {side}", row, needs_s)


def units(setup: Setup) -> list[Unit]:
    """List the sides in float32: for every workload those that decide most, then the others."""
    return [
        one
        for sides in ROUNDS
        for workload in WORKLOADS
        for n_rows in batches(setup)
        for one in of_workload(setup, workload, n_rows, sides)
    ]


def of_workload(setup: Setup, workload: Workload, n_rows: int, sides: tuple[str, ...]) -> Iterator[Unit]:
    """Yield sides of a workload, those that it has."""
    for side in sides:
        if side in (PLAIN, IN_GRAPH, COMPILED):
            if workload.name not in LEARNERS:
                continue
            make = partial(plain, setup, workload, n_rows, side)
        elif side == SB3:
            if workload.name in peer.LEARNERS:
                own = partial(peer.measured, setup, workload, n_rows)
                yield unit(setup, workload, n_rows, SB3, "float32", lambda own=own: {"rates": own()}, NEEDS_S[SB3])
            continue
        elif side in setup.engines:
            make = partial(ours, setup, workload, n_rows, side, "float32")
        else:
            continue
        yield unit(setup, workload, n_rows, side, "float32", partial(measured, setup, make), NEEDS_S.get(side, 15))


def lower_units(setup: Setup) -> list[Unit]:
    """List the engines in lower precisions."""
    return [
        unit(
            *(setup, workload, n_rows, f"{engine}, {precision}", precision),
            partial(measured, setup, partial(ours, setup, workload, n_rows, engine, precision)),
            NEEDS_S.get(engine, 15),
        )
        for engine in setup.engines[::-1]
        for workload in WORKLOADS
        for n_rows in batches(setup)
        for precision in LOWER
    ]


def section(rows: list[Row]) -> Iterator[str]:
    """Yield a table for each workload and batch."""
    for name, n_rows in dict.fromkeys((row["workload"], row["batch"]) for row in rows):
        own = [row for row in rows if (row["workload"], row["batch"]) == (name, n_rows)]
        medians = {row["side"]: statistics.median(row["rates"]) for row in own}
        base = next((side for side in (IN_GRAPH, PLAIN) if side in medians), None)
        loop = None if base is None else medians[base]
        columns = "side | updates/s | lowest to highest round | us per update | CPU busy, us | floor, us"
        header = columns if base is None else f"{columns} | times the {base}"
        yield from ["", f"### {name}, batches of {n_rows}", ""]
        yield from table(header, [shown(row, loop) for row in own])


def shown(row: Row, loop: float | None) -> tuple[Any, ...]:
    """Return the cells of a side."""
    rate = statistics.median(row["rates"])
    floor = "" if row["floor_s"] is None else f"{1e6 * row['floor_s']:,.1f}"
    times = () if loop is None else (f"{rate / loop:.2f}",)
    busy = f"{row['host_us']:,.0f}" if "host_us" in row else ""
    span = f"{min(row['rates']):,.0f} to {max(row['rates']):,.0f}"
    return row["side"], f"{rate:,.0f}", span, f"{1e6 / rate:,.1f}", busy, floor, *times


PIECE = Piece("updates", "Updates per second", units, section)
LOWER_PIECE = Piece("precisions", "Updates per second in lower precisions", lower_units, section)
