"""Gathering and scattering rows by index."""

import math
from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from trainkit.extensions.numpy_engine import kernels
from trainkit.extensions.numpy_engine.operations.elementwise import apply, apply_like, stride, without_repeats
from trainkit.extensions.numpy_engine.program import Array, Builder
from trainkit.extensions.numpy_engine.recording import Node


def gather(b: Builder, node: Node, x: Array, dim: int, index: Array, *, sparse_grad: bool = False) -> Array | None:
    found = _rows(b, x.shape, dim, index)
    if found is None:
        return None
    flat, length = found
    n = x.view.size // length
    table = b.reshape(x, (n, length)) if length > 1 else b.reshape(x, (n,))
    shape = (flat.shape[0], length) if length > 1 else flat.shape
    return b.reshape(b.call(kernels.take, table, flat, shape=shape, dtype=x.dtype), index.shape)


def scatter_add(b: Builder, node: Node, x: Array, dim: int, index: Array, source: Array) -> Array | None:
    made = scatter_to_zeros(b, node, dim, index, source)
    return made if made is None or _is_zeros(x) else apply_like(b, node)(np.add, x, made)


def scatter(
    b: Builder, node: Node, x: Array, dim: int, index: Array, source: Any, *, reduce: str | None = None
) -> Array | None:
    if reduce is not None or not _is_zeros(x) or index.shape[dim] != 1:
        return None
    if not isinstance(source, Array):
        source = b.full(index.shape, source, node.numpy_dtype)
    return scatter_to_zeros(b, node, dim, index, source) if source.shape == index.shape else None


def _is_zeros(x: Array) -> bool:
    return x.memory.is_constant and not x.view.any()


def scatter_to_zeros(b: Builder, node: Node, dim: int, index: Array, source: Array) -> Array | None:
    """Return zeros with `source` added at an index along an axis."""
    found = _rows(b, node.shape, dim, index)
    if found is None:
        return None
    flat, length = found
    n = math.prod(node.shape) // length
    is_unique = index.shape[dim] == 1
    if length > 1 and not is_unique:
        return None
    table, rows = ((n, length), (flat.shape[0], length)) if length > 1 else ((n,), flat.shape)
    kernel = kernels.put if is_unique else kernels.add_at
    made = b.call(kernel, flat, b.reshape(source, rows), shape=table, dtype=node.numpy_dtype)
    return b.reshape(made, node.shape)


def _rows(b: Builder, x_shape: tuple[int, ...], dim: int, index: Array) -> tuple[Array, int] | None:
    """Return (index [M] of rows, their length) of the elements at `index` along an axis; None for shapes that differ.

    An index that is the same along the axes after `dim` takes whole rows.
    """
    axis = dim % len(x_shape)
    lead, size, trail = x_shape[:axis], x_shape[axis], x_shape[axis + 1 :]
    if index.shape[:axis] != lead or index.shape[axis + 1 :] != trail:
        return None
    n_axes = index.view.ndim
    repeats = [stride(index, i, n_axes) == 0 for i in range(n_axes)]
    small = tuple(1 if is_repeat else n for is_repeat, n in zip(repeats, index.shape, strict=True))
    _check(b, without_repeats(b, index, small), size)
    n_trail = math.prod(trail)
    if all(repeats[axis + 1 :]) or n_trail == 1:
        first: tuple[Any, ...] = (*(slice(None),) * (axis + 1), *((0,) * len(trail)))
        index = b.view(index, itemgetter(first))
        length, factor, offset = n_trail, 1, np.zeros((), np.int64)
    else:
        length, factor, offset = 1, n_trail, np.arange(n_trail).reshape(trail)
    flat = index if factor == 1 else apply(b, np.multiply, index, factor, shape=index.shape, dtype=np.int64)
    starts = np.arange(math.prod(lead)).reshape(lead) * (size * factor)
    base = starts.reshape(*lead, 1, *(1,) * (index.view.ndim - axis - 1)) + offset
    if base.size > 1:
        flat = apply(b, np.add, flat, b.constant(np.ascontiguousarray(base)), shape=index.shape, dtype=np.int64)
    return b.reshape(flat, (flat.view.size,)), length


def _check(b: Builder, index: Array, size: int) -> None:
    """Check an index at every call, unless it is known to be in 0 ... size - 1."""
    if index.index_size is None or index.index_size > size:
        b.check(kernels.check_index, b.in_order(b.cast(index, np.int64)), options=(size,))


def index_select(b: Builder, node: Node, x: Array, dim: int, index: Array) -> Array | None:
    return embedding(b, node, x, index) if dim % x.view.ndim == 0 else None


def embedding(b: Builder, node: Node, table: Array, index: Array, *_: Any) -> Array:
    _check(b, index, len(table.view))
    return _take(b, node, table, index)


def index(b: Builder, node: Node, x: Array, indices: Sequence[Array | None]) -> Array | None:
    """Index the first axes by integers of one shape, of which negative ones count from the end."""
    given = [one for one in indices if one is not None]
    if len(given) < len(indices) or len({one.shape for one in given}) > 1:
        return None
    f = partial(apply, b, shape=given[0].shape, dtype=np.int64)
    flat, *others = (_from_start(b, one, size) for one, size in zip(given, x.shape, strict=False))
    for one, size in zip(others, x.shape[1:], strict=False):
        flat = f(np.add, f(np.multiply, flat, size), one)
    n = len(given)
    return _take(b, node, b.reshape(x, (math.prod(x.shape[:n]), *x.shape[n:])), flat)


def _from_start(b: Builder, index: Array, size: int) -> Array:
    """Check an index of -size ... size - 1, and return it as one of 0 ... size - 1."""
    if index.index_size is not None and index.index_size <= size:
        return index
    f = partial(apply, b, shape=index.shape, dtype=np.int64)
    index = f(np.add, index, f(np.multiply, f(np.less, index, 0, dtype=np.bool_, of=np.int64), size))
    _check(b, index, size)
    return index


def _take(b: Builder, node: Node, table: Array, index: Array) -> Array:
    """Return rows of a table [N, ...] at an index of any shape."""
    flat = b.reshape(index, (index.view.size,))
    made = b.call(kernels.take, table, flat, shape=(*flat.shape, *table.shape[1:]), dtype=table.dtype)
    return b.reshape(made, node.shape)
