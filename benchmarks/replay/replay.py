"""Measure replay compared with peers: rounds of sample, gather and write back, and steps stored, in turn on one core.

    python -m benchmarks.replay.replay [--runs 15] [--core 0] [--rows N ...] [--out FILE]

Peers live in environments of their own, which `make bench-replay` builds; one that is not there is left out, and the
page says so. All sides are processes that stay and take turns, so that a change of the machine's pace meets all.
"""

import itertools
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import pages
from benchmarks.measuring import Live, quiet_machine
from benchmarks.pages import machine, measured_at
from benchmarks.replay import work as work
from benchmarks.replay.work import ADDS, IN_ROUNDS, OWN, UNIFORM

OURS = "trainkit"
SIDES = {
    OURS: [sys.executable, "-m", "benchmarks.replay.side", OURS],
    "cpprb": [".peers/cpprb@11.0.0/bin/python", "-m", "benchmarks.replay.side", "cpprb"],
    "torchrl": [".peers/torchrl@0.14.1/bin/python", "-m", "benchmarks.replay.side", "torchrl"],
    "tianshou": [".peers/tianshou@1.2.0/bin/python", "-m", "benchmarks.replay.side", "tianshou"],
    "stable-baselines3": [".peers/sb3-contrib@2.9.2/bin/python", "-m", "benchmarks.replay.side", "stable-baselines3"],
}
ROWS, BATCHES = (1_000_000, 100_000, 10_000), (32, 256)
# What one of a million rows must reach: {(peer, our way, batch, n-step): its time by ours}.
BARS = {
    ("tianshou", OWN, 256, 1): 1.2,
    ("tianshou", OWN, 32, 1): 1.0,
    ("cpprb", OWN, 256, 1): 2.0,
    ("cpprb", OWN, 32, 1): 0.6,
    ("tianshou", OWN, 256, 3): 1.5,
    ("tianshou", OWN, 32, 3): 1.5,
    ("cpprb", IN_ROUNDS, 32, 1): 3.5,
    ("torchrl", OWN, 256, 1): 2.7,
    ("torchrl", OWN, 32, 1): 2.9,
    ("stable-baselines3", UNIFORM, 256, 1): 1.2,
}
ONE_STEP_ONLY = {"torchrl", "stable-baselines3"}

Times = Mapping[str, Mapping[str, Any]]  # {side: what it printed}


def compared(rounds: Sequence[Times], n_rows: int, batch: int | None, n_step: int) -> list[str]:
    """Return a row for each of our ways beside each peer that does the same; without a batch, rows are stored."""
    lines = []
    for peer in list(rounds[0])[1:]:
        for way, same in ((OWN, OWN), (IN_ROUNDS, OWN), (UNIFORM, UNIFORM), *((way, way) for way in ADDS)):
            if same not in rounds[0][peer]["us"]:
                continue
            theirs = [one[peer]["us"][same] for one in rounds]
            ours = [one[OURS]["us"][way] for one in rounds]
            ratio = statistics.median(a / b for a, b in zip(theirs, ours, strict=True))
            bar = BARS.get((peer, way, batch, n_step)) if batch and n_rows == max(ROWS) else None
            verdict = "" if bar is None else f"{bar:g}: {'stands' if ratio >= bar else '**falls**'}"
            lines.append(
                f"| {way} | {n_rows:,} | {batch or ''} | {n_step} | {peer} {rounds[0][peer]['version']} | "
                f"{statistics.median(theirs):,.1f} | {statistics.median(ours):,.1f} | {ratio:.2f} | {verdict} |"
            )
    return lines


@quiet_machine()
def main() -> None:
    """Measure and write the page."""
    parser = pages.arguments(__doc__)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/replay_speed.md"))
    options = parser.parse_args()
    there = {name: command for name, command in SIDES.items() if Path(command[0]).exists()}
    left_out = sorted(SIDES.keys() - there.keys())
    lines = [
        "# Replay compared with peers",
        "",
        measured_at(),
        "",
        f"`python -m benchmarks.replay.replay --runs {options.runs}` on {machine()}; one thread, pinned to one core, "
        f"sides in turn, block by block, medians of {options.runs} blocks of {work.ROUNDS} (ratios: median of turns). "
        "Microseconds of CPU time.",
        "",
        "Prioritized: draw a batch by priority with its weights, gather it, write new priorities back, at fresh rows "
        f"each time; observations are {work.OBS} float32, alpha {work.ALPHA}, beta {work.BETA}. In rounds: the batches "
        f"of {work.PER_ROUND} updates drawn in one pass and written once, per update, beside the peer's one by one. "
        "cpprb computes n-step returns when rows are added, trainkit and Tianshou when they are read. Uniform: a batch "
        "as tensors; Stable-Baselines3 stores every next observation beside its own, trainkit stores each once and the "
        f"true last ones apart. Add: a vector step of {work.N_ENVS} rows; what trainkit has to write to its tree waits "
        "for the next draw, or until 128 steps have come. TorchRL's C++ is built for the torch of constraints.txt."
        f"{' Left out, because not there: ' + ', '.join(left_out) + '.' if left_out else ''}",
        "",
        "| work | rows | batch | n-step | peer | peer's us | trainkit's us | ratio | bar |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for n_rows in options.rows:
        for batch, n_step in itertools.product((*BATCHES, None), (1, 3)):
            asked = {"rows": n_rows, "batch": batch or BATCHES[0], "n_step": n_step, "adds": batch is None}
            arguments = ["--rows", str(n_rows), "--batch", str(asked["batch"]), "--n-step", str(n_step)]
            arguments += ["--adds"] if batch is None else []
            sides = {name: own for name, own in there.items() if n_step == 1 or name not in ONE_STEP_ONLY}
            with ExitStack() as stack:
                live = {
                    name: stack.enter_context(Live([*own, *arguments], [options.core])) for name, own in sides.items()
                }
                rounds = [{name: side.ask("block", asked) for name, side in live.items()} for _ in range(options.runs)]
            own_lines = compared(rounds, n_rows, batch, n_step)
            lines += own_lines
            print("\n".join(own_lines), flush=True)
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
