"""Loggers: where a run's statistics are written, and how they are read back."""

from trainkit.core.protocols import HistogramLogger, Logger, PurgingLogger, TextLogger, VideoLogger
from trainkit.loggers.logger import JsonlLogger
from trainkit.loggers.runs import RunFolder, find_runs
from trainkit.loggers.tensorboard import TensorboardLogger

__all__ = [
    "HistogramLogger",
    "JsonlLogger",
    "Logger",
    "PurgingLogger",
    "RunFolder",
    "TensorboardLogger",
    "TextLogger",
    "VideoLogger",
    "find_runs",
]
