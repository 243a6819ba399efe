"""What all trainers share: the iterator, its epochs, evaluation, stopping, reports and checkpoints."""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, TypedDict

import numpy as np
from numpy.typing import NDArray

from trainkit import checkpoint as checkpoints
from trainkit import seeding
from trainkit.collector import Collector
from trainkit.data import EpochResult
from trainkit.errors import BusyError, CheckpointError, Checks, ConfigError
from trainkit.logger import as_logger
from trainkit.protocols import Buffer, Learner
from trainkit.stats import CollectStats, EpochStats, RunInfo, html_table, scalars
from trainkit.trainer.callbacks import (
    Callback,
    Checkpoint,
    Hooks,
    SaveBestFn,
    SaveCheckpointFn,
    StopFn,
    TestFn,
    TrainFn,
)
from trainkit.trainer.evaluation import Evaluation
from trainkit.trainer.interrupt import DeferredInterrupt
from trainkit.trainer.intervals import Interval, Stopwatch
from trainkit.trainer.progress import Progress

_log = logging.getLogger(__name__)


class TrainerOptions(TypedDict, total=False):
    """The options every trainer takes, but the seed; `Trainer` describes them."""

    test_collector: Collector | None
    episode_per_test: int
    train_fn: Callable[[int, int], None] | None
    test_fn: Callable[[int, int], None] | None
    stop_fn: Callable[[float], bool] | None
    compute_score_fn: Callable[[CollectStats], float | None] | None
    save_best_fn: Callable[[Any], None] | None
    save_checkpoint_fn: Callable[[int, int, int], Any] | None
    reward_metric: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None
    test_in_train: bool
    max_env_step: int | None
    max_seconds: float | None
    logger: Any
    log_every: int
    verbose: bool
    show_progress: bool | None
    callbacks: Sequence[Callback]
    evaluation: Evaluation | None
    checkpoint: Checkpoint | str | Path | None
    resume_from: str | Path | None


class CommonOptions(TrainerOptions, total=False):
    """The options every trainer takes."""

    seed: int | None


