"""Schedules: pure functions of the environment step."""

import bisect
import contextlib
import inspect
import itertools
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from trainkit.core.config import Part
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.signatures import checked


@runtime_checkable
class Schedule(Protocol):
    """Give a value for each environment step (for each update when training offline)."""

    def __call__(self, step: int) -> float: ...


@checked
@dataclass(frozen=True, slots=True)
class Constant(Part):
    """A constant value."""

    shorthand = "value"

    value: float

    def __post_init__(self) -> None:
        with Checks("Constant") as checks:
            checks.number("value", self.value)

    def __call__(self, step: int) -> float:
        return self.value

    @property
    def values(self) -> list[float]:
        """All values it can have, for range checks."""
        return [self.value]


@checked
@dataclass(frozen=True, slots=True)
class Piecewise(Part):
    """Linear interpolation between knots `(step, value)`; the last value stays after its knot.

    The first knot is at step 0 and steps grow strictly. Two knots are RLlib's and Dopamine's linear decay.
    """

    shorthand = "knots"

    knots: Sequence[tuple[int, float]]

    def __post_init__(self) -> None:
        with Checks("Piecewise") as checks:
            knots = self.knots
            pairs = isinstance(knots, Sequence) and len(knots) > 0
            pairs = pairs and all(isinstance(knot, Sequence) and len(knot) == 2 for knot in knots)
            if checks.require(pairs, f" needs knots (step, value), at least one, got {knots!r}"):
                (first, begin), *_ = knots
                rule = f"'s first knot must be at step 0, got step {first}: begin with (0, {begin})"
                checks.require(first == 0, rule)
                for step, value in knots:
                    checks.integer("knots step", step, low=0)
                    checks.number("knots value", value)
                steps = [step for step, _ in knots]
                grows = all(a < b for a, b in itertools.pairwise(steps))
                checks.require(grows, f"'s steps must grow strictly, got {steps}: give each once, in order")

    def __call__(self, step: int) -> float:
        right = bisect.bisect_right(self.knots, step, key=lambda knot: knot[0])
        if right == len(self.knots):
            return float(self.knots[-1][1])
        (start, a), (end, b) = self.knots[right - 1], self.knots[right]
        return float(a + (b - a) * (step - start) / (end - start))

    @property
    def values(self) -> list[float]:
        """The values of the knots, which bound all others."""
        return [value for _, value in self.knots]


