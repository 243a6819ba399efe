"""Learn CartPole without velocities by recurrent PPO beside stable-baselines3-contrib's, with equal settings.

    python -m benchmarks.recurrent_curves [--seeds 1 2 3 4 5] [--core 0] [--peer .peers/sb3-contrib@2.9.2/bin/python]
                                          [--sides trainkit sb3-contrib]

Both sides do the work in `recurrent_work.py`, 13 blocks of 8,192 steps. After each block they play 20 greedy episodes
with new seeds. Finished runs are kept in `benchmarks/results/recurrent_curves.jsonl` and not run again.
"""

import argparse
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import recurrent_work as work
from benchmarks.cache import Cache
from benchmarks.provenance import measured_at
from benchmarks.running import Live, machine
from trainkit.plot.comparing import difference

RESULTS = Path("benchmarks/results")
SIDES = {"trainkit": "recurrent_trainkit", "sb3-contrib": "recurrent_sb3"}
SETTINGS = repr({name: number for name, number in vars(work).items() if name.isupper()})
SEEDS = range(1, 101)


def learn(command: list[str], core: int) -> dict[str, Any]:
    """Train one side, and return the mean return of each evaluation, seconds of CPU, and the side's version."""
    returns, seconds, version = [], 0.0, ""
    with Live(command, core) as side:
        for _ in range(work.BLOCKS):
            answer = side.ask("block", work.WORK)
            seconds, version = seconds + answer["seconds"], answer["version"]
            returns.append(round(statistics.mean(side.ask("evaluate", {})["returns"]), 2))
            print(command[2], command[3], returns[-1], f"{seconds:.0f} s", flush=True)
    return {"returns": returns, "seconds": round(seconds, 1), "version": version}


def scores(runs: dict[int, dict[str, Any]], part: slice) -> list[float]:
    """Return the mean over a part of the evaluations of each run."""
    return [statistics.mean(run["returns"][part]) for run in runs.values()]


def table(runs: dict[str, dict[int, dict[str, Any]]]) -> Iterator[str]:
    """Yield a row for all evaluations, and one for the last."""
    yield "| mean return | trainkit, seeds | sb3-contrib, seeds | difference of interquartile means, 95 % interval |"
    yield "|---|---|---|---|"
    for name, part in (("of all evaluations", slice(None)), ("of the last three", slice(-3, None))):
        ours, theirs = (scores(runs[side], part) for side in SIDES)
        found = difference(ours, theirs)
        cells = (", ".join(f"{score:.0f}" for score in own) for own in (ours, theirs))
        yield f"| {name} | {' | '.join(cells)} | {found.estimate:.1f}, {found.low:.1f} to {found.high:.1f} |"


def report(runs: dict[str, dict[int, dict[str, Any]]]) -> str:
    """Return the page, in markdown."""
    commits = [run["commit"] for run in runs["trainkit"].values()]
    (version,) = {run["version"] for run in runs["sb3-contrib"].values()}
    lines = [
        "# Learning by recurrent PPO",
        "",
        measured_at(commits),
        "",
        f"`python -m benchmarks.recurrent_curves` on {machine()}, a core and a thread each; sb3-contrib {version}.",
        "",
        f"CartPole-v1 without velocities, {work.BLOCKS * work.BLOCK:,} steps in {work.N_ENVS} environments, with the "
        "settings in `benchmarks/recurrent_work.py`: those of sb3-contrib's `RecurrentPPO`, with fewer LSTM units, "
        "more environments and larger batches, not tuned for either side. "
        f"After every {work.BLOCK:,} steps the greedy policy plays {work.EPISODES} episodes with new seeds.",
        "",
        *table(runs),
        "",
        "Every evaluation:",
        "",
        "```",
        *(
            f"{side:12}{seed:3} " + " ".join(f"{one:6.1f}" for one in run["returns"]) + f"  {run['seconds']:6.0f} s"
            for side, own in runs.items()
            for seed, run in own.items()
        ),
        "```",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Train what is missing, and write the page once there are two runs of each side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--peer", default=".peers/sb3-contrib@2.9.2/bin/python", help="Python that has sb3-contrib")
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=list(SIDES))
    given = parser.parse_args()
    cache = Cache(RESULTS / "recurrent_curves.jsonl")
    for seed in given.seeds:
        for side in given.sides:
            python = sys.executable if side == "trainkit" else given.peer
            if cache.get(side, seed, SETTINGS) is None:
                command = [python, "-m", f"benchmarks.{SIDES[side]}", str(seed)]
                cache.put(learn(command, given.core), side, seed, SETTINGS)
    runs: dict[str, dict[int, dict[str, Any]]] = {side: {} for side in SIDES}
    for side, own in runs.items():
        for seed in SEEDS:
            run = cache.get(side, seed, SETTINGS)
            if run is not None:
                own[seed] = {**run, "commit": cache.commit(side, seed, SETTINGS)}
    if all(len(own) > 1 for own in runs.values()):
        (RESULTS / "recurrent_curves.md").write_text(report(runs))


if __name__ == "__main__":
    main()
