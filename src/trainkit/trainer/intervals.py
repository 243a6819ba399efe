"""What is gathered between two reports: means over updates, statistics of collects, and where the time went."""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

from trainkit.core.stats import CollectStats, TimeStats

SMOOTHED_REPORTS = 10  # that a moving average of losses is over
_MOST_COLLECTS = 100  # told of one by one until they are merged


class Credit:
    """Owe `ratio` updates per step, exactly: 0.3 gives 300 in 1,000 steps, whatever the steps come in."""

    def __init__(self, ratio: float | Fraction) -> None:
        exact = ratio if isinstance(ratio, Fraction) else Fraction(str(ratio))
        self._updates, self._per_steps = exact.numerator, exact.denominator
        self._n_steps = 0
        self._n_paid = 0

    def add(self, n_steps: int) -> None:
        """Count steps."""
        self._n_steps += n_steps

    def pay(self) -> None:
        """Count one update."""
        self._n_paid += 1

    def forgive(self) -> None:
        """Owe no whole update any more."""
        self._n_paid += self.owed

    @property
    def owed(self) -> int:
        """Whole updates owed now."""
        return self._n_steps * self._updates // self._per_steps - self._n_paid

    def state_dict(self) -> dict[str, int]:
        """Return the counts."""
        return {"n_steps": self._n_steps, "n_paid": self._n_paid}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Take over saved counts."""
        self._n_steps, self._n_paid = state["n_steps"], state["n_paid"]


Reduce = Literal["mean", "sum", "min", "max", "last", "histogram"]
REDUCES = ("mean", "sum", "min", "max", "last", "histogram")


@dataclass(slots=True)
class Logged:
    """What was logged under one name, reduced to a number."""

    reduce: Reduce
    sum: float
    min: float
    max: float
    last: float
    count: int = 1

    def add(self, value: float) -> None:
        """Take another value in."""
        self.sum += value
        self.min, self.max, self.last = min(self.min, value), max(self.max, value), value
        self.count += 1

    @property
    def value(self) -> float:
        """The number."""
        known = {"sum": self.sum, "min": self.min, "max": self.max, "last": self.last}
        return known.get(self.reduce, self.sum / self.count)


class MovingAverage:
    """Average every loss over the updates of the last 10 reports that had any."""

    def __init__(self) -> None:
        self._reports: deque[tuple[int, dict[str, float]]] = deque(maxlen=SMOOTHED_REPORTS)  # updates, mean losses

    def add(self, means: Mapping[str, float], n_updates: int) -> None:
        """Add a report's means over `n_updates` updates; only losses are kept."""
        losses = {name: mean for name, mean in means.items() if name == "loss" or name.endswith("_loss")}
        if losses and n_updates:
            self._reports.append((n_updates, losses))

    def values(self) -> dict[str, float]:
        """Return {"smoothed_" + name: average}."""
        sums: dict[str, float] = {}
        counts: dict[str, int] = {}
        for n_updates, losses in self._reports:
            for name, mean in losses.items():
                sums[name] = sums.get(name, 0.0) + mean * n_updates
                counts[name] = counts.get(name, 0) + n_updates
        return {f"smoothed_{name}": total / counts[name] for name, total in sums.items()}

    def state_dict(self) -> list[list[Any]]:
        """Return the reports averaged over."""
        return [[n_updates, dict(losses)] for n_updates, losses in self._reports]

    def load_state_dict(self, state: Iterable[Sequence[Any]]) -> None:
        """Restore saved reports."""
        self._reports = deque(((n, dict(losses)) for n, losses in state), maxlen=SMOOTHED_REPORTS)


