"""A table of numbers with a column for every tag, whenever it appeared."""

import csv
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np

import trainkit as tk
from tests.trainer.toys import make_trainer


def table(folder: Path, name: str = "numbers.csv") -> list[list[str]]:
    with (folder / name).open(newline="") as file:
        return list(csv.reader(file))


def test_a_row_per_report_and_a_column_per_tag(tmp_path: Path) -> None:
    logger = tk.loggers.CsvLogger(tmp_path)
    logger.describe({"lr": 0.001, "env": "a, b", "hidden": [8, 8], "none": None})
    logger.write(8, {"a/x": 1.5})
    logger.write(16, {"b": np.float64(0.1), "a/x": math.nan})
    logger.write(24, {"b": 2.0})
    assert table(tmp_path) == [
        ["step", "a/x", "b"], ["8", "1.5", ""], ["16", "nan", "0.1"], ["24", "", "2.0"],
    ]  # fmt: skip
    expected = [["setting", "value"], ["lr", "0.001"], ["env", "a, b"], ["hidden", "[8, 8]"], ["none", "null"]]
    assert table(tmp_path, "settings.csv") == expected
    logger.close()


def test_another_run_gets_a_folder_of_its_own_and_a_resumed_one_continues(tmp_path: Path, caplog: Any) -> None:
    first = tk.loggers.CsvLogger(tmp_path / "run")
    first.write(8, {"a": 1.0})
    first.write(16, {"a": 2.0})
    with caplog.at_level(logging.ERROR):
        other = tk.loggers.CsvLogger(tmp_path / "run")
    assert other.folder == str(tmp_path / "run_2")
    first.close()
    with (tmp_path / "run" / "numbers.csv").open("a") as file:
        file.write("24,")  # killed while it was writing
    again = tk.loggers.CsvLogger(tmp_path / "run", resume=True)
    again.purge(8)
    again.write(12, {"b": 3.0})
    assert table(tmp_path / "run") == [["step", "a", "b"], ["8", "1.0", ""], ["12", "", "3.0"]]


def test_a_file_that_is_deleted_starts_again(tmp_path: Path, caplog: Any) -> None:
    logger = tk.loggers.CsvLogger(tmp_path)
    logger.write(8, {"a": 1.0})
    (tmp_path / "numbers.csv").unlink()
    logger.write(16, {"a": 2.0})
    assert table(tmp_path) == [["step", "a"], ["16", "2.0"]]
    assert "numbers.csv was deleted: the log starts again there" in caplog.text


def test_it_has_the_numbers_of_every_other_logger(tmp_path: Path) -> None:
    loggers = [tk.loggers.CsvLogger(tmp_path / "csv"), tk.JsonlLogger(tmp_path / "lines")]
    make_trainer(logger=loggers, max_epoch=3).run()
    rows = tk.loggers.RunFolder.read(tmp_path / "lines").rows
    header, *cells = table(tmp_path / "csv")
    read = [
        {tag: float(cell) for tag, cell in zip(header, row, strict=True) if cell and math.isfinite(float(cell))}
        for row in cells
    ]
    assert read == rows
    assert len(rows) > 2
