"""The reports of a run: what its numbers are written to, and what is said about them."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.core.data import EpochResult
from trainkit.core.errors import Checks
from trainkit.core.stats import CollectStats, EpochStats, scalars
from trainkit.loggers.logger import as_logger
from trainkit.trainer.callbacks.history import History
from trainkit.trainer.options import OutputOptions
from trainkit.trainer.progress import Progress
from trainkit.trainer.run_warnings import RunWarnings

_log = logging.getLogger(__name__)


class Reports:
    """Where the numbers of a run go: the loggers, the history, the bar and its lines, and the warnings.

    Args:
        options: of output.
        n_steps: of the whole run.
        unit: of the steps.

    Attributes:
        loggers: none until `open_loggers`.
        history: a row of numbers per epoch.
        progress: the bar, and a line per epoch.
        warnings: those of all epochs.
    """

    def __init__(self, options: OutputOptions, n_steps: int, unit: str) -> None:
        self._options = options
        self.loggers = as_logger(None)
        self.history = History()
        self.progress = Progress(n_steps, show_bar=options["show_progress"], show_lines=options["verbose"], unit=unit)
        self.warnings = RunWarnings()

    def open_loggers(self) -> None:
        """Open the loggers; a resumed run continues in the folders of the checkpoint."""
        self.loggers = as_logger(self._options["logger"], self.loggers.former_folders)

    def write(self, clock: int, stats: EpochStats, histograms: Mapping[str, NDArray[np.float64]]) -> None:
        """Show a report on the bar and write it to the loggers."""
        self.progress.show(stats)
        self.loggers.write(clock, stats)
        self.loggers.write_histograms(clock, histograms)
        self.loggers.write_episodes(clock, stats.episodes)

    def write_evaluation(self, clock: int, epoch: int, stats: CollectStats, numbers: Mapping[str, float]) -> None:
        """Write an evaluation of a former epoch's weights, at that epoch and its clock."""
        report = {"test": stats, "custom": {f"test/{name}": number for name, number in numbers.items()}}
        self.write_late(clock, epoch, report)
        if not stats.returns.is_empty:
            self.progress.note(f"epoch {epoch} | test {stats.returns.mean:.1f} +- {stats.returns.std:.1f}")

    def write_late(self, clock: int, epoch: int, report: Mapping[str, Any]) -> None:
        """Write numbers of an epoch whose report is written, at a clock; its row of the history has them, too."""
        self.loggers.write(clock, report)
        self.history.add(epoch, scalars(report))

    def write_video(self, clock: int, name: str, frames: NDArray[np.uint8], fps: float) -> None:
        """Write a video [T, H, W, 3] as `custom/name`."""
        with Checks("Trainer.log_video") as checks:
            checks.require(bool(name) and isinstance(name, str), f" needs a name, got {name!r}")
            checks.number("fps", fps, low=0, above_low=True)
            array = np.asarray(frames)
            is_video = array.dtype == np.uint8 and array.ndim == 4 and array.shape[3] == 3 and array.size > 0
            checks.require(is_video, f".frames must be uint8 [T, H, W, 3], got {array.dtype.name}{list(array.shape)}")
        self.loggers.write_video(clock, f"custom/{name}", array, float(fps))

    def with_warnings(self, result: EpochResult, found: Mapping[str, str]) -> EpochStats:
        """Return an epoch's statistics with what was found wrong, {name: message}; log new warnings."""
        warnings = self.warnings.add(result.epoch, found)
        level = logging.INFO if self._options["verbose"] else logging.WARNING  # the epoch's line has them, too
        for one in warnings.values():
            if one.first_epoch == result.epoch:
                _log.log(level, "%s: %s", one.name, one.message)
        return replace(result.stats, warnings=warnings)

    def write_warnings(self, clock: int, result: EpochResult) -> None:
        """Write the warnings of an epoch that are new."""
        new = [one for one in result.stats.warnings.values() if one.first_epoch == result.epoch]
        self.loggers.write_texts(clock, {f"warnings/{one.name}": one.message for one in new})

    def add_epoch(self, result: EpochResult) -> None:
        """Add an epoch to the history and print its line."""
        self.history.record(result)
        self.progress.epoch(result)

    def end_run(self) -> None:
        """Remove the bar, and print all warnings of the run."""
        self.progress.close()
        for warning in self.warnings.by_name.values():
            self.progress.note(f"! {warning}")

    def close(self) -> None:
        """Remove the bar and close the loggers."""
        self.progress.close()
        self.loggers.close()
