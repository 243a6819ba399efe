"""Recorded episodes: written, read from files of several formats, and used to estimate what a policy would return."""
# Written by `python -m tests.stubs`

from trainkit.extensions.offline.loading import from_minari, load_dataset
from trainkit.extensions.offline.minari_export import to_minari
from trainkit.extensions.offline.off_policy_evaluation import (
    Estimate,
    HasActionProbability,
    HasActionValues,
    direct_method,
    doubly_robust,
    importance_sampling,
    weighted_importance_sampling,
)
from trainkit.extensions.offline.streaming import StreamedDataset, stream_dataset

__all__ = [
    "Estimate",
    "HasActionProbability",
    "HasActionValues",
    "StreamedDataset",
    "direct_method",
    "doubly_robust",
    "from_minari",
    "importance_sampling",
    "load_dataset",
    "stream_dataset",
    "to_minari",
    "weighted_importance_sampling",
]
