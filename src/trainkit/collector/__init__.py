"""Collecting: drives a policy through environments and hands every real step to a buffer."""

from trainkit.collector.collector import Collector
from trainkit.collector.events import Episode, Watch

__all__ = [
    "Collector",
    "Episode",
    "Watch",
]
