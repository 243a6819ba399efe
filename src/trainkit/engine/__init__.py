"""Engines execute losses and forward passes: torch here, others in extensions; see `engine`."""

from trainkit.core.extensions import attach

__dir__, __getattr__ = attach(
    __name__,
    {
        "engine.engine": "Engine EngineName",
        "engine.gradient_step": "Clip GradientStep",
        "engine.loss": "Loss Max Min TensorBatch",
        "engine.optimizers": "Adam TorchOptimizer",
        "engine.precision": "Precision",
    },
)
