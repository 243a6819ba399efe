"""Layer norm over the last axis, with its backward pass."""

from typing import Any

import numpy as np

from trainkit.engine.operations.elementwise import apply_like
from trainkit.engine.operations.reductions import summed
from trainkit.engine.program import Array, Builder
from trainkit.engine.recording import Node


def layer_norm(
    b: Builder, node: Node, x: Array, shape: Any, weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, Array, Array] | None:
    """Return (y, mean, 1 / deviation) with y = (x - mean) / deviation * weight + bias."""
    if len(shape) != 1:
        return None
    mean = _mean(b, x)
    f, g = apply_like(b, x), apply_like(b, mean)
    centered = f(np.subtract, x, mean)
    variance = _mean(b, f(np.multiply, centered, centered))
    rstd = g(np.divide, 1.0, g(np.sqrt, g(np.add, variance, eps)))
    y = f(np.multiply, centered, rstd)
    y = y if weight is None else f(np.multiply, y, weight)
    return y if bias is None else f(np.add, y, bias), mean, rstd


def layer_norm_backward(
    b: Builder,
    node: Node,
    grad: Array,
    x: Array,
    shape: Any,
    mean: Array,
    rstd: Array,
    weight: Array | None,
    bias: Array | None,
    wanted: Any,
) -> tuple[Array, ...] | None:
    """Return the gradients that are wanted: by x, the weight and the bias.

    With n = (x - mean) / deviation and g = grad * weight: (g - mean of g - n * mean of g n) / deviation.
    """
    if len(shape) != 1:
        return None
    f = apply_like(b, x)
    normalized = f(np.multiply, f(np.subtract, x, mean), rstd)
    results: list[Array] = []
    rows = tuple(range(x.view.ndim - 1))
    if wanted[0]:
        g = grad if weight is None else f(np.multiply, grad, weight)
        along = f(np.multiply, normalized, _mean(b, f(np.multiply, g, normalized)))
        results.append(f(np.multiply, f(np.subtract, f(np.subtract, g, _mean(b, g)), along), rstd))
    if wanted[1]:
        results.append(summed(b, f(np.multiply, grad, normalized), rows, keepdim=False))
    if wanted[2]:
        results.append(summed(b, grad, rows, keepdim=False))
    return tuple(results)


def _mean(b: Builder, x: Array) -> Array:
    total = summed(b, x, (x.view.ndim - 1,), keepdim=True)
    return apply_like(b, total)(np.divide, total, x.shape[-1])