class Interval:
    """Gather from one report to the next."""

    def __init__(self, begun_at: int) -> None:
        self.begun_at = begun_at  # of the trainer's clock
        self.n_updates = 0
        self.n_replayed = 0  # rows of their batches
        self._collects: list[CollectStats] = []
        self._returns: list[float] = []  # of the episodes that finished
        self._lengths: list[int] = []
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self.logged: dict[str, Logged] = {}
        self.seconds = {"total": 0.0, "collect": 0.0, "update": 0.0, "evaluate": 0.0}

    def add_collect(self, stats: CollectStats) -> None:
        """Add one collect, or all of an interval within this one."""
        if stats.episode_returns:  # kept apart: merging is repeated, and would copy them each time
            self._returns += stats.episode_returns
            self._lengths += stats.episode_lengths
            stats = replace(stats, episode_returns=(), episode_lengths=())
        self._collects.append(stats)
        if len(self._collects) == _MOST_COLLECTS:  # so that an epoch takes as little memory however long it is
            self._collects = [CollectStats.merge(self._collects)]

    def add_means(self, means: Mapping[str, float], n_updates: int) -> None:
        """Add means over `n_updates` updates."""
        self.n_updates += n_updates
        for name, mean in means.items():
            self._sums[name] = self._sums.get(name, 0.0) + mean * n_updates
            self._counts[name] = self._counts.get(name, 0) + n_updates

    def log(self, name: str, value: float, reduce: Reduce) -> None:
        """Add a value that somebody logged."""
        if name in self.logged:
            self.logged[name].add(value)
        else:
            self.logged[name] = Logged(reduce, value, value, value, value)

    def collected(self) -> CollectStats:
        """Merge all collects into one."""
        merged = CollectStats.merge(self._collects)
        self._collects = [merged] if self._collects else []
        return replace(merged, episode_returns=tuple(self._returns), episode_lengths=tuple(self._lengths))

    def means(self) -> dict[str, float]:
        """Return the means over all updates."""
        return {name: total / self._counts[name] for name, total in self._sums.items()}

    def time(self, n_steps: int) -> TimeStats:
        """Tell where the time went, as shares that add up to 1."""
        total = max(self.seconds["total"], 1e-9)
        collect, update, evaluate = (self.seconds[name] / total for name in ("collect", "update", "evaluate"))
        parts = {name: self.seconds[name] / total for name in ("sample", "priorities") if name in self.seconds}
        return TimeStats(
            **parts,
            seconds=self.seconds["total"],
            collect=collect,
            update=update,
            evaluate=evaluate,
            other=1.0 - collect - update - evaluate,
            steps_per_second=n_steps / total,
        )


class Stopwatch:
    """Time the parts of a run into several intervals at once; nothing runs between two calls of `next`.

    Attributes:
        seconds: in all.
        parts: seconds collecting, updating and evaluating, {"collect_seconds": ...}.
    """

    def __init__(self, *intervals: Interval) -> None:
        self.intervals = list(intervals)
        self.restart()
        self._since: float | None = None

    def restart(self) -> None:
        """Count the seconds in all, and of the parts, from 0."""
        self.seconds = 0.0
        self.parts = {"collect_seconds": 0.0, "update_seconds": 0.0, "evaluate_seconds": 0.0}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let the total run."""
        self._since = time.perf_counter()
        try:
            yield
        finally:
            self.settle()
            self._since = None

    def settle(self) -> float:
        """Write the total down up to now, and return it."""
        if self._since is not None:
            now = time.perf_counter()
            self._add("total", now - self._since)
            self.seconds += now - self._since
            self._since = now
        return self.seconds

    def measure(self, part: str, *, within: str | None = None) -> "Measured":
        """Let one part of it run; where it is done within another, that one's time stands still."""
        return Measured(self, part, within)

    def note(self, part: str, seconds: float, within: str | None) -> None:
        """Write down how long a part ran."""
        self._add(part, seconds)
        if within is not None:
            self._add(within, -seconds)

    def _add(self, part: str, seconds: float) -> None:
        if (name := f"{part}_seconds") in self.parts:
            self.parts[name] += seconds
        for interval in self.intervals:
            interval.seconds[part] = interval.seconds.get(part, 0.0) + seconds


class Measured:
    """A part of a run, which takes as long as the `with` block does."""

    __slots__ = ("_began", "_part", "_watch", "_within")

    def __init__(self, watch: Stopwatch, part: str, within: str | None) -> None:
        self._watch, self._part, self._within = watch, part, within

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self._watch.note(self._part, time.perf_counter() - self._began, self._within)
