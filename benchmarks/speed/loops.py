"""Measure whole loops beside another commit of trainkit, in alternating blocks on one core.

    python -m benchmarks.speed.loops --against COMMIT [--loops DQN PPO ...] [--starts 8] [--pairs 3] [--core 0]
                              [--out FILE]

The other commit is checked out into a folder of its own, and runs its own workloads (`benchmarks/speed/loops_side.py`)
by its own `src`. One that has none runs those that are kept here for 796b72f, the last commit before optional features
came, by default the loops that it had. Both sides must do the same work.

Each pair of blocks has the sides in the other order; the first pair warms up. A process can be slower than another of
the same code by some percent for all its life, so both are started several times. The ratio is the other commit's CPU
seconds by ours (above 1: this tree is faster), the median over all pairs; its 95 % interval is the percentile
bootstrap's over starts. Leave the machine alone.
"""

import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from benchmarks import pages
from benchmarks.measuring import Live, checkout, quiet_machine
from benchmarks.pages import ROOT
from benchmarks.speed.loops_side import LOOPS
from benchmarks.speed.loops_work import SHARED

Starts = Sequence[Sequence[float]]  # the ratios of the pairs of each start

COLLECTING = [name for name in LOOPS if name.startswith("collecting")]


def module_of(tree: Path) -> str | None:
    """Return the module of a tree's own side, which older commits have elsewhere; None where there is none."""
    modules = "benchmarks.speed.loops_side", "benchmarks.loops_side"
    return next((name for name in modules if (tree / f"{name.replace('.', '/')}.py").exists()), None)


@contextmanager
def side(tree: Path, core: int) -> Iterator[Live]:
    """Run a side with the package of a tree and its own workloads, or with those that are kept for it."""
    own = module_of(tree)
    base, module = (ROOT, "benchmarks.speed.loops_796b72f") if own is None else (tree, own)
    path = os.pathsep.join([str(tree / "src"), str(base)])
    # -P: else the working folder's benchmarks would come before those of the tree
    command = ["/usr/bin/env", f"PYTHONPATH={path}", sys.executable, "-P", "-m", module]
    with Live(command, core) as live:
        yield live


def measure(name: str, ours: Live, theirs: Live, n_pairs: int) -> list[float]:
    """Return their seconds by ours, pair by pair; both must have done the same work."""
    ratios = []
    for number in range(n_pairs + 1):
        order = (ours, theirs) if number % 2 else (theirs, ours)
        answers = {id(live): live.query(name) for live in order}
        own, other = answers[id(ours)], answers[id(theirs)]
        if own["done"] != other["done"]:
            raise SystemExit(f"{name}: this tree did {own['done']}, the other {other['done']}")
        if number:
            ratios.append(other["seconds"] / own["seconds"])
    return ratios


def interval(ratios: Starts) -> tuple[float, float, float]:
    """Return the median of the ratios of all starts, and the 95 % interval of the bootstrap that resamples starts."""
    by_start = np.asarray(ratios, np.float64)  # [S, P]
    drawn = np.random.default_rng(0).integers(len(by_start), size=(10_000, len(by_start)))
    medians = np.median(by_start[drawn].reshape(len(drawn), -1), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return float(np.median(by_start)), float(low), float(high)


def report(measured: Mapping[str, Starts], against: str) -> str:
    """Return the page, in markdown."""
    rows = {name: interval(ratios) for name, ratios in measured.items()}
    medians = [median for name, (median, _, _) in rows.items() if name not in COLLECTING]
    command = f"python -m benchmarks.speed.loops --against {against}"
    lines = [
        *pages.heading(f"Whole loops compared with {against}", command, how="one core, one thread each, in turn"),
        "Ratios of CPU seconds, the other commit's by ours: above 1 this code is faster. Medians with the 95 % "
        "bootstrap interval over starts.",
        "",
        *pages.table(
            ["loop", "ratio", "95 % interval", "starts x pairs"],
            (
                [name, f"{median:.3f}", f"{low:.3f} to {high:.3f}", f"{len(measured[name])} x {len(measured[name][0])}"]
                for name, (median, low, high) in rows.items()
            ),
        ),
    ]
    if medians:
        lines += [f"Median over the training loops: {statistics.median(medians):.3f}.", ""]
    return "\n".join(lines)


@quiet_machine()
def main() -> None:
    """Measure the loops, and print the page, or write it."""
    parser = pages.arguments(__doc__)
    parser.add_argument("--against", required=True, metavar="COMMIT")
    parser.add_argument("--loops", nargs="+", choices=list(LOOPS), help="default: all that both have")
    parser.add_argument("--starts", type=int, default=8, help="times that both sides are started, for each loop")
    parser.add_argument("--pairs", type=int, default=3, help="pairs of blocks of each start")
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--out", type=Path, help="default: the terminal")
    given = parser.parse_args()
    measured: dict[str, Starts] = {}
    with ExitStack() as stack:
        tree = stack.enter_context(checkout(given.against))
        for name in given.loops or (SHARED if module_of(tree) is None else LOOPS):
            starts = []
            for _ in range(given.starts):
                with side(ROOT, given.core) as ours, side(tree, given.core) as theirs:
                    starts.append(measure(name, ours, theirs, given.pairs))
            measured[name] = starts
            median, low, high = interval(measured[name])
            print(f"{name}: {median:.3f} [{low:.3f}, {high:.3f}]", file=sys.stderr, flush=True)
    page = report(measured, given.against)
    if given.out is None:
        print(page)
    else:
        given.out.write_text(page)


if __name__ == "__main__":
    main()
