"""Training: the iterators that drive collector, buffer and policy."""

from trainkit.trainer.base import Trainer
from trainkit.trainer.callbacks import Callback, Checkpoint
from trainkit.trainer.evaluation import Evaluation, evaluate
from trainkit.trainer.offpolicy import OffpolicyTrainer

__all__ = ["Callback", "Checkpoint", "Evaluation", "OffpolicyTrainer", "Trainer", "evaluate"]
