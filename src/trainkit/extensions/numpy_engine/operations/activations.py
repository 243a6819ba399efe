"""Activations and losses of `torch.nn.functional`, with their backward passes."""

from typing import Any

import numpy as np

from trainkit.extensions.numpy_engine import kernels
from trainkit.extensions.numpy_engine.operations.elementwise import absolute, apply_like, broadcast, full_like
from trainkit.extensions.numpy_engine.operations.indexing import gather, scatter_to_zeros
from trainkit.extensions.numpy_engine.operations.reductions import largest, summed
from trainkit.extensions.numpy_engine.program import Array, Builder
from trainkit.extensions.numpy_engine.recording import Node


def relu(b: Builder, node: Node, x: Array) -> Array:
    return broadcast(b, kernels.relu, [x, full_like(b, x, 0.0, x.dtype)], node.shape, node.numpy_dtype)


def threshold_backward(b: Builder, node: Node, grad: Array, y: Array, threshold: float) -> Array:
    shape, dtype = node.shape, node.numpy_dtype
    if threshold == 0 and dtype == np.float32 and b.maker(y)[0] is kernels.relu and grad.shape == y.shape == shape:
        if grad.view.flags.c_contiguous:
            y = b.in_order(y)
        return broadcast(b, kernels.relu_backward, [grad, y, full_like(b, y, 1, np.int32)], shape, dtype)
    f = apply_like(b, node)
    return f(np.multiply, grad, f(np.greater, y, threshold, dtype=np.bool_, of=y.dtype))


def tanh_backward(b: Builder, node: Node, grad: Array, y: Array) -> Array:
    f = apply_like(b, node)
    y = b.in_order(y) if grad.view.flags.c_contiguous else y
    return f(np.multiply, grad, f(np.subtract, 1.0, f(np.multiply, y, y)))


def sigmoid(b: Builder, node: Node, x: Array) -> Array:
    return apply_like(b, node)(kernels.logistic, x)


def sigmoid_backward(b: Builder, node: Node, grad: Array, y: Array) -> Array:
    f = apply_like(b, node)
    return f(np.multiply, grad, f(np.multiply, f(np.subtract, 1.0, y), y))


def silu(b: Builder, node: Node, x: Array) -> Array:
    f = apply_like(b, node)
    return f(np.multiply, x, f(kernels.logistic, x))


def silu_backward(b: Builder, node: Node, grad: Array, x: Array) -> Array:
    """With s = sigmoid(x), grad * s * (1 + x (1 - s))."""
    f = apply_like(b, node)
    s = f(kernels.logistic, x)
    slope = f(np.add, f(np.multiply, f(np.subtract, 1.0, s), x), 1.0)
    return f(np.multiply, f(np.multiply, slope, s), grad)


def elu(b: Builder, node: Node, x: Array, *scales: float) -> Array | None:
    """max(x, 0) + exp(min(x, 0)) - 1, which never overflows."""
    if any(scale != 1 for scale in scales):
        return None
    f, zeros = apply_like(b, node), full_like(b, x, 0.0, x.dtype)
    return f(np.add, f(np.expm1, f(np.minimum, x, zeros)), f(np.maximum, x, zeros))


def elu_backward(
    b: Builder, node: Node, grad: Array, alpha: float, scale: float, input_scale: float, is_result: bool, x: Array
) -> Array | None:
    if is_result or not alpha == scale == input_scale == 1:
        return None
    f = apply_like(b, node)
    return f(np.multiply, f(np.exp, f(np.minimum, x, full_like(b, x, 0.0, x.dtype))), grad)


_LINEAR_FROM = 18  # where log(1 + exp(x)) is x in float32


def softplus(b: Builder, node: Node, x: Array, beta: float = 1, threshold: float = 20) -> Array | None:
    return _softplus(b, x) if beta == 1 and threshold >= _LINEAR_FROM else None


def _softplus(b: Builder, x: Array) -> Array:
    """log(1 + exp(x)) as max(x, 0) + log(1 + exp(-|x|)), which never overflows."""
    f = apply_like(b, x)
    rest = f(np.log1p, f(np.exp, f(np.negative, f(np.absolute, x))))
    return f(np.add, f(np.maximum, x, b.full(x.shape, 0.0, x.dtype)), rest)


def softplus_backward(b: Builder, node: Node, grad: Array, x: Array, beta: float, threshold: float) -> Array | None:
    if beta != 1 or threshold < _LINEAR_FROM:
        return None
    return apply_like(b, node)(np.multiply, grad, apply_like(b, x)(kernels.logistic, x))


# ---- softmax ----


def softmax(b: Builder, node: Node, x: Array, dim: int, half_to_float: bool) -> Array:
    f = apply_like(b, node)
    odds = f(np.exp, _below_largest(b, x, dim))
    return f(np.divide, odds, summed(b, odds, (dim,), keepdim=True))


def log_softmax(b: Builder, node: Node, x: Array, dim: int, half_to_float: bool) -> Array:
    f = apply_like(b, node)
    below = _below_largest(b, x, dim)
    total = summed(b, f(np.exp, below), (dim,), keepdim=True)
    return f(np.subtract, below, f(np.log, total, shape=total.shape))


