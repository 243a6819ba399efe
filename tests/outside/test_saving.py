"""Checkpoints where the disk is full, and those that are damaged."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import trainkit as tk
from tests.helpers.manifests import rewrite

SCRIPT = """
import resource, signal, sys
import numpy as np, torch
from trainkit.core.checkpoint import load_checkpoint, save_checkpoint
from trainkit.errors import CheckpointError

folder = sys.argv[1]
big = torch.zeros(100_000) if sys.argv[2] == "tensors" else np.zeros(100_000)
save_checkpoint(folder, {"policy": {"w": torch.zeros(10)}}, {})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a limit of files' size stands for a full disk
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
try:
    save_checkpoint(folder, {"policy": {"w": big}}, {})
except CheckpointError as error:
    print(error)
print(len(load_checkpoint(folder)["policy"]["w"]))
"""


@pytest.mark.parametrize("kind", ["tensors", "arrays"])
def test_a_full_disk_is_named_with_file_and_bytes_and_leaves_the_former_checkpoint(kind: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), kind], capture_output=True, text=True, check=False
    )
    error, length = ran.stdout.splitlines()
    n_bytes = "400,000" if kind == "tensors" else "800,000"
    assert f"no checkpoint could be written to {tmp_path}: policy-2" in error, ran.stderr
    assert f"of {n_bytes} bytes, where " in error
    assert "are free: [Errno 27] File too large; a former one is whole" in error
    assert length == "10"


@pytest.mark.parametrize("damaged", [[], 5, {"main": 7}, {"main": ["class", "DQNPolicy"]}])
def test_a_damaged_entry_of_several_policies_is_a_checkpoint_error(damaged: Any, tmp_path: Path) -> None:
    envs = tk.make_envs("CartPole-v1", 2)
    policy = tk.DQNPolicy.for_envs(envs, hidden=(4,), seed=1)
    policy.save(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    rewrite(tmp_path, components={"policy/main": manifest["components"]["policy"]}, policies=damaged)
    with pytest.raises(tk.errors.CheckpointError, match=r"policy.s config|how its policy was made"):
        tk.load_policy(tmp_path, name="main")
