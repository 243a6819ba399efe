"""Callbacks: the base class for one of your own, and those that are ready to use."""

from trainkit.trainer.callbacks import (
    Callback,
    Checkpoint,
    Curriculum,
    DatasetWriter,
    Histograms,
    History,
    LogInfo,
    RecordVideo,
    SaveBest,
    SaveEvery,
    StopAt,
)

__all__ = [
    "Callback",
    "Checkpoint",
    "Curriculum",
    "DatasetWriter",
    "Histograms",
    "History",
    "LogInfo",
    "RecordVideo",
    "SaveBest",
    "SaveEvery",
    "StopAt",
]
