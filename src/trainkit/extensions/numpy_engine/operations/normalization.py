"""Layer norm over the last axis and batch norm over rows, with their backward passes."""

from typing import Any

import numpy as np

from trainkit.extensions.numpy_engine.operations.elementwise import apply_like
from trainkit.extensions.numpy_engine.operations.reductions import summed
from trainkit.extensions.numpy_engine.program import Array, Builder
from trainkit.extensions.numpy_engine.recording import Node


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


def batch_norm(
    b: Builder,
    node: Node,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Array, ...] | None:
    """Return (y, mean, 1 / deviation) of rows [B, F] with y = (x - mean) / deviation * weight + bias.

    In training mean and variance are those of the rows, and the running ones, where there are any, follow: they are
    returned, too, the variance without bias. Else the running ones are used, and mean and deviation are empty.
    """
    if x.view.ndim != 2 or (training and len(x.view) < 2):
        return None
    f = apply_like(b, x)
    if training:
        mean = _mean_of_rows(b, x)
        centered = f(np.subtract, x, mean)
        variance = _mean_of_rows(b, f(np.multiply, centered, centered))
    elif running_mean is not None and running_var is not None:
        centered, variance = f(np.subtract, x, running_mean), running_var
        mean = running_mean
    else:
        return None
    g = apply_like(b, mean)
    rstd = g(np.divide, 1.0, g(np.sqrt, g(np.add, variance, eps)))
    y = f(np.multiply, centered, rstd)
    y = y if weight is None else f(np.multiply, y, weight)
    y = y if bias is None else f(np.add, y, bias)
    if not training:
        empty = b.full((0,), 0.0, np.float32)
        return y, empty, empty
    if running_mean is None or running_var is None:
        return y, mean, rstd
    n_rows = len(x.view)
    unbiased = g(np.multiply, variance, n_rows / (n_rows - 1))
    followed = (_followed(b, before, now, momentum) for before, now in ((running_mean, mean), (running_var, unbiased)))
    return y, mean, rstd, *followed


def _followed(b: Builder, before: Array, now: Array, momentum: float) -> Array:
    """Return a running statistic after rows with this one."""
    f = apply_like(b, before)
    return f(np.add, f(np.multiply, now, momentum), f(np.multiply, before, 1.0 - momentum))


def batch_norm_backward(
    b: Builder,
    node: Node,
    grad: Array,
    x: Array,
    weight: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    mean: Array | None,
    rstd: Array | None,
    training: bool,
    eps: float,
    wanted: Any,
) -> tuple[Array, ...] | None:
    """Return the gradients that are wanted: by x [B, F], the weight and the bias; see `layer_norm_backward`."""
    if x.view.ndim != 2:
        return None
    if not training:
        if running_mean is None or running_var is None:
            return None
        g = apply_like(b, running_var)
        mean, rstd = running_mean, g(np.divide, 1.0, g(np.sqrt, g(np.add, running_var, eps)))
    if mean is None or rstd is None:
        return None
    f = apply_like(b, x)
    normalized = f(np.multiply, f(np.subtract, x, mean), rstd)
    results: list[Array] = []
    if wanted[0]:
        by_x = grad if weight is None else f(np.multiply, grad, weight)
        if training:
            along = f(np.multiply, normalized, _mean_of_rows(b, f(np.multiply, by_x, normalized)))
            by_x = f(np.subtract, f(np.subtract, by_x, _mean_of_rows(b, by_x)), along)
        results.append(f(np.multiply, by_x, rstd))
    if wanted[1]:
        results.append(summed(b, f(np.multiply, grad, normalized), (0,), keepdim=False))
    if wanted[2]:
        results.append(summed(b, grad, (0,), keepdim=False))
    return tuple(results)


def _mean(b: Builder, x: Array) -> Array:
    total = summed(b, x, (x.view.ndim - 1,), keepdim=True)
    return apply_like(b, total)(np.divide, total, x.shape[-1])


def _mean_of_rows(b: Builder, x: Array) -> Array:
    total = summed(b, x, (0,), keepdim=False)
    return apply_like(b, total)(np.divide, total, len(x.view))
