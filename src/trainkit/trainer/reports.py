"""What a run tells while it goes on: everything that happened, gathered over two intervals at once."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.core.errors import Checks
from trainkit.core.protocols import Store, Trainee
from trainkit.core.stats import CollectStats, EpochStats
from trainkit.trainer.alarms import Alarms
from trainkit.trainer.intervals import REDUCES, Interval, Logged, MovingAverage, Reduce, Stopwatch


class Reports:
    """Gather statistics over the epoch, for whoever iterates, and since the last report, for the logger."""

    def __init__(self, policy: Trainee, buffer: Store) -> None:
        self._policy, self._buffer = policy, buffer
        self.watch = Stopwatch()
        self.restart(0)

    def restart(self, step: int) -> None:
        """Forget what was gathered."""
        self._policy.read_metrics()
        self._alarms = Alarms()
        self._losses = MovingAverage()
        self._n_updates = self._policy.n_updates  # told so far
        self._recent, self._epoch = Interval(step), Interval(step)
        self._ending: list[tuple[Interval, dict[str, float]]] = []  # report and epoch that end, and their `custom`
        self._ways: dict[str, Reduce] = {}  # how each name is reduced
        self._spreads: dict[str, list[NDArray[np.float64]]] = {}  # what was logged as histograms since the last report
        self.watch.restart()
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

    def add_replayed(self, n_rows: int) -> None:
        """Add the rows of one update's batch, where updates replay rows of a buffer."""
        self._recent.n_replayed += n_rows
        self._epoch.n_replayed += n_rows

    def log(self, name: str, value: object, reduce: Reduce) -> None:
        """Add a value to this report and epoch; the statistics of an epoch that is ending show it at once."""
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
        if number is None:
            return
        for interval, custom in self._ending or ((self._epoch, {}), (self._recent, {})):
            interval.log(name, number, reduce)
            custom[name] = interval.logged[name].value

    def take_histograms(self) -> dict[str, NDArray[np.float64]]:
        """Return {tag: numbers [K]} of what was logged as histograms, and begin anew."""
        spreads, self._spreads = self._spreads, {}
        return {f"custom/{name}": np.concatenate(parts) for name, parts in spreads.items()}

    def steps_since_last(self, step: int) -> int:
        """Count the steps since the last report."""
        return step - self._recent.begun_at

    def next(self, step: int, test: CollectStats) -> EpochStats:
        """Read the device's means once, tell all since the last report, and begin to gather for another."""
        self.watch.settle()
        means, n_updates = self._policy.read_metrics(), self._policy.n_updates
        for interval in (self._epoch, self._recent):
            interval.add_means(means, n_updates - self._n_updates)
        self._losses.add(means, n_updates - self._n_updates)
        self._n_updates = n_updates
        collected = self._recent.collected()
        if not collected.is_empty:
            self._epoch.add_collect(collected)
        stats = self._tell(self._recent, collected, step, test, _values(self._recent))
        self._alarms.look(stats, step)
        self._recent = Interval(step)
        self.watch.intervals[:] = self._epoch, self._recent
        return stats

    def epoch(self, step: int, test: CollectStats) -> EpochStats:
        """Tell the epoch up to the last report."""
        stats = self._tell(self._epoch, self._epoch.collected(), step, test, _values(self._epoch))
        self._epoch.logged = {}
        return stats

    def end_epoch(self, step: int, unreported: CollectStats, test: CollectStats) -> tuple[EpochStats, EpochStats]:
        """Return the epoch's last report and its statistics; both show what is logged until `close_epoch`.

        Args:
            step: of the trainer's clock.
            unreported: the evaluation that no report has shown yet.
            test: the epoch's last evaluation.
        """
        recent = self._recent
        report = self.next(step, unreported)
        reported, custom = _values(recent), _values(self._epoch)
        self._ending = [(recent, reported), (self._epoch, custom)]
        stats = self._tell(self._epoch, self._epoch.collected(), step, test, custom)
        return replace(report, custom=reported), stats

    def close_epoch(self) -> None:
        """Let what is logged from now on belong to the next epoch."""
        self._ending = []
        self._epoch.logged = {}

    def state_dict(self) -> dict[str, Any]:
        """Return what was logged and is not reported yet, how each name is reduced, and the moving averages."""
        return {
            "ways": dict(self._ways),
            "epoch": _plain(self._epoch),
            "recent": _plain(self._recent),
            "spreads": {name: np.concatenate(parts) for name, parts in self._spreads.items()},
            "losses": self._losses.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self._ways = dict(state["ways"])
        self._losses.load_state_dict(state.get("losses", []))  # older checkpoints have none
        self._spreads = {name: [spread] for name, spread in state["spreads"].items()}
        for interval, logged in ((self._epoch, state["epoch"]), (self._recent, state["recent"])):
            interval.logged = {name: Logged(**one) for name, one in logged.items()}

    def _tell(
        self,
        interval: Interval,
        train: CollectStats,
        step: int,
        test: CollectStats,
        custom: Mapping[str, float],
    ) -> EpochStats:
        return EpochStats(
            train=train,
            test=test,
            update=self._learnt(interval, train),
            explore=self._policy.explore_metrics(step),
            buffer=self._buffer.metrics(step),
            custom=custom,
            time=interval.time(step - interval.begun_at),
        )

    def _learnt(self, interval: Interval, train: CollectStats) -> dict[str, float]:
        """Return the means over all updates, the number of target updates, and how often a row was replayed."""
        means = interval.means()
        if means:
            means |= self._losses.values()
        if "target_followed" in means:
            means["target_updates"] = float(round(means["target_followed"] * interval.n_updates))
        if interval.n_replayed and train.n_step:
            means["replay_ratio"] = interval.n_replayed / train.n_step
        return means


def _values(interval: Interval) -> dict[str, float]:
    """Return what was logged in an interval, each name reduced to one number."""
    return {name: logged.value for name, logged in interval.logged.items()}


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
