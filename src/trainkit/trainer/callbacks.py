"""The one mechanism of hooks: a class of events that do nothing until they are overridden.

The order within an epoch, once each unless said otherwise:

    on_train_start          before the first epoch
    on_collect_start        before every collect            (train_fn)
    on_collect_end          after every collect
    on_update_end           after every update
    on_evaluate_start       before an evaluation            (test_fn)
    on_evaluate_end         after it                        (stop_fn)
    on_best                 when its score is the best so far (save_best_fn)
    on_epoch_end            before the epoch is yielded     (save_checkpoint_fn)
    on_checkpoint_saved     after a checkpoint was written
    on_train_end            after the last epoch

Several callbacks hear one event in the order they were given, the trainer's own `*_fn` first.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
        self.callbacks = seen
        self._hearers = {
            event: [c for c in seen if getattr(type(c), event) is not getattr(Callback, event)] for event in EVENTS
        }

    def hears(self, event: str) -> bool:
        """Whether anybody overrides an event."""
        return bool(self._hearers[event])

    def fire(self, event: str, *arguments: Any) -> None:
        """Tell everybody who overrides it; an exception goes through with the callback's name attached."""
        for callback in self._hearers[event]:
            try:
                getattr(callback, event)(*arguments)
            except StopIteration as error:
                raise RuntimeError(
                    f"{type(callback).__name__}.{event} raised StopIteration, which would end the loop"
                ) from error
            except BaseException as error:
                error.add_note(f"raised in {type(callback).__name__}.{event}")
                raise

    def state_dict(self) -> list[dict[str, Any]]:
        """Return every callback's state, in order."""
        return [callback.state_dict() for callback in self.callbacks]

    def load_state_dict(self, states: Sequence[dict[str, Any]]) -> None:
        """Give every callback its state back; callbacks beyond those saved begin anew."""
        for callback, state in zip(self.callbacks, states, strict=False):
            callback.load_state_dict(state)


class TrainFn(Callback):
    """Call `train_fn(epoch, env_step)` before every collect."""

    def __init__(self, fn: Callable[[int, int], None]) -> None:
        self._fn = fn

    def on_collect_start(self, trainer: "Trainer") -> None:
        self._fn(trainer.epoch, trainer.env_step)


class TestFn(Callback):
    """Call `test_fn(epoch, env_step)` before every evaluation."""

    def __init__(self, fn: Callable[[int, int], None]) -> None:
        self._fn = fn

    def on_evaluate_start(self, trainer: "Trainer") -> None:
        self._fn(trainer.epoch, trainer.env_step)


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
        if score is None or score != score:
            return False
        answer: Any = self._fn(score)
        try:
            return bool(answer)
        except ValueError as error:
            raise ConfigError(f"stop_fn must return a bool, got {answer!r}") from error

    def on_evaluate_end(self, trainer: "Trainer", stats: CollectStats) -> None:
        if self.holds(trainer.score(stats)) and self.holds(trainer.score(trainer.confirm())):
            trainer.stop("stop_fn")


class Checkpoint(Callback):
    """Write a checkpoint folder at the end of every `every`-th epoch and of the run.

    The folder always holds the newest whole one.
    """

    def __init__(self, folder: str | Path, *, every: int = 1) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ConfigError(f"Checkpoint.every must be a whole number >= 1, got {every!r}")
        self.folder = Path(folder)
        self._every = every

    def on_epoch_end(self, trainer: "Trainer", result: EpochResult) -> None:
        if trainer.epoch % self._every == 0 or trainer.is_finished:
            trainer.save(self.folder)
