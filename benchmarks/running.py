"""How a side is run in a process of its own: pinned to cores, and held to the work."""

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def printed(command: Sequence[str], cores: int | Sequence[int]) -> dict[str, Any]:
    """Run a command with a thread for each core it is pinned to, and return the line of JSON that it ends with."""
    cores = [cores] if isinstance(cores, int) else cores
    if not Path(command[0]).exists():
        raise SystemExit(f"{command[0]} is not there: `make help` lists the verbs that build what stands under .peers")
    pinned = ["taskset", "-c", ",".join(map(str, cores)), *command] if shutil.which("taskset") else list(command)
    environment = {**os.environ, "OMP_NUM_THREADS": str(len(cores)), "OPENBLAS_NUM_THREADS": str(len(cores))}
    ran = subprocess.run(pinned, capture_output=True, text=True, env=environment)
    if ran.returncode:
        raise SystemExit(f"{command} failed:\n{ran.stderr}")
    result: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return result


def run(
    command: Sequence[str],
    cores: int | Sequence[int],
    wanted: Mapping[str, Any],
    may_miss: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Run one side and return what it printed, after checking that it did the work.

    Args:
        command: of the side.
        cores: it is pinned to these.
        wanted: what it must have done.
        may_miss: counts that need not be met exactly, and by how much they may be missed.
    """
    result = printed(command, cores)
    done = dict(result["done"])
    for name, most in (may_miss or {}).items():
        if name in done and abs(done[name] - wanted[name]) <= most:
            done[name] = wanted[name]
    if done != wanted:
        raise SystemExit(f"{command} did {result['done']}, the work is {dict(wanted)}")
    return result


def machine() -> str:
    """Say what ran it: the kind of processor, cores, Python."""
    kind = platform.processor() or platform.machine()
    return f"{kind}, {os.cpu_count()} cores, Python {platform.python_version()}"
