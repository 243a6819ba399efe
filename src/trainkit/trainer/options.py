"""The options that every trainer has, grouped by what they are about; each group checks its own.

Every option is written twice, since Python derives neither form from the other: as a field, which has the default and
types the keywords of presets, and as a key of `KeywordOptions`, which types the keywords of trainers. A test compares
both.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from trainkit.collector import Collector
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.stats import CollectStats
from trainkit.trainer.callbacks.base import Callback, EventFunctions
from trainkit.trainer.callbacks.checkpointing import Checkpoint
from trainkit.trainer.callbacks.stopping import Limits, StopFn
from trainkit.trainer.diagnosis import DIAGNOSIS_RULES, Rule, check_rules
from trainkit.trainer.evaluation import Evaluation

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer

_log = logging.getLogger(__name__)

_EPISODES_PER_TEST = 10
LONGEST_RUN = 10**15  # epochs, and steps of one: more than a run can make

Callbacks = Callback | type[Callback] | Sequence[Callback | type[Callback]]
RewardMetric = Callable[[NDArray[np.float64]], NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """Evaluations: in which environments, by which score, and what follows from it.

    Args:
        test_collector: for evaluation after every epoch, without a buffer.
        episode_per_test: episodes per evaluation in `test_collector`; None is 10.
        evaluation: how to evaluate, in place of `episode_per_test`: every epoch in `test_collector`, or in its own.
        compute_score_fn: score of an evaluation, None for none; default: its mean return.
        test_fn: called with (epoch, env_step) before every evaluation.
        stop_fn: called with an evaluation's score; True, and True again on fresh seeds, ends the run.
        save_best_fn: called with the policy when a score is the best so far.
        test_in_train: evaluate before the next collect when the training episodes of one satisfy `stop_fn`. False by
            default (Tianshou's default is True): then only the regular evaluations can end the run.
    """

    test_collector: Collector | None = None
    episode_per_test: int | None = None
    evaluation: Evaluation | None = None
    compute_score_fn: Callable[[CollectStats], float | None] | None = None
    test_fn: Callable[[int, int], None] | None = None
    stop_fn: Callable[[float], bool] | None = None
    save_best_fn: Callable[[Any], None] | None = None
    test_in_train: bool = False

    def check_evaluation(self, checks: Checks) -> None:
        """Note what cannot work."""
        checks.integer("episode_per_test", self.episode_per_test, low=1, optional=True)
        has_evaluations = self.evaluation is not None or self.test_collector is not None
        for name in ("test_fn", "stop_fn", "compute_score_fn", "save_best_fn"):
            fn = getattr(self, name)
            checks.require(fn is None or callable(fn), f".{name} must be callable, got {fn!r}")
            rule = f".{name} needs evaluations: give test_collector or evaluation"
            checks.require(fn is None or has_evaluations, rule)
        if self.evaluation is not None:
            both = self.evaluation.has_collector and self.test_collector is not None
            checks.require(not both, " was given both test_collector and an evaluation with a collector: give one")
            neither = not self.evaluation.has_collector and self.test_collector is None
            checks.require(not neither, ".evaluation has no collector: give it one, or give test_collector")
        checks.require(not self.test_in_train or self.stop_fn is not None, ".test_in_train needs a stop_fn")

    def evaluator(self) -> Evaluation | None:
        """Return the evaluation of the run, None for a run without one."""
        if self.evaluation is not None and self.test_collector is not None:
            if self.evaluation.options["duration"] is not None or self.episode_per_test is None:
                return self.evaluation.changed(self.test_collector)
            return self.evaluation.changed(self.test_collector, duration=self.episode_per_test)
        if self.test_collector is not None:
            return Evaluation(self.test_collector, duration=self.episode_per_test or _EPISODES_PER_TEST)
        if self.episode_per_test is not None:
            remedy = "give one" if self.evaluation is None else "give Evaluation(collector, duration=...)"
            _log.warning("episode_per_test=%d has no effect without test_collector: %s", self.episode_per_test, remedy)
        return self.evaluation


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """Ends of the run and of an epoch.

    Args:
        max_env_step: ends the run at this many steps.
        max_seconds: ends the run after this time spent within `next()`; this makes a run irreproducible.
        max_epoch_seconds: ends an epoch after this time spent within `next()`, if it does not have its steps before;
            the next epoch has all its steps. This makes a run irreproducible.
    """

    max_env_step: int | None = None
    max_seconds: float | None = None
    max_epoch_seconds: float | None = None

    def check_limits(self, checks: Checks) -> None:
        """Note what cannot work."""
        checks.integer("max_env_step", self.max_env_step, low=1, optional=True)
        checks.number("max_seconds", self.max_seconds, low=0, above_low=True, optional=True)
        checks.number("max_epoch_seconds", self.max_epoch_seconds, low=0, above_low=True, optional=True)


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What a run shows, logs and saves.

    Args:
        logger: a folder, for lines that the commands read and TensorBoard's files, a logger, or a list of them.
        log_every: environment steps between reports within an epoch.
        smoothed_reports: the number of reports whose updates `update/smoothed_loss` averages over.
        verbose: print one line per epoch; False logs it by Python's `logging` instead, as info.
        show_progress: one bar; None shows it on a terminal and in notebooks.
        checkpoint: a folder, saved to at the end of epochs, or a `Checkpoint`.
        resume_from: a checkpoint to resume from, or the folder of several or of a run: then the newest. "auto" resumes
            from the newest intact one of `checkpoint`, and starts from the beginning where there is none.
        save_checkpoint_fn: called with (epoch, env_step, gradient_step) at the end of every epoch.
        diagnosis: rules that name a run which does not learn, and the remedy, in the epoch's line; None for none. A
            rule is a function of the trainer that returns its finding or None, called at the end of every epoch.
    """

    logger: Any = None
    log_every: int = 1_000
    smoothed_reports: int = 10
    verbose: bool = True
    show_progress: bool | None = None
    checkpoint: Checkpoint | str | Path | None = None
    resume_from: str | Path | None = None
    save_checkpoint_fn: Callable[[int, int, int], Any] | None = None
    diagnosis: Sequence[Rule] | None = DIAGNOSIS_RULES

    def check_output(self, checks: Checks) -> None:
        """Note what cannot work."""
        checks.integer("log_every", self.log_every, low=1)
        checks.integer("smoothed_reports", self.smoothed_reports, low=1)
        known = self.checkpoint is None or isinstance(self.checkpoint, (Checkpoint, str, Path))
        checks.require(known, f".checkpoint must be a folder or a Checkpoint, got {self.checkpoint!r}")
        fn = self.save_checkpoint_fn
        checks.require(fn is None or callable(fn), f".save_checkpoint_fn must be callable, got {fn!r}")
        check_rules(checks, self.diagnosis)


@dataclass(frozen=True, kw_only=True)
class Options(EvaluationOptions, LimitOptions, OutputOptions):
    """The options every trainer has. Offline, steps are updates.

    Args:
        train_fn: called with (epoch, env_step) before every collect.
        reward_metric: maps the returns of finished episodes to those in statistics and scores; where agents share a
            game, they are [episodes, agents], nan of an agent that took no part; default: their mean.
        callbacks: one or several, objects or classes that are instantiated without arguments; see `Callback`. Functions
            become one by `on(epoch_end=f)`.
        callback_errors: "raise" lets an exception of a callback through; "log" logs it with the callback's name, event,
            epoch and step, and the run continues, unless it is a `Checkpoint`'s.
        threads: the number torch computes on while `next()` runs; None leaves torch's own setting.
        seed: seeds every part that has no seed, by named independent streams.
    """

    train_fn: Callable[[int, int], None] | None = None
    reward_metric: RewardMetric | None = None
    callbacks: Callbacks = ()
    callback_errors: Literal["raise", "log"] = "raise"
    threads: int | None = None
    seed: int | None = None

    def check(self, checks: Checks, *, max_epoch: object, **per_epoch: object) -> None:
        """Note all invalid options, for a run of `max_epoch` epochs of the given steps or updates."""
        checks.integer("max_epoch", max_epoch, low=0, high=LONGEST_RUN)
        for name, count in per_epoch.items():
            checks.integer(name, count, low=1, high=LONGEST_RUN)
        checks.one_of("callback_errors", self.callback_errors, ["raise", "log"])
        self.check_output(checks)
        self.check_limits(checks)
        self.check_evaluation(checks)
        checks.integer("seed", self.seed, low=0, optional=True)
        checks.integer("threads", self.threads, low=1, optional=True)
        for name in ("train_fn", "reward_metric"):
            fn = getattr(self, name)
            checks.require(fn is None or callable(fn), f".{name} must be callable, got {fn!r}")

    def all_callbacks(self) -> list[Callback]:
        """Return callbacks made of functions, the user's own, and last the checkpoints, which save all states."""
        own = {
            event: _named_call(option, fn, arguments)
            for option, (event, arguments) in _CALLS.items()
            if (fn := getattr(self, option)) is not None
        }
        made: list[Callback] = [OptionFunctions(own)]
        if self.stop_fn is not None:
            made.append(StopFn(self.stop_fn))
        if self.max_env_step is not None or self.max_seconds is not None:
            made.append(Limits(env_step=self.max_env_step, seconds=self.max_seconds))
        made += _as_callbacks(self.callbacks)
        if self.checkpoint is not None:
            made.append(self.checkpoint if isinstance(self.checkpoint, Checkpoint) else Checkpoint(self.checkpoint))
        return sorted(made, key=lambda own: isinstance(own, Checkpoint))


class OptionFunctions(EventFunctions):
    """Calls of the options that are functions of an event."""


_CALLS: dict[str, tuple[str, Callable[["Trainer"], tuple[Any, ...]]]] = {  # {option: (event, arguments of its call)}
    "train_fn": ("on_collect_start", lambda trainer: (trainer.epoch, trainer.env_step)),
    "test_fn": ("on_evaluate_start", lambda trainer: (trainer.epoch, trainer.clock)),
    "save_best_fn": ("on_best", lambda trainer: (trainer.evaluated_policy,)),
    "save_checkpoint_fn": (
        "on_epoch_reported",
        lambda trainer: (trainer.epoch, trainer.env_step, trainer.gradient_step),
    ),
}


def _named_call(
    name: str, fn: Callable[..., object], arguments: Callable[["Trainer"], tuple[Any, ...]]
) -> Callable[..., object]:
    """Return a function of an event that calls `fn` with these arguments; errors name it by its option."""

    def call(trainer: "Trainer", *_: object) -> None:
        fn(*arguments(trainer))

    call.__qualname__ = name
    return call


def _as_callbacks(callbacks: object) -> list[Callback]:
    """Return callbacks given as one or a list of objects and classes; a class is instantiated without arguments."""
    made: list[Callback] = []
    for item in callbacks if isinstance(callbacks, Iterable) else [callbacks]:
        one: object = item
        if isinstance(item, type) and issubclass(item, Callback):
            try:
                one = item()
            except (TypeError, ConfigError) as error:
                raise ConfigError(
                    f"callbacks: {item.__name__} cannot be made without arguments ({error}): give an object of it"
                ) from error
        if not isinstance(one, Callback):
            raise ConfigError(
                f"callbacks must be subclasses of trainkit.Callback or objects of them, got {one!r}: "
                "give functions by event, tk.on(epoch_end=function)"
            )
        made.append(one)
    return made


class EvaluationKeywords(TypedDict, total=False):
    """The keywords of `EvaluationOptions` except `test_collector`, which trainers also accept by position."""

    episode_per_test: int | None
    evaluation: Evaluation | None
    compute_score_fn: Callable[[CollectStats], float | None] | None
    test_fn: Callable[[int, int], None] | None
    stop_fn: Callable[[float], bool] | None
    save_best_fn: Callable[[Any], None] | None
    test_in_train: bool


class LimitKeywords(TypedDict, total=False):
    """The keywords of `LimitOptions`."""

    max_env_step: int | None
    max_seconds: float | None
    max_epoch_seconds: float | None


class OutputKeywords(TypedDict, total=False):
    """The keywords of `OutputOptions`."""

    logger: Any
    log_every: int
    smoothed_reports: int
    verbose: bool
    show_progress: bool | None
    checkpoint: Checkpoint | str | Path | None
    resume_from: str | Path | None
    save_checkpoint_fn: Callable[[int, int, int], Any] | None
    diagnosis: Sequence[Rule] | None


class KeywordOptions(EvaluationKeywords, LimitKeywords, OutputKeywords, total=False):
    """The keywords of `Options`."""

    train_fn: Callable[[int, int], None] | None
    reward_metric: RewardMetric | None
    callbacks: Callbacks
    callback_errors: Literal["raise", "log"]
    threads: int | None
    seed: int | None
