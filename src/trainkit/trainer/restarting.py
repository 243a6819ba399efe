"""Automatic restarts: a run that failed is built again and resumes from its last checkpoint."""

import gc
import logging
import time
from collections.abc import Callable

from trainkit.core.errors import Checks, ConfigError, DeviceError, EnvError
from trainkit.core.signatures import checked
from trainkit.core.stats import RunInfo
from trainkit.trainer.base import Trainer

_log = logging.getLogger(__name__)

_LONGEST_S = 60.0  # between two attempts


@checked
def run_with_restart(
    make_trainer: Callable[[], Trainer],
    *,
    max_failures: int = 3,
    delay_s: float = 1.0,
    errors: tuple[type[Exception], ...] = (EnvError, DeviceError, OSError),
) -> RunInfo:
    """Run a trainer, construct it again after failures from outside, and return the `info` of the finished run.

    On the CPU the result is bit-exact to a run in which nothing failed, where environments can repeat their episodes.

    Args:
        make_trainer: builds all of it, environments, policy and buffer too, with `checkpoint=` and
            `resume_from="auto"`. What it raises the first time goes through: restarting would not help.
        max_failures: the number of restarts; one more failure goes through, with a note of those before.
        delay_s: before the first restart, doubled for each that follows, 60 s at most.
        errors: those that may be temporary. A mistake in the configuration or a run that diverged is not.

    Raises:
        ConfigError: the trainer would not resume from its last checkpoint.
    """
    with Checks("run_with_restart") as checks:
        checks.require(
            callable(make_trainer), f".make_trainer must be a function that returns a trainer, got {make_trainer!r}"
        )
        checks.integer("max_failures", max_failures, low=0)
        checks.number("delay_s", delay_s, low=0)
        are_errors = isinstance(errors, tuple) and all(isinstance(e, type) and issubclass(e, Exception) for e in errors)
        checks.require(are_errors, f".errors must be a tuple of exceptions, got {errors!r}")
    trainer: Trainer | None = make_trainer()
    _check_resumes(trainer)
    failures: list[str] = []
    while True:
        try:
            trainer = make_trainer() if trainer is None else trainer
            with trainer:
                return trainer.run()
        except errors as error:
            where = "being built again" if trainer is None else f"epoch {trainer.epoch}, {trainer.unit} {trainer.clock}"
            failures.append(f"{where}: {type(error).__name__}: {error}")
            if len(failures) > max_failures:
                error.add_note(_list_failures(failures))
                raise
        trainer = None
        gc.collect()  # so that the failed run's memory is free before the next one allocates
        pause_s = min(delay_s * 2.0 ** min(len(failures) - 1, 30), _LONGEST_S)
        _log.warning("%s; restarting in %g s, failure %d of %d", failures[-1], pause_s, len(failures), max_failures)
        time.sleep(pause_s)


def _check_resumes(trainer: object) -> None:
    """Raise a `ConfigError` unless a trainer resumes from its last checkpoint when it is built again."""
    if not isinstance(trainer, Trainer):
        raise ConfigError(f"run_with_restart.make_trainer must return a trainer, got {trainer!r}")
    if not trainer.resumes_automatically:
        trainer.close()
        raise ConfigError(
            "run_with_restart.make_trainer must return a trainer that resumes when it is built again: give it "
            'checkpoint= and resume_from="auto"'
        )


def _list_failures(failures: list[str]) -> str:
    """Return a note that lists every failure, for the last error."""
    lines = "".join(f"\n  {position}. {failure}" for position, failure in enumerate(failures, 1))
    return f"run_with_restart gave up: failure {len(failures)}, max_failures={len(failures) - 1}{lines}"
