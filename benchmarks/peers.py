"""Measure Q-learning beside peers on the same work, in turn on one core, and write a table of medians and ratios.

    python -m benchmarks.peers [--runs 5] [--core 0] [--out FILE]

Peers live in environments of their own, which `make bench-peers` builds. For each work the sides run in turn, and a
ratio is the median over these rounds; a side that did not do the work that was wanted stops everything.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import work

OURS = [sys.executable, "-m", "benchmarks.side_trainkit"]
SB3 = [".peers/sb3-contrib@2.9.2/bin/python", "benchmarks/side_sb3.py"]
TIANSHOU = [".peers/tianshou@1.2.0/bin/python", "benchmarks/side_tianshou.py"]
COLLECT, UPDATES, LOOP = "collect steps/s", "updates/s", "loop steps/s"


class Comparison(NamedTuple):
    """One work, a peer, and how many times its rate ours must be."""

    title: str
    peer: Sequence[str]
    theirs: Sequence[str]  # arguments
    own: Mapping[str, Sequence[str]]  # {how it is named: arguments}
    bars: Mapping[tuple[str, str], float]  # {(how it is named, rate): ratio}
    hidden: tuple[int, ...] = work.HIDDEN


def both(learner: str, *more: str) -> dict[str, Sequence[str]]:
    """Return our arguments by default, and compiled."""
    return {"default": [learner, *more], "compiled": [learner, *more, "--compile"]}


SMALL = ("--hidden", "64", "64")
COMPARISONS = [
    Comparison(
        "one step, huber, clipped",
        SB3,
        ["huber"],
        both("huber"),
        {("default", LOOP): 1.6, ("compiled", LOOP): 2.1, ("default", UPDATES): 1 / 0.55, ("compiled", UPDATES): 2.5},
    ),
    Comparison(
        "the same, 64-64",
        SB3,
        ["huber", *SMALL],
        both("huber", *SMALL),
        {("default", UPDATES): 1 / 0.55, ("compiled", UPDATES): 2.5},
        hidden=(64, 64),
    ),
    Comparison(
        "one step, mse",
        TIANSHOU,
        ["mse"],
        both("mse"),
        {("default", LOOP): 2.7, ("compiled", LOOP): 3.7, ("default", COLLECT): 4.5},
    ),
    Comparison(
        "prioritised, 3-step, double, mse",
        TIANSHOU,
        ["prioritised"],
        both("prioritised"),
        {("default", LOOP): 2.7, ("compiled", LOOP): 3.5},
    ),
    Comparison(
        "one step, mse; gymnasium's vector CartPole and rounds of 16, beside 160 steps per collect",
        TIANSHOU,
        ["mse", "--rounds"],
        {"compiled": ["mse", "--rounds", "--compile"]},
        {("compiled", LOOP): 5.0, ("compiled", COLLECT): 6.5},
    ),
]


def run(command: Sequence[str], core: int, wanted: Mapping[str, int]) -> dict[str, Any]:
    """Run one side on one core and return what it printed, after checking that it did the work that was wanted."""
    pinned = ["taskset", "-c", str(core), *command] if shutil.which("taskset") else list(command)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    ran = subprocess.run(pinned, capture_output=True, text=True, env=environment)
    if ran.returncode:
        raise SystemExit(f"{command} failed:\n{ran.stderr}")
    result: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    if result["done"] != wanted:
        raise SystemExit(f"{command} did {result['done']}, the work is {wanted}")
    return result


def machine() -> str:
    """Say what ran it: the kind of processor, cores, Python."""
    kind = platform.processor() or platform.machine()
    return f"{kind}, {os.cpu_count()} cores, Python {platform.python_version()}"


def rows(comparison: Comparison, rounds: Sequence[Mapping[str, Mapping[str, Any]]]) -> Iterator[str]:
    """Yield a row per rate and way of ours."""
    peer = Path(comparison.peer[1]).stem.removeprefix("side_")
    for own in comparison.own:
        for rate in rounds[0][own]["rates"]:
            bar = comparison.bars.get((own, rate))
            theirs, ours = ([one[side]["rates"][rate] for one in rounds] for side in ("peer", own))
            ratio = statistics.median(b / a for a, b in zip(theirs, ours, strict=True))
            verdict = "" if bar is None else f"{bar:.2f}: {'stands' if ratio >= bar else '**falls**'}"
            yield (
                f"| {comparison.title} | {rate} | {peer} {rounds[0]['peer']['version']} | {own} | "
                f"{statistics.median(theirs):,.0f} | {statistics.median(ours):,.0f} | {ratio:.2f} | {verdict} |"
            )


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/peers.md"))
    options = parser.parse_args()
    lines = [
        "# Beside peers",
        "",
        f"`python -m benchmarks.peers --runs {options.runs}` on {machine()}; one thread, pinned to one core, sides in "
        "turn, medians (ratios: median of rounds). Rates are per second of CPU time.",
        "",
        f"CartPole-v1, {work.N_ENVS} environments, each side stepping `gym.make`'s in a loop of its own (trainkit: "
        f"gymnasium's SyncVectorEnv); MLP {work.HIDDEN} where no other is named, batch {work.BATCH}, one update per "
        f"{work.N_ENVS} steps, uniform replay where no other is named. `updates/s` counts drawing the batch, its "
        "returns and, where prioritised, writing priorities back. All act at random, so that episodes are as short on "
        "all sides; trainkit and Tianshou ask their networks all the same, Stable-Baselines3 does not, which spares it "
        "a forward pass per vector step. `default` is trainkit as it comes, which lets numbers below 1e-38 count as 0 "
        "within an update; `compiled` adds `compile=True`.",
        "",
        "| work | rate | peer | trainkit | peer's | trainkit's | ratio | bar |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for comparison in COMPARISONS:
        if not Path(comparison.peer[0]).exists():
            raise SystemExit(f"{comparison.peer[0]} is not there: make bench-peers builds it")
        sides = {"peer": [*comparison.peer, *comparison.theirs]}
        sides |= {name: [*OURS, *arguments] for name, arguments in comparison.own.items()}
        wanted = work.done(comparison.hidden)
        rounds = [
            {name: run(command, options.core, wanted) for name, command in sides.items()} for _ in range(options.runs)
        ]
        for line in rows(comparison, rounds):
            lines.append(line)
            print(line, flush=True)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
