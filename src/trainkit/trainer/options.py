"""The options that every trainer has: their checks, and the callbacks and the evaluation made of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainkit.collector import Collector, Episode
from trainkit.core.data import EpochResult
from trainkit.core.errors import Checks
from trainkit.core.stats import CollectStats
from trainkit.envs import Envs
from trainkit.trainer.callbacks.base import EVENTS, Callback, EventOptions
from trainkit.trainer.callbacks.checkpointing import Checkpoint
from trainkit.trainer.callbacks.dispatch import (
    EventFunctions,
    SaveBestFn,
    SaveCheckpointFn,
    TestFn,
    TrainFn,
    as_callbacks,
)
from trainkit.trainer.callbacks.stopping import Limits, StopFn
from trainkit.trainer.evaluation import Evaluation

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer

Callbacks = Callback | type[Callback] | Sequence[Callback | type[Callback]]


class _SharedOptions(EventOptions, total=False):
    """The keywords of `Options` except `test_collector` and `seed`."""

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
    max_epoch_seconds: float | None
    logger: Any
    log_every: int
    verbose: bool
    show_progress: bool | None
    callbacks: Callbacks
    callback_errors: Literal["raise", "log"]
    evaluation: Evaluation | None
    checkpoint: Checkpoint | str | Path | None
    resume_from: str | Path | None
    on_nan: Literal["raise", "skip"] | None
    threads: int | None


class TrainerOptions(_SharedOptions, total=False):
    """The keywords of `Options` except `seed`."""

    test_collector: Collector | None


class CommonOptions(TrainerOptions, total=False):
    """The keywords of `Options`."""

    seed: int | None


class KeywordOptions(_SharedOptions, total=False):
    """The keywords of `Options` except `test_collector`, which trainers also accept by position."""

    seed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options every trainer has. Offline, steps are updates.

    Args:
        test_collector: for evaluation after every epoch, without a buffer.
        episode_per_test: episodes per evaluation.
        train_fn: called with (epoch, env_step) before every collect.
        test_fn: called with (epoch, env_step) before every evaluation.
        stop_fn: called with an evaluation's score; True, and True again on fresh seeds, ends the run.
        compute_score_fn: score of an evaluation, None for none; default: its mean return.
        save_best_fn: called with the policy when a score is the best so far.
        save_checkpoint_fn: called with (epoch, env_step, gradient_step) at the end of every epoch.
        reward_metric: maps the returns of finished episodes to those in statistics and scores; where agents share a
            game, they are [episodes, agents], nan of an agent that took no part; default: their mean.
        test_in_train: evaluate before the next collect when the training episodes of one satisfy `stop_fn`. False by
            default (Tianshou's default is True): then only the regular evaluations can end the run.
        max_env_step: ends the run at this many steps.
        max_seconds: ends the run after this time spent within `next()`; this makes a run irreproducible.
        max_epoch_seconds: ends an epoch after this time spent within `next()`, if it does not have its steps before;
            the next epoch has all its steps. This makes a run irreproducible.
        logger: a folder (tensorboard), a logger, or a list of them.
        log_every: environment steps between reports within an epoch.
        verbose: print one line per epoch.
        show_progress: one bar; None shows it on a terminal and in notebooks.
        callbacks: one or several, objects or classes that are instantiated without arguments; see `Callback`.
        callback_errors: "raise" lets an exception of a callback through; "log" logs it with the callback's name, event,
            epoch and step, and the run continues, unless it is a `Checkpoint`'s.
        evaluation: instead of `test_collector` and `episode_per_test`.
        checkpoint: a folder, saved to at the end of epochs, or a `Checkpoint`.
        resume_from: a checkpoint to resume from, or the folder of several: then the newest. "auto" resumes from the
            newest intact one of `checkpoint`, and starts from the beginning where there is none.
        on_nan: what an update does whose loss or gradient is not finite, which never reaches the weights: "raise", or
            "skip" up to ten in a row; None is the policy's own setting.
        threads: the number torch computes on while `next()` runs; None leaves torch's own setting.
        seed: seeds every part that has no seed, by named independent streams.
        on_train_start, on_env_created, ...: functions, each called at the event of `Callback` that it is named like.
    """

    test_collector: Collector | None = None
    episode_per_test: int = 10
    train_fn: Callable[[int, int], None] | None = None
    test_fn: Callable[[int, int], None] | None = None
    stop_fn: Callable[[float], bool] | None = None
    compute_score_fn: Callable[[CollectStats], float | None] | None = None
    save_best_fn: Callable[[Any], None] | None = None
    save_checkpoint_fn: Callable[[int, int, int], Any] | None = None
    reward_metric: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None
    test_in_train: bool = False
    max_env_step: int | None = None
    max_seconds: float | None = None
    max_epoch_seconds: float | None = None
    logger: Any = None
    log_every: int = 1_000
    verbose: bool = True
    show_progress: bool | None = None
    callbacks: Callbacks = ()
    callback_errors: Literal["raise", "log"] = "raise"
    evaluation: Evaluation | None = None
    checkpoint: Checkpoint | str | Path | None = None
    resume_from: str | Path | None = None
    on_nan: Literal["raise", "skip"] | None = None
    threads: int | None = None
    seed: int | None = None
    on_train_start: Callable[["Trainer"], object] | None = None
    on_env_created: Callable[["Trainer", Envs, int], object] | None = None
    on_collect_start: Callable[["Trainer"], object] | None = None
    on_episode_created: Callable[["Trainer", Episode], object] | None = None
    on_episode_start: Callable[["Trainer", Episode], object] | None = None
    on_episode_step: Callable[["Trainer", Episode], object] | None = None
    on_episode_end: Callable[["Trainer", Episode], object] | None = None
    on_episode_failed: Callable[["Trainer", Episode, Exception], object] | None = None
    on_collect_end: Callable[["Trainer", CollectStats], object] | None = None
    on_train_batch: Callable[["Trainer", Any], Any] | None = None
    on_update_end: Callable[["Trainer"], object] | None = None
    on_evaluate_start: Callable[["Trainer"], object] | None = None
    on_best: Callable[["Trainer", CollectStats], object] | None = None
    on_evaluate_end: Callable[["Trainer", CollectStats], object] | None = None
    on_epoch_end: Callable[["Trainer", EpochResult], object] | None = None
    on_epoch_reported: Callable[["Trainer", EpochResult], object] | None = None
    on_checkpoint_saved: Callable[["Trainer", Path], object] | None = None
    on_checkpoint_loaded: Callable[["Trainer", Path], object] | None = None
    on_train_end: Callable[["Trainer"], object] | None = None

    def check(self, checks: Checks, *, max_epoch: object, **per_epoch: object) -> None:
        """Note everything that cannot work, in a run of `max_epoch` epochs of the given steps or updates."""
        checks.integer("max_epoch", max_epoch, low=0)
        for name, count in per_epoch.items():
            checks.integer(name, count, low=1)
        checks.one_of("callback_errors", self.callback_errors, ["raise", "log"])
        checks.integer("log_every", self.log_every, low=1)
        checks.integer("episode_per_test", self.episode_per_test, low=1)
        checks.integer("max_env_step", self.max_env_step, low=1, optional=True)
        checks.number("max_seconds", self.max_seconds, low=0, above_low=True, optional=True)
        checks.number("max_epoch_seconds", self.max_epoch_seconds, low=0, above_low=True, optional=True)
        checks.integer("seed", self.seed, low=0, optional=True)
        if self.on_nan is not None:
            checks.one_of("on_nan", self.on_nan, ["raise", "skip"])
        checks.integer("threads", self.threads, low=1, optional=True)
        for name in _FUNCTIONS:
            fn = getattr(self, name)
            checks.require(fn is None or callable(fn), f".{name} must be callable, got {fn!r}")
        both = self.evaluation is not None and self.test_collector is not None
        checks.require(not both, " was given both evaluation and test_collector: give one")
        if self.evaluation is None and self.test_collector is None:
            for name in _EVALUATION_OPTIONS:
                is_unset = getattr(self, name) is None
                checks.require(is_unset, f".{name} needs evaluations: give test_collector or evaluation")
        checks.require(not self.test_in_train or self.stop_fn is not None, ".test_in_train needs a stop_fn")
        known = self.checkpoint is None or isinstance(self.checkpoint, (Checkpoint, str, Path))
        checks.require(known, f".checkpoint must be a folder or a Checkpoint, got {self.checkpoint!r}")

    def evaluator(self) -> Evaluation | None:
        """Return how to evaluate, None for a run without evaluations."""
        if self.test_collector is None:
            return self.evaluation
        return Evaluation(self.test_collector, duration=self.episode_per_test)

    def all_callbacks(self) -> list[Callback]:
        """Return those made of functions, the user's own, and last the checkpoints, which save the states of all."""
        made: list[Callback] = []
        if self.train_fn is not None:
            made.append(TrainFn(self.train_fn))
        if self.test_fn is not None:
            made.append(TestFn(self.test_fn))
        if self.stop_fn is not None:
            made.append(StopFn(self.stop_fn))
        if self.max_env_step is not None or self.max_seconds is not None:
            made.append(Limits(env_step=self.max_env_step, seconds=self.max_seconds))
        if self.save_best_fn is not None:
            made.append(SaveBestFn(self.save_best_fn))
        if self.save_checkpoint_fn is not None:
            made.append(SaveCheckpointFn(self.save_checkpoint_fn))
        made.extend(as_callbacks(self.callbacks))
        events = {event: function for event in EVENTS if (function := getattr(self, event)) is not None}
        if events:
            made.append(EventFunctions(events))
        if self.checkpoint is not None:
            made.append(self.checkpoint if isinstance(self.checkpoint, Checkpoint) else Checkpoint(self.checkpoint))
        return sorted(made, key=lambda own: isinstance(own, Checkpoint))


_EVALUATION_OPTIONS = ("test_fn", "stop_fn", "compute_score_fn", "save_best_fn")
_FUNCTIONS = ("train_fn", *_EVALUATION_OPTIONS, "save_checkpoint_fn", "reward_metric")
