"""Learn MuJoCo tasks beside Stable-Baselines3 at the same settings, in turn on one core, and judge who learns better.

    python -m benchmarks.mujoco [--algorithms ppo sac] [--tasks Hopper-v5 ...] [--seeds ...] [--sides ...] [--core 0]

The peer lives in an environment of its own, which `make bench-mujoco` builds. A finished run is kept in the cache, with
the settings it had: an interrupted benchmark goes on, and writes its page anew after every run. `--sides` makes the
runs of one side alone; the page has a verdict where both are there.
"""

import argparse
import os
import platform
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import mujoco_work as work
from benchmarks.cache import Cache
from benchmarks.provenance import listed, measured_at
from benchmarks.running import printed
from trainkit.plot.comparing import difference, iqm

OURS, PEER = "trainkit", "stable-baselines3"
SIDES = {
    PEER: [".peers/sb3-contrib@2.9.2/bin/python", "-m", "benchmarks.mujoco_sb3"],
    OURS: [sys.executable, "-m", "benchmarks.mujoco_trainkit"],
}

REMAINS = """
What differs still, after reading the peer's code:

- **PPO, running statistics.** The peer's move with every step: the rows of a rollout are seen, and learnt from, each
  through the statistics of its moment. trainkit's move between rollouts, so that it learns with the features it acted
  on; its first rollout is not normalised. The peer divides a reward by the deviation known when it came, trainkit by
  the one known when its rollout is learnt from. Evaluations see observations by the statistics as they are.
- **PPO, advantages** are divided by the sample's deviation over a batch of 64 (peer), by the population's (trainkit):
  0.8 % apart. Clip, losses, Adam, bootstrap at the time limit: nothing.
- **SAC, densities.** The peer adds 1e-6 to 1 - tanh(u)**2 in the log-probability, trainkit computes it exactly. The
  peer moves the temperature first, trainkit last, by the same numbers. Losses, targets, Adam: nothing.
- **SAC, start.** trainkit's first update is at 5,000 steps, the peer's one step later.
- **Randomness.** Initial weights have the same distributions but other numbers; the peer seeds its environment once,
  trainkit each episode.
- **Numbers.** trainkit lets numbers below 1e-38 count as 0 within an update.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training of one side."""

    algorithm: str
    task: str
    side: str
    seed: int
    result: dict[str, Any]  # what the side printed
    commit: str  # of trainkit

    @property
    def score(self) -> float:
        """The mean of the evaluations in the second half."""
        returns: list[float] = self.result["returns"]
        return statistics.fmean(returns[len(returns) // 2 :])


def learn(algorithm: str, task: str, side: str, seed: int, core: int) -> dict[str, Any]:
    """Run one side on one core and return what it printed, after checking that it did the work."""
    command = [*SIDES[side], "--algorithm", algorithm, "--task", task, "--seed", str(seed)]
    result = printed(command, core)
    done, n_judged = result["done"], len(result["returns"])
    extra = done["updates"] - work.N_UPDATES[algorithm]
    wanted = {
        "env_steps": work.STEPS[algorithm],
        "updates": work.N_UPDATES[algorithm] + extra,
        "parameters": work.n_parameters(algorithm, task),
        "threads": 1,
    }
    may_differ = (0, 1) if algorithm == "sac" else (0,)  # whether the step that ends the random ones is learnt at
    if done != wanted or extra not in may_differ or n_judged != work.PARTS:
        raise SystemExit(f"{command} did {done} with {n_judged} evaluations, the work is {wanted}")
    return result


def key_of(algorithm: str, task: str, side: str, seed: int) -> list[Any]:
    """Return all that a run depends on."""
    return [algorithm, side, seed, task, work.PARTS, work.EPISODES, work.settings(algorithm, task)]


def runs_of(
    algorithms: Sequence[str],
    tasks: Sequence[str],
    seeds: Sequence[int] | None,
    sides: Sequence[str],
    cache: Cache,
    core: int,
) -> Iterator[Run]:
    """Make what is not in the cache, sides in turn, and yield every run, others as far as they are there."""
    for (algorithm, task), own_seeds in work.SEEDS.items():
        for seed in own_seeds:
            for side in SIDES:
                key = key_of(algorithm, task, side, seed)
                result = cache.get(*key)
                is_chosen = algorithm in algorithms and task in tasks and seed in (seeds or own_seeds)
                if result is None and is_chosen and side in sides:
                    result = learn(algorithm, task, side, seed, core)
                    cache.put(result, *key)
                if result is not None:
                    commit = cache.commit(*key)
                    yield Run(algorithm=algorithm, task=task, side=side, seed=seed, result=result, commit=commit)


def report(runs: Sequence[Run], command: str) -> str:
    """Return the page: verdicts, settings, what differs still, curves."""
    versions = {run.side: ", ".join(" ".join(pair) for pair in run.result["versions"].items()) for run in runs}
    lines = [
        f"# MuJoCo beside {PEER}",
        "",
        measured_at([run.commit for run in runs if run.side == OURS]),
        "",
        f"`{command}` on {platform.machine()}, {os.cpu_count()} cores, one thread, pinned to one core, sides in turn. "
        + " ".join(f"{side}: {told}." for side, told in versions.items()),
        "",
        f"After each tenth of a run the mean action plays {work.EPISODES} episodes on environments of its own, the "
        "same episodes for both sides; returns are the environment's. A run's score is the mean of the evaluations in "
        "the second half. Below are the interquartile means (IQM) of the scores, their difference, trainkit's less "
        "the peer's, with a 95 % percentile bootstrap interval (10,000 resamples), the verdict of a permutation test "
        "of the means, and the median environment steps per second of CPU of a run without its evaluations.",
        "",
        "| algorithm | task | steps | seeds | IQM of peer | IQM of trainkit | difference | 95 % interval | verdict "
        "| peer's steps/s | ours | measured at |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
        *_verdicts(runs),
        "",
        *REMAINS.strip().splitlines(),
        "",
        f"Evaluations, at the steps {_listed(work.judged_at('ppo'))} (PPO) and {_listed(work.judged_at('sac'))} (SAC):",
        "",
        "```",
        *(
            f"{run.algorithm:5}{run.task:15}{run.side:18}{run.seed:3} "
            + "".join(f"{mean:7.0f}" for mean in run.result["returns"])
            for run in sorted(runs, key=lambda run: (run.algorithm, run.task, run.side, run.seed))
        ),
        "```",
    ]
    for algorithm, task in dict.fromkeys((run.algorithm, run.task) for run in runs):
        lines += ["", f"| {algorithm.upper()}, {task} | both sides |", "|---|---|"]
        lines += [f"| {name} | {_shown(value)} |" for name, value in work.settings(algorithm, task).items()]
    return "\n".join([*lines, ""])


def _verdicts(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a row for each algorithm and task of which both sides have the same seeds."""
    for algorithm, task in work.SEEDS:
        those = [run for run in runs if (run.algorithm, run.task) == (algorithm, task)]
        own = {side: {run.seed: run for run in those if run.side == side} for side in SIDES}
        seeds = sorted(own[PEER].keys() & own[OURS].keys())
        if not seeds:
            continue
        theirs, ours = ([own[side][seed].score for seed in seeds] for side in SIDES)
        found = difference(ours, theirs)
        rates = [
            work.STEPS[algorithm] / statistics.median(own[side][seed].result["seconds"] for seed in seeds)
            for side in SIDES
        ]
        yield (
            f"| {algorithm.upper()} | {task} | {work.STEPS[algorithm]:,} | {len(seeds)} "
            f"| {iqm(theirs):,.0f} | {iqm(ours):,.0f} "
            f"| {found.estimate:+,.0f} | {found.low:+,.0f} to {found.high:+,.0f} "
            f"| {found.verdict(OURS, 'the peer')} | {rates[0]:,.0f} | {rates[1]:,.0f} "
            f"| {listed(own[OURS][seed].commit for seed in seeds)} |"
        )


def _listed(steps: Sequence[int]) -> str:
    return f"{steps[0]:,}, {steps[1]:,}, ... {steps[-1]:,}"


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def main() -> None:
    """Run what is not in the cache and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", choices=work.ALGORITHMS, default=list(work.ALGORITHMS))
    parser.add_argument("--tasks", nargs="+", choices=list(work.SIZES), default=list(work.SIZES))
    parser.add_argument("--seeds", nargs="+", type=int, help="default: 5 on HalfCheetah, 3 on the others")
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES))
    parser.add_argument("--cache", type=Path, default=Path("benchmarks/results/mujoco.jsonl"))
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/mujoco.md"))
    options = parser.parse_args()
    command = f"python -m benchmarks.mujoco --core {options.core}"
    cache = Cache(options.cache)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    runs: list[Run] = []
    for run in runs_of(options.algorithms, options.tasks, options.seeds, options.sides, cache, options.core):
        runs.append(run)
        print(
            f"{run.algorithm} {run.task} {run.side} {run.seed}: {run.score:.0f}, {run.result['seconds']:.0f} s",
            flush=True,
        )
        if {own.side for own in runs} == set(SIDES):
            options.out.write_text(report(runs, command))
    print(f"\n{report(runs, command)}")


if __name__ == "__main__":
    main()
