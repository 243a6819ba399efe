"""How good a run's policy is: when to evaluate, the best score so far, second looks on fresh seeds."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trainkit.core.errors import ConfigError
from trainkit.core.stats import NO_COLLECT, CollectStats
from trainkit.trainer.callbacks.base import Hooks
from trainkit.trainer.evaluation import Evaluation
from trainkit.trainer.intervals import Stopwatch

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer

_KEPT = ("best_score", "best_epoch", "best_env_step", "best_std", "_n_confirmed", "_n_periods")


class Judge:
    """Evaluate a policy whenever it is due, once, whatever interrupts it, and know the best score.

    Args:
        evaluation: how; None where nobody asked for it.
        score_fn: from an evaluation to its score, None for none; default: its mean return.
        hooks: hear of it.
        watch: times it.
        between_steps: called before every vector step; may interrupt.
    """

    def __init__(
        self,
        evaluation: Evaluation | None,
        score_fn: Callable[[CollectStats], float | None] | None,
        hooks: Hooks,
        watch: Stopwatch,
        between_steps: Callable[[], None],
    ) -> None:
        self.evaluation = evaluation
        self._score_fn = score_fn
        self._hooks, self._watch, self._between_steps = hooks, watch, between_steps
        self.reset()

    def reset(self) -> None:
        """Forget all evaluations."""
        self.best_score: float | None = None
        self.best_epoch: int | None = None
        self.best_env_step: int | None = None
        self.best_std: float | None = None  # of its returns
        self.last_test = NO_COLLECT
        self._n_confirmed = 0  # evaluations on fresh seeds
        self._n_periods: int | None = None  # whole periods of the evaluation's clock, at the last; None before any
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Forget the evaluations of the epoch before."""
        self.epoch_test = NO_COLLECT  # the epoch's last
        self.epoch_score: float | None = None
        self.unreported = NO_COLLECT  # the evaluation that no report has included yet
        self.reopen()

    def reopen(self) -> None:
        """Let `evaluate` do something again."""
        if self.evaluation is not None:
            self.evaluation.forget()  # what another epoch, or a run before `reset`, left unfinished
        self._is_tested = self._is_told = False  # whether it was played, and whether everybody has heard of it

    def is_due(self, trainer: "Trainer") -> bool:
        """Whether to evaluate now, in the middle of an epoch."""
        evaluation = self.evaluation
        if evaluation is None:
            return False
        if self._n_periods is None and evaluation.at_start:
            return True
        return evaluation.unit != "epochs" and self._periods(trainer) > (self._n_periods or 0)

    def is_due_at_end(self, trainer: "Trainer", *, is_last: bool) -> bool:
        """Whether an epoch ends with an evaluation; the last one does."""
        evaluation = self.evaluation
        if evaluation is None:
            return False
        is_periodic = evaluation.unit == "epochs" and trainer.epoch % evaluation.every == 0
        return is_last or is_periodic or self.is_due(trainer)

    def evaluate(self, trainer: "Trainer") -> None:
        """Evaluate, or go on with an evaluation that was interrupted; nothing that is done is done again."""
        assert self.evaluation is not None, "only called when an evaluation is due"
        if self._is_told:
            return
        if not self._is_tested:
            if not self.evaluation.is_interrupted:
                self._hooks.fire("on_evaluate_start", trainer)
            self.epoch_test = self.unreported = self._test(trainer.clock)
            self.epoch_score = self.score(self.epoch_test)
            self._n_periods = self._periods(trainer)
            for name, number in self.evaluation.numbers.items():
                trainer.log(f"test/{name}", number, "last")
            self._is_tested = True
            if self._is_best(self.epoch_score, self.epoch_test, trainer):
                self._hooks.fire("on_best", trainer, self.epoch_test)
        self._is_told = True
        self._hooks.fire("on_evaluate_end", trainer, self.epoch_test)

    def look(self, step: int) -> CollectStats:
        """Evaluate outside of the run's own course: nobody hears of it, and no score is the best for it."""
        if self.evaluation is None:
            raise ConfigError("there is nothing to evaluate in: give the trainer a test_collector or an evaluation")
        self.evaluation.forget()  # one that was interrupted is played again when the run goes on
        self.evaluation.collector.between_steps = None
        with self._unwatched():
            self.last_test = self.evaluation.run(step)
        return self.last_test

    def _periods(self, trainer: "Trainer") -> int:
        """Count the whole periods of the evaluation's clock."""
        assert self.evaluation is not None, "only asked where there is one"
        position = {"epochs": trainer.epoch, "env_steps": trainer.clock, "updates": trainer.gradient_step}
        return position[self.evaluation.unit] // self.evaluation.every

    def confirm(self, step: int) -> CollectStats:
        """Evaluate on seeds never used before; nobody hears of its episodes."""
        with self._unwatched():
            stats = self._test(step, fresh=self._n_confirmed)
        self._n_confirmed += 1
        return stats

    def score(self, stats: CollectStats) -> float | None:
        """Return the score of what was collected; None for none."""
        if self._score_fn is None:
            return stats.returns.mean
        score: Any = self._score_fn(stats)
        try:
            return None if score is None else float(score)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"compute_score_fn must return a number or None, got {score!r}") from error

    def state_dict(self) -> dict[str, Any]:
        """Return what outlives a run: the best, the last, and what the next evaluation begins with."""
        kept = {name: getattr(self, name) for name in _KEPT}
        last_test = None if self.last_test.is_empty else self.last_test.to_plain()
        evaluation = None if self.evaluation is None else self.evaluation.state_dict()
        return kept | {"last_test": last_test, "evaluation": evaluation}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what was kept."""
        for name in _KEPT:
            setattr(self, name, state.get(name))  # an older checkpoint lacks `best_std`
        last_test = state["last_test"]
        self.last_test = NO_COLLECT if last_test is None else CollectStats.from_plain(last_test)
        if self.evaluation is not None and state["evaluation"] is not None:
            self.evaluation.load_state_dict(state["evaluation"])

    def _test(self, step: int, *, fresh: int | None = None) -> CollectStats:
        assert self.evaluation is not None, "options that need evaluations are refused without"
        self.evaluation.collector.between_steps = self._between_steps
        with self._watch.measure("evaluate"):
            self.last_test = self.evaluation.run(step, fresh=fresh)
        return self.last_test

    @contextmanager
    def _unwatched(self) -> Iterator[None]:
        """Let nobody hear of the episodes that are played meanwhile."""
        assert self.evaluation is not None, "only asked where there is one"
        collector = self.evaluation.collector
        watch, collector.watch = collector.watch, None
        try:
            yield
        finally:
            collector.watch = watch

    def _is_best(self, score: float | None, stats: CollectStats, trainer: "Trainer") -> bool:
        """Note a score above all before; ties keep the first, and no score is never the best."""
        if score is None or math.isnan(score) or (self.best_score is not None and score <= self.best_score):
            return False
        self.best_score, self.best_epoch, self.best_env_step = score, trainer.epoch, trainer.clock
        self.best_std = stats.returns.std
        return True
