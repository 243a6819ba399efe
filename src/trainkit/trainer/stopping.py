"""Callbacks that end a run: at a score, a return, a step, or a time."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trainkit.errors import Checks, ConfigError
from trainkit.stats import CollectStats
from trainkit.trainer.callbacks import Callback

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer


class StopFn(Callback):
    """Stop when `stop_fn(score)` says so and says so again of an evaluation on fresh seeds.

    The second look costs one evaluation and undoes the luck of seeds that are the same every time.
    """

    def __init__(self, fn: Callable[[float], bool]) -> None:
        self._fn = fn

    def holds(self, score: float | None) -> bool:
        """Whether a score stops the run; no score never does."""
        if score is None or math.isnan(score):
            return False
        answer: object = self._fn(score)
        if not isinstance(answer, (bool, np.bool_)):
            raise ConfigError(f"stop_fn must return a bool, got {answer!r} for the score {score}")
        return bool(answer)

    def on_evaluate_end(self, trainer: "Trainer", stats: CollectStats) -> None:
        judge = trainer.judge
        if self.holds(judge.epoch_score) and self.holds(judge.score(judge.confirm(trainer.clock))):
            trainer.stop("stop_fn")


class StopAt(Callback):
    """Stop as soon as any of these is reached.

    Args:
        return_mean: of an evaluation, and again of one on fresh seeds.
        env_step: of the trainer's clock; offline, updates. The epoch that runs ends there.
        seconds: spent within `next()`; this makes a run irreproducible.
    """

    def __init__(
        self, *, return_mean: float | None = None, env_step: int | None = None, seconds: float | None = None
    ) -> None:
        checks = Checks("StopAt")
        limits = (return_mean, env_step, seconds)
        checks.require(any(limit is not None for limit in limits), " needs return_mean, env_step or seconds")
        if return_mean is not None:
            checks.number("return_mean", return_mean)
        if env_step is not None:
            checks.integer("env_step", env_step, low=1)
        if seconds is not None:
            checks.number("seconds", seconds, low=0, above_low=True)
        checks.done()
        self._return_mean, self._env_step, self._seconds = limits

    def check(self, trainer: "Trainer") -> None:
        """Refuse a return to wait for where nothing is evaluated."""
        if self._return_mean is not None and trainer.test_collector is None:
            raise ConfigError("StopAt.return_mean needs evaluations: give a test_collector or an evaluation")

    def on_train_start(self, trainer: "Trainer") -> None:
        self._look_at_the_clock(trainer)

    def on_collect_end(self, trainer: "Trainer", stats: CollectStats) -> None:
        self._look_at_the_clock(trainer)

    def on_update_end(self, trainer: "Trainer") -> None:
        self._look_at_the_clock(trainer)

    def on_evaluate_end(self, trainer: "Trainer", stats: CollectStats) -> None:
        if self._is_reached(stats) and self._is_reached(trainer.judge.confirm(trainer.clock)):
            trainer.stop("return_mean")

    def on_checkpoint_loaded(self, trainer: "Trainer", path: Path) -> None:
        self._look_at_the_clock(trainer)

    def _is_reached(self, stats: CollectStats) -> bool:
        return self._return_mean is not None and stats.returns is not None and stats.returns.mean >= self._return_mean

    def _look_at_the_clock(self, trainer: "Trainer") -> None:
        if self._env_step is not None and trainer.clock >= self._env_step:
            trainer.stop("max_env_step")
        if self._seconds is not None and trainer.seconds >= self._seconds:
            trainer.stop("max_seconds")
