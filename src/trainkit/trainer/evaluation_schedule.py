"""The schedule of evaluations: when a run evaluates its policy, and which score was the best."""

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainkit.collector import Collector
from trainkit.core.errors import ConfigError
from trainkit.core.stats import NO_COLLECT, CollectStats
from trainkit.trainer.callbacks.base import Dispatcher, n_periods
from trainkit.trainer.evaluation import Evaluation, EvaluationWorker
from trainkit.trainer.metrics import Stopwatch

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer

_log = logging.getLogger(__name__)

_LONG_EPISODE = 1_000  # steps of an environment after which an episode without an end is suspicious
_NOTE_EVERY_S = 30.0  # of an evaluation


@dataclass(slots=True)
class Pending:
    """An evaluation elsewhere whose result is not delivered yet."""

    epoch: int  # whose weights are evaluated
    clock: int
    policy: bytes  # packed by the worker
    is_requested: bool = False  # whether the worker plays it
    stats: CollectStats | None = None  # when it has been played
    events: list[str] = field(default_factory=list)  # to be fired


_SAVED = ("best_score", "best_epoch", "best_env_step", "best_return", "best_std", "_n_confirmed", "_n_periods")


class EvaluationSchedule:
    """When a run evaluates its policy, and the best score so far. An interrupted evaluation is resumed, not repeated.

    An evaluation that plays elsewhere is requested where one in this process would be played, and its result is
    delivered where the next is due, at the latest at the end of the next epoch: `deliver` waits for it.

    Args:
        evaluation: how to evaluate; None where a run has no evaluations.
        score_fn: from an evaluation to its score, None for none; default: its mean return.
        callbacks: receive its events.
        stopwatch: times it.
        interrupt: called before every vector step; raises to interrupt.
        note: prints a line about the run.
    """

    def __init__(
        self,
        evaluation: Evaluation | None,
        score_fn: Callable[[CollectStats], float | None] | None,
        callbacks: Dispatcher,
        stopwatch: Stopwatch,
        interrupt: Callable[[], None],
        note: Callable[[str], None],
    ) -> None:
        self.evaluation = evaluation
        self._note = note
        self._has_warned = False  # of episodes that do not end
        self._score_fn = score_fn
        self._callbacks, self._stopwatch, self._interrupt = callbacks, stopwatch, interrupt
        self._worker: EvaluationWorker | None = None if evaluation is None else evaluation.worker()
        if evaluation is not None and self._worker is not None:
            self._worker.packed(evaluation.collector.policy)  # it must be possible
        self._pending: Pending | None = None
        self.reset()

    def reset(self) -> None:
        """Forget all evaluations."""
        self.best_score: float | None = None
        self.best_epoch: int | None = None
        self.best_env_step: int | None = None
        self.best_return: float | None = None  # the mean of its returns
        self.best_std: float | None = None  # of its returns
        self.last_test = NO_COLLECT
        self._n_confirmed = 0  # evaluations on fresh seeds
        self.looks_solved = False  # training episodes passed `stop_fn` (`test_in_train`)
        self._pending = None
        self.close()  # what the worker still plays is of no use
        self._n_periods: int | None = None  # whole periods of the evaluation's unit, at the last; None before any
        self.start_epoch()

    def start_epoch(self) -> None:
        """Forget the evaluations of the epoch before."""
        self.epoch_test = NO_COLLECT  # the epoch's last
        self.epoch_score: float | None = None
        self.unreported = NO_COLLECT  # the evaluation that is in no report yet
        self.allow_another()

    def allow_another(self) -> None:
        """Allow `evaluate` another evaluation in this epoch."""
        if self.evaluation is not None:
            self.evaluation.discard_interrupted()  # of another epoch, or of a run before `reset`
        self._is_announced = False  # whether `on_evaluate_start` was fired
        self._is_evaluated = self._is_delivered = False  # whether it was played, and all its events were fired

    def is_due(self, trainer: "Trainer", *, at_end: bool = False, is_last: bool = False) -> bool:
        """Return whether to evaluate now, in the middle or at the end of an epoch; the last epoch ends with one."""
        evaluation = self.evaluation
        if evaluation is None:
            return False
        if (is_last if at_end else self.looks_solved) or (self._n_periods is None and evaluation.at_start):
            return True
        if evaluation.unit == "epochs":
            return at_end and trainer.epoch % evaluation.every == 0
        return n_periods(trainer, evaluation.unit, evaluation.every) > (self._n_periods or 0)

    def evaluate(self, trainer: "Trainer") -> None:
        """Evaluate, or resume an interrupted evaluation, without repeating completed parts."""
        if not self._is_announced:
            self._is_announced = True
            self._warn_of_endless_episodes(trainer)
            self._callbacks.fire("on_evaluate_start", trainer)
        if self._is_delivered:
            pass
        elif self._worker is None:
            self._evaluate(trainer)
        else:
            self._request(trainer)
        self.looks_solved = False

    def _warn_of_endless_episodes(self, trainer: "Trainer") -> None:
        """Warn, once, before an evaluation of whole episodes where none has ended in training."""
        train, evaluation = trainer.train_collector, self._required()
        is_late = train is not None and train.env_step >= _LONG_EPISODE * train.envs.n and train.n_episode == 0
        if self._has_warned or not is_late or evaluation.duration_unit != "episodes":
            return
        self._has_warned = True
        _log.warning(
            "no episode has ended in the first %s steps of training, and an evaluation waits for the end of each, or "
            "for %s steps: give make_envs(max_episode_steps=...), or a preset env_options={'max_episode_steps': ...}",
            *(f"{trainer.env_step:,}", f"{evaluation.max_episode_steps:,}"),
        )

    def _evaluate(self, trainer: "Trainer") -> None:
        evaluation = self._required()
        if not self._is_evaluated:
            self.epoch_test = self.unreported = self._run(trainer.clock)
            self.epoch_score = self.score(self.epoch_test)
            self._n_periods = n_periods(trainer, evaluation.unit, evaluation.every)
            evaluation.log_numbers(trainer.log)
            self._is_evaluated = True
            if self._is_best(self.epoch_score, self.epoch_test, trainer.epoch, trainer.clock):
                self._callbacks.fire("on_best", trainer, self.epoch_test)
        self._is_delivered = True
        self._callbacks.fire("on_evaluate_end", trainer, self.epoch_test)

    # ---- elsewhere, while training continues ----

    def start(self) -> None:
        """Be ready to evaluate elsewhere."""
        if self._worker is not None:
            self._worker.start()

    def close(self) -> None:
        """End what evaluates elsewhere; what it played is requested again if it is needed."""
        if self._worker is not None:
            self._worker.close()
        if self._pending is not None:
            self._pending.is_requested = False

    def _request(self, trainer: "Trainer") -> None:
        """Request an evaluation of the current weights, when the last one was delivered."""
        with self._stopwatch.measure("evaluate"):
            self._pending = Pending(trainer.epoch, trainer.clock, self._elsewhere().packed(trainer.policy))
            self._n_periods = n_periods(trainer, self._required().unit, self._required().every)
            self._is_delivered = True
            self._play(self._pending)

    def _play(self, pending: Pending, *, fresh: int | None = None) -> None:
        self._elsewhere().request(pending.policy, pending.clock, self._required().state_dict(), fresh)
        pending.is_requested = True

    def deliver(self, trainer: "Trainer") -> None:
        """Wait for the evaluation that is pending, if there is one, and fire its events."""
        pending = self._pending
        if pending is None:
            return
        if pending.stats is None:
            pending.stats = stats = self._wait(pending)
            self.last_test, self.epoch_score = stats, self.score(stats)
            if pending.epoch == trainer.epoch:
                self.epoch_test = stats
            is_best = self._is_best(self.epoch_score, stats, pending.epoch, pending.clock)
            pending.events = ["on_best", "on_evaluate_end"] if is_best else ["on_evaluate_end"]
            trainer.report_evaluation(pending.epoch, pending.clock, stats, self._required().numbers)
        while pending.events:
            self._callbacks.fire(pending.events.pop(0), trainer, pending.stats)
        self._pending = None

    def _wait(self, pending: Pending, *, fresh: int | None = None) -> CollectStats:
        """Return the statistics of an evaluation elsewhere, which is requested again if a process was lost."""
        evaluation = self._required()
        with self._stopwatch.measure("evaluate"):
            if not pending.is_requested:
                self._play(pending, fresh=fresh)
            try:
                played = self._elsewhere().receive(self._interrupt)
            except Exception as error:
                pending.is_requested = False
                error.add_note(f"in the evaluation of epoch {pending.epoch}; the next next() repeats it")
                raise
        evaluation.load_state_dict(played.state)
        evaluation.numbers = played.numbers
        return played.stats

    @property
    def evaluated_policy(self) -> Any:
        """The policy whose evaluation is being delivered, a copy on the CPU; None if it is the run's own."""
        return None if self._pending is None else self._elsewhere().unpacked(self._pending.policy)

    # ---- on request ----

    def evaluate_now(self, trainer: "Trainer", **changes: Any) -> CollectStats:
        """Evaluate without firing callbacks or updating the best score; `changes` are options of `Evaluation`."""
        evaluation = self._required()
        evaluation.discard_interrupted()  # it is played again when the run continues
        evaluation.collector.interrupt_with(None)
        if changes:
            evaluation = evaluation.changed(evaluation.collector, **changes)
        with self._without_episode_events(evaluation):
            self.last_test = evaluation.run(trainer.clock)
        evaluation.log_numbers(trainer.log)
        return self.last_test

    def confirm(self, step: int) -> CollectStats:
        """Evaluate on seeds never used before, without events of its episodes."""
        if self._pending is not None:
            again = Pending(self._pending.epoch, self._pending.clock, self._pending.policy)
            stats = self.last_test = self._wait(again, fresh=self._n_confirmed)
        else:
            with self._without_episode_events(self._required()):
                stats = self._run(step, fresh=self._n_confirmed)
        self._n_confirmed += 1
        return stats

    def score(self, stats: CollectStats) -> float | None:
        """Return the score of collected episodes, None if there are none."""
        if self._score_fn is None:
            return stats.returns.mean
        score: Any = self._score_fn(stats)
        try:
            return None if score is None else float(score)
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"compute_score_fn must return a number or None, got {score!r}") from error

    def state_dict(self) -> dict[str, Any]:
        """Return the best and the last evaluation, and the state from which the next evaluation starts."""
        saved = {name: getattr(self, name) for name in _SAVED}
        last_test = None if self.last_test.is_empty else self.last_test.to_plain()
        evaluation = None if self.evaluation is None else self.evaluation.state_dict()
        return saved | {"last_test": last_test, "evaluation": evaluation, "pending": self._pending_state()}

    def _pending_state(self) -> dict[str, Any] | None:
        """Return the evaluation that a resumed run requests again, None if there is none."""
        pending = self._pending
        if pending is None or pending.stats is not None:
            return None
        policy = self._elsewhere().unpacked(pending.policy)
        own = {"weights": policy.get_weights(), "n_updates": policy.n_updates, "last_step": policy.last_step}
        return {"epoch": pending.epoch, "clock": pending.clock, **own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        for name in _SAVED:
            setattr(self, name, state.get(name))  # older files have no best_return
        last_test = state["last_test"]
        self.last_test = NO_COLLECT if last_test is None else CollectStats.from_plain(last_test)
        if self.evaluation is not None and state["evaluation"] is not None:
            self.evaluation.load_state_dict(state["evaluation"])
        pending = state["pending"]
        if pending is not None and self._worker is not None:
            policy = self._worker.unpacked(self._worker.packed(self._required().collector.policy))
            policy.load_weights(pending["weights"])
            policy.n_updates, policy.last_step = pending["n_updates"], pending["last_step"]
            self._pending = Pending(pending["epoch"], pending["clock"], self._worker.packed(policy))

    def _elsewhere(self) -> EvaluationWorker:
        assert self._worker is not None, "only evaluations elsewhere are pending"
        return self._worker

    def _required(self) -> Evaluation:
        if self.evaluation is None:
            raise ConfigError("there is nothing to evaluate in: give the trainer a test_collector or an evaluation")
        return self.evaluation

    def _run(self, step: int, *, fresh: int | None = None) -> CollectStats:
        evaluation = self._required()
        evaluation.collector.interrupt_with(self._with_notes(evaluation.collector))
        with self._stopwatch.measure("evaluate"):
            self.last_test = evaluation.run(step, fresh=fresh)
        return self.last_test

    def _with_notes(self, collector: Collector) -> Callable[[], None]:
        """Return what is called before every vector step, which also says how far a long evaluation is."""
        n_episode, env_step, noted_at = collector.n_episode, collector.env_step, time.monotonic()

        def interrupt() -> None:
            nonlocal noted_at
            self._interrupt()
            if time.monotonic() - noted_at > _NOTE_EVERY_S:
                noted_at = time.monotonic()
                done = f"{collector.n_episode - n_episode:,} episodes, {collector.env_step - env_step:,} steps"
                self._note(f"evaluating: {done} so far")

        return interrupt

    @staticmethod
    @contextmanager
    def _without_episode_events(evaluation: Evaluation) -> Iterator[None]:
        events, evaluation.collector.events = evaluation.collector.events, None
        try:
            yield
        finally:
            evaluation.collector.events = events

    def _is_best(self, score: float | None, stats: CollectStats, epoch: int, clock: int) -> bool:
        """Record a score if it is the best so far; ties keep the first, and a missing score is never the best."""
        if score is None or math.isnan(score) or (self.best_score is not None and score <= self.best_score):
            return False
        self.best_score, self.best_epoch, self.best_env_step = score, epoch, clock
        self.best_return, self.best_std = stats.returns.mean, stats.returns.std
        return True
