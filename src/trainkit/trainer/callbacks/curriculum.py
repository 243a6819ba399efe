"""A curriculum: the tasks of the training environments, as reset options."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trainkit.collector import Collector
from trainkit.core.data import EpochResult
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.signatures import checked
from trainkit.trainer.callbacks.base import Callback

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer

Task = Mapping[str, Any]


@checked
class Curriculum(Callback):
    """The task of the training environments, set before the first epoch and after each one.

    `fn(trainer)` returns the options of Gymnasium's `reset(options=)`, plain values by name, or None to leave the task
    as it is. They reach each environment at its next reset, so that no episode changes while it runs; what the
    environment does with them is up to it. Evaluations keep their own. Numbers among them are logged as
    `custom/task/name`, and the task is saved in checkpoints.
    """

    def __init__(self, fn: Callable[["Trainer"], Task | None]) -> None:
        with Checks("Curriculum") as checks:
            checks.require(callable(fn), f".fn must be callable, got {fn!r}")
        self._fn = fn
        self._task: dict[str, Any] | None = None

    @property
    def task(self) -> Task | None:
        """The current options of resets."""
        return self._task

    def check(self, trainer: "Trainer") -> None:
        """Raise a `ConfigError` for a run without training environments, or whose environments accept no options."""
        if trainer.train_collector is None:
            raise ConfigError("Curriculum sets the task of training environments: an offline run has none")
        envs = trainer.train_collector.envs
        if not envs.takes_options:
            raise ConfigError(f"Curriculum cannot reach the environments of {envs.name}, which reset themselves")

    def on_train_start(self, trainer: "Trainer") -> None:
        if self._task is None:  # else it is a checkpoint's
            self._choose(trainer)
        self._set(trainer)

    def on_epoch_end(self, trainer: "Trainer", result: EpochResult) -> None:
        for name, value in (self._task or {}).items():  # of this epoch; the next one's is set below
            if isinstance(value, (bool, int, float)):
                trainer.log(f"task/{name}", value, "last")
        self._choose(trainer)
        self._set(trainer)

    def state_dict(self) -> dict[str, Any]:
        return {"task": self._task}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._task = state["task"]

    def _choose(self, trainer: "Trainer") -> None:
        task: object = self._fn(trainer)
        if task is not None and not isinstance(task, Mapping):
            raise ConfigError(f"Curriculum.fn must return options for reset, or None, got {task!r}")
        if task is not None:
            self._task = dict(task)

    def _set(self, trainer: "Trainer") -> None:
        collector = trainer.train_collector
        assert isinstance(collector, Collector), "`check` rejects runs without"
        collector.envs.options = self._task
