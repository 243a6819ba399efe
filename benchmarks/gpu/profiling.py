"""The profile of one update: which operations take the device's time, and how many there are."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.record import Piece, Row, Setup, Unit
from benchmarks.gpu.timing import WARM_UP, table, wait
from benchmarks.gpu.workloads import WORKLOADS, Workload

N_UPDATES = 10
N_SHOWN = 10


def profiled(setup: Setup, workload: Workload, engine: str, left_s: float) -> Row:
    """Profile updates of 32 rows, and write a trace for a browser (chrome://tracing, Perfetto)."""
    n_rows, n_updates = (2, 1) if setup.is_rehearsal else (32, N_UPDATES)
    update = workload.updates(workload.make(setup.device, engine=engine), n_rows)
    for _ in range(1 if setup.is_rehearsal else WARM_UP):
        update()
    wait(setup.device)
    is_cuda = setup.device.startswith("cuda")
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]) as profiler:
        for _ in range(n_updates):
            update()
        wait(setup.device)
    setup.work.mkdir(parents=True, exist_ok=True)
    words = "".join(letter if letter.isalnum() else "_" for letter in f"{workload.name}_{engine}")
    trace = setup.work / f"trace_{words}.json.gz"
    profiler.export_chrome_trace(str(trace))
    events = [event for event in profiler.key_averages() if _is_kernel(event, is_cuda)]
    events.sort(key=lambda event: -_microseconds(event, is_cuda))
    top = [[event.key[:80], _microseconds(event, is_cuda) / n_updates, event.count / n_updates] for event in events]
    total = {"us": sum(us for _, us, _ in top), "calls": sum(calls for _, _, calls in top)}
    return {"workload": workload.name, "engine": engine, "total": total, "top": top[:N_SHOWN], "trace": trace.name}


def _is_kernel(event: Any, is_cuda: bool) -> bool:
    """Return whether an event is a kernel; on other devices, an operation that took time itself."""
    if is_cuda:
        return bool(event.device_type == torch.autograd.DeviceType.CUDA)
    return bool(event.self_cpu_time_total > 0)


def _microseconds(event: Any, is_cuda: bool) -> float:
    return float(event.self_device_time_total if is_cuda else event.self_cpu_time_total)


def units(setup: Setup) -> list[Unit]:
    """List every policy, executed by torch and by the fastest engine."""
    return [
        Unit(f"{workload.name}, {engine}", partial(profiled, setup, workload, engine), 30)
        for workload in WORKLOADS
        for engine in dict.fromkeys(("torch", setup.fastest))
    ]


def section(rows: list[Row]) -> Iterator[str]:
    """Yield a table of the costliest kernels for each policy and engine."""
    for row in rows:
        total = row["total"]
        yield from ["", f"### {row['unit']}", ""]
        yield f"One update of 32 rows: {total['calls']:,.0f} kernels, {total['us']:,.0f} us in them; `{row['trace']}`."
        yield ""
        shown = [(f"`{name.replace('|', '/')}`", f"{us:,.1f}", f"{calls:,.1f}") for name, us, calls in row["top"]]
        yield from table("kernel | us | calls", shown)


PIECE = Piece("profile", "Profile of one update", units, section)
