"""Show that the presets learn, judged now and then on episodes never seen before: CartPole-v1, and `learning_tasks`.

    python -m benchmarks.learning [--task cartpole] [--presets dqn rainbow ...] [--seeds 1 2 3 4 5] [--steps 60000]
                                  [--out FILE] [--plot FOLDER] [--cache FILE]

The bar, for every preset on CartPole: a mean of 400 within the steps on 4 seeds of 5; the other tasks have none.
`--plot` draws a curve per preset (`pip install 'trainkit-rl[plot]'`). `--cache` keeps finished runs, one per line: a
benchmark that was interrupted goes on there, and one that changed a preset's settings trains that preset alone again.
"""

import argparse
import platform
from collections.abc import Sequence
from pathlib import Path

import gymnasium
import numpy as np
import torch

import trainkit as tk
from benchmarks.learning_work import TASKS, Run, found_or_learnt, measured, published
from benchmarks.provenance import measured_at

TASK = TASKS["cartpole"]
ENV, EVERY, EPISODES = TASK.env, TASK.every, TASK.episodes
LEARNT, SOLVED = 400.0, 475.0  # the bar, and what Gymnasium calls solved
SHARE = 0.8  # of the seeds on which the bar must stand
DISCRETE = [
    name for name, preset in tk.presets.PRESETS.items() if "classic" in preset.domains and not preset.learns_from_data
]


def reached(run: Run, mean: float) -> int | None:
    """Return the first evaluation's step with at least this mean, None where there is none."""
    return next((EVERY * n for n, own in enumerate(run.returns, start=1) if own >= mean), None)


def stands(runs: Sequence[Run]) -> bool:
    """Whether the bar stands for the runs of one preset."""
    return sum(reached(run, LEARNT) is not None for run in runs) >= SHARE * len(runs)


def report(runs: Sequence[Run], n_evaluations: int, command: str) -> str:
    """Return the table of all runs, in markdown."""
    steps = EVERY * n_evaluations
    lines = [
        f"# Learning {ENV}",
        "",
        measured_at([run.commit for run in runs]),
        "",
        f"`{command}` on {platform.machine()}, one thread; Python {platform.python_version()}, trainkit "
        f"{tk.__version__}, torch {torch.__version__}, gymnasium {gymnasium.__version__}, numpy {np.__version__}.",
        f"The presets' defaults; every {EVERY:,} steps the greedy policy plays {EPISODES} episodes on fresh seeds. "
        f"The bar: a mean of {LEARNT:.0f} within {steps:,} steps on {SHARE:.0%} of the seeds. Steps and the last mean "
        "are medians over the seeds, what never reached a mean counting as more than all.",
        "",
        f"| preset | seeds at {LEARNT:.0f} | steps to {LEARNT:.0f} | seeds at {SOLVED:.0f} | steps to {SOLVED:.0f} "
        f"| mean at {steps:,} | seconds | bar | measured at |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for preset in dict.fromkeys(run.preset for run in runs):
        own = [run for run in runs if run.preset == preset]
        cells = [preset]
        for mean in (LEARNT, SOLVED):
            steps_to = [reached(run, mean) for run in own]
            median = float(np.median([np.inf if one is None else one for one in steps_to]))
            cells.append(f"{sum(one is not None for one in steps_to)} of {len(own)}")
            cells.append("-" if np.isinf(median) else f"{median:,.0f}")
        cells.append(f"{np.median([run.returns[-1] for run in own]):.0f}")
        cells.append(f"{np.median([run.seconds for run in own]):.0f}")
        cells.append("stands" if stands(own) else "**falls**")
        cells.append(measured(TASK, own))
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "All evaluations, in order:", "", "```"]
    for run in runs:
        lines.append(f"{run.preset:16}{run.seed:3} " + "".join(f"{mean:5.0f}" for mean in run.returns))
    return "\n".join([*lines, "```", ""])


def plot(preset: str, runs: Sequence[Run], folder: Path) -> None:
    """Draw the median over seeds and the band of all of them."""
    import matplotlib.pyplot as plt

    returns = np.array([run.returns for run in runs])  # [seeds, evaluations]
    steps = EVERY * np.arange(1, returns.shape[1] + 1)
    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "trainkit", "font.size": 9}):
        figure, axes = plt.subplots(figsize=(5.2, 2.6), layout="constrained")
        axes.fill_between(steps, returns.min(axis=0), returns.max(axis=0), alpha=0.2, linewidth=0, label="all seeds")
        axes.plot(steps, np.median(returns, axis=0), label=f"median of {len(runs)} seeds")
        axes.axhline(SOLVED, color="grey", linewidth=0.8, linestyle=":", label=f"solved: {SOLVED:.0f}")
        axes.set(title=f"{preset}, {ENV}", xlabel="environment steps", ylabel="return, greedy", ylim=(0, 510))
        axes.xaxis.set_major_formatter(lambda step, _: f"{step / 1000:.0f}k")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="lower right")
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(folder / f"{preset}_cartpole.svg", metadata={"Date": None})
        plt.close(figure)


def main() -> None:
    """Train every preset on every seed and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", choices=DISCRETE, default=DISCRETE)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--steps", type=int, default=60_000, help=f"a multiple of {EVERY}")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/learning_cartpole.md"))
    parser.add_argument("--plot", type=Path, help="a folder for one picture per preset")
    parser.add_argument("--cache", type=Path, help="a file of finished runs, which are not run again")
    parser.add_argument("--no-training", action="store_true", help="write the page of what the cache holds")
    options = parser.parse_args()
    if options.steps < EVERY or options.steps % EVERY:
        parser.error(f"--steps must be a multiple of {EVERY}, got {options.steps}")
    torch.set_num_threads(1)  # networks this small are fastest on one
    command = f"python -m benchmarks.learning --seeds {' '.join(map(str, options.seeds))} --steps {options.steps}"
    if options.presets != DISCRETE:
        command += f" --presets {' '.join(options.presets)}"
    runs: list[Run] = []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for preset in options.presets:
        for seed in options.seeds:
            run = (published if options.no_training else found_or_learnt)(
                TASK, options.cache, preset, seed, options.steps // EVERY
            )
            if run is None:
                continue
            runs.append(run)
            options.out.write_text(report(runs, options.steps // EVERY, command))
            print(
                f"{preset} {seed}: {[round(mean) for mean in runs[-1].returns]}, {runs[-1].seconds:.0f} s", flush=True
            )
        if options.plot is not None:
            plot(preset, [run for run in runs if run.preset == preset], options.plot)
    print(f"\n{report(runs, options.steps // EVERY, command)}")
    by_preset = [[run for run in runs if run.preset == preset] for preset in dict.fromkeys(run.preset for run in runs)]
    raise SystemExit(not all(map(stands, by_preset)))


if __name__ == "__main__":
    main()
