"""Training: the iterators that drive collector, buffer and policy."""
# Written by `python -m tests.stubs`

from trainkit.core.checkpoint import inspect_checkpoint
from trainkit.core.data import EpochResult
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
from trainkit.extensions.background.background import BackgroundEvaluation
from trainkit.extensions.diagnosis.rules import DIAGNOSIS_RULES
from trainkit.extensions.games.tournament import Tournament, WinRate, tournament
from trainkit.extensions.many_runs.many_runs import run
from trainkit.extensions.offline.dataset_writer import DatasetWriter
from trainkit.extensions.offline.estimated_return import OffPolicyEvaluation
from trainkit.extensions.offline.fitted_q_evaluation import FittedQ, fitted_q_evaluation
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
    "BackgroundEvaluation",
    "Callback",
    "Checkpoint",
    "CollectStats",
    "Curriculum",
    "DIAGNOSIS_RULES",
    "DatasetWriter",
    "EpochResult",
    "EpochStats",
    "Evaluation",
    "FittedQ",
    "Histograms",
    "History",
    "LogInfo",
    "OffPolicyEvaluation",
    "OfflineTrainer",
    "OffpolicyTrainee",
    "OffpolicyTrainer",
    "OnpolicyTrainee",
    "OnpolicyTrainer",
    "PairedComparison",
    "PlayerStats",
    "RecordVideo",
    "RunInfo",
    "RunResult",
    "RunWarning",
    "SaveBest",
    "SaveEvery",
    "StopAt",
    "Summary",
    "TimeStats",
    "Tournament",
    "Trainee",
    "Trainer",
    "WinRate",
    "compare",
    "evaluate",
    "fitted_q_evaluation",
    "inspect_checkpoint",
    "run",
    "run_with_restart",
    "scalars",
    "tournament",
]
