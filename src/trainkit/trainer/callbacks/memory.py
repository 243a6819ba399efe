"""A callback that finds which lines of code hold more and more memory."""

import tracemalloc
from typing import TYPE_CHECKING

from trainkit.core.data import EpochResult
from trainkit.core.errors import Checks
from trainkit.core.signatures import checked
from trainkit.trainer.callbacks.base import Callback

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer

_MEGABYTE = 1e6


@checked
class TrackMemory(Callback):
    """The memory that Python allocates, and the lines of code whose memory grew most; for the search of a leak.

    It logs `custom/memory/python_mb` and `custom/memory/python_peak_mb` after every epoch, and prints the lines with
    the largest growth since the first one. Python's `tracemalloc` records every allocation, which takes time: use it to
    search, and `system/memory_mb`, which every report has, to watch. Memory of torch is not Python's.

    Args:
        top: number of lines.
        every: epochs from one list of lines to the next.

    Attributes:
        growth: (file:line, bytes) of the last list, the largest growth first.
    """

    def __init__(self, top: int = 5, *, every: int = 1) -> None:
        with Checks("TrackMemory") as checks:
            checks.integer("top", top, low=1)
            checks.integer("every", every, low=1)
        self.top, self.every = top, every
        self.growth: list[tuple[str, int]] = []
        self._first: tracemalloc.Snapshot | None = None  # after the first epoch
        self._has_started = False  # tracing, which was off

    def on_train_start(self, trainer: "Trainer") -> None:
        if not tracemalloc.is_tracing():
            tracemalloc.start()
            self._has_started = True

    def on_epoch_end(self, trainer: "Trainer", result: EpochResult) -> None:
        current, peak = tracemalloc.get_traced_memory()
        trainer.log("memory/python_mb", current / _MEGABYTE, reduce="last")
        trainer.log("memory/python_peak_mb", peak / _MEGABYTE, reduce="last")
        if self._first is None:
            self._first = tracemalloc.take_snapshot()
        elif result.epoch % self.every == 0:
            changes = tracemalloc.take_snapshot().compare_to(self._first, "lineno")
            lines = [(f"{one.traceback[0].filename}:{one.traceback[0].lineno}", one.size_diff) for one in changes]
            grown = [(line, size) for line, size in lines if size > 0]
            self.growth = sorted(grown, key=lambda one: -one[1])[: self.top]
            shown = "".join(f"\n  {size / _MEGABYTE:8.3f} MB  {line}" for line, size in self.growth)
            trainer.note(f"memory of Python: {current / _MEGABYTE:,.1f} MB; growth since the first epoch:{shown}")

    def on_train_end(self, trainer: "Trainer") -> None:
        self._first = None
        if self._has_started:
            tracemalloc.stop()
            self._has_started = False
