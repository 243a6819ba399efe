"""Every error that trainkit raises, and the checks that raise them at construction.

    TrainkitError
     +-- ConfigError (ValueError)            an argument that cannot work, raised before anything runs
     |    +-- SpaceMismatchError             spaces of two parts that do not fit each other
     |    +-- MissingExtraError (ImportError) something optional that is not installed
     +-- EnvError (RuntimeError)             an environment broke its contract or raised
     |    +-- BadEnvDataError (ValueError)   ... by what it returned: nan, a wrong shape, a flag that is no bool
     |    +-- NoLegalActionError             ... by a mask that allows nothing
     +-- EmptyBufferError (LookupError)      nothing to sample yet
     +-- MissingRowError (IndexError)        a row that a buffer does not hold, or no longer
     +-- PriorityError (ValueError)          a priority that is nan, infinite or negative
     +-- DivergedError (ArithmeticError)     nan or infinity in a value, a loss or a gradient
     +-- CheckpointError (RuntimeError)      a checkpoint that is missing, damaged or of another run
     +-- DeviceError (RuntimeError)          a device that is not there, or lacks what is needed
     +-- RankError (RuntimeError)            another process of a run under torchrun has ended
     +-- BusyError (RuntimeError)            an iterator entered twice

Every message names its subject, the rule, what came, and what to do.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any

import numpy as np

from trainkit.core.names import did_you_mean, option_hint, schedule_hint

# What calling users' code may raise: an environment that wants to exit has failed, too.
RAISED = (Exception, SystemExit)


class TrainkitError(Exception):
    """Base of every error trainkit raises on purpose."""


class ConfigError(TrainkitError, ValueError):
    """An invalid argument, or a combination of arguments that cannot work."""


class SpaceMismatchError(ConfigError):
    """Two parts whose observation or action spaces do not match."""


class MissingExtraError(ConfigError, ImportError):
    """A feature that needs an optional package that is not installed."""


class EnvError(TrainkitError, RuntimeError):
    """An environment that raised or broke its contract; `env_id` is its index, where it is known."""

    def __init__(self, *args: object, env_id: int | None = None) -> None:
        super().__init__(*args)
        self.env_id = env_id


class BadEnvDataError(EnvError, ValueError):
    """Data of an environment that must not be learned from."""


class NoLegalActionError(EnvError):
    """An action mask that allows no action."""


class EmptyBufferError(TrainkitError, LookupError):
    """A sample from a buffer that holds no row."""


class MissingRowError(TrainkitError, IndexError):
    """A row that is not, or no longer, in a buffer."""


class PriorityError(TrainkitError, ValueError):
    """A priority that is nan, infinite or negative."""


class DivergedError(TrainkitError, ArithmeticError):
    """NaN or infinity, detected before it reaches the weights; `facts` describes the update, if it was one."""

    facts: Mapping[str, Any] = MappingProxyType({})


class CheckpointError(TrainkitError, RuntimeError):
    """A checkpoint that is missing, damaged or of another run."""


class DeviceError(TrainkitError, RuntimeError):
    """A device that is not available, has too little memory, or does not have the images of a batch."""


class RankError(TrainkitError, RuntimeError):
    """A process of several that learn together, while another of them has ended."""


class BusyError(TrainkitError, RuntimeError):
    """A call that is not possible now: to enter a running iterator, to call environments in the middle of a step."""


class Checks:
    """Checks of one object's arguments: everything that is wrong is raised as one error when the block ends.

        with Checks("Clip") as checks:
            checks.number("limit", limit, low=0, above_low=True)
            checks.one_of("by", by, ["global_norm", "norm", "value"])

    Args:
        subject: the object's name, with which each problem begins.
        error: the class of the error.
    """

    def __init__(self, subject: str, error: type[ConfigError] = ConfigError) -> None:
        self.subject, self.error = subject, error
        self.problems: list[str] = []

    def __enter__(self) -> "Checks":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.done()

    def done(self) -> None:
        """Raise one error with all noted problems, if there are any; called at the end of a block."""
        if self.problems:
            raise self.error("\n".join(self.problems))

    def require(self, holds: bool, problem: str) -> bool:
        """Note `problem` (which follows the subject's name) unless `holds`."""
        if not holds:
            self.problems.append(f"{self.subject}{problem}")
        return holds

    def integer(
        self, name: str, value: object, *, low: int | None = None, high: int | None = None, optional: bool = False
    ) -> bool:
        """Require an integer in [low, high], or None if the option is `optional`; a bool is not accepted."""
        fits = isinstance(value, Integral) and not isinstance(value, bool) and (low is None or int(value) >= low)
        rule = "must be a whole number" + ("" if low is None else f" >= {low}")
        if fits and high is not None and isinstance(value, Integral) and int(value) > high:
            fits, rule = False, f"must be at most {high:,}"
        return self.require(fits or (optional and value is None), f".{name} {rule}, got {shown(value)}")

    def number(
        self,
        name: str,
        value: object,
        *,
        low: float = -math.inf,
        high: float = math.inf,
        above_low: bool = False,
        optional: bool = False,
    ) -> bool:
        """Require a finite number in [low, high], or (low, high] with `above_low`; with `optional`, None is valid."""
        left = "(" if above_low or math.isinf(low) else "["
        right = ")" if math.isinf(high) else "]"
        rule = f"must be in {left}{low:g}, {high:g}{right}"
        fits = (
            isinstance(value, Real)
            and not isinstance(value, bool)
            and _is_finite(value)
            and low <= float(value) <= high
            and not (above_low and value == low)
        )
        remedy = f", a str{schedule_hint(value) or ': give a number'}" if isinstance(value, str) else ""
        return self.require(fits or (optional and value is None), f".{name} {rule}, got {shown(value)}{remedy}")

    def flag(self, name: str, value: object, *, optional: bool = False) -> bool:
        """Require True or False; with `optional`, None is valid."""
        rule = "must be True, False or None" if optional else "must be True or False"
        fits = isinstance(value, (bool, np.bool_)) or (optional and value is None)
        return self.require(fits, f".{name} {rule}, got {value!r}")

    @contextmanager
    def gather(self) -> Iterator[None]:
        """Note the problems that a block raises instead of raising them now."""
        try:
            yield
        except ConfigError as error:
            self.problems += str(error).split("\n")

    def one_of(self, name: str, value: object, allowed: Iterable[str]) -> bool:
        """Require one of these words; the error suggests the nearest one."""
        words = list(allowed)
        if value in words:
            return True
        return self.require(False, f".{name} must be one of {words}, got {value!r}{did_you_mean(value, words)}")


def _is_finite(value: Real) -> bool:
    """Return whether a number is one of float64's: no infinity, no nan, no integer beyond them."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def shown(value: object) -> str:
    """Return a value as errors show it: an integer beyond floats by its size."""
    if isinstance(value, int) and value.bit_length() > 1_024:
        return f"an integer of {value.bit_length():,} bits"
    return repr(value)


def check_flag(owner: object, name: str, value: object) -> None:
    """Raise `ConfigError` in the name of `owner`'s class unless `value` is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        with Checks(type(owner).__name__) as checks:
            checks.flag(name, value)


def all_made(**makers: Callable[[], Any]) -> dict[str, Any]:
    """Make parts by one function each; raise the errors of all that fail as one error."""
    made = {}
    with Checks("") as checks:
        for name, make in makers.items():
            with checks.gather():
                made[name] = make()
    return made


def reject_unknown(subject: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise `ConfigError` for options that `subject` does not have, with the nearest names."""
    names = sorted(known)
    with Checks(subject) as checks:
        for name in given:
            if name not in names:
                checks.require(False, f": unknown option {name!r}{option_hint(name, names)}")
