"""What a run tells while it goes on: everything that happened, gathered over two intervals at once."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.errors import Checks
from trainkit.protocols import Store, Trainee
from trainkit.stats import CollectStats, EpochStats
from trainkit.trainer.alarms import Alarms
from trainkit.trainer.intervals import REDUCES, Interval, Logged, Reduce, Stopwatch


class Reports:
    """Gather statistics over the epoch, for whoever iterates, and since the last report, for the logger.

    Attributes:
        rows_per_update: rows of a batch, where an update replays rows that were collected once; None where not.
    """

    rows_per_update: int | None = None

    def __init__(self, policy: Trainee, buffer: Store) -> None:
        self._policy, self._buffer = policy, buffer
        self.watch = Stopwatch()
        self.restart(0)

    def restart(self, step: int) -> None:
        """Forget what was gathered."""
        self._policy.read_metrics()
        self._alarms = Alarms()
        self._n_updates = self._policy.n_updates  # told so far
        self._recent, self._epoch = Interval(step), Interval(step)
        self._ways: dict[str, Reduce] = {}  # how each name is reduced
        self._spreads: dict[str, list[NDArray[np.float64]]] = {}  # what was logged as histograms since the last report
        self.watch.seconds = 0.0
        self.begin_epoch(step)

    def begin_epoch(self, step: int) -> None:
        """Begin to gather for another epoch; what is not reported yet stays for the next report."""
        logged = self._epoch.logged  # since the last epoch was told
        self._epoch = Interval(step)
        self._epoch.logged = logged
        self.watch.intervals[:] = self._epoch, self._recent

    def add_collect(self, stats: CollectStats) -> None:
        """Add what a collect did; it has waited for the updates before it, whose fate is known now."""
        self._policy.check_divergence()
        self._recent.add_collect(stats)

    def log(self, name: str, value: object, reduce: Reduce) -> None:
        """Add a value that somebody logged to this report, and to this epoch."""
        checks = Checks("Trainer.log")
        checks.require(bool(name) and isinstance(name, str), f" needs a name, got {name!r}")
        checks.one_of("reduce", reduce, REDUCES)
        known = self._ways.setdefault(name, reduce)
        checks.require(known == reduce, f" reduces {name!r} by {known!r}, got {reduce!r}: log it under another name")
        if reduce == "histogram":
            spread = _numbers(value)
            if spread is None:  # an array takes long to show
                checks.require(False, f" needs an array of finite numbers for {name!r}, got {value!r}")
            checks.done()
            if spread is not None and len(spread):
                self._spreads.setdefault(name, []).append(spread)
            return
        number = _number(value)
        checks.require(number is not None, f" needs a number for {name!r}, got {value!r}")
        checks.done()
        if number is not None:
            for interval in (self._epoch, self._recent):
                interval.log(name, number, reduce)

    def take_histograms(self) -> dict[str, NDArray[np.float64]]:
        """Return {tag: numbers [K]} of what was logged as histograms, and begin anew."""
        spreads, self._spreads = self._spreads, {}
        return {f"custom/{name}": np.concatenate(parts) for name, parts in spreads.items()}

    def steps_since_last(self, step: int) -> int:
        """Count the steps since the last report."""
        return step - self._recent.begun_at

    def next(self, step: int, test: CollectStats | None) -> EpochStats:
        """Read the device's means once, tell all since the last report, and begin to gather for another."""
        self.watch.settle()
        means, n_updates = self._policy.read_metrics(), self._policy.n_updates
        for interval in (self._epoch, self._recent):
            interval.add_means(means, n_updates - self._n_updates)
        self._n_updates = n_updates
        collected = self._recent.collected()
        if collected is not None:
            self._epoch.add_collect(collected)
        stats = self._tell(self._recent, collected, step, test)
        self._alarms.look(stats, step)
        self._recent = Interval(step)
        self.watch.intervals[:] = self._epoch, self._recent
        return stats

    def epoch(self, step: int, test: CollectStats | None) -> EpochStats:
        """Tell the epoch up to the last report."""
        stats = self._tell(self._epoch, self._epoch.collected(), step, test)
        self._epoch.logged = {}
        return stats

    def state_dict(self) -> dict[str, Any]:
        """Return what was logged and is not told yet, and how each name is reduced."""
        return {
            "ways": dict(self._ways),
            "epoch": _plain(self._epoch),
            "recent": _plain(self._recent),
            "spreads": {name: np.concatenate(parts) for name, parts in self._spreads.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what had been logged."""
        self._ways = dict(state["ways"])
        self._spreads = {name: [spread] for name, spread in state["spreads"].items()}
        for interval, logged in ((self._epoch, state["epoch"]), (self._recent, state["recent"])):
            interval.logged = {name: Logged(**one) for name, one in logged.items()}

    def _tell(self, interval: Interval, train: CollectStats | None, step: int, test: CollectStats | None) -> EpochStats:
        return EpochStats(
            train=train,
            test=test,
            update=self._learnt(interval, train),
            explore=self._policy.explore_metrics(step),
            buffer=self._buffer.metrics(step),
            custom={name: logged.value for name, logged in interval.logged.items()},
            time=interval.time(step - interval.begun_at),
        )

    def _learnt(self, interval: Interval, train: CollectStats | None) -> dict[str, float]:
        """Return the means over all updates and, where there were any, how often a row collected was replayed."""
        means = interval.means()
        if self.rows_per_update is not None and means and train is not None and train.n_step:
            means["replay_ratio"] = interval.n_updates * self.rows_per_update / train.n_step
        return means


def _plain(interval: Interval) -> dict[str, dict[str, Any]]:
    """Return what was logged in an interval, in plain values."""
    return {name: asdict(logged) for name, logged in interval.logged.items()}


def _numbers(value: Any) -> NDArray[np.float64] | None:
    """Read an array of finite numbers, flat; None for what is none."""
    try:
        numbers = np.asarray(value).astype(np.float64).reshape(-1)
    except (TypeError, ValueError):
        return None
    return numbers if np.isfinite(numbers).all() else None


def _number(value: Any) -> float | None:
    """Read a number, of numpy's or torch's too; None for what is none."""
    try:
        return None if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        return None
