"""Many runs: one function that makes a trainer, trained on several seeds at the same time."""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from trainkit.core.errors import Checks, ConfigError
from trainkit.core.signatures import checked
from trainkit.core.stats import RunInfo, RunResult
from trainkit.extensions.many_runs.tasks import (
    OUTPUT,
    TRACEBACK,
    Backend,
    Outcome,
    Progress,
    Report,
    Task,
    run_tasks,
)
from trainkit.loggers import JsonlLogger
from trainkit.trainer.base import Trainer

MakeTrainer = Callable[..., Trainer]


@checked
def run(
    make_trainer: MakeTrainer | Mapping[str, MakeTrainer],
    *,
    seeds: Iterable[int],
    jobs: int = 1,
    backend: Backend = "process",
    folder: str | Path = "runs",
    on_result: Callable[[RunResult], object] | None = None,
    verbose: bool = True,
) -> list[RunResult]:
    """Train on every seed, several runs at the same time, and return their results in the order of the runs.

    Each run has a process of its own that computes on one thread: its bits do not depend on `jobs`. A run that fails is
    named in the results, its traceback is `error.txt` in its folder, and the others continue. On Ctrl-C and SIGTERM all
    runs save and end. Called again, every run continues where it stood, if its trainer resumes.

    Args:
        make_trainer: called as `make_trainer(seed, logger=, checkpoint=, resume_from=, verbose=, show_progress=)` in
            the process of a run, with those of these options that it accepts: pass them on to the trainer or preset, so
            that it logs to `folder/seed3`, saves there and resumes. Several by name run in `folder/NAME/seed3`.
        seeds: of the runs.
        jobs: runs at the same time; a run needs one core.
        backend: "process" on this machine, "ray" as tasks of a Ray cluster, to which `folder` must be a shared file
            system.
        folder: has the folders of the runs.
        on_result: called with each result as it comes.
        verbose: print a line per run, and on a terminal one bar for all.

    Raises:
        ConfigError: a function cannot be sent to another process.
        KeyboardInterrupt: Ctrl-C, when all runs have ended.
    """
    makers = {"": make_trainer} if callable(make_trainer) else dict(make_trainer)
    numbers = list(seeds)
    with Checks("run") as checks:
        checks.require(len(makers) > 0 and all(map(callable, makers.values())), _NO_FUNCTION.format(make_trainer))
        are_seeds = len(numbers) > 0 and all(type(seed) is int and seed >= 0 for seed in numbers)
        checks.require(are_seeds, f".seeds must be integers >= 0, and at least one, got {numbers!r:.80}")
        checks.require(len({*numbers}) == len(numbers), f".seeds must differ, got {numbers!r:.80}")
        checks.integer("jobs", jobs, low=1)
        checks.one_of("backend", backend, ["process", "ray"])
    root = Path(folder).absolute()
    runs: dict[str, RunResult] = {}
    tasks = []
    for name, make in makers.items():
        for seed in numbers:
            own = root / name / f"seed{seed}"
            key = own.relative_to(root).as_posix()
            runs[key] = RunResult(name=key, seed=seed, folder=own)
            tasks.append(Task(name=key, folder=own, work=partial(train_in_folder, make, seed, own)))
    with ProgressBar(show_bar=None if verbose else False, show_lines=verbose) as bar:
        for outcome in run_tasks(tasks, jobs, backend=backend, show=bar.show):
            runs[outcome.name] = result = replace(runs[outcome.name], info=outcome.result, error=outcome.error)
            bar.line(outcome)
            if on_result is not None:
                on_result(result)
    return list(runs.values())


def run_all(
    work: Mapping[str, Callable[[Report], RunInfo]], folder: Path, *, jobs: int, backend: Backend, quiet: bool
) -> Iterator[Outcome]:
    """Do several pieces of work at the same time, print a line for each that has ended, and yield its outcome.

    Args:
        work: {name of its folder below `folder`: a function that is called with a `Report`}.
        folder: of all.
        jobs: pieces at the same time, each in a process of its own on one thread.
        backend: as in `run`.
        quiet: show no bar.
    """
    tasks = [Task(name=name, folder=folder / name, work=one) for name, one in work.items()]
    with ProgressBar(show_bar=False if quiet else None, show_lines=True) as bar:
        for outcome in run_tasks(tasks, jobs, backend=backend, show=bar.show):
            bar.line(outcome)
            yield outcome


_NO_FUNCTION = ".make_trainer must be a function of a seed that returns a trainer, or several by name, got {!r}"


def train_in_folder(make_trainer: MakeTrainer, seed: int, folder: Path, report: Report) -> RunInfo:
    """Make a trainer that logs to a folder, saves and resumes there, and train it."""
    options: dict[str, Any] = {
        "checkpoint": folder / "checkpoint", "resume_from": "auto", "verbose": False, "show_progress": False,
    }  # fmt: skip
    accepted = inspect.signature(make_trainer).parameters
    takes_all = any(one.kind is one.VAR_KEYWORD for one in accepted.values())
    given = {name: value for name, value in options.items() if takes_all or name in accepted}
    if takes_all or "logger" in accepted:
        given["logger"] = JsonlLogger(folder, resume=True)
    trainer = make_trainer(seed, **given)
    if not isinstance(trainer, Trainer):
        raise ConfigError(f"run.make_trainer must return a trainer, got {trainer!r}")
    with trainer:
        report(trainer.epoch, trainer.max_epoch)
        for result in trainer:
            report(result.epoch, trainer.max_epoch)
        return trainer.info


class ProgressBar:
    """One bar over all runs, and a line above it for each that has ended.

    Args:
        show_bar: None shows it on a terminal.
        show_lines: whether to print the lines.
    """

    def __init__(self, *, show_bar: bool | None, show_lines: bool) -> None:
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._is_shown = is_terminal if show_bar is None else show_bar
        self._shows_lines = show_lines
        self._bar: Any = None

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def show(self, progress: Progress) -> None:
        """Move the bar, and name the epochs of the runs."""
        if not self._is_shown:
            return
        if self._bar is None:
            shape = "{l_bar}{bar}| {n:.1f}/{total} [{elapsed}<{remaining}{postfix}]"
            self._bar = tqdm(total=progress.n_tasks, unit="run", dynamic_ncols=True, bar_format=shape)
        running = " | ".join(f"{name} {epoch}/{last}" for name, (epoch, last) in progress.epochs.items())
        self._bar.set_postfix_str(running, refresh=False)
        self._bar.update(progress.done - self._bar.n)

    def line(self, outcome: Outcome) -> None:
        """Print how a run ended."""
        if self._shows_lines:
            tqdm.write(describe_outcome(outcome))


def describe_outcome(outcome: Outcome) -> str:
    """Return a line about the end of a run."""
    info = outcome.result
    if not isinstance(info, RunInfo):
        return f"{outcome.name}: failed: {outcome.error}; see {TRACEBACK} and {OUTPUT} in its folder"
    score = "" if info.best_score is None else f", best score {info.best_score:g} at step {info.best_env_step:,}"
    reason = "finished before" if info.stop_reason is None else info.stop_reason
    return f"{outcome.name}: {reason} after {info.env_step:,} steps, {info.seconds:.0f} s{score}"
