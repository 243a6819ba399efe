"""Training: the iterators that drive collector, buffer and policy."""

from trainkit.core.checkpoint import inspect_checkpoint
from trainkit.core.data import EpochResult
from trainkit.core.extensions import attach
from trainkit.core.protocols import OffpolicyTrainee, OnpolicyTrainee, Trainee
from trainkit.core.stats import (
    CollectStats,
    EpochStats,
    PlayerStats,
    RunInfo,
    RunResult,
    RunWarning,
    Summary,
    TimeStats,
    scalars,
)
from trainkit.trainer.base import Trainer
from trainkit.trainer.callbacks.base import Callback
from trainkit.trainer.callbacks.checkpointing import Checkpoint, SaveBest, SaveEvery
from trainkit.trainer.callbacks.curriculum import Curriculum
from trainkit.trainer.callbacks.history import History
from trainkit.trainer.callbacks.logged_values import Histograms, LogInfo
from trainkit.trainer.callbacks.stopping import StopAt
from trainkit.trainer.callbacks.video import RecordVideo
from trainkit.trainer.evaluation import Evaluation, evaluate
from trainkit.trainer.offline import OfflineTrainer
from trainkit.trainer.offpolicy import OffpolicyTrainer
from trainkit.trainer.onpolicy import OnpolicyTrainer
from trainkit.trainer.paired_comparison import PairedComparison, compare
from trainkit.trainer.restarting import run_with_restart

__all__ = [
    "Callback",
    "Checkpoint",
    "CollectStats",
    "Curriculum",
    "EpochResult",
    "EpochStats",
    "Evaluation",
    "Histograms",
    "History",
    "OffpolicyTrainee",
    "LogInfo",
    "OfflineTrainer",
    "OffpolicyTrainer",
    "OnpolicyTrainer",
    "PairedComparison",
    "PlayerStats",
    "RecordVideo",
    "OnpolicyTrainee",
    "RunInfo",
    "RunResult",
    "RunWarning",
    "SaveBest",
    "SaveEvery",
    "StopAt",
    "Summary",
    "TimeStats",
    "Trainee",
    "Trainer",
    "compare",
    "evaluate",
    "inspect_checkpoint",
    "run_with_restart",
    "scalars",
]

__dir__, __getattr__ = attach(__name__, __all__)