class Trainer:
    """An iterator over epochs: each `next()` trains one and returns `(epoch, stats, info)`.

    A fresh trainer works in a bare `for`; after `break` a second `for` goes on. Ctrl-C is held back to the next
    whole vector step or update, and the next `next()` continues the same epoch. `run()` drains it, `reset()` starts
    the count anew, `with` closes environments, logger and bar.

    Args:
        policy: learns.
        train_collector: fills the buffer.
        max_epoch: epochs in all.
        step_per_epoch: environment steps per epoch; what an epoch goes over is taken off the next.
        test_collector: for evaluation after every epoch, without a buffer.
        episode_per_test: episodes per evaluation.
        train_fn: called with (epoch, env_step) before every collect.
        test_fn: called with (epoch, env_step) before every evaluation.
        stop_fn: called with an evaluation's score; True, and True again on fresh seeds, ends the run.
        compute_score_fn: score of an evaluation; default: its mean return.
        save_best_fn: called with the policy when a score is the best so far.
        save_checkpoint_fn: called with (epoch, env_step, gradient_step) at the end of every epoch.
        reward_metric: turns the returns of finished episodes into what statistics and scores show.
        test_in_train: evaluate at once when the training episodes of one collect satisfy `stop_fn`.
        max_env_step: ends the run at this many steps.
        max_seconds: ends the run after this time spent within `next()`; this makes a run irreproducible.
        logger: a folder (tensorboard), a logger, or a list of them.
        log_every: environment steps between reports within an epoch.
        verbose: print one line per epoch.
        show_progress: one bar; None shows it on a terminal and in notebooks.
        callbacks: hear what happens; see `Callback`.
        evaluation: instead of `test_collector` and `episode_per_test`.
        checkpoint: a folder, or a `Checkpoint`, written at the end of epochs.
        resume_from: a checkpoint to go on from.
        seed: fills every part that was given none, by named independent streams.
    """

    unit: ClassVar[str] = "step"

    def __init__(
        self,
        policy: Learner,
        train_collector: Collector | None,
        buffer: Buffer,
        *,
        max_epoch: int,
        step_per_epoch: int,
        test_collector: Collector | None = None,
        episode_per_test: int = 10,
        train_fn: Callable[[int, int], None] | None = None,
        test_fn: Callable[[int, int], None] | None = None,
        stop_fn: Callable[[float], bool] | None = None,
        compute_score_fn: Callable[[CollectStats], float | None] | None = None,
        save_best_fn: Callable[[Any], None] | None = None,
        save_checkpoint_fn: Callable[[int, int, int], Any] | None = None,
        reward_metric: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None,
        test_in_train: bool = False,
        max_env_step: int | None = None,
        max_seconds: float | None = None,
        logger: Any = None,
        log_every: int = 1_000,
        verbose: bool = True,
        show_progress: bool | None = None,
        callbacks: Sequence[Callback] = (),
        evaluation: Evaluation | None = None,
        checkpoint: Checkpoint | str | Path | None = None,
        resume_from: str | Path | None = None,
        seed: int | None = None,
    ) -> None:
        name = type(self).__name__
        checks = Checks(name)
        checks.integer("max_epoch", max_epoch, low=0)
        checks.integer("step_per_epoch", step_per_epoch, low=1)
        checks.integer("log_every", log_every, low=1)
        checks.integer("episode_per_test", episode_per_test, low=1)
        if max_env_step is not None:
            checks.integer("max_env_step", max_env_step, low=1)
        if max_seconds is not None:
            checks.number("max_seconds", max_seconds, low=0, above_low=True)
        if seed is not None:
            checks.integer("seed", seed, low=0)
        functions = {
            "train_fn": train_fn,
            "test_fn": test_fn,
            "stop_fn": stop_fn,
            "compute_score_fn": compute_score_fn,
            "save_best_fn": save_best_fn,
            "save_checkpoint_fn": save_checkpoint_fn,
            "reward_metric": reward_metric,
        }
        for option, fn in functions.items():
            checks.require(fn is None or callable(fn), f".{option} must be callable, got {fn!r}")
        twice = evaluation is not None and test_collector is not None
        checks.require(not twice, " was given both evaluation and test_collector: give one")
        needs_test = {"stop_fn": stop_fn, "save_best_fn": save_best_fn, "test_fn": test_fn}
        if evaluation is None and test_collector is None:
            for option, fn in needs_test.items():
                checks.require(fn is None, f".{option} needs evaluations: give test_collector or evaluation")
        checks.require(not test_in_train or stop_fn is not None, ".test_in_train needs a stop_fn")
        checks.done()

        self.policy, self.train_collector, self.buffer = policy, train_collector, buffer
        self.max_epoch, self.step_per_epoch = max_epoch, step_per_epoch
        if evaluation is None and test_collector is not None:
            evaluation = Evaluation(test_collector, duration=episode_per_test)
        self.evaluation = evaluation
        self._refuse_shared_parts()
        for collector in (train_collector, None if evaluation is None else evaluation.collector):
            if collector is not None and reward_metric is not None:
                collector.use_reward_metric(reward_metric)
        self._stop_fn = StopFn(stop_fn) if stop_fn is not None else None
        self._score_fn = compute_score_fn
        self._test_in_train = test_in_train
        self._max_env_step, self._max_seconds = max_env_step, max_seconds
        self._log_every = log_every
        own: list[Callback | None] = [
            TrainFn(train_fn) if train_fn is not None else None,
            TestFn(test_fn) if test_fn is not None else None,
            self._stop_fn,
            SaveBestFn(save_best_fn) if save_best_fn is not None else None,
            SaveCheckpointFn(save_checkpoint_fn) if save_checkpoint_fn is not None else None,
        ]
        writer = Checkpoint(checkpoint) if isinstance(checkpoint, (str, Path)) else checkpoint
        self._hooks = Hooks([hook for hook in (*own, *callbacks, writer) if hook is not None])
        self.seed = seeding.fresh_root() if seed is None else int(seed)
        self._fill_seeds()
        self._logger = as_logger(logger)
        total = max_epoch * step_per_epoch
        self._progress = Progress(total, show_bar=show_progress, show_lines=verbose, unit=self.unit)
        self._interrupt = DeferredInterrupt()
        self._is_running = False
        self.reset()
        if resume_from is not None:
            self.load(resume_from)

    # ---- the iterator ----

    def __iter__(self) -> Iterator[EpochResult]:
        if self.is_finished:
            _log.warning("%s has finished (%s): reset() lets it train again", type(self).__name__, self.stop_reason)
        return self

    def __len__(self) -> int:
        return self.max_epoch

    def __next__(self) -> EpochResult:
        if self._is_running:
            raise BusyError(f"{type(self).__name__} is already inside next(): use one loop, in one thread, at a time")
        if self.is_finished:
            raise StopIteration
        self._is_running = True
        try:
            with self._interrupt, self._watch.running():
                self._begin_epoch()
                while not self._epoch_is_over:
                    if self._seems_solved:
                        self._test_early()
                    else:
                        self._train_step()
                    self._report_if_due()
                return self._end_epoch()
        except BaseException:
            self._progress.close()
            raise
        finally:
            self._is_running = False

    def run(self) -> RunInfo:
        """Train all epochs that are left and return where the run stands."""
        for _ in self:
            pass
        return self.info

    def reset(self) -> None:
        """Start the count of epochs, the best score and the stop reason anew; policy and buffer stay as they are."""
        self.epoch = 0
        self.best_score: float | None = None
        self.best_epoch: int | None = None
        self.best_env_step: int | None = None
        self.last_test: CollectStats | None = None
        self.stop_reason: str | None = None
        self._origin = self.env_step  # steps that were there before the first epoch
        self._is_in_epoch = self._has_started = False
        self._seems_solved = False  # training episodes passed stop_fn, an evaluation is due (`test_in_train`)
        self._epoch_test: CollectStats | None = None
        self._is_evaluated = False  # whether everybody has heard of `_epoch_test`
        self._n_confirmed = 0  # evaluations on fresh seeds
        self._interval, self._report = Interval(self.env_step), Interval(self.env_step)
        self._watch = Stopwatch(self._interval, self._report)
        self._n_updates_reported = self.policy.n_updates

    def close(self) -> None:
        """Close environments, logger and bar; closing twice is fine."""
        self._progress.close()
        self._logger.close()
        for collector in (self.train_collector, None if self.evaluation is None else self.evaluation.collector):
            if collector is not None:
                collector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- where it stands ----

    @property
    def env_step(self) -> int:
        """The clock: the training collector's steps."""
        return 0 if self.train_collector is None else self.train_collector.env_step

    @property
    def gradient_step(self) -> int:
        """Updates of the policy, ever."""
        return self.policy.n_updates

    @property
    def is_finished(self) -> bool:
        """Whether no epoch is left."""
        return not self._is_in_epoch and (self.stop_reason is not None or self.epoch >= self.max_epoch)

    @property
    def info(self) -> RunInfo:
        """Where the run stands now."""
        return RunInfo(
            epoch=self.epoch,
            env_step=self.env_step,
            gradient_step=self.gradient_step,
            n_episode=0 if self.train_collector is None else self.train_collector.n_episode,
            best_score=self.best_score,
            best_epoch=self.best_epoch,
            best_env_step=self.best_env_step,
            last_test=self.last_test,
            seconds=self._watch.seconds,
            stop_reason=self.stop_reason,
            run_dir=self._logger.folder,
        )

    def _repr_html_(self) -> str:
        return html_table(type(self).__name__, self._settings().items())

    def stop(self, reason: str) -> None:
        """End the run: the epoch that runs is finished, evaluated and yielded, and no other begins."""
        self.stop_reason = reason

    # ---- an epoch ----

    def _train_step(self) -> None:
        """Do the smallest whole piece of training."""
        raise TypeError(f"{type(self).__name__} must define _train_step")

    def _begin_epoch(self) -> None:
        if not self._has_started:
            self._has_started = True
            self._logger.describe(self._settings())
            self._hooks.fire("on_train_start", self)
        if not self._is_in_epoch:
            self._is_in_epoch = True
            self.epoch += 1
            self._epoch_test, self._is_evaluated = None, False
            self._interval = Interval(self.env_step)
            self._watch.intervals[:] = self._interval, self._report
        self._progress.advance_to(self.env_step - self._origin)

    @property
    def _epoch_is_over(self) -> bool:
        if self._max_env_step is not None and self.env_step >= self._max_env_step:
            self.stop_reason = self.stop_reason or "max_env_step"
        if self._max_seconds is not None:
            self._watch.settle()
            if self._watch.seconds >= self._max_seconds:
                self.stop_reason = self.stop_reason or "max_seconds"
        return self.stop_reason is not None or self.env_step - self._origin >= self.epoch * self.step_per_epoch

    def _end_epoch(self) -> EpochResult:
        """Evaluate if it is time, tell the callbacks, and return the result."""
        is_last = self.stop_reason is not None or self.epoch >= self.max_epoch
        if self.evaluation is not None and (is_last or self.epoch % self.evaluation.every == 0):
            self._evaluate()
        self._write_report()
        if self.epoch >= self.max_epoch:
            self.stop_reason = self.stop_reason or "max_epoch"
        self._watch.settle()
        stats = self._stats(self._interval, self._interval.collected(), self._epoch_test)
        result = EpochResult(self.epoch, stats, self.info)
        self._is_in_epoch = False
        self._hooks.fire("on_epoch_end", self, result)
        self._progress.advance_to(self.env_step - self._origin)
        self._progress.epoch(result)
        if self.is_finished:
            self._progress.close()
            self._hooks.fire("on_train_end", self)
        return result

    # ---- evaluation ----

    def score(self, stats: CollectStats) -> float | None:
        """Return an evaluation's score: `compute_score_fn` of it, or its mean return; None without an episode."""
        if self._score_fn is not None:
            return self._score_fn(stats)
        return None if stats.returns is None else stats.returns.mean

    def confirm(self) -> CollectStats:
        """Evaluate on seeds never used before; the result is the last test."""
        assert self.evaluation is not None, "stop_fn is refused without an evaluation"
        with self._watch.measure("evaluate"):
            self.last_test = self.evaluation.run(self.env_step, fresh=self._n_confirmed)
        self._n_confirmed += 1
        return self.last_test

    def _evaluate(self) -> None:
        """Evaluate, once per epoch; after an interrupt this goes on where it was."""
        assert self.evaluation is not None, "only called with an evaluation"
        if self._is_evaluated:
            return
        if self._epoch_test is None:
            collector = self.evaluation.collector
            collector.between_steps = self._interrupt.check
            if not collector.is_interrupted:
                self._hooks.fire("on_evaluate_start", self)
            with self._watch.measure("evaluate"):
                self._epoch_test = self.last_test = self.evaluation.run(self.env_step)
            self._keep_best(self._epoch_test)
        self._hooks.fire("on_evaluate_end", self, self._epoch_test)
        self._is_evaluated = True

    def _keep_best(self, stats: CollectStats) -> None:
        """Note a score above all before; ties keep the first, and no score is never the best."""
        score = self.score(stats)
        if score is None or math.isnan(score) or (self.best_score is not None and score <= self.best_score):
            return
        self.best_score, self.best_epoch, self.best_env_step = score, self.epoch, self.env_step
        self._hooks.fire("on_best", self, stats)

    def _watch_for_success(self, stats: CollectStats) -> None:
        """Note that training episodes look solved (`test_in_train`)."""
        self._seems_solved = (
            self._test_in_train and self._stop_fn is not None and self._stop_fn.holds(self.score(stats))
        )

    def _test_early(self) -> None:
        """Evaluate in the middle of an epoch; if that does not end the run, the epoch's own evaluation follows."""
        self._evaluate()
        self._seems_solved = False
        if self.stop_reason is None:
            self._epoch_test, self._is_evaluated = None, False

    # ---- reports ----

    def _report_if_due(self) -> None:
        self._interrupt.check()
        self._progress.advance_to(self.env_step - self._origin)
        if self.env_step - self._report.env_step >= self._log_every:
            self._write_report()

    def _write_report(self) -> None:
        """Read the device's means once, write what was gathered since the last report, and begin another."""
        self._watch.settle()
        metrics, n_updates = self.policy.read_metrics(), self.policy.n_updates
        for interval in (self._interval, self._report):
            interval.add_means(metrics, n_updates - self._n_updates_reported)
        self._n_updates_reported = n_updates
        collected = self._report.collected()
        if collected is not None:
            self._interval.add_collect(collected)
        stats = self._stats(self._report, collected, self._epoch_test)
        self._logger.write(self.env_step, scalars(stats))
        self._progress.show(_shown(stats))
        self._report = Interval(self.env_step)
        self._watch.intervals[:] = self._interval, self._report

    def _stats(self, interval: Interval, train: CollectStats | None, test: CollectStats | None) -> EpochStats:
        step = self.env_step
        return EpochStats(
            train=train,
            test=test,
            update=interval.means(),
            explore=self.policy.explore_metrics(step),
            buffer=self.buffer.metrics(step),
            time=interval.time(step - interval.env_step),
        )

    def _settings(self) -> dict[str, Any]:
        """Name what was chosen, for dashboards and manifests."""
        envs = None if self.train_collector is None else self.train_collector.envs
        return {
            "trainer": type(self).__name__,
            "policy": type(self.policy).__name__,
            "buffer": f"{type(self.buffer).__name__}({self.buffer.capacity})",
            "env": None if envs is None else envs.name,
            "n_envs": None if envs is None else envs.n,
            "seed": self.seed,
            "max_epoch": self.max_epoch,
            "step_per_epoch": self.step_per_epoch,
        }

    # ---- checkpoints ----

    def save(self, path: str | Path) -> Path:
        """Write everything there is to go on from into a folder, whole or not at all."""
        components: dict[str, Any] = {
            "policy": self.policy.training_state(),
            "buffer": self.buffer.state_dict(),
            "trainer": self._state(),
        }
        if self.train_collector is not None:
            components["collector"] = self.train_collector.state_dict()
        written = checkpoints.save_checkpoint(path, components, {"settings": self._settings()})
        self._hooks.fire("on_checkpoint_saved", self, written)
        return written

    def load(self, path: str | Path) -> None:
        """Go on from a folder that `save` of the same kind of trainer wrote.

        Episodes that ran when it was written are cut in the buffer and others begin.
        """
        manifest, components = checkpoints.load_checkpoint(path)
        for name in ("trainer", "policy", "env"):
            saved, own = manifest["settings"][name], self._settings()[name]
            if saved != own:
                raise CheckpointError(
                    f"{path} was saved with {name} {saved!r}, this run has {own!r}: make it as it was"
                )
        self.policy.load_training_state(components["policy"])
        self.buffer.load_state_dict(components["buffer"])
        if self.train_collector is not None:
            self.train_collector.load_state_dict(components["collector"])
        self._load_state(components["trainer"])

    def _state(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "seconds": self._watch.seconds,
            "evaluation_seed": None if self.evaluation is None else self.evaluation.root,
            "hooks": self._hooks.state_dict(),
            **{name: getattr(self, name) for name in _COUNTERS},
        }

    def _load_state(self, state: dict[str, Any]) -> None:
        self.reset()
        self.seed = state["seed"]
        if self.evaluation is not None and state["evaluation_seed"] is not None:
            self.evaluation.seed(state["evaluation_seed"])
        self._hooks.load_state_dict(state["hooks"])
        for name in _COUNTERS:
            setattr(self, name, state[name])
        self._watch.seconds = state["seconds"]
        self.stop_reason = None

    # ---- construction ----

    def _fill_seeds(self) -> None:
        """Give every part that has no seed a stream of the trainer's."""
        collector = self.train_collector
        if collector is not None and collector.env_step > 0 and not collector.envs.is_seeded:
            _log.warning(
                "the training collector made %d steps before the trainer's seed could reach its environments: "
                "give make_envs a seed to repeat them",
                collector.env_step,
            )
        test = None if self.evaluation is None else self.evaluation.collector
        parts = {"policy": self.policy, "buffer": self.buffer, "train": collector, "test": test}
        for name, part in (parts | {"evaluation": self.evaluation}).items():
            if part is not None and not part.is_seeded:
                part.seed(seeding.derive(self.seed, name))

    def _refuse_shared_parts(self) -> None:
        """Refuse collectors that share what must be their own, or do not share the policy."""
        train, test = self.train_collector, None if self.evaluation is None else self.evaluation.collector
        name = type(self).__name__
        for collector in (train, test):
            if collector is not None and collector.policy is not self.policy:
                raise ConfigError(
                    f"{name}: a collector acts with another policy than the trainer's: give both the same"
                )
        if train is not None and test is not None:
            if train.envs is test.envs:
                raise ConfigError(f"{name}: training and evaluation share their environments: make_envs each its own")
            spaces = [(c.envs.observation_space, c.envs.action_space) for c in (train, test)]
            if spaces[0] != spaces[1]:
                raise ConfigError(f"{name}: training environments have spaces {spaces[0]}, evaluation's {spaces[1]}")


_COUNTERS = ("epoch", "best_score", "best_epoch", "best_env_step", "_origin", "_n_confirmed")


def _shown(stats: EpochStats) -> dict[str, str]:
    """Pick what stands behind the bar."""
    shown = {}
    if stats.train is not None and stats.train.recent_returns is not None:
        shown["return"] = f"{stats.train.recent_returns.mean:.1f}"
    if "loss" in stats.update:
        shown["loss"] = f"{stats.update['loss']:.3g}"
    return shown
