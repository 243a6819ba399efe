"""A disk that is full for some files."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trainkit as tk
from tests.trainer.toys import make_trainer
from trainkit.core import files


def fill_disk(monkeypatch: pytest.MonkeyPatch, is_full: Callable[[Path], bool]) -> None:
    """Let the disk be full for files of these paths."""
    whole = files.write_whole

    def write_whole(path: Path, write: Any, **more: Any) -> None:
        if is_full(path):
            raise OSError(28, "No space left on device")
        whole(path, write, **more)

    monkeypatch.setattr(files, "write_whole", write_whole)


def check_that_a_best_may_fail(
    evaluation: tk.Evaluation, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Fill the disk for what is best, and check that the run continues."""
    fill_disk(monkeypatch, lambda path: path.parent.name == "best" and not trainer.is_finished)
    with make_trainer(test=True, evaluation=evaluation, max_epoch=3, checkpoint=folder) as trainer:
        trainer.run()
    assert trainer.epoch == 3
    assert re.search(r"best: .*No space left on device; a former one is whole; the run continues", caplog.text)
