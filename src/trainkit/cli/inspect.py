"""`trainkit inspect`: the contents of the folder of a run or a checkpoint, without loading tensors."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainkit.cli.output import Parser, format_table, print_line
from trainkit.core.checkpoint import find_checkpoints, folder_of_checkpoints, inspect_checkpoint
from trainkit.core.errors import CheckpointError
from trainkit.loggers.runs import CONFIG, NUMBERS, RunFolder, find_runs

_EXAMPLES = """\
  trainkit inspect runs/rainbow-CartPole-v1/seed1
  trainkit inspect runs                             a line per run
  trainkit inspect runs/rainbow-CartPole-v1/seed1/checkpoint/best"""

_SHOWN = ("train/recent_returns/mean", "update/loss", "time/steps_per_second")
_LARGEST = 2**63  # a count in a file is at most this


def add_inspect(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.runs(run, examples=_EXAMPLES)
    parser.add_argument(
        "run_folder", metavar="RUN", type=Path, help="a run, a folder above several, a checkpoint or a saved policy"
    )


def run(options: argparse.Namespace) -> int:
    """Print everything about one run or checkpoint, or a line about each of several runs."""
    folder = options.run_folder
    if find_checkpoints(folder) and not any(folder.rglob(NUMBERS)):
        print_line("\n".join(describe_checkpoint(folder)))
        return 0
    runs = find_runs([folder])
    is_one = len(runs) == 1 and runs[0].path == folder
    print_line("\n".join(describe_run(runs[0])) if is_one else list_runs(runs))
    return 0


def describe_run(run: RunFolder) -> list[str]:
    """Return lines on a run's settings, its progress, and what it can be resumed from."""
    lines = [str(run.path), ""]
    if run.config:
        lines += [f"made by   {run.config.get('command')}", f"began     {run.config.get('began')}"]
        lines += [_versions(run.config.get("versions", {}))]
    else:
        preset = run.settings.get("preset")
        lines += [f"made by   {'a trainer' if preset is None else f'presets.{preset}'} in Python, without a {CONFIG}"]
    lines += ["", *_settings(run.settings), ""]
    if run.rows:
        lines += [f"{len(run.rows)} reports up to step {run.rows[-1]['step']:,}; the last numbers"]
        width = max(28, len(run.score_tag) + 2)
        for tag in (run.score_tag, *_SHOWN):
            known = [row for row in run.rows if tag in row]
            if known:
                best = f", best {max(row[tag] for row in known):.5g}" if "returns" in tag else ""
                lines.append(f"  {tag:{width}}{known[-1][tag]:.5g} at step {known[-1]['step']:,}{best}")
    else:
        lines += ["no report yet"]
    folder = folder_of_checkpoints(run.path)
    try:
        return [*lines, "", *_parts_and_progress(inspect_checkpoint(folder), folder)]
    except CheckpointError:
        return [*lines, "", "no checkpoint"]


def describe_checkpoint(folder: Path) -> list[str]:
    """Return lines on a checkpoint or a saved policy; of several, on the newest complete one."""
    found = inspect_checkpoint(folder)
    made = [f"saved     {found.get('saved_at')}", _versions(found.get("versions", {}))]
    return [str(folder), "", *made, "", *_settings(found.get("settings", {})), "", *_parts_and_progress(found, folder)]


def _parts_and_progress(found: Mapping[str, Any], folder: Path) -> list[str]:
    """Return lines on a checkpoint's components and progress, which a separately saved policy lacks."""
    megabytes = {name: min(entry["bytes"], _LARGEST) / 1e6 for name, entry in found["components"].items()}
    sizes = ", ".join(f"{name} {size:,.1f}" for name, size in megabytes.items())
    lines = [
        f"checkpoint {found['path']}",
        f"  {found['problem'] or 'whole'}, {sum(megabytes.values()):,.1f} MB: {sizes}",
    ]
    if progress := found.get("progress"):
        epoch, steps, updates, seconds = (
            _count(progress.get(name)) for name in ("epoch", "env_step", "gradient_step", "seconds")
        )
        stopped = progress.get("stop_reason") or "not finished"
        lines.append(f"  after epoch {epoch}: {steps} steps, {updates} updates, {seconds} s; {stopped}")
    if (folder / "best").is_dir():
        best = inspect_checkpoint(folder / "best").get("progress", {})
        score, epoch = best.get("best_score"), best.get("best_epoch")
        lines.append(f"best   {folder / 'best'}, score {score} after epoch {epoch}")
    return lines


def _count(value: object) -> str:
    """Format a count read from a file, which may contain anything."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _LARGEST
    return f"{value:,.0f}" if is_number else "an unknown number of"


def _settings(settings: Mapping[str, Any]) -> list[str]:
    names = format_table([[name, str(value)] for name, value in settings.items()], left=2)
    return ["settings", *(f"  {line}" for line in names.splitlines())]


def _versions(versions: Mapping[str, str]) -> str:
    return f"versions  {', '.join(f'{name} {number}' for name, number in versions.items())}"


def list_runs(runs: Sequence[RunFolder]) -> str:
    """Return a table of the progress of each run."""
    rows = [["run", "task", "seed", "step", "test return", "best"]]
    for run in runs:
        tests = [row[run.score_tag] for row in run.rows if run.score_tag in row]
        numbers = [f"{tests[-1]:.5g}", f"{max(tests):.5g}"] if tests else ["", ""]
        step = f"{run.rows[-1]['step']:,}" if run.rows else "0"
        rows.append([str(run.path), run.task, "" if run.seed is None else str(run.seed), step, *numbers])
    return format_table(rows, left=2)
