"""The pages of results: which commit, machine and versions a number was measured with, tables, kept runs, figures."""

import argparse
import functools
import json
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
UNKNOWN = "unknown"  # outside a git checkout


def _git(*arguments: str) -> str | None:
    """Return what git prints, None where there is no git, no checkout or no such commit."""
    try:
        ran = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return ran.stdout.strip()


@functools.cache
def code_commit() -> str:
    """Return the commit that last changed `src`, short, with a `+` where the working tree has changes to it."""
    commit = _git("log", "-1", "--format=%h", "--abbrev=7", "--", "src")
    if not commit:
        return UNKNOWN
    return f"{commit}+" if _git("status", "--porcelain", "--", "src") else commit


def commits_since(commit: str) -> int | None:
    """Return how many commits changed `src` after this one, None where that is not known."""
    count = _git("rev-list", "--count", f"{commit.removesuffix('+')}..HEAD", "--", "src")
    return None if count is None else int(count) + commit.endswith("+")


def listed(commits: Iterable[str]) -> str:
    """Return commits in the order of their number of runs: `1e09180`, or `1e09180` (7), `c2c47bf` (4)."""
    counts = Counter(commits).most_common()
    if len(counts) == 1:
        return f"`{counts[0][0]}`"
    return ", ".join(f"`{commit}` ({n})" for commit, n in counts)


def measured_at(commits: Sequence[str] = ()) -> str:
    """Return the sentence every results page has; without commits the code is measured as it stands now."""
    return f"Measured at commit {listed(commits or [code_commit()])}."


def machine() -> str:
    """Return the kind of processor, the number of cores and Python's version."""
    kind = platform.processor() or platform.machine()
    return f"{kind}, {os.cpu_count()} cores, Python {platform.python_version()}"


def versions(packages: Iterable[str]) -> str:
    """Return packages with the versions that are installed here, and this tree's of trainkit."""
    import trainkit

    own = {"trainkit": trainkit.__version__}
    return ", ".join(f"{name} {own.get(name) or metadata.version(name)}" for name in packages)


def heading(
    title: str, command: str, commits: Sequence[str] = (), *, packages: Sequence[str] = (), how: str = "one thread"
) -> list[str]:
    """Return the first lines of a page: its title, and when, how and with what it was measured.

    Args:
        title: without the `#`.
        command: that makes the page.
        commits: that its rows were measured at; none for the code as it stands now.
        packages: named with their versions, after trainkit and torch.
        how: threads and cores.
    """
    about = f"`{command}` on {machine()}, {how}; {versions(['trainkit', 'torch', *packages])}."
    return [f"# {title}", "", measured_at(commits), "", about, ""]


def table(columns: Sequence[str], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    """Yield the lines of a table, and an empty one."""
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    yield from (f"| {' | '.join(map(str, row))} |" for row in rows)
    yield ""


def write(name: str, lines: Iterable[str]) -> None:
    """Write a page of `benchmarks/results`."""
    (RESULTS / f"{name}.md").write_text("\n".join([*lines, ""]).rstrip("\n") + "\n")


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help is the docstring of a benchmark."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


@contextmanager
def figure(path: Path, n_columns: int = 1, **size: Any) -> Iterator[Any]:
    """Draw a figure with `n_columns` axes, which are yielded, into an SVG file whose bytes depend on the data alone."""
    import matplotlib.pyplot as plt

    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "trainkit", "font.size": 9}):
        drawn, axes = plt.subplots(1, n_columns, layout="constrained", **size)
        yield axes
        for one in drawn.axes:
            one.spines[["top", "right"]].set_visible(False)
            if one.get_legend_handles_labels()[0]:
                one.legend(frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        drawn.savefig(path, metadata={"Date": None})
        plt.close(drawn)


class Cache:
    """Keep results of finished runs in a file, one per line, with commit and settings; the last run of a key counts.

    An interrupted benchmark continues with the runs that are missing.

    Args:
        file: made when the first run is kept.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lines: dict[str, dict[str, Any]] = {}
        if file.exists():
            for line in map(json.loads, file.read_text().splitlines()):
                self._lines[json.dumps(line["key"])] = line

    def get(self, *key: Any) -> dict[str, Any] | None:
        """Return what a run gave, None where it was not made."""
        line = self._lines.get(json.dumps(key))
        return None if line is None else line["result"]

    def commit(self, *key: Any) -> str:
        """Return the commit of trainkit that a kept run was measured at."""
        commit: str = self._lines[json.dumps(key)]["commit"]
        return commit

    def is_outdated(self, settings: Mapping[str, str], *key: Any) -> bool:
        """Return whether a kept run had another value of one of the settings; options that came later do not count."""
        then = self._lines[json.dumps(key)].get("settings", {})
        return any(then.get(name, value) != value for name, value in settings.items())

    def is_due(self, settings: Mapping[str, str], *key: Any) -> bool:
        """Return whether a run was not made, or with other settings."""
        return json.dumps(key) not in self._lines or self.is_outdated(settings, *key)

    def rows(self) -> Iterator[tuple[list[Any], dict[str, Any], str]]:
        """Yield key, result and commit of every run that is kept."""
        for line in self._lines.values():
            yield line["key"], line["result"], line["commit"]

    def put(self, result: dict[str, Any], *key: Any, settings: Mapping[str, str] | None = None) -> None:
        """Keep what a run gave, and the settings that it had unless the key says them."""
        line = {"key": key, "commit": code_commit(), "result": result}
        if settings is not None:
            line["settings"] = dict(settings)
        self._lines[json.dumps(key)] = line
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")
