"""`trainkit compare`: who is better, over seeds and tasks, and how sure that is."""

import argparse
from collections.abc import Mapping, Sequence

from trainkit.cli.choosing import each_seed_once, that_tell
from trainkit.cli.output import Commands, Parser, add_command, say, table
from trainkit.loggers.runs import RunFolder, find_runs, grouped
from trainkit.plot.comparing import Difference, Interval, can_vary, difference_over_tasks, interval

_EXAMPLES = """\
  trainkit compare runs
  trainkit compare runs/rainbow-CartPole-v1 runs/dqn-CartPole-v1
  trainkit compare runs --tag train/recent_returns/mean

A run's score is the last number of the tag. Shown is the interquartile mean over seeds (Agarwal et al., 2021) with a
95 % interval: seeds are resampled 10,000 times, those of each task apart. Over several tasks scores are put on one
scale first, 0 the lowest and 1 the highest of all runs in that task. Fewer than 5 seeds say little; a task's only seed
has no interval. A seed that was run again counts once, by its newest run."""

_FEW = 5  # seeds below which an interval is told to be narrow by luck

Scores = dict[str, dict[str, list[float]]]  # {label: {task: [seeds]}}


def add(commands: "Commands[Parser]") -> None:
    """Add the command."""
    about = "compare runs by interquartile means with intervals"
    parser = add_command(commands, "compare", run, about=about, examples=_EXAMPLES)
    parser.add_argument("runs", metavar="RUN", nargs="+", help="folders of runs, or folders above them")
    parser.add_argument("--tag", default="test/returns/mean", help="which number, default test/returns/mean")


def run(options: argparse.Namespace) -> int:
    """Print a table per task, and one over all tasks."""
    groups = each_seed_once(grouped(that_tell(find_runs(options.runs), options.tag)))
    scores = scores_of(groups, options.tag)
    tasks = list(dict.fromkeys(task for own in scores.values() for task in own))
    for task in tasks:
        there = {label: {task: own[task]} for label, own in scores.items() if task in own}
        steps = [int(run.series(options.tag)[0][-1]) for own in groups.values() for run in own if run.task == task]
        span = f"step {steps[0]:,}" if len(set(steps)) == 1 else f"steps {min(steps):,} to {max(steps):,}, not the same"
        say(f"{task}: {options.tag}, the last, of {span}\n{report(there)}\n")
    everywhere = {label: own for label, own in scores.items() if len(own) == len(tasks)}
    if len(tasks) > 1 and everywhere:
        say(f"over {len(tasks)} tasks, 0 the lowest score of each and 1 the highest")
        say(f"{report(on_one_scale(everywhere))}\n")
    n_least = min(len(seeds) for own in scores.values() for seeds in own.values())
    if n_least < _FEW:
        alone = "" if n_least > 1 else ", and of one there is none"
        seeds = "seeds say" if n_least > 1 else "seed says"
        say(f"{n_least} {seeds} little: below {_FEW} an interval is too narrow{alone}")
    return 0


def scores_of(groups: Mapping[str, Sequence[RunFolder]], tag: str) -> Scores:
    """Return every run's last number of the tag, of {label: runs}."""
    scores: Scores = {}
    for label, own in groups.items():
        for one in own:
            scores.setdefault(label, {}).setdefault(one.task, []).append(float(one.series(tag)[1][-1]))
    return scores


def on_one_scale(scores: Scores) -> Scores:
    """Put the scores of each task between 0, the lowest of all, and 1, the highest."""
    bounds: dict[str, tuple[float, float]] = {}
    for own in scores.values():
        for task, seeds in own.items():
            low, high = bounds.get(task, (seeds[0], seeds[0]))
            bounds[task] = min(low, *seeds), max(high, *seeds)
    return {
        label: {task: [_scaled(score, *bounds[task]) for score in seeds] for task, seeds in own.items()}
        for label, own in scores.items()
    }


def report(scores: Scores) -> str:
    """Return the table of some labels: means, intervals, and the difference to the first.

    Where a task has one seed there is neither interval nor verdict.
    """
    (first, reference), *_ = scores.items()
    rows = [["", "runs", "IQM", "95 % interval", f"less {first}", "95 % interval", ""]]
    for label, own in scores.items():
        ours, theirs = list(own.values()), list(reference.values())
        told = interval(ours)
        row = [label, str(sum(map(len, ours))), f"{told.estimate:.4g}", _bounds(told) if can_vary(ours) else ""]
        if label != first:
            gap = difference_over_tasks(ours, theirs)
            is_known = can_vary(ours) and can_vary(theirs)
            row += [f"{gap.estimate:+.4g}", *((_bounds(gap), gap.verdict(label, first)) if is_known else ("", ""))]
        row += [""] * (len(rows[0]) - len(row))
        rows.append(row)
    return table(rows)


def _bounds(told: Interval | Difference) -> str:
    return f"[{told.low:.4g}, {told.high:.4g}]"


def _scaled(score: float, low: float, high: float) -> float:
    """Return where a score lies between two; where all are the same, all are in the middle."""
    return 0.5 if high == low else (score - low) / (high - low)
