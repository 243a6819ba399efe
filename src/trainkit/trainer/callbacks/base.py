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
    on_epoch_end            before the epoch's report is written
    on_epoch_reported       after it                        (save_checkpoint_fn)
    on_checkpoint_saved     after a checkpoint was written
    on_checkpoint_loaded    after one was read
    on_train_end            after the last epoch

An evaluation's episodes are told of in the same way, `episode.in_evaluation` tells them apart. An episode that a reset
cuts has no end. Several callbacks receive one event in the order they were given, the trainer's own `*_fn` first,
functions given as `on_...=` last. An exception goes through; the callbacks after the one that raised it receive the
event when the trainer continues. With `callback_errors="log"` it is logged instead.
"""

import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict, TypeVar

import numpy as np

from trainkit.collector import Collector, Episode, Watch
from trainkit.core import tree
from trainkit.core.data import EpochResult, Lookup, Rollout, TransitionBatch
from trainkit.core.errors import Checks, ConfigError, nearest
from trainkit.core.names import EVENTS_ELSEWHERE
from trainkit.core.signatures import checked
from trainkit.core.stats import CollectStats
from trainkit.envs import Envs

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer


_log = logging.getLogger(__name__)

Learnable = TransitionBatch | Rollout
L = TypeVar("L", TransitionBatch, Rollout)


@checked
class Callback:
    """Base class of callbacks: override the events you need. A method named like an event that is none is an error.

    Attributes:
        episodes: whose episodes it hears of.
        always_raises: whether its exceptions end the run even with `callback_errors="log"`.
    """

    episodes: ClassVar[Literal["all", "training", "evaluation"]] = "all"
    always_raises: ClassVar[bool] = False

    def check(self, trainer: "Trainer") -> None:
        """Refuse, with a ConfigError, a run this is of no use in; called when the trainer is constructed."""

    def hears(self, event: str) -> bool:
        """Whether it is to be told of an event, asked once: of those it overrides, unless it needs only some."""
        return getattr(type(self), event) is not getattr(Callback, event)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in vars(cls):
            if name.startswith(("on_", "_on_")) and name not in EVENTS:
                raise ConfigError(f"{cls.__name__}.{name} is no event of trainkit.Callback{nearest_event(name)}")
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
        """Hear what a collect did.

        Its rows are `trainer.buffer.get(trainer.train_collector.collected_slots)`, and `trainer.buffer.rewrite` changes
        their rewards and columns before anything is learnt from them (with `overlap` some updates come earlier).
        """

    def on_train_batch(self, trainer: "Trainer", batch: Learnable) -> Learnable | None:
        """See what is about to be learned from; what is returned is learned from instead.

        A batch may be returned with another number of rows B >= 1, the same in all its columns; a rollout keeps its
        shape. Priorities are written for the slots that are returned.
        """

    def on_update_end(self, trainer: "Trainer") -> None:
        """Hear that the policy was updated."""

    def on_evaluate_start(self, trainer: "Trainer") -> None:
        """Hear that an evaluation begins."""

    def on_best(self, trainer: "Trainer", stats: CollectStats) -> None:
        """Hear that an evaluation's score is the best so far."""

    def on_evaluate_end(self, trainer: "Trainer", stats: CollectStats) -> None:
        """Hear what an evaluation found."""

    def on_epoch_end(self, trainer: "Trainer", result: EpochResult) -> None:
        """Receive an epoch's result before its report is written: `trainer.log` still adds to it."""

    def on_epoch_reported(self, trainer: "Trainer", result: EpochResult) -> None:
        """Receive an epoch's final result, when loggers and history have it; a save here includes the epoch."""

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


def nearest_event(name: str) -> str:
    """Return `, did you mean 'on_x'?` for the event that a name is closest to, or stands for in other libraries."""
    name = name.removeprefix("_")
    own = name if name in EVENTS else EVENTS_ELSEWHERE.get(name)
    return nearest(name, EVENTS) if own is None else f", did you mean {own!r}?"


class EventOptions(TypedDict, total=False):
    """Functions that a trainer calls at events, by keyword: `on_epoch_end=lambda trainer, result: ...`."""

    on_train_start: Callable[["Trainer"], object]
    on_env_created: Callable[["Trainer", Envs, int], object]
    on_collect_start: Callable[["Trainer"], object]
    on_episode_created: Callable[["Trainer", Episode], object]
    on_episode_start: Callable[["Trainer", Episode], object]
    on_episode_step: Callable[["Trainer", Episode], object]
    on_episode_end: Callable[["Trainer", Episode], object]
    on_episode_failed: Callable[["Trainer", Episode, Exception], object]
    on_collect_end: Callable[["Trainer", CollectStats], object]
    on_train_batch: Callable[["Trainer", Any], Any]
    on_update_end: Callable[["Trainer"], object]
    on_evaluate_start: Callable[["Trainer"], object]
    on_best: Callable[["Trainer", CollectStats], object]
    on_evaluate_end: Callable[["Trainer", CollectStats], object]
    on_epoch_end: Callable[["Trainer", EpochResult], object]
    on_epoch_reported: Callable[["Trainer", EpochResult], object]
    on_checkpoint_saved: Callable[["Trainer", Path], object]
    on_checkpoint_loaded: Callable[["Trainer", Path], object]
    on_train_end: Callable[["Trainer"], object]


class EventFunctions(Callback):
    """Call functions given by event.

    Args:
        functions: {event: function}; each is called with what the method of `Callback` receives.
    """

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        for event, function in functions.items():
            if event not in EVENTS:
                raise ConfigError(f"{event} is no event of trainkit.Callback{nearest_event(event)}")
            if not callable(function):
                raise ConfigError(f"{event} must be a function, got {function!r}")
            setattr(self, event, function)
        self.functions = dict(functions)

    def hears(self, event: str) -> bool:
        """Return whether a function was given for an event."""
        return event in self.functions


