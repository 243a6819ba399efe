"""Callbacks that end a run: at a score, a return, a step, or a time."""

import math
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from trainkit.core.errors import Checks, ConfigError
from trainkit.core.signatures import checked
from trainkit.core.stats import CollectStats
from trainkit.trainer.callbacks.base import Callback

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer


def is_solved(stop_fn: Callable[[float], bool] | None, score: float | None) -> bool:
    """Return whether `stop_fn` stops the run at a score; a missing score never does."""
    if stop_fn is None or score is None or math.isnan(score):
        return False
    answer: object = stop_fn(score)
    if not isinstance(answer, (bool, np.bool_)):
        raise ConfigError(f"stop_fn must return a bool, got {answer!r} for the score {score}")
    return bool(answer)


class StopFn(Callback):
    """A stop when `stop_fn(score)` returns True for an evaluation, and again for one on fresh seeds.

    The second evaluation rules out that the usual seeds, the same every time, are easy ones.
    """

    def __init__(self, fn: Callable[[float], bool]) -> None:
        self._fn = fn

    def on_evaluate_end(self, trainer: "Trainer", stats: CollectStats) -> None:
        schedule = trainer.evaluation_schedule
        if is_solved(self._fn, schedule.epoch_score) and is_solved(
            self._fn, schedule.score(schedule.confirm(trainer.clock))
        ):
            trainer.stop("stop_fn")


@checked
class StopAt(Callback):
    """A stop where any of these limits is reached; what was collected is still learned from.

    Args:
        return_mean: of an evaluation, and again of one on fresh seeds.
        train_return_mean: of the last `train_episodes` training episodes, which explore, at the end of any of them;
            needs no evaluation. It is looked at after each collect, such as a rollout.
        train_episodes: that this mean is over; before as many have finished it stops nothing.
        env_step: of the trainer's clock; offline, updates. The current epoch ends there.
        seconds: spent within `next()`; this makes a run irreproducible.
    """

    def __init__(
        self,
        *,
        return_mean: float | None = None,
        train_return_mean: float | None = None,
        train_episodes: int = 100,
        env_step: int | None = None,
        seconds: float | None = None,
    ) -> None:
        with Checks("StopAt") as checks:
            limits = (return_mean, train_return_mean, env_step, seconds)
            is_any = any(limit is not None for limit in limits)
            checks.require(is_any, " needs return_mean, train_return_mean, env_step or seconds")
            checks.number("train_return_mean", train_return_mean, optional=True)
            checks.integer("train_episodes", train_episodes, low=1)
            checks.number("return_mean", return_mean, optional=True)
            checks.integer("env_step", env_step, low=1, optional=True)
            checks.number("seconds", seconds, low=0, above_low=True, optional=True)
        self._return_mean, self._train_return_mean, self._env_step, self._seconds = limits
        self._n_episodes = train_episodes
        self._returns: deque[float] = deque(maxlen=train_episodes)  # of training, the last

    def check(self, trainer: "Trainer") -> None:
        """Raise a `ConfigError` for a limit on a return that the run never measures."""
        if self._return_mean is not None and trainer.test_collector is None:
            raise ConfigError("StopAt.return_mean needs evaluations: give a test_collector or an evaluation")
        if self._train_return_mean is not None and trainer.train_collector is None:
            raise ConfigError("StopAt.train_return_mean needs training episodes: an offline run has none")

    def on_train_start(self, trainer: "Trainer") -> None:
        self._check_clock(trainer)

    def on_collect_end(self, trainer: "Trainer", stats: CollectStats) -> None:
        self._check_clock(trainer)
        if self._train_return_mean is not None and stats.episode_returns:
            for one in stats.episode_returns:
                self._returns.append(one)
                if len(self._returns) == self._n_episodes and fmean(self._returns) >= self._train_return_mean:
                    trainer.stop("train_return_mean")

    def on_update_end(self, trainer: "Trainer") -> None:
        self._check_clock(trainer)

    def on_evaluate_end(self, trainer: "Trainer", stats: CollectStats) -> None:
        if self._is_reached(stats) and self._is_reached(trainer.evaluation_schedule.confirm(trainer.clock)):
            trainer.stop("return_mean")

    def on_checkpoint_loaded(self, trainer: "Trainer", path: Path) -> None:
        self._check_clock(trainer)

    def state_dict(self) -> dict[str, Any]:
        return {"returns": list(self._returns)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._returns = deque(state["returns"], maxlen=self._n_episodes)

    def _is_reached(self, stats: CollectStats) -> bool:
        mean = stats.returns.mean
        return self._return_mean is not None and mean is not None and mean >= self._return_mean

    def _check_clock(self, trainer: "Trainer") -> None:
        if self._env_step is not None and trainer.clock >= self._env_step:
            trainer.stop("max_env_step")
        if self._seconds is not None and trainer.seconds >= self._seconds:
            trainer.stop("max_seconds")


class Limits(StopAt):
    """The limits given to a trainer itself; a class of its own, since checkpoints store callbacks by class."""
