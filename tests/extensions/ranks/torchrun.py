"""Runs of the script of ranks under torchrun."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from trainkit.core.worker_process import ONE_THREAD

SCRIPT = Path(__file__).parent / "ranks_script.py"
PORTS = iter(range(29_600, 29_700))


def run_ranks(job: str, folder: Path, *arguments: str, n: int = 2) -> tuple[list[dict[str, Any]], str]:
    """Run the script under torchrun; return what each rank wrote, and the output."""
    out = folder / f"out-{len(list(folder.iterdir()))}"
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={n}", f"--master-port={next(PORTS)}"]
    done = subprocess.run(
        [*torchrun, str(SCRIPT), job, str(out), *arguments],
        env=os.environ | ONE_THREAD, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"{out.name}.*"))], done.stdout + done.stderr
