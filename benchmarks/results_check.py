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

import argparse
import json
import math
import random
import re
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import torch

import trainkit as tk
from benchmarks import general_tables, hl_gauss, learning_work, mujoco, same_settings, time_to_475
from benchmarks.cache import Cache
from benchmarks.provenance import ROOT, UNKNOWN, code_commit, commits_since
from trainkit.zoo.results import rounded, run_seed

RESULTS = Path("benchmarks/results")
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


def rows(core: int) -> Iterator[Row]:
    """Yield every published run of trainkit that is kept with its evaluations."""
    for task_name, task in learning_work.TASKS.items():
        page = "learning_cartpole" if task_name == "cartpole" else "learning_tasks"
        remake = "python -m benchmarks.learning" if task_name == "cartpole" else "python -m benchmarks.learning_tasks"
        for run in learning_work.kept(RESULTS / f"learning_{task_name}.jsonl"):
            yield Row(
                name=f"{page}: {run.preset} on {task.env}, seed {run.seed}",
                commit=run.commit,
                returns=run.returns,
                seconds=run.seconds,
                has_todays_settings=learning_work.has_todays_settings(task, run),
                rerun=lambda task=task, run=run: (
                    learning_work.learn(task, run.preset, run.seed, len(run.returns)).returns
                ),
                remake=remake,
            )
    yield from _rows_of_the_zoo()
    for key, result, commit in _kept("general_tables"):
        name, preset, seed = key[:3]
        if preset != general_tables.RANDOM:
            yield _row(
                f"general_tables: {preset} on {name}, seed {seed}",
                result,
                commit,
                key == [*general_tables.key_of(name, preset, seed)],
                lambda *own: general_tables.learn(*own)["returns"],
                "python -m benchmarks.general_tables",
                (name, preset, seed),
            )
    for key, result, commit in _kept("same_settings"):
        pairing, side, task_name, seed = key[:4]
        if side == same_settings.OURS and key == same_settings.key_of(pairing, side, task_name, seed):
            yield _row(
                f"same_settings: {pairing} on {task_name}, seed {seed}",
                result,
                commit,
                True,  # a run with other settings is not on the page
                lambda *own: same_settings.learn(*own, core)["returns"],
                "make bench-same",
                (pairing, side, task_name, seed),
            )
    for (side, seed, settings), result, commit in _kept("time_to_475"):
        if side != time_to_475.PEER:
            preset = side.removeprefix(f"{time_to_475.OURS}, preset ")
            is_preset = preset != side
            command = [*time_to_475.OUR_COMMAND, *(["--preset", preset] if is_preset else [])]
            todays = tk.presets.settings(preset) if is_preset else time_to_475.work.SETTINGS
            yield _row(
                f"time_to_475: {side}, seed {seed}",
                result,
                commit,
                settings == str(todays),
                lambda *own: time_to_475.learn(*own, core)["returns"],
                "make bench-race",
                (side, command, seed),
            )
    for key, result, commit in _kept("hl_gauss"):
        name, value, seed = key[:3]
        yield _row(
            f"hl_gauss: {value} on {name}, seed {seed}",
            result,
            commit,
            key == json.loads(json.dumps(hl_gauss.key_of(name, value, seed))),
            lambda *own: hl_gauss.learn(*own)["returns"],
            "python -m benchmarks.hl_gauss",
            (name, value, seed),
        )
    for key, result, commit in _kept("mujoco"):
        algorithm, side, seed, task = key[:4]
        if side == mujoco.OURS:
            yield _row(
                f"mujoco: {algorithm} on {task}, seed {seed}",
                result,
                commit,
                key == mujoco.key_of(algorithm, task, side, seed),
                lambda *own: mujoco.learn(*own, core)["returns"],
                "make bench-mujoco",
                (algorithm, task, side, seed),
            )


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


def _kept(name: str) -> Iterator[tuple[list[Any], dict[str, Any], str]]:
    yield from Cache(RESULTS / f"{name}.jsonl").rows()


def _row(
    name: str,
    result: dict[str, Any],
    commit: str,
    has_todays_settings: bool,
    rerun: Callable[..., Sequence[float]],
    remake: str,
    arguments: tuple[Any, ...] = (),
) -> Row:
    return Row(
        name=name,
        commit=commit,
        returns=result["returns"],
        seconds=result["seconds"] or 0.0,
        has_todays_settings=has_todays_settings,
        rerun=lambda: rerun(*arguments),
        remake=remake,
    )


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
