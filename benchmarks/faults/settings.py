"""Put the same faults before trainkit, Stable-Baselines3 and Tianshou, and write what each of them says.

    python -m benchmarks.faults.settings

Peers live in environments of their own, which `make faults-peers` builds.
"""

import json
import os
import subprocess
import sys
from typing import Any

from benchmarks import pages
from benchmarks.faults.settings_work import FAULTS, SPOILT_AT, STEPS

SIDES = {
    "trainkit": sys.executable,
    "sb3": ".peers/sb3-contrib@2.9.2/bin/python",
    "tianshou": ".peers/tianshou@1.2.0/bin/python",
}
TITLES = {"trainkit": "trainkit", "sb3": "Stable-Baselines3 2.9.2", "tianshou": "Tianshou 1.2.0"}


def meet(side: str, fault: str) -> dict[str, Any]:
    """Let a side meet a fault in a process of its own."""
    command = [SIDES[side], "-m", "benchmarks.faults.settings_side", side, fault]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
    if done.returncode:
        return {"told": f"the process ended with {done.returncode}", "finite": True}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def cell(result: dict[str, Any]) -> str:
    """Tell a result in a table's cell."""
    told = result["told"]
    weights = "" if result["finite"] else "**weights not finite** "
    if told is None:
        return f"{weights}nothing is said"
    first = told.splitlines()[0].replace("|", "/")
    return f"{weights}`{first[:110] + '...' * (len(first) > 110)}`"


def main() -> None:
    """Run all sides on all faults, and write the table."""
    pages.arguments(__doc__).parse_args()
    rows = []
    for fault, title in FAULTS.items():
        rows.append([title, *(cell(meet(side, fault)) for side in SIDES)])
        print(*rows[-1], sep=" | ", flush=True)
    pages.write(
        "faults",
        [
            *pages.heading("The same faults in three libraries", "make faults-peers"),
            f"DQN on CartPole-v1, {STEPS} steps, one environment that spoils its step {SPOILT_AT}, or one setting that "
            "cannot work. A cell has the first line of the exception; weights are looked at in the end.",
            "",
            *pages.table(["fault", *TITLES.values()], rows),
        ],
    )


if __name__ == "__main__":
    main()
