"""Offline training: learn from a dataset, update by update, without an environment."""

from typing import Any, ClassVar, Unpack

from typing_extensions import TypeVar

from trainkit.collector import Collector
from trainkit.core.data import Batch
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.protocols import Dataset, OffpolicyTrainee
from trainkit.core.signatures import checked, missing_members
from trainkit.trainer.base import Trainer
from trainkit.trainer.batches import batch_from_plain, batch_to_plain
from trainkit.trainer.compatibility import check_dataset
from trainkit.trainer.options import Options, check_options, complete

_COLLECT_OPTIONS = ("train_fn", "test_in_train")


TraineeT = TypeVar("TraineeT", bound=OffpolicyTrainee, default=Any, covariant=True)


@checked
class OfflineTrainer(Trainer[TraineeT]):
    """Learn from a buffer of stored rows.

    The clock counts updates: schedules, epochs, `log_every`, `max_env_step` and every x-axis read them; `info.env_step`
    stays 0. All rows are read once at construction, and rejected when a policy cannot learn from them.

    Args:
        policy: learns; its `horizon` says what return to compute.
        buffer: has the rows.
        test_collector: for evaluation after every epoch, without a buffer.
        max_epoch: epochs in all.
        update_per_epoch: updates per epoch.
        batch_size: rows per update, drawn as the buffer does. None is the whole buffer: every row once per update.
        common: see `Options`; those about collecting are rejected.
    """

    _unit: ClassVar[str] = "update"

    _buffer: Dataset

    def __init__(
        self,
        policy: TraineeT,
        buffer: Dataset,
        test_collector: Collector | None = None,
        *,
        max_epoch: int,
        update_per_epoch: int,
        batch_size: int | None,
        **common: Unpack[Options],
    ) -> None:
        name = type(self).__name__
        if not isinstance(buffer, Dataset):
            lacks = f"or give it what buffer.Dataset has: {', '.join(missing_members(buffer, Dataset))}"
            raise ConfigError(f"{name} draws from a replay buffer, got {buffer!r}: use ReplayBuffer, {lacks}")
        with Checks(name) as checks:
            checks.require(len(buffer) > 0, ".buffer is empty: fill it, as ReplayBuffer.from_arrays does")
            if batch_size is not None:
                checks.integer("batch_size", batch_size, low=1)  # may exceed the number of rows: drawn with replacement
            for option in _COLLECT_OPTIONS:
                is_given = bool(common.get(option))
                checks.require(not is_given, f".{option} is about collecting, and nothing is collected: leave it out")
            for learner in policy.learners(buffer, self):
                learner.policy.check_draw(checks, buffer, batch_size)
            options = complete(test_collector, common)
            check_options(checks, options, max_epoch=max_epoch, update_per_epoch=update_per_epoch)
        self._batch_size = batch_size
        self._batch: Batch | None = None  # drawn and not learned from yet
        super().__init__(policy, None, buffer, max_epoch=max_epoch, step_per_epoch=update_per_epoch, options=options)

    def _prepare_parts(self) -> None:
        """Check every row of the dataset, then let the policy adapt to it."""
        super()._prepare_parts()
        check_dataset(type(self).__name__, self.policy, self.buffer)
        if self.policy.observes:
            self.policy.fit_statistics(self.buffer)
        self.policy.before_updates(self.buffer)

    def settings(self) -> dict[str, Any]:
        """Return the settings of the run, for dashboards and manifests."""
        return super().settings() | {"batch_size": self.batch_size, "n_rows": len(self.buffer)}

    @property
    def buffer(self) -> Dataset:
        """What is sampled; another one needs another trainer."""
        return self._buffer

    @property
    def batch_size(self) -> int | None:
        """Rows per update, None for the whole buffer; may be assigned."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, batch_size: int | None) -> None:
        with Checks(type(self).__name__) as checks:
            checks.integer("batch_size", batch_size, low=1, optional=True)
            self.policy.check_draw(checks, self.buffer, batch_size)
        self._batch_size = batch_size

    @property
    def update_per_epoch(self) -> int:
        """Updates per epoch, its `step_per_epoch`; may be assigned."""
        return self.step_per_epoch

    @update_per_epoch.setter
    def update_per_epoch(self, update_per_epoch: int) -> None:
        self.step_per_epoch = update_per_epoch

    @property
    def clock(self) -> int:
        """The clock of schedules, epochs and x-axes: updates."""
        return self.gradient_step

    def _train_step(self) -> None:
        """Sample a batch, update the policy, write the new priorities."""
        self._interrupt.check()
        policy, buffer, step = self.policy, self.buffer, self.clock
        with self._metrics.stopwatch.measure("update"):
            if self._batch is None:
                with self._metrics.stopwatch.measure("sample"):
                    self._batch = policy.sample_batch(buffer, self.batch_size, step=step)
            batch = self._callbacks.transform(self, self._batch)
            self._batch = None  # only now: an exception in a callback must not lose it
            result = policy.update(batch, step=step)
            if buffer.prioritized:
                with self._metrics.stopwatch.measure("priorities"):
                    priority = result.read_priority()
                    if priority is not None:
                        buffer.update_priorities(batch.slots, priority)
            self._callbacks.fire("on_update_end", self)

    def state_dict(self) -> dict[str, Any]:
        """Return the counters, and a sampled batch that is not learned from yet, as callbacks may save in between."""
        batch = None if self._batch is None else batch_to_plain(self._batch)
        return super().state_dict() | {"batch": batch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore saved counters."""
        super().load_state_dict(state)
        self._batch = None if state["batch"] is None else batch_from_plain(self.policy.batch_type, state["batch"])
