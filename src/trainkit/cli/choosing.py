"""Which of the runs that were named count: those that told the number that is asked for, and each seed once."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from trainkit.cli.output import note
from trainkit.loggers.runs import NUMBERS, RunFolder


def that_tell(runs: Sequence[RunFolder], tag: str) -> list[RunFolder]:
    """Leave out the runs that never told a tag, with a note.

    Raises:
        ConfigError: none did.
    """
    chosen = [run for run in runs if run.tells(tag)]
    if not chosen:
        runs[0].series(tag)  # which tells the nearest tag
    if silent := [str(run.path) for run in runs if not run.tells(tag)]:
        note(f"left out, for it never told {tag}: {', '.join(silent)}")
    return chosen


def each_seed_once(groups: Mapping[str, Sequence[RunFolder]]) -> dict[str, list[RunFolder]]:
    """Keep of {label: runs} the newest of each task and seed, with a note: a second run of a seed is no second sample.

    Runs that do not know their seed all count.
    """
    chosen: dict[str, list[RunFolder]] = {}
    for label, own in groups.items():
        newest: dict[object, RunFolder] = {}
        for run in sorted(own, key=_began):
            newest[run.path if run.seed is None else (run.task, run.seed)] = run
        chosen[label] = [run for run in own if run in newest.values()]
        if old := [str(run.path) for run in own if run not in newest.values()]:
            note(f"{label}: a seed counts once, by its newest run; left out: {', '.join(old)}")
    return chosen


def _began(run: RunFolder) -> tuple[float, float]:
    """Return when a run began or last went on, then when it last told something, in seconds."""
    told = (run.path / NUMBERS).stat().st_mtime
    try:
        return datetime.fromisoformat(run.config["began"]).timestamp(), told
    except (KeyError, TypeError, ValueError, OverflowError, OSError):  # not made by the shell
        return told, told
