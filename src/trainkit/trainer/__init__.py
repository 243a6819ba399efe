"""Training: the iterators that drive collector, buffer and policy."""

from trainkit.trainer.base import Trainer
from trainkit.trainer.callbacks import Callback, Checkpoint
from trainkit.trainer.evaluation import Evaluation, evaluate
from trainkit.trainer.offline import OfflineTrainer
from trainkit.trainer.offpolicy import OffpolicyTrainer
from trainkit.trainer.onpolicy import OnpolicyTrainer

__all__ = [
    "Callback",
    "Checkpoint",
    "Evaluation",
    "OfflineTrainer",
    "OffpolicyTrainer",
    "OnpolicyTrainer",
    "Trainer",
    "evaluate",
]
