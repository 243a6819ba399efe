"""`trainkit sweep`: the runs of a TOML file, one after the other or several at a time; finished ones are skipped."""

import argparse
import hashlib
import itertools
import json
import re
import signal
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainkit.cli.output import Commands, Parser, add_command, format_table, print_error, print_line
from trainkit.cli.run_config import RunConfig
from trainkit.cli.train import add_jobs, check_jobs, train, train_at_once
from trainkit.core import files
from trainkit.core.config import from_text, texts_from_toml, to_shell
from trainkit.core.errors import Checks, ConfigError, TrainkitError, reject_unknown
from trainkit.core.stats import RunInfo, format_number
from trainkit.presets import PRESETS
from trainkit.presets.base import MAIN
from trainkit.trainer.interrupt import TERMINATE
from trainkit.trainer.parallel.tasks import Outcome

_EXAMPLES = """\
  trainkit sweep lr.toml --dry-run                   list the runs
  trainkit sweep lr.toml                             run them; again: those that are not finished
  trainkit sweep lr.toml --jobs 4                    four runs at a time
  trainkit compare runs/lr

A file has the preset, the environment and one table of what to try:

  preset = "dqn"                                     # or several: ["dqn", "rainbow"]
  env = "CartPole-v1"                                # or several
  seeds = 3                                          # seeds 1 to 3, or [11, 12]
  [settings]                                         # of all runs
  max_epoch = 5
  [grid]                                             # all combinations
  lr = [1e-3, 5e-4, "linear:1e-3,0"]
  hidden = [[64, 64], [128, 128]]

  [random]                                           # or: so many draws
  draws = 20
  lr = {low = 1e-5, high = 1e-2, log = true}
  batch_size = [32, 64, 128]

  [[list]]                                           # or: one table for each
  lr = 1e-3
  n_step = 3

Each run is a folder LOGDIR/FILE/SETTINGS/seedN, such as runs/lr/lr=0.001_hidden=64,64/seed1."""

_TOP = ("preset", "env", "data", "seeds", "settings", "grid", "random", "list")
_RANGE = ("low", "high", "log")
_RESULTS = "sweep.jsonl"  # a line for each finished run
_LONGEST_NAME, _LARGEST_FILE = 120, 2**20  # characters, bytes
_MOST_RUNS = 100_000

Texts = dict[str, str]  # {setting: text}, as in `--set`


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run of a sweep: what to train, and the name of its folder below the sweep's."""

    config: RunConfig
    name: str

    @property
    def folder(self) -> str:
        """The folder of the run, below that of the sweep."""
        return f"{self.name}/seed{self.config.seed}"


def add_sweep(commands: "Commands[Parser]") -> None:
    """Add the command that runs sweeps."""
    about = "train with many settings from a file: a grid, random draws or a list"
    parser = add_command(commands, "sweep", run_sweep, about=about, examples=_EXAMPLES)
    parser.add_argument("file", metavar="FILE", type=Path, help="a TOML file, see below")
    parser.add_argument("--logdir", metavar="FOLDER", type=Path, default=Path("runs"), help="default: runs")
    parser.add_argument("--name", help="of the folder below it, default: the file's")
    parser.add_argument("--dry-run", action="store_true", help="list the runs, and which are finished")
    parser.add_argument("--quiet", action="store_true", help="no bar and no line per epoch")
    add_jobs(parser)


def run_sweep(options: argparse.Namespace) -> int:
    """Train every run that is not finished, then print the mean score of each setting."""
    with Checks("trainkit sweep") as checks:
        check_jobs(checks, options)
    jobs = read_sweep(options.file)
    name = options.name or options.file.stem
    folder = options.logdir / name
    finished = _read_results(folder)
    _check_same(folder, jobs, finished)
    by_folder, n_failed = {job.folder: job for job in jobs}, 0
    for outcome in _outcomes(jobs, folder, finished, options):
        if outcome.error is not None:
            n_failed += 1
        elif outcome.result.stop_reason == TERMINATE:
            return 128 + signal.SIGTERM
        else:
            finished[outcome.name] = _write_result(folder, by_folder[outcome.name], outcome.result)
    if not options.dry_run:
        print_line(f"\n{_summary(jobs, finished)}\n\ntrainkit compare {folder} has intervals over the seeds")
    if n_failed:
        raise ConfigError(f"{n_failed} of {len(jobs)} runs failed, see above: run the sweep again to try them again")
    return 0


