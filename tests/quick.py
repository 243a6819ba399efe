"""The checks of one commit, in four minutes: format, lint, types, and the tests of what a change reaches.

    python -m tests.quick [--since COMMIT] [--pure [RUN ...]] [--seconds 210] [--list]

A change is what differs from `--since`: by default the commit at which this branch left `main`, and everything that is
not committed. The nearest tests run first: those that were changed or mirror a changed file (src/trainkit/policy/dqn.py
and tests/policy/test_dqn.py), then those that name a changed module, then those that name a module which does, and so
on. When the time is up, the other tests are left out, and their files are listed. `--pure`, for code that only moved,
compares the digests of training runs with those of `--since` first, of all or of those that are named; it takes more
than half of the four minutes, and the nearest tests run all the same. `make check` runs everything.

The same file is the pytest plugin that stops in time.
"""

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.helpers.pages import PAGES, ROOT, examples
from tests.imports import Imports

SECONDS = 210  # in which the last test starts; most take less than a second, none more than some
AT_LEAST = 45  # seconds for tests, however long the other checks took
N_FILES = 120  # collecting more takes time that their tests would not have
ALWAYS = "tests/test_architecture.py tests/test_exports.py tests/test_docs.py tests/core/test_parts.py".split()

# What a file that no module imports reaches, by the start of its path.
OTHERS = {
    "examples/": ["tests/test_examples.py"],
    "pyproject.toml": ["tests/core/test_extras.py", "tests/test_wheel.py"],
    "constraints.txt": ["tests/core/test_extras.py"],
    "benchmarks/results/": ["tests/test_runs_page.py", "tests/test_tables.py", "tests/test_benchmark_provenance.py"],
    "src/trainkit/presets/zoo/": ["tests/zoo/test_results.py", "tests/presets/test_zoo_entry.py"],
    "src/trainkit/extensions/actor_critic/zoo/": ["tests/zoo/test_results.py", "tests/presets/test_zoo_entry.py"],
}
LEFT_OUT = "left out: the time of `make quick` is up"


def git(*arguments: str) -> list[str]:
    """Return the lines that git prints."""
    ran = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"git {' '.join(arguments)}: {ran.stderr.strip()}")
    return ran.stdout.splitlines()


def branched_off() -> str:
    """Return the commit at which this branch left `main`; HEAD on main itself, and where there is no main."""
    if not git("branch", "--list", "--all", "main"):
        return git("rev-parse", "HEAD")[0]
    return git("merge-base", "HEAD", "main")[0]


def changes(since: str) -> list[str]:
    """Return the paths that differ from a commit, those that git does not know yet included."""
    return sorted({*git("diff", "--name-only", "--no-renames", since), *git("ls-files", "-o", "--exclude-standard")})


def is_test(path: str) -> bool:
    """Return whether pytest collects a file."""
    return path.startswith("tests/") and Path(path).name.startswith("test_") and path.endswith(".py")


def mirrors(root: Path, path: str) -> list[str]:
    """Return the tests whose path mirrors that of a file of the package; a test mirrors itself."""
    if is_test(path):
        return [path] if (root / path).exists() else []
    if not path.startswith("src/trainkit/"):
        return []
    inside = Path(path).relative_to("src/trainkit")
    folder = root / "tests" / inside.parent
    found = [*folder.glob(f"test_{inside.stem}.py"), *sorted(folder.glob(f"test_{inside.stem}_*.py"))]
    return [str(test.relative_to(root)) for test in found]


def examples_of(page: str) -> list[str]:
    """Return the tests that run the code of a page, and follow its links."""
    names = [example.name for path in PAGES if path == ROOT / page for example in examples(path)]
    code = [f"tests/test_readme.py::test_the_code_runs[{name}]" for name in names]
    return [*code, "tests/test_readme.py::test_the_links_lead_somewhere"] if page.endswith(".md") else []


def reached(changed: Sequence[str], root: Path = ROOT) -> list[str]:
    """Return the files of tests that changed files reach, the nearest first; of changed pages the single tests."""
    found = [test for path in changed for test in mirrors(root, path) + examples_of(path)]
    found += [test for path in changed for start, tests in OTHERS.items() if path.startswith(start) for test in tests]
    imports = Imports(root)
    files = {module: str(path.relative_to(root)) for module, path in imports.paths.items()}
    far = imports.distances({module for module, path in files.items() if path in changed})
    near = {Path(path).parent.name for path in changed}
    # Among equals the tests of the same package come first, then those that name little else.
    ranks = {
        files[module]: (distance, Path(files[module]).parent.name not in near, len(imports.uses[module]))
        for module, distance in far.items()
        if is_test(files[module])
    }
    return list(dict.fromkeys([*found, *sorted(ranks, key=lambda test: (ranks[test], test))]))


def run(what: str, command: Sequence[str | Path]) -> None:
    """Run a check, and end where it fails."""
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]  # a git worktree may share another's environment
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    started = time.monotonic()
    if code := subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode:
        sys.exit(f"quick: {what} failed ({code})")
    print(f"quick: {what}, {time.monotonic() - started:.0f} s", flush=True)  # noqa: T201


def main() -> None:
    """Run the checks one after the other, until one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.quick", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--since", metavar="COMMIT", help="default: where this branch left main")
    parser.add_argument("--pure", nargs="*", metavar="RUN", help="code only moved: training runs have the same digests")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="in which the last test starts")
    parser.add_argument("--list", action="store_true", help="list the tests that are reached, and run nothing")
    given = parser.parse_args()
    started = time.time()
    since = given.since or branched_off()
    changed = changes(since)
    tests = reached(changed)
    if given.list:
        print("\n".join(tests))  # noqa: T201
        return
    programs, python = Path(sys.executable).parent, sys.executable
    run("format", [programs / "ruff", "format", "--check", "--quiet", "."])
    run("lint", [programs / "ruff", "check", "--quiet", "."])
    run("types", [python, "-m", "mypy"])
    if given.pure is not None:
        run(f"digests against {since}", [python, "-m", "tests.digests", "--against", since, *given.pure])
    n_files = len({test.partition("::")[0] for test in tests})
    print(f"quick: {len(changed)} files changed since {since[:8]}, {n_files} files of tests reached")  # noqa: T201
    chosen = list(dict.fromkeys(ALWAYS + tests))
    if chosen[N_FILES:]:
        print(f"quick: the {len(chosen) - N_FILES} farthest are left out, `--list` has all")  # noqa: T201
    pytest_ = [python, "-m", "pytest", "-q", "-n", "auto", "--maxschedchunk=4", "-p", "tests.quick"]
    deadline = max(started + given.seconds, time.time() + AT_LEAST)
    run("tests", [*pytest_, "--no-tests-after", str(deadline), *chosen[:N_FILES]])


# ---- the plugin ----


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that sets the time."""
    parser.addoption("--no-tests-after", type=float, metavar="TIME", help="seconds since the epoch")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out a test that would start too late."""
    if time.time() > item.config.getoption("--no-tests-after"):
        pytest.skip(LEFT_OUT)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the files whose tests were left out, with the number of these tests."""
    skipped = terminalreporter.getreports("skipped")
    files = Counter(report.nodeid.partition("::")[0] for report in skipped if LEFT_OUT in str(report.longrepr))
    if files:
        listed = ", ".join(f"{file} ({n})" for file, n in files.items())
        terminalreporter.write_line(f"{files.total()} tests {LEFT_OUT}: {listed}")


if __name__ == "__main__":
    main()
