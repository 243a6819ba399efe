"""CSV files: a table of a run's statistics, one row per report, and a table of its settings."""

import csv
import io
import json
import logging
import weakref
from collections.abc import Iterable, Mapping
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
    written again with another column. With `resume` it continues in `folder` itself, unless another process logs to it.
    """

    def __init__(self, folder: str | Path, *, resume: bool = False) -> None:
        self._claim = claim_folder(folder, resume=resume)
        self.folder: str | None = str(self._claim.folder)
        self._path = self._claim.folder / "numbers.csv"
        self._columns: list[str] = []
        self._open()

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write one row and flush it."""
        if not self._path.exists():
            _log.warning("%s was deleted: the log starts again there", self._path)
            self._rewrite([])
        if new := [tag for tag in numbers if tag not in self._columns]:
            rows = self._rows()
            self._columns += new
            self._rewrite(rows)
        self._writer.writerow({"step": step, **numbers})
        self._file.flush()

    def describe(self, settings: Mapping[str, Any]) -> None:
        """Write the settings, name and value; what is not a string is written as JSON."""

        def text(value: Any) -> str:
            return value if isinstance(value, str) else json.dumps(value, default=str)

        lines = [["setting", "value"], *([name, text(value)] for name, value in settings.items())]
        self._write_table(self._path.with_name("settings.csv"), lines)

    def purge(self, step: int) -> None:
        """Remove the rows after this step, and an incomplete one."""
        self._rewrite([row for row in self._rows() if _is_of(row, step)])

    def close(self) -> None:
        """Close the file, and release the folder for other processes."""
        self._file.close()
        self._claim.release()

    def _rows(self) -> list[dict[str, str]]:
        """Return the rows of the file."""
        self._file.flush()
        with self._path.open(newline="", encoding="utf-8") as file:
            return [row for row in csv.DictReader(file) if None not in row.values()]

    def _rewrite(self, rows: Iterable[Mapping[str, str]]) -> None:
        """Write the file again with these rows, and continue after them."""
        self._file.close()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        header = ["step", *self._columns]
        self._write_table(self._path, [header, *([row.get(name, "") for name in header] for row in rows)])
        self._open()

    def _open(self) -> None:
        """Open the file at its end; its first line names the columns."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            with self._path.open(newline="", encoding="utf-8") as file:
                self._columns = next(csv.reader(file), ["step"])[1:]
        self._file: IO[str] = self._path.open("a", newline="", encoding="utf-8")
        weakref.finalize(self, self._file.close)
        self._writer = csv.DictWriter(self._file, ["step", *self._columns], restval="")
        if self._file.tell() == 0:
            self._writer.writeheader()
            self._file.flush()

    @staticmethod
    def _write_table(path: Path, lines: Iterable[Iterable[str]]) -> None:
        """Write a file of comma-separated values, completely or not at all."""
        text = io.StringIO(newline="")
        csv.writer(text).writerows(lines)
        write_whole(path, lambda file: file.write(text.getvalue().encode()))


def _is_of(row: Mapping[str, str], step: int) -> bool:
    """Return whether a row is of a step up to this one."""
    return row["step"].isdigit() and int(row["step"]) <= step
