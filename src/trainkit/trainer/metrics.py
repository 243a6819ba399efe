"""Training metrics, per report and per epoch: collects, means over updates, logged values and times."""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainkit.core.errors import Checks, shown
from trainkit.core.protocols import Learner, Store, Trainee
from trainkit.core.stats import CollectStats, EpochStats, Numbers, TimeStats
from trainkit.engine.device import CPU, device_memory
from trainkit.trainer.system_usage import ProcessorTime, system_usage

Reduce = Literal["mean", "sum", "min", "max", "last", "histogram"]
REDUCES = ("mean", "sum", "min", "max", "last", "histogram")
_MOST_COLLECTS = 100  # kept one by one until they are merged


@dataclass(slots=True)
class LoggedValue:
    """The values logged under one name, reduced to one number."""

    reduce: Reduce
    sum: float
    min: float
    max: float
    last: float
    count: int = 1

    @classmethod
    def of(cls, reduce: Reduce, values: Sequence[float]) -> "LoggedValue":
        """Return these values, at least one."""
        return cls(reduce, sum(values), min(values), max(values), values[-1], len(values))

    def add(self, value: float) -> None:
        """Include another value."""
        self.sum += value
        self.min, self.max, self.last = min(self.min, value), max(self.max, value), value
        self.count += 1

    @property
    def value(self) -> float:
        """The logged values, reduced to one number."""
        known = {"sum": self.sum, "min": self.min, "max": self.max, "last": self.last}
        return known.get(self.reduce, self.sum / self.count)


