"""Off-policy training: collect, sample, update, write priorities; the updates per environment step are exact."""

import logging
from fractions import Fraction
from typing import Any, Literal, Unpack

from typing_extensions import TypeVar

from trainkit.collector import Collector
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.protocols import (
    Buffer,
    Learner,
    Trainee,
)
from trainkit.core.signatures import checked
from trainkit.trainer.base import Trainer
from trainkit.trainer.batches import UpdateQueue
from trainkit.trainer.compatibility import check_length, check_replay, check_warmup
from trainkit.trainer.options import Options, check_options, complete

TraineeT = TypeVar("TraineeT", bound=Trainee, default=Any, covariant=True)

_log = logging.getLogger(__name__)

Refresh = Literal["update", "late", "round"]


@checked
class OffpolicyTrainer(Trainer[TraineeT]):
    """Fill a replay buffer and learn from it, an exact number of updates per environment step.

    Args:
        policy: learns; its `horizon` says what return the buffer shall compute.
        train_collector: has the buffer.
        test_collector: for evaluation after every epoch, without a buffer.
        max_epoch: epochs in all.
        step_per_epoch: environment steps per epoch, exact over the run: 100 at 30 per collect are 120, 90, 90.
        batch_size: rows per update. None is the whole buffer: every row once per update, in place of a draw.
        step_per_collect: environment steps between rounds of updates; default: one vector step.
        episode_per_collect: instead of it, whole episodes between rounds of updates, a fixed quota per environment.
            Every collect starts with a reset. The number of updates follows from the number of steps that were made.
        update_per_step: updates per environment step, exact: 0.3 are 300 in 1,000 steps. Default 1.
        training_intensity: instead of it, rows replayed per row collected: update_per_step * batch_size.
        learning_starts: environment steps before the first update, at least `batch_size`; the collect that reaches it
            is the first that updates follow from.
        warmup: who acts before learning starts: the exploring "policy", or "random" legal actions.
        refresh_priorities: when priorities are written: after each "update", exact; "late", when the next update has
            been started, so that a GPU computes it while the CPU writes, and samples; after a "round".
        updates_per_round: with "round", the number of updates that are accumulated, and whose batches are drawn in one
            pass; those pending at an epoch's end are performed then. For uniform buffers too. 16 is a good number;
            else 1.
        overlap: perform the updates that follow from a collect during the next one, a share in each vector step, while
            environments step on their own: processes (backend="async"), ale-py. The policy that acts, and that is
            evaluated or saved within an epoch, lacks these updates. Callbacks receive an update in the middle of a
            step, where neither environments nor `save` may be called; Ctrl-C takes effect when the step is complete. A
            `step_timeout_s` must leave room for a share.
        common: see `Options`.
    """

    _buffer: Buffer

    def __init__(
        self,
        policy: TraineeT,
        train_collector: Collector,
        test_collector: Collector | None = None,
        *,
        max_epoch: int,
        step_per_epoch: int,
        batch_size: int | None,
        step_per_collect: int | None = None,
        episode_per_collect: int | None = None,
        update_per_step: float | None = None,
        training_intensity: float | None = None,
        learning_starts: int | None = None,
        warmup: Literal["policy", "random"] = "policy",
        refresh_priorities: Refresh = "update",
        updates_per_round: int = 1,
        overlap: bool = False,
        **common: Unpack[Options],
    ) -> None:
        name = type(self).__name__
        buffer: Any = train_collector.buffer
        if buffer is None:
            raise ConfigError(f"{name}.train_collector has no buffer to learn from: Collector(policy, envs, buffer)")
        learners = policy.learners(buffer, train_collector)
        for learner in learners:
            if not isinstance(learner.buffer, Buffer):
                raise ConfigError(f"{name} draws from a replay buffer, got {learner.buffer!r}: use ReplayBuffer")
        with Checks(name) as checks:
            for learner in learners:
                check_replay(checks, learner.buffer, batch_size, refresh_priorities, updates_per_round)
                learner.policy.check_draw(checks, learner.buffer, batch_size, updates_per_round)
            _check_collects(checks, train_collector, step_per_collect, episode_per_collect, overlap=overlap)
            _check_ratio(checks, update_per_step, training_intensity, batch_size)
            checks.integer("learning_starts", learning_starts, low=0, optional=True)
            check_warmup(checks, policy, warmup)
            options = complete(test_collector, common)
            check_options(checks, options, max_epoch=max_epoch, step_per_epoch=step_per_epoch)
        if step_per_collect is None and episode_per_collect is None:
            step_per_collect = train_collector.envs.n
        self._step_per_collect, self._episode_per_collect = step_per_collect, episode_per_collect
        self._batch_size = batch_size
        self._learning_starts = max(learning_starts or 0, batch_size or 1)
        if self.learning_starts > max_epoch * step_per_epoch:
            _log.warning(
                "%s never updates: learning_starts is %d, and the run has %d steps: lower it, or raise max_epoch",
                name,
                self.learning_starts,
                max_epoch * step_per_epoch,
            )
        self._ratio = _exact_ratio(update_per_step, training_intensity, batch_size)
        self._refresh_priorities, self._updates_per_round, self._overlap = (
            refresh_priorities,
            updates_per_round,
            overlap,
        )
        self._warmup: Literal["policy", "random"] = warmup
        self._collector = train_collector
        self._queues = [self._queue_of(learner) for learner in learners]
        self._share_left: int | None = None  # updates left of a vector step's share, where one raised; else None
        super().__init__(
            policy, train_collector, buffer, max_epoch=max_epoch, step_per_epoch=step_per_epoch, options=options
        )

    def settings(self) -> dict[str, Any]:
        """Return the settings of the run, for dashboards and manifests."""
        names = ["batch_size", "step_per_collect", "episode_per_collect", "update_per_step", "learning_starts"]
        names += ["refresh_priorities", "updates_per_round", "overlap"]
        buffer = f"{type(self.buffer).__name__}({self.buffer.capacity})"
        return super().settings() | {"buffer": buffer} | {name: getattr(self, name) for name in names}

    # ---- settings of the loop ----

    @property
    def buffer(self) -> Buffer:
        """What is sampled; another one needs another trainer."""
        return self._buffer

    @property
    def batch_size(self) -> int | None:
        """Rows per update, None for the whole buffer; may be assigned."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, batch_size: int | None) -> None:
        with Checks(type(self).__name__) as checks:
            for queue in self._queues:
                learner = queue.learner
                check_replay(checks, learner.buffer, batch_size, self.refresh_priorities, self.updates_per_round)
                learner.policy.check_draw(checks, learner.buffer, batch_size, self.updates_per_round)
        self._batch_size = batch_size

    @property
    def update_per_step(self) -> float:
        """Updates per environment step; may be assigned: earlier steps keep the updates that they called for."""
        return float(self._ratio)

    @update_per_step.setter
    def update_per_step(self, update_per_step: float) -> None:
        with Checks(type(self).__name__) as checks:
            checks.number("update_per_step", update_per_step, low=0)
        self._use_ratio(_exact_ratio(update_per_step, None, self.batch_size))

    @property
    def training_intensity(self) -> float | None:
        """Rows replayed per row collected, None where a batch is the whole buffer; may be assigned."""
        return None if self.batch_size is None else float(self._ratio * self.batch_size)

    @training_intensity.setter
    def training_intensity(self, training_intensity: float) -> None:
        with Checks(type(self).__name__) as checks:
            _check_ratio(checks, None, training_intensity, self.batch_size)
            checks.number("training_intensity", training_intensity, low=0)
        self._use_ratio(_exact_ratio(None, training_intensity, self.batch_size))

    def _use_ratio(self, ratio: Fraction) -> None:
        self._ratio = ratio
        for queue in self._queues:
            queue.pending.use_ratio(ratio)

    @property
    def step_per_collect(self) -> int | None:
        """Environment steps between rounds of updates, None where episodes are counted; may be assigned."""
        return self._step_per_collect

    @step_per_collect.setter
    def step_per_collect(self, step_per_collect: int) -> None:
        check_length(type(self).__name__, step_per_collect, self._step_per_collect)
        self._step_per_collect = step_per_collect

    @property
    def episode_per_collect(self) -> int | None:
        """Whole episodes between rounds of updates, None where steps are counted; may be assigned."""
        return self._episode_per_collect

    @episode_per_collect.setter
    def episode_per_collect(self, episode_per_collect: int) -> None:
        check_length(type(self).__name__, episode_per_collect, self._episode_per_collect, of="episode")
        self._episode_per_collect = episode_per_collect

    @property
    def learning_starts(self) -> int:
        """Environment steps before the first update; may be assigned until then."""
        return self._learning_starts

    @learning_starts.setter
    def learning_starts(self, learning_starts: int) -> None:
        with Checks(type(self).__name__) as checks:
            if checks.integer("learning_starts", learning_starts, low=0):
                rule = f".learning_starts {self.learning_starts} are over, and updates are taken: give it before them"
                checks.require(self._is_warming_up, rule)
        learning_starts = max(learning_starts, self.batch_size or 1)
        for queue in self._queues:
            queue.start_at(learning_starts)
        self._learning_starts = learning_starts

    @property
    def refresh_priorities(self) -> Refresh:
        """When priorities are written."""
        return self._refresh_priorities

    @property
    def updates_per_round(self) -> int:
        """Updates whose batches are drawn in one pass."""
        return self._updates_per_round

    @property
    def overlap(self) -> bool:
        """Whether updates are performed while environments step."""
        return self._overlap

    @property
    def warmup(self) -> Literal["policy", "random"]:
        """Who acts before learning starts."""
        return self._warmup

    # ---- one step: collect, then sample, update and write priorities while updates are pending ----

    def _train_step(self) -> None:
        """Collect unless earlier updates are pending; then perform all pending updates."""
        collector, stopwatch = self._collector, self._metrics.stopwatch
        if self._overlap or not self._has_ready:
            own = collector.overlap  # of the user
            collector.interrupt_with(self._interrupt.check)
            collector.expect_updates(self._queues[0].pending.count_after if self._queues else None)
            if self._overlap:
                collector.overlap = self._perform_share
                if not collector.is_mid_step:  # the user has collected since: nothing is left of a share
                    self._share_left = None
            try:
                with stopwatch.measure("collect"):
                    if collector.is_interrupted:
                        stats = collector.resume()
                    else:
                        self._fire_collect_start()
                        for queue in self._queues:
                            queue.start_collect()
                        stats = collector.collect(
                            n_step=self.step_per_collect,
                            n_episode=self.episode_per_collect,
                            random=self._warmup == "random" and self._is_warming_up,
                        )
            finally:
                collector.overlap = own
                collector.interrupt_with(None)
                collector.expect_updates(None)
            for queue in self._queues:
                queue.end_collect()
            self._after_collect(stats)
        if not self._overlap:
            with stopwatch.measure("update"):
                for queue in self._queues:
                    while queue.n_ready:
                        self._interrupt.check()
                        self._update(queue)

    @property
    def _has_ready(self) -> bool:
        """Whether an update is ready."""
        return any(queue.n_ready for queue in self._queues)

    @property
    def _is_warming_up(self) -> bool:
        """Whether no policy learns yet."""
        return all(queue.learner.clock.env_step < queue.learns_from for queue in self._queues)

    def _queue_of(self, learner: Learner) -> UpdateQueue:
        return UpdateQueue(learner, self._ratio, self.learning_starts, self.updates_per_round)

    def _update(self, queue: UpdateQueue) -> None:
        """Sample a batch, or a round of them; update the policy; write the new priorities."""
        policy, buffer = queue.learner.policy, queue.learner.buffer
        if policy.n_updates == 0:
            policy.before_updates(buffer)
        if not queue.batches:
            with self._metrics.stopwatch.measure("sample"):
                queue.sample(self.batch_size)
        self._learning = queue.learner.name
        batch = self._callbacks.transform(self, queue.batches[0])
        queue.batches.popleft()  # only now: an exception in a callback must not lose it
        result = policy.update(batch, step=queue.learner.clock.env_step)
        if buffer.prioritized:
            if self.refresh_priorities == "update":
                read_priority = result.read_priority
            else:
                read_priority = result.copy_priority(in_order=self.refresh_priorities == "round")
            queue.unwritten.append((batch.slots, read_priority))
        if self.refresh_priorities == "late":
            self._write_priorities(queue, n_kept=1)
        elif not queue.batches:
            self._write_priorities(queue)
        self._metrics.recent.count_replayed(queue.learner.name, batch.n_rows)
        queue.pending.n_updates += 1
        if self._share_left is not None:
            self._share_left -= 1
        self._callbacks.fire("on_update_end", self)

    def _write_priorities(self, queue: UpdateQueue, *, n_kept: int = 0) -> None:
        """Write the new priorities of all but the last `n_kept` updates."""
        n_written = len(queue.unwritten) - n_kept
        if n_written > 0:
            with self._metrics.stopwatch.measure("priorities"):
                queue.write_priorities(n_written)

    # ---- updates overlapped with the environments' steps ----

    def _perform_share(self, *, within: str | None = "collect") -> None:
        """Perform one vector step's share of the pending updates, so that the last step of a collect leaves none.

        An exception leaves the rest of the share to the next call, before the step's rows are stored: the updates then
        draw the same batches as in a run in which nothing raised.
        """
        with self._metrics.stopwatch.measure("update", within=within):
            if self._share_left is None:
                n_left = self._collector.n_vector_steps_left  # 0 in episodes that the user collects
                n_ready = sum(queue.n_ready for queue in self._queues)
                self._share_left = -(-n_ready // n_left) if n_left else 0
            while self._share_left > 0:
                self._update(next(queue for queue in self._queues if queue.n_ready))
            self._share_left = None

    # ---- interrupting, saving and resuming ----

    @property
    def _is_whole(self) -> bool:
        has_updates = not self._overlap and self._has_ready
        return not (has_updates or self._collector.is_interrupted)

    def _start_epoch(self) -> None:
        """Follow the policies that are trained from this epoch on."""
        if not self._epochs.is_running:
            learners = self.policy.learners(self.buffer, self._collector)
            known = {(queue.learner.policy, queue.learner.buffer): queue for queue in self._queues}
            self._queues = [
                known.get((learner.policy, learner.buffer)) or self._queue_of(learner) for learner in learners
            ]
        super()._start_epoch()

    def _end_epoch(self) -> None:
        """Perform the updates of an incomplete round before the epoch is evaluated."""
        with self._metrics.stopwatch.measure("update"):
            for queue in self._queues:
                while queue.has_rest:
                    self._interrupt.check()
                    self._update(queue)
        super()._end_epoch()

    def _complete(self) -> None:
        """Complete a vector step that an exception in its overlapped updates interrupted."""
        super()._complete()
        if self._collector.is_mid_step and not self._is_running:
            if self._share_left is not None:
                self._perform_share(within=None)
            self._collector.finish_step()

    def _continue_without_rows(self) -> None:
        """Collect `learning_starts` new rows before updates continue."""
        for queue in self._queues:
            queue.discard(self.learning_starts)
        self._share_left = None

    def state_dict(self) -> dict[str, Any]:
        """Return the counters and the states of the policies' updates."""
        states = {queue.learner.prefix: queue.state_dict() for queue in self._queues}
        return super().state_dict() | {
            f"{own}{key}": value for own, state in states.items() for key, value in state.items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore saved counters."""
        super().load_state_dict(state)
        learners = self.policy.learners(self.buffer, self._collector, state["learners"])
        self._queues = [self._queue_of(learner) for learner in learners]
        for queue in self._queues:
            own = queue.learner.prefix
            queue.load_state_dict({key.removeprefix(own): value for key, value in state.items() if key.startswith(own)})
        self._share_left = None


def _check_collects(
    checks: Checks,
    collector: Collector,
    step_per_collect: int | None,
    episode_per_collect: int | None,
    *,
    overlap: bool,
) -> None:
    rule = ".overlap needs a policy that acts here in every step, and these environments act themselves: leave it out"
    checks.require(not overlap or collector.acts_here, rule)
    for option, count in (("step_per_collect", step_per_collect), ("episode_per_collect", episode_per_collect)):
        checks.integer(option, count, low=1, optional=True)
    if episode_per_collect is not None:
        both = step_per_collect is not None
        checks.require(not both, " was given both step_per_collect and episode_per_collect: set one to None")
        checks.require(
            not overlap,
            ".overlap spreads updates over the vector steps of a collect, whose number episode_per_collect leaves "
            "open: give step_per_collect",
        )


def _check_ratio(
    checks: Checks, update_per_step: float | None, training_intensity: float | None, batch_size: int | None
) -> None:
    both = update_per_step is not None and training_intensity is not None
    checks.require(not both, " was given both update_per_step and training_intensity: give one")
    for option, value in (("update_per_step", update_per_step), ("training_intensity", training_intensity)):
        checks.number(option, value, low=0, optional=True)
    checks.require(
        training_intensity is None or batch_size is not None,
        " cannot turn training_intensity into a number of rows per update, and batch_size=None is the whole buffer: "
        "give batch_size",
    )


def _exact_ratio(update_per_step: float | None, training_intensity: float | None, batch_size: int | None) -> Fraction:
    """Return the updates per environment step that checked options call for."""
    if training_intensity is not None and batch_size is not None:
        return Fraction(str(training_intensity)) / batch_size
    return Fraction(str(1.0 if update_per_step is None else update_per_step))