def made_of(callbacks: object) -> list[Callback]:
    """Return callbacks given as one or a list of objects and classes; a class is instantiated without arguments."""
    given = [*callbacks] if isinstance(callbacks, Iterable) else [callbacks]
    made: list[Callback] = []
    for kind in given:
        one: object = kind
        if isinstance(kind, type) and issubclass(kind, Callback):
            try:
                one = kind()
            except (TypeError, ConfigError) as error:
                raise ConfigError(
                    f"callbacks: {kind.__name__} cannot be made without arguments ({error}): give an object of it"
                ) from error
        if not isinstance(one, Callback):
            raise ConfigError(
                f"callbacks must be subclasses of trainkit.Callback or objects of them, got {one!r}: "
                "give functions by event, on_epoch_end=function"
            )
        made.append(one)
    return made


_WATCHED = ["on_env_created", *(name for name in EVENTS if name.startswith("on_episode_"))]  # by collectors


class Hooks:
    """All callbacks of a run; an event nobody overrides costs an empty loop.

    Args:
        callbacks: in the order they receive an event.
        errors: "raise" lets exceptions through; "log" logs them, and the others and the run continue.
    """

    def __init__(self, callbacks: Sequence[Callback], errors: Literal["raise", "log"] = "raise") -> None:
        seen: list[Callback] = []
        for callback in callbacks:
            if not isinstance(callback, Callback):
                raise ConfigError(f"callbacks must be objects of trainkit.Callback's subclasses, got {callback!r}")
            if any(callback is other for other in seen):
                raise ConfigError(f"callback {type(callback).__name__} was given twice: give it once")
            seen.append(callback)
        self._callbacks = seen
        self._logs_errors = errors == "log"
        self._n_errors: dict[str, int] = {}  # that were logged, by callback and event
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
                if made is None:
                    continue
                name = _label(callback, "on_train_batch")
                if not isinstance(made, type(batch)):
                    raise ConfigError(f"{name} must return a {type(batch).__name__} or None, got {made!r}")
                _check_rows(name, batch, made)
            except BaseException as error:
                if self._is_logged(error, callback, "on_train_batch", trainer):
                    continue
                _name_the_place(error, callback, "on_train_batch", trainer)
                raise
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
                    if self._is_logged(error, callback, event, trainer):
                        continue
                    first = position if isinstance(error, KeyboardInterrupt) else position + 1
                    self._unheard.insert(0, (event, trainer, [told], hearers[first:]))
                    _name_the_place(error, callback, event, trainer)
                    raise

    def _is_logged(self, error: BaseException, callback: Callback, event: str, trainer: "Trainer") -> bool:
        """Log an exception where that is wanted: the 1st of a place with its traceback, then the 2nd, 4th, 8th ..."""
        if not self._logs_errors or callback.always_raises or not isinstance(error, Exception):
            return False
        place = _label(callback, event)
        count = self._n_errors[place] = self._n_errors.get(place, 0) + 1
        if count & (count - 1) == 0:
            times = "" if count == 1 else f", {count} times so far"
            _log.error(
                "%s raised %r in epoch %d, %s %d%s; the run continues",
                *(place, error, trainer.epoch, trainer.unit, trainer.clock, times),
                exc_info=error if count == 1 else None,
            )
        return True

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


def _check_rows(name: str, before: Learnable, after: Learnable) -> None:
    """Reject columns of another shape or type than those that were there; a batch may have another number of rows."""
    own, given = _columns(before), _columns(after)
    if own.keys() != given.keys():
        raise ConfigError(f"{name} must leave the columns {sorted(own)}, got {sorted(given)}")
    n_rows = {path: len(leaf) if leaf.ndim else 0 for path, leaf in given.items()}
    may_differ = isinstance(before, TransitionBatch)
    if may_differ and (len(set(n_rows.values())) > 1 or n_rows["reward"] == 0):
        raise ConfigError(f"{name} must return as many rows in every column, and at least one, got {n_rows}")
    for path, leaf in own.items():
        theirs = given[path]
        first = 1 if may_differ else 0
        if (theirs.shape[first:], theirs.dtype) != (leaf.shape[first:], leaf.dtype):
            raise ConfigError(
                f"{name} must leave {path} as {leaf.dtype.name}{list(leaf.shape)}, got "
                f"{theirs.dtype.name}{list(theirs.shape)}"
            )


def _columns(rows: Learnable) -> dict[str, Any]:
    """Return all columns but the extra ones, which callbacks may add and leave out, by the paths of their leaves."""
    named = {field.name: getattr(rows, field.name) for field in fields(rows) if field.name != "extras"}
    leaves = {f"{name} {path}".rstrip(): leaf for name, own in named.items() for path, leaf in tree.named_leaves(own)}
    return {path: leaf if isinstance(leaf, Lookup) else np.asarray(leaf) for path, leaf in leaves.items()}


def _label(callback: Callback, event: str) -> str:
    """Name a callback's method, or the function given for an event."""
    if isinstance(callback, EventFunctions):
        function = callback.functions[event]
        return f"{event}={getattr(function, '__qualname__', repr(function))}"
    return f"{type(callback).__name__}.{event}"


def _name_the_place(error: BaseException, callback: Callback, event: str, trainer: "Trainer") -> None:
    """Say in an error that leaves a callback which one it was, and when."""
    name = _label(callback, event)
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

    def on_epoch_reported(self, trainer: "Trainer", result: EpochResult) -> None:
        self._fn(trainer.epoch, trainer.env_step, trainer.gradient_step)
