"""Callbacks that keep policies, for acting alone: the best one, and one now and then."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trainkit.core.checkpoint import MANIFEST
from trainkit.core.data import EpochResult
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.folders import FolderClaim, check_folder
from trainkit.core.signatures import checked
from trainkit.core.stats import CollectStats
from trainkit.trainer.callbacks.base import Callback

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer


@checked
class SaveBest(Callback):
    """Keep the best policy in a folder, for `load_policy`; `Checkpoint` is for runs that go on.

    An evaluation that is the best so far is looked at again, on fresh seeds, so that luck of the seeds that are the
    same every time is not taken for skill. The policy whose second look was the best is the one kept.

    The folder belongs to one run: a fresh one is rejected where it has a policy already.

    Attributes:
        score: of the policy that is kept, on its fresh seeds; None before there is one.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        checks = Checks("SaveBest")
        check_folder(checks, self.folder)
        checks.done()
        self.claim = FolderClaim(
            "SaveBest.folder", self.folder, "best", lambda own: [own] if (own / MANIFEST).is_file() else []
        )
        self.score: float | None = None

    def check(self, trainer: "Trainer") -> None:
        """Refuse a run in which nothing is evaluated."""
        if trainer.test_collector is None:
            raise ConfigError("SaveBest needs evaluations: give a test_collector or an evaluation")

    def on_best(self, trainer: "Trainer", stats: CollectStats) -> None:
        schedule = trainer.evaluation_schedule
        score = schedule.score(schedule.confirm(trainer.clock))
        if score is None or math.isnan(score) or (self.score is not None and score <= self.score):
            return
        self.claim.hold()
        trainer.policy.save(self.folder)
        self.score = score

    def state_dict(self) -> dict[str, Any]:
        return {"score": self.score}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.score = state["score"]


@checked
class SaveEvery(Callback):
    """Keep the policy as it is now and then, in `folder/step-000005000`, for `load_policy`.

    Args:
        folder: for the policies. It belongs to one run: a fresh one is rejected where it has policies already.
        every: how much is trained from one to the next.
        unit: of it; offline, "env_steps" are updates.
    """

    def __init__(
        self, folder: str | Path, *, every: int = 1, unit: Literal["epochs", "env_steps", "updates"] = "epochs"
    ) -> None:
        checks = Checks("SaveEvery")
        checks.integer("every", every, low=1)
        checks.one_of("unit", unit, ["epochs", "env_steps", "updates"])
        self.folder = Path(folder)
        check_folder(checks, self.folder)
        checks.done()
        self.claim = FolderClaim("SaveEvery.folder", self.folder, "policies", lambda own: sorted(own.glob("step-*")))
        self._every, self._unit = every, unit
        self._n_periods = 0  # whole ones, at the last policy kept

    def on_train_start(self, trainer: "Trainer") -> None:
        self._n_periods = self._periods(trainer)

    def on_collect_end(self, trainer: "Trainer", stats: CollectStats) -> None:
        self._look(trainer)

    def on_update_end(self, trainer: "Trainer") -> None:
        self._look(trainer)

    def on_epoch_end(self, trainer: "Trainer", result: EpochResult) -> None:
        if self._unit == "epochs" and trainer.epoch % self._every == 0:
            self._keep(trainer)

    def _look(self, trainer: "Trainer") -> None:
        n_periods = self._periods(trainer)
        if n_periods > self._n_periods:
            self._n_periods = n_periods
            self._keep(trainer)

    def _periods(self, trainer: "Trainer") -> int:
        """Count whole periods of steps or updates."""
        position = {"env_steps": trainer.clock, "updates": trainer.gradient_step}
        return position.get(self._unit, 0) // self._every

    def _keep(self, trainer: "Trainer") -> None:
        self.claim.hold()
        trainer.policy.save(self.folder / f"step-{trainer.clock:09d}")
