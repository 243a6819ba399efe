"""The base class of trainers: an iterator over epochs that can be stopped, interrupted, saved and resumed."""

import logging
import signal
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Never, NoReturn, Self, SupportsIndex

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from trainkit.collector import Collector
from trainkit.core import checkpoint as checkpoints
from trainkit.core import seeding, user_code
from trainkit.core.assignments import Elsewhere, fixed_options
from trainkit.core.config import Plain
from trainkit.core.data import EpochResult
from trainkit.core.errors import BusyError, Checks, ConfigError, reject_unknown
from trainkit.core.folders import OwnsFolder
from trainkit.core.names import OTHER_LIBRARIES, did_you_mean
from trainkit.core.policy_use import PolicyUse
from trainkit.core.protocols import (
    Clearable,
    HasBatchMemory,
    Learner,
    Seedable,
    StepCollector,
    Store,
    Trainee,
    UsesBatchMemory,
)
from trainkit.core.signatures import checked
from trainkit.core.stats import NO_COLLECT, CollectStats, EpochStats, RunInfo, html_table, per_second
from trainkit.core.typed_options import types_of
from trainkit.engine.process_group import ProcessGroup
from trainkit.trainer.callbacks.base import Dispatcher
from trainkit.trainer.callbacks.checkpointing import Checkpoint
from trainkit.trainer.callbacks.history import History
from trainkit.trainer.callbacks.stopping import is_solved
from trainkit.trainer.compatibility import check_parts
from trainkit.trainer.epoch_clock import EpochClock
from trainkit.trainer.evaluation_schedule import EvaluationSchedule
from trainkit.trainer.interrupt import TERMINATE, DeferredInterrupt, Terminated
from trainkit.trainer.metrics import Metrics, Reduce
from trainkit.trainer.options import LONGEST_RUN, TrainerOptions, callbacks_of, evaluation_of
from trainkit.trainer.progress import end_line
from trainkit.trainer.reports import Reports
from trainkit.trainer.run_checkpoint import RunCheckpoint, about_run, newest_intact
from trainkit.trainer.run_processes import launched
from trainkit.trainer.run_record import record_of

_log = logging.getLogger(__name__)

_LIMITS = ("max_epoch", "max_env_step", "max_seconds")  # reasons to stop that a resumed run may not share


@dataclass(slots=True)
class EndedEpoch:
    """An epoch that is over and not yielded yet: what is done of its end, so that the rest can follow an exception.

    Attributes:
        result: to be yielded.
        report: its last, until it is written; None afterwards.
        is_announced: whether `on_epoch_end` was fired.
        is_reported: whether `on_epoch_reported` was fired.
    """

    result: EpochResult
    report: EpochStats | None = None
    is_announced: bool = True
    is_reported: bool = True


TraineeT = TypeVar("TraineeT", bound=Trainee, default=Any, covariant=True)


