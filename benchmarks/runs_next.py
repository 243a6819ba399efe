"""Make the runs that RUNS.md plans: the first that is not done, on one core, then the next, until this is stopped.

    python -m benchmarks.runs_next [--work FOLDER] [--core 1] [--only TEXT] [--list] [--once]

A run is made from a checkout of its own at the commit at which it was started, in `FOLDER` (by default
`../trainkit-runs`), which also has its checkpoints and its log: the same command resumes it. When it has ended, what it
wrote (pages, kept runs, results of the zoo) is applied to this tree, with commits, core hours and state in its row of
RUNS.md; commit it. What it left in the folder `kept` beside its checkout stays there. A row whose command fails stays
as it is, and the next row follows. Ctrl-C and SIGTERM stop the run, which saves first. While a benchmark measures time,
the run is paused.
"""

import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import pages
from benchmarks.measuring import POLL_SECONDS, is_measuring
from benchmarks.pages import ROOT

PLAN = Path("benchmarks/results/RUNS.md")
ZOO_PAGE = Path("benchmarks/results/ZOO.md")
PAGES = "benchmarks/results", "docs/images"
RESULTS = *PAGES, "src/trainkit/presets/zoo", "src/trainkit/extensions/*/zoo"  # what commands write to
AUTHOR = "-c", "user.name=runs-next", "-c", "user.email=runs-next@localhost"
KEPT = "kept"  # the folder beside a run's checkout that outlives it, for what is too large to be committed
CORE = max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
LEARNING = "learning"  # what the queue makes; times need a quiet machine, and devices are elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the plan, as it stands in the table."""

    result: str
    measures: str
    command: str
    commits: str
    hours: str
    state: str

    @classmethod
    def read(cls, line: str) -> "Row":
        """Return the row of a line of the table."""
        result, measures, command, commits, hours, state = (cell.strip() for cell in line.strip("|").split("|"))
        return cls(
            result=result, measures=measures, command=command.strip("`"), commits=commits, hours=hours, state=state
        )

    def line(self) -> str:
        """Return the line of the table."""
        command = self.command if self.command == "-" else f"`{self.command}`"
        return f"| {' | '.join([self.result, self.measures, command, self.commits, self.hours, self.state])} |"

    @property
    def is_due(self) -> bool:
        """Whether the queue makes it."""
        return self.measures == LEARNING and self.command != "-" and not self.state.startswith("done")

    @property
    def slug(self) -> str:
        """The name of its folder."""
        return re.sub(r"\W+", "-", self.result).strip("-")

    def done(self, commit: str, hours: float) -> "Row":
        """Return the row of a run that was finished."""
        known = re.findall(r"`(\w+)`", self.commits) if self.state.startswith(("done", "partial")) else []
        commits = ", ".join(f"`{one}`" for one in dict.fromkeys([*known, commit]))
        before = 0.0 if self.hours == "-" else float(self.hours)
        return replace(self, commits=commits, hours=f"{before + hours:.1f}", state="done")


def is_row(line: str) -> bool:
    """Return whether a line of the plan is a row."""
    return line.startswith("| ") and not line.startswith("| result ")


def planned(root: Path = ROOT) -> list[Row]:
    """Return the rows of the plan, in their order."""
    return [Row.read(line) for line in (root / PLAN).read_text().splitlines() if is_row(line)]


def write_row(row: Row, root: Path = ROOT) -> None:
    """Replace the row of the same result."""
    lines = (root / PLAN).read_text().splitlines()
    changed = [row.line() if is_row(line) and Row.read(line).result == row.result else line for line in lines]
    (root / PLAN).write_text("\n".join([*changed, ""]))


def _git(*words: str, at: Path, given: str | None = None) -> str:
    ran = subprocess.run(["git", "-C", str(at), *words], input=given, capture_output=True, text=True)
    if ran.returncode:
        raise RuntimeError(f"git {' '.join(words)} in {at}: {ran.stderr.strip()}")
    return ran.stdout


