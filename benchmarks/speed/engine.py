"""Measure the numpy engine, torch, and either of another commit, in turn on one core.

    python -m benchmarks.speed.engine [--rounds 15] [--core 0] [--against COMMIT] [--out FILE]

Each side is a process that stays; in every round each does a block of each cell's work, one right after the other, so
that the machine's changing pace meets all alike. Ratios are medians over rounds of the times within a round.
"""

import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import pages
from benchmarks.measuring import Live, checkout, quiet_machine
from benchmarks.speed.engine_side import LOOPS, WARM_UP

SIZES = "64-64", "128-128", "128-128-128", "256-256"
BATCHES = "32", "64"
CELLS = (
    "dqn", "double dueling", "munchausen", "c51", "qr-dqn", "rainbow", "iqn", "cql", "bcq", "bc", "sac", "ppo",
    "ppo box", "a2c",
)  # fmt: skip
NUMPY, TORCH, BEFORE = "numpy", "torch", "before"

Times = dict[str, dict[str, list[float]]]  # {cell: {side: seconds per call, round by round}}


def measure(cells: Sequence[str], sides: dict[str, Live], n_rounds: int) -> Times:
    """Have every side do every cell's work in turn."""
    times: Times = {cell: {side: [] for side in sides} for cell in cells}
    for cell in cells:
        for _ in range(n_rounds):
            for side, live in sides.items():
                times[cell][side].append(live.ask(cell, {})["seconds"])
        print(f"{cell}: {shown(times[cell])}", flush=True)
    return times


def ratio(times: dict[str, list[float]], side: str, other: str) -> float:
    """Return a side's time over another's, the median over rounds."""
    return statistics.median(a / b for a, b in zip(times[side], times[other], strict=True))


def shown(times: dict[str, list[float]]) -> str:
    """Return the best times in microseconds, and the numpy engine's times over the others'."""
    sides = [side for side in (TORCH, BEFORE, NUMPY) if side in times]
    best = "/".join(f"{1e6 * min(times[side]):,.0f}" for side in sides)
    return f"{best} ({', '.join(f'{ratio(times, NUMPY, side):.2f}' for side in sides[:-1])})"


def report(times: Times, command: str, against: str | None) -> list[str]:
    """Return the lines of the page."""
    sides = [TORCH, *([BEFORE] if against else []), NUMPY]
    columns = [(size, n_rows) for size in SIZES for n_rows in BATCHES]
    other = f", at {against} by the numpy engine," if against else ""
    return [
        *pages.heading(
            "The numpy engine alongside torch", command, how="one thread, pinned to one core, sides in turn"
        ),
        f"In each cell: microseconds of CPU time (the best of all rounds) by torch{other} and by the numpy engine, and "
        "in brackets the time of the numpy engine over the others' (medians over rounds).",
        "",
        "## Loss and gradient",
        "",
        "One update without clip, Adam and statistics; inputs' copies, the check of changes and comparisons are "
        "included.",
        "",
        *pages.table(
            ["", *(f"{size}, batch {n_rows}" for size, n_rows in columns)],
            ([name, *(shown(times[f"{name}|{size}|{n_rows}"]) for size, n_rows in columns)] for name in CELLS),
        ),
        *summary(times, sides[:-1]),
        "",
        "## Whole training loops",
        "",
        f"Seconds of CPU time for 1,000 environment steps, after {WARM_UP},000 that are not measured; one exploring "
        "action in ten where there are any.",
        "",
        *pages.table(
            ["loop", *sides, *(f"{side} : numpy" for side in sides[:-1])],
            (
                [
                    name,
                    *(f"{min(times[f'loop|{name}'][side]):.3f}" for side in sides),
                    *(f"{ratio(times[f'loop|{name}'], side, NUMPY):.2f}" for side in sides[:-1]),
                ]
                for name in LOOPS
            ),
        ),
    ]


def summary(times: Times, sides: Sequence[str]) -> Iterator[str]:
    """Yield the range of the ratios to each other side."""
    for side in sides:
        ratios = [ratio(own, NUMPY, side) for cell, own in times.items() if not cell.startswith("loop|")]
        yield (
            f"- compared with {side}, {len(ratios)} cells: median {statistics.median(ratios):.2f} of its time, from "
            f"{min(ratios):.2f} to {max(ratios):.2f}"
        )


@quiet_machine()
def main() -> None:
    """Measure and write the page."""
    parser = pages.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--against", metavar="COMMIT", help="a commit that has `benchmarks/speed/engine_side.py`")
    parser.add_argument("--out", type=Path, default=pages.RESULTS / "engine_speed.md")
    options = parser.parse_args()
    cells = [f"{name}|{size}|{n}" for name in CELLS for size in SIZES for n in BATCHES]
    cells += [f"loop|{name}" for name in LOOPS]
    with ExitStack() as stack:
        commands = {NUMPY: [*side_of(pages.ROOT), NUMPY], TORCH: [*side_of(pages.ROOT), TORCH]}
        if options.against:
            commands[BEFORE] = [*side_of(stack.enter_context(checkout(options.against))), NUMPY]
        sides = {name: stack.enter_context(Live(command, options.core)) for name, command in commands.items()}
        times = measure(cells, sides, options.rounds)
    command = f"python -m benchmarks.speed.engine --rounds {options.rounds} --core {options.core}"
    command += f" --against {options.against}" if options.against else ""
    options.out.write_text("\n".join(report(times, command, options.against)) + "\n")
    print(f"\n{options.out.read_text()}")


def side_of(tree: Path) -> list[str]:
    """Return the command of the side of a tree."""
    path = os.pathsep.join([str(tree / "src"), str(tree)])
    return ["/usr/bin/env", f"PYTHONPATH={path}", sys.executable, "-P", "-m", "benchmarks.speed.engine_side"]


if __name__ == "__main__":
    main()
