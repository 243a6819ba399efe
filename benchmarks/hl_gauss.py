"""Learn CartPole and Acrobot by DQN with a regressed value and with HL-Gauss and two-hot ones, all else equal.

    python -m benchmarks.hl_gauss [--tasks cartpole acrobot] [--values expected hl_gauss ...] [--seeds 1 2 3]
                                  [--no-training]

The preset `dqn` with its own settings and the task's, as in `benchmarks.learning`; the value part alone differs. Only
the wider sigma of `hl_gauss_wide` was chosen by trying, on Acrobot with seed 11. Finished runs are kept in
`benchmarks/results/hl_gauss.jsonl` and not run again.
"""

import argparse
import itertools
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

import trainkit as tk
from benchmarks.cache import Cache
from benchmarks.learning_work import TASKS, Task, settings_of, trained
from benchmarks.provenance import measured_at
from benchmarks.tuning_seeds import check_fresh

RESULTS = Path("benchmarks/results")
PRESET, BINS, MARGIN = "dqn", 101, 0.04  # of the support on each side, as a share of it
VALUES: dict[str, dict[str, Any]] = {  # arguments of `HLGaussValue`; none where the preset's own value is meant
    "expected": {},
    "hl_gauss": {"sigma": 0.75, "target": "hl_gauss"},
    "hl_gauss_wide": {"sigma": 3.0, "target": "hl_gauss"},
    "two_hot": {"sigma": 0.75, "target": "two_hot"},
}
NAMES = ("cartpole", "acrobot")
BARS = {"cartpole": 475.0, "acrobot": -100.0}  # what Gymnasium calls solved

Runs = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]  # by task and value


def value_of(task: Task, value: str) -> dict[str, Any]:
    """Return all arguments of `HLGaussValue`; none where the preset's own value is meant."""
    if not VALUES[value]:
        return {}
    low, high = task.support
    margin = MARGIN * (high - low)
    return {"bins": BINS, "v_min": low - margin, "v_max": high + margin} | VALUES[value]


def key_of(name: str, value: str, seed: int) -> tuple[Any, ...]:
    """Return all that a run depends on."""
    return name, value, seed, settings_of(TASKS[name], PRESET), value_of(TASKS[name], value)


def learn(name: str, value: str, seed: int) -> dict[str, Any]:
    """Train and return the mean return of every evaluation, and seconds."""
    task, arguments = TASKS[name], value_of(TASKS[name], value)
    changes = task.changes(PRESET) | ({"value": tk.HLGaussValue(**arguments)} if arguments else {})
    returns, seconds = trained(task, PRESET, seed, task.steps // task.every, changes)
    return {"returns": returns, "seconds": seconds}


def kept(cache: Cache, seeds: Sequence[int]) -> Runs:
    """Return the finished runs with today's settings, with their seeds and commits."""
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for name, value, seed in itertools.product(NAMES, VALUES, seeds):
        key = key_of(name, value, seed)
        run = cache.get(*key)
        if run is not None:
            runs.setdefault((name, value), []).append({**run, "seed": seed, "commit": cache.commit(*key)})
    return runs


def table(runs: Runs) -> Iterator[str]:
    """Yield the rows: task and value, and what the seeds reached."""
    yield "| task | value | seeds solved | steps to solved | last mean | mean of all evaluations | seconds |"
    yield "|---|---|---|---|---|---|---|"
    for (name, value), own in runs.items():
        task, bar = TASKS[name], BARS[name]
        steps = [
            next((task.every * n for n, mean in enumerate(run["returns"], 1) if mean >= bar), np.inf) for run in own
        ]
        median = float(np.median(steps))
        cells = [
            task.title,
            value,
            f"{np.isfinite(steps).sum()} of {len(own)}",
            "-" if np.isinf(median) else f"{median:,.0f}",
            ", ".join(f"{run['returns'][-1]:.0f}" for run in own),
            ", ".join(f"{np.mean(run['returns']):.0f}" for run in own),
            f"{np.median([run['seconds'] for run in own]):.0f}",
        ]
        yield f"| {' | '.join(cells)} |"


def report(runs: Runs, seeds: Sequence[int]) -> str:
    """Return the page, in markdown."""
    supports = (
        f"{TASKS[name].title}: {arguments['v_min']:g} to {arguments['v_max']:g}"
        for name in NAMES
        if (arguments := value_of(TASKS[name], "hl_gauss"))
    )
    lines = [
        "# Learning by classification: HL-Gauss",
        "",
        measured_at([run["commit"] for own in runs.values() for run in own]),
        "",
        f"`python -m benchmarks.hl_gauss` on {platform.machine()}, one thread; Python {platform.python_version()}, "
        f"trainkit {tk.__version__}, torch {torch.__version__}, gymnasium {gymnasium.__version__}, numpy "
        f"{np.__version__}.",
        "",
        f"The preset `{PRESET}` with its settings for each task (`benchmarks/learning_work.py`), found for the "
        f"expected value; the value part alone differs. HL-Gauss and two-hot have {BINS} bins over the returns that "
        f"the task allows and {MARGIN:.0%} more on each side ({'; '.join(supports)}). sigma is 0.75 bin widths for "
        "`hl_gauss` and 3 for `hl_gauss_wide`, which was chosen on Acrobot with seed 11, among five settings of bins, "
        "sigma and target; nothing else was tried.",
        "",
        *(
            f"- {TASKS[name].title}: {TASKS[name].steps:,} steps, {TASKS[name].episodes} greedy episodes on fresh "
            f"seeds every {TASKS[name].every:,}; solved is a mean of {BARS[name]:.0f}."
            for name in NAMES
        ),
        "",
        f"Seeds {', '.join(map(str, seeds))}, in this order where a cell has several numbers. Steps to solved and "
        "seconds are medians, what was never solved counting as more than all; seconds are of CPU, with the "
        "evaluations'.",
        "",
        *table(runs),
        "",
        "All evaluations, in order:",
        "",
        "```",
    ]
    for (name, value), own in runs.items():
        lines += [
            f"{name:9}{value:14}{run['seed']:3} " + "".join(f"{mean:6.0f}" for mean in run["returns"]) for run in own
        ]
    return "\n".join([*lines, "```", ""])


def main() -> None:
    """Train what is missing and write the page after every run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--values", nargs="+", choices=VALUES, default=list(VALUES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--no-training", action="store_true", help="write the page of what there is")
    options = parser.parse_args()
    torch.set_num_threads(1)  # networks this small are fastest on one
    cache = Cache(RESULTS / "hl_gauss.jsonl")
    for seed in options.seeds:  # so that all have some seeds before any has all
        for name, value in itertools.product(options.tasks, options.values):
            key = key_of(name, value, seed)
            if cache.get(*key) is None and not options.no_training:
                check_fresh([PRESET], TASKS[name].env, [seed])
                run = learn(name, value, seed)
                cache.put(run, *key)
                told = [round(mean) for mean in run["returns"]]
                print(f"{name} {value} {seed}: {told}, {run['seconds']:.0f} s", flush=True)
            (RESULTS / "hl_gauss.md").write_text(report(kept(cache, options.seeds), options.seeds))


if __name__ == "__main__":
    main()
