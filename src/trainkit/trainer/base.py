"""What all trainers share: an iterator over epochs that can be stopped, interrupted, saved and gone on with."""

import functools
import logging
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, NoReturn, Self, SupportsIndex

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from trainkit.collector import Collector
from trainkit.core import seeding
from trainkit.core.data import EpochResult
from trainkit.core.errors import BusyError, Checks
from trainkit.core.folders import OwnsFolder
from trainkit.core.protocols import Seedable, Store, Trainee
from trainkit.core.signatures import checked
from trainkit.core.stats import NO_COLLECT, CollectStats, EpochStats, RunInfo, html_table, per_second, scalars
from trainkit.loggers.logger import as_logger
from trainkit.trainer.callbacks.base import Callback, Hooks
from trainkit.trainer.callbacks.checkpointing import Checkpoint
from trainkit.trainer.callbacks.history import History
from trainkit.trainer.callbacks.stopping import StopFn
from trainkit.trainer.compatibility import check_columns, fill_seeds, refuse_misfits
from trainkit.trainer.interrupt import TERMINATE, DeferredInterrupt, Terminated
from trainkit.trainer.intervals import Reduce
from trainkit.trainer.judge import Judge
from trainkit.trainer.n_threads import Threads
from trainkit.trainer.options import Options
from trainkit.trainer.progress import Progress
from trainkit.trainer.reports import Reports
from trainkit.trainer.saving import Resumable

_log = logging.getLogger(__name__)


TraineeT = TypeVar("TraineeT", bound=Trainee, default=Any, covariant=True)


