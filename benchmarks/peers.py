"""Measure peers and trainkit on the same work, in turn on one core, and write a table of medians and ratios.

    python -m benchmarks.peers [--runs 5] [--out benchmarks/results/peers.md]

Peers live in environments of their own, which `make bench-peers` builds.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import work

PEERS = {"tianshou": (".peers/tianshou@1.2.0/bin/python", "benchmarks/side_tianshou.py")}


def run(command: Sequence[str], core: int, wanted: Mapping[str, int] = work.DONE) -> dict[str, Any]:
    """Run one side on one core and return what it printed, after checking that it did the work that was wanted."""
    pinned = ["taskset", "-c", str(core), *command] if shutil.which("taskset") else list(command)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    ran = subprocess.run(pinned, capture_output=True, text=True, env=environment)
    if ran.returncode:
        raise SystemExit(f"{command} failed:\n{ran.stderr}")
    result: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    if result["done"] != wanted:
        raise SystemExit(f"{command} did {result['done']}, the work is {wanted}")
    return result


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/peers.md"))
    options = parser.parse_args()
    ours = [sys.executable, "-m", "benchmarks.side_trainkit"]
    lines = [
        "# Beside peers",
        "",
        f"`python -m benchmarks.peers --runs {options.runs}` on {platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}; one thread, pinned to one core, sides in turn, medians (ratios: median of "
        "pairs).",
        f"CartPole-v1, {work.N_ENVS} environments (trainkit: gymnasium's SyncVectorEnv; Tianshou: its bare "
        f"DummyVectorEnv), MLP {work.HIDDEN}, batch {work.BATCH}, double, {work.N_STEP}-step, mse; the loop makes one "
        f"update per {work.N_ENVS} steps. Denormals are not flushed, nothing is compiled. `updates/s` counts drawing "
        "the batch, its returns and, where prioritised, writing priorities back.",
        "",
        "| replay | work | peer | peer's | trainkit's | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for name, (python, script) in PEERS.items():
        if not Path(python).exists():
            raise SystemExit(f"{python} is not there: make bench-peers builds it")
        for flags in ([], ["--prioritized"]):
            core = options.core
            pairs = [(run([python, script, *flags], core), run([*ours, *flags], core)) for _ in range(options.runs)]
            for rate in pairs[0][0]["rates"]:
                theirs, own = ([side["rates"][rate] for side in column] for column in zip(*pairs, strict=True))
                ratio = statistics.median(b / a for a, b in zip(theirs, own, strict=True))
                replay = "prioritised" if flags else "uniform"
                lines.append(
                    f"| {replay} | {rate} | {name} {pairs[0][0]['version']} | {statistics.median(theirs):,.0f} | "
                    f"{statistics.median(own):,.0f} | {ratio:.2f} |"
                )
                print(lines[-1], flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
