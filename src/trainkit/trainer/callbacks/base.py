"""The base class of callbacks, with one method per event, and how events reach the callbacks of a run.

The order within an epoch, once each unless said otherwise:

    on_train_start          before the first epoch
    on_env_created          then, for every environment, and when one was replaced, or all by `rebuild_envs`
    on_policy_added         before the next collect, for every policy of a `MultiAgentPolicy`, and when one was added
    on_collect_start        before every collect            (train_fn)
    on_episode_created      before an environment is reset
    on_episode_start        after it
    on_episode_step         after every step, including the last one
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

Episodes of an evaluation fire the same events; `episode.in_evaluation` distinguishes them. An episode that a reset
cuts has no end. Several callbacks receive one event in the order they were given, the trainer's own `*_fn` first, its
checkpoints last; `on(epoch_end=f)` makes a callback from functions. An exception goes through; the callbacks after the
one that raised it receive the event when the trainer continues. Two events are fired again, for all callbacks:
`on_train_batch` instead, and `on_collect_start` in addition. With `callback_errors="log"` the exception is logged
instead.
"""

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict, TypeVar, Unpack

import numpy as np

from trainkit.collector import Episode
from trainkit.core import tree, user_code
from trainkit.core.data import Batch, EpochResult, Rollout, TransitionBatch
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.names import OTHER_LIBRARIES, did_you_mean
from trainkit.core.protocols import StepCollector
from trainkit.core.signatures import checked
from trainkit.core.stats import CollectStats
from trainkit.envs import Envs
from trainkit.policy.advantages import TensorRollout

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer

_log = logging.getLogger(__name__)

TrainBatch = Batch | Rollout | TensorRollout
BatchT = TypeVar("BatchT", Batch, Rollout | TensorRollout)
OnTrainer = Callable[["Trainer"], object]
OnEpisode = Callable[["Trainer", Episode], object]
OnStats = Callable[["Trainer", CollectStats], object]
OnEpoch = Callable[["Trainer", EpochResult], object]
OnCheckpoint = Callable[["Trainer", Path], object]
Occurrences = Iterable[tuple[Any, ...]]  # arguments of an event in addition to the trainer, one tuple per occurrence


