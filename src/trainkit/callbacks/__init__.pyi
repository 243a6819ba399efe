"""Callbacks: the base class for custom callbacks, and the ready-made ones."""
# Written by `python -m tests.stubs`

from trainkit.extensions.diagnosis.diagnosis import Diagnosis
from trainkit.extensions.games.opponent_pool import OpponentPool
from trainkit.extensions.offline.dataset_writer import DatasetWriter
from trainkit.extensions.offline.estimated_return import OffPolicyEvaluation
from trainkit.extensions.resets.network_resets import NetworkResets
from trainkit.extensions.tune.tune_report import TuneReport
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
    "DatasetWriter",
    "Diagnosis",
    "Histograms",
    "History",
    "LogEpisodes",
    "LogInfo",
    "NetworkResets",
    "OffPolicyEvaluation",
    "OpponentPool",
    "RecordVideo",
    "SaveBest",
    "SaveEvery",
    "StopAt",
    "TrackMemory",
    "TuneReport",
    "on",
]
