"""CSV files: a table of a run's statistics, one row per report, and a table of its settings."""

import csv
import io
import json
import logging
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from trainkit.core.files import write_whole
from trainkit.core.signatures import checked
from trainkit.loggers.runs import claim_folder

_log = logging.getLogger(__name__)


@checked
class CsvLogger:
    """A logger that writes a row per report to `folder/numbers.csv`, and the settings to `folder/settings.csv`.

    The first column is the step; a tag that is not in a report has an empty cell. Where a tag is new, the file is
    written again with another column. Episodes that are logged one by one are rows of `folder/episodes.csv`. With
    `resume` it continues in `folder` itself, unless another process logs to it.
    """

    def __init__(self, folder: str | Path, *, resume: bool = False) -> None:
        self._claim = claim_folder(folder, resume=resume)
        self.is_closed = False
        self.folder: str | None = str(self._claim.folder)
        self._numbers = Table(self._claim.folder / "numbers.csv")
        self._numbers.open()
        self._episodes = Table(self._claim.folder / "episodes.csv")

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write one row and flush it."""
        self._numbers.write([{"step": step, **numbers}])

    def write_episodes(self, step: int, rows: Sequence[Mapping[str, float]]) -> None:
        """Write a row per episode."""
        self._episodes.write([{"step": step, **row} for row in rows])

    def describe(self, settings: Mapping[str, Any]) -> None:
        """Write the settings, name and value; what is not a string is written as JSON."""

        def text(value: Any) -> str:
            return value if isinstance(value, str) else json.dumps(value, default=str)

        lines = [["setting", "value"], *([name, text(value)] for name, value in settings.items())]
        _write_lines(self._claim.folder / "settings.csv", lines)

    def purge(self, step: int) -> None:
        """Remove the rows after this step, and an incomplete one."""
        self._numbers.purge(step)
        self._episodes.purge(step)

    def close(self) -> None:
        """Close the files, and release the folder for other processes."""
        self.is_closed = True
        self._numbers.close()
        self._episodes.close()
        self._claim.release()


class Table:
    """A CSV file whose first column is the step, opened with its first row; it gets a column for each new name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns: list[str] = []
        self._file: IO[str] | None = None

    def open(self) -> IO[str]:
        """Open the file at its end; its first line names the columns."""
        self.close()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            with self._path.open(newline="", encoding="utf-8") as file:
                self._columns = next(csv.reader(file), ["step"])[1:]
        self._file = self._path.open("a", newline="", encoding="utf-8")
        weakref.finalize(self, self._file.close)
        if self._file.tell() == 0:
            csv.writer(self._file).writerow(["step", *self._columns])
            self._file.flush()
        return self._file

    def write(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Write rows, which have the step, and flush them."""
        if self._file is None:
            self.open()
        elif not self._path.exists():
            _log.warning("%s was deleted: the log starts again there", self._path)
            self._rewrite([])
        if new := {name: None for row in rows for name in row if name not in ("step", *self._columns)}:
            former = self._rows()
            self._columns += new
            self._rewrite(former)
        assert self._file is not None
        csv.DictWriter(self._file, ["step", *self._columns], restval="").writerows(rows)
        self._file.flush()

    def purge(self, step: int) -> None:
        """Remove the rows after this step, and an incomplete one."""
        if self._path.exists():
            self.open()
            self._rewrite([row for row in self._rows() if _is_of(row, step)])

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _rows(self) -> list[dict[str, str]]:
        """Return the rows of the file."""
        if self._file is not None:
            self._file.flush()
        with self._path.open(newline="", encoding="utf-8") as file:
            return [row for row in csv.DictReader(file) if None not in row.values()]

    def _rewrite(self, rows: Sequence[Mapping[str, str]]) -> None:
        """Write the file again with these rows, and continue after them."""
        self.close()
        header = ["step", *self._columns]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        _write_lines(self._path, [header, *([row.get(name, "") for name in header] for row in rows)])
        self.open()


def _write_lines(path: Path, lines: Iterable[Iterable[str]]) -> None:
    """Write a file of comma-separated values, completely or not at all."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows(lines)
    write_whole(path, lambda file: file.write(text.getvalue().encode()))


def _is_of(row: Mapping[str, str], step: int) -> bool:
    """Return whether a row is of a step up to this one."""
    return row["step"].isdigit() and int(row["step"]) <= step
