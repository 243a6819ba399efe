"""A curriculum: the tasks of the training environments, as reset options."""

from collections.abc import Callable, Mapping, Sequence
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
    as it is. A list has the task of each environment, or of each game. They reach an environment at its next reset, so
    that no episode changes while it runs; what the environment does with them is up to it. Evaluations keep their own.
    Numbers among them are logged as `custom/task/name`, by their mean over environments, and the task is saved in
    checkpoints.
    """

    def __init__(self, fn: Callable[["Trainer"], Task | list[Task] | None]) -> None:
        with Checks("Curriculum") as checks:
            checks.require(callable(fn), f".fn must be callable, got {fn!r}")
        self._fn = fn
        self._task: dict[str, Any] | list[dict[str, Any] | None] | None = None

    @property
    def task(self) -> Task | Sequence[Task | None] | None:
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
        numbers: dict[str, list[float]] = {}  # of this epoch's tasks; the next ones are set below
        for own in self._task if isinstance(self._task, list) else [self._task]:
            for name, value in (own or {}).items():
                if isinstance(value, (bool, int, float)):
                    numbers.setdefault(name, []).append(value)
        for name, values in numbers.items():
            trainer.log(f"task/{name}", sum(values) / len(values), "last")
        self._choose(trainer)
        self._set(trainer)

    def state_dict(self) -> dict[str, Any]:
        return {"task": self._task}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._task = state["task"]

    def _choose(self, trainer: "Trainer") -> None:
        task: Any = self._fn(trainer)
        each = task if isinstance(task, list) else [task]
        if not all(own is None or isinstance(own, Mapping) for own in each):
            raise ConfigError(f"Curriculum.fn must return options for reset, a list of them, or None, got {task!r}")
        if task is not None:
            own_tasks = [None if own is None else dict(own) for own in each]
            self._task = own_tasks if isinstance(task, list) else own_tasks[0]

    def _set(self, trainer: "Trainer") -> None:
        collector = trainer.train_collector
        assert isinstance(collector, Collector), "`check` rejects runs without"
        collector.envs.options = self._task
