"""Ranks that differ or end: the project's error on every side, and no one waits for ever."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from trainkit.core.worker_process import ONE_THREAD

SCRIPT = Path(__file__).parent / "ranks_script.py"
LIMIT_S = 20.0


def run_ranks(folder: Path, case: str) -> list[str]:
    """Run two ranks without torchrun's agent, which would end the survivor; return the error of each, "" if killed."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "test"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(folder), case],
            env=os.environ | ONE_THREAD | group | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            rank.wait(timeout=60)  # imports included
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    found = []
    for rank in range(2):
        file = folder / f"rank{rank}"
        seconds, _, error = file.read_text().partition("\n") if file.exists() else ("0", "", "")
        assert float(seconds) < LIMIT_S
        found.append(error)
    return found


DIFFERENT = [
    ("max_epoch", "max_epoch is 3 on rank 0, 5 on rank 1"),
    ("step_per_epoch", "step_per_epoch is 64 on rank 0, 96 on rank 1"),
    ("hidden", "the shape of network"),
    ("env", "env is 'CartPole-v1' on rank 0, 'Acrobot-v1' on rank 1"),
    ("preset", "trainer is 'OffpolicyTrainer' on rank 0, 'OnpolicyTrainer' on rank 1"),
]


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(("case", "message"), DIFFERENT)
def test_ranks_with_different_settings_all_raise_before_they_train(case: str, message: str, tmp_path: Path) -> None:
    for error in run_ranks(tmp_path, case):
        assert error.startswith("ConfigError: ")
        assert message in error
        assert "start all ranks with the same settings" in error


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("case", ["killed", "raises"])
def test_a_rank_that_ends_is_named_by_the_other(case: str, tmp_path: Path) -> None:
    survivor, other = run_ranks(tmp_path, case)
    assert survivor.startswith("RankError: rank 0 of 2 cannot continue, since rank 1 ended")
    assert "--log-dir" in survivor
    assert other == ("" if case == "killed" else "RuntimeError: the cluster took this rank")
