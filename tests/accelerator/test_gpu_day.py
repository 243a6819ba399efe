"""The day on a GPU is rehearsed on the pretend device: killed, continued, and every piece has its section."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.gpu.__main__ import PIECES, PUBLISHED
from benchmarks.gpu.page import PAGE
from benchmarks.gpu.record import ROWS, Record
from tests.helpers.pages import ROOT
from tests.pretend import PretendDevice

pytestmark = [pytest.mark.accelerator, pytest.mark.timeout(900)]


def test_every_piece_runs_and_continues_after_a_kill(pretend: PretendDevice, tmp_path: Path) -> None:
    published = {path: path.read_bytes() for path in (ROOT / PUBLISHED).iterdir()}
    command = [sys.executable, "-m", "benchmarks.gpu", "--rehearse", "--limit-s", "800"]
    command += ["--out", str(tmp_path), "--work", str(tmp_path / "work")]

    first = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    while len(Record(tmp_path / ROWS).rows("updates")) < 2:
        assert first.poll() is None, "it ended before it could be killed"
        time.sleep(0.1)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    done = [row["unit"] for row in Record(tmp_path / ROWS).rows("updates")]
    second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)

    assert "Nothing is left." in second.stdout
    assert not [unit for unit in done if f"updates: {unit}\n" in second.stdout], "done units are not measured again"
    lines = [json.loads(line) for line in (tmp_path / ROWS).read_text().splitlines()]
    assert [line["error"] for line in lines if line["state"] == "failed"] == []
    missing = {line["unit"].split(": ")[-1] for line in lines if line["state"] == "missing"}
    assert missing <= {"Stable-Baselines3", "DQN of Stable-Baselines3", "graph"}
    text = (tmp_path / PAGE).read_text()
    assert "This is a rehearsal" in text
    for piece in PIECES:
        assert f"## {piece.title}" in text
        rows = Record(tmp_path / ROWS).rows(piece.name)
        assert all(rate > 0 for row in rows for rate in row.get("rates", [row.get("rate", 1.0)]))
    assert {path: path.read_bytes() for path in (ROOT / PUBLISHED).iterdir()} == published