@checked
class Callback:
    """Base class of callbacks: override the events you need. A method named like an unknown event is an error.

    Attributes:
        episodes: whose episodes it receives events of.
        always_raises: whether its exceptions end the run even with `callback_errors="log"`.
    """

    episodes: Literal["all", "training", "evaluation"] = "all"
    always_raises: ClassVar[bool] = False

    def check(self, trainer: "Trainer") -> None:
        """Raise a `ConfigError` if the callback cannot work in this run; called when the trainer is constructed."""

    def receives(self, event: str) -> bool:
        """Return whether it receives an event, called once per event: by default those it overrides."""
        return getattr(type(self), event) is not getattr(Callback, event)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in vars(cls):
            if name.startswith(("on_", "_on_")) and name not in EVENTS:
                raise ConfigError(f"{cls.__name__}.{name} is no event of trainkit.Callback{nearest_event(name)}")
        with Checks(cls.__name__) as checks:
            checks.one_of("episodes", cls.episodes, ["all", "training", "evaluation"])

    def on_train_start(self, trainer: "Trainer") -> None:
        """Receive the start of training, before the first epoch."""

    def on_env_created(self, trainer: "Trainer", envs: Envs, env_id: int) -> None:
        """Receive a new environment, of training or evaluation; `envs.call(name, env_ids=[env_id])` accesses it."""

    def on_policy_added(self, trainer: "Trainer", name: str) -> None:
        """Receive the name of a policy of a `MultiAgentPolicy` before the first collect in which it may play."""

    def on_collect_start(self, trainer: "Trainer") -> None:
        """Receive the start of a collect."""

    def on_episode_created(self, trainer: "Trainer", episode: Episode) -> None:
        """Receive an episode before its environment is reset; reset options set here apply to it."""

    def on_episode_start(self, trainer: "Trainer", episode: Episode) -> None:
        """Receive an episode at its first observation."""

    def on_episode_step(self, trainer: "Trainer", episode: Episode) -> None:
        """Receive an episode after a step, when the step is stored and counted."""

    def on_episode_end(self, trainer: "Trainer", episode: Episode) -> None:
        """Receive an episode that is over; `trainer.buffer.rewrite(episode.slots, reward=)` may change its rewards."""

    def on_episode_failed(self, trainer: "Trainer", episode: Episode, error: Exception) -> None:
        """Receive an episode whose environment failed, in a step or in its reset, and is replaced."""

    def on_collect_end(self, trainer: "Trainer", stats: CollectStats) -> None:
        """Receive the statistics of a collect.

        Its rows are `trainer.buffer.get(trainer.train_collector.collected_slots)`, and `trainer.buffer.rewrite` changes
        their rewards and columns before they are learned from (with `overlap` some updates come earlier).
        """

    def on_train_batch(self, trainer: "Trainer", batch: TrainBatch) -> TrainBatch | None:
        """Receive the batch of the next update; a returned batch replaces it.

        A batch may be returned with another number of rows B >= 1, the same in all its columns; a rollout keeps its
        shape. Priorities are written for the slots that are returned.
        """

    def on_update_end(self, trainer: "Trainer") -> None:
        """Receive the end of an update of the policy."""

    def on_evaluate_start(self, trainer: "Trainer") -> None:
        """Receive the start of an evaluation."""

    def on_best(self, trainer: "Trainer", stats: CollectStats) -> None:
        """Receive an evaluation whose score is the best so far."""

    def on_evaluate_end(self, trainer: "Trainer", stats: CollectStats) -> None:
        """Receive the statistics of an evaluation."""

    def on_epoch_end(self, trainer: "Trainer", result: EpochResult) -> None:
        """Receive an epoch's result before its report is written: `trainer.log` still adds to it."""

    def on_epoch_reported(self, trainer: "Trainer", result: EpochResult) -> None:
        """Receive an epoch's final result, when loggers and history have it; a save here includes the epoch."""

    def on_checkpoint_saved(self, trainer: "Trainer", path: Path) -> None:
        """Receive the path of a checkpoint that was written."""

    def on_checkpoint_loaded(self, trainer: "Trainer", path: Path) -> None:
        """Receive the path of a checkpoint after it was loaded into all parts."""

    def on_train_end(self, trainer: "Trainer") -> None:
        """Receive the end of the run."""

    def warnings(self, trainer: "Trainer") -> Mapping[str, str]:
        """Return what is wrong with the run, {name: finding and remedy}, at the end of every epoch; by default nothing.

        `trainer.history` has the epoch's numbers already. The epoch's line, `stats.warnings` and the loggers show it.
        """
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint; called before any event too, so that loading can restore that moment."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""


EVENTS = [name for name in vars(Callback) if name.startswith("on_")]


def nearest_event(name: str) -> str:
    """Return the hint for an unknown event, the end of a message."""
    return f"{did_you_mean(name, EVENTS) or ':'} {OTHER_LIBRARIES}"


def n_periods(trainer: "Trainer", unit: str, every: int) -> int:
    """Return the number of completed periods so far, each of this many "epochs", "env_steps" or "updates"."""
    position = {"epochs": trainer.epoch, "env_steps": trainer.clock, "updates": trainer.gradient_step}
    return position[unit] // every


class EventFunctions(Callback):
    """Calls of functions given by event.

    Args:
        functions: {event: function}; each is called with the arguments of the method of `Callback`.
    """

    def __init__(self, functions: Mapping[str, Callable[..., object]]) -> None:
        for event, function in functions.items():
            if not callable(function):
                raise ConfigError(f"{event} must be a function, got {function!r}")
            setattr(self, event, function)
        self.functions = dict(functions)

    def receives(self, event: str) -> bool:
        """Return whether a function was given for an event."""
        return event in self.functions

    def check(self, trainer: "Trainer") -> None:
        """Raise a `ConfigError` for events of collecting in a run that collects nothing."""
        with Checks(type(trainer).__name__) as checks:
            for event in self.functions:
                never = trainer.train_collector is None and event in _COLLECTING_EVENTS
                checks.require(not never, f": {event} is about collecting, and nothing is collected: leave it out")

    def __repr__(self) -> str:
        named = (f"{event.removeprefix('on_')}={_name_of(fn)}" for event, fn in self.functions.items())
        return f"on({', '.join(named)})"


