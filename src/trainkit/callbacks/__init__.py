"""Callbacks: the base class for custom callbacks, and the ready-made ones."""

from trainkit.core.extensions import attach
from trainkit.trainer.callbacks.base import Callback, on
from trainkit.trainer.callbacks.checkpointing import Checkpoint, SaveBest, SaveEvery
from trainkit.trainer.callbacks.curriculum import Curriculum
from trainkit.trainer.callbacks.history import History
from trainkit.trainer.callbacks.logged_values import Histograms, LogEpisodes, LogInfo
from trainkit.trainer.callbacks.memory import TrackMemory
from trainkit.trainer.callbacks.stopping import StopAt
from trainkit.trainer.callbacks.video import RecordVideo

__all__ = [
    "Callback",
    "Checkpoint",
    "Curriculum",
    "Histograms",
    "History",
    "LogEpisodes",
    "LogInfo",
    "RecordVideo",
    "SaveBest",
    "SaveEvery",
    "StopAt",
    "TrackMemory",
    "on",
]

__dir__, __getattr__ = attach(__name__, __all__)
