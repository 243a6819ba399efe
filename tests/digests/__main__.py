"""Digests of small training runs of every algorithm, to check that a change of the code changes no result.

    python -m tests.digests [RUN ...] [--against COMMIT | --resume] [--seed 1]

Prints one sha256 per run, over the weights, the optimizers' moments, the rows played and stored, and the statistics of
every epoch except times. With `--against` another commit is checked out into a temporary git worktree, its own script
makes its runs there, and what differs is listed, run by run: weights, moments, rows, and the statistics by their tags.
With `--resume` each run is also saved in the middle of an epoch, resumed by another trainer, and compared with the run
in one piece. Everything is computed on the CPU, in one thread.

The digests depend on the machine and on the versions of numpy and torch: compare those of one machine. Runs are
compared by name. One that the other commit lacks is new, which is no difference; one that is gone is.
"""

import argparse
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

import trainkit as tk
from tests.digests.comparison import NOT_THERE, ROOT, Side, differences, environment_of, on_both_sides, script
from tests.digests.outcome import Run
from tests.digests.runs import RUNS

T = TypeVar("T")
WIDTH = max(map(len, RUNS)) + 2  # of the names' column


def main() -> int:
    """Print the digests, or compare them; return 1 if any differs, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.digests", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", nargs="*", metavar="RUN", help=f"default: all of {' '.join(RUNS)}")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--against", metavar="COMMIT", help="compare with the runs of another commit")
    kind.add_argument("--resume", action="store_true", help="compare with runs that are resumed in their middle")
    kind.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # as JSON
    kind.add_argument("--resume-here", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    logging.disable(logging.WARNING)  # small runs give reason for advice
    if given.here:
        return print_plain(given.runs or list(RUNS), given.seed)
    unknown = [name for name in given.runs if name not in RUNS]
    if unknown:
        parser.error(f"there is no run {', '.join(unknown)}: choose from {' '.join(RUNS)}")
    if given.resume_here:
        return print_resumed(given.runs or list(RUNS), given.seed)
    if given.resume:  # in a process of its own, for its environment's variables
        command = script("--resume-here", "--seed", str(given.seed), *given.runs)
        return subprocess.run(command, cwd=ROOT, env=environment_of(ROOT), check=False).returncode
    if given.against is not None:
        return print_differences(given.against, given.runs, given.seed)
    side = Side(ROOT, given.runs, given.seed)
    try:
        for name, one in side.read():
            show(f"{name:{WIDTH}}{one if isinstance(one, str) else one.whole}")
    finally:
        side.end()
    return 0


def print_plain(names: Sequence[str], seed: int) -> int:
    """Print where the package lies, and each run's digest as JSON."""
    show(json.dumps(tk.__file__))
    for name in names:
        one = tried(lambda run: run.play(seed).digest(), name)
        show(json.dumps((name, one if isinstance(one, str) else vars(one))))
    return 0


def print_resumed(names: Sequence[str], seed: int) -> int:
    """Print in what each run differs from itself, resumed in its middle."""
    n_different = 0
    for name in names:
        both = tried(lambda run: run.resumed_and_whole(seed), name)
        differs, note = (True, f"; {both}") if isinstance(both, str) else differences(*both)
        show(f"{name:{WIDTH}}{'differs' if differs else 'resumes'}{note}")
        n_different += differs
    show(f"{len(names) - n_different} of {len(names)} runs resume with the same bits")
    return min(n_different, 1)


def print_differences(commit: str, names: Sequence[str], seed: int) -> int:
    """Print in what each run differs from the same run at a commit."""
    n_runs = n_different = 0
    for name, here, there in on_both_sides(commit, names, seed):
        differs, note = differences(here, there)
        show(f"{name:{WIDTH}}{'differs' if differs else 'same' if there != NOT_THERE else 'new'}{note}")
        n_runs += there != NOT_THERE
        n_different += differs
    show(f"{n_runs - n_different} of {n_runs} runs are the same as at {commit}")
    return min(n_different, 1)


def tried(work: Callable[[Run], T], name: str) -> T | str:
    """Return what a run gives, or why it cannot be made, as a commit may lack something."""
    if name not in RUNS:
        return NOT_THERE
    try:
        return work(RUNS[name])
    except Exception as error:  # noqa: BLE001 - whatever it is, it is listed
        return f"cannot be made: {type(error).__name__}: {error}"


def show(line: str) -> None:
    """Print a line at once, for whichever waits for it."""
    print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
