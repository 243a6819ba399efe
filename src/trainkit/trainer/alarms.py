"""Numbers that mean trouble: each is told in the log, once per run."""

import logging

from trainkit.stats import EpochStats

_log = logging.getLogger(__name__)

# {tag: (above it there is trouble, which)}
_TROUBLE = {
    "update/clipped_share": (
        0.25,  # more than an untrained, flat distribution loses at its ends
        "of the value distribution's goal lies beyond v_min..v_max and is moved to the ends: "
        "widen the support, or scale the reward",
    ),
}


class Alarms:
    """Look at every report and warn of what no curve of returns shows."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def look(self, stats: EpochStats, step: int) -> None:
        """Warn of a number that is too large, unless that was told before."""
        for tag, (limit, trouble) in _TROUBLE.items():
            number = stats[tag]
            if number is not None and number > limit and tag not in self._told:
                self._told.add(tag)
                _log.warning("%s is %.0f%% at step %d: that share %s", tag, 100 * number, step, trouble)
