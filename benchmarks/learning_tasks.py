"""Train every preset on Acrobot, LunarLander, MinAtar's Breakout and Asterix, with one table of settings per task.

    python -m benchmarks.learning_tasks [--tasks acrobot ...] [--presets dqn ...] [--seeds 1 2 3 4 5] [--no-training]

Finished runs are kept in `benchmarks/results/learning_TASK.jsonl` and not run again, so that it can be interrupted.
The page has the interquartile mean of the last evaluation over seeds, with its bootstrap interval, and what one run
took; a picture per task has all curves. Needs `pip install 'trainkit-rl[plot]' 'gymnasium[box2d]' minatar`.
"""

import argparse
import itertools
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import gymnasium
import numpy as np
import torch

import trainkit as tk
from benchmarks.learning_work import TASKS, Run, Task, found_or_learnt, measured, published
from benchmarks.provenance import measured_at
from trainkit.plot.comparing import interval

RESULTS = Path("benchmarks/results")
NAMES = [name for name in TASKS if name != "cartpole"]
PRESETS = [
    name for name, preset in tk.presets.PRESETS.items() if "classic" in preset.domains and not preset.learns_from_data
]
Runs = Mapping[str, Sequence[Run]]  # by preset


def cache_of(name: str) -> Path:
    """Return where a task's finished runs are kept."""
    return RESULTS / f"learning_{name}.jsonl"


def table(runs: Mapping[str, Runs], n_seeds: int) -> Iterator[str]:
    """Yield the rows: presets, and of each task the interquartile mean with its interval, and seconds."""
    names = list(runs)
    yield "| preset | " + " | ".join(f"{TASKS[name].title} | seconds" for name in names) + " |"
    yield "|---|" + "---|---|" * len(names)
    for preset in PRESETS:
        cells = [preset]
        for name in names:
            own = runs[name].get(preset, ())
            if not own:
                cells += ["", ""]
                continue
            last = interval([[run.returns[-1] for run in own]])
            fewer = "" if len(own) == n_seeds else f" ({len(own)} of {n_seeds} seeds)"
            cells.append(f"{last.estimate:.1f} [{last.low:.1f}, {last.high:.1f}]{fewer}")
            cells.append(f"{np.median([run.seconds for run in own]):.0f}")
        yield f"| {' | '.join(cells)} |"


def commits(runs: Mapping[str, Runs]) -> Iterator[str]:
    """Yield the rows of a table of the commits that runs were measured at."""
    yield "| preset | " + " | ".join(TASKS[name].title for name in runs) + " |"
    yield "|---|" + "---|" * len(runs)
    for preset in PRESETS:
        cells = [measured(TASKS[name], own) if (own := runs[name].get(preset, ())) else "" for name in runs]
        yield f"| {preset} | {' | '.join(cells)} |"


def page(runs: Mapping[str, Runs], seeds: Sequence[int]) -> str:
    """Return the page, in markdown."""
    lines = [
        "# Learning four tasks more",
        "",
        measured_at([run.commit for own in runs.values() for ofs in own.values() for run in ofs]),
        "",
        f"`python -m benchmarks.learning_tasks` on {platform.machine()}, one thread; Python "
        f"{platform.python_version()}, trainkit {tk.__version__}, torch {torch.__version__}, gymnasium "
        f"{gymnasium.__version__}. Seeds {seeds[0]} to {seeds[-1]}; the interquartile mean of the last evaluation's "
        "mean return over the seeds, with the 95 % interval of the percentile bootstrap, and the median seconds of CPU "
        "time of a run with its evaluations.",
        "",
        "The presets' tables were found on CartPole. What a task changes is in `benchmarks/learning_work.py`: one "
        "table for all presets that learn from replay. The on-policy presets learn as they are, but for gamma, and on "
        "LunarLander for a few settings of PPO and A2C. Only LunarLander's tables were tried, on seeds 1 and 2 of DQN, "
        "on seed 1 of PPO and A2C. So a low number says what a preset does unasked, not what its algorithm can do. "
        "Nobody learns Asterix in 200,000 frames, of its authors' five million: random play gets 0.5.",
        "",
        *(
            f"- {task.title}: {task.steps:,} steps, {task.episodes} greedy episodes on fresh seeds every "
            f"{task.every:,}."
            for task in (TASKS[name] for name in runs)
        ),
        "",
        *table(runs, len(seeds)),
        "",
        "Measured at commits (with the number of runs where there are several):",
        "",
        *commits(runs),
        "",
        "Axes end where all but a twentieth of the medians are above; bands may go further down.",
        "",
        *itertools.chain(*((f"![{TASKS[name].title}](learning_{name}.svg)", "") for name in runs)),
    ]
    return "\n".join(lines)


def plot(task: Task, runs: Runs, path: Path) -> None:
    """Draw a small picture per preset: the median over seeds and the band of all of them."""
    import matplotlib.pyplot as plt

    curves = {preset: np.array([run.returns for run in own]) for preset, own in runs.items()}  # [seeds, evaluations]
    floor = np.quantile([np.median(curve, axis=0) for curve in curves.values()], 0.05)
    top = max(curve.max() for curve in curves.values())

    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "trainkit", "font.size": 8}):
        figure, grid = plt.subplots(3, 5, figsize=(10, 5), sharex=True, sharey=True, layout="constrained")
        for axes in grid.flat[len(runs) :]:
            axes.set_axis_off()
        grid.flat[0].set_ylim(floor - 0.05 * (top - floor), top + 0.05 * (top - floor))  # shared by all
        for axes, (preset, returns) in zip(grid.flat, curves.items(), strict=False):
            steps = task.every * np.arange(1, returns.shape[1] + 1)
            axes.fill_between(steps, returns.min(axis=0), returns.max(axis=0), alpha=0.2, linewidth=0)
            axes.plot(steps, np.median(returns, axis=0))
            axes.set_title(preset, fontsize=8)
            axes.xaxis.set_major_formatter(lambda step, _: f"{step / 1000:.0f}k")
            axes.spines[["top", "right"]].set_visible(False)
        figure.suptitle(f"{task.title}: mean greedy return by environment steps, median and range of the seeds")
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def main() -> None:
    """Train what is missing and write the page after every run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--presets", nargs="+", choices=PRESETS, default=PRESETS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--no-training", action="store_true", help="write the page of what there is")
    options = parser.parse_args()
    torch.set_num_threads(1)  # networks this small are fastest on one
    if not options.no_training:
        for seed in options.seeds:  # so that all presets have some seeds before any has all
            for name in options.tasks:
                for preset in options.presets:
                    task = TASKS[name]
                    run = found_or_learnt(task, cache_of(name), preset, seed, task.steps // task.every)
                    told = [round(mean, 1) for mean in run.returns]
                    print(f"{name} {preset} {seed}: {told}, {run.seconds:.0f} s", flush=True)
    runs: dict[str, dict[str, list[Run]]] = {}
    for name in NAMES:
        task = TASKS[name]
        found = {
            preset: [published(task, cache_of(name), preset, seed, task.steps // task.every) for seed in options.seeds]
            for preset in PRESETS
        }
        there = {preset: [run for run in own if run is not None] for preset, own in found.items() if any(own)}
        if there:
            runs[name] = there
            plot(task, there, RESULTS / f"learning_{name}.svg")
    (RESULTS / "learning_tasks.md").write_text(page(runs, options.seeds))


if __name__ == "__main__":
    main()
