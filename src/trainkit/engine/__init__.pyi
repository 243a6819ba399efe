"""Engines execute losses and forward passes: torch here, others in extensions; see `engine`."""
# Written by `python -m tests.stubs`

from trainkit.engine.engine import Engine, EngineName
from trainkit.engine.gradient_step import Clip, GradientStep
from trainkit.engine.loss import Loss, Max, Min, TensorBatch
from trainkit.engine.optimizers import Adam, TorchOptimizer
from trainkit.engine.precision import Precision
from trainkit.extensions.cuda.device_frames import DeviceFrames

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
