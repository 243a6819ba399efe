"""Saving during a run: periodic checkpoints and the best one, and policies for acting alone."""

import contextlib
import logging
import math
import shutil
import time
import warnings
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trainkit.core import checkpoint as checkpoints
from trainkit.core.data import EpochResult
from trainkit.core.errors import CheckpointError, Checks, ConfigError
from trainkit.core.folders import FolderClaim, check_folder
from trainkit.core.names import did_you_mean
from trainkit.core.signatures import checked
from trainkit.core.stats import NO_COLLECT, NO_TIME, CollectStats, EpochStats, is_tag
from trainkit.trainer.callbacks.base import Callback, n_periods

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer

_log = logging.getLogger(__name__)

_SCORE = "score"


@checked
class Checkpoint(Callback):
    """Periodic checkpoints of a run in folders `save-000001`, ..., and at its end, on SIGTERM and on SIGUSR1.

    A save that fails because the disk is full is warned about and the run continues; only at its end that is an error.

    The folder belongs to one run. A trainer without `resume_from` is rejected where the folder has checkpoints already,
    and any trainer while another process uses it.

    Args:
        folder: holds the numbered checkpoints, and `best`.
        every: how much is trained from one save to the next.
        unit: of it. "env_steps" (offline: updates), "updates" and "seconds" save in the middle of epochs, too, between
            two rounds of collecting and learning.
        keep_last: how many are kept; two or more let `resume_from="auto"` take the one before a damaged one.
        keep_best: "score", that of the epoch's evaluation, or the tag of an epoch's statistics, whose largest value so
            far has a checkpoint of its own in `best`, without a buffer; None keeps none. An epoch that could not be
            saved does not count. Of evaluations in the background `best` has the policy alone. The score is the mean
            return, or what `compute_score_fn` says; of self-play the mean return of the policy that learns.
        with_buffer: whether rows are saved; without, a resumed run has none of those it had.
        at: as in `Trainer.save`.
    """

    always_raises = True  # a run that cannot be saved must not seem saved

    def __init__(
        self,
        folder: str | Path,
        *,
        every: int = 1,
        unit: Literal["epochs", "env_steps", "updates", "seconds"] = "epochs",
        keep_last: int = 1,
        keep_best: str | None = "score",
        with_buffer: bool = True,
        at: Literal["now", "episode_end"] = "now",
    ) -> None:
        self.folder = Path(folder)
        with Checks("Checkpoint") as checks:
            checks.integer("every", every, low=1)
            checks.one_of("unit", unit, ["epochs", "env_steps", "updates", "seconds"])
            checks.integer("keep_last", keep_last, low=1)
            checks.one_of("at", at, ["now", "episode_end"])
            if keep_best is not None:
                groups, group = [item.name for item in fields(EpochStats)], str(keep_best).split("/")[0]
                hint = "" if group in groups else did_you_mean(group, groups)
                problem = (
                    f".keep_best must be the tag of a number, such as 'test/returns/mean', got {keep_best!r}{hint}"
                )
                is_known = isinstance(keep_best, str) and (keep_best == _SCORE or is_tag(keep_best))
                checks.require(is_known, problem)
            check_folder(checks, self.folder)
        self.claim = FolderClaim("Checkpoint.folder", self.folder, "checkpoints", _existing)
        self.unit = unit
        self.with_buffer = with_buffer
        self._every, self._keep_last, self._keep_best, self._at = every, keep_last, keep_best, at
        self._n_periods = 0  # whole periods of the unit, at the last save
        self._best: float | None = None  # of `keep_best`
        self._saved_at = time.monotonic()  # or where the run started or continued

    def continues(self, resume_from: str | Path | None) -> bool:
        """Return whether the run to resume from is the one whose checkpoints are in this folder."""
        if resume_from is None or resume_from == "auto":
            return resume_from == "auto"
        found = checkpoints.find_checkpoints(resume_from)  # as the run that resumes finds them
        path, own = (found[0] if found else Path(resume_from)).resolve(), self.folder.resolve()
        return own == path or own in path.parents

    # ---- when ----

    def on_train_start(self, trainer: "Trainer") -> None:
        if trainer.epoch == 0:  # a run that starts, not one that is resumed
            self._note_position(trainer)
            self._best = None
        self._saved_at = time.monotonic()

    def on_evaluate_end(self, trainer: "Trainer", stats: CollectStats) -> None:
        """Keep the best policy by evaluations in the background: their epochs have been reported already."""
        policy = trainer.evaluated_policy
        if policy is not trainer.policy and str(self._keep_best).startswith(("test/", _SCORE)):
            self._keep_if_best(trainer, EpochStats(train=NO_COLLECT, test=stats, time=NO_TIME), policy.save)

    def on_epoch_reported(self, trainer: "Trainer", result: EpochResult) -> None:
        whole = partial(trainer.save, exclude=["buffer"], at=self._at)
        save = whole if trainer.process_group.n == 1 else trainer.policy.save  # by the first, which alone evaluates
        self._keep_if_best(trainer, result.stats, save)
        if trainer.is_finished or (self.unit == "epochs" and self._is_due(trainer)):
            self.save(trainer)

    def tick(self, trainer: "Trainer") -> None:
        """Save if it is due, between two rounds of training."""
        if self.unit != "epochs" and self._is_due(trainer):
            self.save(trainer)

    def save(self, trainer: "Trainer") -> None:
        """Save now, and remove old checkpoints; each process saves its part, in the folder of the first."""
        self._note_position(trainer)
        found = checkpoints.numbered(self.folder)
        number = trainer.process_group.gather(1 + max((number for number, _ in found), default=0))[0]
        path = self.folder / f"save-{number:06d}"
        exclude = [] if self.with_buffer else ["buffer"]
        is_written = self._save(trainer, path, partial(trainer.save, exclude=exclude, at=self._at))
        if is_written and trainer.process_group.rank == 0:
            self.remove_old(path)

    def remove_old(self, newest: Path) -> None:
        """Remove all but the `keep_last` checkpoints up to this one; removals that fail are tried again the next time.

        A run that is resumed does so, too: it may have been killed between a save and the removal.
        """
        found = checkpoints.numbered(self.folder)
        last = max((number for number, path in found if path.name == newest.name), default=0)  # 0: the best, unnumbered
        whole = [number for number, path in found if number <= last and (path / checkpoints.MANIFEST).is_file()]
        oldest = min(whole[-self._keep_last :], default=0)
        for number, path in found:
            if number < oldest:  # renamed first, so that an incomplete one is never found
                with contextlib.suppress(OSError):
                    path.rename(path.with_name(f".old-{path.name}"))
        for path in self.folder.glob(".old-save-*"):
            shutil.rmtree(path, ignore_errors=True)

    def _note_position(self, trainer: "Trainer") -> None:
        self._n_periods = 0 if self.unit == "seconds" else n_periods(trainer, self.unit, self._every)
        self._saved_at = time.monotonic()

    def _is_due(self, trainer: "Trainer") -> bool:
        if self.unit == "seconds":
            return time.monotonic() - self._saved_at >= self._every
        return n_periods(trainer, self.unit, self._every) > self._n_periods

    # ---- files ----

    def _keep_if_best(self, trainer: "Trainer", stats: EpochStats, save: Callable[[Path], object]) -> None:
        """Save an epoch that is the best of those saved; ties keep the first, and a missing value is never the best."""
        if self._keep_best == _SCORE:
            value = None if stats.test.is_empty else trainer.evaluation_schedule.epoch_score
        else:
            value = None if self._keep_best is None else stats[self._keep_best]
        if value is None or math.isnan(value) or (self._best is not None and value <= self._best):
            return
        former, self._best = self._best, value  # before, for the checkpoint has it
        if not self._save(trainer, self.folder / "best", save):
            self._best = former

    def _save(self, trainer: "Trainer", path: Path, write: Callable[[Path], object]) -> bool:
        """Save, and return whether that succeeded; at the end of a run a failure raises."""
        if trainer.process_group.rank == 0:
            self.claim.hold()
        try:
            write(path)
        except CheckpointError as error:
            if trainer.is_finished or not isinstance(error.__cause__, OSError):
                raise
            _log.warning("%s; the run continues", error)
            with contextlib.suppress(OSError):
                path.rmdir()  # if it is empty
            return False
        return True

    def state_dict(self) -> dict[str, Any]:
        return {"n_periods": self._n_periods, "best": self._best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._n_periods, self._best = state["n_periods"], state["best"]


@checked
class SaveEvery(Callback):
    """The policy, saved periodically in `folder/step-000005000` for `load_policy`.

    Args:
        folder: for the policies. It belongs to one run: a new run is rejected where it has policies already.
        every: how much is trained from one save to the next.
        unit: of it; offline, "env_steps" are updates.
    """

    def __init__(
        self, folder: str | Path, *, every: int = 1, unit: Literal["epochs", "env_steps", "updates"] = "epochs"
    ) -> None:
        with Checks("SaveEvery") as checks:
            checks.integer("every", every, low=1)
            checks.one_of("unit", unit, ["epochs", "env_steps", "updates"])
            self.folder = Path(folder)
            check_folder(checks, self.folder)
        self.claim = FolderClaim("SaveEvery.folder", self.folder, "policies", lambda own: sorted(own.glob("step-*")))
        self._every, self._unit = every, unit
        self._n_periods = 0  # whole ones, at the last save

    def on_train_start(self, trainer: "Trainer") -> None:
        self._n_periods = n_periods(trainer, self._unit, self._every)

    def on_collect_end(self, trainer: "Trainer", stats: CollectStats) -> None:
        self._save_if_due(trainer)

    def on_update_end(self, trainer: "Trainer") -> None:
        self._save_if_due(trainer)

    def on_epoch_end(self, trainer: "Trainer", result: EpochResult) -> None:
        if self._unit == "epochs" and trainer.epoch % self._every == 0:
            self._save(trainer)

    def _save_if_due(self, trainer: "Trainer") -> None:
        n_over = n_periods(trainer, self._unit, self._every)
        if self._unit != "epochs" and n_over > self._n_periods:
            self._n_periods = n_over
            self._save(trainer)

    def _save(self, trainer: "Trainer") -> None:
        self.claim.hold()
        trainer.policy.save(self.folder / f"step-{trainer.clock:09d}")


@checked
class SaveBest(Callback):
    """The policy with the best evaluation, saved in a folder for `load_policy`. Deprecated: use `Checkpoint`.

    `Checkpoint(folder, keep_best=...)` keeps the best epoch in `folder/best`, which `load_policy` reads, too. This
    callback evaluates a policy that is the best so far again on fresh seeds, and saves it if that score is the best.

    The folder belongs to one run: a new run is rejected where it has a policy already.

    Attributes:
        score: of the saved policy, on its fresh seeds; None before there is one.
    """

    def __init__(self, folder: str | Path) -> None:
        warnings.warn(
            "SaveBest is deprecated: use Checkpoint(folder), whose folder/best is the best policy for load_policy",
            DeprecationWarning,
            stacklevel=2,
        )
        self.folder = Path(folder)
        with Checks("SaveBest") as checks:
            check_folder(checks, self.folder)
        self.claim = FolderClaim(
            "SaveBest.folder",
            self.folder,
            "best",
            lambda own: [own] if (own / checkpoints.MANIFEST).is_file() else [],
        )
        self.score: float | None = None

    def check(self, trainer: "Trainer") -> None:
        """Raise a `ConfigError` for a run without evaluations."""
        if trainer.test_collector is None:
            raise ConfigError("SaveBest needs evaluations: give a test_collector or an evaluation")

    def on_best(self, trainer: "Trainer", stats: CollectStats) -> None:
        schedule = trainer.evaluation_schedule
        score = schedule.score(schedule.confirm(trainer.clock))
        if score is None or math.isnan(score) or (self.score is not None and score <= self.score):
            return
        self.claim.hold()
        trainer.evaluated_policy.save(self.folder)
        self.score = score

    def state_dict(self) -> dict[str, Any]:
        return {"score": self.score}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.score = state["score"]


def _existing(folder: Path) -> list[Path]:
    """List the checkpoints in a folder, except incomplete ones."""
    found = [path for _, path in reversed(checkpoints.numbered(folder))]
    return [path for path in [*found, folder / "best"] if (path / checkpoints.MANIFEST).is_file()]