class Interval:
    """What happened in an interval of training: since the last report, or since the epoch began.

    Args:
        start: of the trainer's clock.
    """

    def __init__(self, start: int) -> None:
        self.start = start
        self.processor = ProcessorTime()
        self.n_updates: dict[str, int] = {}  # by the prefixes of policies' metrics, of one policy ""
        self.n_replayed: dict[str, int] = {}  # rows of their batches, by the names of policies
        self.logged: dict[str, LoggedValue] = {}
        self.episodes: list[dict[str, float]] = []  # rows of the table
        self.seconds = {"total": 0.0, "collect": 0.0, "update": 0.0, "evaluate": 0.0}
        self._collects: list[CollectStats] = []
        self._returns: list[float] = []  # of the episodes that finished
        self._lengths: list[int] = []
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add_collect(self, stats: CollectStats) -> None:
        """Add one collect, or all of a shorter interval."""
        if stats.episode_returns:  # kept apart: merging is repeated, and would copy them each time
            self._returns += stats.episode_returns
            self._lengths += stats.episode_lengths
            stats = replace(stats, episode_returns=(), episode_lengths=())
        self._collects.append(stats)
        if len(self._collects) == _MOST_COLLECTS:  # so that only returns and lengths take memory as the epoch grows
            self._collects = [CollectStats.merge(self._collects)]

    def count_replayed(self, policy: str, n_rows: int) -> None:
        """Count the rows of a policy's batch."""
        self.n_replayed[policy] = self.n_replayed.get(policy, 0) + n_rows

    def add_means(self, means: Mapping[str, float], n_updates: int, prefix: str = "") -> None:
        """Add means over `n_updates` updates of one policy."""
        self.n_updates[prefix] = self.n_updates.get(prefix, 0) + n_updates
        for own_name, mean in means.items():
            name = f"{prefix}{own_name}"
            self._sums[name] = self._sums.get(name, 0.0) + mean * n_updates
            self._counts[name] = self._counts.get(name, 0) + n_updates

    def updates_state(self) -> dict[str, Any]:
        """Return the sums of `add_means`, from which a run continues that was saved within the interval."""
        return {"n_updates": dict(self.n_updates), "sums": dict(self._sums), "counts": dict(self._counts)}

    def load_updates_state(self, state: Mapping[str, Any]) -> None:
        """Continue from saved sums of `add_means`."""
        self.n_updates = dict(state["n_updates"])
        self._sums, self._counts = dict(state["sums"]), dict(state["counts"])

    def log(self, name: str, value: float, reduce: Reduce) -> None:
        """Add a logged value."""
        if name in self.logged:
            self.logged[name].add(value)
        else:
            self.logged[name] = LoggedValue.of(reduce, [value])

    def collected(self) -> CollectStats:
        """Return the merged statistics of all collects."""
        merged = CollectStats.merge(self._collects)
        self._collects = [merged] if self._collects else []
        return replace(merged, episode_returns=tuple(self._returns), episode_lengths=tuple(self._lengths))

    def means(self) -> dict[str, float]:
        """Return the means over all updates."""
        return {name: total / self._counts[name] for name, total in self._sums.items()}

    def logged_values(self) -> dict[str, float]:
        """Return {name: number} of what was logged."""
        return {name: logged.value for name, logged in self.logged.items()}

    def time(self, n_steps: int) -> TimeStats:
        """Return where the time went, as shares that add up to 1."""
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
    """Times of a run and of its parts, added to several intervals; time between two calls of `next` does not count.

    Attributes:
        intervals: those that times are added to.
        parts: seconds spent collecting, updating and evaluating, {"collect_seconds": ...}.
    """

    def __init__(self, *intervals: Interval) -> None:
        self.intervals = list(intervals)
        self.restart()
        self._started: float | None = None  # None while it does not run

    def restart(self) -> None:
        """Start all totals from 0."""
        self._seconds = 0.0
        self.parts = {"collect_seconds": 0.0, "update_seconds": 0.0, "evaluate_seconds": 0.0}

    def lap(self) -> float:
        """Add the time since the last call to the totals, and return the run's total."""
        if self._started is not None:
            now = time.perf_counter()
            for interval in self.intervals:
                interval.seconds["total"] += now - self._started
            self._seconds += now - self._started
            self._started = now
        return self._seconds

    def resume_from(self, seconds: float, parts: Mapping[str, float]) -> None:
        """Continue from saved totals."""
        self._seconds = seconds
        self.parts.update(parts)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Add the time of the block to the total."""
        self._started = time.perf_counter()
        try:
            yield
        finally:
            self.lap()
            self._started = None

    def measure(self, part: str, *, within: str | None = None) -> "Measured":
        """Measure the time of the block as `part`; inside another part, `within`, subtract it from that part."""
        return Measured(self, part, within)

    def add(self, part: str, seconds: float) -> None:
        """Add the time of a block to a part."""
        if (total := f"{part}_seconds") in self.parts:
            self.parts[total] += seconds
        for interval in self.intervals:
            interval.seconds[part] = interval.seconds.get(part, 0.0) + seconds


class Measured:
    """A block whose time is added to a stopwatch; a generator as a context takes twice as long."""

    __slots__ = ("_part", "_started", "_stopwatch", "_within")

    def __init__(self, stopwatch: Stopwatch, part: str, within: str | None) -> None:
        self._stopwatch, self._part, self._within = stopwatch, part, within

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds = time.perf_counter() - self._started
        self._stopwatch.add(self._part, seconds)
        if self._within is not None:
            self._stopwatch.add(self._within, -seconds)


class SmoothedLosses:
    """Averages of every loss of a policy over the updates of the last `n_reports` reports that had any."""

    def __init__(self, n_reports: int) -> None:
        self._reports: deque[tuple[int, dict[str, float]]] = deque(maxlen=n_reports)  # updates, mean losses

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
        """Return the reports that the averages cover."""
        return [[n_updates, dict(losses)] for n_updates, losses in self._reports]

    def load_state_dict(self, state: Iterable[Sequence[Any]]) -> None:
        """Restore saved reports."""
        self._reports = deque(((n, dict(losses)) for n, losses in state), maxlen=self._reports.maxlen)


class Metrics:
    """All metrics of a run: over the epoch, for the caller's loop, and since the last report, for loggers.

    Attributes:
        recent: the interval since the last report, which collects and updates are added to.
        timed_from: environment steps and updates before the stopwatch started.
    """

    def __init__(self, policy: Trainee, learners: Iterable[Learner], buffer: Store, smoothed_reports: int) -> None:
        self._policy, self._buffer = policy, buffer
        self._followed: dict[str, Any] = {}  # policies whose updates are reported, by prefix
        self._n_updates: dict[str, int] = {}  # of those that are reported already
        self._smoothed_reports = smoothed_reports
        self.stopwatch = Stopwatch()
        self.restart(0, 0)
        self.follow(learners)

    def restart(self, step: int, env_step: int) -> None:
        """Discard everything gathered; updates that are not reported yet remain with the policy."""
        self.timed_from = env_step, self._policy.n_updates
        self._losses: dict[str, SmoothedLosses] = {}  # by prefix
        self.recent, self._epoch = Interval(step), Interval(step)
        self._ending: list[tuple[Interval, dict[str, float]]] = []  # report and epoch that end, and their `custom`
        self._reduces: dict[str, Reduce] = {}  # how each name is reduced
        self._windows: dict[str, deque[float]] = {}  # the last values of names with a window
        self._histograms: dict[str, list[NDArray[np.float64]]] = {}  # what was logged as such since the last report
        self.stopwatch.restart()
        self.start_epoch(step)

    def skip(self, n_steps: int, n_env_steps: int, n_updates: int) -> None:
        """Leave out steps and updates that no epoch made; means of updates start again."""
        self.timed_from = self.timed_from[0] + n_env_steps, self.timed_from[1] + n_updates
        self.discard_updates()
        for interval in (self.recent, self._epoch):
            interval.start += n_steps

    def discard_updates(self) -> None:
        """Let the next report count and average the updates from here."""
        for prefix, policy in self._followed.items():
            policy.read_metrics()
            self._n_updates[prefix] = policy.n_updates

    @property
    def learners(self) -> list[str]:
        """The names of the policies whose updates are reported."""
        return [prefix.removesuffix("/") for prefix in self._followed]

    def follow(self, learners: Iterable[Learner]) -> None:
        """Report the updates of these policies from here on; those of others that were followed are read now."""
        former, self._followed = self._followed, {learner.prefix: learner.policy for learner in learners}
        for prefix, policy in former.items():
            if self._followed.get(prefix) is not policy:
                self._read(prefix, policy)
                del self._n_updates[prefix]
        for prefix, policy in self._followed.items():
            if former.get(prefix) is not policy:
                policy.read_metrics()
                self._n_updates[prefix] = policy.n_updates

    def _read(self, prefix: str, policy: Any) -> None:
        """Read the means of a policy's updates that are not reported yet, for both intervals."""
        means, n_updates = policy.read_metrics(), policy.n_updates
        n_new = n_updates - self._n_updates[prefix]
        for interval in (self._epoch, self.recent):
            interval.add_means(means, n_new, prefix)
        self._losses_of(prefix).add(means, n_new)
        self._n_updates[prefix] = n_updates

    def start_epoch(self, step: int) -> None:
        """Start the interval of another epoch; what is not reported yet stays for the next report."""
        logged, episodes = self._epoch.logged, self._epoch.episodes  # since the last epoch's result
        self._epoch = Interval(step)
        self._epoch.logged, self._epoch.episodes = logged, episodes
        self.stopwatch.intervals[:] = self._epoch, self.recent

    def log(self, name: str, value: object, reduce: Reduce, window: int | None) -> None:
        """Add a value to this report and epoch; the statistics of an epoch that is ending include it."""
        with Checks("Trainer.log") as checks:
            checks.require(bool(name) and isinstance(name, str), f" needs a name, got {name!r}")
            checks.one_of("reduce", reduce, REDUCES)
            known = self._reduces.get(name, reduce)
            checks.require(
                known == reduce, f" reduces {name!r} by {known!r}, got {reduce!r}: log it under another name"
            )
            checks.integer("window", window, low=1, optional=True)
            checks.require(
                window is None or reduce != "histogram", ".window has no effect on a histogram: leave it out"
            )
            array = _finite_array(value) if reduce == "histogram" else None
            number = None if reduce == "histogram" else _number(value)
            if array is None and number is None:  # checked first: formatting an array takes long
                expected = "an array of finite numbers" if reduce == "histogram" else "a number"
                checks.require(False, f" needs {expected} for {name!r}, got {shown(value)}")
        self._reduces[name] = reduce
        if array is not None and len(array):
            self._histograms.setdefault(name, []).append(array)
        if number is not None and window is not None:
            values = self._windows[name] = deque(self._windows.get(name, ()), window)
            values.append(number)
            number, reduce = LoggedValue.of(reduce, values).value, "last"
        if number is not None:
            for interval, custom in self._ending or ((self._epoch, {}), (self.recent, {})):
                interval.log(name, number, reduce)
                custom[name] = interval.logged[name].value

    def add_to_epoch(self, numbers: Mapping[str, float]) -> None:
        """Add numbers by name to the epoch's statistics that loggers have already."""
        for name, number in numbers.items():
            self._epoch.log(name, number, "last")

    @contextmanager
    def apart(self) -> Iterator[dict[str, float]]:
        """Add the values that are logged in the block to no report and no epoch, but to the dict that it gives."""
        logged: dict[str, float] = {}
        self._ending = [(Interval(0), logged)]
        try:
            yield logged
        finally:
            self._ending = []

    def log_episode(self, row: Mapping[str, Any]) -> None:
        """Add a row to the table of episodes of this report and epoch."""
        with Checks("Trainer.log_episode") as checks:
            checks.require(isinstance(row, Mapping) and bool(row), f" needs a dict of numbers, got {row!r:.200}")
        with Checks("Trainer.log_episode") as checks:
            for name, value in row.items():
                checks.require(isinstance(name, str), f" needs names of columns, got {name!r}")
                checks.require(_number(value) is not None, f" needs a number for {name!r}, got {value!r:.200}")
        plain = {name: int(x) if isinstance(x, (int, np.integer)) else float(x) for name, x in row.items()}
        for interval in (self._epoch, self.recent):
            interval.episodes.append(plain)

    def take_histograms(self) -> dict[str, NDArray[np.float64]]:
        """Return {tag: numbers [K]} of what was logged as histograms since the last call."""
        histograms, self._histograms = self._histograms, {}
        return {f"custom/{name}": np.concatenate(parts) for name, parts in histograms.items()}

    def report(self, step: int, test: CollectStats) -> EpochStats:
        """Return the statistics since the last report and start the interval of the next.

        The policy's means are read from its device here, once for both intervals.
        """
        self.stopwatch.lap()
        recent = self.recent
        for prefix, policy in self._followed.items():
            self._read(prefix, policy)
        for name, n_rows in recent.n_replayed.items():
            self._epoch.count_replayed(name, n_rows)
        collected = recent.collected()
        if not collected.is_empty:
            self._epoch.add_collect(collected)
        stats = self._stats(recent, collected, step, test, recent.logged_values())
        self.recent = Interval(step)
        self.stopwatch.intervals[:] = self._epoch, self.recent
        return stats

    def epoch_so_far(self, step: int, test: CollectStats) -> EpochStats:
        """Return the statistics of the epoch up to the last report, and let later values belong to the next."""
        stats = self._stats(self._epoch, self._epoch.collected(), step, test, self._epoch.logged_values())
        self._epoch.logged, self._epoch.episodes = {}, []
        return stats

    def end_epoch(self, step: int, unreported: CollectStats, test: CollectStats) -> tuple[EpochStats, EpochStats]:
        """Return the epoch's last report and its statistics; both include what is logged until `close_epoch`.

        Args:
            step: of the trainer's clock.
            unreported: the evaluation that is in no report yet.
            test: the epoch's last evaluation.
        """
        recent = self.recent
        report = self.report(step, unreported)
        reported, custom = Numbers(recent.logged_values()), Numbers(self._epoch.logged_values())
        self._ending = [(recent, reported), (self._epoch, custom)]
        stats = self._stats(self._epoch, self._epoch.collected(), step, test, custom)
        self._epoch.episodes = []
        return replace(report, custom=reported), stats

    def close_epoch(self) -> None:
        """Let later values belong to the next epoch."""
        self._ending = []
        self._epoch.logged = {}

    def state_dict(self, step: int) -> dict[str, Any]:
        """Return the state of both intervals at a step, without their collects, and the moving averages."""
        return {
            "reduces": dict(self._reduces),
            "windows": {name: list(values) for name, values in self._windows.items()},
            "epoch": {name: asdict(logged) for name, logged in self._epoch.logged.items()},
            "recent": {name: asdict(logged) for name, logged in self.recent.logged.items()},
            "histograms": {name: np.concatenate(parts) for name, parts in self._histograms.items()},
            "losses": self._losses_of("").state_dict(),
            "losses_of": {prefix: losses.state_dict() for prefix, losses in self._losses.items() if prefix},
            "episodes": [list(self._epoch.episodes), list(self.recent.episodes)],
            "reported": {
                prefix: [self._n_updates[prefix], policy.n_updates] for prefix, policy in self._followed.items()
            },
            "updates": [self._epoch.updates_state(), self.recent.updates_state()],
            "steps": [step - self._epoch.start, step - self.recent.start],
            "seconds": [
                {f"{part}_seconds": seconds for part, seconds in interval.seconds.items()}
                for interval in (self._epoch, self.recent)
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state, after `restart` at the step from which the run continues."""
        self._reduces = dict(state["reduces"])
        self._windows = {
            name: deque(values) for name, values in state.get("windows", {}).items()
        }  # older files have none
        self._losses_of("").load_state_dict(state["losses"])
        for prefix, losses in state["losses_of"].items():
            self._losses_of(prefix).load_state_dict(losses)
        self._histograms = {name: [array] for name, array in state["histograms"].items()}
        for interval, logged in ((self._epoch, state["epoch"]), (self.recent, state["recent"])):
            interval.logged = {name: LoggedValue(**one) for name, one in logged.items()}
        self._epoch.episodes, self.recent.episodes = [[dict(row) for row in rows] for rows in state["episodes"]]
        intervals = self._epoch, self.recent
        for interval, n_steps, seconds in zip(intervals, state["steps"], state["seconds"], strict=True):
            interval.start -= n_steps
            interval.seconds = {name.removesuffix("_seconds"): number for name, number in seconds.items()}
        reported = {prefix: counts for prefix, counts in state["reported"].items() if prefix in self._followed}
        if any(self._followed[prefix].n_updates != counts[1] for prefix, counts in reported.items()):
            self.discard_updates()  # loaded without the policies
            return
        self._n_updates |= {prefix: counts[0] for prefix, counts in reported.items()}
        for interval, updates in zip(intervals, state["updates"], strict=True):
            interval.load_updates_state(updates)

    def _stats(
        self, interval: Interval, train: CollectStats, step: int, test: CollectStats, custom: Mapping[str, float]
    ) -> EpochStats:
        return EpochStats(
            train=train,
            test=test,
            update=Numbers(self._update_metrics(interval, train)),
            explore=Numbers(self._policy.explore_metrics(step)),
            buffer=Numbers(self._buffer.metrics(step)),
            custom=custom,
            episodes=tuple(interval.episodes),
            time=interval.time(step - interval.start),
            system=Numbers(
                system_usage(interval.processor, partial(device_memory, getattr(self._policy, "device", CPU)))
            ),
        )

    def _update_metrics(self, interval: Interval, train: CollectStats) -> dict[str, float]:
        """Return the means over all updates, the number of target updates, and the replay ratio."""
        means = interval.means()
        for prefix, losses in self._losses.items() if means else ():
            means |= {f"{prefix}{name}": value for name, value in losses.values().items()}
        for prefix, n_updates in interval.n_updates.items():
            if f"{prefix}target_followed" in means:
                means[f"{prefix}target_updates"] = float(round(means[f"{prefix}target_followed"] * n_updates))
                if (last := self._followed[prefix].last_target_update) is not None:
                    means[f"{prefix}last_target_update"] = float(last)
        for name, n_rows in interval.n_replayed.items():
            if n_rows and train.steps_of(name):
                means[f"{name}/replay_ratio" if name else "replay_ratio"] = n_rows / train.steps_of(name)
        return means

    def _losses_of(self, prefix: str) -> SmoothedLosses:
        return self._losses.setdefault(prefix, SmoothedLosses(self._smoothed_reports))


def _finite_array(value: Any) -> NDArray[np.float64] | None:
    """Read an array of finite numbers, flat; None for anything else."""
    try:
        array = np.asarray(value).astype(np.float64).reshape(-1)
    except (TypeError, ValueError):
        return None
    return array if np.isfinite(array).all() else None


def _number(value: Any) -> float | None:
    """Read a number, of numpy or torch too; None for anything else."""
    try:
        return None if isinstance(value, str) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
