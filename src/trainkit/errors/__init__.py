"""Errors: everything trainkit raises, `TrainkitError` and its subclasses."""

from trainkit.core.errors import (
    BadEnvDataError,
    BusyError,
    CheckpointError,
    ConfigError,
    DeviceError,
    DivergedError,
    EmptyBufferError,
    EnvError,
    MissingExtraError,
    MissingRowError,
    NoLegalActionError,
    PriorityError,
    RankError,
    SpaceMismatchError,
    TrainkitError,
)

__all__ = [
    "BadEnvDataError",
    "BusyError",
    "CheckpointError",
    "ConfigError",
    "DeviceError",
    "DivergedError",
    "EmptyBufferError",
    "EnvError",
    "MissingExtraError",
    "MissingRowError",
    "NoLegalActionError",
    "PriorityError",
    "RankError",
    "SpaceMismatchError",
    "TrainkitError",
]