@checked
@dataclass(frozen=True, slots=True)
class Linear(Part):
    """A linear change from `start` to `end` over the first `share` of a run; `over(n_steps)` makes it a schedule.

    A preset fills in its run's length; elsewhere `Linear(1.0, 0.05).over(n_steps)` does. After its share, and after the
    end of a run that is continued, the value stays `end`: a schedule never depends on how long a run turns out to be.

    What falls to 0 over a run is 0 for the updates at its end, which change nothing then: give
    `over(n_steps + step_per_collect)`, as presets do.
    """

    start: float
    end: float
    share: float = 1.0

    def __post_init__(self) -> None:
        with Checks("Linear") as checks:
            checks.number("start", self.start)
            checks.number("end", self.end)
            checks.number("share", self.share, low=0, high=1, above_low=True)

    def __repr__(self) -> str:
        """Return it as settings are written, such as Linear(1.0, 0.05) or Linear(1.0, 0.05, 0.5)."""
        share = "" if self.share == 1 else f", {self.share!r}"
        return f"Linear({self.start!r}, {self.end!r}{share})"

    def over(self, n_steps: int) -> Piecewise:
        """Return the schedule for a run of this many environment steps."""
        return Piecewise([(0, self.start), (max(round(self.share * n_steps), 1), self.end)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked(Part):
    """Call a function of the step; raise `ConfigError` where it fails or its value is not a finite number in the range.

    Args:
        function: the schedule.
        owner: the object whose option it is, for the error.
        name: the option.
        low: lower end of the range, excluded with `above_low`.
        high: upper end of the range.
        above_low: whether values must be above `low`.
    """

    shorthand = "function"

    function: Schedule
    owner: str
    name: str
    low: float
    high: float
    above_low: bool

    def __repr__(self) -> str:
        return repr(self.function)

    def __call__(self, step: int) -> float:
        try:
            value: object = self.function(step)
        except Exception as error:
            raise ConfigError(
                f"{self.owner}.{self.name}: the schedule {self.function!r} raised {type(error).__name__}: {error} at "
                f"step {step}: give a function of one argument, the step, that returns a number for every step"
            ) from error
        if type(value) is float and self.low < value <= min(self.high, sys.float_info.max):
            return value
        checks = Checks(self.owner)
        if not checks.number(self.name, value, low=self.low, high=self.high, above_low=self.above_low):
            raise ConfigError(f"{checks.problems[0]} at step {step} from the schedule {self.function!r}")
        return float(value)  # type: ignore[arg-type]  # a number


Scheduled = float | Schedule | Sequence[tuple[int, float]]


def as_schedule(
    owner: str, name: str, value: object, *, low: float, high: float = float("inf"), above_low: bool = False
) -> Schedule:
    """Convert a number, a list of knots or a function of the step to a schedule with values in the range.

    Numbers and knots are checked here. A function is checked at step 0 here, and at every step it is called for.
    """
    if isinstance(value, Linear):
        problem = f"{owner}.{name} cannot know the length of the run: give {value}.over(n_steps), or use it in a preset"
        raise ConfigError(problem)
    if isinstance(value, Sequence) and not isinstance(value, str):
        try:
            value = Piecewise(value)
        except ConfigError as error:
            raise ConfigError(f"{owner}.{name}: {error}") from None
    if isinstance(value, Checked):
        value = value.function
    if isinstance(value, Schedule) and not isinstance(value, (Constant, Piecewise)):
        _check_steps(owner, name, value)
        checked = Checked(function=value, owner=owner, name=name, low=low, high=high, above_low=above_low)
        checked(0)
        return checked
    with Checks(owner) as checks:
        for number in value.values if isinstance(value, (Constant, Piecewise)) else [value]:
            checks.number(name, number, low=low, high=high, above_low=above_low)
    return value if isinstance(value, (Constant, Piecewise)) else Constant(float(value))  # type: ignore[arg-type]  # a number


class Adjustable:
    """A schedule in an attribute that may be assigned whatever the option of that name accepts.

        class EpsilonGreedy:
            epsilon = Adjustable(low=0, high=1)

    `exploration.epsilon = 0.1` stores a constant; `exploration.epsilon(step)` is the value at a step.

    Args:
        low, high, above_low: the range of values, as in `as_schedule`.
        owner: named in errors; None is the class of the object.
        of_part: whether the constructor stores a `Linear`, too, for a part that is given to a preset; what the part is
            bound to elsewhere calls `check_lengths`.
    """

    def __init__(
        self,
        *,
        low: float,
        high: float = float("inf"),
        above_low: bool = False,
        owner: str | None = None,
        of_part: bool = False,
    ) -> None:
        self._owner, self._of_part = owner, of_part
        self._range: dict[str, Any] = {"low": low, "high": high, "above_low": above_low}
        self.__doc__ = "A number, knots or a schedule of the step; may be assigned between any two steps."

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    if TYPE_CHECKING:  # reading finds the schedule in the object, as that of any attribute

        def __get__(self, instance: object, owner: type) -> Schedule: ...

    def __set__(self, instance: object, value: Scheduled | Linear) -> None:
        owner = type(instance).__name__ if self._owner is None else self._owner
        if isinstance(value, Linear) and self._of_part and self._name not in vars(instance):
            as_schedule(owner, self._name, value.over(1), **self._range)
            vars(instance)[self._name] = value
        else:
            vars(instance)[self._name] = as_schedule(owner, self._name, value, **self._range)


def check_lengths(part: object) -> None:
    """Raise `ConfigError` if a part has a `Linear`, which a preset has not stretched over a run."""
    for name, value in getattr(part, "__dict__", {}).items():
        if isinstance(value, Linear):
            as_schedule(type(part).__name__, name, value, low=float("-inf"))


_PROGRESS = re.compile("progress|remaining")
_LARGEST_RATE = 10.0
_RATES = ("lr", "clip_ratio", "tau")  # options whose values no run has above `_LARGEST_RATE`


def _check_steps(owner: str, name: str, schedule: Schedule) -> None:
    """Raise `ConfigError` for a function of the share of a run that is left, as Stable-Baselines3 calls schedules."""
    try:
        parameter = next(iter(inspect.signature(schedule).parameters), "")
    except (TypeError, ValueError):  # of functions written in C
        parameter = ""
    largest = 0.0
    if name in _RATES:
        with contextlib.suppress(Exception):  # it may know no such step
            largest = float(schedule(1_000_000))
    if _PROGRESS.search(parameter):
        problem = f"is a function of {parameter}"
    elif largest > _LARGEST_RATE:
        problem = f"is {largest:g} at step 1,000,000"
    else:
        return
    ends = "start, end"
    with contextlib.suppress(Exception):
        ends = f"{float(schedule(1))!r}, {float(schedule(0))!r}"
    raise ConfigError(
        f"{owner}.{name} {problem}, and schedules are functions of the step: give tk.Linear({ends}) in a preset, "
        f"elsewhere tk.Linear({ends}).over(n_steps)"
    )
