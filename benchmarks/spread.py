"""Learn simple_spread by MAPPO and IPPO alongside BenchMARL's at the same settings and steps.

    python -m benchmarks.spread [--algorithms mappo ippo] [--seeds 1 2 3] [--sides ...] [--core 0]

simple_spread is a particle environment with PettingZoo's API, of the package mpe2. The peer lives in an environment of
its own, which `make bench-spread` builds. Finished runs are kept in `benchmarks/results/spread.jsonl` and not run
again. `--sides` makes the runs of one side alone.
"""

import argparse
import os
import platform
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import spread_work as work
from benchmarks.cache import Cache
from benchmarks.provenance import measured_at
from benchmarks.running import printed

RESULTS = Path("benchmarks/results")
OURS, PEER = "trainkit", "BenchMARL"
SIDES = {
    PEER: [".peers/benchmarl@1.5.2/bin/python", "-m", "benchmarks.spread_benchmarl"],
    OURS: [sys.executable, "-m", "benchmarks.spread_trainkit"],
}
ALGORITHMS = ("mappo", "ippo")
BAR = 0.1  # of the peer's return

DIFFERENCES = """
What differs, after reading the peer's code:

- **The critic of MAPPO.** The peer's sees the state alone, and has one value for all agents, although their rewards
  differ. trainkit's sees the agent's own observation, too.
- **Batches.** The peer divides the steps of games, whose agents stay together; trainkit the rows of agents.
- **Gradient clipping.** The peer clips actor and critic separately; trainkit both together.
- **Initial weights.** The peer's layers have torch's default initialization; trainkit's are orthogonal, with a small
  last layer of the actor.
- **Seeds.** The peer seeds its games once, trainkit each episode.
"""


def learn(algorithm: str, side: str, seed: int, core: int) -> dict[str, Any]:
    """Run one side on one core and return what it printed, after checking that it did the work."""
    command = [*SIDES[side], "--algorithm", algorithm, "--seed", str(seed)]
    result = printed(command, core)
    if result["done"] != work.DONE or len(result["returns"]) != work.EVALUATIONS:
        raise SystemExit(f"{command} did {result['done']}, the work is {work.DONE}")
    return result


def key_of(algorithm: str, side: str, seed: int) -> tuple[Any, ...]:
    """Return all that a run depends on."""
    return algorithm, side, seed, work.GAME, work.SETTINGS, work.EVALUATIONS, work.EPISODES


Runs = Mapping[tuple[str, str, int], Mapping[str, Any]]  # by algorithm, side, seed


def last_mean(runs: Runs, algorithm: str, side: str) -> float:
    """Return the mean of the last evaluations of all seeds."""
    return statistics.fmean(run["returns"][-1] for key, run in runs.items() if key[:2] == (algorithm, side))


def table(runs: Runs) -> Iterator[str]:
    """Yield a row for each algorithm and side: the returns at the end, their mean, and the time."""
    yield "| algorithm | side | seeds | last returns | mean | steps of games per second |"
    yield "|---|---|---|---|---|---|"
    for algorithm, side in dict.fromkeys(key[:2] for key in runs):
        own = {seed: run for (*names, seed), run in runs.items() if tuple(names) == (algorithm, side)}
        rate = work.STEPS / statistics.median(run["seconds"] for run in own.values())
        returns = ", ".join(f"{run['returns'][-1]:.2f}" for run in own.values())
        mean = f"{last_mean(runs, algorithm, side):.2f}"
        yield f"| {algorithm.upper()} | {side} | {', '.join(map(str, own))} | {returns} | {mean} | {rate:,.0f} |"


def verdicts(runs: Runs) -> Iterator[str]:
    """Yield what the bars say of the means."""
    sides = {key[:2] for key in runs}
    for algorithm in ALGORITHMS:
        if {(algorithm, OURS), (algorithm, PEER)} <= sides:
            ours, theirs = (last_mean(runs, algorithm, side) for side in (OURS, PEER))
            lead = (ours - theirs) / abs(theirs)
            within = "within" if lead >= -BAR else "not within"
            yield f"- {algorithm.upper()}: {lead:+.1%} of {PEER}'s return, {within} {BAR:.0%} or better."
    if {("mappo", OURS), ("ippo", OURS)} <= sides:
        mappo, ippo = (last_mean(runs, algorithm, OURS) for algorithm in ALGORITHMS)
        verdict = "reaches" if mappo >= ippo else "does not reach"
        yield f"- {OURS}'s MAPPO {verdict} its IPPO: {mappo:.2f} and {ippo:.2f}."


def report(runs: Runs, commits: Sequence[str]) -> str:
    """Return the page, in markdown."""
    versions = {side: run["versions"] for (_, side, _), run in runs.items()}
    names = [f"{side}: {', '.join(' '.join(pair) for pair in own.items())}." for side, own in versions.items()]
    lines = [
        "# MAPPO and IPPO on simple_spread",
        "",
        measured_at(commits),
        "",
        f"`python -m benchmarks.spread` on {platform.machine()}, {os.cpu_count()} cores, one thread, pinned to a core. "
        f"Python {platform.python_version()}. " + " ".join(names),
        "",
        f"Three agents learn to cover three landmarks, for {work.STEPS:,} steps of games, {work.STEPS * 3:,} of "
        f"agents. After each third of a run the most probable actions play {work.EPISODES} games, the same for both "
        "sides; returns are means over agents. Uniformly random actions reach -26.2. The settings were chosen on seed "
        "101. Steps per second are of CPU time without evaluations. Bars: MAPPO at least as good as IPPO; both within "
        f"10 % of {PEER}'s.",
        "",
        *table(runs),
        "",
        *verdicts(runs),
        "",
        *DIFFERENCES.strip().splitlines(),
        "",
        "All evaluations, in order:",
        "",
        "```",
        *(
            f"{algorithm:6}{side:10}{seed:3} " + "".join(f"{mean:8.2f}" for mean in run["returns"])
            for (algorithm, side, seed), run in runs.items()
        ),
        "```",
        "",
        "| setting | both sides |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in (work.GAME | work.SETTINGS).items()),
    ]
    return "\n".join([*lines, ""])


def main() -> None:
    """Run what is not kept and write the page after every run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=ALGORITHMS)
    parser.add_argument("--seeds", nargs="+", type=int, default=work.SEEDS)
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES))
    parser.add_argument("--core", type=int, default=0)
    options = parser.parse_args()
    cache = Cache(RESULTS / "spread.jsonl")
    for seed in options.seeds:
        for algorithm in options.algorithms:
            for side in options.sides:
                key = key_of(algorithm, side, seed)
                if cache.get(*key) is None:
                    cache.put(learn(algorithm, side, seed, options.core), *key)
                    print(f"{algorithm} {side} {seed}: {cache.get(*key)}", flush=True)
    wanted = [(algorithm, side, seed) for algorithm in ALGORITHMS for side in SIDES for seed in options.seeds]
    runs = {one: run for one in wanted if (run := cache.get(*key_of(*one))) is not None}
    commits = [cache.commit(*key_of(*one)) for one in runs if one[1] == OURS]
    (RESULTS / "spread.md").write_text(report(runs, commits or ["unknown"]))


if __name__ == "__main__":
    main()
