"""`trainkit inspect`: what the folder of a run or a checkpoint holds, without loading anything heavy."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainkit.cli.output import Commands, Parser, add_command, say, table
from trainkit.core.checkpoint import find_checkpoints, inspect_checkpoint
from trainkit.core.errors import CheckpointError
from trainkit.loggers.runs import CHECKPOINT, CONFIG, NUMBERS, RunFolder, find_runs

_EXAMPLES = """\
  trainkit inspect runs/rainbow-CartPole-v1/seed1
  trainkit inspect runs                             a line per run
  trainkit inspect runs/rainbow-CartPole-v1/seed1/checkpoint/best"""

_SHOWN = ("test/returns/mean", "train/recent_returns/mean", "update/loss", "time/steps_per_second")

_LARGEST = 2**63  # what a count in a file may be


def add(commands: "Commands[Parser]") -> None:
    """Add the command."""
    parser = add_command(
        commands, "inspect", run, about="tell what the folder of a run or a checkpoint holds", examples=_EXAMPLES
    )
    parser.add_argument(
        "run_folder", metavar="RUN", type=Path, help="a run, a folder above several, a checkpoint or a saved policy"
    )


def run(options: argparse.Namespace) -> int:
    """Tell all about one run or checkpoint, or a line about each of several runs."""
    if find_checkpoints(options.run_folder) and not any(options.run_folder.rglob(NUMBERS)):
        say(about_checkpoint(options.run_folder))
        return 0
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
        told += [f"versions  {versions(run.config.get('versions', {}))}"]
    else:
        told += ["", f"no {CONFIG}: not made by `trainkit train`"]
    told += ["", *settings(run.settings)]
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


def about_checkpoint(folder: Path) -> str:
    """Tell what a checkpoint or a saved policy is of; of several, the newest whole one."""
    told = inspect_checkpoint(folder)
    made = [f"saved     {told.get('saved_at')}", f"versions  {versions(told.get('versions', {}))}"]
    return "\n".join([str(folder), "", *made, "", *settings(told.get("settings", {})), "", *within(told, folder)])


def checkpoint(folder: Path) -> list[str]:
    """Tell what there is to go on from."""
    try:
        return within(inspect_checkpoint(folder), folder)
    except CheckpointError:
        return ["no checkpoint"]


def within(told: Mapping[str, Any], folder: Path) -> list[str]:
    """Tell of a checkpoint's parts and how far it got, which a policy saved by itself does not know."""
    parts = {name: _megabytes(entry["bytes"]) for name, entry in told["components"].items()}
    lines = [
        f"checkpoint {told['path']}",
        f"  {told['problem'] or 'whole'}, {sum(parts.values()):,.1f} MB: "
        + ", ".join(f"{name} {size:,.1f}" for name, size in parts.items()),
    ]
    if far := told.get("progress"):
        lines.append(
            f"  after epoch {_count(far.get('epoch'))}: {_count(far.get('env_step'))} steps, "
            f"{_count(far.get('gradient_step'))} updates, {_count(far.get('seconds'))} s; "
            f"{far.get('stop_reason') or 'not finished'}"
        )
    if (folder / "best").is_dir():
        best = inspect_checkpoint(folder / "best").get("progress", {})
        score, epoch = best.get("best_score"), best.get("best_epoch")
        lines.append(f"best   {folder / 'best'}, score {score} after epoch {epoch}")
    return lines


def _count(value: object) -> str:
    """Write a count from a file, which may hold anything."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _LARGEST
    return f"{value:,.0f}" if is_number else "an unknown number of"


def _megabytes(n_bytes: int) -> float:
    return min(n_bytes, _LARGEST) / 1e6


def settings(told: Mapping[str, Any]) -> list[str]:
    """Tell a setting per line."""
    names = table([[name, str(value)] for name, value in told.items()], left=2)
    return ["settings", *(f"  {line}" for line in names.splitlines())]


def versions(told: Mapping[str, str]) -> str:
    """Tell the versions of what made it, in a line."""
    return ", ".join(f"{name} {number}" for name, number in told.items())


def lines(runs: list[RunFolder]) -> str:
    """Tell of each run how far it came."""
    rows = [["run", "task", "seed", "step", "test return", "best"]]
    for run in runs:
        tests = [row["test/returns/mean"] for row in run.rows if "test/returns/mean" in row]
        numbers = [f"{tests[-1]:.5g}", f"{max(tests):.5g}"] if tests else ["", ""]
        step = f"{run.rows[-1]['step']:,}" if run.rows else "0"
        rows.append([str(run.path), run.task, "" if run.seed is None else str(run.seed), step, *numbers])
    return table(rows, left=2)
