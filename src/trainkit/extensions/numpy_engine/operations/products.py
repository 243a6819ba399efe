"""Matrix products, computed by BLAS."""

from typing import Any

import numpy as np

from trainkit.extensions.numpy_engine import kernels
from trainkit.extensions.numpy_engine.operations.elementwise import apply_like
from trainkit.extensions.numpy_engine.program import Array, Builder
from trainkit.extensions.numpy_engine.recording import Node

_FEW_ROWS = 64
_MOST_IN_COLUMNS = 2**16


def mm(b: Builder, node: Node, x: Array, y: Array) -> Array:
    return product(b, x, y)


def addmm(b: Builder, node: Node, bias: Array, x: Array, y: Array, beta: float = 1, alpha: float = 1) -> Array | None:
    return apply_like(b, node)(np.add, product(b, x, y), bias) if beta == alpha == 1 else None


def transpose_matrix(b: Builder, node: Node, x: Array) -> Array:
    return _transposed_product(b, x, kernels.product, 2) or b.view(x, lambda array: array.T)


def transpose(b: Builder, node: Node, x: Array, first: int, second: int) -> Array:
    is_last_two = {first % x.view.ndim, second % x.view.ndim} == {1, 2}
    swapped = _transposed_product(b, x, kernels.stacked_product, 3) if is_last_two else None
    return swapped or b.view(x, lambda array: array.swapaxes(first, second))


def _transposed_product(b: Builder, x: Array, kernel: Any, n_axes: int) -> Array | None:
    """Return the transpose of a product (y z)^T as z^T y^T, which is in C order; None if x is no such product."""
    made_by, operands, _ = b.maker(x)
    is_result = x.is_whole and x.shape == x.memory.array.shape
    if made_by is not kernel or not is_result or any(one.view.ndim != n_axes for one in operands):
        return None
    return product(b, *(b.view(one, _swapped) for one in reversed(operands)))


def product(b: Builder, x: Array, y: Array) -> Array:
    """Return a product of matrices, of stacks of them, or of a matrix and a vector.

    Where few rows are multiplied by a transposed parameter, W^T, the product is computed as (W x^T)^T: numpy's kernels
    take W as it lies, and the result's columns are contiguous, for the next layer. Any other transposed second matrix
    is copied, which a backward pass does once for the gradients of a layer and of what follows it.
    """
    if x.view.ndim == y.view.ndim > 1 and _is_transposed(y) and kernels.spares_packing():
        if not y.memory.is_buffer and _likes_columns(x.shape[-2], *y.shape[-2:]):
            return b.view(_multiplied(b, b.view(y, _swapped), b.view(x, _swapped)), _swapped)
        if y.memory.is_buffer and x.shape[-1] <= _FEW_ROWS:
            y = b.in_order(y)
    return _multiplied(b, x, y)


def _likes_columns(n_rows: int, n_inputs: int, n_outputs: int) -> bool:
    """Return whether a product with a parameter is faster by columns: not if narrow, nor if small with few rows.

    Nor if the result is large, as reading it by rows, for a head's shape, costs more than the product by columns saves.
    """
    is_large = n_rows >= 16 or n_inputs * n_outputs >= 2**13
    return n_rows <= _FEW_ROWS and 16 <= n_outputs <= _MOST_IN_COLUMNS // n_rows and is_large


def _swapped(array: Any) -> Any:
    return array.swapaxes(-1, -2)


def _is_transposed(x: Array) -> bool:
    """Return whether matrices are in C order except that the last two axes are swapped."""
    return bool(_swapped(x.view).flags.c_contiguous) and not x.view.flags.c_contiguous


def _multiplied(b: Builder, x: Array, y: Array) -> Array:
    if x.view.ndim == 3:
        return b.call(kernels.stacked_product, x, y, shape=(*x.shape[:2], y.shape[2]), dtype=x.dtype)
    shape = (*x.shape[:-1], *y.shape[1:]) if y.view.ndim > 1 else x.shape[:-1]
    x, y = (one if one.is_dense else b.copy(one) for one in (x, y))
    return b.call(kernels.product, x, y, shape=shape, dtype=x.dtype)
