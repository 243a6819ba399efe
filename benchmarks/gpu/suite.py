"""The test suite on the device: tests marked `gpu`, and those that compare any accelerator with the CPU."""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.gpu.record import Piece, Row, Setup, Unit
from benchmarks.gpu.timing import table

ROOT = Path(__file__).parents[2]
N_PROCESSES = 8  # each has some 500 MB of the GPU's memory for itself, whatever it computes
COMPARED = ("test_presets.py", "test_learners.py", "test_examples.py")  # of tests/accelerator


def tested(setup: Setup, paths: list[str], marked: str, left_s: float, *, n_processes: int) -> Row:
    """Run files of tests and count the outcomes; a test's own time is at most 120 s."""
    setup.work.mkdir(parents=True, exist_ok=True)
    report = setup.work / "tests.xml"
    report.unlink(missing_ok=True)
    words = ["-q", "-p", "no:cacheprovider", "-p", "no:benchmark"]  # which warns where tests run in parallel
    words += ["-m", marked, f"--device={setup.device}", f"--junit-xml={report}", *paths]
    if n_processes > 1:
        words += ["-n", str(n_processes)]
    if setup.is_rehearsal:
        words += ["-k", "learns_there_as and rainbow" if "accelerator" in paths[0] else "auto"]
    command = [sys.executable, "-m", "pytest", *words]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=max(left_s, 30.0), check=False)
    if not report.exists():
        raise RuntimeError(f"pytest wrote no report: {(ran.stdout + ran.stderr).strip()[-300:]}")
    return outcomes(report)


def outcomes(report: Path) -> Row:
    """Count a report's tests, and name those that failed."""
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = {case.get("name"): child for case in cases for child in case if child.tag in ("failure", "error")}
    return {
        "passed": sum(all(child.tag.startswith("system") for child in case) for case in cases),
        "skipped": sum(any(child.tag == "skipped" for child in case) for case in cases),
        "failed": {name: (child.get("message") or "").splitlines()[:1] for name, child in failed.items()},
        "seconds": round(sum(float(case.get("time") or 0.0) for case in cases), 1),
    }


def units(setup: Setup) -> list[Unit]:
    """List the files, or all of them as one unit, where pytest can run them in parallel."""
    marked = [(f"tests/gpu/{path.name}", "gpu") for path in sorted((ROOT / "tests" / "gpu").glob("test_*.py"))]
    compared = [(f"tests/accelerator/{name}", "accelerator or not slow and not gpu") for name in COMPARED]
    if not setup.is_rehearsal and find_spec("xdist") is not None:
        paths = [path for path, _ in (*marked, *compared)]
        together = partial(tested, setup, paths, "gpu or accelerator or not slow", n_processes=N_PROCESSES)
        return [Unit("tests", together, 150)]
    files = [*marked[:1], *compared[:1]] if setup.is_rehearsal else [*marked, *compared]
    return [Unit(path, partial(tested, setup, [path], marks, n_processes=1), 200) for path, marks in files]


def section(rows: list[Row]) -> Iterator[str]:
    """Yield the table of counts, and the tests that failed."""
    cells = [(f"`{row['unit']}`", row["passed"], len(row["failed"]), row["skipped"], row["seconds"]) for row in rows]
    yield from table("file | passed | failed | skipped | s", cells)
    for row in rows:
        for name, message in row["failed"].items():
            yield f"- failed: `{row['unit']}::{name}`: {' '.join(message)[:200]}"


PIECE = Piece("tests", "Tests", units, section)
