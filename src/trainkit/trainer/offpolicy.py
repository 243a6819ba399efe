"""Off-policy training: collect a little, learn what is owed for it, over and over."""

from contextlib import AbstractContextManager
from fractions import Fraction
from typing import Any, Literal, Unpack

from typing_extensions import TypeVar

from trainkit.collector import Collector
from trainkit.core.data import ACTION_PROB, TransitionBatch
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.protocols import Buffer, Learner
from trainkit.core.signatures import checked
from trainkit.core.stats import CollectStats
from trainkit.trainer.base import Trainer
from trainkit.trainer.intervals import Credit
from trainkit.trainer.options import KeywordOptions, Options
from trainkit.trainer.updates import Refresh, ReplayUpdates, check_refresh

LearnerT = TypeVar("LearnerT", bound=Learner, default=Any, covariant=True)


@checked
class OffpolicyTrainer(Trainer[LearnerT]):
    """Fill a replay buffer and learn from it, an exact number of updates per environment step.

    Args:
        policy: learns; its `horizon` says what return the buffer shall compute.
        train_collector: has the buffer.
        test_collector: see `Options`.
        max_epoch: epochs in all.
        step_per_epoch: environment steps per epoch, exact over the run: 100 at 30 per collect are 120, 90, 90.
        batch_size: rows per update. None is the whole buffer: every row once per update, in place of a draw.
        step_per_collect: environment steps between rounds of updates; default: one vector step.
        episode_per_collect: instead of it, whole episodes between rounds of updates, a fixed quota per environment.
            Every collect starts with a reset. The number of updates follows from the number of steps that were made.
        update_per_step: updates per environment step, exact: 0.3 are 300 in 1,000 steps. Default 1.
        training_intensity: instead of it, rows replayed per row collected: update_per_step * batch_size.
        learning_starts: environment steps before the first update, at least `batch_size` or 1; the collect that reaches
            it is the first for which updates are owed.
        warmup: who acts before learning starts: the exploring "policy", or "random" legal actions.
        refresh_priorities: when priorities are written: after each "update", exact; "late", when the next batch has
            been drawn, so that drawing does not wait for a GPU; after a "round".
        updates_per_round: with "round", so many updates are saved up, and their batches drawn in one pass; what is
            owed at an epoch's end is done then. For uniform buffers too. 16 is a good number; else 1.
        overlap: take the updates that a collect owes during the next one, a share in each vector step, while the
            environments step by themselves: processes (backend="async"), ale-py. What acts, and what is evaluated or
            saved within an epoch, is so many updates behind. Callbacks hear of an update in the middle of a step, where
            neither environments nor `save` may be asked for anything; Ctrl-C is heard when the step is whole. A
            `step_timeout_s` must leave room for a share.
        common: see `Options`.
    """

    buffer: Buffer

    def __init__(
        self,
        policy: LearnerT,
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
        **common: Unpack[KeywordOptions],
    ) -> None:
        name = type(self).__name__
        buffer = train_collector.buffer
        if buffer is None:
            raise ConfigError(f"{name}.train_collector has no buffer to learn from: Collector(policy, envs, buffer)")
        if not isinstance(buffer, Buffer):
            raise ConfigError(f"{name} draws from a replay buffer, got {buffer!r}: use ReplayBuffer")
        checks = Checks(name)
        if batch_size is None:
            told = " {} a number of rows per update, and batch_size=None is the whole buffer: give batch_size"
            checks.require(training_intensity is None, told.format("cannot turn training_intensity into"))
            checks.require(updates_per_round == 1, told.format("draws the batches of a round by"))
        elif checks.integer("batch_size", batch_size, low=1):
            checks.require(
                batch_size <= buffer.capacity,
                f".batch_size {batch_size} is larger than the buffer's capacity {buffer.capacity}: "
                "lower it or raise the capacity",
            )
        for option, count in (("step_per_collect", step_per_collect), ("episode_per_collect", episode_per_collect)):
            if count is not None:
                checks.integer(option, count, low=1)
        if episode_per_collect is not None:
            both = step_per_collect is not None
            checks.require(not both, " was given both step_per_collect and episode_per_collect: set one to None")
            checks.require(
                not overlap,
                ".overlap spreads updates over the vector steps of a collect, whose number episode_per_collect leaves "
                "open: give step_per_collect",
            )
        if learning_starts is not None:
            checks.integer("learning_starts", learning_starts, low=0)
        if checks.one_of("warmup", warmup, ["policy", "random"]) and warmup == "random":
            unfilled = sorted(set(policy.extras_spec) - {ACTION_PROB})
            problem = (
                f".warmup 'random' cannot fill the columns {unfilled} that {type(policy).__name__} stores: use 'policy'"
            )
            checks.require(not unfilled, problem)
        check_refresh(checks, buffer, refresh_priorities, updates_per_round)
        both = update_per_step is not None and training_intensity is not None
        checks.require(not both, " was given both update_per_step and training_intensity: give one")
        for option, value in (("update_per_step", update_per_step), ("training_intensity", training_intensity)):
            if value is not None:
                checks.number(option, value, low=0)
        options = Options(test_collector=test_collector, **common)
        options.check(checks, max_epoch=max_epoch, step_per_epoch=step_per_epoch)
        checks.done()
        self.batch_size = batch_size
        if step_per_collect is None and episode_per_collect is None:
            step_per_collect = train_collector.envs.n
        self.step_per_collect, self.episode_per_collect = step_per_collect, episode_per_collect
        self.learning_starts = self._learns_from = max(learning_starts or 0, batch_size or 1)
        self._warmup = warmup
        ratio = Fraction(str(1.0 if update_per_step is None else update_per_step))
        if training_intensity is not None and batch_size is not None:
            ratio = Fraction(str(training_intensity)) / batch_size
        self.update_per_step = float(ratio)
        self._credit = Credit(ratio)
        self.refresh_priorities, self.updates_per_round, self.overlap = refresh_priorities, updates_per_round, overlap
        how = refresh_priorities, updates_per_round, self._refine, self._timed
        self._updates = ReplayUpdates(policy, buffer, batch_size, *how)
        self._collector = train_collector
        self._share_left: int | None = None  # updates of a vector step's share that raised; None where none did
        super().__init__(
            policy, train_collector, buffer, max_epoch=max_epoch, step_per_epoch=step_per_epoch, options=options
        )

    def settings(self) -> dict[str, Any]:
        """Name what was chosen, for dashboards and manifests."""
        names = ["batch_size", "step_per_collect", "episode_per_collect", "update_per_step", "learning_starts"]
        names += ["refresh_priorities", "updates_per_round", "overlap"]
        buffer = f"{type(self.buffer).__name__}({self.buffer.capacity})"
        return super().settings() | {"buffer": buffer} | {name: getattr(self, name) for name in names}

    @property
    def _is_due(self) -> bool:
        """Whether updates come before the next collect: a round has begun, or enough is owed for one."""
        return self._n_due > 0 and not self.overlap

    @property
    def _n_due(self) -> int:
        """Updates to take now: what is left of a round that has begun, and whole rounds that are owed."""
        n_drawn = self._updates.n_drawn
        n_rounds = (self._credit.owed - n_drawn) // self.updates_per_round if len(self.buffer) else 0
        return n_drawn + n_rounds * self.updates_per_round  # environments that fail may take all rows with them

    @property
    def _is_whole(self) -> bool:
        return not (self._is_due or self._collector.is_interrupted)

    def _train_step(self) -> None:
        """Collect, unless updates are due already; then learn what is due."""
        if not self._is_due:
            with self._watch.measure("collect"):
                stats = self._collect()
            if self.env_step >= self._learns_from:
                self._credit.add(stats.n_step)
            self._reports.add_collect(stats)
            self._watch_for_success(stats)
            self._hooks.fire("on_collect_end", self, stats)
        if not self.overlap:
            self._learn(self.updates_per_round)

    def _end_epoch(self) -> None:
        """Learn what was saved up, before anybody looks."""
        self._learn(1)
        super()._end_epoch()

    def _collect(self) -> CollectStats:
        """Collect, or go on with a collect that was interrupted."""
        collector = self._collector
        if not collector.is_mid_step:  # collected by hand since: nothing is left of a share
            self._share_left = None
        collector.between_steps = self._interrupt.check
        collector.meanwhile = self._learn_share if self.overlap else None
        try:
            if collector.is_interrupted:
                return collector.resume()
            self._hooks.fire("on_collect_start", self)
            is_random = self._warmup == "random" and self.env_step < self._learns_from
            return collector.collect(n_step=self.step_per_collect, n_episode=self.episode_per_collect, random=is_random)
        finally:
            collector.between_steps = collector.meanwhile = None  # by hand it collects, and no more

    def _refine(self, batch: TransitionBatch) -> TransitionBatch:
        return self._hooks.refine(self, batch)

    def _timed(self, part: str) -> AbstractContextManager[None]:
        return self._watch.measure(part)

    def _learn(self, least: int) -> None:
        """Finish a round that has begun, and update as long as so many are owed."""
        with self._watch.measure("update"):
            while self._updates.n_drawn or (self._credit.owed >= least and len(self.buffer)):
                self._interrupt.check()
                self._update()

    def _learn_share(self) -> None:
        """Take one vector step's share of the updates that are due, so that the last step leaves none.

        An exception leaves the rest of the share to the next call, before the step's rows are stored: the updates then
        draw the same batches as in a run in which nothing raised.
        """
        with self._watch.measure("update", within="collect"):
            self._learn_rest_of_share()

    def _learn_rest_of_share(self) -> None:
        if self._share_left is None:
            n_due, n_left = self._n_due, self._collector.n_vector_steps_left
            self._share_left = -(-n_due // n_left) if n_left else 0  # none in episodes that were asked for by hand
        while self._share_left > 0:
            self._update()
        self._share_left = None

    def _update(self) -> None:
        self._reports.add_replayed(self._updates.update(self._credit.owed, step=self.env_step))
        self._credit.pay()
        if self._share_left is not None:
            self._share_left -= 1
        self._hooks.fire("on_update_end", self)

    def _make_whole(self) -> None:
        """Finish a vector step that an exception in its overlapped updates left open."""
        super()._make_whole()
        if self._collector.is_mid_step and not self._is_running:
            if self._share_left is not None:
                with self._watch.measure("update"):
                    self._learn_rest_of_share()
            self._collector.finish_step()

    def state_dict(self) -> dict[str, Any]:
        """Return the counters; what is owed is among them."""
        own = {"credit": self._credit.state_dict(), "updates": self._updates.state_dict()}
        return super().state_dict() | own | {"learns_from": self._learns_from}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over saved counters."""
        super().load_state_dict(state)
        self._credit.load_state_dict(state["credit"])
        self._updates.load_state_dict(state["updates"])
        self._learns_from = state["learns_from"]
        self._share_left = None

    def _lose_rows(self) -> None:
        """Collect as many rows again as learning starts with, before learning goes on."""
        self._learns_from = self.env_step + self.learning_starts
        self._credit.forgive()
        self._updates.load_state_dict({"drawn": [], "learnt": []})
