"""Recorded episodes: written, read from files of several formats, and used to estimate what a policy would return."""

from trainkit.datasets.loading import from_minari, load_dataset
from trainkit.datasets.minari_export import to_minari
from trainkit.datasets.off_policy_evaluation import (
    Estimate,
    HasActionProbability,
    HasActionValues,
    direct_method,
    doubly_robust,
    importance_sampling,
    weighted_importance_sampling,
)
from trainkit.datasets.streaming import StreamedDataset, stream_dataset

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
