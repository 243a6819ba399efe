"""`trainkit inspect`: what a run's folder holds, without loading anything heavy."""

import argparse
from pathlib import Path

from trainkit.checkpoint import inspect_checkpoint
from trainkit.cli.output import Commands, Parser, add_command, say, table
from trainkit.errors import CheckpointError
from trainkit.runs import CHECKPOINT, CONFIG, RunFolder, find_runs

_EXAMPLES = """\
  trainkit inspect runs/rainbow-CartPole-v1/seed1
  trainkit inspect runs                             a line per run"""

_SHOWN = ("test/returns/mean", "train/recent_returns/mean", "update/loss", "time/steps_per_second")


def add(commands: "Commands[Parser]") -> None:
    """Add the command."""
    parser = add_command(commands, "inspect", run, about="tell what a run's folder holds", examples=_EXAMPLES)
    parser.add_argument("run_folder", metavar="RUN", type=Path, help="a run's folder, or one above several")


def run(options: argparse.Namespace) -> int:
    """Tell all about one run, or a line about each of several."""
    runs = find_runs([options.run_folder])
    if len(runs) == 1 and runs[0].path == options.run_folder:
        say(about(runs[0]))
    else:
        say(lines(runs))
    return 0


def about(run: RunFolder) -> str:
    """Tell how a run was made, how far it came, and what can be gone on from."""
    told = [str(run.path)]
    if run.config:
        told += ["", f"made by   {run.config.get('command')}", f"began     {run.config.get('began')}"]
        versions = ", ".join(f"{name} {number}" for name, number in run.config.get("versions", {}).items())
        told += [f"versions  {versions}"]
    else:
        told += ["", f"no {CONFIG}: not made by `trainkit train`"]
    settings = table([[name, str(value)] for name, value in run.settings.items()], left=2)
    told += ["", "settings", *(f"  {line}" for line in settings.splitlines())]
    if run.rows:
        last = run.rows[-1]
        told += ["", f"{len(run.rows)} reports up to step {last['step']:,}; the last numbers"]
        for tag in _SHOWN:
            known = [row for row in run.rows if tag in row]
            if known:
                best = f", best {max(row[tag] for row in known):.5g}" if "returns" in tag else ""
                told.append(f"  {tag:28}{known[-1][tag]:.5g} at step {known[-1]['step']:,}{best}")
    else:
        told += ["", "no report yet"]
    return "\n".join([*told, "", *checkpoint(run.path / CHECKPOINT)])


def checkpoint(folder: Path) -> list[str]:
    """Tell what there is to go on from."""
    try:
        told = inspect_checkpoint(folder)
    except CheckpointError:
        return ["no checkpoint"]
    parts = {name: entry["bytes"] for name, entry in told["components"].items()}
    progress = told["progress"]
    lines = [
        f"checkpoint {told['path']}",
        f"  {told['problem'] or 'whole'}, {sum(parts.values()) / 1e6:,.1f} MB: "
        + ", ".join(f"{name} {size / 1e6:,.1f}" for name, size in parts.items()),
        f"  after epoch {progress['epoch']}: {progress['env_step']:,} steps, {progress['gradient_step']:,} updates, "
        f"{progress['seconds']:,.0f} s; {progress['stop_reason'] or 'not finished'}",
    ]
    if (folder / "best").is_dir():
        best = inspect_checkpoint(folder / "best")["progress"]
        lines.append(f"best   {folder / 'best'}, score {best['best_score']} after epoch {best['best_epoch']}")
    return lines


def lines(runs: list[RunFolder]) -> str:
    """Tell of each run how far it came."""
    rows = [["run", "task", "seed", "step", "test return", "best"]]
    for run in runs:
        tests = [row["test/returns/mean"] for row in run.rows if "test/returns/mean" in row]
        numbers = [f"{tests[-1]:.5g}", f"{max(tests):.5g}"] if tests else ["", ""]
        step = f"{run.rows[-1]['step']:,}" if run.rows else "0"
        rows.append([str(run.path), run.task, "" if run.seed is None else str(run.seed), step, *numbers])
    return table(rows, left=2)
