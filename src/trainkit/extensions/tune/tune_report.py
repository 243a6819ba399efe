"""A callback that reports a run to Ray Tune, which resumes, pauses and clones runs by its checkpoints."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from trainkit.core.data import EpochResult
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.extras import import_extra
from trainkit.core.signatures import checked
from trainkit.core.stats import scalars
from trainkit.trainer.callbacks.base import Callback

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer


@checked
class TuneReport(Callback):
    """The statistics of every epoch, and a checkpoint, for Ray Tune: make it in the trial's function, give it last.

    Tune decides by the statistics which trials continue. A trial that it pauses, restarts or makes a clone of another
    (population based training) is made again and has `resume_from`: give that to the trainer, too.

    Args:
        checkpoint_every: epochs from one checkpoint to the next; the last epoch has one. A trial continues from its
            last checkpoint: schedulers that pause or clone need 1.

    Attributes:
        resume_from: the checkpoint that Tune starts this trial from; None for a new trial.

    Raises:
        MissingExtraError: Ray Tune is not installed.
        ConfigError: it was not made in the function of a trial.
    """

    always_raises = True  # Tune ends a trial by an exception

    def __init__(self, *, checkpoint_every: int = 1) -> None:
        with Checks("TuneReport") as checks:
            checks.integer("checkpoint_every", checkpoint_every, low=1)
        self._every = checkpoint_every
        self._tune = import_extra("TuneReport", "ray.tune", "ray")
        try:
            given = self._tune.get_checkpoint()
        except RuntimeError as error:
            raise ConfigError(
                f"TuneReport must be made in the function that Ray Tune calls for a trial, not outside of it: {error}"
            ) from error
        self._folder = None if given is None else tempfile.TemporaryDirectory(prefix="trainkit-tune-")
        self.resume_from: Path | None = None
        if given is not None and self._folder is not None:
            self.resume_from = Path(given.to_directory(self._folder.name))

    def on_checkpoint_loaded(self, trainer: "Trainer", folder: Path) -> None:
        """Remove the copy of the checkpoint."""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def on_epoch_reported(self, trainer: "Trainer", result: EpochResult) -> None:
        info = result.info
        numbers = {**scalars(result.stats), "epoch": result.epoch, "env_step": info.env_step}
        with tempfile.TemporaryDirectory(prefix="trainkit-tune-") as folder:
            saved = None
            if result.epoch % self._every == 0 or trainer.is_finished:
                trainer.save(folder)
                saved = self._tune.Checkpoint.from_directory(folder)
            self._tune.report(numbers, checkpoint=saved)  # copies the folder
