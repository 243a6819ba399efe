"""Measure PPO beside peers on the same work, in turn on one core, and write a table of medians and ratios.

    python -m benchmarks.ppo_speed [--runs 5] [--core 0] [--out FILE]

Peers live in environments of their own, which `make bench-ppo` builds. The bar: whole loops at 3 times
the environment steps per second of either.
"""

import argparse
import os
import platform
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import ppo_work as work
from benchmarks.provenance import measured_at
from benchmarks.running import run

OURS, COMPILED = "trainkit", "trainkit, compiled"
SIDES = {
    OURS: [sys.executable, "-m", "benchmarks.ppo_trainkit"],
    COMPILED: [sys.executable, "-m", "benchmarks.ppo_trainkit", "--engine", "compile"],
    "stable-baselines3": [".peers/sb3-contrib@2.9.2/bin/python", "-m", "benchmarks.ppo_sb3"],
    "tianshou": [".peers/tianshou@1.2.0/bin/python", "-m", "benchmarks.ppo_tianshou"],
}
LOOP = "loop steps/s"
BARS = {"stable-baselines3": 3.0, "tianshou": 3.0}  # ratios of whole loops

Runs = Mapping[str, Sequence[Mapping[str, Any]]]  # {side: what it printed, run by run}


def ratio(runs: Runs, peer: str, rate: str, side: str = OURS) -> float:
    """Return the median over runs of a side's rate, ours, by the peer's in the same round."""
    pairs = zip(runs[side], runs[peer], strict=True)
    return statistics.median(own["rates"][rate] / theirs["rates"][rate] for own, theirs in pairs)


def stands(runs: Runs) -> bool:
    """Whether we are as many times faster than each peer as the bar wants."""
    return all(ratio(runs, peer, LOOP) >= bar for peer, bar in BARS.items())


def report(measured: Mapping[str, Runs], command: str) -> str:
    """Return the page: what was done, and a table for each policy."""
    n_runs = len(next(iter(measured.values()))[OURS])
    lines = [
        "# PPO beside peers",
        "",
        measured_at(),
        "",
        f"`{command}` on {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; one thread, "
        f"pinned to one core, sides in turn, medians of {n_runs} runs (ratios: median of rounds). Seconds are of CPU "
        "time, so that what else the core did does not count.",
        "",
        f"{work.TASK}, {work.N_ENVS} environments x {work.N_STEPS} steps, {work.EPOCHS} epochs over each rollout in "
        f"batches of {work.BATCH}, two torsos {work.HIDDEN} with tanh, Adam, gradients' norm clipped at "
        f"{work.MAX_GRAD_NORM}, advantages normalised in each batch. Each side steps `gym.make`'s environments one by "
        f"one in a loop of its own. After {work.WARMUP_ROLLOUTS} rollouts, {work.ROLLOUTS} are measured; each side did "
        f"{work.DONE['rows']:,} rows and {work.DONE['minibatches']:,} steps of Adam on {work.DONE['parameters']:,} "
        "parameters, or there would be no page. trainkit lets numbers below 1e-38 count as 0 within an update, as it "
        "does by default; nothing is compiled, save on its second side, whose `engine='compile'` the peers have not. "
        "Per 1,000 steps, ended episodes say how much resetting there was.",
    ]
    for name, runs in measured.items():
        lines += ["", f"The policy is {name}: learning rate {work.LRS[name]:g}.", "", *_table(runs)]
    return "\n".join([*lines, ""])


def _table(runs: Runs) -> Iterator[str]:
    """Yield a row per side."""
    rates = list(runs[OURS][0]["rates"])
    by = [f"ours / its {rate}" for rate in [*rates, "loop, compiled"]]
    yield f"| side | {' | '.join(rates)} | episodes | {' | '.join(by)} | bar |"
    yield "|---" * (2 * len(rates) + 4) + "|"
    for side, own in runs.items():
        cells = [f"{side} {own[0]['version']}"]
        cells += [f"{statistics.median(run['rates'][rate] for run in own):,.0f}" for rate in rates]
        cells.append(f"{1_000 * statistics.median(run['episodes'] for run in own) / work.DONE['rows']:.1f}")
        bar = BARS.get(side)
        if bar is not None:
            cells += [f"{ratio(runs, side, rate):.2f}" for rate in rates]
            cells.append(f"{ratio(runs, side, LOOP, COMPILED):.2f}")
            cells.append(f"{bar:.0f}: {'stands' if ratio(runs, side, LOOP) >= bar else '**falls**'}")
        else:
            cells += [""] * (len(rates) + 2)
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--policies", nargs="+", choices=list(work.LRS), default=list(work.LRS))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/ppo_speed.md"))
    options = parser.parse_args()
    for python, *_ in SIDES.values():
        if not Path(python).exists():
            raise SystemExit(f"{python} is not there: make bench-ppo builds it")
    command = f"python -m benchmarks.ppo_speed --runs {options.runs} --core {options.core}"
    measured: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for name in options.policies:
        runs: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
        for seed in range(1, options.runs + 1):
            for side, script in SIDES.items():
                asked = ["--lr", str(work.LRS[name]), "--seed", str(seed)]
                runs[side].append(run([*script, *asked], options.core, work.DONE))
                print(f"{name} {seed} {side}: {runs[side][-1]['rates'][LOOP]:,.0f} {LOOP}", flush=True)
        measured[name] = runs
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(report(measured, command))
    print(f"\n{report(measured, command)}")
    raise SystemExit(not all(map(stands, measured.values())))


if __name__ == "__main__":
    main()
