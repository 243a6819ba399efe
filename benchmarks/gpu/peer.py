"""Stable-Baselines3's updates and loop on the same device, measured in a process of its own."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu.record import MissingError, Setup
from benchmarks.gpu.workloads import MINIBATCHES, REPEAT, Workload

OWN_PYTHON = Path(".peers/sb3-contrib@2.9.2/bin/python")  # as for `make bench-peers`
LEARNERS = {
    "DQN, 256-256": "DQN",
    "DQN, Nature CNN": "DQN",
    "SAC, 256-256": "SAC",
    "PPO, 64-64": "PPO",
    "PPO, Nature CNN": "PPO",
}


def measured(setup: Setup, workload: Workload, n_rows: int) -> list[float]:
    """Return the rates of its updates.

    Raises:
        MissingError: it is not installed, or does not run on this device.
    """
    work = {
        "learner": LEARNERS[workload.name],
        "hidden": workload.options.get("hidden"),
        "obs": [workload.obs.shape, str(workload.obs.dtype)],
        "n_rows": n_rows,
        "minibatches": MINIBATCHES,
        "repeat": REPEAT,
    }
    return run(setup, work)


def run(setup: Setup, work: dict[str, Any]) -> list[float]:
    """Return the rates of what `peer_sb3` measures; raises as `measured`."""
    if setup.device.split(":")[0] not in ("cpu", "cuda"):
        raise MissingError(f"Stable-Baselines3 runs on the CPU and CUDA, not on {setup.device}")
    python = str(OWN_PYTHON) if OWN_PYTHON.exists() else sys.executable
    if python == sys.executable and find_spec("stable_baselines3") is None:
        raise MissingError("Stable-Baselines3 is not installed")
    where = {"device": setup.device, "is_rehearsal": setup.is_rehearsal}
    command = [python, "-m", "benchmarks.gpu.peer_sb3", json.dumps(work | where)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if ran.returncode:
        raise RuntimeError(f"Stable-Baselines3 failed: {ran.stderr.strip().splitlines()[-1:]}")
    rates: list[float] = json.loads(ran.stdout.splitlines()[-1])
    return rates
