"""Print our rates as multiples of a calibration loop, next to those that were kept: a slow-down shows on any machine.

    python -m benchmarks.speed.quick [--runs 3] [--keep]

The calibration is a fixed loop of small numpy and torch calls, run before and after each workload of `peers`: a rate
divided by its rate hardly depends on the machine, nor on its load. `--keep` writes what was measured, for later runs
to be compared with.
"""

import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks import pages
from benchmarks.measuring import quiet_machine
from benchmarks.sides.side import measure
from benchmarks.sides.trainkit import Ours
from benchmarks.sides.work import WORKS, Work

KEPT = Path("benchmarks/results/quick.json")
SLOWER = 0.85  # of what was kept; noise of a quiet machine stays above
SECONDS = 1.0  # of each workload, at least
QUICK = [
    "DQN 128-128-128, batch 64",
    "DQN 128-128-128, batch 64, 64 environments",
    "DQN 512-512, batch 256",
    "Prioritized double DQN, 3-step, 128-128-128, batch 64",
    "Rainbow, 128-128, batch 32",
    "DQN on images of 84x84x4, Nature CNN, batch 32",
    "SAC 256-256, batch 256",
    "PPO 64-64, batch 64",
    "Collecting, 8 environments",
]


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


def rate(work: Work) -> tuple[float, float]:
    """Return environment steps per second, and how many times the calibration's rate that is."""
    ours = Ours(work)
    ours.collect(work.warmup)
    measure(ours, work)
    before, n_blocks, seconds = calibration(), 0, 0.0
    while seconds < SECONDS:
        seconds += measure(ours, work)["seconds"]
        n_blocks += 1
    reached = n_blocks * work.block / seconds
    return reached, 2 * reached / (before + calibration())


@quiet_machine()
def main() -> None:
    """Print the table."""
    parser = pages.arguments(__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kept: dict[str, float] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    found = {}
    print(f"{'workload':58s}{'steps/s':>10s}{'per calibration loop':>24s}{'kept':>10s}{'by kept':>10s}")
    for name in QUICK:
        runs = [rate(WORKS[name]) for _ in range(options.runs)]
        reached, found[name] = (statistics.median(column) for column in zip(*runs, strict=True))
        line = f"{name:58s}{reached:10,.0f}{found[name]:24.3g}"
        if name in kept:
            share = found[name] / kept[name]
            line += f"{kept[name]:10.3g}{share:10.2f}{'  SLOWER' if share < SLOWER else ''}"
        print(line, flush=True)
    if options.keep:
        KEPT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
