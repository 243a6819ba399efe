"""The one mechanism of hooks: a class of events that do nothing until they are overridden.

The order within an epoch, once each unless said otherwise:

    on_train_start          before the first epoch
    on_env_created          then, for every environment, and when one was made anew
    on_collect_start        before every collect            (train_fn)
    on_episode_created      before an environment is reset
    on_episode_start        after it
    on_episode_step         after every step, the last one, too
    on_episode_end          when it was terminated or truncated
    on_episode_failed       when its environment failed instead
    on_collect_end          after every collect
    on_train_batch          before every update, or before learning from a rollout
    on_update_end           after every update
    on_evaluate_start       before an evaluation            (test_fn)
    on_best                 when its score is the best so far (save_best_fn)
    on_evaluate_end         after it                        (stop_fn)
    on_epoch_end            before the epoch is yielded     (save_checkpoint_fn)
    on_checkpoint_saved     after a checkpoint was written
    on_checkpoint_loaded    after one was read
    on_train_end            after the last epoch

An evaluation's episodes are told of in the same way, `episode.in_evaluation` tells them apart. An episode that a reset
cuts has no end. Several callbacks hear one event in the order they were given, the trainer's own `*_fn` first. An
exception goes through; the callbacks after the one that raised it hear the event when the trainer goes on.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np

from trainkit.collector import Collector, Envs, Episode, Watch
from trainkit.data import EpochResult, Lookup, Rollout, TransitionBatch
from trainkit.errors import Checks, ConfigError, nearest
from trainkit.stats import CollectStats

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer


Learnable = TransitionBatch | Rollout
L = TypeVar("L", TransitionBatch, Rollout)


class Callback:
    """Hear what happens in a run; override the events you need. A misspelt event is refused.

    Attributes:
        episodes: whose episodes it hears of.
    """

    episodes: ClassVar[Literal["all", "training", "evaluation"]] = "all"

    def check(self, trainer: "Trainer") -> None:
        """Refuse, with a ConfigError, a run this is of no use in; called when the trainer is constructed."""

    def hears(self, event: str) -> bool:
        """Whether it is to be told of an event, asked once: of those it overrides, unless it needs only some."""
        return getattr(type(self), event) is not getattr(Callback, event)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in vars(cls):
            if name.startswith("on_") and name not in EVENTS:
                raise ConfigError(f"{cls.__name__}.{name} is no event of trainkit.Callback{nearest(name, EVENTS)}")
        checks = Checks(cls.__name__)
        checks.one_of("episodes", cls.episodes, ["all", "training", "evaluation"])
        checks.done()

    def on_train_start(self, trainer: "Trainer") -> None:
        """Hear that the first epoch begins."""

    def on_env_created(self, trainer: "Trainer", envs: Envs, env_id: int) -> None:
        """Hear of an environment, of training or of evaluation; `envs.call(name, env_ids=[env_id])` reaches into it."""

    def on_collect_start(self, trainer: "Trainer") -> None:
        """Hear that a collect begins."""

    def on_episode_created(self, trainer: "Trainer", episode: Episode) -> None:
        """Hear that an environment is about to be reset; reset options set now reach it."""

    def on_episode_start(self, trainer: "Trainer", episode: Episode) -> None:
        """Hear that an episode stands at its first observation."""

    def on_episode_step(self, trainer: "Trainer", episode: Episode) -> None:
        """Hear of a step, when it is stored and counted."""

    def on_episode_end(self, trainer: "Trainer", episode: Episode) -> None:
        """Hear that an episode is over; `trainer.buffer.rewrite(episode.slots, reward=)` may change its rewards."""

    def on_episode_failed(self, trainer: "Trainer", episode: Episode, error: Exception) -> None:
        """Hear that an environment failed in the middle of an episode, and is made anew."""

    def on_collect_end(self, trainer: "Trainer", stats: CollectStats) -> None:
        """Hear what a collect did."""

    def on_train_batch(self, trainer: "Trainer", batch: Learnable) -> Learnable | None:
        """See what is about to be learnt from; what is returned is learnt from instead."""

    def on_update_end(self, trainer: "Trainer") -> None:
        """Hear that the policy was updated."""

    def on_evaluate_start(self, trainer: "Trainer") -> None:
        """Hear that an evaluation begins."""

    def on_best(self, trainer: "Trainer", stats: CollectStats) -> None:
        """Hear that an evaluation's score is the best so far."""

    def on_evaluate_end(self, trainer: "Trainer", stats: CollectStats) -> None:
        """Hear what an evaluation found."""

    def on_epoch_end(self, trainer: "Trainer", result: EpochResult) -> None:
        """Hear an epoch's result before it is yielded."""

    def on_checkpoint_saved(self, trainer: "Trainer", path: Path) -> None:
        """Hear that a checkpoint was written."""

    def on_checkpoint_loaded(self, trainer: "Trainer", path: Path) -> None:
        """Hear that a checkpoint was read: all parts are as they were when it was written."""

    def on_train_end(self, trainer: "Trainer") -> None:
        """Hear that the run is over."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint shall keep; also before anything was heard, so that loading goes back to it."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what a checkpoint kept."""


News = Iterable[tuple[Any, ...]]  # what an event's hearers are told besides the trainer, one thing after the other

