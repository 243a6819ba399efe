"""Measure the numpy engine beside torch, and beside the hand-written numpy of an earlier commit, in turn on one core.

    python -m benchmarks.engine_speed [--rounds 15] [--core 0] [--against 796b72f] [--out FILE]

Each side is a process that stays; in every round each does a block of each cell's work, one right after the other, so
that the machine's changing pace meets all alike. Ratios are medians over rounds of the paces within a round.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.engine_work import LOOPS, WARM_UP
from benchmarks.provenance import ROOT, measured_at
from benchmarks.quiet import quiet_machine
from benchmarks.running import Live, checkout, machine

SIZES = "64-64", "128-128", "128-128-128", "256-256"
BATCHES = "32", "64"
HAND_WRITTEN = "dqn", "double dueling", "munchausen", "c51", "qr-dqn", "rainbow", "sac", "ppo", "ppo box"
BY_TORCH = "iqn", "cql", "bcq", "bc", "a2c"  # which had no copy in numpy
OLD, NUMPY, TORCH = "hand-written", "numpy", "torch"

Times = dict[str, dict[str, list[float]]]  # {cell: {side: seconds per call, round by round}}


def measure(cells: Sequence[str], sides: dict[str, Live], n_rounds: int) -> Times:
    """Have every side do every cell's work in turn."""
    times: Times = {cell: {side: [] for side in sides} for cell in cells}
    for cell in cells:
        for _ in range(n_rounds):
            for side, live in sides.items():
                times[cell][side].append(live.ask(cell, {})["seconds"])
        print(f"{cell}: {_cell(times[cell])}", flush=True)
    return times


def ratio(times: dict[str, list[float]], side: str, other: str) -> float:
    """Return a side's time over another's, the median over rounds."""
    return statistics.median(a / b for a, b in zip(times[side], times[other], strict=True))


def _cell(times: dict[str, list[float]]) -> str:
    """Return the best times in microseconds, and the ratios to numpy."""
    best = "/".join(f"{1e6 * min(times[side]):,.0f}" for side in (TORCH, OLD, NUMPY))
    return f"{best} ({ratio(times, NUMPY, OLD):.2f}, {ratio(times, NUMPY, TORCH):.2f})"


def report(times: Times, command: str, against: str) -> str:
    """Return the page."""
    lines = [
        "# The numpy engine beside torch and beside the hand-written numpy it replaced",
        "",
        measured_at(),
        "",
        f"`{command}` on {machine()}; one thread, pinned to one core, sides in turn. In each cell: microseconds of CPU "
        f"time (the best of all rounds) by torch / at {against} / by the numpy engine, and in brackets the time of the "
        f"numpy engine over that at {against} and over torch's (medians over rounds).",
        "",
        "## Loss and gradient",
        "",
        "One update without clip, Adam and statistics; inputs' copies, the watch and comparisons are included.",
        "",
    ]
    columns = [(size, n_rows) for size in SIZES for n_rows in BATCHES]
    lines.append("| | " + " | ".join(f"{size}, batch {n_rows}" for size, n_rows in columns) + " |")
    lines.append("|---" * (len(columns) + 1) + "|")
    for name in (*HAND_WRITTEN, *BY_TORCH):
        row = [_cell(times[f"{name}|{size}|{n_rows}"]) for size, n_rows in columns]
        lines.append(f"| {name} | {' | '.join(row)} |")
    lines += ["", *_summary(times, against), "", "## Whole training loops", ""]
    lines.append(
        f"Seconds of CPU time for 1,000 environment steps, after {WARM_UP},000 that are not measured; one exploring "
        "action in ten where there are any."
    )
    lines += [
        "",
        f"| loop | torch | {against} | numpy | {against} : numpy | torch : numpy |",
        "|---|---|---|---|---|---|",
    ]
    for name in LOOPS:
        own = times[f"loop|{name}"]
        seconds = " | ".join(f"{min(own[side]):.3f}" for side in (TORCH, OLD, NUMPY))
        lines.append(f"| {name} | {seconds} | {ratio(own, OLD, NUMPY):.2f} | {ratio(own, TORCH, NUMPY):.2f} |")
    return "\n".join([*lines, ""])


def _summary(times: Times, against: str) -> Iterator[str]:
    for names, side, what in ((HAND_WRITTEN, OLD, f"the hand-written numpy of {against}"), (BY_TORCH, TORCH, "torch")):
        ratios = [ratio(own, NUMPY, side) for cell, own in times.items() if cell.split("|")[0] in names]
        yield (
            f"- beside {what}, {len(ratios)} cells ({', '.join(names)}): median {statistics.median(ratios):.2f} of its "
            f"time, from {min(ratios):.2f} to {max(ratios):.2f}"
        )


@quiet_machine()
def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--against", default="796b72f")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/engine_speed.md"))
    options = parser.parse_args()
    cells = [f"{name}|{size}|{n}" for name in (*HAND_WRITTEN, *BY_TORCH) for size in SIZES for n in BATCHES]
    cells += [f"loop|{name}" for name in LOOPS]
    with checkout(options.against) as tree, ExitStack() as stack:
        sides = {
            OLD: Live(_python(tree, "engine_side_796b72f"), options.core),
            NUMPY: Live([*_python(ROOT, "engine_side"), "--engine", "numpy"], options.core),
            TORCH: Live([*_python(ROOT, "engine_side"), "--engine", "torch"], options.core),
        }
        for side in sides.values():
            stack.enter_context(side)
        times = measure(cells, sides, options.rounds)
    command = f"python -m benchmarks.engine_speed --rounds {options.rounds} --core {options.core}"
    options.out.write_text(report(times, command, options.against))
    print(f"\n{options.out.read_text()}")


def _python(tree: Path, side: str) -> list[str]:
    """Return the command of a side that imports the package from a tree, and the workloads from this one."""
    path = os.pathsep.join([str(tree / "src"), str(ROOT)])
    return ["/usr/bin/env", f"PYTHONPATH={path}", sys.executable, "-m", f"benchmarks.{side}"]


if __name__ == "__main__":
    main()
