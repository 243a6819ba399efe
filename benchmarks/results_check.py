"""Rerun sampled rows of published learning results at their stated seeds, and compare every evaluation.

    python -m benchmarks.results_check [--minutes 10] [--only TEXT] [--sample N] [--core 0] [--list]

The rows are the finished runs of trainkit under `benchmarks/results/*.jsonl`. Each is trained again by the code that is
checked out, and reproduces when every evaluation has the same mean to the last bit. A row that was measured at an older
commit and differs is outdated: the command that remakes its page is printed, and the mean of its evaluations must lie
where another seed's is expected, in the 99 % prediction interval of the published seeds. A row outside of it is an
error, and so is one that was measured at today's code and differs. Other processors may round otherwise.

First, the numbers of README and docs are compared with the results pages that their paragraph links to: a number that
is on none of them is an error, too.
"""

import math
import random
import re
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import torch

import trainkit as tk
from benchmarks import pages
from benchmarks.learning import cartpole, general_tables, hl_gauss, same_settings
from benchmarks.pages import RESULTS, ROOT, UNKNOWN, Cache, code_commit, commits_since
from trainkit.zoo.results import rounded, run_seed

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"\n\s*\n|\n(?=\s*[-|] ?)")  # between paragraphs, list items and rows of tables
ADDRESS = re.compile(r"\]\([^)\s]*\)")  # of a link
LINK = re.compile(r"\]\(([^)#\s]*benchmarks/results/\w+\.md)\)")
ON_PAGE = re.compile(r"\d[\d,]*(?:\.\d+)?")
T_995 = (63.66, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250)  # quantiles of Student's t, from 1 degree on
NUMBER = re.compile(r"(?<![\w.`])\d+\.\d+(?![\w.`])")  # with a decimal point, and no version such as 1.2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A published run, and how to train it again."""

    name: str  # page, what learned, seed
    commit: str
    returns: Sequence[float]
    seconds: float
    has_todays_settings: bool
    rerun: Callable[[], Sequence[float]]
    remake: str  # the command that makes its page

    @property
    def group(self) -> str:
        """Its name without the seed: what all seeds have in common."""
        return self.name.rpartition(", seed ")[0]

    @property
    def score(self) -> float:
        """The mean of its evaluations."""
        return statistics.fmean(self.returns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came of a row that was trained again."""

    text: str
    is_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """How the runs of a file `benchmarks/results/PAGE.jsonl` are named and trained again; functions take its keys."""

    page: str
    remake: str
    name: Callable[..., str | None]  # None for a run that is not trainkit's
    settings: Callable[..., Mapping[str, str]]  # today's
    learn: Callable[..., Mapping[str, Any]]


def kept(core: int) -> Iterator[Kept]:
    """Yield every file of runs of trainkit that has their evaluations."""
    yield Kept(
        page="learning_cartpole",
        remake="python -m benchmarks.learning.cartpole",
        name=lambda preset, seed: f"{preset} on CartPole-v1, seed {seed}",
        settings=lambda preset, seed: cartpole.settings(preset),
        learn=cartpole.learn,
    )
    yield Kept(
        page="general_tables",
        remake="python -m benchmarks.learning.general_tables",
        name=lambda task, preset, seed: None if preset == general_tables.RANDOM else f"{preset} on {task}, seed {seed}",
        settings=lambda task, preset, seed: general_tables.settings(task, preset),
        learn=general_tables.learn,
    )
    yield Kept(
        page="hl_gauss",
        remake="python -m benchmarks.learning.hl_gauss",
        name=lambda task, value, seed: f"{value} on {task}, seed {seed}",
        settings=lambda task, value, seed: hl_gauss.settings(task, value),
        learn=hl_gauss.learn,
    )
    for page in ("same_settings", "mujoco", "recurrent_ppo", "time_to_475"):
        yield Kept(
            page=page,
            remake=f"python -m benchmarks.learning.same_settings --page {page}",
            name=lambda pairing, task, side, seed: (
                f"{pairing} on {task}, seed {seed}" if side == same_settings.OURS else None
            ),
            settings=lambda pairing, task, side, seed: same_settings.settings_of(pairing, task),
            learn=lambda *key: same_settings.learn(*key, core),
        )


def rows(core: int) -> Iterator[Row]:
    """Yield every published run of trainkit that is kept with its evaluations."""
    for own in kept(core):
        cache = Cache(RESULTS / f"{own.page}.jsonl")
        for key, result, commit in cache.rows():
            name = own.name(*key)
            if name is not None:
                yield Row(
                    name=f"{own.page}: {name}",
                    commit=commit,
                    returns=result["returns"],
                    seconds=result["seconds"] or 0.0,
                    has_todays_settings=not cache.is_outdated(own.settings(*key), *key),
                    rerun=lambda own=own, key=key: own.learn(*key)["returns"],
                    remake=own.remake,
                )
    yield from _rows_of_the_zoo()


def _rows_of_the_zoo() -> Iterator[Row]:
    """Yield a row per seed of the zoo's results, with the return that its file has."""
    for entry in tk.zoo.list():
        if (result := entry.result) is None:
            continue
        for seed, mean in zip(result.seeds, result.returns, strict=True):
            yield Row(
                name=f"ZOO: {entry.preset} on {entry.env}, seed {seed}",
                commit=result.commit,
                returns=(mean,),
                seconds=result.seconds,
                has_todays_settings=result.settings == entry.digest,
                rerun=lambda entry=entry, seed=seed: _zoo_return(entry, seed),
                remake=result.command,
            )


def _zoo_return(entry: Any, seed: int) -> tuple[float]:
    """Train an entry on a seed, and return what its greedy episodes return, rounded as in its file."""
    with tempfile.TemporaryDirectory() as folder:
        return (rounded(run_seed(entry, seed, Path(folder)).mean),)


def unpublished(document: Path) -> list[str]:
    """Return the numbers of a document that are on none of the results pages which their paragraph links to.

    A number may be rounded; whole numbers are not checked.
    """
    missing = []
    for block in BLOCK.split(document.read_text()):
        pages = [(document.parent / link).read_text() for link in LINK.findall(block)]
        published = [float(number.replace(",", "")) for page in pages for number in ON_PAGE.findall(page)]
        for number in NUMBER.findall(ADDRESS.sub("", block)) if pages else ():
            n_digits = len(number.partition(".")[2])
            if not any(abs(one - float(number)) < 0.501 * 10**-n_digits for one in published):
                missing.append(number)
    return missing


def sampled(of: Sequence[Row], minutes: float, rng: random.Random) -> list[Row]:
    """Return rows in random order, one at least, as many as fit into a time by what they took when measured."""
    shuffled = rng.sample(of, len(of))
    chosen: list[Row] = []
    for row in shuffled:
        if not chosen or sum(own.seconds for own in chosen) + row.seconds <= 60 * minutes:
            chosen.append(row)
    return chosen


def expected(scores: Sequence[float]) -> tuple[float, float] | None:
    """Return the 99 % prediction interval of another seed's score, None where a single seed was published."""
    degrees = len(scores) - 1
    if degrees < 1:
        return None
    deviation = statistics.stdev(scores) * math.sqrt(1 + 1 / len(scores))
    half = T_995[min(degrees, len(T_995)) - 1] * deviation
    return statistics.fmean(scores) - half, statistics.fmean(scores) + half


def verdict(row: Row, today: str, scores: Sequence[float] = ()) -> Verdict:
    """Train a row again and say whether it reproduces.

    Args:
        row: to train again.
        today: the commit of the code.
        scores: those of all published seeds of its group.
    """
    is_todays = row.commit == today and not today.endswith("+")
    behind = commits_since(row.commit)
    age = "today's code" if is_todays else f"commit {row.commit}, {'?' if behind is None else behind} commits behind"
    if not row.has_todays_settings:
        return Verdict(text=f"outdated: its settings have changed since ({age}); remake it: {row.remake}")
    try:
        returns = list(row.rerun())
    except (ImportError, gymnasium.error.Error, tk.ConfigError) as error:
        missing = (ImportError, gymnasium.error.DependencyNotInstalled)
        if not isinstance(error, missing) and not isinstance(error.__cause__, missing):
            raise
        return Verdict(text=f"not run, its environment is not installed: {error}")
    if returns == list(row.returns):
        return Verdict(text=f"reproduces, all {len(returns)} evaluations to the bit ({age})")
    differing = (n for n, pair in enumerate(zip(returns, row.returns, strict=False)) if pair[0] != pair[1])
    first = next(differing, min(len(returns), len(row.returns)))
    published, found = (f"{of[first]:.2f}" if first < len(of) else "none" for of in (row.returns, returns))
    what = f"evaluation {first + 1} of {len(row.returns)} was {published}, is {found}"
    if is_todays or row.commit == UNKNOWN:
        return Verdict(text=f"DOES NOT REPRODUCE: {what} ({age})", is_error=True)
    outdated = f"outdated: {what} ({age}); remake it: {row.remake}"
    bounds = expected(scores)
    if bounds is None or not returns:
        return Verdict(text=outdated)
    low, high = bounds
    score, is_expected = statistics.fmean(returns), low <= statistics.fmean(returns) <= high
    where = (
        f"its mean {score:.4g} is {'' if is_expected else 'NOT '}between {low:.4g} and {high:.4g}, as of other seeds"
    )
    return Verdict(text=f"{outdated}; {where}", is_error=not is_expected)


def main() -> None:
    """Rerun a sample of rows and print a line for each."""
    parser = pages.arguments(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="of CPU time that the sampled rows took")
    parser.add_argument("--only", default="", help="a text in the names of the rows to sample from")
    parser.add_argument("--sample", default=None, help="chooses the sample; default: the commit")
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="print the rows instead, with their commits")
    options = parser.parse_args()
    for document in DOCUMENTS:
        if missing := unpublished(document):
            raise SystemExit(f"{document}: {', '.join(missing)} are on none of the pages that it links to there")
    torch.set_num_threads(1)
    today = code_commit()
    every = list(rows(options.core))
    found = [row for row in every if options.only in row.name]
    if not found:
        parser.error(f"no row has {options.only!r} in its name: --list prints them all")
    if options.list:
        for row in found:
            print(f"{row.commit}  {row.name}{'' if row.has_todays_settings else '  (settings have changed since)'}")
        return
    chosen = sampled(found, options.minutes, random.Random(options.sample or today))
    print(f"{len(chosen)} of {len(found)} published rows, at {today}:", flush=True)
    verdicts = []
    for row in chosen:
        scores = [other.score for other in every if other.group == row.group]
        verdicts.append(verdict(row, today, scores))
        print(f"{row.name}: {verdicts[-1].text}", flush=True)
    raise SystemExit(any(own.is_error for own in verdicts))


if __name__ == "__main__":
    main()
