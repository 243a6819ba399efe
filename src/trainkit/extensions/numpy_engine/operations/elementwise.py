"""Element-wise operations: arithmetic, comparisons, choices between elements."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from trainkit.extensions.numpy_engine import kernels
from trainkit.extensions.numpy_engine.program import Array, Builder, Kernel
from trainkit.extensions.numpy_engine.recording import Node

Operation = Callable[..., Any]  # (builder, result node, arguments as ATen has them) -> the arrays of its results


def apply(b: Builder, function: Any, *operands: Any, shape: tuple[int, ...], dtype: Any, of: Any = None) -> Array:
    """Return a ufunc, or an element-wise kernel, of arrays and numbers.

    Args:
        b: the builder.
        function: a ufunc, or a kernel.
        operands: arrays that broadcast to `shape`, or numbers.
        shape, dtype: of the result.
        of: the dtype to compute in; default: the result's.
    """
    of = dtype if of is None else of
    arrays = [b.cast(x, of) if isinstance(x, Array) else b.constant(np.array(x, of)) for x in operands]
    kernel = kernels.elementwise(function) if isinstance(function, np.ufunc) else function
    return broadcast(b, kernel, arrays, shape, dtype)


def apply_like(b: Builder, model: Node | Array) -> Callable[..., Array]:
    """Return `apply` for results of the shape and dtype of a node or array."""
    return partial(apply, b, shape=model.shape, dtype=model.dtype if isinstance(model, Array) else model.numpy_dtype)


def broadcast(b: Builder, kernel: Kernel, arrays: Sequence[Array], shape: tuple[int, ...], dtype: Any) -> Array:
    """Return an element-wise kernel of arrays that broadcast to a shape.

    It is computed on as few axes as possible: axes along which all operands repeat are left out, and dense arrays
    become vectors. So equal computations on different views of the same memory are found to be one.
    """
    n_axes = len(shape)
    small = tuple(
        1 if size > 1 and all(stride(x, axis, n_axes) == 0 for x in arrays) else size for axis, size in enumerate(shape)
    )
    arrays = [without_repeats(b, x, small) for x in arrays]
    axes = [axis for axis, size in enumerate(small) if size != 1]
    size = math.prod(small)
    full = [x for x in arrays if x.view.size == size]
    rest = [x for x in arrays if x.view.size != size]
    order = _common_order(full, n_axes) if all(x.view.size == 1 for x in rest) else None
    if order is not None:
        flat = [flattened(b, x, order) if x.view.size == size else b.reshape(x, ()) for x in arrays]
        result = _call(b, kernel, flat, () if size == 1 else (size,), dtype, None)
        result = b.reshape(result, tuple(small[axis] for axis in order))
        result = b.view(result, lambda array: array.transpose(np.argsort(order)))
    else:
        thin = [b.reshape(x, tuple(_size(x, axis, n_axes) for axis in axes)) for x in arrays]
        like = None if any(x.view.flags.c_contiguous for x in full) or not full else thin[arrays.index(full[0])]
        result = b.reshape(_call(b, kernel, thin, tuple(small[axis] for axis in axes), dtype, like), small)
    return result if small == shape else b.view(result, lambda array: np.broadcast_to(array, shape))


def _call(
    b: Builder, kernel: Kernel, arrays: Sequence[Array], shape: tuple[int, ...], dtype: Any, like: Array | None
) -> Array:
    width, allowed = np.dtype(dtype).itemsize, kernels.IN_PLACE.get(kernel, range(len(arrays)))
    reusable = [i for i in allowed if arrays[i].shape == shape and arrays[i].dtype.itemsize == width]
    return b.call(kernel, *arrays, shape=shape, dtype=dtype, reusable=reusable, like=like)


# ---- how arrays lie in memory ----


def axes_order(x: Array) -> tuple[int, ...]:
    """Return an array's axes in the order of their strides, the largest first."""
    strides = [stride if size > 1 else 0 for stride, size in zip(x.view.strides, x.shape, strict=True)]
    return tuple(sorted(range(x.view.ndim), key=lambda axis: -strides[axis]))


