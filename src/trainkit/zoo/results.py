"""Results of the zoo: training on fresh seeds, greedy episodes of each, and the result written into the entry's file.

What a seed gave is kept in `FOLDER/PRESET-ENV-DIGEST/seedN`, so that an interrupted command continues: a finished seed
is not run again, and one that was interrupted resumes from its checkpoint.
"""

import concurrent.futures
import datetime
import json
import multiprocessing
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from trainkit.core import files, seeding
from trainkit.core.config import to_toml
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.folders import CHECKPOINT
from trainkit.core.signatures import checked
from trainkit.envs.make import borrowed_envs
from trainkit.loggers import JsonlLogger
from trainkit.loggers.runs import RunFolder
from trainkit.plot.comparing import interval
from trainkit.policy import RandomPolicy, load_policy
from trainkit.presets import PRESETS
from trainkit.presets.zoo_entry import ZOO, ZooEntry, folder_flag
from trainkit.trainer import Checkpoint, evaluate
from trainkit.trainer.interrupt import TERMINATE
from trainkit.zoo.pretrained import entry as entry_of

FIRST_SEED = 101  # of results, unless it is a tuning seed
LARGEST_WEIGHTS = 500_000  # bytes of a shipped policy

_POINTS = 25  # of a curve
_OUTCOME, _POLICY = "outcome.json", "policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedOutcome:
    """What one seed gave: the mean return of its greedy episodes, and the evaluations during its training."""

    seed: int
    mean: float
    steps: int
    seconds: float
    commit: str
    curve: Sequence[tuple[int, float]]


@checked
def train(
    preset: str,
    env: str,
    *,
    seeds: int | Sequence[int] = 5,
    jobs: int = 1,
    weights: Literal["median", "best"] | None = None,
    runs: str | Path = Path("runs/zoo"),
    folder: str | Path = ZOO,
    verbose: bool = False,
) -> ZooEntry:
    """Train an entry's settings on fresh seeds, evaluate, and write the result into its file; return the new entry.

    Args:
        preset: the preset's name.
        env: the environment's id.
        seeds: the number of them, from 101 without the tuning seeds; or the seeds themselves.
        jobs: processes that train at once, each on one thread.
        weights: ships the policy of the seed with the median or the best return, next to the file; None ships none.
        runs: the folder of the runs, in which an interrupted call continues.
        folder: of the zoo; default: that of trainkit.
        verbose: print what each seed returned and, where one trains at a time, its epochs.

    Raises:
        ConfigError: there is no such entry, a seed is a tuning seed, or the weights are larger than 500 KB.
    """
    entry = entry_of(preset, env, folder=folder)
    chosen = fresh_seeds(entry, seeds) if isinstance(seeds, int) else [*seeds]
    check_fresh(entry, chosen)
    with Checks("zoo.train") as checks:
        checks.require(len(chosen) == len({*chosen}) > 0, f".seeds must be one or more different seeds, got {seeds}")
        checks.integer("jobs", jobs, low=1)
    outcomes = []
    for outcome in _outcomes(entry, chosen, jobs, Path(runs), Path(folder), verbose=verbose):
        outcomes.append(outcome)
        if verbose:
            mean, episodes = rounded(outcome.mean), f"{entry.episodes} greedy episodes"
            _print(f"{entry.name}, seed {outcome.seed}: mean return {mean:g} of {episodes}, {outcome.seconds:,.0f} s")
    result = _summary(entry, outcomes, Path(folder))
    if entry.weights.is_dir():
        shutil.rmtree(entry.weights)  # of a former result
    if weights is not None:
        result |= _ship(entry, outcomes, weights, Path(runs))
    _write_result(entry, result)
    return entry_of(preset, env, folder=folder)


def fresh_seeds(entry: ZooEntry, n: int) -> list[int]:
    """Return the first n seeds from `FIRST_SEED` on that are not tuning seeds."""
    with Checks("zoo.train") as checks:
        checks.integer("seeds", n, low=1)
    candidates = range(FIRST_SEED, FIRST_SEED + n + len(entry.tuning_seeds))
    return [seed for seed in candidates if seed not in entry.tuning_seeds][:n]


