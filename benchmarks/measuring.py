"""How measurements are made: sides in processes pinned to cores, while nothing else is timed on the machine."""

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from benchmarks.pages import ROOT

LOCK = Path(tempfile.gettempdir()) / "trainkit-measures-time.lock"
POLL_SECONDS = 0.5  # between two looks of the queue


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Check out a commit into a temporary folder."""
    git = ["git", "-C", str(ROOT), "worktree"]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def printed(command: Sequence[str], cores: int | Sequence[int]) -> dict[str, Any]:
    """Run a command with a thread for each core it is pinned to, and return the line of JSON that it ends with."""
    pinned, environment = _pinned(command, cores)
    ran = subprocess.run(pinned, capture_output=True, text=True, env=environment)
    if ran.returncode:
        raise SystemExit(f"{command} failed:\n{ran.stderr}")
    result: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return result


def run(command: Sequence[str], cores: int | Sequence[int], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Run one side to its end, pinned to cores, and return what it printed, which must say that it did the work."""
    result = printed(command, cores)
    check(command, result, wanted)
    return result


class Live:
    """A side that stays, and does a block of work whenever it is asked: others have their turns in between.

    Args:
        command: of the side, which reads a word per block and answers with a line of JSON.
        cores: it is pinned to these, with a thread for each.
    """

    def __init__(self, command: Sequence[str], cores: int | Sequence[int]) -> None:
        self._command = command
        pinned, environment = _pinned(command, cores)
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed on leaving
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors}
        self._process = subprocess.Popen(pinned, text=True, env=environment, **pipes)

    def ask(self, word: str, wanted: Mapping[str, Any], may_miss: Mapping[str, int] | None = None) -> dict[str, Any]:
        """Have a block of work done and return what was answered; see `check`."""
        answer = self.query(word)
        check(self._command, answer, wanted, may_miss)
        return answer

    def query(self, word: str) -> dict[str, Any]:
        """Send a word and return the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # of one that has ended the answer is missing, too
            print(word, file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith('{"'):  # libraries print what they like
                answer: dict[str, Any] = json.loads(line)
                return answer
        code = self._process.wait()
        self._errors.seek(0)
        raise SystemExit(f"{self._command} failed, exit code {code}:\n{self._errors.read()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()  # nothing more is asked
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()


def check(
    command: Sequence[str],
    result: Mapping[str, Any],
    wanted: Mapping[str, Any],
    may_miss: Mapping[str, int] | None = None,
) -> None:
    """Stop everything where a side did other work than was wanted; some counts may be missed by so much."""
    done = dict(result["done"])
    for name, most in (may_miss or {}).items():
        if name in done and abs(done[name] - wanted[name]) <= most:
            done[name] = wanted[name]
    if done != wanted:
        raise SystemExit(f"{command} did {result['done']}, the work is {dict(wanted)}")


def _pinned(command: Sequence[str], cores: int | Sequence[int]) -> tuple[list[str], dict[str, str]]:
    """Return what runs a command on these cores alone, and its environment."""
    cores = [cores] if isinstance(cores, int) else cores
    if not Path(command[0]).exists():
        raise SystemExit(f"{command[0]} is not there: `make help` lists the verbs that build what stands under .peers")
    pinned = ["taskset", "-c", ",".join(map(str, cores)), *command] if shutil.which("taskset") else list(command)
    return pinned, {**os.environ, "OMP_NUM_THREADS": str(len(cores)), "OPENBLAS_NUM_THREADS": str(len(cores))}


@contextmanager
def quiet_machine(lock: Path = LOCK) -> Iterator[None]:
    """Measure time inside the block, or as a decorator inside the function: `make runs-next` is paused until it ends.

    A second measurement waits for the first.
    """
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        time.sleep(2 * POLL_SECONDS)  # until the queue has seen it
        yield


def is_measuring(lock: Path = LOCK) -> bool:
    """Return whether a measurement is being made."""
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