def _common_order(arrays: Sequence[Array], n_axes: int) -> tuple[int, ...] | None:
    """Return the order of axes in which all arrays are dense; None where there is none."""
    if all(x.view.flags.c_contiguous for x in arrays):
        return tuple(range(n_axes))
    order = axes_order(arrays[0])
    is_common = all(x.view.ndim == n_axes and x.view.transpose(order).flags.c_contiguous for x in arrays)
    return order if is_common else None


def flattened(b: Builder, x: Array, order: tuple[int, ...]) -> Array:
    """Return an array as a vector, its axes in an order in which it is dense."""
    if not x.view.flags.c_contiguous:
        x = b.view(x, lambda array: array.transpose(order))
    return b.reshape(x, () if x.view.size == 1 else (x.view.size,))


def _size(x: Array, axis: int, n_axes: int) -> int:
    own = axis - (n_axes - x.view.ndim)
    return 1 if own < 0 else x.shape[own]


def stride(x: Array, axis: int, n_axes: int) -> int:
    """Return the stride of an array along an axis of what it is broadcast to."""
    own = axis - (n_axes - x.view.ndim)
    return 0 if own < 0 or x.shape[own] == 1 else x.view.strides[own]


def without_repeats(b: Builder, x: Array, small: tuple[int, ...]) -> Array:
    """Return an array without repetitions along axes whose size is 1 in the shape `small`."""
    own = small[len(small) - x.view.ndim :]
    at = tuple(slice(None, 1) if new == 1 < old else slice(None) for new, old in zip(own, x.shape, strict=True))
    return x if all(one == slice(None) for one in at) else b.view(x, itemgetter(at))


def full_like(b: Builder, x: Array, value: float, dtype: Any) -> Array:
    """Return a constant array of one value, with the memory order of x."""
    order = axes_order(x)
    if x.view.flags.c_contiguous or not x.view.transpose(order).flags.c_contiguous:
        return b.full(x.shape, value, dtype)
    full = b.full(tuple(x.shape[axis] for axis in order), value, dtype)
    return b.view(full, lambda array: array.transpose(np.argsort(order)))


# ---- arithmetic ----


def ufunc(function: np.ufunc) -> Operation:
    """Return the operation of a ufunc that computes in the result's dtype."""
    return lambda b, node, *operands: apply_like(b, node)(function, *operands)


def predicate(function: np.ufunc) -> Operation:
    """Return the operation of a ufunc that computes booleans from the operands' common dtype."""

    def operation(b: Builder, node: Node, *operands: Any) -> Array:
        of = np.result_type(*(x.dtype if isinstance(x, Array) else x for x in operands))
        return apply_like(b, node)(function, *operands, of=of)

    return operation


def add(b: Builder, node: Node, x: Any, y: Any, alpha: float = 1) -> Array:
    return apply_like(b, node)(np.add, x, _times(b, node, y, alpha))


def sub(b: Builder, node: Node, x: Any, y: Any, alpha: float = 1) -> Array:
    return apply_like(b, node)(np.subtract, x, _times(b, node, y, alpha))


def rsub(b: Builder, node: Node, x: Any, y: Any, alpha: float = 1) -> Array:
    return sub(b, node, y, x, alpha)


def _times(b: Builder, node: Node, x: Any, factor: float) -> Any:
    if factor == 1:
        return x
    if not isinstance(x, Array):
        return x * factor
    return apply_like(b, node)(np.multiply, x, factor, shape=x.shape)


def div(b: Builder, node: Node, x: Any, y: Any, rounding_mode: str | None = None) -> Array:
    f, dtype = apply_like(b, node), node.numpy_dtype
    if rounding_mode == "floor":
        return f(np.floor_divide, x, y)
    quotient = f(np.divide, x, y, dtype=dtype if dtype.kind == "f" else np.float64)
    if rounding_mode == "trunc":
        quotient = f(np.trunc, quotient, dtype=quotient.dtype)
    return b.cast(quotient, dtype)


