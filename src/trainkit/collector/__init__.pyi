"""Collection: a policy acts in environments, and every real step is stored in a buffer."""
# Written by `python -m tests.stubs`

from trainkit.collector.collector import Collector
from trainkit.collector.events import Episode, EpisodeEvents

__all__ = ["Collector", "Episode", "EpisodeEvents"]
