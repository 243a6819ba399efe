"""How a run's numbers are spread, on request: what episodes returned, which actions were taken, which rows count."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trainkit.buffer import PrioritizedReplayBuffer
from trainkit.core.arrays import any_true
from trainkit.core.data import Transition
from trainkit.core.errors import Checks
from trainkit.core.signatures import checked
from trainkit.core.stats import CollectStats
from trainkit.trainer.callbacks.base import Callback

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer

_MOST_PLACES = 8  # of an action, shown each by itself


@checked
class Histograms(Callback):
    """Show on dashboards how numbers are spread: `custom/returns`, `lengths`, `actions`, `priorities`, `weights`.

    Returns, lengths and actions are of training since the last look, returns as the environments gave them; actions
    of several places are shown place by place, the first eight. Priorities and importance weights are of all rows of
    a `PrioritizedReplayBuffer` as it is then. Only tensorboard shows them.

    Args:
        every: environment steps (offline: updates) from one look to the next.
    """

    def __init__(self, every: int = 10_000) -> None:
        checks = Checks("Histograms")
        checks.integer("every", every, low=1)
        checks.done()
        self.every = every
        self._next_look: int | None = None
        self._heard: _Heard | None = None

    def on_train_start(self, trainer: "Trainer") -> None:
        self._next_look = trainer.clock + self.every
        collector = trainer.train_collector
        if collector is not None and self._heard is None:
            self._heard = _Heard(collector.envs.n)
            collector.recorders.append(self._heard)

    def on_collect_end(self, trainer: "Trainer", stats: CollectStats) -> None:
        self._look_if_due(trainer)

    def on_update_end(self, trainer: "Trainer") -> None:
        self._look_if_due(trainer)

    def on_train_end(self, trainer: "Trainer") -> None:
        if trainer.train_collector is not None and self._heard is not None:
            trainer.train_collector.recorders.remove(self._heard)
            self._heard = None

    def _look_if_due(self, trainer: "Trainer") -> None:
        if self._next_look is None or trainer.clock < self._next_look:
            return
        self._next_look += self.every * ((trainer.clock - self._next_look) // self.every + 1)
        told = {} if self._heard is None else self._heard.take()
        buffer: object = trainer.buffer
        if isinstance(buffer, PrioritizedReplayBuffer):
            told |= {"priorities": buffer.priorities(), "weights": buffer.weights(trainer.clock)}
        for name, values in told.items():
            trainer.log(name, values, reduce="histogram")


class _Heard:
    """What a collector did since the last look."""

    def __init__(self, n_envs: int) -> None:
        self._returns, self._lengths = np.zeros(n_envs), np.zeros(n_envs)  # [N], of the episodes that run
        self._finished: list[tuple[float, float]] = []
        self._actions: list[NDArray[Any]] = []

    def add(self, transition: Transition) -> None:
        """Hear of K steps."""
        envs = transition.env_ids
        self._actions.append(transition.action.copy())
        if len(envs) == len(self._returns):
            self._returns += transition.reward
            self._lengths += 1
        else:
            self._returns[envs] += transition.reward
            self._lengths[envs] += 1
        is_over = transition.terminated | transition.truncated
        if any_true(is_over):
            over = envs[is_over]
            self._finished += zip(self._returns[over].tolist(), self._lengths[over].tolist(), strict=True)
            self.cut(over)

    def cut(self, env_ids: NDArray[np.intp]) -> None:
        """Hear that the open episodes of these environments are no more."""
        self._returns[env_ids] = self._lengths[env_ids] = 0.0

    def drop(self, env_ids: NDArray[np.intp]) -> None:
        """Hear that they were broken off."""
        self.cut(env_ids)

    def take(self) -> dict[str, NDArray[Any]]:
        """Return {name: numbers} and begin anew."""
        told: dict[str, NDArray[Any]] = {}
        if self._finished:
            told["returns"], told["lengths"] = np.array(self._finished).T
        if self._actions:
            actions = np.concatenate(self._actions)
            places = actions.reshape(len(actions), -1).T
            single = len(places) == 1
            told |= {"actions" if single else f"actions/{i}": one for i, one in enumerate(places[:_MOST_PLACES])}
        self._finished, self._actions = [], []
        return told
