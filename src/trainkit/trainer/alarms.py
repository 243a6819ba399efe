"""Numbers that mean trouble: each is told in the log, once per run."""

import logging
import math
import statistics
from collections import deque

from trainkit.core.stats import EpochStats

_log = logging.getLogger(__name__)

# {tag: (above it there is trouble, which)}
_TROUBLE = {
    "update/clipped_share": (
        0.25,  # more than an untrained, flat distribution loses at its ends
        "of the value distribution's goal lies beyond v_min..v_max and is moved to the ends: "
        "widen the support, or scale the reward",
    ),
}


_EXPLODES = 1e3  # times the median of the reports before
_REPORTS = 5  # that make a median


class Alarms:
    """Look at every report and warn of what no curve of returns shows."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._norms: dict[str, deque[float]] = {}  # of gradients, in the reports before

    def look(self, stats: EpochStats, step: int) -> None:
        """Warn of a number that is too large, unless that was told before."""
        for tag, (limit, trouble) in _TROUBLE.items():
            number = stats[tag]
            if number is not None and number > limit and tag not in self._told:
                self._told.add(tag)
                _log.warning("%s is %.0f%% at step %d: that share %s", tag, 100 * number, step, trouble)
        for name, norm in stats.update.items():
            if name.endswith("grad_norm"):
                self._look_at_norm(f"update/{name}", norm, step)

    def _look_at_norm(self, tag: str, norm: float, step: int) -> None:
        before = self._norms.setdefault(tag, deque(maxlen=100))
        usual = statistics.median(before) if len(before) >= _REPORTS else math.inf
        if norm > _EXPLODES * usual > 0 and tag not in self._told:
            self._told.add(tag)
            _log.warning(
                "%s is %.3g at step %d, the median so far %.3g: lower the learning rate, give a max_grad_norm or clip "
                "the reward",
                *(tag, norm, step, usual),
            )
        before.append(norm)
