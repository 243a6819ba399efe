"""The page of results: what was measured, section by section, and what has not run, with the reason."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.gpu.record import Piece, Record, Row, Setup
from benchmarks.pages import measured_at

PAGE = "gpu.md"
HEADING = """
Everything on this page was measured by `make gpu-day` on the device that is named; the last section lists what was not.
Updates per second are the median of three rounds of 0.7 s after 20 warm-up updates, with rows that are there already;
the plain loop (`benchmarks/gpu/plain.py`) has the same networks and losses, sends the same rows by one copy a column
and has fused Adam; in a CUDA graph its rows come from pinned memory. Stable-Baselines3 draws its rows from its buffer.
"CPU busy" is the time until 64 calls have returned, by call: where it is the time of an update, the CPU decides. The
floor is what an update's products and Adam's memory take at the best rates of this device, or the launch of a CUDA
graph of one operation, whichever is longer.
"""
REHEARSED = """
**This is a rehearsal.** It shows that every piece runs. Its numbers say nothing about any device, and are published
nowhere.
"""
NOTHING = """
Nothing has been measured yet, as no GPU was available. `make gpu-day` measures what is listed below, and writes this
page.
"""


def page(setup: Setup, pieces: Sequence[Piece], record: Record) -> str:
    """Return the page."""
    rows = [row for piece in pieces for row in record.rows(piece.name)]
    heading = REHEARSED if setup.is_rehearsal else HEADING if rows else NOTHING
    lines = ["# On a GPU", "", *heading.strip().splitlines(), ""]
    lines += [*provenance(rows), ""] if rows else []
    for piece in pieces:
        if own := record.rows(piece.name):
            lines += [f"## {piece.title}", "", *piece.section(own), ""]
    missing = list(not_run(setup, pieces, record))
    lines += ["## What has not run", "", *(missing or ["Everything has run."])]
    return "\n".join(lines) + "\n"


def provenance(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the sentences on machines, versions, commits and the command."""
    yield measured_at([row["commit"] for row in rows])
    yield ""
    machines = dict.fromkeys((row["machine"], row["torch"]) for row in rows)
    yield "; ".join(f"{machine}, torch {version}" for machine, version in machines) + "."
    yield f"Command: `{rows[-1]['command']}`."


def not_run(setup: Setup, pieces: Sequence[Piece], record: Record) -> Iterator[str]:
    """Yield the units without a row, those of a piece with the same reason together."""
    for piece in pieces:
        units: dict[str, list[str]] = {}
        for unit in piece.units(setup):
            reason = record.why_not(piece.name, unit.name)
            if reason is not None:
                units.setdefault(reason, []).append(unit.name)
        for reason, names in units.items():
            yield f"- {piece.title}, {reason}: {'; '.join(names)}"


def write(setup: Setup, pieces: Sequence[Piece], record: Record) -> Path:
    """Write the page next to the rows."""
    path = setup.out / PAGE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(setup, pieces, record))
    return path
