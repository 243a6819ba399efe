"""Race to a mean of 475 on CartPole beside Stable-Baselines3 at its zoo's settings, in turn on one core.

    python -m benchmarks.time_to_475 [--seeds ...] [--preset dqn] [--core 0] [--out FILE]

The peer lives in an environment of its own, which `make bench-race` builds. A finished run is kept in the cache with
the settings it had: an interrupted benchmark goes on, and writes its page anew after every run.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import trainkit as tk
from benchmarks import time_to_475_work as work
from benchmarks.cache import Cache
from benchmarks.provenance import listed, measured_at
from benchmarks.quiet import quiet_machine
from benchmarks.running import machine, printed
from trainkit.plot.comparing import can_vary, difference

PEER, OURS = "stable-baselines3", "trainkit"
THEIR_COMMAND = [".peers/sb3-contrib@2.9.2/bin/python", "-m", "benchmarks.time_to_475_sb3"]
OUR_COMMAND = [sys.executable, "-m", "benchmarks.time_to_475_trainkit"]
BAR = 1.5  # times the peer's seconds by ours

Runs = Mapping[str, Sequence[Mapping[str, Any]]]  # {side: what it printed, seed by seed}


def learn(side: str, command: Sequence[str], seed: int, core: int) -> dict[str, Any]:
    """Run one side and return what it printed, after checking that it did the work."""
    result = printed([*command, "--seed", str(seed)], core)
    wanted = {"updates": work.n_updates(result["ended_at"]), "parameters": work.N_PARAMETERS, "threads": 1}
    if side in (PEER, OURS) and result["done"] != wanted:
        raise SystemExit(f"{side} did {result['done']} in {result['ended_at']:,} steps, the work is {wanted}")
    return result


def report(runs: Runs, command: str) -> str:
    """Return the page: the race, what differs still, every run."""
    versions = {
        f"{name} {version}" for own in runs.values() for one in own for name, version in one["versions"].items()
    }
    lines = [
        f"# Time to {work.SOLVED:.0f} on {work.TASK}",
        "",
        measured_at([one["commit"] for side, own in runs.items() if side != PEER for one in own]),
        "",
        f"`{command}` on {machine()}; one thread, pinned to one core, sides in turn; {', '.join(sorted(versions))}.",
        "",
        "Both sides have the settings that rl-baselines3-zoo has for DQN: one environment, "
        f"{work.UPDATES_PER_ROUND} updates of {work.BATCH} rows after every {work.STEPS_PER_ROUND} steps, layers "
        f"{work.HIDDEN}, Adam at {work.LR}, a replay of {work.CAPACITY:,}, learning from step {work.LEARNING_STARTS:,} "
        f"on, epsilon {work.EPSILON[0]} to {work.EPSILON[1]} in {work.EPSILON_STEPS:,} steps, gamma {work.GAMMA}, "
        f"gradients clipped at {work.CLIP}, the target copied every {work.TARGET_EVERY} steps. Every {work.EVERY:,} "
        f"steps the greedy policy plays 30 episodes, the same for all sides; the first mean of {work.SOLVED:.0f} ends "
        f"the race, {work.LIMIT:,} steps give it up, which counts as more than all. Seconds are of CPU time, without "
        "the judge's. The preset has its own settings, which no peer has, and the steps of its own table to the limit.",
        "",
        "| side | solved | steps, median | seconds, median | steps per second | peer's seconds / its | measured at |",
        "|---|---|---|---|---|---|---|",
        *_rows(runs),
        "",
        *_verdict(runs),
        "",
        "What differs still: initial weights have the same distributions but other numbers; the peer seeds its "
        "environment once, trainkit each episode; trainkit lets numbers below 1e-38 count as 0 within an update.",
        "",
        "Steps and seconds, seed by seed (`-`: given up):",
        "",
        "```",
        *(
            f"{side:24}"
            + "".join(
                "       -/   -" if one["steps"] is None else f"{one['steps']:8}/{one['seconds']:4.0f}" for one in own
            )
            for side, own in runs.items()
        ),
        "```",
        "",
    ]
    return "\n".join(lines)


def _median(own: Sequence[Mapping[str, Any]], what: str) -> float:
    return statistics.median(math.inf if one[what] is None else one[what] for one in own)


def _rows(runs: Runs) -> Iterator[str]:
    """Yield a row for each side; a ratio where both medians are of races that ended."""
    for side, own in runs.items():
        steps, seconds = _median(own, "steps"), _median(own, "seconds")
        rate = statistics.median(one["ended_at"] / one["cpu_seconds"] for one in own)
        by = _median(runs[PEER], "seconds") / seconds
        shown = [f"{number:,.0f}" if math.isfinite(number) else "-" for number in (steps, seconds)]
        n_solved = sum(one["steps"] is not None for one in own)
        yield (
            f"| {side} | {n_solved} of {len(own)} | {' | '.join(shown)} | {rate:,.0f} | "
            f"{f'{by:.2f}' if math.isfinite(by) and by > 0 else '-'} | {listed(one['commit'] for one in own)} |"
        )


def _verdict(runs: Runs) -> Iterator[str]:
    """Say whether the bar stands, and whether steps differ by more than luck."""
    theirs, ours = ([one["ended_at"] for one in runs[side]] for side in (PEER, OURS))
    if not can_vary([theirs, ours]):
        yield "One seed says nothing of luck: no verdict."
        return
    found = difference(ours, theirs)
    ratio = _median(runs[PEER], "seconds") / _median(runs[OURS], "seconds")
    yield f"The bar, {BAR} times the peer's seconds by ours: {'stands' if ratio >= BAR else '**falls**'}."
    yield (
        f"Steps to the end (IQM), ours less the peer's: {found.estimate:+,.0f}, 95 % bootstrap interval "
        f"{found.low:+,.0f} to {found.high:+,.0f}: {found.verdict('the peer', 'us')}."
    )


@quiet_machine()
def main() -> None:
    """Run what is not in the cache and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=list(work.SEEDS))
    parser.add_argument("--preset", choices=list(tk.presets.PRESETS), default="dqn")
    parser.add_argument("--cache", type=Path, default=Path("benchmarks/results/time_to_475.jsonl"))
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/time_to_475.md"))
    options = parser.parse_args()
    preset = f"{OURS}, preset {options.preset}"
    settings = {PEER: work.SETTINGS, OURS: work.SETTINGS, preset: tk.presets.settings(options.preset)}
    commands = {PEER: THEIR_COMMAND, OURS: OUR_COMMAND, preset: [*OUR_COMMAND, "--preset", options.preset]}
    command = f"python -m benchmarks.time_to_475 --seeds {' '.join(map(str, options.seeds))} --core {options.core}"
    cache = Cache(options.cache)
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in commands}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for seed in options.seeds:
        for side in commands:
            key = [side, seed, str(settings[side])]
            result = cache.get(*key)
            if result is None:
                result = learn(side, commands[side], seed, options.core)
                cache.put(result, *key)
            runs[side].append({**result, "commit": cache.commit(*key)})
            print(f"{side} {seed}: {result['steps']} steps, {result['cpu_seconds']:.0f} s", flush=True)
        options.out.write_text(report(runs, command))
    print(f"\n{report(runs, command)}")


if __name__ == "__main__":
    main()
