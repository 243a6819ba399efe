"""Loggers: where a run's statistics are written, and how they are read back."""
# Written by `python -m tests.stubs`

from trainkit.core.protocols import HistogramLogger, Logger, PurgingLogger, TextLogger, VideoLogger
from trainkit.loggers.csv_file import CsvLogger
from trainkit.loggers.logger import JsonlLogger
from trainkit.loggers.runs import RunFolder, find_runs
from trainkit.loggers.tensorboard import TensorboardLogger
from trainkit.loggers.trackers import MlflowLogger, WandbLogger

__all__ = [
    "CsvLogger",
    "HistogramLogger",
    "JsonlLogger",
    "Logger",
    "MlflowLogger",
    "PurgingLogger",
    "RunFolder",
    "TensorboardLogger",
    "TextLogger",
    "VideoLogger",
    "WandbLogger",
    "find_runs",
]
