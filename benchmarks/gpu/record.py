"""The units of work of a day on a GPU, and the file that says which of them are done."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

ROWS = "gpu.jsonl"
ATTEMPTS = 2  # a unit that was started so often without an end, as the process died, is not started again

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Where and how everything is measured.

    Args:
        device: torch's name of it.
        is_rehearsal: whether as little as possible is done, to see that everything runs.
        out: the folder of the rows and of pages.
        work: the folder of checkpoints and traces.
    """

    device: str
    is_rehearsal: bool
    out: Path
    work: Path

    @property
    def rows(self) -> Path:
        """The file of rows."""
        return self.out / ROWS

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines that execute updates on this device."""
        return ("torch",) if self.device == "cpu" else ("torch", "cuda_graph", "compile")

    @property
    def fastest(self) -> str:
        """The engine for whole runs."""
        return "cuda_graph" if "cuda_graph" in self.engines else "torch"


class MissingError(RuntimeError):
    """Something that a unit needs is not installed, or not on this device; the unit is left out with this line."""


class Unit(NamedTuple):
    """What is measured in one go, in seconds to a few minutes.

    `measure` gets the seconds that are left and returns the row, or None if it made progress and continues at the next
    call. `needs_s` is the time with less of which it is not started.
    """

    name: str
    measure: Callable[[float], Row | None]
    needs_s: float


class Piece(NamedTuple):
    """A part of the day: units that are measured alike and share a section of the page."""

    name: str
    title: str
    units: Callable[[Setup], list[Unit]]
    section: Callable[[list[Row]], Iterator[str]]


class Record:
    """The rows that were measured, in a file that is appended to: one line for each start and end of a unit."""

    def __init__(self, path: Path) -> None:
        self._path = path
        text = path.read_text() if path.exists() else ""
        self._whole = text[: text.rfind("\n") + 1]  # the last line may have been cut by a kill
        self._is_cut = self._whole != text
        self._lines: list[Row] = [json.loads(line) for line in self._whole.splitlines()]

    def add(self, piece: str, unit: str, state: str, **row: Any) -> None:
        """Append a line: state is "started", "continues", "done", "failed" or "missing"."""
        line = {"piece": piece, "unit": unit, "state": state, **row}
        self._lines.append(line)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._is_cut:
            self._path.write_text(self._whole)
            self._is_cut = False
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def rows(self, piece: str) -> list[Row]:
        """Return the last row of each unit that is done."""
        done = [line for line in self._lines if line["piece"] == piece and line["state"] == "done"]
        return list({line["unit"]: line for line in done}.values())

    def why_not(self, piece: str, unit: str) -> str | None:
        """Return why a unit has no row: it has not been started, or failed; None if it has one."""
        own = [line for line in self._lines if (line["piece"], line["unit"]) == (piece, unit)]
        if any(line["state"] == "done" for line in own):
            return None
        if not own:
            return "not started"
        if own[-1]["state"] in ("failed", "missing"):
            return f"{own[-1]['state']}: {own[-1]['error']}"
        return "started, not finished"

    def is_done(self, piece: str, unit: str, commit: str) -> bool:
        """Return whether a unit has a row of a commit."""
        return any(row["unit"] == unit and row["commit"] == commit for row in self.rows(piece))

    def is_over(self, piece: str, unit: str, commit: str) -> bool:
        """Return whether a unit is not started again at a commit."""
        this = piece, unit, commit
        own = [line["state"] for line in self._lines if (line["piece"], line["unit"], line["commit"]) == this]
        return bool(own) and (own[-1] in ("done", "failed", "missing") or own[-ATTEMPTS:] == ["started"] * ATTEMPTS)
