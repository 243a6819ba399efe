"""Simulators: environments that stay on a device, tensors in and out; how they are collected from and checked."""

from trainkit.core.extensions import attach

__dir__, __getattr__ = attach(
    __name__,
    {
        "policy.advantages": "TensorRollout",
    },
)
