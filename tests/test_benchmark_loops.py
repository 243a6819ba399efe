"""Whole loops next to another commit: what is measured, and what is said of it."""

import os
import sys
from pathlib import Path

import pytest

from benchmarks.measuring import Live
from benchmarks.speed import loops, loops_work
from benchmarks.speed.loops_side import LOOPS

CORE = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0  # one that we may be pinned to
SIDE = """
import json, sys
for line in sys.stdin:
    print(json.dumps({"seconds": float(sys.argv[1]), "done": {"steps": int(sys.argv[2])}}), flush=True)
"""


def side(seconds: float, steps: int) -> Live:
    return Live([sys.executable, "-c", SIDE, str(seconds), str(steps)], CORE)


def test_the_ratio_is_above_one_where_this_tree_is_faster() -> None:
    with side(1.0, 10) as ours, side(2.0, 10) as theirs:
        assert loops.measure("DQN", ours, theirs, 3) == [2.0, 2.0, 2.0]


def test_other_work_stops_the_measurement() -> None:
    with side(1.0, 10) as ours, side(1.0, 11) as theirs, pytest.raises(SystemExit, match="this tree did"):
        loops.measure("DQN", ours, theirs, 1)


def test_the_interval_resamples_starts() -> None:
    assert loops.interval([[1.0, 1.0], [1.0, 1.0]]) == (1.0, 1.0, 1.0)
    median, low, high = loops.interval([[0.8, 0.8], [1.0, 1.0], [1.2, 1.2]])
    assert (median, low, high) == (1.0, 0.8, 1.2)


def test_the_page_has_a_row_per_loop_and_a_median_of_the_training_loops() -> None:
    page = loops.report({"DQN": [[1.1]], "PPO": [[0.9]], "collecting, 1": [[5.0]]}, "abc1234")
    assert "| DQN | 1.100 | 1.100 to 1.100 | 1 x 1 |" in page
    assert "Median over the training loops: 1.000." in page


def test_another_commit_runs_its_own_workloads_by_its_own_package(tmp_path: Path) -> None:
    (tmp_path / "src" / "trainkit").mkdir(parents=True)
    (tmp_path / "src" / "trainkit" / "__init__.py").write_text("STEPS = 7\n")
    (tmp_path / "benchmarks").mkdir()
    script = SIDE.replace("import json, sys", "import json, sys, trainkit").replace("float(sys.argv[1])", "1.0")
    (tmp_path / "benchmarks" / "loops_side.py").write_text(script.replace("int(sys.argv[2])", "trainkit.STEPS"))
    with loops.side(tmp_path, CORE) as live:
        assert live.query("DQN") == {"seconds": 1.0, "done": {"steps": 7}}


def test_the_workloads_kept_for_the_commit_without_any_are_ours() -> None:
    assert loops_work.SHARED.keys() < LOOPS.keys()
    names = ["DQN", "prioritized", "PPO", *(f"collecting, {n}" for n in (1, 4, 32, 64))]
    assert set(names) <= loops_work.SHARED.keys()


@pytest.mark.parametrize("name", ["DQN", "MAPPO", "collecting, 64"])
def test_blocks_continue_one_another(name: str) -> None:
    command = [sys.executable, "-m", "benchmarks.speed.loops_side"]
    with Live(command, CORE) as live:
        first, second = (live.query(name) for _ in range(2))
    assert second["done"]["steps"] > first["done"]["steps"]
    assert Path(first["at"]).name == "__init__.py"
