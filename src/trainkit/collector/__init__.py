"""Collection: a policy acts in environments, and every real step is stored in a buffer."""

from typing import TYPE_CHECKING

from trainkit.collector.collector import Collector
from trainkit.collector.events import Episode, EpisodeEvents
from trainkit.core.former_names import former_names

__all__ = [
    "Collector",
    "Episode",
    "EpisodeEvents",
]

if not TYPE_CHECKING:
    __getattr__ = former_names(__name__)
