"""Loggers: where a run's numbers go, and how they are read back."""

from trainkit.loggers.logger import JsonlLogger, TensorboardLogger

__all__ = [
    "JsonlLogger",
    "TensorboardLogger",
]
