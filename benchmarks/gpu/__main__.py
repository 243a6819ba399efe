"""Measure and test everything on a GPU, for some minutes at a time, until nothing is left.

    make gpu-day                                         # 8 minutes of what is left; call it again until it says so
    make gpu-day LIMIT_S=120 PIECE=updates               # two minutes of one piece
    make gpu-day REHEARSE=1                              # as little as possible on the pretend device: does it run?
    python -m benchmarks.gpu --rehearse --device cpu     # or on the CPU

Pieces, in the order of what they decide: limits, tests, updates, loops, pong, acting, profile, frames, simulators,
precisions; each is a list of units of some seconds. A unit that is done is a line of `OUT/gpu.jsonl`; the next call
starts with the first one that is not done at this commit, after a kill too. A unit that raises is noted and not tried
again; one during which the process died is tried once more. Pong continues from its checkpoint in `WORK`. The page
`OUT/gpu.md` is written at the end of every call, and lists what has not run.
"""

import argparse
import gc
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import acting, frames, limits, page, pong, profiling, simulators, suite, updates
from benchmarks.gpu.record import MissingError, Piece, Record, Setup
from benchmarks.pages import code_commit, machine
from tests.helpers.tape import record_by_tapes
from tests.pretend import PretendDevice
from trainkit.engine.device import resolve_device
from trainkit.extensions.compile import compile_engine

PIECES = (
    limits.PIECE,
    suite.PIECE,
    updates.PIECE,
    pong.LOOPS,
    pong.PIECE,
    acting.PIECE,
    profiling.PIECE,
    frames.PIECE,
    simulators.PIECE,
    updates.LOWER_PIECE,
)
PUBLISHED = Path("benchmarks/results")
FAILED = 3  # exit code of a process whose unit raised: another one continues, as a device may not recover
GRACE_S = 60.0  # after its limit a process is killed


def main(arguments: Sequence[str] | None = None) -> None:
    """Let processes measure until the time is out or nothing is left, and write the page."""
    options = parsed(arguments)
    setup = setup_of(options)
    pieces = [piece for piece in PIECES if options.piece in (None, piece.name)]
    ends = time.monotonic() + options.limit_s
    if options.only_page:
        print(f"{page.write(setup, PIECES, Record(setup.rows))} is written")
        return
    if options.one_process:
        raise SystemExit(measure(setup, pieces, ends, options.command))
    command = [sys.executable, "-m", "benchmarks.gpu", *(sys.argv[1:] if arguments is None else arguments)]
    code = FAILED
    while code and (left_s := ends - time.monotonic()) > 0:
        words = ["--one-process", "--limit-s", f"{left_s:.0f}", "--command", command_line(options)]
        try:
            code = subprocess.run([*command, *words], timeout=left_s + GRACE_S, check=False).returncode
        except subprocess.TimeoutExpired:
            print("  killed: it did not end in time", flush=True)
            break
        if code not in (0, FAILED):
            print(f"  the process died with exit code {code}", flush=True)
    record = Record(setup.rows)
    path = page.write(setup, PIECES, record)
    print(f"{path} is written. {summary(setup, pieces, record)}")


def measure(setup: Setup, pieces: Sequence[Piece], ends: float, command: str) -> int:
    """Measure unit after unit in this process; return its exit code."""
    start(setup)
    about = {"commit": code_commit(), "machine": name_of(setup), "torch": torch.__version__, "command": command}
    record = Record(setup.rows)
    for piece in pieces:
        for unit in piece.units(setup):
            left_s = ends - time.monotonic()
            if record.is_over(piece.name, unit.name, about["commit"]) or left_s < (
                0 if setup.is_rehearsal else unit.needs_s
            ):
                continue
            print(f"{piece.name}: {unit.name}", flush=True)
            record.add(piece.name, unit.name, "started", commit=about["commit"])
            began = time.monotonic()
            try:
                row = unit.measure(left_s)
            except Exception as error:  # noqa: BLE001 - whatever a device can raise
                lines = str(error).strip().splitlines()
                reason = lines[0][:300] if lines else type(error).__name__
                state = "missing" if isinstance(error, MissingError) else "failed"
                record.add(piece.name, unit.name, state, error=reason, **about)
                print(f"  {state}: {reason}", flush=True)
                if state == "missing":
                    continue
                return FAILED
            state = "continues" if row is None else "done"
            record.add(piece.name, unit.name, state, **(row or {}), took_s=round(time.monotonic() - began, 1), **about)
            release(setup)
    return 0


