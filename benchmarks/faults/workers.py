"""Put the same faulty environment before the workers of trainkit, gymnasium, Stable-Baselines3 and Tianshou.

    python -m benchmarks.faults.workers [--sides ...] [--out FILE]

Peers live in environments of their own, which `make faults-peers` builds. Each case runs in a process of its own, which
is given up after LIMIT_S seconds; whether a process of an environment outlives it is looked at then.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import pages
from benchmarks.faults.workers_side import PATIENCE_S
from benchmarks.measuring import quiet_machine
from tests.faults.faulty import FAULTS

SIDES = {
    "trainkit": sys.executable,
    "gymnasium": sys.executable,
    "sb3": ".peers/sb3-contrib@2.9.2/bin/python",
    "tianshou": ".peers/tianshou@1.2.0/bin/python",
}
TITLES = {
    "trainkit": "trainkit",
    "gymnasium": "gymnasium 1.4.0",
    "sb3": "Stable-Baselines3 2.9.2",
    "tianshou": "Tianshou 1.2.0",
}
LIMIT_S, CLOSE_S = 20.0, 5.0
BACKENDS = ("sync", "async")


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """What came of one case."""

    outcome: str
    is_well: bool  # it went on without bad data, or said what was wrong
    close_s: float | None  # None: it did not come to an end
    close_raised: str | None
    n_left: int  # processes of environments that outlived it

    @property
    def holds(self) -> bool:
        """Whether nothing is held against it."""
        closes = self.close_s is not None and self.close_s < CLOSE_S and self.close_raised is None
        return self.is_well and closes and self.n_left == 0

    def __str__(self) -> str:
        told = [self.outcome]
        if self.close_s is None:
            told.append("**does not close**")
        elif self.close_s >= CLOSE_S:
            told.append(f"**closes in {self.close_s:.0f} s**")
        if self.close_raised is not None:
            told.append(f"**close raises {self.close_raised.partition(':')[0]}**")
        if self.n_left:
            told.append(f"**{self.n_left} left running**")
        return ", ".join(told)


def meet(side: str, backend: str, fault: str) -> Met:
    """Let a side meet a fault in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path("tests/faults").resolve()), *([str(Path("src").resolve())] if side == "trainkit" else [])]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
        command = [SIDES[side], "benchmarks/faults/workers_side.py", side, backend, fault, folder]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
            start_new_session=True,
        )  # fmt: skip
        try:
            printed, _ = process.communicate(timeout=LIMIT_S)
            is_over = True
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its workers, too, which hold the pipe open
            printed, is_over = process.communicate()[0], False
        time.sleep(0.5)
        left = [pid for pid in _pids(Path(folder)) if pid != process.pid and _runs(pid)] if is_over else []
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return _judged(lines, is_over, process.returncode, len(left))


def _judged(lines: Sequence[dict[str, object]], is_over: bool, code: int, n_left: int) -> Met:
    """Say what a side's lines mean: one when it has stepped, another when it has closed."""
    last = lines[-1] if lines else {}
    outcome, is_well = "goes on", True
    if not lines:
        outcome = "**the program ends**" if is_over else f"**waits, {LIMIT_S:.0f} s and more**"
        is_well = False
    elif last["told"] is not None:
        outcome = f"raises {str(last['told']).partition(':')[0]}"
        outcome += ", names it" if "env 1" in str(last["told"]) else ""
    elif last["anew"]:
        outcome = "made anew"
    if last.get("bad") and last["told"] is None:
        outcome, is_well = "**hands it on**", False
    close_s, raised = last.get("close_s"), last.get("close_raised")
    return Met(
        outcome=outcome,
        is_well=is_well,
        close_s=float(str(close_s)) if close_s is not None and is_over and code == 0 else None,
        close_raised=None if raised is None else str(raised),
        n_left=n_left,
    )


def _pids(folder: Path) -> Iterator[int]:
    """Yield the processes in which environments were made."""
    for mark in folder.iterdir():
        yield int(mark.name.rpartition("-")[2])


def _runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@quiet_machine()
def main() -> None:
    """Run all sides on all faults, and write the table."""
    parser = pages.arguments(__doc__)
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES))
    options = parser.parse_args()
    cases = [(fault, backend) for backend in BACKENDS for fault in FAULTS if backend == "async" or not fault.only_apart]
    held = dict.fromkeys(options.sides, 0)
    rows: list[list[str]] = []
    for fault, backend in cases:
        cells = []
        for side in options.sides:
            met = meet(side, backend, fault.name)
            held[side] += met.holds
            cells.append(str(met))
        rows.append([fault.name, backend, *cells])
        print(*rows[-1], sep=" | ", flush=True)
    pages.write(
        "workers",
        [
            *pages.heading("A faulty environment among three, in four libraries' workers", "make faults-peers"),
            "One of three environments fails once, in the third step of its second episode or in the reset of that. "
            "Each library steps its own sync and async workers 60 times and closes them. trainkit is asked to make "
            f'environments again (`on_error="restart"`, async: `step_timeout_s={PATIENCE_S:g}`); the others have no '
            'such option. "Names it": the message says which environment it was. "Hands it on": the caller gets what '
            "was wrong as if nothing were. A case holds when the program goes on or is told, nothing bad comes through,"
            f" closing takes less than {CLOSE_S:.0f} s and raises nothing, and no process is left.",
            "",
            *pages.table(
                ["fault", "workers", *(TITLES[side] for side in options.sides)],
                [*rows, ["**holds**", "", *(f"{held[side]} of {len(cases)}" for side in options.sides)]],
            ),
        ],
    )


if __name__ == "__main__":
    main()
