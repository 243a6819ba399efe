"""Sums, means, extremes and other reductions along axes."""

import math
from operator import itemgetter
from typing import Any

import numpy as np

from trainkit.extensions.numpy_engine import kernels
from trainkit.extensions.numpy_engine.operations.elementwise import (
    Operation,
    apply,
    apply_like,
    axes_order,
    flattened,
    stride,
    without_repeats,
)
from trainkit.extensions.numpy_engine.program import Array, Builder, Kernel
from trainkit.extensions.numpy_engine.recording import Node

_SHORT = 4  # an axis of at most this size is reduced slice by slice
_MOST_ADDED = 512  # rows that BLAS adds up one after the other; errors grow with their number

# ---- sums ----


def total(b: Builder, node: Node, x: Array, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Array:
    return b.cast(summed(b, b.cast(x, node.numpy_dtype), dims, keepdim=keepdim), node.numpy_dtype)


def mean(b: Builder, node: Node, x: Array, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Array:
    x = b.cast(x, node.numpy_dtype)
    result = summed(b, x, dims, keepdim=keepdim)
    n = math.prod(x.shape[axis] for axis in _axes(dims, x.view.ndim))
    return result if n == 1 else apply_like(b, node)(np.divide, result, n)


def cumsum(b: Builder, node: Node, x: Array, dim: int, dtype: Any = None) -> Array:
    x = b.cast(x, node.numpy_dtype)
    return b.call(kernels.accumulate, x, shape=node.shape, dtype=x.dtype, options=(dim % x.view.ndim,))


def summed(b: Builder, x: Array, dims: Any, *, keepdim: bool) -> Array:
    """Return a sum over axes; sums over the first or last axes are computed by BLAS as a product with ones."""
    axes, shape = _axes(dims, x.view.ndim), x.shape
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    shape_out = kept if keepdim else _without(shape, axes)
    n_axes, n = len(shape), math.prod(shape[axis] for axis in axes)
    if n == 1:
        return b.reshape(x, shape_out)
    small = tuple(1 if size > 1 and stride(x, axis, n_axes) == 0 else size for axis, size in enumerate(shape))
    if small != shape and x.view.size:  # repeated numbers are added up once
        result = summed(b, without_repeats(b, x, small), axes, keepdim=True)
        n_times = math.prod(shape[axis] // small[axis] for axis in axes)
        if n_times > 1:
            result = apply_like(b, result)(np.multiply, result, n_times)
        return b.reshape(b.view(result, lambda array: np.broadcast_to(array, kept)), shape_out)
    if x.dtype.kind == "f" and x.view.size and x.is_dense:
        n_rest = x.view.size // n
        if axes == tuple(range(n_axes - len(axes), n_axes)):
            rows = b.reshape(x, (n_rest, n)) if n_rest > 1 else b.reshape(x, (n,))
            ones = b.full((n,), 1.0, x.dtype)
            result = b.call(kernels.product, rows, ones, shape=rows.shape[:-1], dtype=x.dtype)
            return b.reshape(result, shape_out)
        if axes == tuple(range(len(axes))):
            columns = _partly_summed(b, b.reshape(x, (n, n_rest)))
            ones = b.full(columns.shape[:1], 1.0, x.dtype)
            return b.reshape(b.call(kernels.product, ones, columns, shape=(n_rest,), dtype=x.dtype), shape_out)
    if len(axes) == 1 and n <= _SHORT and x.dtype.kind == "f":
        return b.reshape(_slice_by_slice(b, x, axes[0], np.add), shape_out)
    x = b.cast(x, np.int64) if x.dtype.kind in "biu" else x
    return b.reshape(_reduced(b, x, axes, np.add), shape_out)


def _partly_summed(b: Builder, columns: Array) -> Array:
    """Return sums [P, C] of P equal parts of rows [N, C], or the rows themselves if N is small or has no divisor."""
    n, n_columns = columns.shape
    size = next((size for size in range(_MOST_ADDED, 31, -1) if n % size == 0), n)
    if n <= _MOST_ADDED or size == n or not columns.view.flags.c_contiguous:
        return columns
    parts = b.reshape(columns, (n // size, size, n_columns))
    ones = b.view(b.full((1, size), 1.0, columns.dtype), lambda array: np.broadcast_to(array, (n // size, 1, size)))
    sums = b.call(kernels.stacked_product, ones, parts, shape=(n // size, 1, n_columns), dtype=columns.dtype)
    return b.reshape(sums, (n // size, n_columns))


def _axes(dims: Any, n_axes: int) -> tuple[int, ...]:
    dims = range(n_axes) if dims is None or (isinstance(dims, (list, tuple)) and not dims) else dims
    return tuple(sorted(d % n_axes for d in ([dims] if isinstance(dims, int) else dims))) if n_axes else ()


def _without(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


def _reduced(b: Builder, x: Array, axes: tuple[int, ...], function: np.ufunc, *, keepdims: bool = False) -> Array:
    shape = tuple(1 if i in axes else n for i, n in enumerate(x.shape)) if keepdims else _without(x.shape, axes)
    return b.call(kernels.reduce, x, shape=shape, dtype=x.dtype, options=(function, axes, keepdims))


def _slice_by_slice(b: Builder, x: Array, axis: int, function: np.ufunc) -> Array:
    """Return a reduction along a short axis, kept with size 1."""
    before = (slice(None),) * axis
    parts = [b.view(x, itemgetter((*before, slice(i, i + 1)))) for i in range(x.shape[axis])]
    result = parts[0]
    for part in parts[1:]:
        result = apply_like(b, part)(function, result, part)
    return result


# ---- extremes ----


def largest(b: Builder, x: Array, dim: int, function: np.ufunc) -> Array:
    """Return the maximum or minimum along an axis, which is kept with size 1."""
    axis = dim % x.view.ndim
    if x.shape[axis] <= _SHORT:
        return _slice_by_slice(b, x, axis, function)
    return _reduced(b, x, (axis,), function, keepdims=True)


_FIND: dict[Any, Kernel] = {np.maximum: kernels.largest_at, np.minimum: kernels.smallest_at}


def extreme(function: np.ufunc) -> Operation:
    """Return the operation amax or amin."""
    return lambda b, node, x, dims=(), keepdim=False: _extreme(b, node, x, dims, function)


def extreme_and_index(function: np.ufunc) -> Operation:
    """Return the operation max or min: of two arrays, of all elements, or along an axis with indices."""

    def operation(b: Builder, node: Node, x: Array, dim: Any = None, keepdim: bool = False) -> Any:
        if isinstance(dim, Array):
            return apply_like(b, node)(function, x, dim)
        if dim is None:
            return _extreme(b, node, x, None, function)
        index = index_of_extreme(function)(b, node, x, dim)
        return _extreme(b, node, x, [dim], function), index

    return operation


def index_of_extreme(function: np.ufunc) -> Operation:
    """Return the operation argmax or argmin."""

    def operation(b: Builder, node: Node, x: Array, dim: Any = None, keepdim: bool = False) -> Array:
        x, axis = (b.reshape(x, (x.view.size,)), 0) if dim is None else (x, dim % x.view.ndim)
        index = b.call(_FIND[function], x, shape=_without(x.shape, (axis,)), dtype=np.int64, options=(axis,))
        index.index_size = x.shape[axis]
        return b.reshape(index, node.shape)

    return operation


def _extreme(b: Builder, node: Node, x: Array, dims: Any, function: np.ufunc) -> Array:
    axes = _axes(dims, x.view.ndim)
    if len(axes) == x.view.ndim and x.is_dense and x.view.size > 1:
        x, axes = flattened(b, x, axes_order(x)), (0,)
    if len(axes) == x.view.ndim == 1 and x.shape[0] > _SHORT:  # numpy finds the index faster than the number
        at = b.call(_FIND[function], x, shape=(), dtype=np.int64, options=(0,))
        return b.reshape(b.call(kernels.take, x, at, shape=(), dtype=x.dtype), node.shape)
    if len(axes) == 1:
        return b.reshape(largest(b, x, axes[0], function), node.shape)
    return b.reshape(_reduced(b, x, axes, function), node.shape)


def logical(function: np.ufunc) -> Operation:
    """Return the operation any or all."""

    def operation(b: Builder, node: Node, x: Array, dims: Any = None, keepdim: bool = False) -> Array:
        axes = _axes(dims, x.view.ndim)
        is_set = x if x.dtype == np.bool_ else apply(b, np.not_equal, x, 0, shape=x.shape, dtype=np.bool_, of=x.dtype)
        if len(axes) == 1 and x.shape[axes[0]] <= _SHORT:
            return b.reshape(_slice_by_slice(b, is_set, axes[0], function), node.shape)
        return b.reshape(_reduced(b, is_set, axes, function), node.shape)

    return operation


def logsumexp(b: Builder, node: Node, x: Array, dims: Any, keepdim: bool = False) -> Array | None:
    if len(dims) != 1:
        return None
    top = largest(b, x, dims[0], np.maximum)
    is_finite = apply(b, np.isfinite, top, shape=top.shape, dtype=np.bool_, of=x.dtype)
    zero = b.constant(np.array(0, x.dtype))  # is subtracted where the largest is infinite
    top = b.call(kernels.select, is_finite, top, zero, shape=top.shape, dtype=x.dtype)
    f = apply_like(b, x)
    sum_exp = summed(b, f(np.exp, f(np.subtract, x, top)), tuple(dims), keepdim=True)
    g = apply_like(b, sum_exp)
    return b.reshape(g(np.add, g(np.log, sum_exp), top), node.shape)


def sort(
    b: Builder, node: Node, x: Array, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> tuple[Array, Array] | None:
    """Sort along an axis, always stably."""
    if descending:
        return None
    axis = (dim % x.view.ndim,)
    order = b.call(kernels.sorting_order, x, shape=node.shape, dtype=np.int64, options=axis)
    order.index_size = x.shape[axis[0]]
    return b.call(kernels.sort, x, shape=node.shape, dtype=x.dtype, options=axis), order
