"""`trainkit zoo`: list the tuned settings, add some, train them on fresh seeds, and write the report."""

import argparse
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainkit.cli.output import Commands, Parser, add_command, format_table, print_line
from trainkit.cli.run_config import read_settings, with_items
from trainkit.core import files
from trainkit.core.config import from_toml, to_toml
from trainkit.core.errors import Checks, ConfigError, reject_unknown
from trainkit.presets import PRESETS
from trainkit.presets.base import EnvPreset
from trainkit.presets.zoo_entry import ZOO, all_entries, find_entry, folder_flag, root_of
from trainkit.zoo.report import page, report_command, rows
from trainkit.zoo.results import train

_EXAMPLES = """\
  trainkit zoo list
  trainkit zoo add dqn CartPole-v1 --config tuned.toml --source "rl-zoo, CartPole-v1" --tuning-seeds 11 12
  trainkit zoo train dqn CartPole-v1 --seeds 5 --jobs 2 --weights median
  trainkit zoo report -o benchmarks/results/ZOO.md"""

_TRAIN_EXAMPLES = """\
  trainkit zoo train dqn Acrobot-v1                             the first 5 seeds from 101 on that are no tuning seeds
  trainkit zoo train dqn CartPole-v1 --seeds 10 --jobs 2        ten, two at once
  trainkit zoo train sac Pendulum-v1 --seed-list 201 202 --weights best

The result is written into the entry's file. Run it again after an interruption: finished seeds are not repeated."""


def add_zoo(parser: Parser) -> None:
    """Add the commands of the zoo."""
    parser.runs(run_list, examples=_EXAMPLES)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, parser_class=Parser)
    entries = add_command(actions, "list", "list all entries with their results")
    entries.runs(run_list, examples="  trainkit zoo list")
    _add_folder(entries)
    _add_training(actions)
    _add_adding(actions)
    report = add_command(actions, "report", "write all entries as a Markdown page")
    report.runs(run_report, examples=f"  {report_command(ZOO)}")
    _add_folder(report)
    report.add_argument("-o", "--out", metavar="FILE", type=Path, help="default: the terminal")


def _add_folder(parser: Parser) -> None:
    parser.add_argument(
        "--folder", metavar="FOLDER", type=Path, default=ZOO, help="of the zoo; default: trainkit's own"
    )


def _add_training(actions: "Commands[Parser]") -> None:
    about = "train an entry on fresh seeds, evaluate, and write the result into its file"
    parser = add_command(actions, "train", about)
    parser.runs(run_train, examples=_TRAIN_EXAMPLES)
    parser.add_argument("preset", metavar="PRESET", help="of the entry")
    parser.add_argument("env", metavar="ENV", help="its environment's id")
    seeds = parser.add_mutually_exclusive_group()
    seeds.add_argument("--seeds", metavar="N", type=int, default=5, help="number of seeds, default 5")
    seeds.add_argument("--seed-list", metavar="SEED", type=int, nargs="+", help="the seeds themselves")
    parser.add_argument("--jobs", metavar="N", type=int, default=1, help="processes that train at once, default 1")
    parser.add_argument(
        "--weights",
        choices=["none", "median", "best"],
        default="none",
        help="ship the policy of the seed with the median or the best return; default: none",
    )
    parser.add_argument("--quiet", action="store_true", help="no bar, no epochs and no line per seed")
    _add_folder(parser)
    parser.add_argument("--runs", metavar="FOLDER", type=Path, default=Path("runs/zoo"), help="default: runs/zoo")


