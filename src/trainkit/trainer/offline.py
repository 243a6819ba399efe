"""Offline training: learn from rows that are there already, update by update, without an environment."""

from contextlib import AbstractContextManager
from typing import Any, ClassVar, Unpack

from typing_extensions import TypeVar

from trainkit.collector import Collector
from trainkit.core.data import TransitionBatch
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.protocols import Dataset, Learner
from trainkit.core.signatures import checked
from trainkit.trainer.base import Trainer
from trainkit.trainer.compatibility import refuse_misfits
from trainkit.trainer.options import KeywordOptions, Options
from trainkit.trainer.rows import refuse_rows, refuse_spaces
from trainkit.trainer.updates import ReplayUpdates

_OF_COLLECTING = ("train_fn", "test_in_train")


LearnerT = TypeVar("LearnerT", bound=Learner, default=Any, covariant=True)


@checked
class OfflineTrainer(Trainer[LearnerT]):
    """Learn from a buffer that nobody writes to.

    The clock counts updates: schedules, epochs, `log_every`, `max_env_step` and every x-axis read them; `info.env_step`
    stays 0. All rows are read once at construction, and refused when a policy cannot learn from them.

    Args:
        policy: learns; its `horizon` says what return to draw.
        buffer: has the rows.
        test_collector: see `Options`.
        max_epoch: epochs in all.
        update_per_epoch: updates per epoch.
        batch_size: rows per update, drawn as the buffer does. None is the whole buffer: every row once per update.
        common: see `Options`; those about collecting are refused.
    """

    unit: ClassVar[str] = "update"

    buffer: Dataset

    def __init__(
        self,
        policy: LearnerT,
        buffer: Dataset,
        test_collector: Collector | None = None,
        *,
        max_epoch: int,
        update_per_epoch: int,
        batch_size: int | None,
        **common: Unpack[KeywordOptions],
    ) -> None:
        name = type(self).__name__
        if not isinstance(buffer, Dataset):
            raise ConfigError(f"{name} draws from a replay buffer, got {buffer!r}: use ReplayBuffer")
        checks = Checks(name)
        checks.require(len(buffer) > 0, ".buffer is empty: fill it, as ReplayBuffer.from_arrays does")
        if batch_size is not None:
            checks.integer("batch_size", batch_size, low=1)  # may exceed the number of rows: drawn with replacement
        for option in _OF_COLLECTING:
            is_told = bool(common.get(option))
            checks.require(not is_told, f".{option} is about collecting, and nothing is collected: leave it out")
        options = Options(test_collector=test_collector, **common)
        options.check(checks, max_epoch=max_epoch, update_per_epoch=update_per_epoch)
        checks.done()
        refuse_misfits(name, policy, self.learns_by, None, None)
        refuse_spaces(name, policy)
        for rows in buffer.transitions():
            refuse_rows(name, policy, rows)
        if policy.observes:  # only when all rows are known to be sound
            policy.study(buffer)
        self.batch_size = batch_size
        self._updates = ReplayUpdates(policy, buffer, batch_size, "update", 1, self._refine, self._timed)
        super().__init__(policy, None, buffer, max_epoch=max_epoch, step_per_epoch=update_per_epoch, options=options)

    def settings(self) -> dict[str, Any]:
        """Name what was chosen, for dashboards and manifests."""
        return super().settings() | {"batch_size": self.batch_size, "n_rows": len(self.buffer)}

    @property
    def clock(self) -> int:
        """What schedules, epochs and every x-axis count: updates."""
        return self.gradient_step

    def _refine(self, batch: TransitionBatch) -> TransitionBatch:
        return self._hooks.refine(self, batch)

    def _timed(self, part: str) -> AbstractContextManager[None]:
        return self._watch.measure(part)

    def _train_step(self) -> None:
        """Learn from one batch."""
        self._interrupt.check()
        with self._watch.measure("update"):
            self._updates.update(1, step=self.clock)
            self._hooks.fire("on_update_end", self)

    def state_dict(self) -> dict[str, Any]:
        """Return the counters, and a batch that is drawn and not learned from: a callback may save in between."""
        return super().state_dict() | {"updates": self._updates.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over saved counters."""
        super().load_state_dict(state)
        self._updates.load_state_dict(state.get("updates", {"drawn": [], "learnt": []}))  # an older one has none
