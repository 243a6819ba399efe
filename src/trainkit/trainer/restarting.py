"""A run that outlives what fails around it: made anew, it goes on from its last checkpoint."""

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
    """Run a trainer, make it anew whenever something outside it fails, and return where the run stands at its end.

    On the CPU it then has the bits of a run in which nothing failed, where environments can play their episodes again.

    Args:
        make_trainer: makes all of it, environments, policy and buffer too, with `checkpoint=` and
            `resume_from="auto"`. What it raises the first time goes through: that was never well.
        max_failures: so many are outlived; one more goes through, with a note of those before.
        delay_s: before the first restart, doubled for each that follows, 60 s at most.
        errors: those that may not come again. A mistake in the configuration or a run that diverged would.

    Raises:
        ConfigError: the trainer would not go on from its last checkpoint.
    """
    checks = Checks("run_with_restart")
    checks.require(
        callable(make_trainer), f".make_trainer must be a function that makes a trainer, got {make_trainer!r}"
    )
    checks.integer("max_failures", max_failures, low=0)
    checks.number("delay_s", delay_s, low=0)
    are_errors = isinstance(errors, tuple) and all(isinstance(e, type) and issubclass(e, Exception) for e in errors)
    checks.require(are_errors, f".errors must be a tuple of exceptions, got {errors!r}")
    checks.done()
    trainer: Trainer | None = make_trainer()
    _refuse_forgetful(trainer)
    failures: list[str] = []
    while True:
        try:
            trainer = make_trainer() if trainer is None else trainer
            with trainer:
                return trainer.run()
        except errors as error:
            where = "being made anew" if trainer is None else f"epoch {trainer.epoch}, {trainer.unit} {trainer.clock}"
            failures.append(f"{where}: {type(error).__name__}: {error}")
            if len(failures) > max_failures:
                error.add_note(_told(failures))
                raise
        trainer = None
        gc.collect()  # what failed gives its memory back before as much is claimed again
        pause_s = min(delay_s * 2.0 ** min(len(failures) - 1, 30), _LONGEST_S)
        _log.warning("%s; made anew in %g s, failure %d of %d", failures[-1], pause_s, len(failures), max_failures)
        time.sleep(pause_s)


def _refuse_forgetful(trainer: object) -> None:
    """Refuse what does not go on from its last checkpoint when it is made again."""
    if not isinstance(trainer, Trainer):
        raise ConfigError(f"run_with_restart.make_trainer must return a trainer, got {trainer!r}")
    if not trainer.resumes_automatically:
        trainer.close()
        raise ConfigError(
            "run_with_restart.make_trainer must make a trainer that goes on when it is made again: give it "
            'checkpoint= and resume_from="auto"'
        )


def _told(failures: list[str]) -> str:
    """Tell of every attempt, for who sees the last error."""
    former = "".join(f"\n  {position}. {told}" for position, told in enumerate(failures, 1))
    return f"run_with_restart gave up: failure {len(failures)}, max_failures={len(failures) - 1} are outlived{former}"
