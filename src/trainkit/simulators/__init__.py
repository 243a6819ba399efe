"""Simulators: environments that stay on a device, tensors in and out; how they are collected from and checked."""

from trainkit.core.extensions import attach
from trainkit.policy.advantages import TensorRollout

__all__ = ["TensorRollout"]

__dir__, __getattr__ = attach(__name__, __all__)