class Functions(TypedDict, total=False):
    """The functions of `on`: the events of `Callback`, without "on_"."""

    train_start: OnTrainer
    env_created: Callable[["Trainer", Envs, int], object]
    policy_added: Callable[["Trainer", str], object]
    collect_start: OnTrainer
    episode_created: OnEpisode
    episode_start: OnEpisode
    episode_step: OnEpisode
    episode_end: OnEpisode
    episode_failed: Callable[["Trainer", Episode, Exception], object]
    collect_end: OnStats
    train_batch: Callable[["Trainer", Any], Any]
    update_end: OnTrainer
    evaluate_start: OnTrainer
    best: OnStats
    evaluate_end: OnStats
    epoch_end: OnEpoch
    epoch_reported: OnEpoch
    checkpoint_saved: OnCheckpoint
    checkpoint_loaded: OnCheckpoint
    train_end: OnTrainer


@checked
def on(**functions: Unpack[Functions]) -> EventFunctions:
    """Make a callback from functions: `callbacks=[tk.on(epoch_end=lambda trainer, result: print(result.epoch))]`.

    Args:
        functions: by event; each is called with the arguments of the method of `Callback`.
    """
    return EventFunctions({f"on_{event}": fn for event, fn in functions.items()})  # type: ignore[misc]


_COLLECTING_EVENTS = ("on_policy_added", "on_collect_start", "on_collect_end")
_COLLECTOR_EVENTS = ["on_env_created", *(name for name in EVENTS if name.startswith("on_episode_"))]


def _check_arity(callback: Callback, event: str) -> None:
    """Raise `ConfigError` if a callback's method cannot take the arguments of its event."""
    _, *names = inspect.signature(getattr(Callback, event)).parameters
    try:
        signature = inspect.signature(getattr(callback, event))
    except (TypeError, ValueError):  # some of C's functions have none
        return
    try:
        signature.bind(*names)
    except TypeError as error:
        raise ConfigError(
            f"{_label(callback, event)} is called with ({', '.join(names)}) and has the arguments {signature} "
            f"({error}): give it these"
        ) from None


