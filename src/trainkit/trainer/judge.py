"""How good a run's policy is: an evaluation per epoch, the best score so far, second looks on fresh seeds."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trainkit.errors import ConfigError
from trainkit.stats import CollectStats
from trainkit.trainer.callbacks import Hooks
from trainkit.trainer.evaluation import Evaluation
from trainkit.trainer.intervals import Stopwatch

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer

_KEPT = ("best_score", "best_epoch", "best_env_step", "_n_confirmed")


class Judge:
    """Evaluate a policy once per epoch, whatever interrupts it, and know the best score.

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
        *,
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
        self.last_test: CollectStats | None = None
        self._n_confirmed = 0  # evaluations on fresh seeds
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Let `evaluate` do something again."""
        if self.evaluation is not None:
            self.evaluation.forget()  # what another epoch, or a run before `reset`, left unfinished
        self.epoch_test: CollectStats | None = None
        self.epoch_score: float | None = None
        self._is_told = False  # whether everybody has heard of it

    def is_due(self, epoch: int, *, is_last: bool) -> bool:
        """Whether an epoch ends with an evaluation; the last one does."""
        return self.evaluation is not None and (is_last or epoch % self.evaluation.every == 0)

    def evaluate(self, trainer: "Trainer") -> None:
        """Evaluate, or go on with an evaluation that was interrupted; nothing that is done is done again."""
        assert self.evaluation is not None, "only called when an evaluation is due"
        if self._is_told:
            return
        if self.epoch_test is None:
            if not self.evaluation.is_interrupted:
                self._hooks.fire("on_evaluate_start", trainer)
            self.epoch_test = self._test(trainer.clock)
            self.epoch_score = self.score(self.epoch_test)
            if self._is_best(self.epoch_score, trainer):
                self._hooks.fire("on_best", trainer, self.epoch_test)
        self._is_told = True
        self._hooks.fire("on_evaluate_end", trainer, self.epoch_test)

    def confirm(self, step: int) -> CollectStats:
        """Evaluate on seeds never used before."""
        stats = self._test(step, fresh=self._n_confirmed)
        self._n_confirmed += 1
        return stats

    def score(self, stats: CollectStats) -> float | None:
        """Return the score of what was collected; None for none."""
        if self._score_fn is None:
            return None if stats.returns is None else stats.returns.mean
        score: Any = self._score_fn(stats)
        try:
            return None if score is None else float(score)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"compute_score_fn must return a number or None, got {score!r}") from error

    def state_dict(self) -> dict[str, Any]:
        """Return what outlives a run: the best, and the root of the seeds."""
        kept = {name: getattr(self, name) for name in _KEPT}
        return kept | {"root": None if self.evaluation is None else self.evaluation.root}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what was kept."""
        for name in _KEPT:
            setattr(self, name, state[name])
        if self.evaluation is not None and state["root"] is not None:
            self.evaluation.seed(state["root"])

    def _test(self, step: int, *, fresh: int | None = None) -> CollectStats:
        assert self.evaluation is not None, "options that need evaluations are refused without"
        self.evaluation.collector.between_steps = self._between_steps
        with self._watch.measure("evaluate"):
            self.last_test = self.evaluation.run(step, fresh=fresh)
        return self.last_test

    def _is_best(self, score: float | None, trainer: "Trainer") -> bool:
        """Note a score above all before; ties keep the first, and no score is never the best."""
        if score is None or math.isnan(score) or (self.best_score is not None and score <= self.best_score):
            return False
        self.best_score, self.best_epoch, self.best_env_step = score, trainer.epoch, trainer.clock
        return True
