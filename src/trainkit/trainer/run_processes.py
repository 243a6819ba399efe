"""The processes of a run: one, which does everything, unless the run was started as several."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainkit.core.extensions import table
from trainkit.core.protocols import Learner, Seedable, StepCollector
from trainkit.engine.process_group import ONE_PROCESS, ProcessGroup
from trainkit.trainer.callbacks.base import Callback
from trainkit.trainer.compatibility import fill_seeds
from trainkit.trainer.interrupt import DeferredInterrupt
from trainkit.trainer.options import TrainerOptions


class RunProcesses:
    """The only process of a run; an extension's is one of several.

    Attributes:
        group: the process group.
        stops_alone: whether the run may be saved or ended within an epoch, as no other process waits for this one.
        settings: of the run, in addition to those of a single process.
    """

    group: ProcessGroup = ONE_PROCESS
    stops_alone = True
    settings: Mapping[str, Any] = {}

    def check_options(
        self,
        trainer: str,
        options: TrainerOptions,
        collector: StepCollector | None,
        episode_per_collect: int | None,
    ) -> None:
        """Raise a `ConfigError` for options by which processes would take different numbers of updates."""

    def check_collect(self, trainer: str, collector: StepCollector | None, n_step: int) -> None:
        """Raise a `ConfigError` after a collect by which processes would take different numbers of updates."""

    def options_of(self, options: TrainerOptions) -> TrainerOptions:
        """Return the options of this process."""
        return options

    def callbacks_of(self, callbacks: Sequence[Callback]) -> Sequence[Callback]:
        """Return the callbacks of this process."""
        return callbacks

    def join(
        self,
        trainer: str,
        root: int,
        parts: Mapping[str, Seedable | None],
        settings: Mapping[str, Any],
        learners: Sequence[Learner],
    ) -> None:
        """Seed all parts of this process, and let its learners learn with those of the others."""
        fill_seeds(root, parts)

    def agreed_reason(self, own: str | None, interrupt: DeferredInterrupt) -> str | None:
        """Return why all processes end here, None while they continue."""
        return own

    def write(self, folder: Path, write: Callable[[Path], Path]) -> Path:
        """Write this process's part of a checkpoint, and return the folder."""
        return write(folder)


def launched() -> RunProcesses:
    """Return the processes of this run: those of an extension whose environment variable is set, else one."""
    found = (entry.load()() for variable, entry in table("RUN_PROCESSES").items() if variable in os.environ)
    return next((processes for processes in found if processes is not None), RunProcesses())
