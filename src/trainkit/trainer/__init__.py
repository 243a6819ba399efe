"""Training: the iterators that drive collector, buffer and policy."""

from trainkit.trainer.base import Trainer
from trainkit.trainer.callbacks import Callback
from trainkit.trainer.checkpointing import Checkpoint
from trainkit.trainer.curriculum import Curriculum
from trainkit.trainer.estimation import Estimate, importance_sampling, weighted_importance_sampling
from trainkit.trainer.evaluation import Evaluation, evaluate
from trainkit.trainer.histograms import Histograms
from trainkit.trainer.history import History
from trainkit.trainer.info import LogInfo
from trainkit.trainer.keeping import SaveBest, SaveEvery
from trainkit.trainer.offline import OfflineTrainer
from trainkit.trainer.offpolicy import OffpolicyTrainer
from trainkit.trainer.onpolicy import OnpolicyTrainer
from trainkit.trainer.recording import DatasetWriter
from trainkit.trainer.restarting import run_with_restart
from trainkit.trainer.stopping import StopAt
from trainkit.trainer.video import RecordVideo

__all__ = [
    "Callback",
    "Checkpoint",
    "Evaluation",
    "Histograms",
    "History",
    "LogInfo",
    "Curriculum",
    "RecordVideo",
    "SaveBest",
    "SaveEvery",
    "StopAt",
    "OfflineTrainer",
    "DatasetWriter",
    "Estimate",
    "OffpolicyTrainer",
    "OnpolicyTrainer",
    "Trainer",
    "evaluate",
    "importance_sampling",
    "run_with_restart",
    "weighted_importance_sampling",
]
