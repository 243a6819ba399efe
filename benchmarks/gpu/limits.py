"""What this device can do at best: the floor below which no update's time can be."""

import contextlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch

from benchmarks.gpu.record import MissingError, Piece, Record, Row, Setup, Unit
from benchmarks.gpu.timing import rates, table
from benchmarks.gpu.workloads import FRAMES, WORKLOADS, Workload
from trainkit.extensions.cuda.cuda_graph import garbage_kept

PRECISIONS = ("float32", "tf32", "bf16")
ADAM_BYTES = 28  # per parameter: reads gradient, parameter and two moments, writes three of them, four bytes each


@contextlib.contextmanager
def products_in(precision: str) -> Iterator[torch.dtype]:
    """Let CUDA's float32 products be computed in TF32, or not; yield the dtype to multiply."""
    switch: Any = torch.backends.cuda.matmul  # whose annotations lack the switch
    before, switch.fp32_precision = switch.fp32_precision, "tf32" if precision == "tf32" else "ieee"
    try:
        yield torch.bfloat16 if precision == "bf16" else torch.float32
    finally:
        switch.fp32_precision = before


def product(setup: Setup, precision: str) -> float:
    """Return the floating-point operations per second of one large product."""
    size = 64 if setup.is_rehearsal else 8192
    with products_in(precision) as dtype:
        one, other = torch.rand(2, size, size, device=setup.device).to(dtype)
        return 2.0 * size**3 * rates(lambda: one @ other, setup)[-1]


def copy(setup: Setup) -> float:
    """Return the bytes per second, read and written, of one large copy."""
    one, other = torch.rand(2, 2**10 if setup.is_rehearsal else 2**28, device=setup.device)
    return 2.0 * one.nbytes * rates(lambda: one.copy_(other), setup)[-1]


def operation(setup: Setup) -> float:
    """Return operations on one number per second."""
    one = torch.zeros((), device=setup.device)
    return rates(lambda: one.add_(1.0), setup)[-1]


def graph(setup: Setup) -> float:
    """Return launches per second of a CUDA graph of one operation on one number."""
    if not setup.device.startswith("cuda"):
        raise MissingError(f"{setup.device} has no CUDA graphs")
    one, recorded = torch.zeros((), device=setup.device), torch.cuda.CUDAGraph()
    one.add_(1.0)  # loads the kernel
    with garbage_kept, torch.cuda.graph(recorded):
        one.add_(1.0)
    return rates(recorded.replay, setup)[-1]


def round_trip(setup: Setup) -> float:
    """Return how often per second a number is sent, incremented and read, as when a policy acts."""
    return rates(lambda: (torch.zeros(1).to(setup.device) + 1.0).item(), setup)[-1]


def units(setup: Setup) -> list[Unit]:
    """List what is measured of the device."""
    work: dict[str, Callable[[], float]] = {
        **{f"product in {precision}": partial(product, setup, precision) for precision in PRECISIONS},
        "copy": partial(copy, setup),
        "operation": partial(operation, setup),
        "graph": partial(graph, setup),
        "round trip": partial(round_trip, setup),
    }
    return [Unit(name, partial(_row, measure), 10) for name, measure in work.items()]


def _row(measure: Callable[[], float], left_s: float) -> Row:
    return {"rate": measure()}


def floor_s(workload: Workload, n_rows: int, precision: str, record: Record) -> float | None:
    """Return the least seconds of an update: its products and Adam's memory at the device's best rates, or one launch.

    None where the device's rates are not measured. torch convolves float32 in TF32 by default.
    """
    best = {row["unit"]: row["rate"] for row in record.rows("limits")}
    multiplied = "tf32" if precision == "float32" and workload.obs is FRAMES else precision
    product_rate, copy_rate = best.get(f"product in {multiplied}"), best.get("copy")
    if product_rate is None or copy_rate is None:
        return None
    flops_per_row, n_parameters = counts_of(workload.name)
    work = n_rows * flops_per_row / product_rate + ADAM_BYTES * n_parameters / copy_rate
    return max(work, 1.0 / best["graph"] if "graph" in best else 0.0)


@cache
def counts_of(name: str) -> tuple[float, int]:
    """Return the floating-point operations of a row's update, and the number of parameters, of a workload."""
    (workload,) = (one for one in WORKLOADS if one.name == name)
    return workload.flops(1), workload.n_parameters()


UNITS = {"copy": (1e-9, "GB/s, read and written"), "product": (1e-12, "TFLOP/s")}


def section(rows: list[Row]) -> Iterator[str]:
    """Yield the table of the device's rates."""
    shown: list[tuple[Any, ...]] = []
    for row in rows:
        scale, of = UNITS.get(row["unit"].split()[0], (1e-3, "thousand per second"))
        shown.append(
            (row["unit"], "none on this device" if row["rate"] is None else f"{scale * row['rate']:,.4g} {of}")
        )
    yield from table("what | measured", shown)


PIECE = Piece("limits", "What the device can do at best", units, section)
