"""Engines execute losses and forward passes: torch here, others in extensions; see `engine`."""

from trainkit.engine.device_frames import DeviceFrames
from trainkit.engine.engine import Engine, EngineName
from trainkit.engine.gradient_step import Clip, GradientStep
from trainkit.engine.loss import Loss, Max, Min, TensorBatch
from trainkit.engine.optimizers import Adam, TorchOptimizer
from trainkit.engine.precision import Precision

__all__ = [
    "Adam",
    "Clip",
    "DeviceFrames",
    "Engine",
    "EngineName",
    "GradientStep",
    "Loss",
    "Max",
    "Min",
    "Precision",
    "TensorBatch",
    "TorchOptimizer",
]
