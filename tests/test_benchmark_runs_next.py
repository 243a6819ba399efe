"""The queue of runs, on a small repository of its own."""

import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from benchmarks import measuring, runs_next
from benchmarks.runs_next import Row, Run, due, planned

HEADING = "# The plan\n\n| result | measures | command | commits | core hours | state |\n|---|---|---|---|---|---|\n"
COMMAND = "python -m benchmarks.counting"
COUNTING = """
import pathlib, sys, time

kept = pathlib.Path({kept!r})
for n in range(int(kept.read_text()) if kept.exists() else 0, {n}):
    kept.write_text(str(n + 1))
    time.sleep(0.05)
pathlib.Path("benchmarks/results/page.md").write_text(f"counted to {n} by version {version}\\n")
sys.exit({status})
"""


def git(tree: Path, *words: str) -> str:
    name = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    return subprocess.run(["git", *name, "-C", tree, *words], capture_output=True, text=True, check=True).stdout


class Repository:
    """A tree with a plan of one row, whose command counts, slowly, and then writes a page."""

    def __init__(self, folder: Path) -> None:
        self.tree, self.work, self.kept = folder / "tree", folder / "work", folder / "kept"
        (self.tree / "benchmarks" / "results").mkdir(parents=True)
        (self.tree / "src").mkdir()
        (self.tree / "benchmarks" / "__init__.py").touch()
        row = Row(result="[page.md](page.md)", measures="learning", command=COMMAND, commits="-", hours="-", state="x")
        (self.tree / runs_next.PLAN).write_text(f"{HEADING}{row.line()}\n")
        git(folder, "init", "-q", "tree")
        self.write(version=1)

    def write(self, *, version: int, n: int = 3, status: int = 0) -> str:
        """Commit a version of the command, and return the commit."""
        (self.tree / "src" / "version").write_text(str(version))
        text = COUNTING.format(kept=str(self.kept), n=n, version=version, status=status)
        (self.tree / "benchmarks" / "counting.py").write_text(text)
        git(self.tree, "add", "--all")
        git(self.tree, "commit", "-q", "-m", f"version {version}")
        return git(self.tree, "log", "-1", "--format=%h", "--abbrev=7").strip()

    def run(self) -> Run:
        (row,) = planned(self.tree)
        return Run(row, self.work, self.tree, core=min(CORES))

    def count(self) -> int:
        return int(self.kept.read_text() or 0) if self.kept.exists() else 0


CORES = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {0}  # that we may be pinned to


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.setattr(runs_next, "is_measuring", lambda: False)
    monkeypatch.setattr(runs_next, "POLL_SECONDS", 0.02)
    return Repository(tmp_path)


def wait_for(repository: Repository, count: int) -> None:
    ends = time.monotonic() + 30
    while repository.count() < count:
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_a_finished_run_writes_its_page_and_its_row(repository: Repository) -> None:
    commit = repository.write(version=2)
    assert repository.run().make()
    assert (repository.tree / "benchmarks/results/page.md").read_text() == "counted to 3 by version 2\n"
    (row,) = planned(repository.tree)
    assert (row.state, row.commits, row.hours) == ("done", f"`{commit}`", "0.0")
    assert list(due([row])) == []
    assert list(repository.work.iterdir()) == []


def test_a_run_starts_from_the_results_of_former_rows_that_are_not_committed(repository: Repository) -> None:
    page = repository.tree / "benchmarks/results/page.md"
    page.write_text("counted to 1\n")
    commit = repository.write(version=2)
    page.write_text("counted to 2\n")
    run = repository.run()
    assert run.make()
    assert page.read_text() == "counted to 3 by version 2\n"
    assert planned(repository.tree)[0].commits == f"`{commit}`"


def test_a_failed_run_leaves_tree_and_row_as_they_were(repository: Repository) -> None:
    repository.write(version=2, status=3)
    assert not repository.run().make()
    assert git(repository.tree, "status", "--porcelain") == ""
    (row,) = planned(repository.tree)
    assert row.state == "x"
    assert list(due([row], failed=[row.result])) == []


def test_a_stopped_run_resumes_at_its_own_commit(repository: Repository) -> None:
    first = repository.write(version=2, n=200)
    run = repository.run()
    made: list[bool] = []
    thread = threading.Thread(target=lambda: made.append(run.make()))
    thread.start()
    wait_for(repository, 3)
    run.stop()
    thread.join(timeout=30)
    assert made == [False]
    reached, spent = repository.count(), run.seconds
    assert 3 <= reached < 200
    assert spent > 0
    repository.write(version=3, n=0)
    repository.kept.write_text("199")
    assert repository.run().make()
    assert (repository.tree / "benchmarks/results/page.md").read_text() == "counted to 200 by version 2\n"
    assert planned(repository.tree)[0].commits == f"`{first}`"


def test_a_run_resumes_at_its_own_commit_in_a_new_clone(repository: Repository, tmp_path: Path) -> None:
    repository.write(version=2, n=200)
    run = repository.run()
    thread = threading.Thread(target=run.make)
    thread.start()
    wait_for(repository, 3)
    run.stop()
    thread.join(timeout=30)
    repository.write(version=3, n=0)
    repository.kept.write_text("199")
    git(tmp_path, "clone", "-q", "tree", "clone")
    (row,) = planned(tmp_path / "clone")
    assert Run(row, repository.work, tmp_path / "clone", core=min(CORES)).make()
    assert (tmp_path / "clone/benchmarks/results/page.md").read_text() == "counted to 200 by version 2\n"


def test_a_run_is_paused_while_time_is_measured(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lock = tmp_path / "lock"
    monkeypatch.setattr(runs_next, "is_measuring", lambda: measuring.is_measuring(lock))
    monkeypatch.setattr(measuring, "POLL_SECONDS", 0.1)
    repository.write(version=2, n=1_000)
    run = repository.run()
    thread = threading.Thread(target=run.make)
    thread.start()
    wait_for(repository, 3)
    with measuring.quiet_machine(lock):
        before = repository.count()
        time.sleep(0.4)
        assert repository.count() == before
    wait_for(repository, before + 2)
    run.stop()
    thread.join(timeout=30)
    assert not thread.is_alive()


def test_only_one_measurement_is_made_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "POLL_SECONDS", 0.0)
    lock, order = tmp_path / "lock", []

    def measure() -> None:
        with measuring.quiet_machine(lock):
            order.append("second")

    with measuring.quiet_machine(lock):
        thread = threading.Thread(target=measure)
        thread.start()
        time.sleep(0.2)
        order.append("first")
    thread.join(timeout=10)
    assert order == ["first", "second"]


def test_rows_of_time_and_of_devices_are_not_made() -> None:
    def row(measures: str, state: str) -> Row:
        return Row(
            result=f"{measures} {state}", measures=measures, command=COMMAND, commits="-", hours="-", state=state
        )

    rows = [row("time", "not run"), row("device", "not run"), row("learning", "done"), row("learning", "outdated: x")]
    assert list(due(rows)) == rows[-1:]
