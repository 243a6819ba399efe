"""Everything trainkit raises, and the checks that raise it at construction.

    TrainkitError
     +-- ConfigError (ValueError)            an argument that cannot work, refused before anything runs
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
     +-- DeviceError (RuntimeError)          a device that is not there, or has not what was asked of it
     +-- BusyError (RuntimeError)            an iterator entered twice

Every message names its subject, the rule, what came, and what to do.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any

import numpy as np

from trainkit.core.names import nearest_word, suggest, translate


class TrainkitError(Exception):
    """Base of every error trainkit raises on purpose."""


class ConfigError(TrainkitError, ValueError):
    """Refuse an argument that cannot work."""


class SpaceMismatchError(ConfigError):
    """Refuse two parts whose observation or action spaces do not fit."""


class MissingExtraError(ConfigError, ImportError):
    """Refuse what needs an optional package that is not installed."""


class EnvError(TrainkitError, RuntimeError):
    """Report an environment that raised or broke its contract; `env_id` says which, where that is known."""

    def __init__(self, *args: object, env_id: int | None = None) -> None:
        super().__init__(*args)
        self.env_id = env_id


class BadEnvDataError(EnvError, ValueError):
    """Report data of an environment that must not be learnt from."""


class NoLegalActionError(EnvError):
    """Report an action mask that allows no action."""


class EmptyBufferError(TrainkitError, LookupError):
    """Refuse to sample from a buffer that holds no row."""


class MissingRowError(TrainkitError, IndexError):
    """Report a row that a buffer does not hold, or no longer."""


class PriorityError(TrainkitError, ValueError):
    """Refuse a priority that is nan, infinite or negative."""


class DivergedError(TrainkitError, ArithmeticError):
    """Stop before nan or infinity reaches the weights; `facts` tell of the update, where it was one."""

    facts: Mapping[str, Any] = MappingProxyType({})


class CheckpointError(TrainkitError, RuntimeError):
    """Refuse a checkpoint that is missing, damaged or belongs elsewhere."""


class DeviceError(TrainkitError, RuntimeError):
    """Refuse a device that this machine does not have, or what the device does not have: memory, images of before."""


class BusyError(TrainkitError, RuntimeError):
    """Refuse what cannot be done now: to enter an iterator that runs, to ask environments in the middle of a step."""


class Checks:
    """Gather everything wrong with one object's arguments and refuse them in one message."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.problems: list[str] = []

    def require(self, holds: bool, problem: str) -> bool:
        """Note `problem` (which follows the subject's name) unless `holds`."""
        if not holds:
            self.problems.append(f"{self.subject}{problem}")
        return holds

    def integer(self, name: str, value: object, *, low: int | None = None) -> bool:
        """Require a whole number, at least `low`; a bool is not a number."""
        if isinstance(value, Integral) and not isinstance(value, bool) and (low is None or int(value) >= low):
            return True  # without writing down what nobody will read: this is asked before every collect
        rule = "must be a whole number" + ("" if low is None else f" >= {low}")
        return self.require(False, f".{name} {rule}, got {value!r}")

    def number(
        self, name: str, value: object, *, low: float = -math.inf, high: float = math.inf, above_low: bool = False
    ) -> bool:
        """Require a finite number in [low, high], or in (low, high] when `above_low`."""
        left = "(" if above_low or math.isinf(low) else "["
        right = ")" if math.isinf(high) else "]"
        rule = f"must be in {left}{low:g}, {high:g}{right}"
        fits = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
        fits = fits and low <= float(value) <= high and not (above_low and value == low)  # type: ignore[arg-type]  # fits
        return self.require(fits, f".{name} {rule}, got {value!r}")

    def flag(self, name: str, value: object, *, optional: bool = False) -> bool:
        """Require True or False, or None where the option is `optional`."""
        rule = "must be True, False or None" if optional else "must be True or False"
        return self.require(is_flag(value) or (optional and value is None), f".{name} {rule}, got {value!r}")

    def gather(self, check: Callable[[], object]) -> None:
        """Note what another check refuses, instead of letting it end this one."""
        try:
            check()
        except ConfigError as refusal:
            self.problems += str(refusal).split("\n")

    def one_of(self, name: str, value: object, allowed: Iterable[str]) -> bool:
        """Require one of a few words, offering the nearest."""
        words = list(allowed)
        return self.require(value in words, f".{name} must be one of {words}, got {value!r}{nearest(value, words)}")

    def done(self, kind: type[ConfigError] = ConfigError) -> None:
        """Raise one error with every problem noted, if there was any."""
        if self.problems:
            raise kind("\n".join(self.problems))


def is_flag(value: object) -> bool:
    """Return whether a value is True or False, Python's or numpy's."""
    return isinstance(value, (bool, np.bool_))


def check_flag(owner: object, name: str, value: object) -> None:
    """Raise `ConfigError` in the name of `owner`'s class unless `value` is True or False."""
    if not is_flag(value):
        raise ConfigError(f"{type(owner).__name__}.{name} must be True or False, got {value!r}")


def all_made(**makers: Callable[[], Any]) -> dict[str, Any]:
    """Make parts, each by a function, and refuse those that cannot be made together, in one message."""
    checks, made = Checks(""), {}
    for name, make in makers.items():
        checks.gather(lambda name=name, make=make: made.update({name: make()}))  # type: ignore[misc]  # bound now
    checks.done()
    return made


def nearest(word: object, words: Iterable[str]) -> str:
    """Say `, did you mean 'x'?` when one of `words` is close to `word`, else nothing."""
    close = nearest_word(str(word), words)
    return "" if close is None else f", did you mean {close!r}?"


def refuse_unknown(subject: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse the first option that `subject` does not know, offering the nearest one."""
    names = sorted(known)
    hints = {name: translate(name, names) or suggest(name, names) for name in given if name not in names}
    problems = [f"{subject}: unknown option {name!r}{hint}" for name, hint in hints.items()]
    if problems:
        raise ConfigError("\n".join(problems))