EVENTS = [name for name in vars(Callback) if name.startswith("on_")]
_WATCHED = ["on_env_created", *(name for name in EVENTS if name.startswith("on_episode_"))]  # by collectors


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
        self._hearers = {event: [c for c in seen if c.hears(event)] for event in EVENTS}
        self._unheard: list[tuple[str, Trainer, News, list[Callback]]] = []  # what an exception kept from some

    def fire(self, event: str, trainer: "Trainer", *news: Any) -> None:
        """Tell everybody who overrides it; an exception goes through with the callback's name attached."""
        hearers = self._hearers[event]
        if hearers:
            self._tell(event, trainer, [news], hearers)

    def start(self, trainer: "Trainer", collectors: Sequence[Collector]) -> None:
        """Tell that a run starts, and of every environment it has."""
        self._unheard.append(("on_train_start", trainer, [()], self._hearers["on_train_start"]))
        for collector in collectors:
            for env_id in collector.envs.all_ids.tolist():
                news = [(collector.envs, env_id)]
                self._unheard.append(("on_env_created", trainer, news, self._hearers["on_env_created"]))
        self.finish()

    def refine(self, trainer: "Trainer", batch: L) -> L:
        """Let everybody see what is about to be learnt from, each what the one before made of it."""
        for callback in self._hearers["on_train_batch"]:
            try:
                made = callback.on_train_batch(trainer, batch)
            except BaseException as error:
                _name_the_place(error, callback, "on_train_batch", trainer)
                raise
            if made is None:
                continue
            if not isinstance(made, type(batch)):
                name = f"{type(callback).__name__}.on_train_batch"
                raise ConfigError(f"{name} must return a {type(batch).__name__} or None, got {made!r}")
            _refuse_other_rows(f"{type(callback).__name__}.on_train_batch", batch, made)
            batch = made
        return batch

    def check(self, trainer: "Trainer") -> None:
        """Have everybody look at the run, and refuse it with all that they say."""
        checks = Checks(type(trainer).__name__)
        for callback in self._callbacks:
            checks.gather(functools.partial(callback.check, trainer))
        checks.done()

    def watch(self, trainer: "Trainer", collector: Collector, *, in_evaluation: bool) -> None:
        """Have a collector tell of its episodes, if anybody wants to hear of them."""
        places = ("all", "evaluation" if in_evaluation else "training")
        own = {event: [c for c in self._hearers[event] if c.episodes in places] for event in _WATCHED}
        own["on_env_created"] = self._hearers["on_env_created"]
        heard = [event for event, hearers in own.items() if hearers]

        def tell(event: str, news: News) -> None:
            self._tell(event, trainer, news, own[event])

        collector.watch = Watch(collector.envs.n, tell, heard, in_evaluation=in_evaluation) if heard else None

    def finish(self) -> None:
        """Let the others hear what an exception kept from them; who was interrupted by Ctrl-C hears it again."""
        while self._unheard:
            self._tell(*self._unheard.pop(0))

    def forget(self) -> None:
        """Leave untold what an exception kept from some."""
        self._unheard.clear()

    def _tell(self, event: str, trainer: "Trainer", news: News, hearers: list[Callback]) -> None:
        """Tell everybody of one thing, then of the next."""
        methods = [getattr(callback, event) for callback in hearers]
        for told in news:
            for position, hear in enumerate(methods):
                try:
                    hear(trainer, *told)
                except BaseException as error:
                    callback = hearers[position]
                    first = position if isinstance(error, KeyboardInterrupt) else position + 1
                    self._unheard.insert(0, (event, trainer, [told], hearers[first:]))
                    _name_the_place(error, callback, event, trainer)
                    raise

    def state_dict(self) -> list[list[Any]]:
        """Return [class name, state] of every callback that overrides `state_dict`, in order."""
        return [
            [type(callback).__name__, callback.state_dict()]
            for callback in self._callbacks
            if type(callback).state_dict is not Callback.state_dict
        ]

    def load_state_dict(self, states: Sequence[Sequence[Any]]) -> None:
        """Give states back to callbacks of the same class, in order; callbacks without one stay as they are."""
        left = list(states)
        for callback in self._callbacks:
            named = next((named for named in left if named[0] == type(callback).__name__), None)
            if named is not None:
                left.remove(named)
                callback.load_state_dict(named[1])


def _refuse_other_rows(name: str, before: Learnable, after: Learnable) -> None:
    """Refuse rows of another number, shape or type than those that were there."""
    for field in fields(before):
        own, theirs = getattr(before, field.name), getattr(after, field.name)
        if theirs is own or not isinstance(own, (np.ndarray, Lookup)):
            continue
        array = np.asarray(theirs)
        if (array.shape, array.dtype) != (own.shape, own.dtype):
            raise ConfigError(
                f"{name} must leave {field.name} as {own.dtype.name}{list(own.shape)}, got "
                f"{array.dtype.name}{list(array.shape)}"
            )


def _name_the_place(error: BaseException, callback: Callback, event: str, trainer: "Trainer") -> None:
    """Say in an error that leaves a callback which one it was, and when."""
    name = f"{type(callback).__name__}.{event}"
    if isinstance(error, StopIteration):
        raise RuntimeError(f"{name} raised StopIteration, which would end the loop") from error
    error.add_note(f"raised in {name}, epoch {trainer.epoch}, {trainer.unit} {trainer.clock}")


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
