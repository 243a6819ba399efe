"""The options that every trainer and preset has, grouped by what they are about, each with its check."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict

from trainkit.collector import Collector
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.stats import CollectStats
from trainkit.core.typed_options import completed
from trainkit.trainer.callbacks.base import Callback, EventFunctions
from trainkit.trainer.callbacks.checkpointing import Checkpoint
from trainkit.trainer.callbacks.stopping import Limits, StopFn
from trainkit.trainer.evaluation import Evaluation

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer

_log = logging.getLogger(__name__)

_EPISODES_PER_TEST = 10
LONGEST_RUN = 10**15  # epochs, and steps of one: more than a run can make

Callbacks = Callback | type[Callback] | Sequence[Callback | type[Callback]]
RewardMetric = Callable[[NDArray[np.float64]], NDArray[np.float64]]


class EvaluationOptions(TypedDict, total=False):
    """Evaluations: in which environments, by which score, and what follows from it.

    Args:
        episode_per_test: episodes per evaluation in `test_collector`; None is 10.
        evaluation: how to evaluate, in place of `episode_per_test`: every epoch in `test_collector`, or in its own.
        compute_score_fn: score of an evaluation, None for none; default: its mean return.
        test_fn: called with (epoch, env_step) before every evaluation.
        stop_fn: called with an evaluation's score; True, and True again on fresh seeds, ends the run.
        save_best_fn: called with the policy when a score is the best so far.
        test_in_train: evaluate before the next collect when the training episodes of one satisfy `stop_fn`. False by
            default (Tianshou's default is True): then only the regular evaluations can end the run.
    """

    episode_per_test: Annotated[int | None, None]
    evaluation: Annotated[Evaluation | None, None]
    compute_score_fn: Annotated[Callable[[CollectStats], float | None] | None, None]
    test_fn: Annotated[Callable[[int, int], None] | None, None]
    stop_fn: Annotated[Callable[[float], bool] | None, None]
    save_best_fn: Annotated[Callable[[Any], None] | None, None]
    test_in_train: Annotated[bool, False]


class LimitOptions(TypedDict, total=False):
    """Ends of the run and of an epoch.

    Args:
        max_env_step: ends the run at this many steps.
        max_seconds: ends the run after this time spent within `next()`; this makes a run irreproducible.
        max_epoch_seconds: ends an epoch after this time spent within `next()`, if it does not have its steps before;
            the next epoch has all its steps. This makes a run irreproducible.
    """

    max_env_step: Annotated[int | None, None]
    max_seconds: Annotated[float | None, None]
    max_epoch_seconds: Annotated[float | None, None]


class OutputOptions(TypedDict, total=False):
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
    """

    logger: Annotated[Any, None]
    log_every: Annotated[int, 1_000]
    smoothed_reports: Annotated[int, 10]
    verbose: Annotated[bool, True]
    show_progress: Annotated[bool | None, None]
    checkpoint: Annotated[Checkpoint | str | Path | None, None]
    resume_from: Annotated[str | Path | None, None]
    save_checkpoint_fn: Annotated[Callable[[int, int, int], Any] | None, None]


class Options(EvaluationOptions, LimitOptions, OutputOptions, total=False):
    """The options every trainer has. Offline, steps are updates.

    Args:
        train_fn: called with (epoch, env_step) before every collect.
        reward_metric: maps the returns of finished episodes to those in statistics and scores; of rows in
            groups they are [episodes, rows of a group], nan of one that took no part; default: their mean.
        callbacks: one or several, objects or classes that are instantiated without arguments; see `Callback`. Functions
            become one by `on(epoch_end=f)`.
        callback_errors: "raise" lets an exception of a callback through; "log" logs it with the callback's name, event,
            epoch and step, and the run continues, unless it is a `Checkpoint`'s.
        threads: the number torch computes on while `next()` runs; None leaves torch's own setting.
        seed: seeds every part that has no seed, by named independent streams.
    """

    train_fn: Annotated[Callable[[int, int], None] | None, None]
    reward_metric: Annotated[RewardMetric | None, None]
    callbacks: Annotated[Callbacks, ()]
    callback_errors: Annotated[Literal["raise", "log"], "raise"]
    threads: Annotated[int | None, None]
    seed: Annotated[int | None, None]


class TrainerOptions(Options, total=False):
    """The options of a trainer, all of them.

    Args:
        test_collector: for evaluation after every epoch, without a buffer; trainers accept it by position, too.
    """

    test_collector: Annotated[Collector | None, None]


def complete(test_collector: Collector | None, given: Options) -> TrainerOptions:
    """Return all options of a trainer: those that were given, and the defaults of the others."""
    return completed(TrainerOptions, {**given, "test_collector": test_collector})


def check_options(checks: Checks, options: TrainerOptions, *, max_epoch: object, **per_epoch: object) -> None:
    """Note all invalid options, for a run of `max_epoch` epochs of the given steps or updates."""
    checks.integer("max_epoch", max_epoch, low=0, high=LONGEST_RUN)
    for name, count in per_epoch.items():
        checks.integer(name, count, low=1, high=LONGEST_RUN)
    checks.one_of("callback_errors", options["callback_errors"], ["raise", "log"])
    _check_output(checks, options)
    _check_limits(checks, options)
    _check_evaluation(checks, options)
    checks.integer("seed", options["seed"], low=0, optional=True)
    checks.integer("threads", options["threads"], low=1, optional=True)
    _check_functions(checks, options, "train_fn", "reward_metric")


def _check_evaluation(checks: Checks, options: TrainerOptions) -> None:
    checks.integer("episode_per_test", options["episode_per_test"], low=1, optional=True)
    evaluation, test_collector = options["evaluation"], options["test_collector"]
    functions = ("test_fn", "stop_fn", "compute_score_fn", "save_best_fn")
    _check_functions(checks, options, *functions)
    if evaluation is None and test_collector is None:
        given: Mapping[str, object] = options
        for name in functions:
            rule = f".{name} needs evaluations: give test_collector or evaluation"
            checks.require(given[name] is None, rule)
    if evaluation is not None:
        both = evaluation.has_collector and test_collector is not None
        checks.require(not both, " was given both test_collector and an evaluation with a collector: give one")
        neither = not evaluation.has_collector and test_collector is None
        checks.require(not neither, ".evaluation has no collector: give it one, or give test_collector")
    checks.require(not options["test_in_train"] or options["stop_fn"] is not None, ".test_in_train needs a stop_fn")


def _check_limits(checks: Checks, options: LimitOptions) -> None:
    checks.integer("max_env_step", options["max_env_step"], low=1, optional=True)
    checks.number("max_seconds", options["max_seconds"], low=0, above_low=True, optional=True)
    checks.number("max_epoch_seconds", options["max_epoch_seconds"], low=0, above_low=True, optional=True)


def _check_output(checks: Checks, options: OutputOptions) -> None:
    checks.integer("log_every", options["log_every"], low=1)
    checks.integer("smoothed_reports", options["smoothed_reports"], low=1)
    checkpoint = options["checkpoint"]
    known = checkpoint is None or isinstance(checkpoint, (Checkpoint, str, Path))
    checks.require(known, f".checkpoint must be a folder or a Checkpoint, got {checkpoint!r}")
    _check_functions(checks, options, "save_checkpoint_fn")


def _check_functions(checks: Checks, options: Mapping[str, object], *names: str) -> None:
    for name in names:
        fn = options[name]
        checks.require(fn is None or callable(fn), f".{name} must be callable, got {fn!r}")


def evaluation_of(options: TrainerOptions) -> Evaluation | None:
    """Return the evaluation of the run, None for a run without one."""
    evaluation, test_collector = options["evaluation"], options["test_collector"]
    n_episode = options["episode_per_test"]
    if evaluation is not None and test_collector is not None:
        if evaluation.options["duration"] is not None or n_episode is None:
            return evaluation.changed(test_collector)
        return evaluation.changed(test_collector, duration=n_episode)
    if test_collector is not None:
        return Evaluation(test_collector, duration=n_episode or _EPISODES_PER_TEST)
    if n_episode is not None:
        remedy = "give one" if evaluation is None else "give Evaluation(collector, duration=...)"
        _log.warning("episode_per_test=%d has no effect without test_collector: %s", n_episode, remedy)
    return evaluation


def callbacks_of(options: TrainerOptions) -> list[Callback]:
    """Return callbacks made of functions, the user's own, and last the checkpoints, which save all states."""
    given: Mapping[str, Any] = {**options}
    functions = {
        event: _named_call(option, given[option], arguments)
        for option, (event, arguments) in _CALLS.items()
        if given[option] is not None
    }
    if options["test_fn"] is not None and options["evaluation"] is None:
        functions["on_evaluate_start"] = _warning_of_exploration(functions["on_evaluate_start"])
    made: list[Callback] = [OptionFunctions(functions)]
    if (stop_fn := options["stop_fn"]) is not None:
        made.append(StopFn(stop_fn))
    if options["max_env_step"] is not None or options["max_seconds"] is not None:
        made.append(Limits(env_step=options["max_env_step"], seconds=options["max_seconds"]))
    made += _as_callbacks(options["callbacks"])
    if (checkpoint := options["checkpoint"]) is not None:
        made.append(checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint))
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


def _warning_of_exploration(call_test_fn: Callable[..., object]) -> Callable[..., object]:
    """Return the call of a `test_fn` that warns, once, where it changes an exploration that evaluations do not use."""
    was_warned = False

    def call(trainer: "Trainer", *_: object) -> None:
        nonlocal was_warned
        before = trainer.policy.explore_metrics(trainer.clock)
        call_test_fn(trainer)
        changed = {
            name: value
            for name, value in trainer.policy.explore_metrics(trainer.clock).items()
            if before.get(name) != value
        }
        if changed and not was_warned:
            was_warned = True
            _log.warning(
                "test_fn set %s, which has no effect on evaluations, since they do not explore, and stays for "
                "training: leave it out, or give evaluation=Evaluation(explore=True)",
                " and ".join(f"{name} to {value:g}" for name, value in changed.items()),
            )

    call.__qualname__ = call_test_fn.__qualname__
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
