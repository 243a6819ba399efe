"""Reports to Ray Tune: what it receives, what a trial continues from, and population based training."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import trainkit as tk
from tests.trainer.toys import everything, make_trainer

SCRIPT = Path(__file__).parent / "tune_script.py"


class FakeCheckpoint:
    """A checkpoint of Tune: a folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    @classmethod
    def from_directory(cls, folder: str) -> "FakeCheckpoint":
        return cls(folder)

    def to_directory(self, folder: str) -> str:
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        return folder


class FakeTune(ModuleType):
    """The functions of Tune that the callback calls; keeps what is reported."""

    Checkpoint = FakeCheckpoint

    def __init__(self, kept: Path) -> None:
        super().__init__("ray.tune")
        self.reports: list[dict[str, Any]] = []
        self.saved: list[Path | None] = []
        self.given: FakeCheckpoint | None = None
        self._kept = kept

    def get_checkpoint(self) -> FakeCheckpoint | None:
        return self.given

    def report(self, numbers: dict[str, Any], *, checkpoint: FakeCheckpoint | None) -> None:
        self.reports.append(numbers)
        to = self._kept / str(len(self.reports))
        if checkpoint is not None:
            checkpoint.to_directory(str(to))
        self.saved.append(None if checkpoint is None else to)


@pytest.fixture
def tune(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeTune:
    fake = FakeTune(tmp_path / "tune")
    monkeypatch.setitem(sys.modules, "ray.tune", fake)
    return fake


def test_every_epoch_is_reported_and_a_trial_continues_with_the_same_bits(tune: FakeTune) -> None:
    report = tk.callbacks.TuneReport(checkpoint_every=2)
    assert report.resume_from is None
    trainer = make_trainer(test=True, max_epoch=3, callbacks=[report])
    trainer.run()
    assert [numbers["epoch"] for numbers in tune.reports] == [1, 2, 3]
    assert [numbers["test/returns/mean"] for numbers in tune.reports] == [
        row["test/returns/mean"] for row in trainer.history
    ]
    assert [saved is not None for saved in tune.saved] == [False, True, True]
    tune.given = FakeCheckpoint(str(tune.saved[1]))
    again = tk.callbacks.TuneReport()
    clone = make_trainer(test=True, max_epoch=3, callbacks=[again], resume_from=again.resume_from)
    assert clone.epoch == 2
    assert again.resume_from is not None
    assert not again.resume_from.exists(), "the copy is removed"
    clone.run()
    assert everything(clone) == everything(trainer)


def test_it_is_made_in_a_trial_alone(tune: FakeTune, monkeypatch: pytest.MonkeyPatch) -> None:
    def outside() -> None:
        raise RuntimeError("no session")

    monkeypatch.setattr(tune, "get_checkpoint", outside)
    with pytest.raises(tk.ConfigError, match="must be made in the function that Ray Tune calls for a trial"):
        tk.callbacks.TuneReport()
    with pytest.raises(tk.ConfigError, match=r"TuneReport\.checkpoint_every must be"):
        tk.callbacks.TuneReport(checkpoint_every=0)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_population_based_training_clones_exactly_and_survives_its_driver(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    environment = os.environ | {"RAY_worker_niceness": "0", "TUNE_DIR": str(tmp_path)}
    driver = subprocess.Popen([sys.executable, str(SCRIPT)], env=environment, start_new_session=True)
    deadline = time.monotonic() + 400
    while len(lines(tmp_path, "saved")) < 8:
        assert time.monotonic() < deadline
        assert driver.poll() is None
        time.sleep(0.5)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    subprocess.run([sys.executable, str(SCRIPT)], env=environment, check=True, timeout=450)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["n_trials"] == 4
    assert result["epochs"] == [8] * 4
    saved, loaded = lines(tmp_path, "saved"), lines(tmp_path, "loaded")
    digests = {(line["trial"], line["epoch"]): line["digest"] for line in saved}
    assert all(line["digest"] in digests.values() for line in loaded), "a clone equals its source"
    of_others = [one for one in loaded if digests.get((one["trial"], one["epoch"])) != one["digest"]]
    assert len(of_others) >= 3, "exploits"


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return what trials noted."""
    found = [json.loads(line) for path in folder.glob(f"{name}-*.jsonl") for line in path.read_text().splitlines()]
    return found