@checked
class Trainer(Resumable, Generic[TraineeT]):
    """An iterator over epochs: each `next()` trains one and returns `(epoch, stats, info)`.

    A fresh trainer works in a bare `for`; after `break` a second `for` goes on. Ctrl-C is held back to the next
    whole vector step or update, and the next `next()` continues the same epoch; so it does after an exception of a
    callback. SIGTERM ends the run there, saved where there is a `Checkpoint`; SIGUSR1 saves, and it goes on.
    `run()` drains it, `reset()` starts the count anew, `with` closes environments, logger and bar.

    Args:
        policy: learns.
        train_collector: fills the buffer.
        buffer: what is learnt from.
        max_epoch: epochs in all.
        step_per_epoch: what the clock counts per epoch; what an epoch goes over is taken off the next.
        options: those every trainer takes, checked.
    """

    unit: ClassVar[str] = "step"  # of the clock
    learns_by: ClassVar[str] = "update"  # the method a policy must have

    policy: TraineeT
    _result: EpochResult | None  # of an epoch that is over and not yielded yet

    def __init__(
        self,
        policy: TraineeT,
        train_collector: Collector | None,
        buffer: Store,
        *,
        max_epoch: int,
        step_per_epoch: int,
        options: Options,
    ) -> None:
        self.policy = policy
        self.train_collector, self.buffer = train_collector, buffer
        self.max_epoch, self.step_per_epoch = max_epoch, step_per_epoch
        self.seed = seeding.fresh_root() if options.seed is None else int(options.seed)
        evaluation = options.evaluator()
        self.test_collector = test_collector = None if evaluation is None else evaluation.collector
        refuse_misfits(type(self).__name__, policy, self.learns_by, train_collector, test_collector)
        check_columns(type(self).__name__, policy, buffer.columns)
        self._collectors = [c for c in (train_collector, test_collector) if c is not None]
        if options.on_nan is not None:
            policy.on_nan = options.on_nan
        if options.reward_metric is not None:
            for collector in self._collectors:
                collector.use_reward_metric(options.reward_metric)
        parts = {"policy": policy, "train": train_collector, "test": test_collector, "evaluation": evaluation}
        fill_seeds(self.seed, parts | ({"buffer": buffer} if isinstance(buffer, Seedable) else {}))

        self.history = History()  # what every epoch told
        callbacks = [self.history, *options.all_callbacks()]
        self._options = options
        self._stop_fn = next((own for own in callbacks if isinstance(own, StopFn)), None)
        self._checkpoints = [own for own in callbacks if isinstance(own, Checkpoint)]
        self._hooks = Hooks(callbacks, options.callback_errors)
        for collector in self._collectors:
            self._hooks.watch(self, collector, in_evaluation=collector is test_collector)
        self._reports = Reports(policy, buffer)
        self._watch = self._reports.watch
        self._threads = Threads(policy, options.threads)
        self._interrupt = DeferredInterrupt(self._save_now if self._checkpoints else None)
        self.judge = Judge(evaluation, options.compute_score_fn, self._hooks, self._watch, self._interrupt.check)
        self._progress = Progress(
            max_epoch * step_per_epoch, show_bar=options.show_progress, show_lines=options.verbose, unit=self.unit
        )
        self._is_running = False
        self.reset()
        self._logger, self._former_logs = as_logger(None), []
        self._hooks.check(self)
        self._claims = [own.claim for own in callbacks if isinstance(own, OwnsFolder)]
        try:
            self._claim_folders(callbacks, options.resume_from)
            if options.resume_from is not None:
                self.resume(options.resume_from, options.seed)
            self._logger = as_logger(options.logger, self._former_logs)  # last: a rejected run leaves no folder behind
            if options.resume_from is not None:
                self._logger.purge(self.clock)
        except BaseException:
            self._release_folders()
            raise

    # ---- the iterator ----

    def __iter__(self) -> Iterator[EpochResult]:
        if self.is_finished and self._result is None:
            reason = self.stop_reason or "max_epoch"
            _log.warning("%s has finished (%s): reset() lets it train again", type(self).__name__, reason)
        return self

    def __len__(self) -> int:
        return self.max_epoch

    def __next__(self) -> EpochResult:
        if self._is_running:
            raise BusyError(f"{type(self).__name__} is already inside next(): use one loop, in one thread, at a time")
        self._is_running = True
        try:
            with self._interrupt, self._watch.running(), self._threads:
                try:
                    self._interrupt.check(is_whole=not self._is_in_epoch)  # what came between two next()
                    self._hooks.finish()
                    if self._is_ending:
                        self._finish_epoch()
                    elif self._result is None and not self.is_finished:
                        self._train_epoch()
                    self._interrupt.check()
                except Terminated:
                    self._break_off()
                if self.is_finished:
                    self._end_run()
        except BaseException:
            self._progress.close()
            raise
        finally:
            self._is_running = False
        if self._result is None:
            self._interrupt.close()
            self._release_folders()
            raise StopIteration
        result, self._result = self._result, None  # only now: an interrupt must not lose it
        return result

    def run(self) -> RunInfo:
        """Train all epochs that are left and return where the run stands."""
        for _ in self:
            pass
        return self.info

    def evaluate(self) -> CollectStats:
        """Evaluate now, between two `next()` or in a callback; `info.last_test` shows it, training goes on the same."""
        return self.judge.look(self.clock)

    def log(self, name: str, value: Any, reduce: Reduce = "mean") -> None:
        """Show a number of one's own as `custom/name`, of several in one report their mean, sum, min, max or last.

        Of arrays `reduce="histogram"` shows the spread, in loggers that can: tensorboard's.
        """
        self._reports.log(name, value, reduce)

    def log_video(self, name: str, frames: NDArray[np.uint8], fps: float = 30.0) -> None:
        """Write a video now, as `custom/name`, to the loggers that show videos: tensorboard's.

        Args:
            name: of it.
            frames: [T, H, W, 3], uint8.
            fps: frames per second.
        """
        checks = Checks("Trainer.log_video")
        checks.require(bool(name) and isinstance(name, str), f" needs a name, got {name!r}")
        checks.number("fps", fps, low=0, above_low=True)
        array = np.asarray(frames)
        is_video = array.dtype == np.uint8 and array.ndim == 4 and array.shape[3] == 3 and array.size > 0
        checks.require(is_video, f".frames must be uint8 [T, H, W, 3], got {array.dtype.name}{list(array.shape)}")
        checks.done()
        self._logger.write_video(self.clock, f"custom/{name}", array, float(fps))

    def stop(self, reason: str) -> None:
        """End the run: the epoch that runs ends here, is evaluated and yielded, and no other begins.

        Of several reasons the first stays.
        """
        self.stop_reason = self.stop_reason or reason

    def reset(self) -> None:
        """Start the count of epochs, the best score and the stop reason anew; policy and buffer stay as they are."""
        self.epoch, self.stop_reason, self._result = 0, None, None
        self._origin = self.clock  # what was there before the first epoch
        self._n_skipped = 0  # steps that epochs ended by time did not make
        self._timed_from = self.env_step, self.gradient_step  # where the times of the parts begin
        self._epoch_clock, self._epoch_seconds = self.clock, 0.0  # where the epoch began
        self._has_started = self._has_ended = self._is_in_epoch = False
        self._seems_solved = False  # training episodes passed stop_fn, an evaluation is due (`test_in_train`)
        self._is_ending = False  # whether `on_epoch_end` was fired, and `on_epoch_reported` was not
        self._epoch_report: EpochStats | None = None  # of an epoch that is over, until it is written
        self.judge.reset()
        self._hooks.forget()
        self._reports.restart(self.clock)

    def close(self) -> None:
        """Close environments, logger and bar, and let other runs have the folders; closing twice is fine."""
        self._progress.close()
        try:
            self._interrupt.close()
        finally:
            self._logger.close()
            self._release_folders()
            for collector in self._collectors:
                collector.close()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be pickled or copied: save() writes it, resume_from= goes on")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- where it stands ----

    @property
    def clock(self) -> int:
        """What schedules, epochs and every x-axis count: environment steps, unless a trainer says otherwise."""
        return self.env_step

    @property
    def env_step(self) -> int:
        """The training collector's steps."""
        return 0 if self.train_collector is None else self.train_collector.env_step

    @property
    def gradient_step(self) -> int:
        """Updates of the policy, ever."""
        return self.policy.n_updates

    @property
    def seconds(self) -> float:
        """Time spent within `next()`."""
        return self._watch.settle()

    @property
    def is_finished(self) -> bool:
        """Whether no epoch is left to train."""
        return not self._is_in_epoch and (self.stop_reason is not None or self.epoch >= self.max_epoch)

    @property
    def info(self) -> RunInfo:
        """Where the run stands now."""
        seconds, parts = self.seconds, self._watch.parts
        return RunInfo(
            epoch=self.epoch,
            env_step=self.env_step,
            gradient_step=self.gradient_step,
            n_episode=0 if self.train_collector is None else self.train_collector.n_episode,
            best_score=self.judge.best_score,
            best_epoch=self.judge.best_epoch,
            best_env_step=self.judge.best_env_step,
            best_std=self.judge.best_std,
            last_test=self.judge.last_test,
            n_test_step=0 if self.test_collector is None else self.test_collector.env_step,
            n_test_episode=0 if self.test_collector is None else self.test_collector.n_episode,
            seconds=seconds,
            collect_seconds=parts["collect_seconds"],
            update_seconds=parts["update_seconds"],
            evaluate_seconds=parts["evaluate_seconds"],
            other_seconds=seconds - sum(parts.values()),
            steps_per_second=per_second(self.clock - self._origin, seconds),
            collect_steps_per_second=per_second(self.env_step - self._timed_from[0], parts["collect_seconds"]),
            updates_per_second=per_second(self.gradient_step - self._timed_from[1], parts["update_seconds"]),
            stop_reason=self.stop_reason,
            run_dir=self._logger.folder,
        )

    def settings(self) -> dict[str, Any]:
        """Name what was chosen, for dashboards and manifests."""
        envs = None if self.train_collector is None else self.train_collector.envs
        return {
            "trainer": type(self).__name__,
            "policy": type(self.policy).__name__,
            "buffer": type(self.buffer).__name__,
            "env": None if envs is None else envs.name,
            "n_envs": None if envs is None else envs.n,
            "seed": self.seed,
            "max_epoch": self.max_epoch,
            f"{self.unit}_per_epoch": self.step_per_epoch,
        }

    def _repr_html_(self) -> str:
        return html_table(type(self).__name__, self.settings().items())

    # ---- an epoch ----

    @property
    def _is_whole(self) -> bool:
        """Whether no step of training was left half-way."""
        return True

    def _train_step(self) -> None:
        """Do the smallest whole piece of training, or what is left of one."""
        raise TypeError(f"{type(self).__name__} must define _train_step")

    def _train_epoch(self) -> None:
        """Train, or go on with, one epoch."""
        self._begin_epoch()
        if not self._is_whole:
            self._train_step()
        while not self._is_epoch_over():
            self._progress.advance_to(self._n_done)
            if self._reports.steps_since_last(self.clock) >= self._options.log_every:
                self._report()
            if self._seems_solved or self.judge.is_due(self):
                self._test_early()
            else:
                self._train_step()
                for checkpoint in self._checkpoints:
                    checkpoint.tick(self)
        self._end_epoch()

    def _begin_epoch(self) -> None:
        if not self._has_started:
            self._has_started = True
            self._logger.describe(self.settings())
            self._hooks.start(self, self._collectors)
        if not self._is_in_epoch:
            self._is_in_epoch = True
            self.epoch += 1
            self._epoch_clock, self._epoch_seconds = self.clock, self.seconds
            self.judge.begin_epoch()
            self._reports.begin_epoch(self.clock)

    def _is_epoch_over(self) -> bool:
        """Return whether the epoch has all its steps, its time is over, or the run ends."""
        if self.stop_reason is not None or self._n_done >= self.epoch * self.step_per_epoch:
            return True
        limit = self._options.max_epoch_seconds
        has_begun = self.clock > self._epoch_clock  # an epoch has at least one step
        return limit is not None and has_begun and self.seconds - self._epoch_seconds >= limit

    @property
    def _n_done(self) -> int:
        """Steps since the first epoch began, and those that epochs ended by time did not make."""
        return self.clock - self._origin + self._n_skipped

    def _end_epoch(self) -> None:
        """Evaluate if it is time, and tell everybody the result."""
        if self.stop_reason is None:  # else what is missing is made up for when the run continues
            self._n_skipped += max(0, self.epoch * self.step_per_epoch - self._n_done)
        is_last = self.stop_reason is not None or self.epoch >= self.max_epoch
        if self.judge.is_due_at_end(self, is_last=is_last):
            self.judge.evaluate(self)
            self._seems_solved = False
        if self.epoch >= self.max_epoch:
            self.stop("max_epoch")
        judge = self.judge
        self._epoch_report, stats = self._reports.end_epoch(self.clock, judge.unreported, judge.epoch_test)
        judge.unreported = NO_COLLECT
        self._is_in_epoch, self._is_ending = False, True
        self._result = EpochResult(self.epoch, stats, self.info)
        self._progress.advance_to(self._n_done)
        self._hooks.fire("on_epoch_end", self, self._result)
        self._finish_epoch()

    def _finish_epoch(self) -> None:
        """Write the report of an epoch whose `on_epoch_end` is over, and fire what follows."""
        self._write_epoch()
        if self._is_ending:
            self._is_ending = False
            self._hooks.fire("on_epoch_reported", self, self._result)

    def _write_epoch(self) -> None:
        """Write the report of an epoch that is over, unless it is written; what is logged now belongs to the next."""
        if self._epoch_report is None or self._result is None:
            return
        self._write(self._epoch_report)
        self._epoch_report = None
        self._reports.close_epoch()
        self._result = self._result._replace(info=self.info)
        self.history.record(self._result)
        self._progress.epoch(self._result)

    def _make_whole(self) -> None:
        """Write the report of an epoch that is over, so that a checkpoint needs not repeat it."""
        self._write_epoch()

    def _test_early(self) -> None:
        """Evaluate in the middle of an epoch; if that does not end the run, another may follow."""
        self.judge.evaluate(self)
        self._seems_solved = False
        if self.stop_reason is None:
            self._report()
            self.judge.reopen()

    def _break_off(self) -> None:
        """Save, and end the run in the middle of its epoch, without an evaluation: somebody waits for the machine."""
        self._save_now()
        self.stop(TERMINATE)
        if self._is_in_epoch:
            self._report()
            self._is_in_epoch = False
            self._result = EpochResult(self.epoch, self._reports.epoch(self.clock, self.judge.epoch_test), self.info)
        elif self._result is not None:
            self._result = self._result._replace(info=self.info)
        self._interrupt.pass_on(signal.SIGTERM)

    def _end_run(self) -> None:
        if self._has_started and not self._has_ended:
            self._has_ended = True
            self._progress.close()
            self._hooks.fire("on_train_end", self)
            self._release_folders()

    def _claim_folders(self, callbacks: Sequence[Callback], resume_from: str | Path | None) -> None:
        """Take the folders that callbacks write to, so that no two runs replace each other's files."""
        checks = Checks("")
        for own in callbacks:
            if isinstance(own, OwnsFolder):
                continues = own.continues(resume_from) if isinstance(own, Checkpoint) else resume_from is not None
                checks.gather(functools.partial(own.claim.take, continues=continues))
        checks.done()

    def _release_folders(self) -> None:
        for claim in self._claims:
            claim.release()

    def _report(self) -> None:
        stats, self.judge.unreported = self._reports.next(self.clock, self.judge.unreported), NO_COLLECT
        self._write(stats)

    def _write(self, stats: EpochStats) -> None:
        """Show a report on the bar and write it to the loggers."""
        self._progress.show(stats)
        self._logger.write(self.clock, scalars(stats))
        self._logger.write_histograms(self.clock, self._reports.take_histograms())

    def _watch_for_success(self, stats: CollectStats) -> None:
        """Note that training episodes look solved (`test_in_train`)."""
        if self._options.test_in_train and self._stop_fn is not None:
            self._seems_solved = self._stop_fn.holds(self.judge.score(stats))