class Run:
    """A row that is being made, in a folder that outlives this process.

    Args:
        row: of the plan.
        work: the folder of all runs.
        root: the tree that gets the results.
        core: that it runs on.
    """

    def __init__(self, row: Row, work: Path, root: Path = ROOT, core: int = 0) -> None:
        self.row, self.root, self.core = row, root, core
        self.folder = work.resolve() / row.slug
        self.code, self._spent = self.folder / "code", self.folder / "seconds.json"
        self._is_stopped = False

    @property
    def seconds(self) -> float:
        """CPU seconds until now, those of interrupted calls included."""
        return float(json.loads(self._spent.read_text())) if self._spent.exists() else 0.0

    def make(self) -> bool:
        """Run the command to its end, or resume it; return whether it succeeded, and write the results if so."""
        self._check_out()
        status = self._execute()
        if status == 0 and not self._is_stopped:
            self._finish()
            return True
        return False

    def stop(self, *_: object) -> None:
        """Stop at the next look."""
        self._is_stopped = True

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped from outside."""
        return self._is_stopped

    def _check_out(self) -> None:
        """Check out the commit at which the run is started; one that is resumed keeps its own, in a new clone too."""
        self.folder.mkdir(parents=True, exist_ok=True)
        _git("worktree", "prune", at=self.root)
        known = self.folder / "commit"
        is_new = not known.exists()
        if is_new:
            known.write_text(_git("rev-parse", "HEAD", at=self.root).strip())
        if str(self.code) not in _git("worktree", "list", at=self.root):
            shutil.rmtree(self.code, ignore_errors=True)
            _git("worktree", "add", "--detach", str(self.code), known.read_text(), at=self.root)
        results = _git("diff", "--binary", "HEAD", "--", *PAGES, at=self.root) if is_new else ""
        if results:  # of former rows, not committed yet, which pages are written of, too
            _git("apply", "--index", given=results, at=self.code)
            _git(*AUTHOR, "commit", "-q", "--no-verify", "-m", "Results of former rows", at=self.code)
        for name in (".venv", ".peers"):
            if (self.root / name).exists() and not (self.code / name).exists():
                (self.code / name).symlink_to((self.root / name).resolve())

    def _command(self) -> list[str]:
        """Return the words of the command, run by the same Python, and none of its environments built again."""
        program, *words = shlex.split(self.row.command)
        if program == "trainkit":
            program, words = sys.executable, ["-m", "trainkit", *words]
            if words[2:4] == ["zoo", "train"]:
                words += ["--runs", str(self.folder / "zoo")]
        elif program == "python":
            program = sys.executable
        elif program == "make":
            words = ["-o", ".venv/.ready", "-o", "constraints.txt", *words]
        pinned = ["taskset", "-c", str(self.core)] if shutil.which("taskset") else []
        return ["nice", "-n", "10", *pinned, program, *words]

    def _execute(self) -> int:
        """Run the command, paused while time is measured, and return its exit status."""
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        path = os.pathsep.join([str(self.code / "src"), str(self.code)])
        before, spent = _children_seconds(), self.seconds
        with (self.folder / "log").open("a") as log:
            process = subprocess.Popen(
                self._command(),
                cwd=self.code,
                env={**os.environ, **threads, "PYTHONPATH": path},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            is_paused = False
            while process.poll() is None:
                if self._is_stopped:
                    os.killpg(process.pid, signal.SIGCONT)
                    os.killpg(process.pid, signal.SIGTERM)
                    process.wait()
                elif is_measuring() != is_paused:
                    is_paused = not is_paused
                    os.killpg(process.pid, signal.SIGSTOP if is_paused else signal.SIGCONT)
                time.sleep(POLL_SECONDS)
        self._spent.write_text(json.dumps(spent + _children_seconds() - before))
        return process.returncode

    def _finish(self) -> None:
        """Apply what the run wrote to the tree, bring its row up to date, and remove its checkout."""
        commit = _git("log", "-1", "--format=%h", "--abbrev=7", "--", "src", at=self.code).strip()
        _git("add", "--all", "--", *_written(self.code), at=self.code)
        patch = _git("diff", "--cached", "--binary", "HEAD", at=self.code)
        (self.folder / "results.patch").write_text(patch)
        if patch:
            _git("add", "--all", "--", *_written(self.root), at=self.root)  # "--3way" works on the index
            _git("apply", "--3way", "--whitespace=nowarn", given=patch, at=self.root)
        if self.row.command.startswith("trainkit zoo train"):
            report = [sys.executable, "-m", "trainkit", "zoo", "report", "-o", str(ZOO_PAGE)]
            environment = {**os.environ, "PYTHONPATH": str(self.root / "src")}
            subprocess.run(report, cwd=self.root, env=environment, check=True)
        write_row(self.row.done(commit, self.seconds / 3600), self.root)
        _git("worktree", "remove", "--force", str(self.code), at=self.root)
        for path in self.folder.iterdir():
            if path.name != KEPT:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if not any(self.folder.iterdir()):
            self.folder.rmdir()


def _written(tree: Path) -> list[str]:
    """Return the folders of a tree that commands write to."""
    return [str(path.relative_to(tree)) for pattern in RESULTS for path in sorted(tree.glob(pattern))]


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def due(rows: Sequence[Row], only: str = "", failed: Sequence[str] = ()) -> Iterator[Row]:
    """Yield the rows that the queue makes, in order, without those that failed in this call."""
    for row in rows:
        if row.is_due and only in row.result and row.result not in failed:
            yield row


def main() -> None:
    """Make one run after the other."""
    parser = pages.arguments(__doc__)
    parser.add_argument("--work", type=Path, default=ROOT.parent / "trainkit-runs")
    parser.add_argument("--core", type=int, default=CORE)
    parser.add_argument("--only", default="", help="a text in the results to make")
    parser.add_argument("--list", action="store_true", help="print what is to be made, in order")
    parser.add_argument("--once", action="store_true", help="stop after one row")
    given = parser.parse_args()
    if given.list:
        for row in due(planned(), given.only):
            print(f"{row.result}: {row.command} ({row.state})")
        return
    if given.work.resolve().is_relative_to(ROOT):
        parser.error(f"--work must be outside of {ROOT}, whose branches are switched, got {given.work}")
    failed: list[str] = []
    while (row := next(due(planned(), given.only, failed), None)) is not None:
        run = Run(row, given.work, core=given.core)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, run.stop)
        print(f"{row.result}: {row.command} in {run.folder}, {run.seconds / 3600:.2f} core hours so far", flush=True)
        is_made = run.make()
        if run.is_stopped:
            print(f"{row.result}: stopped; the same command resumes it", flush=True)
            return
        if is_made:
            print(f"{row.result}: done, its results are in this tree: commit them", flush=True)
        else:
            failed.append(row.result)
            print(f"{row.result}: failed, see {run.folder / 'log'}", flush=True)
        if given.once:
            return
    print("nothing is left to be made", flush=True)


if __name__ == "__main__":
    main()