def check_fresh(entry: ZooEntry, seeds: Sequence[int]) -> None:
    """Raise `ConfigError` for seeds on which the entry's settings were chosen."""
    tuned = sorted({*entry.tuning_seeds} & {*seeds})
    if tuned:
        chosen_on, given = (", ".join(map(str, seeds)) for seeds in (entry.tuning_seeds, tuned))
        raise ConfigError(
            f"the settings of {entry.name} were chosen on seeds {chosen_on}, and its result must be of others, got "
            f"{given}: name fresh ones"
        )


# ---- one seed ----


def run_seed(entry: ZooEntry, seed: int, folder: Path, *, verbose: bool = False) -> SeedOutcome:
    """Train one seed and evaluate it, or return what a finished run gave; `verbose` prints its epochs.

    Raises:
        SystemExit: SIGTERM ended the training, which was saved.
    """
    file = folder / _OUTCOME
    if file.is_file():
        return SeedOutcome(**files.read_json(file, error=ConfigError))
    checkpoint = Checkpoint(folder / CHECKPOINT)
    resumes = (folder / CHECKPOINT).is_dir()
    if verbose:
        _print(f"{entry.name}, seed {seed}{', continued' if resumes else ''}:")
    trainer = PRESETS[entry.preset](
        entry.env,
        seed=seed,
        zoo=False,  # the settings are given, so that an entry of any folder can be trained
        logger=JsonlLogger(folder, resume=resumes),
        checkpoint=checkpoint,
        resume_from="auto" if resumes else None,
        verbose=verbose,
        show_progress=None if verbose else False,
        threads=1,
        **entry.settings,
    )
    with trainer:
        try:
            info = trainer.run()
        except KeyboardInterrupt:
            checkpoint.save(trainer)
            raise
        if info.stop_reason == TERMINATE:
            raise SystemExit(128 + signal.SIGTERM)
        began = time.perf_counter()
        policy = trainer.policy if entry.policy == "last" else load_policy(checkpoint.folder / "best", device="cpu")
        mean = _mean_return(entry, policy, seed)
        policy.save(folder / _POLICY)
        steps = trainer.clock
    curve = [
        (int(step), float(mean)) for step, mean in zip(*RunFolder.read(folder).series("test/returns/mean"), strict=True)
    ]
    seconds = info.seconds + time.perf_counter() - began  # those before an interruption count
    outcome = SeedOutcome(seed=seed, mean=mean, steps=steps, seconds=seconds, commit=code_commit(), curve=curve)
    text = json.dumps(asdict(outcome)).encode()
    files.write_whole(file, lambda opened: opened.write(text))
    return outcome


def _mean_return(entry: ZooEntry, policy: Any, seed: int) -> float:
    """Return the mean return of greedy episodes that no training or evaluation of the seed has played."""
    options = dict(entry.settings.get("env_options", {}))
    root = seeding.derive(seed, "zoo")
    mean = evaluate(policy, entry.env, n_episode=entry.episodes, seed=root, **options).returns.mean
    assert mean is not None, "episodes were requested"
    return mean


def _run_by_name(preset: str, env: str, zoo: Path, seed: int, folder: Path) -> SeedOutcome:
    """Run a seed in a process of its own, which reads the entry itself."""
    return run_seed(entry_of(preset, env, folder=zoo), seed, folder)


# ---- all seeds ----


def _outcomes(
    entry: ZooEntry, seeds: Sequence[int], jobs: int, runs: Path, zoo: Path, *, verbose: bool
) -> Iterator[SeedOutcome]:
    """Run every seed, some at once, and yield what they gave, in order."""
    folders = [_seed_folder(entry, seed, runs) for seed in seeds]
    if jobs == 1:
        for seed, folder in zip(seeds, folders, strict=True):
            yield run_seed(entry, seed, folder, verbose=verbose)
        return
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = [
            pool.submit(_run_by_name, entry.preset, entry.env, zoo, seed, folder)
            for seed, folder in zip(seeds, folders, strict=True)
        ]
        for one in waiting:
            yield one.result()


def _seed_folder(entry: ZooEntry, seed: int, runs: Path) -> Path:
    return runs / f"{entry.name.replace('/', '-')}-{entry.digest}" / f"seed{seed}"


