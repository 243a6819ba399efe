"""`trainkit compare` and `trainkit plot`: runs alongside each other, as tables with intervals and as pictures."""

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainkit import plot
from trainkit.cli.output import Parser, format_table, print_line, print_note
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.stats import format_number
from trainkit.loggers.grouping import grouped, newest_of_each_seed
from trainkit.loggers.runs import RunFolder, find_runs
from trainkit.plot.comparing import Difference, Interval, can_vary, difference_over_tasks, interval

_COMPARE_EXAMPLES = """\
  trainkit compare runs
  trainkit compare runs/rainbow-CartPole-v1 runs/dqn-CartPole-v1
  trainkit compare runs --tag train/recent_returns/mean

A run's score is the last number of the tag. Shown is the interquartile mean over seeds (Agarwal et al., 2021) with a
95 % interval: seeds are resampled 10,000 times, those of each task apart. Over several tasks scores are put on one
scale first, 0 the lowest and 1 the highest of all runs in that task. Groups stand in the order in which their runs were
given, and are compared with the first. The verdict is of a permutation test with its p; with fewer than 4 seeds on both
sides no difference can be shown. A task's only seed has no interval. A seed that was run again counts once, by its
newest run."""

_PLOT_EXAMPLES = """\
  trainkit plot runs
  trainkit plot runs/rainbow-CartPole-v1 runs/dqn-CartPole-v1 -o curves.svg --target-return 475
  trainkit plot runs/rainbow-CartPole-v1 --tag update/loss --middle mean --band std
  trainkit plot runs --per-seed
  trainkit plot runs/rainbow-CartPole-v1/seed1 --time -o time.png

Runs that differ by nothing but their seed are one curve; runs in several environments are one picture each."""

_TAG_HELP = "which number, default test/returns/mean, of self-play test/policies/main/returns/mean"
_SHORT = 16  # characters of a label that is repeated in a table
_FEW = 5  # seeds below which an interval is too narrow

Scores = dict[str, dict[str, list[float]]]  # {label: {task: [seeds]}}


def add_compare(parser: Parser) -> None:
    """Add the arguments of the command that compares."""
    parser.runs(run_compare, examples=_COMPARE_EXAMPLES)
    parser.add_argument("runs", metavar="RUN", nargs="+", help="folders of runs, or folders above them")
    parser.add_argument("--tag", help=_TAG_HELP)


def run_compare(options: argparse.Namespace) -> int:
    """Print a table per task, and one over all tasks."""
    groups = newest_of_each_seed(grouped(runs_with(find_runs(options.runs), options.tag)), print_note)
    scores: Scores = {}
    ends: dict[str, list[int]] = {}  # {task: the last step of each run}
    tags: dict[str, str] = {}  # {task: what is compared}
    for label, own in groups.items():
        for one in own:
            tags[one.task] = options.tag or one.score_tag
            steps, numbers = one.series(tags[one.task])
            scores.setdefault(label, {}).setdefault(one.task, []).append(float(numbers[-1]))
            ends.setdefault(one.task, []).append(int(steps[-1]))
    for task, own_ends in ends.items():
        of_task = {label: {task: own[task]} for label, own in scores.items() if task in own}
        first, last = min(own_ends), max(own_ends)
        span = f"step {first:,}" if first == last else f"steps {first:,} to {last:,}, not the same"
        print_line(f"{task}: {tags[task]}, the last, of {span}\n{report(of_task)}\n")
    in_all_tasks = [label for label, own in scores.items() if len(own) == len(ends)]
    if len(ends) > 1 and in_all_tasks:
        print_line(f"over {len(ends)} tasks, 0 the lowest score of each and 1 the highest")
        scaled = on_one_scale(scores)
        print_line(f"{report({label: scaled[label] for label in in_all_tasks})}\n")
    n_least = min(len(seeds) for own in scores.values() for seeds in own.values())
    if n_least < _FEW:
        alone = "" if n_least > 1 else ", and of one there is none"
        seeds = "seeds say" if n_least > 1 else "seed says"
        print_line(f"{n_least} {seeds} little: below {_FEW} an interval is too narrow{alone}")
    return 0


def runs_with(runs: Sequence[RunFolder], tag: str | None) -> list[RunFolder]:
    """Return the runs that logged a tag, or their score; the others are skipped with a note.

    Raises:
        ConfigError: none did.
    """
    chosen = [run for run in runs if run.has_logged(tag or run.score_tag)]
    if not chosen:
        runs[0].series(tag or runs[0].score_tag)  # which names the nearest tag
    if skipped := [str(run.path) for run in runs if run not in chosen]:
        print_note(f"skipped, without {tag or runs[0].score_tag}: {', '.join(skipped)}")
    return chosen