class Dispatcher:
    """The callbacks of a run, by event.

    Args:
        callbacks: in the order they receive an event.
        errors: "raise" lets exceptions through; "log" logs them, and the others and the run continue.
    """

    def __init__(self, callbacks: Sequence[Callback], errors: Literal["raise", "log"] = "raise") -> None:
        self.callbacks: list[Callback] = []
        for callback in callbacks:
            if any(callback is other for other in self.callbacks):
                raise ConfigError(f"callback {type(callback).__name__} was given twice: give it once")
            self.callbacks.append(callback)
        self._logs_errors = errors == "log"
        self._n_errors: dict[str, int] = {}  # that were logged, by callback and event
        self.receivers = {event: [c for c in self.callbacks if c.receives(event)] for event in EVENTS}
        for event, receivers in self.receivers.items():
            for callback in receivers:
                _check_arity(callback, event)
        self._undelivered: list[tuple[str, Trainer, Occurrences, list[Callback]]] = []  # because of an exception
        self._known_policies: set[int] = set()  # numbers of those that `on_policy_added` was fired for

    def check(self, trainer: "Trainer") -> None:
        """Raise one `ConfigError` with all that the callbacks' checks find wrong with a run."""
        with Checks(type(trainer).__name__) as checks:
            for callback in self.callbacks:
                with checks.gather():
                    callback.check(trainer)

    def check_elsewhere(self, evaluation: str) -> None:
        """Raise a `ConfigError` for callbacks of the episodes of an evaluation that plays elsewhere."""
        for event in _COLLECTOR_EVENTS:
            for callback in self.receivers[event]:
                if callback.episodes == "evaluation":
                    raise ConfigError(
                        f"{_label(callback, event)} receives the episodes of evaluations, which a "
                        f"{evaluation} plays in another process: give an Evaluation"
                    )

    def subscribe(self, trainer: "Trainer", collector: StepCollector, *, in_evaluation: bool) -> None:
        """Subscribe to the episodes of a collector, if any callback receives their events.

        Raises:
            ConfigError: it has no such events.
        """
        wanted = ("all", "evaluation" if in_evaluation else "training")
        receivers = {event: [c for c in self.receivers[event] if c.episodes in wanted] for event in _COLLECTOR_EVENTS}
        receivers["on_env_created"] = self.receivers["on_env_created"]
        received = [event for event, callbacks in receivers.items() if callbacks]

        def deliver(event: str, occurrences: Occurrences) -> None:
            self._deliver(event, trainer, occurrences, receivers[event])

        try:
            collector.subscribe(deliver, received, in_evaluation=in_evaluation)
        except ConfigError as error:
            labels = ", ".join(_label(receivers[event][0], event) for event in received)
            raise ConfigError(f"{labels}: {error}") from error

    def fire_added(self, trainer: "Trainer", policies: Mapping[str, int]) -> None:
        """Fire `on_policy_added` for the policies {name: number} that were not there at the last call."""
        for name, number in policies.items():
            if number not in self._known_policies:
                self._known_policies.add(number)
                self.fire("on_policy_added", trainer, name)

    def start(self, trainer: "Trainer", collectors: Sequence[StepCollector]) -> None:
        """Fire the start of training, and then every environment there is."""
        self._undelivered.append(("on_train_start", trainer, [()], self.receivers["on_train_start"]))
        for collector in collectors:
            for env_id in collector.single_env_ids:
                occurrences = [(collector.envs, env_id)]
                self._undelivered.append(("on_env_created", trainer, occurrences, self.receivers["on_env_created"]))
        self.deliver_rest()

    def fire(self, event: str, trainer: "Trainer", *arguments: Any) -> None:
        """Call every callback that receives the event; an exception is raised with the callback's name attached."""
        receivers = self.receivers[event]
        if receivers:
            self._deliver(event, trainer, [arguments], receivers)

    def transform(self, trainer: "Trainer", batch: BatchT) -> BatchT:
        """Fire `on_train_batch` and return the batch to learn from; each callback receives the previous one's batch."""
        for callback in self.receivers["on_train_batch"]:
            try:
                with user_code.running():
                    returned = callback.on_train_batch(trainer, batch)
                if returned is None:
                    continue
                name = _label(callback, "on_train_batch")
                if not isinstance(returned, type(batch)):
                    stop = ': trainer.stop("reason") ends a run' if isinstance(returned, bool) else ""
                    raise ConfigError(f"{name} must return a {type(batch).__name__} or None, got {returned!r}{stop}")
                _check_rows(name, batch, returned)
            except BaseException as error:
                if self._is_logged(error, callback, "on_train_batch", trainer):
                    continue
                _add_origin(error, callback, "on_train_batch", trainer)
                raise
            batch = returned
        return batch

    def warnings(self, trainer: "Trainer") -> dict[str, str]:
        """Return what the callbacks find wrong with the run, by name."""
        found: dict[str, str] = {}
        for callback in self.callbacks:
            with user_code.running():
                found |= callback.warnings(trainer)
        return found

    def deliver_rest(self) -> None:
        """Deliver the events that an exception kept from callbacks; one interrupted by Ctrl-C receives it again."""
        while self._undelivered:
            self._deliver(*self._undelivered.pop(0))

    def discard_rest(self) -> None:
        """Discard the events that an exception kept from callbacks."""
        self._undelivered.clear()

    def state_dict(self) -> list[list[Any]]:
        """Return [class name, state] of every callback that overrides `state_dict`, in order."""
        return [
            [type(callback).__name__, callback.state_dict()]
            for callback in self.callbacks
            if type(callback).state_dict is not Callback.state_dict
        ]

    def load_state_dict(self, states: Sequence[Sequence[Any]]) -> None:
        """Restore the states of callbacks of the same class, in order; callbacks without one are unchanged."""
        left = list(states)
        for callback in self.callbacks:
            named = next((named for named in left if named[0] == type(callback).__name__), None)
            if named is not None:
                left.remove(named)
                callback.load_state_dict(named[1])

    def _deliver(self, event: str, trainer: "Trainer", occurrences: Occurrences, receivers: Sequence[Callback]) -> None:
        """Deliver one occurrence to all receivers, then the next."""
        methods = [getattr(callback, event) for callback in receivers]
        for arguments in occurrences:
            for position, method in enumerate(methods):
                try:
                    with user_code.running():
                        returned = method(trainer, *arguments)
                    if returned is not None:
                        _check_returned(_label(receivers[position], event), returned)
                except BaseException as error:
                    callback = receivers[position]
                    if self._is_logged(error, callback, event, trainer):
                        continue
                    first = position if isinstance(error, KeyboardInterrupt) else position + 1
                    self._undelivered.insert(0, (event, trainer, [arguments], [*receivers[first:]]))
                    _add_origin(error, callback, event, trainer)
                    raise

    def _is_logged(self, error: BaseException, callback: Callback, event: str, trainer: "Trainer") -> bool:
        """Log an exception if errors are logged: the 1st of a method with its traceback, then the 2nd, 4th, 8th ..."""
        if not self._logs_errors or callback.always_raises or not isinstance(error, Exception):
            return False
        name = _label(callback, event)
        count = self._n_errors[name] = self._n_errors.get(name, 0) + 1
        if count & (count - 1) == 0:
            times = "" if count == 1 else f", {count} times so far"
            _log.error(
                "%s raised %r in epoch %d, %s %d%s; the run continues",
                *(name, error, trainer.epoch, trainer.unit, trainer.clock, times),
                exc_info=error if count == 1 else None,
            )
        return True


