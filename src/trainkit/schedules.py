"""Schedules: pure functions of the environment step."""

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from trainkit.errors import Checks, ConfigError


@runtime_checkable
class Schedule(Protocol):
    """Give a value for each environment step (for each update when training offline)."""

    def __call__(self, step: int) -> float: ...


@dataclass(frozen=True, slots=True)
class Constant:
    """Hold one value."""

    value: float

    def __post_init__(self) -> None:
        checks = Checks("Constant")
        checks.number("value", self.value)
        checks.done()

    def __call__(self, step: int) -> float:
        return self.value

    @property
    def values(self) -> list[float]:
        """All values it can have, for range checks."""
        return [self.value]


@dataclass(frozen=True, slots=True)
class Piecewise:
    """Join knots `(step, value)` by straight lines: exact at each knot, the last value held after it.

    The first knot is at step 0 and steps grow strictly. Two knots are RLlib's and Dopamine's linear decay.
    """

    knots: Sequence[tuple[int, float]]

    def __post_init__(self) -> None:
        checks = Checks("Piecewise")
        knots = self.knots
        pairs = isinstance(knots, Sequence) and len(knots) > 0
        pairs = pairs and all(isinstance(knot, Sequence) and len(knot) == 2 for knot in knots)
        if checks.require(pairs, f" needs knots (step, value), at least one, got {knots!r}"):
            checks.require(knots[0][0] == 0, f"'s first knot must be at step 0, got step {knots[0][0]}")
            for step, value in knots:
                checks.integer("knots step", step, low=0)
                checks.number("knots value", value)
            steps = [step for step, _ in knots]
            grows = all(a < b for a, b in itertools.pairwise(steps))
            checks.require(grows, f"'s steps must grow strictly, got {steps}")
        checks.done()

    def __call__(self, step: int) -> float:
        right = bisect.bisect_right(self.knots, step, key=lambda knot: knot[0])
        if right == len(self.knots):
            return float(self.knots[-1][1])
        (start, a), (end, b) = self.knots[right - 1], self.knots[right]
        return float(a + (b - a) * (step - start) / (end - start))

    @property
    def values(self) -> list[float]:
        """The knots' values: all others lie between them."""
        return [value for _, value in self.knots]


@dataclass(frozen=True, slots=True)
class Linear:
    """Go from `start` to `end` over the first `share` of a run whose length is not known yet; no schedule by itself.

    A preset fills in its run's length; elsewhere `Linear(1.0, 0.05).over(n_steps)` does.
    """

    start: float
    end: float
    share: float = 1.0

    def __post_init__(self) -> None:
        checks = Checks("Linear")
        checks.number("start", self.start)
        checks.number("end", self.end)
        checks.number("share", self.share, low=0, high=1, above_low=True)
        checks.done()

    def over(self, n_steps: int) -> Piecewise:
        """Return the schedule for a run of this many environment steps."""
        return Piecewise([(0, self.start), (max(round(self.share * n_steps), 1), self.end)])


Scheduled = float | Schedule | Sequence[tuple[int, float]]


def as_schedule(
    owner: str, name: str, value: object, *, low: float, high: float = float("inf"), above_low: bool = False
) -> Schedule:
    """Turn a number, a list of knots or a schedule into a schedule whose known values lie in the range."""
    if isinstance(value, Linear):
        told = f"{owner}.{name} cannot know the length of the run: give {value}.over(n_steps), or use it in a preset"
        raise ConfigError(told)
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = Piecewise(value)
    known = value.values if isinstance(value, (Constant, Piecewise)) else [] if callable(value) else [value]
    checks = Checks(owner)
    for number in known:
        checks.number(name, number, low=low, high=high, above_low=above_low)
    checks.done()
    return value if isinstance(value, Schedule) else Constant(float(value))  # type: ignore[arg-type]  # a number


def to_plain(schedule: Schedule) -> float | list[list[float]] | None:
    """Describe a schedule as a number or knots, which `as_schedule` takes back; None for any other function."""
    if isinstance(schedule, Constant):
        return schedule.value
    if isinstance(schedule, Piecewise):
        return [[step, value] for step, value in schedule.knots]
    return None
