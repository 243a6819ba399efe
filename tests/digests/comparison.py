"""Digests of this commit's runs and another's, each made by the commit's own script, and what differs."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tests.digests.outcome import Digest

ROOT = Path(__file__).parents[2]
NOT_THERE = "no such run"  # a run that a commit does not have
RENAMED: dict[str, str] = {}  # {former tag: tag now} of statistics

# One thread, and products whose bits do not depend on where in memory a matrix lies.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_CBWR": "AVX2,STRICT"}

Found = Mapping[str, Digest | str]  # {run: its digest, or why there is none}


def script(*arguments: str) -> list[str]:
    """Return a command that starts the script of the working directory."""
    return [sys.executable, "-m", "tests.digests", *arguments]


def environment_of(checkout: Path) -> dict[str, str]:
    """Return the variables of a process that makes the runs of a checkout."""
    paths = [str(checkout / "src"), os.environ.get("PYTHONPATH", "")]
    return os.environ | ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}


class Side:
    """A process in which the script of a checkout makes its own runs.

    Args:
        checkout: a folder with `src` and `tests`.
        names: of the runs; none is all that it has.
        seed: of every run.
    """

    def __init__(self, checkout: Path, names: Sequence[str], seed: int) -> None:
        self._source = checkout / "src"
        how: dict[str, Any] = {"cwd": checkout, "env": environment_of(checkout), "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(script("--here", "--seed", str(seed), *names), **how, text=True)

    def read(self) -> Iterator[tuple[str, Digest | str]]:
        """Yield each run's digest, or why there is none, as soon as it is there."""
        assert self._process.stdout is not None
        imported = json.loads(next(self._process.stdout, '""'))
        if imported and not Path(imported).is_relative_to(self._source):
            sys.exit(f"the runs with {self._source} imported {imported}")
        for line in self._process.stdout:
            name, received = json.loads(line)
            yield name, received if isinstance(received, str) else Digest(**received)
        if self._process.wait():
            sys.exit(f"the runs with {self._source} ended with exit status {self._process.returncode}")

    def end(self) -> None:
        """End the process, if it has not ended."""
        self._process.kill()
        self._process.wait()


@contextmanager
def checkout_of(commit: str) -> Iterator[Path]:
    """Check a commit out into a temporary git worktree."""
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder).resolve() / "trainkit"
        git = ["git", "-C", str(ROOT), "worktree"]
        if subprocess.run([*git, "add", "--quiet", "--detach", str(checkout), commit], check=False).returncode:
            sys.exit(f"commit {commit} could not be checked out")  # git has said why
        try:
            yield checkout
        finally:
            subprocess.run([*git, "remove", "--force", str(checkout)], check=True)


def on_both_sides(commit: str, names: Sequence[str], seed: int) -> Iterator[tuple[str, Digest | str, Digest | str]]:
    """Make the runs here and at a commit, at the same time; yield each run's name and what was found here and there."""
    with ExitStack() as ends:
        checkout = ends.enter_context(checkout_of(commit))
        sides = [Side(ROOT, names, seed), Side(checkout, names, seed)]
        for side in sides:
            ends.callback(side.end)
        pairs = list(zip_longest(*(side.read() for side in sides)))  # in turn: a pipe that is full stops its process
    here, there = (dict(one for one in column if one is not None) for column in zip(*pairs, strict=True))
    for name in here | there:
        yield name, here.get(name, NOT_THERE), there.get(name, NOT_THERE)


def differences(here: Digest | str, there: Digest | str, renamed: Mapping[str, str] = RENAMED) -> tuple[bool, str]:
    """Return whether a run differs, and a note that says in what.

    A run or a statistic that is new is no difference, and one that is gone is.
    """
    if isinstance(here, str) or isinstance(there, str):
        sides = {"here": here, "there": there}
        note = "".join(f"; {side}: {received}" for side, received in sides.items() if isinstance(received, str))
        return isinstance(here, str) or there != NOT_THERE, note
    mine = here.statistics
    theirs = {renamed.get(tag, tag): received for tag, received in there.statistics.items()}
    parts = [part for part in ("weights", "moments", "rows") if getattr(here, part) != getattr(there, part)]
    changed = [tag for tag in mine if tag in theirs and mine[tag] != theirs[tag]]
    gone, new = [tag for tag in theirs if tag not in mine], [tag for tag in mine if tag not in theirs]
    lists: dict[str, Any] = {"statistics": changed, "statistics gone": gone, "new statistics": new}
    notes = parts + [f"{what} {', '.join(tags)}" for what, tags in lists.items() if tags]
    return bool(parts or changed or gone), "".join(f"; {note}" for note in notes)
