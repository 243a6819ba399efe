"""Collecting: drives a policy through environments and hands every real step to a buffer."""

from typing import TYPE_CHECKING

from trainkit.collector.collector import Collector
from trainkit.collector.events import Episode, Watch
from trainkit.core.former_names import former_names

__all__ = [
    "Collector",
    "Episode",
    "Watch",
]

if not TYPE_CHECKING:
    __getattr__ = former_names(__name__)
