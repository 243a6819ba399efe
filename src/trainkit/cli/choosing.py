"""Which of the runs that were named count: those that told the number that is asked for."""

from collections.abc import Sequence

from trainkit.cli.output import note
from trainkit.runs import RunFolder


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
