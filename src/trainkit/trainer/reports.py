"""What a run tells while it goes on: everything that happened, gathered over two intervals at once."""

from typing import Any

from trainkit.errors import Checks
from trainkit.protocols import Store, Trainee
from trainkit.stats import CollectStats, EpochStats
from trainkit.trainer.intervals import REDUCES, Interval, Reduce, Stopwatch


class Reports:
    """Gather statistics over the epoch, for whoever iterates, and since the last report, for the logger."""

    def __init__(self, policy: Trainee, buffer: Store) -> None:
        self._policy, self._buffer = policy, buffer
        self.watch = Stopwatch()
        self._ways: dict[str, Reduce] = {}  # how each name is reduced
        self.restart(0)

    def restart(self, step: int) -> None:
        """Forget what was gathered."""
        self._policy.read_metrics()
        self._n_updates = self._policy.n_updates  # told so far
        self._recent, self._epoch = Interval(step), Interval(step)
        self.watch.seconds = 0.0
        self.begin_epoch(step)

    def begin_epoch(self, step: int) -> None:
        """Begin to gather for another epoch; what is not reported yet stays for the next report."""
        logged = self._epoch.logged  # since the last epoch was told
        self._epoch = Interval(step)
        self._epoch.logged = logged
        self.watch.intervals[:] = self._epoch, self._recent

    def add_collect(self, stats: CollectStats) -> None:
        """Add what a collect did."""
        self._recent.add_collect(stats)

    def log(self, name: str, value: object, reduce: Reduce) -> None:
        """Add a value that somebody logged to this report, and to this epoch."""
        checks = Checks("Trainer.log")
        checks.require(bool(name) and isinstance(name, str), f" needs a name, got {name!r}")
        checks.one_of("reduce", reduce, REDUCES)
        known = self._ways.setdefault(name, reduce)
        checks.require(known == reduce, f" reduces {name!r} by {known!r}, got {reduce!r}: log it under another name")
        number = _number(value)
        checks.require(number is not None, f" needs a number for {name!r}, got {value!r}")
        checks.done()
        if number is not None:
            for interval in (self._epoch, self._recent):
                interval.log(name, number, reduce)

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
        self._recent = Interval(step)
        self.watch.intervals[:] = self._epoch, self._recent
        return stats

    def epoch(self, step: int, test: CollectStats | None) -> EpochStats:
        """Tell the epoch up to the last report."""
        stats = self._tell(self._epoch, self._epoch.collected(), step, test)
        self._epoch.logged = {}
        return stats

    def _tell(self, interval: Interval, train: CollectStats | None, step: int, test: CollectStats | None) -> EpochStats:
        return EpochStats(
            train=train,
            test=test,
            update=interval.means(),
            explore=self._policy.explore_metrics(step),
            buffer=self._buffer.metrics(step),
            custom={name: logged.value for name, logged in interval.logged.items()},
            time=interval.time(step - interval.begun_at),
        )


def _number(value: Any) -> float | None:
    """Read a number, of numpy's or torch's too; None for what is none."""
    try:
        return None if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        return None
