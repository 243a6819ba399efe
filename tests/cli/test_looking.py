"""What is told of runs that went on, stopped early, were made twice or are no runs: `inspect`, `compare` and `plot`."""

from pathlib import Path

import pytest

import trainkit as tk
from tests.test_runs import make_run
from trainkit.cli import main


def test_inspect_shows_the_settings_that_a_run_went_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path, {"step": 1, "update/loss": 0.5})
    logger = tk.JsonlLogger(tmp_path, resume=True)
    logger.describe({"policy": "DQNPolicy", "max_epoch": 7})
    logger.close()
    with (tmp_path / "numbers.jsonl").open("a") as file:
        file.write('{"settings": {"max_ep')  # killed while it was writing
    assert main(["inspect", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "settings\n  policy     DQNPolicy\n  max_epoch  7\n" in told
