"""Print our rates as multiples of a calibration loop, beside those that were kept: a slow-down shows on any machine.

    python -m benchmarks.quick [--runs 3] [--keep]

The calibration is a fixed loop of small numpy and torch calls, run before and after each work: a rate divided by its
rate hardly depends on the machine, nor on what else it does. `--keep` writes what was measured, for the next ones to
be held against.
"""

import argparse
import dataclasses
import importlib.util
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.side import measure
from benchmarks.side_trainkit import Ours
from benchmarks.work import WORKS, Work

KEPT = Path("benchmarks/results/quick.json")
SLOWER = 0.85  # of what was kept; noise of a quiet machine stays above
# The works of `peers`, shortened.
QUICK = {
    "uniform": dataclasses.replace(WORKS["huber"], loop_steps=4_800),
    "prioritised": dataclasses.replace(WORKS["prioritised"], loop_steps=4_800),
    "rounds": dataclasses.replace(WORKS["rounds"], loop_steps=4_800),
    "64 environments": WORKS["many, own"],
    "sac": dataclasses.replace(WORKS["sac"], warmup_steps=300, collect_steps=2_000, updates=100, loop_steps=150),
    "pong": dataclasses.replace(WORKS["pong"], warmup_steps=100, collect_steps=1_000, updates=10, loop_steps=80),
}


def calibration() -> float:
    """Return loops per second of small calls like those of a vector step and an update."""
    rng = np.random.default_rng(0)
    column, weights = np.zeros((1_000, 4), np.float32), torch.zeros(128, 128)
    rows = torch.zeros(64, 128)
    n_loops = 3_000
    began = time.process_time()
    for _ in range(n_loops):
        index = rng.integers(1_000, size=64)
        column[index[:8]] = column[index].sum(axis=0)
        rows = torch.relu(rows @ weights)
    return n_loops / (time.process_time() - began)


def rates(work: Work) -> dict[str, tuple[float, float]]:
    """Return each rate, and how many times the calibration's it is."""
    before = calibration()
    ours = Ours(work)
    ours.collect(work.warmup_steps)
    reached, _ = measure(ours, work)
    base = (before + calibration()) / 2
    return {name: (rate, rate / base) for name, rate in reached.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kept: dict[str, float] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    found = {}
    print(f"{'':18s}{'work':18s}{'rate':>10s}{'per calibration loop':>24s}{'kept':>10s}{'by kept':>10s}")
    for title, work in QUICK.items():
        if work.env.startswith("ALE/") and importlib.util.find_spec("ale_py") is None:
            print(f"{title:18s}left out: ale-py is not there")
            continue
        runs = [rates(work) for _ in range(options.runs)]
        for name in runs[0]:
            rate, ratio = (statistics.median(column) for column in zip(*(run[name] for run in runs), strict=True))
            row = f"{title}: {name}"
            found[row] = ratio
            line = f"{title:18s}{name:18s}{rate:10,.0f}{ratio:24.3g}"
            if row in kept:
                share = ratio / kept[row]
                line += f"{kept[row]:10.3g}{share:10.2f}{'  SLOWER' if share < SLOWER else ''}"
            print(line, flush=True)
    if options.keep:
        KEPT.write_text(json.dumps(kept | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
