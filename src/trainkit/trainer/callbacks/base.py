"""The base class of callbacks: one method per event, each without effect until it is overridden."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict

from trainkit.collector import Episode
from trainkit.core.data import EpochResult, Rollout, TransitionBatch
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.names import EVENTS_ELSEWHERE, did_you_mean
from trainkit.core.signatures import checked
from trainkit.core.stats import CollectStats
from trainkit.envs import Envs

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer

TrainBatch = TransitionBatch | Rollout


@checked
class Callback:
    """Base class of callbacks: override the events you need. A method named like an unknown event is an error.

    Attributes:
        episodes: whose episodes it receives events of.
        always_raises: whether its exceptions end the run even with `callback_errors="log"`.
    """

    episodes: ClassVar[Literal["all", "training", "evaluation"]] = "all"
    always_raises: ClassVar[bool] = False

    def check(self, trainer: "Trainer") -> None:
        """Raise a `ConfigError` for a run this is of no use in; called when the trainer is constructed."""

    def hears(self, event: str) -> bool:
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
        """Receive an episode whose environment failed and is replaced."""

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
        """Receive the path of a checkpoint that was loaded into all parts."""

    def on_train_end(self, trainer: "Trainer") -> None:
        """Receive the end of the run."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint; also before any event, so that loading restores that moment."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""


EVENTS = [name for name in vars(Callback) if name.startswith("on_")]


def nearest_event(name: str) -> str:
    """Return `, did you mean 'on_x'?` for the event that a name is closest to, or stands for in other libraries."""
    name = name.removeprefix("_")
    own = name if name in EVENTS else EVENTS_ELSEWHERE.get(name)
    return did_you_mean(name, EVENTS) if own is None else f", did you mean {own!r}?"


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
