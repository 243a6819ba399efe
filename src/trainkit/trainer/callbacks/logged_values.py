"""Callbacks that log further values: the environments' info, a table of episodes, histograms."""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainkit.buffer import PrioritizedReplayBuffer
from trainkit.collector import Collector, Episode
from trainkit.core.data import Transition, any_true
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.signatures import checked
from trainkit.core.stats import CollectStats
from trainkit.trainer.callbacks.base import Callback

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer

_log = logging.getLogger(__name__)

_MOST_DIMENSIONS = 8  # of an action, each with a histogram of its own


@checked
class LogInfo(Callback):
    """Values of the environments' info, logged as `custom/info/key`: the mean over episodes that ended.

    Those of an evaluation's episodes are logged as `custom/test/info/key`. An episode whose info has no such key counts
    for nothing; one whose value is not finite is left out with a warning.

    Args:
        keys: of numbers in the info; "reward/forward" is `info["reward"]["forward"]`.
        of: what counts of an episode: the value of its "last" step, or the "sum" or the "mean" over all its steps.
    """

    def __init__(self, *keys: str, of: Literal["last", "sum", "mean"] = "last") -> None:
        with Checks("LogInfo") as checks:
            checks.require(len(keys) > 0, " needs the keys to show")
            with checks.gather():
                _check_keys("LogInfo", keys)
            checks.one_of("of", of, ["last", "sum", "mean"])
        self._names = {key: key.split("/") for key in keys}
        self._of = of
        self._sums_key = f"LogInfo {of} {' '.join(keys)}"  # in an episode's data, which checkpoints keep by name
        self._has_warned = False

    def receives(self, event: str) -> bool:
        """Return whether it receives an event; steps are received only to sum values up."""
        needs_no_steps = self._of == "last" and type(self).on_episode_step is LogInfo.on_episode_step
        return super().receives(event) and not (event == "on_episode_step" and needs_no_steps)

    def on_episode_step(self, trainer: "Trainer", episode: Episode) -> None:
        info = episode.info
        for key in self._names:
            value = self._read(info, key)
            if value is not None:
                known = episode.user_data.setdefault(self._sums_key, {})  # {key: (sum, count)}
                total, count = known.get(key, (0.0, 0))
                known[key] = total + value, count + 1

    def on_episode_end(self, trainer: "Trainer", episode: Episode) -> None:
        prefix = "test/info" if episode.in_evaluation else "info"
        for key in self._names:
            value = self._of_episode(episode, key)
            if value is not None:
                trainer.log(f"{prefix}/{key}", value)

    def _of_episode(self, episode: Episode, key: str) -> float | None:
        if self._of == "last":
            return self._read(episode.info, key)
        total, count = episode.user_data.get(self._sums_key, {}).get(key, (0.0, 0))
        if count == 0:
            return None
        return float(total if self._of == "sum" else total / count)

    def _read(self, info: dict[str, Any], key: str) -> float | None:
        """Return a number of an info, None if it has none."""
        number = _number_in(info, self._names[key])
        if number is None or math.isfinite(number):
            return number
        if not self._has_warned:
            self._has_warned = True
            _log.warning("info[%r] is %s: values that are not finite are left out", key, number)
        return None


@checked
class LogEpisodes(Callback):
    """A table of all finished episodes: one row for each in `stats.episodes`, and in the files of the loggers.

    `JsonlLogger` writes `episodes.jsonl`, `CsvLogger` `episodes.csv`. A row has `step` (of the trainer's clock) and
    `epoch`, when the episode ended; `env_id`; `in_evaluation`, 0 or 1; `return`, `length` and `seconds`; and numbers of
    the given keys, where the episode has them. Evaluations in the background have no rows.

    Args:
        keys: of numbers in the info of the last step, such as "score" or "reward/forward", or in `episode.user_data`,
            where other callbacks put them.
    """

    def __init__(self, *keys: str) -> None:
        _check_keys("LogEpisodes", keys)
        self._names = {key: key.split("/") for key in keys}

    def on_episode_end(self, trainer: "Trainer", episode: Episode) -> None:
        row: dict[str, float] = {"step": trainer.clock, "epoch": trainer.epoch, "env_id": episode.env_id}
        row |= {"in_evaluation": episode.in_evaluation, "return": episode.total_reward}
        row |= {"length": episode.length, "seconds": episode.seconds}
        info = episode.info
        for key, names in self._names.items():
            own = _number_in(info, names)
            value = _number_in(episode.user_data, [key]) if own is None else own
            if value is not None:
                row[key] = value
        trainer.log_episode(row)