def power(b: Builder, node: Node, x: Any, exponent: Any) -> Array:
    f = apply_like(b, node)
    if isinstance(exponent, (int, float)) and isinstance(x, Array):
        if exponent == 1:
            return b.cast(x, node.numpy_dtype)
        if exponent == 2:
            return f(np.multiply, x, x)
        if exponent == 0.5:
            return f(np.sqrt, x)
    return f(np.power, x, exponent)


def rsqrt(b: Builder, node: Node, x: Array) -> Array:
    f = apply_like(b, node)
    return f(np.divide, 1.0, f(np.sqrt, x))


def reciprocal(b: Builder, node: Node, x: Array) -> Array:
    return apply_like(b, node)(np.divide, 1.0, x)


def rounded(b: Builder, node: Node, x: Array, *, decimals: int = 0) -> Array | None:
    return apply_like(b, node)(np.rint, x) if decimals == 0 else None


def addcmul(b: Builder, node: Node, x: Array, y: Array, z: Array, value: float = 1) -> Array:
    f = apply_like(b, node)
    product = f(np.multiply, y, z, shape=np.broadcast_shapes(y.shape, z.shape))
    return f(np.add, x, _times(b, node, product, value))


def lerp(b: Builder, node: Node, x: Array, y: Array, weight: Any) -> Array:
    f = apply_like(b, node)
    return f(np.add, x, f(np.multiply, f(np.subtract, y, x), weight))


def xlogy(b: Builder, node: Node, x: Array, y: Array) -> Array:
    f = apply_like(b, node)
    is_zero = f(np.equal, x, 0.0, shape=x.shape, dtype=np.bool_, of=x.dtype)
    return where(b, node, is_zero, 0.0, f(np.multiply, x, f(np.log, y, shape=y.shape)))


def neg(b: Builder, node: Node, x: Array) -> Array:
    kernel, operands, _ = b.maker(x)
    is_negative = kernel is kernels.elementwise(np.negative) and x.is_whole and _lie_in_order(operands)
    if is_negative and operands[0].view.size == x.view.size:
        return b.reshape(operands[0], node.shape)  # -(-x) = x
    return apply_like(b, node)(np.negative, x)


def _lie_in_order(operands: Sequence[Array]) -> bool:
    """Return whether operands, and so their element-wise results, are in C order."""
    return all(x.view.flags.c_contiguous for x in operands)


def absolute(b: Builder, node: Node, x: Array) -> Array:
    """Return |x|, or |z - y| if x = y - z and z - y was computed before."""
    kernel, operands, _ = b.maker(x)
    if kernel is kernels.elementwise(np.subtract) and x.is_whole and _lie_in_order(operands):
        opposite = b.known(kernel, operands[1], operands[0], shape=x.memory.array.shape, dtype=x.dtype)
        x = x if opposite is None else b.reshape(opposite, x.shape)
    return apply_like(b, x)(np.absolute, x)


# ---- choices ----


def clamp(b: Builder, node: Node, x: Array, low: Any = None, high: Any = None) -> Array:
    dtype = node.numpy_dtype
    for function, bound in ((np.maximum, low), (np.minimum, high)):
        if bound is not None:
            full = bound if isinstance(bound, Array) else full_like(b, x, bound, dtype)
            x = apply_like(b, node)(function, x, full)
    if isinstance(low, int) and isinstance(high, int) and dtype.kind == "i" and 0 <= low <= high:
        x.index_size = high + 1
    return x


def clamp_max(b: Builder, node: Node, x: Array, high: Any) -> Array:
    return clamp(b, node, x, None, high)


def where(b: Builder, node: Node, condition: Array, x: Any, y: Any) -> Array:
    dtype = node.numpy_dtype
    arrays = [b.cast(one, dtype) if isinstance(one, Array) else b.constant(np.array(one, dtype)) for one in (x, y)]
    return broadcast(b, kernels.select, [condition, *arrays], node.shape, dtype)


def masked_fill(b: Builder, node: Node, x: Array, mask: Array, value: Any) -> Array:
    return where(b, node, mask, value, x)
