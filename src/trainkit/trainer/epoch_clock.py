"""The clock of epochs: the number of the epoch, where it began, and when it is over."""

from collections.abc import Mapping
from typing import Any

from trainkit.trainer.metrics import Stopwatch


class EpochClock:
    """The number of the epoch and where it began; the steps of all epochs together are exact.

    Args:
        n_epochs: of the run.
        steps_per_epoch: of the trainer's clock; steps in excess of one epoch are subtracted from the next.
        max_seconds: ends an epoch early, None does not.

    Attributes:
        n_epochs: may be set.
    """

    def __init__(self, n_epochs: int, steps_per_epoch: int, max_seconds: float | None) -> None:
        self.n_epochs = n_epochs
        self._steps_per_epoch, self._max_seconds = steps_per_epoch, max_seconds
        self.reset(0)

    @property
    def steps_per_epoch(self) -> int:
        """Steps per epoch; may be set: the current epoch and those that follow have the new length."""
        return self._steps_per_epoch

    @steps_per_epoch.setter
    def steps_per_epoch(self, steps_per_epoch: int) -> None:
        self._use_length(steps_per_epoch, before=self._steps_per_epoch)

    def _use_length(self, steps_per_epoch: int, *, before: int) -> None:
        """Count complete epochs of `before` steps as if they had had this many."""
        self.n_skipped += (self.number - self.is_running) * (steps_per_epoch - before)
        self._steps_per_epoch = steps_per_epoch

    @property
    def n_steps(self) -> int:
        """The number of steps of the whole run."""
        return self.n_epochs * self._steps_per_epoch

    @property
    def is_last(self) -> bool:
        """Whether no epoch follows the current one."""
        return self.number >= self.n_epochs

    def reset(self, clock: int) -> None:
        """Start counting epochs from 0."""
        self.number = 0  # of the epoch that runs, or ran last
        self.is_running = False
        self.origin = clock  # where the first epoch begins
        self.n_skipped = 0  # steps that epochs ended by time did not make, and those that shorter ones did not have
        self.start_clock, self.start_seconds = clock, 0.0  # of the epoch

    def start(self, clock: int, seconds: float) -> None:
        """Start the next epoch."""
        if self.number == 0:
            self.origin = clock
        self.is_running = True
        self.number += 1
        self.start_clock, self.start_seconds = clock, seconds

    def shift(self, n_steps: int) -> None:
        """Leave out steps that the clock was moved by."""
        self.origin += n_steps
        self.start_clock += n_steps

    def n_done(self, clock: int) -> int:
        """Return the steps since the first epoch began, including those skipped."""
        return clock - self.origin + self.n_skipped

    def is_over(self, clock: int, stopwatch: Stopwatch) -> bool:
        """Return whether the epoch has all its steps, or its time is over."""
        if clock - self.origin + self.n_skipped >= self.number * self._steps_per_epoch:
            return True
        if self._max_seconds is None or clock == self.start_clock:  # an epoch has at least one step
            return False
        return stopwatch.lap() - self.start_seconds >= self._max_seconds

    def skip_rest(self, clock: int) -> None:
        """Skip the steps that the epoch did not make."""
        self.n_skipped += max(0, self.number * self._steps_per_epoch - self.n_done(clock))

    def state_dict(self) -> dict[str, Any]:
        """Return the counts."""
        return {
            "epoch": self.number,
            "origin": self.origin,
            "is_in_epoch": self.is_running,
            "n_skipped": self.n_skipped,
            "steps_per_epoch": self._steps_per_epoch,
            "start_clock": self.start_clock,
            "start_seconds": self.start_seconds,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore saved counts."""
        self.number, self.origin, self.is_running = state["epoch"], state["origin"], state["is_in_epoch"]
        self.n_skipped = state["n_skipped"]
        self._use_length(self._steps_per_epoch, before=state["steps_per_epoch"])
        self.start_clock = state["start_clock"]
        self.start_seconds = state["start_seconds"]
