"""The one mechanism of hooks: a class of events that do nothing until they are overridden.

The order within an epoch, once each unless said otherwise:

    on_train_start          before the first epoch
    on_collect_start        before every collect            (train_fn)
    on_collect_end          after every collect
    on_update_end           after every update
    on_evaluate_start       before an evaluation            (test_fn)
    on_best                 when its score is the best so far (save_best_fn)
    on_evaluate_end         after it                        (stop_fn)
    on_epoch_end            before the epoch is yielded     (save_checkpoint_fn)
    on_checkpoint_saved     after a checkpoint was written
    on_train_end            after the last epoch

Several callbacks hear one event in the order they were given, the trainer's own `*_fn` first. An exception goes
through; the callbacks after the one that raised it hear the event when the trainer goes on.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainkit.data import EpochResult
from trainkit.errors import ConfigError, nearest
from trainkit.stats import CollectStats

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer


class Callback:
    """Hear what happens in a run; override the events you need. A misspelt event is refused."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in vars(cls):
            if name.startswith("on_") and name not in EVENTS:
                raise ConfigError(f"{cls.__name__}.{name} is no event of trainkit.Callback{nearest(name, EVENTS)}")

    def on_train_start(self, trainer: "Trainer") -> None:
        """Hear that the first epoch begins."""

    def on_collect_start(self, trainer: "Trainer") -> None:
        """Hear that a collect begins."""

    def on_collect_end(self, trainer: "Trainer", stats: CollectStats) -> None:
        """Hear what a collect did."""

    def on_update_end(self, trainer: "Trainer") -> None:
        """Hear that the policy was updated."""

    def on_evaluate_start(self, trainer: "Trainer") -> None:
        """Hear that an evaluation begins."""

    def on_evaluate_end(self, trainer: "Trainer", stats: CollectStats) -> None:
        """Hear what an evaluation found."""

    def on_best(self, trainer: "Trainer", stats: CollectStats) -> None:
        """Hear that an evaluation's score is the best so far."""

    def on_epoch_end(self, trainer: "Trainer", result: EpochResult) -> None:
        """Hear an epoch's result before it is yielded."""

    def on_checkpoint_saved(self, trainer: "Trainer", path: Path) -> None:
        """Hear that a checkpoint was written."""

    def on_train_end(self, trainer: "Trainer") -> None:
        """Hear that the run is over."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint shall keep."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what a checkpoint kept."""


EVENTS = [name for name in vars(Callback) if name.startswith("on_")]


class Hooks:
    """All callbacks of a run; an event nobody overrides costs an empty loop."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        seen: list[Callback] = []
        for callback in callbacks:
            if not isinstance(callback, Callback):
                raise ConfigError(f"callbacks must be objects of trainkit.Callback's subclasses, got {callback!r}")
            if any(callback is other for other in seen):
                raise ConfigError(f"callback {type(callback).__name__} was given twice: give it once")
            seen.append(callback)
        self._callbacks = seen
        self._hearers = {
            event: [c for c in seen if getattr(type(c), event) is not getattr(Callback, event)] for event in EVENTS
        }
        self._unheard: list[tuple[str, tuple[Any, ...], list[Callback]]] = []  # what an exception kept from some

    def fire(self, event: str, trainer: "Trainer", *news: Any) -> None:
        """Tell everybody who overrides it; an exception goes through with the callback's name attached."""
        self._tell(event, (trainer, *news), self._hearers[event])

    def finish(self) -> None:
        """Let the others hear what an exception kept from them; who was interrupted by Ctrl-C hears it again."""
        while self._unheard:
            self._tell(*self._unheard.pop(0))

    def forget(self) -> None:
        """Leave untold what an exception kept from some."""
        self._unheard.clear()

    def _tell(self, event: str, arguments: tuple[Any, ...], hearers: list[Callback]) -> None:
        for position, callback in enumerate(hearers):
            try:
                getattr(callback, event)(*arguments)
            except BaseException as error:
                first = position if isinstance(error, KeyboardInterrupt) else position + 1
                self._unheard.append((event, arguments, hearers[first:]))
                name = f"{type(callback).__name__}.{event}"
                if isinstance(error, StopIteration):
                    raise RuntimeError(f"{name} raised StopIteration, which would end the loop") from error
                error.add_note(
                    f"raised in {name}, epoch {arguments[0].epoch}, {arguments[0].unit} {arguments[0].clock}"
                )
                raise

    def state_dict(self) -> list[list[Any]]:
        """Return [class name, state] of every callback that has one, in order."""
        states = [[type(callback).__name__, callback.state_dict()] for callback in self._callbacks]
        return [named for named in states if named[1]]

    def load_state_dict(self, states: Sequence[Sequence[Any]]) -> None:
        """Give states back to callbacks of the same class, in order; callbacks without one begin anew."""
        left = list(states)
        for callback in self._callbacks:
            named = next((named for named in left if named[0] == type(callback).__name__), None)
            if named is not None:
                left.remove(named)
                callback.load_state_dict(named[1])


class TrainFn(Callback):
    """Call `train_fn(epoch, env_step)` before every collect."""

    def __init__(self, fn: Callable[[int, int], None]) -> None:
        self._fn = fn

    def on_collect_start(self, trainer: "Trainer") -> None:
        self._fn(trainer.epoch, trainer.env_step)


class TestFn(Callback):
    """Call `test_fn(epoch, env_step)` before every evaluation; offline it is told the updates."""

    def __init__(self, fn: Callable[[int, int], None]) -> None:
        self._fn = fn

    def on_evaluate_start(self, trainer: "Trainer") -> None:
        self._fn(trainer.epoch, trainer.clock)


class SaveBestFn(Callback):
    """Call `save_best_fn(policy)` when an evaluation is the best so far."""

    def __init__(self, fn: Callable[[Any], None]) -> None:
        self._fn = fn

    def on_best(self, trainer: "Trainer", stats: CollectStats) -> None:
        self._fn(trainer.policy)


class SaveCheckpointFn(Callback):
    """Call `save_checkpoint_fn(epoch, env_step, gradient_step)` at the end of every epoch."""

    def __init__(self, fn: Callable[[int, int, int], Any]) -> None:
        self._fn = fn

    def on_epoch_end(self, trainer: "Trainer", result: EpochResult) -> None:
        self._fn(trainer.epoch, trainer.env_step, trainer.gradient_step)


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