def start(setup: Setup) -> None:
    """Load the pretend device, or check that the device is there."""
    if setup.device == "pretend":
        PretendDevice.load()
        rehearse_graphs_and_compiling()
    resolve_device(setup.device)
    torch.set_num_threads(1)


def rehearse_graphs_and_compiling() -> None:
    """Let the pretend device record graphs, of what would be compiled, too, as it is."""
    patch = pytest.MonkeyPatch()
    record_by_tapes(patch)
    patch.setattr(torch, "compile", lambda function, **_: function)
    patch.setattr(compile_engine, "missing", lambda device: None)


def release(setup: Setup) -> None:
    """Free the device's memory between units."""
    gc.collect()
    if setup.device.startswith("cuda"):
        torch.cuda.empty_cache()


@cache
def name_of(setup: Setup) -> str:
    """Return the names of the device and of the machine."""
    device = torch.cuda.get_device_name(setup.device) if setup.device.startswith("cuda") else f"device {setup.device}"
    return f"{device}, {machine()}"


def summary(setup: Setup, pieces: Sequence[Piece], record: Record) -> str:
    """Return how many units are done, not possible, and left, piece by piece."""
    parts, is_over, commit = [], True, code_commit()
    for piece in pieces:
        names = [unit.name for unit in piece.units(setup)]
        n_over = sum(record.is_over(piece.name, name, commit) for name in names)
        n_done = sum(record.is_done(piece.name, name, commit) for name in names)
        words = [
            f"{n_done} of {len(names)} done",
            f"{n_over - n_done} failed or missing",
            f"{len(names) - n_over} left",
        ]
        parts.append(f"{piece.name}: {', '.join(word for word in words if not word.startswith('0 '))}")
        is_over &= n_over == len(names)
    return "; ".join(parts) + (". Nothing is left." if is_over else ". Run the same command again for what is left.")


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--piece", choices=[piece.name for piece in PIECES], help="this one alone")
    parser.add_argument("--limit-s", type=float, default=480.0, help="no unit is started that may end after it")
    parser.add_argument("--device", default=None, help="default: cuda, or pretend in a rehearsal")
    parser.add_argument("--rehearse", action="store_true", help="do as little as possible, and publish nothing")
    parser.add_argument("--out", type=Path, default=None, help=f"of rows and the page; default: {PUBLISHED}")
    parser.add_argument("--work", type=Path, default=None, help="of checkpoints and traces; default: runs/gpu_day")
    parser.add_argument("--only-page", action="store_true", help="measure nothing: write the page from the rows")
    parser.add_argument("--one-process", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--command", default="", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def setup_of(options: argparse.Namespace) -> Setup:
    """Return where and how to measure."""
    folder = Path("runs/gpu_rehearsal" if options.rehearse else "runs/gpu_day")
    out = options.out or (folder if options.rehearse else PUBLISHED)
    device = options.device or ("pretend" if options.rehearse else "cuda")
    if options.rehearse and out.resolve() == PUBLISHED.resolve():
        raise SystemExit(f"a rehearsal is not published: choose another --out than {PUBLISHED}")
    if not options.rehearse and not device.startswith("cuda"):
        raise SystemExit(f"what {device} can do is not what this page is about: give --rehearse to see that it runs")
    if not options.rehearse and not options.only_page and not torch.cuda.is_available():
        raise SystemExit(
            "there is no CUDA device here, so there is nothing to measure: run it on a machine with a GPU and a CUDA "
            "build of torch, or give --rehearse to see that it runs"
        )
    return Setup(device=device, is_rehearsal=options.rehearse, out=out, work=options.work or folder)


def command_line(options: argparse.Namespace) -> str:
    """Return the command for the page."""
    words = ["make gpu-day", *(["REHEARSE=1"] if options.rehearse else [])]
    return " ".join([*words, f"LIMIT_S={options.limit_s:.0f}", *([f"PIECE={options.piece}"] if options.piece else [])])


if __name__ == "__main__":
    main()