def on_one_scale(scores: Scores) -> Scores:
    """Rescale the scores of each task to 0 for the lowest and 1 for the highest; 0.5 if all are equal."""
    bounds: dict[str, tuple[float, float]] = {}
    for own in scores.values():
        for task, seeds in own.items():
            low, high = bounds.get(task, (seeds[0], seeds[0]))
            bounds[task] = min(low, *seeds), max(high, *seeds)

    def scaled(score: float, low: float, high: float) -> float:
        return 0.5 if high == low else (score - low) / (high - low)

    return {
        label: {task: [scaled(score, *bounds[task]) for score in seeds] for task, seeds in own.items()}
        for label, own in scores.items()
    }


def report(scores: Scores) -> str:
    """Return a table with mean, interval and difference to the first label, for each label.

    Where a task has one seed there is no interval.
    """
    (first, reference), *_ = scores.items()
    is_short = all(len(label) <= _SHORT for label in scores)  # else verdicts would make the table too wide
    minus, ours_is, theirs_is = (f"minus {first}", "", first) if is_short else ("minus the first", "it", "the first")
    rows = [["", "runs", "IQM", "95 % interval", minus, "95 % interval", ""]]
    for label, own in scores.items():
        ours, theirs = list(own.values()), list(reference.values())
        mean = interval(ours)
        row = [label, str(sum(map(len, ours))), format_number(mean.estimate), _bounds(mean) if can_vary(ours) else ""]
        if label != first:
            gap = difference_over_tasks(ours, theirs)
            is_known = can_vary(ours) and can_vary(theirs)
            verdict = gap.verdict(ours_is or label, theirs_is)
            row += [format_number(gap.estimate, "+"), _bounds(gap) if is_known else "", verdict]
        row += [""] * (len(rows[0]) - len(row))
        rows.append(row)
    return format_table(rows)


def _bounds(estimate: Interval | Difference) -> str:
    return f"[{format_number(estimate.low)}, {format_number(estimate.high)}]"


def add_plot(parser: Parser) -> None:
    """Add the arguments of the command that draws."""
    parser.runs(run_plot, examples=_PLOT_EXAMPLES)
    parser.add_argument("runs", metavar="RUN", nargs="+", help="folders of runs, or folders above them")
    parser.add_argument("-o", "--out", metavar="FILE", type=Path, default=Path("curves.png"), help="png, svg or pdf")
    parser.add_argument("--tag", help=_TAG_HELP)
    parser.add_argument("--middle", choices=["iqm", "mean", "median"], default="iqm", help="of the seeds, default iqm")
    parser.add_argument(
        "--band", choices=["interval", "std", "all", "none"], help="around it; default: interval of iqm"
    )
    parser.add_argument("--target-return", metavar="RETURN", type=float, help="a return to draw a line at")
    parser.add_argument("--title", help="default: the environment")
    parser.add_argument("--per-seed", action="store_true", help="instead of seeds together: a line for each")
    parser.add_argument("--time", action="store_true", help="instead: where the time of one run went")


def run_plot(options: argparse.Namespace) -> int:
    """Save the figures, and print their file names."""
    with Checks("trainkit plot") as checks:
        rule = ": --band is around several seeds, and --per-seed has a line for each: leave one out"
        checks.require(not (options.per_seed and options.band), rule)
        checks.require(not (options.per_seed and options.time), ": --time is of one run: leave --per-seed out")
    runs = find_runs(options.runs)
    if options.time:
        if len(runs) > 1:
            raise ConfigError(f"--time is of one run, {len(runs)} were given: name one")
        print_line(str(plot.save(plot.time_shares(runs[0]), options.out)))
        return 0
    tasks: dict[str, list[RunFolder]] = {}
    for one in runs_with(runs, options.tag):
        tasks.setdefault(one.task, []).append(one)
    for task, own in tasks.items():
        groups = newest_of_each_seed(grouped(own), print_note)
        figure = plot.curves(
            _apart(groups) if options.per_seed else groups,
            tag=options.tag,
            middle=options.middle,
            band=options.band,
            target_return=options.target_return,
            title=task if options.title is None else options.title,
        )
        path = options.out
        if len(tasks) > 1:  # a file each, named after the task, which may be a module's class or a dataset's path
            name = re.sub(r"\W*[^\w.+=-]\W*", "_", task).strip("_")
            path = path.with_name(f"{path.stem}-{name}{path.suffix}")
        print_line(str(plot.save(figure, path)))
    return 0


def _apart(groups: Mapping[str, Sequence[RunFolder]]) -> dict[str, RunFolder]:
    """Return a group for each run, named after its seed, or after its folder where that is not known."""
    return {
        f"{label}, {run.path.name if run.seed is None else f'seed {run.seed}'}": run
        for label, own in groups.items()
        for run in own
    }