def _check_keys(owner: str, keys: Sequence[str]) -> None:
    """Raise a `ConfigError` unless all keys are names."""
    with Checks(owner) as checks:
        for key in keys:
            checks.require(isinstance(key, str) and key != "", f".keys must be names, got {key!r}")


def _number_in(info: Mapping[str, Any], names: Sequence[str]) -> float | None:
    """Return a number of nested dicts, None where there is none."""
    value: Any = info
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    if value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


@checked
class Histograms(Callback):
    """Periodic histograms on dashboards: `custom/returns`, `lengths`, `actions`, `priorities`, `weights`.

    Returns, lengths and actions are of training since the last histograms, returns as the environments gave them; each
    of the first eight dimensions of an action has its own. Priorities and importance weights are of all rows that a
    `PrioritizedReplayBuffer` has at that time. Only tensorboard shows them.

    Args:
        every: environment steps (offline: updates) from one set of histograms to the next.
    """

    def __init__(self, every: int = 10_000) -> None:
        with Checks("Histograms") as checks:
            checks.integer("every", every, low=1)
        self.every = every
        self._next_step: int | None = None
        self._recorder: _Recorder | None = None

    def check(self, trainer: "Trainer") -> None:
        """Raise a `ConfigError` for a run whose steps are not on the host."""
        collector = trainer.train_collector
        if collector is not None and not isinstance(collector, Collector):
            kind = type(collector).__name__
            raise ConfigError(f"Histograms reads every step of a Collector, got a {kind}: use trainer.log")

    def on_train_start(self, trainer: "Trainer") -> None:
        self._next_step = trainer.clock + self.every
        collector = trainer.train_collector
        if isinstance(collector, Collector) and self._recorder is None:
            self._recorder = _Recorder(collector.envs.n)
            collector.recorders.append(self._recorder)

    def on_collect_end(self, trainer: "Trainer", stats: CollectStats) -> None:
        self._log_if_due(trainer)

    def on_update_end(self, trainer: "Trainer") -> None:
        self._log_if_due(trainer)

    def on_train_end(self, trainer: "Trainer") -> None:
        if isinstance(trainer.train_collector, Collector) and self._recorder is not None:
            trainer.train_collector.recorders.remove(self._recorder)
            self._recorder = None

    def _log_if_due(self, trainer: "Trainer") -> None:
        if self._next_step is None or trainer.clock < self._next_step:
            return
        self._next_step += self.every * ((trainer.clock - self._next_step) // self.every + 1)
        values = {} if self._recorder is None else self._recorder.take()
        buffer: object = trainer.buffer
        if isinstance(buffer, PrioritizedReplayBuffer):
            values |= {"priorities": buffer.priorities(), "weights": buffer.weights(trainer.clock)}
        for name, array in values.items():
            trainer.log(name, array, reduce="histogram")


class _Recorder:
    """Returns, lengths and actions of a collector since the last histograms."""

    def __init__(self, n_envs: int) -> None:
        self._returns, self._lengths = np.zeros(n_envs), np.zeros(n_envs)  # [N], of the open episodes
        self._finished: list[tuple[float, float]] = []
        self._actions: list[NDArray[Any]] = []

    def add(self, transition: Transition) -> None:
        """Add K steps."""
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
        """Discard the open episodes of these environments, which were cut."""
        self._returns[env_ids] = self._lengths[env_ids] = 0.0

    def drop(self, env_ids: NDArray[np.intp]) -> None:
        """Discard the open episodes of these environments."""
        self.cut(env_ids)

    def take(self) -> dict[str, NDArray[Any]]:
        """Return {name: values} since the last call."""
        values: dict[str, NDArray[Any]] = {}
        if self._finished:
            values["returns"], values["lengths"] = np.array(self._finished).T
        if self._actions:
            actions = np.concatenate(self._actions)
            columns = actions.reshape(len(actions), -1).T
            is_single = len(columns) == 1
            for i, column in enumerate(columns[:_MOST_DIMENSIONS]):
                values["actions" if is_single else f"actions/{i}"] = column
        self._finished, self._actions = [], []
        return values
