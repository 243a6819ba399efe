"""Training: the iterators that drive collector, buffer and policy."""

from trainkit.trainer.base import Trainer
from trainkit.trainer.callbacks.base import Callback
from trainkit.trainer.callbacks.checkpointing import Checkpoint
from trainkit.trainer.callbacks.curriculum import Curriculum
from trainkit.trainer.callbacks.dataset_writer import DatasetWriter
from trainkit.trainer.callbacks.histograms import Histograms
from trainkit.trainer.callbacks.history import History
from trainkit.trainer.callbacks.keeping import SaveBest, SaveEvery
from trainkit.trainer.callbacks.log_info import LogInfo
from trainkit.trainer.callbacks.stopping import StopAt
from trainkit.trainer.callbacks.video import RecordVideo
from trainkit.trainer.evaluation import Evaluation, evaluate
from trainkit.trainer.offline import OfflineTrainer
from trainkit.trainer.offpolicy import OffpolicyTrainer
from trainkit.trainer.onpolicy import OnpolicyTrainer
from trainkit.trainer.restarting import run_with_restart

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
    "OffpolicyTrainer",
    "OnpolicyTrainer",
    "Trainer",
    "evaluate",
    "run_with_restart",
]
