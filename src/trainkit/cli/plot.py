"""`trainkit plot`: learning curves of runs, and shares of their time, as pictures."""

import argparse
import re
from pathlib import Path

from trainkit import plot
from trainkit.cli.compare import newest_of_each_seed, runs_with
from trainkit.cli.output import Commands, Parser, add_command, print_line
from trainkit.core.errors import ConfigError
from trainkit.loggers.runs import RunFolder, find_runs, grouped

_EXAMPLES = """\
  trainkit plot runs
  trainkit plot runs/rainbow-CartPole-v1 runs/dqn-CartPole-v1 -o curves.svg --goal 475
  trainkit plot runs/rainbow-CartPole-v1 --tag update/loss --middle mean --band std
  trainkit plot runs/rainbow-CartPole-v1/seed1 --time -o time.png

Runs that differ by nothing but their seed are one curve; runs in several environments are one picture each."""


def add_plot(commands: "Commands[Parser]") -> None:
    """Add the command."""
    parser = add_command(commands, "plot", run, about="draw learning curves, seeds together", examples=_EXAMPLES)
    parser.add_argument("runs", metavar="RUN", nargs="+", help="folders of runs, or folders above them")
    parser.add_argument("-o", "--out", metavar="FILE", type=Path, default=Path("curves.png"), help="png, svg or pdf")
    parser.add_argument("--tag", default="test/returns/mean", help="which number, default test/returns/mean")
    parser.add_argument("--middle", choices=["iqm", "mean", "median"], default="iqm", help="of the seeds, default iqm")
    parser.add_argument(
        "--band", choices=["interval", "std", "all", "none"], help="around it; default: interval of iqm"
    )
    parser.add_argument("--goal", type=float, help="a return to draw a line at")
    parser.add_argument("--title", help="default: the environment")
    parser.add_argument("--time", action="store_true", help="instead: where the time of one run went")


def run(options: argparse.Namespace) -> int:
    """Draw, and print the files' names."""
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
        figure = plot.curves(
            newest_of_each_seed(grouped(own)),
            tag=options.tag,
            middle=options.middle,
            band=options.band,
            goal=options.goal,
            title=task if options.title is None else options.title,
        )
        path = options.out
        if len(tasks) > 1:  # a file each, named after the task, which may be a module's class or a dataset's path
            name = re.sub(r"\W*[^\w.+=-]\W*", "_", task).strip("_")
            path = path.with_name(f"{path.stem}-{name}{path.suffix}")
        print_line(str(plot.save(figure, path)))
    return 0