def _outcomes(
    jobs: Sequence[Job], folder: Path, finished: Mapping[str, object], options: argparse.Namespace
) -> Iterator[Outcome]:
    """Train every run that is not finished, and yield how it ended; list all of them."""
    is_listed = options.jobs is None or options.dry_run
    due = {}
    for number, job in enumerate(jobs, 1):
        is_done = job.folder in finished
        if is_listed or is_done:
            print_line(f"[{number}/{len(jobs)}] {job.folder}{': finished' if is_done else ''}")
        if is_done or options.dry_run:
            continue
        due[job.folder] = job.config
        if options.jobs is None:
            yield _train_here(job, folder, options)
    if due and options.jobs is not None:
        yield from train_at_once(due, folder, argparse.Namespace(**vars(options), checkpoint_every=1))


def _train_here(job: Job, folder: Path, options: argparse.Namespace) -> Outcome:
    """Train a run in this process; the others may do better than one that fails."""
    how = {"resume": True, "checkpoint_every": 1, "quiet": options.quiet, "logdir": options.logdir}
    try:
        info = train(job.config, folder / job.folder, argparse.Namespace(name=f"{folder.name}/{job.name}", **how))
    except (TrainkitError, ArithmeticError, MemoryError) as error:
        print_error(f"{job.folder}: {error}")
        return Outcome(name=job.folder, error=str(error))
    return Outcome(name=job.folder, result=info)


def read_sweep(path: Path) -> list[Job]:
    """Return the runs that a file describes, in order.

    Raises:
        ConfigError: the file cannot be read, or describes no run, or one that cannot be made.
    """
    text = files.read_text(path, max_bytes=_LARGEST_FILE, error=ConfigError)
    with files.decoding(path, "TOML", remedy="correct it", error=ConfigError):
        plan = tomllib.loads(text)
    reject_unknown(str(path), plan, _TOP)
    with Checks(str(path)) as checks:
        for name in ("settings", "grid", "random"):
            checks.require(isinstance(plan.get(name, {}), dict), f": [{name}] must be a table, got {plan.get(name)!r}")
        tables = plan.get("list", [])
        is_list = isinstance(tables, list) and all(isinstance(table, dict) for table in tables)
        checks.require(is_list, ": write each setting of the list as a table [[list]]")
        kinds = [kind for kind in ("grid", "random", "list") if kind in plan]
        checks.require(len(kinds) <= 1, f" has {' and '.join(kinds)}: a sweep is one of them, make two files")
        checks.require("preset" in plan, ' needs preset = "dqn", or another of `trainkit presets`')
    common, jobs = texts_from_toml(plan.get("settings", {})), []
    presets, envs = _several(plan["preset"]), _several(plan.get("env"))
    tried = list(itertools.islice(_tried(plan, str(path)), _MOST_RUNS))
    for preset, env, own in itertools.product(presets, envs, tried):
        task = "-".join(str(part) for part in (preset, env) if part is not None)
        words = [task] if len(presets) * len(envs) > 1 or not own else []
        name = _folder_name([*words, *(f"{setting}={_shown(text)}" for setting, text in own.items())])
        for seed in _seeds(plan.get("seeds", 1), str(path)):
            config = RunConfig(preset=preset, env=env, seed=seed, data=plan.get("data"), settings={**common, **own})
            jobs.append(Job(config=config, name=name))
        PRESETS[preset].check_options({setting: from_text(text) for setting, text in {**common, **own}.items()})
    if len({job.folder for job in jobs}) < len(jobs):
        raise ConfigError(f"{path} has the same run twice: remove one")
    return jobs


def _tried(plan: Mapping[str, Any], subject: str) -> Iterator[Texts]:
    """Yield the settings of each combination, draw or table; once nothing if the file has none of them."""
    if "list" in plan:
        yield from map(texts_from_toml, plan["list"])
    elif "random" in plan:
        yield from _drawn(dict(plan["random"]), f"{subject}: [random]")
    else:
        grid = plan.get("grid", {})
        with Checks(f"{subject}: [grid]") as checks:
            for name, values in grid.items():
                is_list = isinstance(values, list) and len(values) > 0
                checks.require(is_list, f".{name} must be a list of the values to try, got {values!r:.80}")
        yield from (
            texts_from_toml(dict(zip(grid, values, strict=True))) for values in itertools.product(*grid.values())
        )


def _drawn(choices: dict[str, Any], subject: str) -> Iterator[Texts]:
    """Yield `draws` random settings; the first ones stay the same when there are more draws."""
    n_draws, seed = choices.pop("draws", None), choices.pop("seed", 0)
    with Checks(subject) as checks:
        checks.integer("draws", n_draws, low=1)
        checks.integer("seed", seed, low=0)
        for name, choice in choices.items():
            if isinstance(choice, dict):
                reject_unknown(f"{subject}.{name}", choice, _RANGE)
                low: Any = choice.get("low")
                high: Any = choice.get("high")
                are_bounds = all(isinstance(bound, (int, float)) for bound in (low, high)) and low < high
                rule = f".{name} must be {{low = 1e-5, high = 1e-2}} with low < high, got {choice!r:.80}"
                if checks.require(are_bounds, rule) and choice.get("log"):
                    checks.require(low > 0, f".{name}.low must be > 0 on a logarithmic scale, got {low}")
            else:
                rule = f".{name} must be a list of values, or {{low = .., high = ..}}, got {choice!r:.80}"
                checks.require(isinstance(choice, list) and len(choice) > 0, rule)
    rng = np.random.default_rng(seed)
    for _ in range(n_draws):
        yield texts_from_toml({name: _draw(choice, rng) for name, choice in choices.items()})


