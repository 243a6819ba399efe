"""Collection: a policy acts in environments, and every real step is stored in a buffer."""

from trainkit.core.extensions import attach

__dir__, __getattr__ = attach(
    __name__,
    {
        "collector.collector": "Collector",
        "collector.events": "Episode EpisodeEvents",
    },
)