def _add_adding(actions: "Commands[Parser]") -> None:
    parser = add_command(actions, "add", "add an entry: the preset's general table, with the settings given")
    examples = '  trainkit zoo add dqn Acrobot-v1 --set lr=6.3e-4 --source "rl-zoo, Acrobot-v1" --source-result -76.6'
    parser.runs(run_add, examples=examples)
    parser.add_argument("preset", metavar="PRESET", help="one of `trainkit presets`")
    parser.add_argument("env", metavar="ENV", help="an id")
    parser.add_argument("--source", required=True, help="where the settings come from, and what was changed")
    parser.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help="a setting; repeatable")
    parser.add_argument("--config", metavar="FILE", type=Path, help="a TOML file of settings")
    parser.add_argument("--source-result", metavar="X", type=float, help="the mean return that the source reports")
    parser.add_argument("--tuning-seeds", metavar="SEED", type=int, nargs="*", default=[], help="never in a result")
    parser.add_argument("--episodes", metavar="N", type=int, default=100, help="greedy episodes per seed, default 100")
    parser.add_argument("--policy", choices=["last", "best"], default="last", help="which plays them, default last")
    _add_folder(parser)
    parser.add_argument("--replace", action="store_true", help="an entry that exists, and its result")


def run_list(options: argparse.Namespace) -> int:
    """Print every entry."""
    print_line(format_table(rows(all_entries(options.folder)), left=2))
    return 0


def run_train(options: argparse.Namespace) -> int:
    """Train, and print the result."""
    try:
        entry = train(
            options.preset,
            options.env,
            seeds=options.seed_list or options.seeds,
            jobs=options.jobs,
            weights=None if options.weights == "none" else options.weights,
            runs=options.runs,
            folder=options.folder,
            verbose=not options.quiet,
        )
    except (KeyboardInterrupt, SystemExit):  # Ctrl-C, SIGTERM
        print_line(f"stopped; {options.runs} has what was trained, and the same command continues")
        raise
    print_line(format_table(rows([entry]), left=2))
    print_line(f"written to {entry.path}; now: {report_command(options.folder)}")
    return 0


def run_add(options: argparse.Namespace) -> int:
    """Write the file of an entry."""
    reject_unknown("trainkit zoo", [options.preset], PRESETS)
    preset = PRESETS[options.preset]
    if not isinstance(preset, EnvPreset):
        raise ConfigError(f"{options.preset} learns from a dataset: the zoo is for presets that learn in environments")
    path = root_of(options.preset, options.folder) / options.preset / f"{options.env}.toml"
    with Checks("trainkit zoo add") as checks:
        is_free = options.replace or not path.exists()
        checks.require(is_free, f": {path} exists: give --replace, which also drops its result, or edit it")
    texts = read_settings(options.config, options.set)
    given = with_items({}, {name: from_toml(text) for name, text in texts.items()})
    preset.check_options(given)
    table = preset.general_table(options.env, given.get("env_options", {}))
    changed: Mapping[str, Any] = preset.changed(table, given)
    settings = {**preset.complete_settings(preset.changed(table, given)), **{name: changed[name] for name in given}}
    head = {
        "source": options.source,
        "source_result": options.source_result,
        "tuning_seeds": options.tuning_seeds,
        "episodes": options.episodes,
        "policy": options.policy,
    }
    lines = [f"{name} = {to_toml(value)}" for name, value in head.items() if value is not None]
    lines += ["", "[settings]", *(f"{name} = {to_toml(value)}" for name, value in settings.items()), ""]
    files.write_whole(path, lambda file: file.write("\n".join(lines).encode()))
    entry = find_entry(options.preset, options.env, options.folder)
    if entry is None:
        path.unlink()
        raise ConfigError(f"trainkit zoo add: {options.env!r} is not an environment's id, such as CartPole-v1")
    if entry.weights.is_dir():
        shutil.rmtree(entry.weights)
    next_command = f"trainkit zoo train {options.preset} {options.env}{folder_flag(options.folder)}"
    print_line(f"written to {path}; now: {next_command}")
    return 0


def run_report(options: argparse.Namespace) -> int:
    """Print the page, or write it."""
    text = page(all_entries(options.folder), options.folder)
    if options.out is None:
        print_line(text)
    else:
        files.write_whole(options.out, lambda file: file.write(text.encode()))
        print_line(str(options.out))
    return 0