def _check_returned(name: str, returned: object) -> None:
    """Raise for results that mean something elsewhere, and nothing here; others, as a lambda's, are ignored."""
    if isinstance(returned, (bool, np.bool_)):
        raise ConfigError(
            f'{name} returned {returned}, which ends no run and continues none: return nothing; trainer.stop("reason") '
            "ends the run"
        )
    if inspect.isgenerator(returned) or inspect.iscoroutine(returned):
        kind = "a generator, whose body has not run: remove its yield"
        if inspect.iscoroutine(returned):
            returned.close()
            kind = "a coroutine, which has not run: define it without async"
        raise ConfigError(f"{name} returned {kind}")


def _check_rows(name: str, before: TrainBatch, after: TrainBatch) -> None:
    """Reject columns of another shape or type than before; a batch may have another number of rows."""
    expected, given = _columns(before), _columns(after)
    if expected.keys() != given.keys():
        raise ConfigError(f"{name} must leave the columns {sorted(expected)}, got {sorted(given)}")
    n_rows = {path: len(leaf) if leaf.ndim else 0 for path, leaf in given.items()}
    may_differ = isinstance(before, TransitionBatch)
    if may_differ and (len(set(n_rows.values())) > 1 or n_rows["reward"] == 0):
        raise ConfigError(f"{name} must return as many rows in every column, and at least one, got {n_rows}")
    first = 1 if may_differ else 0
    for path, leaf in expected.items():
        other = given[path]
        if (other.shape[first:], other.dtype) != (leaf.shape[first:], leaf.dtype):
            raise ConfigError(
                f"{name} must leave {path} as {leaf.dtype}{list(leaf.shape)}, got {other.dtype}{list(other.shape)}"
            )


def _columns(rows: TrainBatch) -> dict[str, Any]:
    """Return the columns that callbacks must keep, by the paths of their leaves: all except the extra ones."""
    whole: Any = rows
    named = {field.name: getattr(rows, field.name) for field in fields(whole) if field.name != "extras"}
    leaves = {f"{name} {path}".rstrip(): leaf for name, own in named.items() for path, leaf in tree.named_leaves(own)}
    return {path: leaf if hasattr(leaf, "ndim") else np.asarray(leaf) for path, leaf in leaves.items()}


def _name_of(function: object) -> str:
    return str(getattr(function, "__qualname__", repr(function)))


def _label(callback: Callback, event: str) -> str:
    """Return the name of a callback's method, or of the function given for an event."""
    if isinstance(callback, EventFunctions):
        return f"{event}={_name_of(callback.functions[event])}"
    return f"{type(callback).__name__}.{event}"


def _add_origin(error: BaseException, callback: Callback, event: str, trainer: "Trainer") -> None:
    """Note on an error which callback raised it, and when."""
    name = _label(callback, event)
    if isinstance(error, StopIteration):
        raise RuntimeError(f"{name} raised StopIteration, which would end the loop") from error
    error.add_note(f"raised in {name}, epoch {trainer.epoch}, {trainer.unit} {trainer.clock}")