def _summary(entry: ZooEntry, outcomes: Sequence[SeedOutcome], folder: Path) -> dict[str, Any]:
    """Return the fields of a result: the mean over seeds, its bootstrap interval, and the mean curve."""
    means = [outcome.mean for outcome in outcomes]
    over_seeds = interval([means], statistic="mean")
    curves = list(zip(*(outcome.curve for outcome in outcomes), strict=False))  # evaluations that all seeds have
    points = [(at[0][0], rounded(statistics.fmean(own for _, own in at))) for at in curves]
    every = -(-len(points) // _POINTS)
    first = outcomes[0]
    seeds = [outcome.seed for outcome in outcomes]
    return {
        "seeds": seeds,
        "returns": [rounded(mean) for mean in means],
        "mean": rounded(over_seeds.estimate),
        "low": rounded(over_seeds.low),
        "high": rounded(over_seeds.high),
        "random": rounded(_random_return(entry)),
        "steps": first.steps,
        "seconds": round(statistics.median(outcome.seconds for outcome in outcomes), 1),
        "settings": entry.digest,
        "commit": ", ".join(sorted({outcome.commit for outcome in outcomes})),
        "command": f"trainkit zoo train {entry.preset} {entry.env} --seed-list {' '.join(map(str, seeds))}"
        f"{folder_flag(folder)}",
        "date": datetime.datetime.now(datetime.UTC).date(),
        "curve": points[::-1][::every][::-1] if points else [],  # the last one is kept
    }


def _random_return(entry: ZooEntry) -> float:
    """Return the mean return of random actions."""
    with borrowed_envs(entry.env, 1, **entry.settings.get("env_options", {})) as envs:
        policy = RandomPolicy(envs.action_space, seed=0)
    return _mean_return(entry, policy, 0)


def rounded(number: float) -> float:
    """Round to six significant digits."""
    return float(f"{number:.6g}")


def _ship(entry: ZooEntry, outcomes: Sequence[SeedOutcome], which: str, runs: Path) -> dict[str, Any]:
    """Save the policy of one seed next to the entry's file, and return its seed and its mean return as shipped."""
    ranked = sorted(outcomes, key=lambda outcome: outcome.mean)
    chosen = ranked[-1 if which == "best" else (len(ranked) - 1) // 2]
    load_policy(_seed_folder(entry, chosen.seed, runs) / _POLICY, device="cpu").save(entry.weights, compact=True)
    n_bytes = sum(path.stat().st_size for path in entry.weights.iterdir())
    if n_bytes > LARGEST_WEIGHTS:
        shutil.rmtree(entry.weights)
        raise ConfigError(
            f"the policy of {entry.name} has {n_bytes:,} bytes, more than the {LARGEST_WEIGHTS:,} of a shipped one: "
            "leave weights out (--weights none); its seeds are finished and are not run again"
        )
    mean = _mean_return(entry, load_policy(entry.weights, device="cpu"), chosen.seed)
    return {"weights_seed": chosen.seed, "weights_return": rounded(mean)}


def _write_result(entry: ZooEntry, result: dict[str, Any]) -> None:
    """Replace the result in an entry's file; the text above it stays as it is."""
    above = files.read_text(entry.path, error=ConfigError).partition("\n[result]")[0].rstrip()
    lines = [
        f"{name} = {value if isinstance(value, datetime.date) else to_toml(value)}" for name, value in result.items()
    ]
    text = "\n".join([above, "", "[result]  # written by `trainkit zoo train`", *lines, ""])
    files.write_whole(entry.path, lambda file: file.write(text.encode()))


def _print(line: str) -> None:
    print(line, flush=True)  # noqa: T201  # what `verbose` is for


def code_commit() -> str:
    """Return the commit of trainkit's code, with a "+" where it was changed since; "unknown" outside a git checkout."""
    package = Path(__file__).parents[1]
    where = ["--", str(package), f":(exclude){package / 'presets' / 'zoo'}"]
    try:
        commit, changes = (
            subprocess.run(["git", "-C", package, *words, *where], capture_output=True, text=True, check=True).stdout
            for words in (["log", "-1", "--format=%h", "--abbrev=7"], ["status", "--porcelain"])
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit.strip()}{'+' * bool(changes)}" if commit else "unknown"