def _draw(choice: Any, rng: np.random.Generator) -> Any:
    """Draw one of a list, or a number of a range: an integer between integers, else of three digits."""
    if isinstance(choice, list):
        return choice[int(rng.integers(len(choice)))]
    low, high = choice["low"], choice["high"]
    if isinstance(low, int) and isinstance(high, int) and not choice.get("log"):
        return int(rng.integers(low, high, endpoint=True))
    drawn = np.exp(rng.uniform(np.log(low), np.log(high))) if choice.get("log") else rng.uniform(low, high)
    is_integer = isinstance(low, int) and isinstance(high, int)
    return round(float(drawn)) if is_integer else float(f"{float(drawn):.3g}")


def _shown(text: str) -> str:
    value = from_text(text)
    shown = to_shell(value)
    return re.sub(r"[\s()\[\]]|,\)$", "", shown) if isinstance(value, (tuple, list)) else shown


def _folder_name(words: Sequence[str]) -> str:
    """Return words as the name of a folder on any system; of too long a name the end is replaced by a hash."""
    whole = "_".join(words)
    name = re.sub(r"[^\w=.,+-]", "-", whole)
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 9]}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _seeds(given: Any, subject: str) -> list[int]:
    """Return the seeds of a file: 1 to a number, or a list of them."""
    seeds = [*range(1, given + 1)] if type(given) is int else given
    if not (isinstance(seeds, list) and seeds and all(type(seed) is int and seed >= 0 for seed in seeds)):
        raise ConfigError(f"{subject}: seeds must be a number >= 1, or a list of seeds >= 0, got {given!r:.80}")
    return seeds


def _read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Return {run: its line in the results} of runs that are finished and still there."""
    path = folder / _RESULTS
    if not path.is_file():
        return {}
    lines = files.read_text(path, max_bytes=2**28, error=ConfigError).splitlines()
    found = [files.parse_json(line, path, error=ConfigError) for line in lines]
    if not all(isinstance(line, dict) and {"run", "settings", "score"} <= line.keys() for line in found):
        raise ConfigError(f"{path} was not written by trainkit sweep: remove it, and the runs are made again")
    return {line["run"]: line for line in found if (folder / str(line["run"])).is_dir()}


def _write_result(folder: Path, job: Job, info: RunInfo) -> dict[str, Any]:
    """Add a line to the results, and return it; the score is that of the last evaluation."""
    test = info.last_test
    score = test.policies[MAIN].returns.mean if MAIN in test.policies else test.returns.mean  # as `score_tag`
    line = {"run": job.folder, "settings": _identity(job), "score": score, "stop_reason": info.stop_reason}
    with (folder / _RESULTS).open("a") as file:
        file.write(json.dumps(line) + "\n")
    return line


def _identity(job: Job) -> Texts:
    """Return all that defines a run except its seed, which its folder names."""
    config = job.config
    return {"preset": config.preset, "env": str(config.env), "data": str(config.data), **config.settings}


def _check_same(folder: Path, jobs: Sequence[Job], finished: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise `ConfigError` if a finished run had other settings than the file has now."""
    for job in jobs:
        if job.folder in finished and finished[job.folder]["settings"] != _identity(job):
            theirs, own = finished[job.folder]["settings"], _identity(job)
            names = sorted(name for name in {*theirs, *own} if theirs.get(name) != own.get(name))
            raise ConfigError(
                f"{folder / job.folder} was trained with another {', '.join(names)}: give another --name, or remove it"
            )


def _summary(jobs: Sequence[Job], finished: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table of the mean score of each setting, the best first."""
    scores: dict[str, list[float]] = {}
    for job in jobs:
        score = finished.get(job.folder, {}).get("score")
        scores.setdefault(job.name, []).extend([] if score is None else [float(score)])
    means = {name: float(np.mean(own)) for name, own in scores.items() if own}
    order = sorted(scores, key=lambda name: -means.get(name, -np.inf))
    rows = [[name, str(len(scores[name])), format_number(means[name]) if name in means else ""] for name in order]
    return format_table([["settings", "seeds", "mean score"], *rows])
