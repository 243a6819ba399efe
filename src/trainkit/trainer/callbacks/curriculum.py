"""A callback that gives environments their tasks as training goes on."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trainkit.core.data import EpochResult
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.signatures import checked
from trainkit.trainer.callbacks.base import Callback

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer

Task = Mapping[str, Any]


@checked
class Curriculum(Callback):
    """Set the task of the training environments: before the first epoch, and after each one.

    `fn(trainer)` returns the options of Gymnasium's `reset(options=)`, plain values by name, or None to leave the task
    as it is. They reach each environment at its next reset, so that no episode changes while it runs; what the
    environment makes of them is up to it. Evaluations keep their own. Numbers among them are shown as
    `custom/task/name`, and the task is saved in checkpoints.
    """

    def __init__(self, fn: Callable[["Trainer"], Task | None]) -> None:
        checks = Checks("Curriculum")
        checks.require(callable(fn), f".fn must be callable, got {fn!r}")
        checks.done()
        self._fn = fn
        self._task: dict[str, Any] | None = None

    @property
    def task(self) -> Task | None:
        """The options that resets are told now."""
        return self._task

    def check(self, trainer: "Trainer") -> None:
        """Refuse a run without environments to train in, and ones that cannot be told."""
        if trainer.train_collector is None:
            raise ConfigError("Curriculum sets the task of training environments: an offline run has none")
        envs = trainer.train_collector.envs
        if not envs.takes_options:
            raise ConfigError(f"Curriculum cannot reach the environments of {envs.name}, which reset themselves")

    def on_train_start(self, trainer: "Trainer") -> None:
        if self._task is None:  # else a checkpoint has told it
            self._ask(trainer)
        self._set(trainer)

    def on_epoch_end(self, trainer: "Trainer", result: EpochResult) -> None:
        for name, value in (self._task or {}).items():  # of this epoch; the next one's is set below
            if isinstance(value, (bool, int, float)):
                trainer.log(f"task/{name}", value, "last")
        self._ask(trainer)
        self._set(trainer)

    def state_dict(self) -> dict[str, Any]:
        return {"task": self._task}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._task = state["task"]

    def _ask(self, trainer: "Trainer") -> None:
        asked: object = self._fn(trainer)
        if asked is not None and not isinstance(asked, Mapping):
            raise ConfigError(f"Curriculum.fn must return options for reset, or None, got {asked!r}")
        if asked is not None:
            self._task = dict(asked)

    def _set(self, trainer: "Trainer") -> None:
        assert trainer.train_collector is not None, "refused before"
        trainer.train_collector.envs.options = self._task
