"""Views, copies, constants, and arrays put together."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from trainkit.extensions.numpy_engine import kernels
from trainkit.extensions.numpy_engine.operations.elementwise import Operation
from trainkit.extensions.numpy_engine.program import Array, Builder
from trainkit.extensions.numpy_engine.recording import Node

# ---- views ----


def same(b: Builder, node: Node, x: Array) -> Array:
    return x


def permute(b: Builder, node: Node, x: Array, dims: Sequence[int]) -> Array:
    return b.view(x, lambda array: array.transpose(dims))


def view(b: Builder, node: Node, x: Array, size: Any) -> Array | None:
    if isinstance(size, torch.dtype):
        return None
    has_inner_rows = len(node.shape) > 2 and node.shape[-1] > 1
    return b.reshape(b.in_order(x) if has_inner_rows else x, node.shape)


def squeeze(b: Builder, node: Node, x: Array, *_: Any) -> Array:
    return b.reshape(x, node.shape)


def expand(b: Builder, node: Node, x: Array, *_: Any, **__: Any) -> Array:
    return b.view(x, lambda array: np.broadcast_to(array, node.shape))


def select(b: Builder, node: Node, x: Array, dim: int, index: int) -> Array:
    at = (slice(None),) * (dim % x.view.ndim) + (index,)
    return b.view(x, lambda array: array[(*at, ...)])


def sliced(b: Builder, node: Node, x: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Array:
    at = (slice(None),) * (dim % x.view.ndim) + (slice(start, end, step),)
    return b.view(x, lambda array: array[at])


def split(b: Builder, node: Node, x: Array, sizes: Any, dim: int = 0) -> tuple[Array, ...]:
    axis = dim % x.view.ndim
    n = x.shape[axis]
    sizes = [sizes] * -(-n // sizes) if isinstance(sizes, int) else sizes
    ends = np.minimum(np.cumsum(sizes), n).tolist()
    return tuple(sliced(b, node, x, axis, start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True))


def unbind(b: Builder, node: Node, x: Array, dim: int = 0) -> tuple[Array, ...]:
    return tuple(select(b, node, x, dim, i) for i in range(x.shape[dim]))


# ---- copies ----


def clone(b: Builder, node: Node, x: Array, **_: Any) -> Array:
    return b.in_order(x)


def to_copy(b: Builder, node: Node, x: Array, **_: Any) -> Array:
    return b.cast(x, node.numpy_dtype)


def copy(b: Builder, node: Node, x: Array, source: Array, non_blocking: bool = False) -> Array:
    return expand(b, node, b.cast(source, node.numpy_dtype))


# ---- constants ----


def full(value: float) -> Operation:
    """Return the operation that makes an array of one value."""
    return lambda b, node, *_, **__: b.full(node.shape, value, node.numpy_dtype)


def full_of_argument(b: Builder, node: Node, *arguments: Any, **_: Any) -> Array:
    """Return an array of one value, which is the last of the arguments."""
    return b.full(node.shape, arguments[-1], node.numpy_dtype)


def fill(b: Builder, node: Node, x: Array, value: Any) -> Array:
    return copy(b, node, x, value) if isinstance(value, Array) else full_of_argument(b, node, value)


def arange(b: Builder, node: Node, *bounds: Any, **_: Any) -> Array:
    return b.constant(np.arange(*bounds).astype(node.numpy_dtype))


# ---- arrays put together ----


def cat(b: Builder, node: Node, parts: Sequence[Array], dim: int = 0) -> Array:
    parts = [b.cast(part, node.numpy_dtype) for part in parts if part.view.size]
    return b.call(kernels.join, *parts, shape=node.shape, dtype=node.numpy_dtype, options=(dim % len(node.shape),))


def stack(b: Builder, node: Node, parts: Sequence[Array], dim: int = 0) -> Array:
    axis = dim % len(node.shape)
    shape = (*parts[0].shape[:axis], 1, *parts[0].shape[axis:])
    return cat(b, node, [b.reshape(part, shape) for part in parts], axis)


def slice_backward(b: Builder, node: Node, grad: Array, sizes: Any, dim: int, start: int, end: int, step: int) -> Array:
    at = [slice(None)] * (dim % len(node.shape)) + [slice(start, end, step)]
    return _embed(b, node, grad, at)


def select_backward(b: Builder, node: Node, grad: Array, sizes: Any, dim: int, index: int) -> Array:
    axis = dim % len(node.shape)
    one = b.reshape(grad, (*grad.shape[:axis], 1, *grad.shape[axis:]))
    index %= node.shape[axis]
    return slice_backward(b, node, one, sizes, axis, index, index + 1, 1)


def pad(b: Builder, node: Node, x: Array, pads: Sequence[int], value: float = 0) -> Array | None:
    if value != 0 or min(pads) < 0:
        return None
    at = [slice(None)] * x.view.ndim
    for i, start in enumerate(pads[::2]):  # of the last axis first
        axis = x.view.ndim - 1 - i
        at[axis] = slice(start, start + x.shape[axis])
    return _embed(b, node, x, at)


def _embed(b: Builder, node: Node, x: Array, at: Sequence[slice]) -> Array:
    """Return zeros with x at some slices."""
    bounds = tuple((one.start, one.stop, one.step) for one in at)  # slices have no hash before Python 3.12
    return b.call(kernels.embed, x, shape=node.shape, dtype=node.numpy_dtype, options=(bounds,))