def softmax_backward(b: Builder, node: Node, grad: Array, y: Array, dim: int, dtype: Any) -> Array:
    f = apply_like(b, node)
    weighted = f(np.multiply, grad, y)
    return f(np.subtract, weighted, f(np.multiply, y, summed(b, weighted, (dim,), keepdim=True)))


def log_softmax_backward(b: Builder, node: Node, grad: Array, y: Array, dim: int, dtype: Any) -> Array:
    f = apply_like(b, node)
    return f(np.subtract, grad, f(np.multiply, f(np.exp, y), summed(b, grad, (dim,), keepdim=True)))


def _below_largest(b: Builder, x: Array, dim: int) -> Array:
    return apply_like(b, x)(np.subtract, x, largest(b, x, dim, np.maximum))


# ---- losses: `reduction` is 0 for none, 1 for mean, 2 for sum ----


def _reduced(b: Builder, x: Array, reduction: int) -> Array:
    if reduction == 0:
        return x
    total = summed(b, x, tuple(range(x.view.ndim)), keepdim=False)
    return total if reduction == 2 else apply_like(b, total)(np.divide, total, x.view.size)


def _grad_of_each(b: Builder, node: Node, grad: Array, n: int, reduction: int) -> Array:
    """Return the gradient of each of n elements of a reduction."""
    return grad if reduction != 1 else apply_like(b, node)(np.divide, grad, n, shape=grad.shape)


def huber_loss(b: Builder, node: Node, x: Array, y: Array, reduction: int = 1, delta: float = 1.0) -> Array:
    f, shape = apply_like(b, node), np.broadcast_shapes(x.shape, y.shape)
    size = absolute(b, node, f(np.subtract, x, y, shape=shape))
    near = f(np.minimum, size, b.full(size.shape, delta, size.dtype), shape=shape)
    rest = f(np.subtract, size, f(np.multiply, near, 0.5, shape=shape), shape=shape)
    return _reduced(b, f(np.multiply, near, rest, shape=shape), reduction)


def huber_loss_backward(
    b: Builder, node: Node, grad: Array, x: Array, y: Array, reduction: int, delta: float, **_: Any
) -> Array:
    f = apply_like(b, node)
    error = f(np.subtract, x, y)
    near = f(np.maximum, error, b.full(node.shape, -delta, error.dtype))
    near = f(np.minimum, near, b.full(node.shape, delta, error.dtype))
    return f(np.multiply, near, _grad_of_each(b, node, grad, error.view.size, reduction))


def mse_loss(b: Builder, node: Node, x: Array, y: Array, reduction: int = 1) -> Array:
    f, shape = apply_like(b, node), np.broadcast_shapes(x.shape, y.shape)
    error = f(np.subtract, x, y, shape=shape)
    return _reduced(b, f(np.multiply, error, error, shape=shape), reduction)


def mse_loss_backward(b: Builder, node: Node, grad: Array, x: Array, y: Array, reduction: int, **_: Any) -> Array:
    f = apply_like(b, node)
    error = f(np.subtract, x, y)
    return f(np.multiply, f(np.multiply, error, 2.0), _grad_of_each(b, node, grad, error.view.size, reduction))


def nll_loss(
    b: Builder, node: Node, log_p: Array, target: Array, weight: Any, reduction: int, ignore_index: int
) -> tuple[Array, Array] | None:
    """Choose -log p of each label; one that is ignored, by default -100, is out of range, which is left to torch."""
    if weight is not None or log_p.view.ndim != 2 or reduction != 0 or ignore_index >= 0:
        return None
    chosen = gather(b, node, log_p, 1, b.reshape(target, (*target.shape, 1)))
    assert chosen is not None, "the shapes fit"
    total_weight = b.constant(np.zeros((), log_p.dtype))
    return apply_like(b, node)(np.negative, b.reshape(chosen, target.shape)), total_weight


def nll_loss_backward(
    b: Builder,
    node: Node,
    grad: Array,
    log_p: Array,
    target: Array,
    weight: Any,
    reduction: int,
    ignore_index: int,
    total_weight: Array,
) -> Array | None:
    if weight is not None or log_p.view.ndim != 2 or reduction != 0 or ignore_index >= 0:
        return None
    source = apply_like(b, node)(np.negative, grad, shape=grad.shape)
    column = (*target.shape, 1)
    return scatter_to_zeros(b, node, 1, b.reshape(target, column), b.reshape(source, column))


def binary_cross_entropy_with_logits(
    b: Builder, node: Node, x: Array, y: Array, weight: Any = None, pos_weight: Any = None, reduction: int = 1
) -> Array | None:
    """-y log p - (1 - y) log(1 - p) = softplus(x) - x y."""
    if weight is not None or pos_weight is not None:
        return None
    f = apply_like(b, x)
    product = f(np.multiply, x, y)
    return _reduced(b, f(np.subtract, _softplus(b, x), product), reduction)
