"""Engines execute losses and forward passes: torch here, others in extensions; see `engine`."""

from trainkit.core.extensions import attach
from trainkit.engine.engine import Engine, EngineName
from trainkit.engine.gradient_step import Clip, GradientStep
from trainkit.engine.loss import Loss, Max, Min, TensorBatch
from trainkit.engine.optimizers import Adam, TorchOptimizer
from trainkit.engine.precision import Precision

__all__ = [
    "Adam",
    "Clip",
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

__dir__, __getattr__ = attach(__name__, __all__)
