"""Ten minutes of training while processes of environments are killed: nothing grows."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_ten_minutes_with_a_kill_every_twenty_seconds_leave_nothing_behind() -> None:
    """Warm is who has gone once round every ring, the longest of which keeps the actions of 65,536 vector steps.

    What is in use does not grow, 0.01 MB/h by malloc's own count. What is resident does for a while, ever more slowly:
    Python's pools, and its lists of free tuples, up to 2,000 of each length.
    """
    how = {"seconds": 600, "kill_every": 20, "warm_up": 900, "warm_up_steps": 4 * 65_536}
    command = [sys.executable, "-m", "tests.faults.soak", json.dumps(how)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    seen = json.loads(ran.stdout.splitlines()[-1])
    assert seen["n_killed"] >= 74
    assert seen["n_restarts"] == seen["n_faulty"] == seen["n_killed"]
    assert len(seen["descriptors"]) == len(seen["processes"]) == 1
    assert seen["megabytes_per_hour"] < 1
