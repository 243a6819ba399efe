"""On-policy training: collect a rollout, learn from it, discard it."""

import logging
from collections.abc import Iterator
from typing import Any, ClassVar, Unpack

from typing_extensions import TypeVar

from trainkit.collector import Collector
from trainkit.core.errors import CheckpointError, Checks, ConfigError
from trainkit.core.protocols import RolloutStore, StepCollector, Trainee
from trainkit.core.signatures import checked
from trainkit.core.stats import CollectStats
from trainkit.trainer.base import Trainer
from trainkit.trainer.compatibility import check_length
from trainkit.trainer.options import Options, check_options, complete

_log = logging.getLogger(__name__)

TraineeT = TypeVar("TraineeT", bound=Trainee, default=Any, covariant=True)


@checked
class OnpolicyTrainer(Trainer[TraineeT]):
    """Alternate between collecting a rollout and learning from it.

    After an exception in an update the next `next()` learns from the policy's whole rollout again.

    Args:
        policy: learns; its `horizon` says what rewards and discount count.
        train_collector: has a `RolloutBuffer`; or another collector of rollouts, such as a `TensorCollector`.
        test_collector: for evaluation after every epoch, without a buffer.
        max_epoch: epochs in all.
        step_per_epoch: environment steps per epoch, exact over the run: 100 at 30 per collect are 120, 90, 90.
        step_per_collect: steps per rollout, in all environments together; steps in excess are subtracted from
            the next.
        episode_per_collect: instead of it, whole episodes per rollout, a fixed quota per environment. Not with a
            `TensorCollector`.
        repeat_per_collect: how often each row is learned from.
        batch_size: rows per update, about: a rollout is divided into equal batches. None is all of it.
        common: see `Options`.
    """

    _learning_method: ClassVar[str] = "learn"

    _buffer: RolloutStore

    def __init__(
        self,
        policy: TraineeT,
        train_collector: StepCollector,
        test_collector: Collector | None = None,
        *,
        max_epoch: int,
        step_per_epoch: int,
        step_per_collect: int | None = None,
        episode_per_collect: int | None = None,
        repeat_per_collect: int = 1,
        batch_size: int | None = None,
        **common: Unpack[Options],
    ) -> None:
        name = type(self).__name__
        buffer: Any = train_collector.buffer
        for own in [learner.buffer for learner in policy.learners(buffer, train_collector)]:
            if not isinstance(own, RolloutStore):
                raise ConfigError(
                    f"{name}.train_collector must have a RolloutBuffer, got {own!r}: "
                    "Collector(policy, envs, RolloutBuffer())"
                )
        with Checks(name) as checks:
            one = (step_per_collect is None) != (episode_per_collect is None)
            checks.require(one, " needs exactly one of step_per_collect and episode_per_collect")
            given = {"step_per_collect": step_per_collect, "episode_per_collect": episode_per_collect}
            counts = step_per_collect is not None or train_collector.counts_episodes
            kind = type(train_collector).__name__
            checks.require(counts, f".episode_per_collect needs a Collector: with a {kind} step_per_collect")
            for option, count in (given | {"batch_size": batch_size}).items():
                checks.integer(option, count, low=1, optional=True)
            checks.integer("repeat_per_collect", repeat_per_collect, low=1)
            lag = train_collector.max_lag
            rule = f".train_collector acts with weights up to {lag} updates old, and only rows of the current ones"
            checks.require(lag == 0, f"{rule} can be learned from: make environments without a lag")
            options = complete(test_collector, common)
            check_options(checks, options, max_epoch=max_epoch, step_per_epoch=step_per_epoch)
        if step_per_collect is not None and step_per_collect > step_per_epoch:
            n_steps = max_epoch * step_per_epoch
            n_rollouts = -(-n_steps // step_per_collect)
            longer = f"the run has about {n_rollouts * step_per_collect:,} steps instead of {n_steps:,}"
            _log.warning(
                "%s: %s: a rollout has %d steps, and an epoch %d: raise step_per_epoch, or lower step_per_collect",
                name,
                "some epochs collect nothing" if n_rollouts < max_epoch else longer,
                step_per_collect,
                step_per_epoch,
            )
        self._step_per_collect, self._episode_per_collect = step_per_collect, episode_per_collect
        self._repeat_per_collect, self._batch_size = repeat_per_collect, batch_size
        self._collector = train_collector
        self._has_rollout = False  # whether one is collected and not fully learned from
        self._updates: Iterator[object] | None = None  # the rest of the updates from the rollout
        super().__init__(
            policy, train_collector, buffer, max_epoch=max_epoch, step_per_epoch=step_per_epoch, options=options
        )

    def settings(self) -> dict[str, Any]:
        """Return the settings of the run, for dashboards and manifests."""
        names = ("step_per_collect", "episode_per_collect", "repeat_per_collect", "batch_size")
        return super().settings() | {name: getattr(self, name) for name in names}

    @property
    def buffer(self) -> RolloutStore:
        """What holds the rollout; another one needs another trainer."""
        return self._buffer

    @property
    def step_per_collect(self) -> int | None:
        """Steps per rollout, None where episodes are counted; may be assigned, for the next rollout."""
        return self._step_per_collect

    @step_per_collect.setter
    def step_per_collect(self, step_per_collect: int) -> None:
        check_length(type(self).__name__, step_per_collect, self._step_per_collect)
        self._step_per_collect = step_per_collect

    @property
    def episode_per_collect(self) -> int | None:
        """Whole episodes per rollout, None where steps are counted; may be assigned, for the next rollout."""
        return self._episode_per_collect

    @episode_per_collect.setter
    def episode_per_collect(self, episode_per_collect: int) -> None:
        check_length(type(self).__name__, episode_per_collect, self._episode_per_collect, of="episode")
        self._episode_per_collect = episode_per_collect

    @property
    def repeat_per_collect(self) -> int:
        """How often each row is learned from; may be assigned, for the next rollout."""
        return self._repeat_per_collect

    @repeat_per_collect.setter
    def repeat_per_collect(self, repeat_per_collect: int) -> None:
        with Checks(type(self).__name__) as checks:
            checks.integer("repeat_per_collect", repeat_per_collect, low=1)
        self._repeat_per_collect = repeat_per_collect

    @property
    def batch_size(self) -> int | None:
        """Rows per update, None for all; may be assigned, for the next rollout."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, batch_size: int | None) -> None:
        with Checks(type(self).__name__) as checks:
            checks.integer("batch_size", batch_size, low=1, optional=True)
        self._batch_size = batch_size

    @property
    def _is_whole(self) -> bool:
        return not self._has_rollout and not self._collector.is_interrupted

    def _train_step(self) -> None:
        """Collect a rollout unless an earlier one is left; learn from all of it, and discard it."""
        if not self._has_rollout:
            with self._metrics.stopwatch.measure("collect"):
                stats = self._collect()
            if not len(self.buffer):  # the last collect exceeded its steps by as many as this one was to make
                return
            self._has_rollout = True
            self._after_collect(stats)
        self._learn()

    def _learn(self) -> None:
        """Learn from the rollout, or the rest of it, and discard it."""
        if self._updates is None:
            self._updates = self._all_updates()
        with self._metrics.stopwatch.measure("update"):
            while True:
                self._interrupt.check(is_whole=False)
                try:
                    result = next(self._updates, None)
                except BaseException:
                    self._updates = None  # it has ended: the next call reads the rows that are left again
                    raise
                if result is None:
                    break
                self._callbacks.fire("on_update_end", self)
        self._updates, self._has_rollout = None, False
        self.buffer.clear()

    def _all_updates(self) -> Iterator[object]:
        """Let every policy that is trained learn from its rows and discard them, one after the other."""
        learners = self.policy.learners(self.buffer, self._collector)
        self._metrics.follow(learners)
        for learner in learners:
            self._learning = learner.name
            if len(learner.buffer):
                rows = learner.buffer.read(learner.policy.horizon, learner.policy.columns)
                rollout = self._callbacks.transform(self, rows)
                options = {"batch_size": self.batch_size, "repeat": self.repeat_per_collect}
                yield from learner.policy.learn(rollout, step=learner.clock.env_step, **options)
                learner.buffer.clear()  # only now: an exception must not lose them

    def _complete(self) -> None:
        """Learn from the rest of a rollout: a run cannot be resumed in the middle of one."""
        super()._complete()
        if self._updates is None:
            return
        if self._is_running:
            raise CheckpointError(
                f"{type(self).__name__} cannot be saved between the updates of a rollout: save at the end of an epoch "
                "or of a collect"
            )
        self._learn()

    def _continue_without_rows(self) -> None:
        """Collect another rollout."""
        self._has_rollout, self._updates = False, None
        self.buffer.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the counters, and whether there is a rollout to learn from."""
        return super().state_dict() | {"has_rollout": self._has_rollout}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore saved counters."""
        super().load_state_dict(state)
        self._has_rollout = state["has_rollout"]
        self._updates = None  # of a rollout that belongs to another run

    def _collect(self) -> CollectStats:
        """Collect, or resume a collect that was interrupted."""
        collector = self._collector
        collector.interrupt_with(self._interrupt.check)
        try:
            if collector.is_interrupted:
                return collector.resume()
            self._fire_collect_start()
            return collector.collect(n_step=self.step_per_collect, n_episode=self.episode_per_collect)
        finally:
            collector.interrupt_with(None)