@checked
@fixed_options(*types_of(TrainerOptions))
class Trainer(Generic[TraineeT]):
    """An iterator over epochs: each `next()` trains one and returns `(epoch, stats, info)`.

    A fresh trainer works in a bare `for`; after `break` a second `for` continues. Ctrl-C is deferred to the next
    complete vector step or update, and the next `next()` continues the same epoch; so it does after an exception of a
    callback. SIGTERM ends the run there, saved where there is a `Checkpoint`; SIGUSR1 saves, and the run continues.
    `run()` trains all epochs, `run(epochs=5)` five, also after the end; `max_epoch` may be set at any time. `reset()`
    restarts the count, `with` closes environments, logger and bar.

    Args:
        policy: learns.
        train_collector: fills the buffer.
        buffer: what is learned from.
        max_epoch: epochs in all.
        step_per_epoch: steps of the clock per epoch; steps in excess of one epoch are subtracted from the next.
        options: those every trainer has, checked.

    Attributes:
        config: the preset that made the trainer, and all of its settings in plain values; None otherwise.
    """

    config: Mapping[str, Any] | None = None

    lr = Elsewhere("policy.lr = 1e-4 is for updates that follow")
    learning_rate = Elsewhere("policy.lr = 1e-4 is for updates that follow")
    gamma = Elsewhere("policy.gamma = 0.9 is for updates that follow")
    n_step = Elsewhere("policy.n_step = 3 is for updates that follow")
    epsilon = Elsewhere("policy.exploration.epsilon = 0.1 is for actions that follow")
    exploration = Elsewhere("policy.exploration = EpsilonGreedy(0.1) is for actions that follow")
    clip_ratio = Elsewhere("policy.clip_ratio = 0.1 is for updates that follow")
    entropy_weight = Elsewhere("policy.entropy_weight = 0.01 is for updates that follow")
    optimizer = Elsewhere("it is the policy's, fixed at construction: give optimizer= there, or assign policy.lr")
    max_grad_norm = Elsewhere("it is the policy's, fixed at construction: give max_grad_norm= there")
    beta = Elsewhere("buffer.beta = 0.7 is for batches that follow")
    total_timesteps = Elsewhere("max_epoch = 40 is the length of the run, in epochs of step_per_epoch")

    _unit: ClassVar[str] = "step"  # of the clock
    _learning_method: ClassVar[str] = "update"  # the method a policy must have
    _learning: str = ""
    _stop_reason: str | None
    _buffer: Store
    _ended: EndedEpoch | None  # an epoch that is over and not yielded yet
    _phase: Literal["new", "training", "ended"]

    def __init__(
        self,
        policy: TraineeT,
        train_collector: StepCollector | None,
        buffer: Store,
        *,
        max_epoch: int,
        step_per_epoch: int,
        options: TrainerOptions,
    ) -> None:
        self._policy = policy
        self._train_collector, self._buffer = train_collector, buffer
        self._processes = launched()
        self._processes.check_options(type(self).__name__, options, train_collector, self.episode_per_collect)
        seed = seeding.fresh_root() if options["seed"] is None else int(options["seed"])
        self._seed: int = self.process_group.gather(seed)[0]
        self._options = options = self._processes.options_of(options)
        evaluation = evaluation_of(options)
        self._test_collector = None if evaluation is None else evaluation.collector
        self._prepare_parts()
        parts: dict[str, Seedable | None] = {"policy": policy, "train": train_collector, "test": self.test_collector}
        parts |= {"evaluation": evaluation, "buffer": buffer if isinstance(buffer, Seedable) else None}
        self._epochs = EpochClock(max_epoch, step_per_epoch, options["max_epoch_seconds"])
        self._processes.join(type(self).__name__, self.seed, parts, self.settings(), self._learners())

        self._date = datetime.now(UTC).isoformat(timespec="seconds")
        self._reports = Reports(options, self._epochs.n_steps, self.unit)
        callbacks = self._processes.callbacks_of([self.history, *callbacks_of(options)])
        self._callbacks = Dispatcher(callbacks, options["callback_errors"])
        self._checkpoints = [callback for callback in callbacks if isinstance(callback, Checkpoint)]
        if evaluation is not None and not evaluation.plays_here:
            self._callbacks.check_elsewhere(type(evaluation).__name__)
        for collector in self._collectors:
            self._callbacks.subscribe(self, collector, in_evaluation=collector is self.test_collector)
        self._metrics = Metrics(policy, self._learners(), buffer, options["smoothed_reports"])
        stops_alone = self._processes.stops_alone
        save = self._save_now if self._checkpoints and stops_alone else None
        self._interrupt = DeferredInterrupt(save, ends_work=stops_alone, summary=self._how_to_continue)
        self._evaluation_schedule = EvaluationSchedule(
            evaluation,
            options["compute_score_fn"],
            self._callbacks,
            self._metrics.stopwatch,
            self._interrupt.check,
            self.note,
        )
        self._is_running = False
        self._policy_use = PolicyUse(policy)
        self.reset()
        self._callbacks.check(self)
        try:
            self._open_folders()
        except BaseException:
            self._release_folders()
            raise

    @property
    def _collectors(self) -> list[StepCollector]:
        return [one for one in (self._train_collector, self.test_collector) if one is not None]

    @property
    def _folder_owners(self) -> list[OwnsFolder]:
        if self.process_group.rank > 0:
            return []
        return [callback for callback in self._callbacks.callbacks if isinstance(callback, OwnsFolder)]

    def _learners(self, names: Sequence[str] | None = None) -> Sequence[Learner]:
        """Return the policies of these names, each with its buffer and clock; None: those that are to learn now."""
        return self.policy.learners(self.buffer, self, names)

    def _prepare_parts(self) -> None:
        """Check that the parts fit together, then apply the options that concern them."""
        collectors = {"train_collector": self._train_collector, "test_collector": self.test_collector}
        learners = self._learners()
        check_parts(type(self).__name__, self.policy, self._learning_method, collectors, learners)
        for learner in learners:
            if isinstance(learner.policy, HasBatchMemory) and isinstance(learner.buffer, UsesBatchMemory):
                learner.buffer.use_batch_memory(learner.policy.batch_memory)
        options = self._options
        threads = options["threads"]
        if threads is not None and not hasattr(self.policy, "n_threads"):
            name = type(self.policy).__name__
            raise ConfigError(f"threads={threads!r} needs a policy with n_threads, {name} has none")
        if options["reward_metric"] is not None:
            for collector in self._collectors:
                collector.use_reward_metric(options["reward_metric"])

    def _open_folders(self) -> None:
        """Claim the callbacks' folders, resume, and open the logger last, so that a rejected run leaves no folder."""
        resume_from = self._options["resume_from"]
        with Checks("") as checks:
            for callback in self._folder_owners:
                continues = resume_from is not None
                if isinstance(callback, Checkpoint):
                    continues = callback.continues(resume_from)
                with checks.gather():
                    callback.claim.take(continues=continues)
        if resume_from is not None:
            self.resume(resume_from, self._options["seed"])
        self._reports.open_loggers()
        if resume_from is not None:
            self._reports.loggers.purge(self.clock)

    def _release_folders(self) -> None:
        for callback in self._folder_owners:
            callback.claim.release()

    # ---- the iterator ----

    def __iter__(self) -> Iterator[EpochResult]:
        if self.is_finished and self._ended is None:
            reason = self.stop_reason or "max_epoch"
            _log.warning(
                "%s has finished (%s): run(epochs=5) trains on, reset() starts over",
                type(self).__name__,
                reason,
            )
        return self

    def __len__(self) -> int:
        return self.max_epoch

    def __next__(self) -> EpochResult:
        if self._is_running:
            raise BusyError(f"{type(self).__name__} is already inside next(): use one loop, in one thread, at a time")
        self._is_running = True
        try:
            if self._phase == "new" and not self.is_finished:
                self._reports.loggers.describe(self.describe)  # before time is measured
            with (
                self._policy_use.by_this_thread(),
                self._interrupt,
                self._metrics.stopwatch.running(),
                self._torch_threads(),
            ):
                try:
                    self._interrupt.check(is_whole=not self._epochs.is_running)  # signals between two next()
                    self._callbacks.deliver_rest()
                    if self._ended is not None:
                        self._finish_epoch(self._ended)
                    elif not self.is_finished:
                        self._start_run()
                        if not self.is_finished:  # a limit may be reached already
                            self._train_epoch()
                    self._interrupt.check()
                except Terminated:
                    self._terminate()
                if self.is_finished:
                    self._end_run()
        except BaseException:
            self._reports.progress.close()
            raise
        finally:
            self._is_running = False
        if self._ended is None:
            self._interrupt.close()
            self._release_folders()
            raise StopIteration
        result, self._ended = self._ended.result, None  # only now: an interrupt must not lose it
        return result

    @checked
    def run(self, *steps: Never, epochs: int | None = None) -> RunInfo:
        """Train all remaining epochs, or this many more, and return the run's `info`.

        Args:
            steps: none; a length is in epochs, by name.
            epochs: how many to train from here, even if the run has ended, for whatever reason; `max_epoch` is raised
                if it leaves fewer. The bits are those of a run that was this long from the start; schedules are
                functions of the step, and keep their last value beyond their end.
        """
        if steps:
            n: object = steps[0]
            per_epoch, name = self.step_per_epoch, type(self).__name__
            more = f", {-(-n // per_epoch)} for {n:,} {self.unit}s" if isinstance(n, int) else ""
            raise ConfigError(
                f"{name}.run takes nothing by position, got {n!r}: run(epochs=...) trains that many more epochs of "
                f"{per_epoch:,} {self.unit}s{more}; run() trains the run's {self._epochs.n_steps:,}"
            )
        if epochs is None:
            for _ in self:
                pass
            return self.info
        with Checks(f"{type(self).__name__}.run") as checks:
            checks.integer("epochs", epochs, low=1)
        last = self.epoch + epochs - self._epochs.is_running
        self._continue()
        self.max_epoch = max(self.max_epoch, last)
        for result in self:
            if result.epoch >= last:
                break
        return self.info

    def evaluate(self, **changes: Any) -> CollectStats:
        """Evaluate now, between two `next()` or in a callback, without effect on training; see `info.last_test`.

        Args:
            changes: options of `Evaluation` that differ this time, such as `duration=100`, `explore=True`, `seed=7`,
                `exploration=` or `fn=`, whose numbers are logged. It always plays in this process.
        """
        known = ("duration", "duration_unit", "explore", "exploration", "overrides", "seed", "max_episode_steps", "fn")
        reject_unknown(f"{type(self).__name__}.evaluate", changes, known)
        return self.evaluation_schedule.evaluate_now(self, **changes)

    @property
    def evaluated_policy(self) -> Any:
        """The policy of the evaluation that callbacks receive: of one in the background a copy, with its weights."""
        copied = self.evaluation_schedule.evaluated_policy
        return self.policy if copied is None else copied

    def report_evaluation(self, epoch: int, clock: int, stats: CollectStats, numbers: Mapping[str, float]) -> None:
        """Add an evaluation in the background to logs, history and output, at the epoch whose weights it played."""
        self._reports.write_evaluation(clock, epoch, stats, numbers)
        if epoch == self.epoch:  # which has no row in the history yet
            self._metrics.add_to_epoch({f"test/{name}": number for name, number in numbers.items()})

    def log(self, name: str, value: Any, reduce: Reduce = "mean", window: int | None = None) -> None:
        """Log a number as `custom/name`; several in one report are reduced to their mean, sum, min, max or last.

        With a `window` the last `window` values are reduced, whichever report they came in. Of arrays
        `reduce="histogram"` logs the distribution, with loggers that can show it: tensorboard's.
        """
        self._metrics.log(name, value, reduce, window)

    def log_episode(self, row: Mapping[str, float]) -> None:
        """Add a row of numbers by name to the table of episodes; `stats.episodes` has those of an epoch.

        Loggers with `write_episodes(step, rows)` write it, such as `JsonlLogger` and `CsvLogger`. The callback
        `LogEpisodes` adds a row for every episode.
        """
        self._metrics.log_episode(row)

    @checked
    def log_video(self, name: str, frames: NDArray[np.uint8], fps: float = 30.0) -> None:
        """Write a video as `custom/name` to the loggers that can show videos, such as TensorBoard's.

        Args:
            name: of it.
            frames: [T, H, W, 3], uint8.
            fps: frames per second.
        """
        self._reports.write_video(self.clock, name, frames, fps)

    def stop(self, reason: str) -> None:
        """End the run: the current epoch ends here, is evaluated and yielded, and no other starts.

        Of several reasons the first stays.
        """
        self._stop_reason = self.stop_reason or reason

    @property
    def max_epoch(self) -> int:
        """Epochs in all; a run that ended at the former number continues when a larger one is set."""
        return self._epochs.n_epochs

    @max_epoch.setter
    def max_epoch(self, max_epoch: int) -> None:
        with Checks(type(self).__name__) as checks:
            checks.integer("max_epoch", max_epoch, low=0, high=LONGEST_RUN)
        self._epochs.n_epochs = int(max_epoch)
        self._reports.progress.extend_to(self._epochs.n_steps)
        if self.stop_reason == "max_epoch" and not self._epochs.is_last:
            self._continue()

    @property
    def step_per_epoch(self) -> int:
        """Steps of the clock per epoch; may be assigned, for the current epoch and those that follow."""
        return self._epochs.steps_per_epoch

    @step_per_epoch.setter
    def step_per_epoch(self, step_per_epoch: int) -> None:
        with Checks(type(self).__name__) as checks:
            checks.integer(f"{self.unit}_per_epoch", step_per_epoch, low=1, high=LONGEST_RUN)
        self._epochs.steps_per_epoch = int(step_per_epoch)
        self._reports.progress.extend_to(self._epochs.n_steps)

    def _continue(self) -> None:
        """Forget that the run has ended; `on_train_start` is fired again."""
        self._stop_reason = None
        if self._phase == "ended":
            self._phase = "new"

    @checked
    def reset(self, *, reset_collectors: bool = False, reset_buffer: bool = False) -> None:
        """Reset the count of epochs, the best score and the stop reason; the policy is unchanged.

        Args:
            reset_collectors: also start again from step 0, with new episodes: the clock, and so all schedules and
                `learning_starts`, the number of episodes and their statistics.
            reset_buffer: also discard all rows; needs `reset_collectors`.

        Raises:
            ConfigError: the buffer cannot be cleared, or is the dataset that an offline run learns from.
            BusyError: collectors cannot be reset within `next()`.
        """
        if reset_collectors and self._is_running:
            raise BusyError(f"{type(self).__name__}.reset(reset_collectors=True) cannot be called inside next()")
        with Checks(f"{type(self).__name__}.reset") as checks:
            rule = ".reset_buffer=True needs reset_collectors=True: rows of open episodes would be missing"
            checks.require(reset_collectors or not reset_buffer, rule)
            is_online = self._train_collector is not None and isinstance(self.buffer, Clearable)
            rule = ".reset_buffer=True would discard rows that no collector collects again: leave it out"
            checks.require(is_online or not reset_buffer, rule)
        if reset_collectors:
            for collector in self._collectors:
                collector.restart()
            if reset_buffer and isinstance(self.buffer, Clearable):
                self.buffer.clear()
            self._continue_without_rows()
        self._restart()
        self._metrics.discard_updates()

    def _restart(self) -> None:
        """Start the counters, the evaluations and the metrics again; updates are still to be reported."""
        self._stop_reason, self._ended, self._phase = None, None, "new"
        self._epochs.reset(self.clock)
        self.evaluation_schedule.reset()
        self._callbacks.discard_rest()
        self._reports.warnings.reset()
        self._metrics.restart(self.clock, self.env_step)

    def close(self) -> None:
        """Close environments, logger and bar, and release the folders; a second call has no effect."""
        self._reports.progress.close()
        self.evaluation_schedule.close()
        try:
            self._interrupt.close()
        finally:
            self._reports.loggers.close()
            self._release_folders()
            for collector in self._collectors:
                collector.close()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled or copied: save() writes it, resume_from= resumes it"
        )

    if not TYPE_CHECKING:  # a checker knows the attributes

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):  # a property raised an AttributeError of its own: let it through
                return object.__getattribute__(self, name)
            ours = [own for own in dir(self) if not own.startswith("_")]
            hint = "" if name.startswith("_") else f"{did_you_mean(name, ours) or ':'} {OTHER_LIBRARIES}"
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{hint}")

    def __repr__(self) -> str:
        done = f"{self.env_step:,} steps, {self.gradient_step:,} updates"
        return f"{type(self).__name__}({type(self.policy).__name__}, epoch {self.epoch} of {self.max_epoch}, {done})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- its parts ----

    @property
    def policy(self) -> TraineeT:
        """What learns; another policy needs another trainer: `save` and `load_weights` carry weights over."""
        return self._policy

    @property
    def train_collector(self) -> StepCollector | None:
        """What fills the buffer; None offline. Another one needs another trainer."""
        return self._train_collector

    @property
    def buffer(self) -> Store:
        """What is learned from; another one needs another trainer."""
        return self._buffer

    @property
    def test_collector(self) -> Collector | None:
        """What evaluations play in; None without. Another one needs another trainer, or `evaluate` by hand."""
        return self._test_collector

    @property
    def evaluation_schedule(self) -> EvaluationSchedule:
        """When evaluations are due, and their best score; `evaluate()` evaluates now."""
        return self._evaluation_schedule

    @property
    def seed(self) -> int:
        """The root of all random streams; a run has one, given as `seed=` to its constructor."""
        return self._seed

    @property
    def process_group(self) -> ProcessGroup:
        """The processes that learn together, with `rank` and `n`: one, unless torchrun started several."""
        return self._processes.group

    @property
    def learning(self) -> str:
        """The name of the policy that learns from the batch of `on_train_batch`; "" of an only one."""
        return self._learning

    @property
    def unit(self) -> str:
        """What the clock counts: "step", or "update" offline."""
        return self._unit

    @property
    def episode_per_collect(self) -> int | None:
        """Whole episodes per collect; None where collects are counted in steps, or there are none."""
        return None

    # ---- where it stands ----

    @property
    def stop_reason(self) -> str | None:
        """Why the run ends, None while it continues; `stop("reason")` ends it, `run(epochs=5)` continues it."""
        return self._stop_reason

    @property
    def clock(self) -> int:
        """The clock of schedules, epochs and x-axes: environment steps, unless a trainer overrides it."""
        return 0 if self._train_collector is None else self._train_collector.env_step

    @property
    def env_step(self) -> int:
        """The number of steps of the training collector; `reset(reset_collectors=True)` starts it over."""
        return 0 if self._train_collector is None else self._train_collector.env_step

    @property
    def gradient_step(self) -> int:
        """The total number of updates of the policy, those of trainers before this one too."""
        return self.policy.n_updates

    @property
    def history(self) -> History:
        """The numbers of all epochs, a row each."""
        return self._reports.history

    @property
    def epoch(self) -> int:
        """The number of the current epoch, or of the last; `reset()` restarts the count."""
        return self._epochs.number

    @property
    def seconds(self) -> float:
        """Time spent within `next()`."""
        return self._metrics.stopwatch.lap()

    @property
    def is_finished(self) -> bool:
        """Whether no epoch is left to train; `stop("reason")` ends a run, `run(epochs=5)` continues it."""
        return not self._epochs.is_running and (self.stop_reason is not None or self._epochs.is_last)

    @property
    def resumes_automatically(self) -> bool:
        """Whether a trainer made with the same arguments resumes from this one's last checkpoint."""
        return self._options["resume_from"] == "auto"  # which requires a checkpoint

    @property
    def info(self) -> RunInfo:
        """The progress and the totals of the run."""
        seconds, parts, timed_from = self.seconds, self._metrics.stopwatch.parts, self._metrics.timed_from
        schedule = self.evaluation_schedule
        train, test = self._train_collector, self.test_collector
        return RunInfo(
            epoch=self.epoch,
            env_step=self.env_step,
            gradient_step=self.gradient_step,
            n_episode=0 if train is None else train.n_episode,
            best_score=schedule.best_score,
            best_epoch=schedule.best_epoch,
            best_env_step=schedule.best_env_step,
            best_return=schedule.best_return,
            best_std=schedule.best_std,
            last_test=schedule.last_test,
            n_test_step=0 if test is None else test.env_step,
            n_test_episode=0 if test is None else test.n_episode,
            seconds=seconds,
            collect_seconds=parts["collect_seconds"],
            update_seconds=parts["update_seconds"],
            evaluate_seconds=parts["evaluate_seconds"],
            other_seconds=seconds - sum(parts.values()),
            steps_per_second=per_second(self.clock - self._epochs.origin, seconds),
            collect_steps_per_second=per_second(self.env_step - timed_from[0], parts["collect_seconds"]),
            updates_per_second=per_second(self.gradient_step - timed_from[1], parts["update_seconds"]),
            stop_reason=self.stop_reason,
            run_dir=self._reports.loggers.folder,
            date=self._date,
            warnings=dict(self._reports.warnings.by_name),
        )

    def settings(self) -> dict[str, Any]:
        """Return the settings of the run, for dashboards and manifests."""
        envs = None if self._train_collector is None else self._train_collector.envs
        return {
            "trainer": type(self).__name__,
            "policy": type(self.policy).__name__,
            "buffer": type(self.buffer).__name__,
            "env": None if envs is None else envs.name,
            "n_envs": None if envs is None else envs.n,
            "seed": self.seed,
            "max_epoch": self.max_epoch,
            f"{self.unit}_per_epoch": self.step_per_epoch,
            **self._processes.settings,
        }

    def note(self, line: str) -> None:
        """Print a line about the run, unless `verbose=False`, and log it."""
        _log.info(line)
        self._reports.progress.note(line)

    def describe(self) -> dict[str, Plain]:
        """Return every effective setting of the run, flat and in plain values.

        Those of the trainer by their names; of its parts, also of your own, as `policy/lr`, `buffer/alpha`,
        `env/stack`, `evaluation/duration`, `callbacks/Checkpoint/every`; and `versions/torch`, `machine/threads`,
        `git/commit` and `git/dirty`, of the repository that the process runs in.
        """
        return record_of(self, self._options, self._callbacks.callbacks)

    def _repr_html_(self) -> str:
        return html_table(type(self).__name__, self.settings().items())

    def _how_to_continue(self) -> str:
        """Return the line of a notebook whose cell was interrupted."""
        where = f"{type(self).__name__} stopped in epoch {self.epoch}, at {self.unit} {self.clock:,}"
        return f"KeyboardInterrupt: {where}: trainer.run(), or the loop, continues there"

    # ---- an epoch ----

    def _train_step(self) -> None:
        """Perform the smallest complete piece of training, or the rest of one that was interrupted."""
        raise TypeError(f"{type(self).__name__} must define _train_step")

    @property
    def _is_whole(self) -> bool:
        """Whether no training step was interrupted."""
        return True

    def _train_epoch(self) -> None:
        """Train one epoch, or the rest of one."""
        self._start_epoch()
        with user_code.known():
            self._train_steps()
        self._end_epoch()

    def _train_steps(self) -> None:
        """Train until the epoch is over or the run is stopped; report and evaluate in between where it is due."""
        if not self._is_whole:
            self._train_step()
        while (self.stop_reason is None or not self._processes.stops_alone) and not self._epochs.is_over(
            self.clock, self._metrics.stopwatch
        ):
            if self._reports.progress.is_shown:
                self._reports.progress.advance_to(self._epochs.n_done(self.clock))
            if self.clock - self._metrics.recent.start >= self._options["log_every"]:
                with user_code.running():
                    self._report()
            if self.evaluation_schedule.is_due(self):
                with user_code.running():
                    self._evaluate_early()
            else:
                self._train_step()
                for checkpoint in self._checkpoints:
                    checkpoint.tick(self)

    def _start_run(self) -> None:
        if self._phase == "new":
            self._phase = "training"
            self._callbacks.start(self, self._collectors)
            self.evaluation_schedule.start()

    def _start_epoch(self) -> None:
        if not self._epochs.is_running:
            if self.epoch == 0:  # the user may have collected or updated since
                self._metrics.skip(*self._counts_since(self._metrics.recent.start, *self._metrics.timed_from))
            self.policy.check_modules()
            self._metrics.follow(self._learners())
            self._epochs.start(self.clock, self.seconds)
            self.evaluation_schedule.start_epoch()
            self._metrics.start_epoch(self.clock)

    def _counts_since(self, clock: int, env_step: int, gradient_step: int) -> tuple[int, int, int]:
        """Return the steps of the clock, environment steps and updates since these counts."""
        return self.clock - clock, self.env_step - env_step, self.gradient_step - gradient_step

    def _fire_collect_start(self) -> None:
        """Fire the events before a collect: of policies that were added since the last one, and of its start."""
        self._callbacks.fire_added(self, self.policy.policy_numbers)
        self._callbacks.fire("on_collect_start", self)

    def _after_collect(self, stats: CollectStats) -> None:
        """Add a collect to the metrics and fire its event; a divergence of earlier updates is known by now."""
        self.policy.check_divergence()
        self._processes.check_collect(type(self).__name__, self._train_collector, stats.n_step)
        self._metrics.recent.add_collect(stats)
        if self._options["test_in_train"] and stats.n_episode:  # else there is nothing to compute a score of
            with user_code.running():
                score = self.evaluation_schedule.score(stats)
                self.evaluation_schedule.looks_solved = is_solved(self._options["stop_fn"], score)
        self._callbacks.fire("on_collect_end", self, stats)

    def _evaluate_early(self) -> None:
        """Evaluate in the middle of an epoch; unless that ends the run, another evaluation may follow."""
        self.evaluation_schedule.deliver(self)
        if self.stop_reason is None:
            self.evaluation_schedule.evaluate(self)
        if self.stop_reason is None:
            self._report()
            self.evaluation_schedule.allow_another()

    def _end_epoch(self) -> None:
        """Evaluate if it is due, and compute the epoch's result."""
        schedule = self.evaluation_schedule
        schedule.deliver(self)  # of the epoch before
        self._agree_to_stop()
        if self.stop_reason is None:  # else the missing steps are made when the run continues
            self._epochs.skip_rest(self.clock)
        is_last = self.stop_reason is not None or self._epochs.is_last
        if schedule.is_due(self, at_end=True, is_last=is_last):
            schedule.evaluate(self)
        if is_last:
            schedule.deliver(self)
        if self._epochs.is_last:
            self.stop("max_epoch")
        self._agree_to_stop()
        report, stats = self._metrics.end_epoch(self.clock, schedule.unreported, schedule.epoch_test)
        schedule.unreported = NO_COLLECT
        self._epochs.is_running = False
        result = EpochResult(self.epoch, stats, self.info)
        self._ended = EndedEpoch(result, report, is_announced=False, is_reported=False)
        self.history.record(result)
        stats = self._reports.with_warnings(result, self._callbacks.warnings(self))
        self._ended.result = EpochResult(self.epoch, stats, self.info)
        self._reports.progress.advance_to(self._epochs.n_done(self.clock))
        self._finish_epoch(self._ended)

    def _agree_to_stop(self) -> None:
        """Stop if another process stops."""
        self._stop_reason = self._processes.agreed_reason(self.stop_reason, self._interrupt)

    def _finish_epoch(self, ended: EndedEpoch) -> None:
        """Fire `on_epoch_end`, write the epoch's report, and fire `on_epoch_reported`, each once."""
        if not ended.is_announced:
            ended.is_announced = True
            self._callbacks.fire("on_epoch_end", self, ended.result)
            self._agree_to_stop()
        self._write_epoch()
        if not ended.is_reported:
            ended.is_reported = True
            self._callbacks.fire("on_epoch_reported", self, ended.result)
            self._agree_to_stop()

    def _write_epoch(self) -> None:
        """Write the report of a finished epoch, once; values logged afterwards belong to the next epoch."""
        ended = self._ended
        if ended is None or ended.report is None:
            return
        self._write(ended.report)
        self._reports.write_warnings(self.clock, ended.result)
        ended.report = None
        self._metrics.close_epoch()
        ended.result = ended.result._replace(info=self.info)
        self._reports.add_epoch(ended.result)

    def _report(self) -> None:
        stats = self._metrics.report(self.clock, self.evaluation_schedule.unreported)
        self.evaluation_schedule.unreported = NO_COLLECT
        self._write(stats)

    def _write(self, stats: EpochStats) -> None:
        self._reports.write(self.clock, stats, self._metrics.take_histograms())

    def _terminate(self) -> None:
        """Save, and end the run within its epoch; there is no evaluation, so that the process exits promptly."""
        self._save_now()
        self.stop(TERMINATE)
        _log.warning("%s ended the run after %d %ss", TERMINATE, self.clock, self.unit)
        if self._epochs.is_running:
            self._report()
            self._epochs.is_running = False
            stats = self._metrics.epoch_so_far(self.clock, self.evaluation_schedule.epoch_test)
            self._ended = EndedEpoch(EpochResult(self.epoch, stats, self.info))
        elif self._ended is not None:
            self._ended.result = self._ended.result._replace(info=self.info)
        self._interrupt.pass_on(signal.SIGTERM)

    def _end_run(self) -> None:
        if self._phase == "training":
            self._phase = "ended"
            self.stop("max_epoch")  # where it was lowered to epochs that are over
            self._reports.end_run()
            self.note(f"ended: {end_line(self.info, self.clock, self.unit)}")
            self.evaluation_schedule.close()
            with self._metrics.apart() as logged:  # the last report is written
                self._callbacks.fire("on_train_end", self)
            if logged:
                self._reports.write_late(self.clock, self.epoch, {"custom": logged})
            self._reports.loggers.write_histograms(self.clock, self._metrics.take_histograms())
            self._release_folders()

    @contextmanager
    def _torch_threads(self) -> Iterator[None]:
        """Set torch's number of threads inside the block, and restore it afterwards."""
        if (n_threads := self._options["threads"]) is None:
            yield
            return
        former, self.policy.n_threads = self.policy.n_threads, int(n_threads)
        try:
            yield
        finally:
            self.policy.n_threads = former

    # ---- saving and resuming ----

    @checked
    def save(
        self,
        path: str | Path,
        *,
        include: Collection[str] | None = None,
        exclude: Collection[str] = (),
        at: Literal["now", "episode_end"] = "now",
    ) -> Path:
        """Write a checkpoint of the run into a folder, completely or not at all.

        Under torchrun every process must call it, and writes its part.

        Args:
            path: of the folder; a checkpoint there is replaced.
            include: of "policy", "buffer", "collector" and "trainer", those to write; None is all.
            exclude: those to leave out.
            at: "episode_end" ends the open episodes, here as well as where it is loaded: then both continue the same
                even where environments cannot play their episodes again.
        """
        with Checks("Trainer.save") as checks:
            checks.one_of("at", at, ["now", "episode_end"])
        self._complete()
        if at == "episode_end" and self._train_collector is not None:
            self._train_collector.require_reset()
        written = self._processes.write(Path(path), lambda own: self._checkpoint().write(own, include, exclude))
        self._callbacks.fire("on_checkpoint_saved", self, written)
        return written

    @checked
    def load(self, path: str | Path, *, include: Collection[str] | None = None, exclude: Collection[str] = ()) -> None:
        """Resume from a folder that `save` of the same kind of trainer wrote, or from the newest checkpoint of a run.

        Without "trainer" the run keeps its own count of epochs, which the loaded clock does not move.

        Episodes that were open are played again from their seeds and actions; where that leads elsewhere, they are cut
        in the buffer and others start. Settings that differ from the saved ones are listed in one warning.

        Raises:
            CheckpointError: it is damaged, or of another kind of run.
        """
        before = self.clock, self.env_step, self.gradient_step
        keeps_buffer = all(checkpoint.with_buffer for checkpoint in self._checkpoints)
        path = self.process_group.part(checkpoints.newest(path))
        loaded = self._checkpoint().read(path, include, exclude, keeps_buffer=keeps_buffer)
        if loaded.keeps_progress:
            self._epochs.shift(self.clock - before[0])
            self._metrics.skip(*self._counts_since(*before))
        if loaded.lacks_buffer:
            self._continue_without_rows()
        self._reports.loggers.former_folders = loaded.logs
        self._reports.loggers.purge(self.clock)
        self._callbacks.fire("on_checkpoint_loaded", self, loaded.folder)

    @checked
    def resume(self, place: str | Path, seed: int | None = None) -> None:
        """Resume from a checkpoint.

        Args:
            place: of it; "auto" is the newest intact one of this run's own folder, if there is one.
            seed: of this run, warned about where the checkpoint has another.
        """
        folder: str | Path | None = place
        if place == "auto":
            if not self._checkpoints:
                raise ConfigError('resume_from="auto" needs checkpoint=, the folder that this run saves to')
            folder = newest_intact(self._checkpoints[0].folder)
            folder = self.process_group.gather(folder)[0]
        if folder is not None:
            self.load(folder)
            self.process_group.gather(None)  # all have read it
            if place == "auto" and self.process_group.rank == 0:
                self._checkpoints[0].remove_old(Path(folder))
            done = f"{self.env_step:,} steps | {self.gradient_step:,} updates"
            self._reports.progress.note(f"resumed from {folder} | epoch {self.epoch} | {done}")
            _log.info("resumed from %s, epoch %d", folder, self.epoch)
        if seed is not None and seed != self.seed:
            _log.warning("the run continues with its own seed %d, not with %d", self.seed, seed)

    def state_dict(self) -> dict[str, Any]:
        """Return the counters, the states of evaluations and callbacks, and logged values, without those of the parts.

        Limits are not among them: a run that ended at one may continue with another.
        """
        return {
            "seed": self.seed,
            "learners": self._metrics.learners,
            **self._epochs.state_dict(),
            "looks_solved": self.evaluation_schedule.looks_solved,
            "timed_from": self._metrics.timed_from,
            "stop_reason": None if self.stop_reason in _LIMITS else self.stop_reason,
            "seconds": self._metrics.stopwatch.lap(),
            "parts": dict(self._metrics.stopwatch.parts),
            "evaluation": self.evaluation_schedule.state_dict(),
            "callbacks": self._callbacks.state_dict(),
            "metrics": self._metrics.state_dict(self.clock),
            "warnings": self._reports.warnings.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore saved counters."""
        self._seed, self._stop_reason = state["seed"], state["stop_reason"]
        self._epochs.load_state_dict(state)
        self.evaluation_schedule.looks_solved = state["looks_solved"]
        env_step, gradient_step = state["timed_from"]
        self._metrics.timed_from = env_step, gradient_step
        self._metrics.stopwatch.resume_from(state["seconds"], state["parts"])
        self.evaluation_schedule.load_state_dict(state["evaluation"])
        self._metrics.follow(self._learners(state["learners"]))
        self._callbacks.load_state_dict(state["callbacks"])
        self._metrics.load_state_dict(state["metrics"])
        self._reports.warnings.load_state_dict(state["warnings"])

    def _save_now(self) -> None:
        for checkpoint in self._checkpoints:
            checkpoint.save(self)

    def _complete(self) -> None:
        """Complete the current step, so that the run can be saved."""
        self._write_epoch()

    def _continue_without_rows(self) -> None:
        """Continue from a checkpoint that has no buffer, or with collectors that start again."""

    def _checkpoint(self) -> RunCheckpoint:
        """Return what a checkpoint of this run contains."""

        def load_own(state: dict[str, Any]) -> None:
            self._restart()
            self.load_state_dict(state)

        components = {  # in this order: the policy rejects other networks before anything changes
            **self.policy.components(),
            "buffer": (self.buffer.state_dict, self.buffer.load_state_dict),
        }
        if self._train_collector is not None:
            components["collector"] = (self._train_collector.state_dict, self._train_collector.load_state_dict)
        components["trainer"] = (self.state_dict, load_own)
        threads = self._options["threads"]
        threads = getattr(self.policy, "n_threads", None) if threads is None else threads
        envs = {} if self._train_collector is None else self._train_collector.envs.made_with
        player = self._train_collector if self.test_collector is None else self.test_collector
        evaluation = player.envs.for_evaluation() if isinstance(player, Collector) else {}
        logs = self._reports.loggers.folders
        return RunCheckpoint(
            components, about_run(self.policy, self.settings(), self.info, envs, evaluation, logs, threads)
        )
