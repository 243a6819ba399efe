"""Logging of values in the environments' info: a score, a success, the terms of a reward."""

import logging
import math
from typing import TYPE_CHECKING, Any, Literal

from trainkit.collector import Episode
from trainkit.core.errors import Checks
from trainkit.core.signatures import checked
from trainkit.trainer.callbacks.base import Callback

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer

_log = logging.getLogger(__name__)


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
            for key in keys:
                checks.require(isinstance(key, str) and key != "", f".keys must be names, got {key!r}")
            checks.one_of("of", of, ["last", "sum", "mean"])
        self._names = {key: key.split("/") for key in keys}
        self._of = of
        self._place = f"LogInfo {of} {' '.join(keys)}"  # in an episode's data, which checkpoints keep by name
        self._has_warned = False

    def hears(self, event: str) -> bool:
        """Return whether it receives an event: steps only where it sums them up."""
        needs_no_steps = self._of == "last" and type(self).on_episode_step is LogInfo.on_episode_step
        return super().hears(event) and not (event == "on_episode_step" and needs_no_steps)

    def on_episode_step(self, trainer: "Trainer", episode: Episode) -> None:
        info = episode.info
        for key in self._names:
            value = self._read(info, key)
            if value is not None:
                known = episode.user_data.setdefault(self._place, {})  # {key: (sum, count)}
                total, count = known.get(key, (0.0, 0))
                known[key] = total + value, count + 1

    def on_episode_end(self, trainer: "Trainer", episode: Episode) -> None:
        place = "test/info" if episode.in_evaluation else "info"
        for key in self._names:
            value = self._of_episode(episode, key)
            if value is not None:
                trainer.log(f"{place}/{key}", value)

    def _of_episode(self, episode: Episode, key: str) -> float | None:
        if self._of == "last":
            return self._read(episode.info, key)
        total, count = episode.user_data.get(self._place, {}).get(key, (0.0, 0))
        if count == 0:
            return None
        return float(total if self._of == "sum" else total / count)

    def _read(self, info: dict[str, Any], key: str) -> float | None:
        """Return a number of an info, None where there is none."""
        value: Any = info
        for name in self._names[key]:
            value = value.get(name) if isinstance(value, dict) else None
        if value is None:
            return None
        try:
            number = float(value)
        except (TypeError, ValueError):
            return None
        if math.isfinite(number):
            return number
        if not self._has_warned:
            self._has_warned = True
            _log.warning("info[%r] is %s: values that are not finite are left out", key, number)
        return None
