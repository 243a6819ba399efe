"""Which commit of trainkit a number was measured at, so that a page says how old its rows are."""

import functools
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
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
