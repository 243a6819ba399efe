"""What each ATen operation is in numpy: the one table from which programs are derived.

An entry is a function (builder, result node, arguments as ATen has them) -> the result's array, or a tuple of
them. What the table lacks is computed by torch in the program's memory: slower, and never wrong.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
import torch

from trainkit.engine import kernels
from trainkit.engine.program import Array, Builder
from trainkit.engine.recording import Call, Node

Operation = Callable[..., Any]  # None where an entry does not cover the arguments
F = TypeVar("F", bound=Operation)
OPERATIONS: dict[str, Operation] = {}  # by their names, without overloads and in-place marks
_SHORT = 4  # an axis that is faster added up, or compared, slice by slice


class NotDerivableError(Exception):
    """An operation has no counterpart in numpy."""


def dtype_of(node: Node) -> np.dtype[Any]:
    """Return numpy's counterpart of a node's dtype."""
    found = _DTYPES.get(node.dtype)
    if found is None:
        raise NotDerivableError(f"numpy has no {node.dtype}")
    dtype: np.dtype[Any] = np.dtype(found)
    return dtype


_DTYPES: Mapping[torch.dtype, Any] = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.float16: np.float16,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.int16: np.int16,
    torch.int8: np.int8,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
}


def derive(b: Builder, call: Call, arrays: Mapping[Node, Array]) -> tuple[Array, ...]:
    """Return the arrays of a call's results, from those of its operands."""

    def given(one: Any) -> Any:
        if isinstance(one, Node):
            return arrays[one]
        return [given(part) for part in one] if isinstance(one, (list, tuple)) else one

    args, kwargs = given(call.args), {name: given(one) for name, one in call.kwargs.items()}
    operation = OPERATIONS.get(call.name)
    made = None if operation is None else operation(b, call.results[0] if call.results else None, *args, **kwargs)
    if made is None:
        return _by_torch(b, call, args, kwargs)
    results = made if isinstance(made, tuple) else (made,)
    for result, node in zip(results, call.results, strict=True):
        assert (result.shape, result.dtype) == (node.shape, dtype_of(node)), f"{call.operation}: {result.shape}"
    return results


def _by_torch(b: Builder, call: Call, args: Any, kwargs: Any) -> tuple[Array, ...]:
    """Have torch compute an operation that the table lacks."""
    operation = _out_of_place(call)
    schema = operation._schema
    if any(one.alias_info is not None for one in (*schema.arguments, *schema.returns)):
        raise NotDerivableError(f"{operation} returns a view or writes in place, and is not in the table")
    operands: list[Array] = []

    def placed(one: Any) -> Any:
        if isinstance(one, Array):
            operands.append(b.in_order(one))  # as some operations insist on
            return kernels.Operand((len(operands) - 1,))
        return tuple(placed(part) for part in one) if isinstance(one, list) else one

    arguments, keywords = placed(args), tuple((name, placed(one)) for name, one in kwargs.items())
    results = [(node.shape, dtype_of(node)) for node in call.results]
    options = operation, len(results), arguments, keywords
    return b.call_many(kernels.by_torch, *operands, results=results, options=options)


def _out_of_place(call: Call) -> Any:
    """Return the operation that computes what a call's does, in new memory, if there is such."""
    packet = getattr(torch.ops.aten, call.name, None)
    return getattr(packet, call.operation._overloadname, call.operation)


def _operation(*names: str) -> Callable[[F], F]:
    def add(function: F) -> F:
        OPERATIONS.update(dict.fromkeys(names, function))
        return function

    return add


# ---- element by element ----


def apply(b: Builder, function: Any, *operands: Any, shape: tuple[int, ...], dtype: Any, of: Any = None) -> Array:
    """Return a ufunc, or an elementwise kernel, of arrays and numbers.

    Where all operands are the same along an axis it is computed once there.

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
    return _elementwise(b, kernel, arrays, shape, dtype)


def _elementwise(b: Builder, kernel: Any, arrays: Sequence[Array], shape: tuple[int, ...], dtype: Any) -> Array:
    """Return an elementwise kernel of arrays that broadcast to a shape.

    It is computed on as few axes as there are: those along which nothing changes are left out, and arrays that lie in
    order are taken as vectors. So the same computation is made once, whatever views of its operands it is asked for.
    """
    n_axes = len(shape)
    small = tuple(
        1 if size > 1 and all(_stride(x, axis, n_axes) == 0 for x in arrays) else size
        for axis, size in enumerate(shape)
    )
    arrays = [_shrunk(b, x, small) for x in arrays]
    axes = [axis for axis, size in enumerate(small) if size != 1]
    size = math.prod(small)
    full = [x for x in arrays if x.view.size == size]
    rest = [x for x in arrays if x.view.size != size]
    order = _common_order(full, n_axes) if all(x.view.size == 1 for x in rest) else None
    if order is not None:
        flat = [_flat(b, x, order) if x.view.size == size else b.reshape(x, ()) for x in arrays]
        result = _called(b, kernel, flat, () if size == 1 else (size,), dtype, None)
        result = b.reshape(result, tuple(small[axis] for axis in order))
        result = b.view(result, lambda array: array.transpose(np.argsort(order)))
    else:
        thin = [b.reshape(x, tuple(_size(x, axis, n_axes) for axis in axes)) for x in arrays]
        like = None if any(x.view.flags.c_contiguous for x in full) or not full else thin[arrays.index(full[0])]
        result = b.reshape(_called(b, kernel, thin, tuple(small[axis] for axis in axes), dtype, like), small)
    return result if small == shape else b.view(result, lambda array: np.broadcast_to(array, shape))


def _called(b: Builder, kernel: Any, arrays: Sequence[Array], shape: tuple[int, ...], dtype: Any, like: Any) -> Array:
    width, allowed = np.dtype(dtype).itemsize, kernels.IN_PLACE.get(kernel, range(len(arrays)))
    reusable = [i for i in allowed if arrays[i].shape == shape and arrays[i].dtype.itemsize == width]
    return b.call(kernel, *arrays, shape=shape, dtype=dtype, reusable=reusable, like=like)


def _order(x: Array) -> tuple[int, ...]:
    """Return an array's axes in the order in which they lie in memory, those of the largest strides first."""
    strides = [stride if size > 1 else 0 for stride, size in zip(x.view.strides, x.shape, strict=True)]
    return tuple(sorted(range(x.view.ndim), key=lambda axis: -strides[axis]))


def _common_order(arrays: Sequence[Array], n_axes: int) -> tuple[int, ...] | None:
    """Return the order of axes in which all arrays lie without gaps; None where there is none."""
    if all(x.view.flags.c_contiguous for x in arrays):
        return tuple(range(n_axes))
    order = _order(arrays[0])
    is_common = all(x.view.ndim == n_axes and x.view.transpose(order).flags.c_contiguous for x in arrays)
    return order if is_common else None


def _flat(b: Builder, x: Array, order: tuple[int, ...]) -> Array:
    """Return an array as a vector, its axes in an order in which it has no gaps."""
    if not x.view.flags.c_contiguous:
        x = b.view(x, lambda array: array.transpose(order))
    return b.reshape(x, () if x.view.size == 1 else (x.view.size,))


def _size(x: Array, axis: int, n_axes: int) -> int:
    own = axis - (n_axes - x.view.ndim)
    return 1 if own < 0 else x.shape[own]


def _stride(x: Array, axis: int, n_axes: int) -> int:
    """Return the stride of an array along an axis of what it is broadcast to."""
    own = axis - (n_axes - x.view.ndim)
    return 0 if own < 0 or x.shape[own] == 1 else x.view.strides[own]


def _shrunk(b: Builder, x: Array, small: tuple[int, ...]) -> Array:
    """Return an array without the repetitions along axes whose size is 1 in `small`."""
    own = small[len(small) - x.view.ndim :]
    at = tuple(slice(None, 1) if new == 1 < old else slice(None) for new, old in zip(own, x.shape, strict=True))
    return x if all(one == slice(None) for one in at) else b.view(x, itemgetter(at))


def _unary(name: str, function: np.ufunc) -> None:
    def operation(b: Builder, node: Node, x: Array) -> Array:
        return apply(b, function, x, shape=node.shape, dtype=dtype_of(node))

    OPERATIONS[name] = operation


for _name in ("exp", "sqrt", "cos", "sin", "tanh", "sign", "floor", "ceil", "log1p", "expm1", "log", "trunc"):
    _unary(_name, getattr(np, _name))
_UNARY: dict[str, Any] = {
    "round": np.rint,
    "atanh": np.arctanh,
    "asinh": np.arcsinh,
    "bitwise_not": np.invert,
    "logical_not": np.logical_not,
    "isnan": np.isnan,
}
for _name in _UNARY:
    _unary(_name, _UNARY[_name])


@_operation("round")
def _round(b: Builder, node: Node, x: Array, *, decimals: int = 0) -> Array | None:
    return apply(b, np.rint, x, shape=node.shape, dtype=dtype_of(node)) if decimals == 0 else None


@_operation("abs")
def _abs(b: Builder, node: Node, x: Array) -> Array:
    return _absolute(b, x)


@_operation("neg")
def _neg(b: Builder, node: Node, x: Array) -> Array:
    kernel, operands, _ = b.maker(x)
    is_negative = kernel is kernels.elementwise(np.negative) and x.is_whole and _lie_in_order(operands)
    if is_negative and operands[0].view.size == x.view.size:
        return b.reshape(operands[0], node.shape)  # minus minus x
    return apply(b, np.negative, x, shape=node.shape, dtype=dtype_of(node))


def _lie_in_order(operands: Sequence[Array]) -> bool:
    """Whether operands lie in C order, and so does what is computed of them element by element."""
    return all(x.view.flags.c_contiguous for x in operands)


def _absolute(b: Builder, x: Array) -> Array:
    """Return the absolute value; of a difference whose opposite is there, that one's."""
    kernel, operands, _ = b.maker(x)
    if kernel is kernels.elementwise(np.subtract) and x.is_whole and _lie_in_order(operands):
        opposite = b.known(kernel, operands[1], operands[0], shape=x.memory.array.shape, dtype=x.dtype)
        x = x if opposite is None else b.reshape(opposite, x.shape)
    return apply(b, np.absolute, x, shape=x.shape, dtype=x.dtype)


def _binary(name: str, function: np.ufunc) -> None:
    def operation(b: Builder, node: Node, x: Any, y: Any) -> Array:
        return apply(b, function, x, y, shape=node.shape, dtype=dtype_of(node))

    OPERATIONS[name] = operation


_BINARY: dict[str, Any] = {
    "mul": np.multiply,
    "bitwise_or": np.bitwise_or,
    "bitwise_and": np.bitwise_and,
    "bitwise_xor": np.bitwise_xor,
    "logical_or": np.logical_or,
    "logical_and": np.logical_and,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "atan2": np.arctan2,
}
for _name in _BINARY:
    _binary(_name, _BINARY[_name])


def _comparison(name: str, function: np.ufunc) -> None:
    def operation(b: Builder, node: Node, x: Any, y: Any) -> Array:
        of = [one.dtype for one in (x, y) if isinstance(one, Array)]
        weak = [one for one in (x, y) if not isinstance(one, Array)]
        return apply(b, function, x, y, shape=node.shape, dtype=np.bool_, of=np.result_type(*of, *weak))

    OPERATIONS[name] = operation


_COMPARISONS: dict[str, Any] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
for _name in _COMPARISONS:
    _comparison(_name, _COMPARISONS[_name])


@_operation("add")
def _add(b: Builder, node: Node, x: Any, y: Any, alpha: float = 1) -> Array:
    y = y if alpha == 1 else _times(b, y, alpha, node)
    return apply(b, np.add, x, y, shape=node.shape, dtype=dtype_of(node))


@_operation("sub")
def _sub(b: Builder, node: Node, x: Any, y: Any, alpha: float = 1) -> Array:
    y = y if alpha == 1 else _times(b, y, alpha, node)
    return apply(b, np.subtract, x, y, shape=node.shape, dtype=dtype_of(node))


@_operation("rsub")
def _rsub(b: Builder, node: Node, x: Any, y: Any, alpha: float = 1) -> Array:
    return _sub(b, node, y, x, alpha)


def _times(b: Builder, x: Any, factor: float, node: Node) -> Any:
    if not isinstance(x, Array):
        return x * factor
    return apply(b, np.multiply, x, factor, shape=x.shape, dtype=dtype_of(node))


@_operation("div")
def _div(b: Builder, node: Node, x: Any, y: Any, rounding_mode: str | None = None) -> Array:
    dtype = dtype_of(node)
    if rounding_mode == "floor":
        return apply(b, np.floor_divide, x, y, shape=node.shape, dtype=dtype)
    quotient = apply(b, np.divide, x, y, shape=node.shape, dtype=dtype if dtype.kind == "f" else np.float64)
    if rounding_mode == "trunc":
        quotient = apply(b, np.trunc, quotient, shape=node.shape, dtype=quotient.dtype)
    return b.cast(quotient, dtype)


@_operation("pow")
def _pow(b: Builder, node: Node, x: Any, exponent: Any) -> Array:
    shape, dtype = node.shape, dtype_of(node)
    if isinstance(exponent, (int, float)) and isinstance(x, Array):
        if exponent == 1:
            return b.cast(x, dtype)
        if exponent == 2:
            return apply(b, np.multiply, x, x, shape=shape, dtype=dtype)
        if exponent == 0.5:
            return apply(b, np.sqrt, x, shape=shape, dtype=dtype)
    return apply(b, np.power, x, exponent, shape=shape, dtype=dtype)


@_operation("rsqrt")
def _rsqrt(b: Builder, node: Node, x: Array) -> Array:
    root = apply(b, np.sqrt, x, shape=node.shape, dtype=dtype_of(node))
    return apply(b, np.divide, 1.0, root, shape=node.shape, dtype=dtype_of(node))


@_operation("reciprocal")
def _reciprocal(b: Builder, node: Node, x: Array) -> Array:
    return apply(b, np.divide, 1.0, x, shape=node.shape, dtype=dtype_of(node))


@_operation("addcmul")
def _addcmul(b: Builder, node: Node, x: Array, y: Array, z: Array, value: float = 1) -> Array:
    shape, dtype = node.shape, dtype_of(node)
    product = apply(b, np.multiply, y, z, shape=np.broadcast_shapes(y.shape, z.shape), dtype=dtype)
    return apply(b, np.add, x, _times(b, product, value, node) if value != 1 else product, shape=shape, dtype=dtype)


@_operation("lerp")
def _lerp(b: Builder, node: Node, x: Array, y: Array, weight: Any) -> Array:
    shape, dtype = node.shape, dtype_of(node)
    way = apply(b, np.subtract, y, x, shape=shape, dtype=dtype)
    way = apply(b, np.multiply, way, weight, shape=shape, dtype=dtype)
    return apply(b, np.add, x, way, shape=shape, dtype=dtype)


@_operation("clamp")
def _clamp(b: Builder, node: Node, x: Array, low: Any = None, high: Any = None) -> Array:
    shape, dtype = node.shape, dtype_of(node)
    for function, bound in ((np.maximum, low), (np.minimum, high)):
        if bound is not None:
            full = bound if isinstance(bound, Array) else _full_like(b, x, bound, dtype)
            x = apply(b, function, x, full, shape=shape, dtype=dtype)
    if low is not None and high is not None and dtype.kind == "i" and not isinstance(low, Array):
        x.is_index = low >= 0
    return x


@_operation("clamp_min")
def _clamp_min(b: Builder, node: Node, x: Array, low: Any) -> Array:
    return _clamp(b, node, x, low)


@_operation("clamp_max")
def _clamp_max(b: Builder, node: Node, x: Array, high: Any) -> Array:
    return _clamp(b, node, x, None, high)


@_operation("where")
def _where(b: Builder, node: Node, condition: Array, x: Any, y: Any) -> Array:
    shape, dtype = node.shape, dtype_of(node)
    arrays = [b.cast(one, dtype) if isinstance(one, Array) else b.constant(np.array(one, dtype)) for one in (x, y)]
    return _elementwise(b, kernels.select, [condition, *arrays], shape, dtype)


@_operation("masked_fill")
def _masked_fill(b: Builder, node: Node, x: Array, mask: Array, value: Any) -> Array:
    return _where(b, node, mask, value, x)


@_operation("xlogy")
def _xlogy(b: Builder, node: Node, x: Array, y: Array) -> Array:
    shape, dtype = node.shape, dtype_of(node)
    is_zero = apply(b, np.equal, x, 0.0, shape=x.shape, dtype=np.bool_, of=x.dtype)
    log = apply(b, np.log, y, shape=y.shape, dtype=dtype)
    return _where(b, node, is_zero, 0.0, apply(b, np.multiply, x, log, shape=shape, dtype=dtype))


# ---- activations ----


@_operation("relu")
def _relu(b: Builder, node: Node, x: Array) -> Array:
    return _elementwise(b, kernels.relu, [x, _full_like(b, x, 0.0, x.dtype)], node.shape, dtype_of(node))


def _full_like(b: Builder, x: Array, value: float, dtype: Any) -> Array:
    """Return a constant array of one value, whose numbers lie in the order of those of x."""
    order = _order(x)
    if x.view.flags.c_contiguous or not x.view.transpose(order).flags.c_contiguous:
        return b.full(x.shape, value, dtype)
    full = b.full(tuple(x.shape[axis] for axis in order), value, dtype)
    return b.view(full, lambda array: array.transpose(np.argsort(order)))


@_operation("threshold_backward")
def _threshold_backward(b: Builder, node: Node, grad: Array, y: Array, threshold: float) -> Array:
    shape, dtype = node.shape, dtype_of(node)
    if threshold == 0 and dtype == np.float32 and b.maker(y)[0] is kernels.relu and grad.shape == y.shape == shape:
        if grad.view.flags.c_contiguous:
            y = b.in_order(y)
        return _elementwise(b, kernels.relu_backward, [grad, y, _full_like(b, y, 1, np.int32)], shape, dtype)
    is_on = apply(b, np.greater, y, threshold, shape=shape, dtype=np.bool_, of=y.dtype)
    return apply(b, np.multiply, grad, is_on, shape=shape, dtype=dtype)


@_operation("tanh_backward")
def _tanh_backward(b: Builder, node: Node, grad: Array, y: Array) -> Array:
    shape, dtype = node.shape, dtype_of(node)
    y = b.in_order(y) if grad.view.flags.c_contiguous else y
    derivative = apply(b, np.multiply, y, y, shape=shape, dtype=dtype)
    derivative = apply(b, np.subtract, 1.0, derivative, shape=shape, dtype=dtype)
    return apply(b, np.multiply, grad, derivative, shape=shape, dtype=dtype)


@_operation("sigmoid")
def _sigmoid(b: Builder, node: Node, x: Array) -> Array:
    return apply(b, kernels.logistic, x, shape=node.shape, dtype=dtype_of(node))


@_operation("sigmoid_backward")
def _sigmoid_backward(b: Builder, node: Node, grad: Array, y: Array) -> Array:
    shape, dtype = node.shape, dtype_of(node)
    rest = apply(b, np.subtract, 1.0, y, shape=shape, dtype=dtype)
    derivative = apply(b, np.multiply, rest, y, shape=shape, dtype=dtype)
    return apply(b, np.multiply, grad, derivative, shape=shape, dtype=dtype)


def _softplus_of(b: Builder, x: Array) -> Array:
    """log(1 + exp(x)) as max(x, 0) + log(1 + exp(-|x|)), which never overflows."""
    how: dict[str, Any] = {"shape": x.shape, "dtype": x.dtype}
    size = apply(b, np.negative, apply(b, np.absolute, x, **how), **how)
    rest = apply(b, np.log1p, apply(b, np.exp, size, **how), **how)
    return apply(b, np.add, apply(b, np.maximum, x, b.full(x.shape, 0.0, x.dtype), **how), rest, **how)


_STRAIGHT = 18  # beyond it log(1 + exp(x)) is x in float32


@_operation("softplus")
def _softplus(b: Builder, node: Node, x: Array, beta: float = 1, threshold: float = 20) -> Array | None:
    return _softplus_of(b, x) if beta == 1 and threshold >= _STRAIGHT else None


@_operation("softplus_backward")
def _softplus_backward(b: Builder, node: Node, grad: Array, x: Array, beta: float, threshold: float) -> Array | None:
    if beta != 1 or threshold < _STRAIGHT:
        return None
    share = apply(b, kernels.logistic, x, shape=x.shape, dtype=x.dtype)
    return apply(b, np.multiply, grad, share, shape=node.shape, dtype=dtype_of(node))


@_operation("_softmax")
def _softmax(b: Builder, node: Node, x: Array, dim: int, half_to_float: bool) -> Array:
    odds = apply(b, np.exp, _below_largest(b, x, dim), shape=node.shape, dtype=dtype_of(node))
    total = _summed(b, odds, (dim,), keepdim=True)
    return apply(b, np.divide, odds, total, shape=node.shape, dtype=dtype_of(node))


@_operation("_log_softmax")
def _log_softmax(b: Builder, node: Node, x: Array, dim: int, half_to_float: bool) -> Array:
    how: dict[str, Any] = {"dtype": dtype_of(node)}
    below = _below_largest(b, x, dim)
    total = _summed(b, apply(b, np.exp, below, shape=node.shape, **how), (dim,), keepdim=True)
    return apply(b, np.subtract, below, apply(b, np.log, total, shape=total.shape, **how), shape=node.shape, **how)


@_operation("_softmax_backward_data")
def _softmax_backward(b: Builder, node: Node, grad: Array, y: Array, dim: int, dtype: Any) -> Array:
    how: dict[str, Any] = {"shape": node.shape, "dtype": dtype_of(node)}
    weighted = apply(b, np.multiply, grad, y, **how)
    total = _summed(b, weighted, (dim,), keepdim=True)
    return apply(b, np.subtract, weighted, apply(b, np.multiply, y, total, **how), **how)


@_operation("_log_softmax_backward_data")
def _log_softmax_backward(b: Builder, node: Node, grad: Array, y: Array, dim: int, dtype: Any) -> Array:
    how: dict[str, Any] = {"shape": node.shape, "dtype": dtype_of(node)}
    share = apply(b, np.multiply, apply(b, np.exp, y, **how), _summed(b, grad, (dim,), keepdim=True), **how)
    return apply(b, np.subtract, grad, share, **how)


@_operation("logsumexp")
def _logsumexp(b: Builder, node: Node, x: Array, dims: Sequence[int], keepdim: bool = False) -> Array | None:
    if len(dims) != 1:
        return None
    largest = _largest(b, x, dims[0], np.maximum)
    is_finite = apply(b, np.isfinite, largest, shape=largest.shape, dtype=np.bool_, of=x.dtype)
    largest = b.call(
        kernels.select, is_finite, largest, b.constant(np.array(0, x.dtype)), shape=largest.shape, dtype=x.dtype
    )  # of infinities nothing is subtracted
    odds = apply(
        b, np.exp, apply(b, np.subtract, x, largest, shape=x.shape, dtype=x.dtype), shape=x.shape, dtype=x.dtype
    )
    total = _summed(b, odds, tuple(dims), keepdim=True)
    log = apply(b, np.log, total, shape=total.shape, dtype=x.dtype)
    return b.reshape(apply(b, np.add, log, largest, shape=log.shape, dtype=x.dtype), node.shape)


def _below_largest(b: Builder, x: Array, dim: int) -> Array:
    return apply(b, np.subtract, x, _largest(b, x, dim, np.maximum), shape=x.shape, dtype=x.dtype)


# ---- losses ----


def _reduced(b: Builder, x: Array, reduction: int) -> Array:
    """Return a loss as torch's `reduction` says: 0 none, 1 mean, 2 sum."""
    if reduction == 0:
        return x
    total = _summed(b, x, tuple(range(x.view.ndim)), keepdim=False)
    return total if reduction == 2 else apply(b, np.divide, total, x.view.size, shape=(), dtype=x.dtype)


def _share(b: Builder, grad: Array, n: int, reduction: int, node: Node) -> Array:
    """Return the gradient of each of n numbers that a reduction made one of."""
    if reduction != 1:
        return grad
    return apply(b, np.divide, grad, n, shape=grad.shape, dtype=dtype_of(node))


@_operation("huber_loss")
def _huber_loss(b: Builder, node: Node, x: Array, y: Array, reduction: int = 1, delta: float = 1.0) -> Array:
    shape = np.broadcast_shapes(x.shape, y.shape)
    how: dict[str, Any] = {"shape": shape, "dtype": dtype_of(node)}
    size = _absolute(b, apply(b, np.subtract, x, y, **how))
    near = apply(b, np.minimum, size, b.full(size.shape, delta, size.dtype), **how)
    rest = apply(b, np.subtract, size, apply(b, np.multiply, near, 0.5, **how), **how)
    return _reduced(b, apply(b, np.multiply, near, rest, **how), reduction)


@_operation("huber_loss_backward")
def _huber_loss_backward(
    b: Builder, node: Node, grad: Array, x: Array, y: Array, reduction: int, delta: float, **_: Any
) -> Array:
    how: dict[str, Any] = {"shape": node.shape, "dtype": dtype_of(node)}
    error = apply(b, np.subtract, x, y, **how)
    near = apply(b, np.maximum, error, b.full(node.shape, -delta, error.dtype), **how)
    near = apply(b, np.minimum, near, b.full(node.shape, delta, error.dtype), **how)
    return apply(b, np.multiply, near, _share(b, grad, error.view.size, reduction, node), **how)


@_operation("mse_loss")
def _mse_loss(b: Builder, node: Node, x: Array, y: Array, reduction: int = 1) -> Array:
    how: dict[str, Any] = {"shape": np.broadcast_shapes(x.shape, y.shape), "dtype": dtype_of(node)}
    error = apply(b, np.subtract, x, y, **how)
    return _reduced(b, apply(b, np.multiply, error, error, **how), reduction)


@_operation("mse_loss_backward")
def _mse_loss_backward(b: Builder, node: Node, grad: Array, x: Array, y: Array, reduction: int, **_: Any) -> Array:
    how: dict[str, Any] = {"shape": node.shape, "dtype": dtype_of(node)}
    error = apply(b, np.subtract, x, y, **how)
    double = apply(b, np.multiply, error, 2.0, **how)
    return apply(b, np.multiply, double, _share(b, grad, error.view.size, reduction, node), **how)


@_operation("nll_loss_forward")
def _nll_loss(
    b: Builder, node: Node, log_p: Array, target: Array, weight: Any, reduction: int, ignore_index: int
) -> tuple[Array, Array] | None:
    if weight is not None or log_p.view.ndim != 2 or reduction != 0:
        return None
    index = b.reshape(target, (*target.shape, 1))
    chosen = _gathered(b, log_p, 1, index)
    assert chosen is not None, "the shapes fit"
    chosen = b.reshape(chosen, target.shape)
    zero = b.constant(np.zeros((), log_p.dtype))
    return apply(b, np.negative, chosen, shape=target.shape, dtype=log_p.dtype), zero


@_operation("nll_loss_backward")
def _nll_loss_backward(
    b: Builder, node: Node, grad: Array, log_p: Array, target: Array, weight: Any, reduction: int, *_: Any, **__: Any
) -> Array | None:
    if weight is not None or log_p.view.ndim != 2 or reduction != 0:
        return None
    index = b.reshape(target, (*target.shape, 1))
    source = apply(b, np.negative, grad, shape=grad.shape, dtype=log_p.dtype)
    return _scattered(b, node, 1, index, b.reshape(source, (*target.shape, 1)))


@_operation("binary_cross_entropy_with_logits")
def _binary_cross_entropy(
    b: Builder, node: Node, x: Array, y: Array, weight: Any = None, pos_weight: Any = None, reduction: int = 1
) -> Array | None:
    if weight is not None or pos_weight is not None:
        return None
    how: dict[str, Any] = {"shape": x.shape, "dtype": x.dtype}
    product = apply(b, np.multiply, x, y, **how)  # -y log p - (1 - y) log(1 - p) = softplus(x) - x y
    return _reduced(b, apply(b, np.subtract, _softplus_of(b, x), product, **how), reduction)


# ---- sums ----


def _axes(dims: Any, n_axes: int) -> tuple[int, ...]:
    dims = range(n_axes) if dims is None or (isinstance(dims, list) and not dims) else dims
    return tuple(sorted(d % n_axes for d in ([dims] if isinstance(dims, int) else dims))) if n_axes else ()


def _summed(b: Builder, x: Array, dims: Any, *, keepdim: bool) -> Array:
    """Return a sum over axes: where they are the first or the last ones, a product with ones, which BLAS computes."""
    axes, shape = _axes(dims, x.view.ndim), x.shape
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    shape_out = kept if keepdim else tuple(size for axis, size in enumerate(shape) if axis not in axes)
    n_axes, n = len(shape), math.prod(shape[axis] for axis in axes)
    if n == 1:
        return b.reshape(x, shape_out)
    small = tuple(1 if size > 1 and _stride(x, axis, n_axes) == 0 else size for axis, size in enumerate(shape))
    if small != shape and x.view.size:  # the same numbers are added up once
        total = _summed(b, _shrunk(b, x, small), axes, keepdim=True)
        n_times = math.prod(shape[axis] // small[axis] for axis in axes)
        if n_times > 1:
            total = apply(b, np.multiply, total, n_times, shape=total.shape, dtype=total.dtype)
        return b.reshape(b.view(total, lambda array: np.broadcast_to(array, kept)), shape_out)
    if x.dtype.kind == "f" and x.view.size and _is_dense(x):
        n_rest = x.view.size // n
        if axes == tuple(range(n_axes - len(axes), n_axes)):
            rows = b.reshape(x, (n_rest, n)) if n_rest > 1 else b.reshape(x, (n,))
            ones = b.full((n,), 1.0, x.dtype)
            total = b.call(kernels.product, rows, ones, shape=rows.shape[:-1], dtype=x.dtype)
            return b.reshape(total, shape_out)
        if axes == tuple(range(len(axes))):
            columns = _partly_summed(b, b.reshape(x, (n, n_rest)))
            ones = b.full(columns.shape[:1], 1.0, x.dtype)
            return b.reshape(b.call(kernels.product, ones, columns, shape=(n_rest,), dtype=x.dtype), shape_out)
    if len(axes) == 1 and n <= _SHORT and x.dtype.kind == "f":
        return b.reshape(_chain(b, x, axes[0], np.add), shape_out)
    dtype = np.dtype(np.int64) if x.dtype.kind in "biu" else x.dtype
    options = np.add, axes, False
    return b.reshape(
        b.call(kernels.reduce, b.cast(x, dtype), shape=_without(shape, axes), dtype=dtype, options=options), shape_out
    )


def _partly_summed(b: Builder, columns: Array) -> Array:
    """Return sums [P, C] of P equal parts of the rows of [N, C], or [N, C] itself where N is small or has no divisor.

    BLAS adds up the rows of a column one after the other: errors grow with their number.
    """
    n, n_columns = columns.shape
    size = next((size for size in range(_MOST_ADDED, 31, -1) if n % size == 0), n)
    if n <= _MOST_ADDED or size == n or not columns.view.flags.c_contiguous:
        return columns
    parts = b.reshape(columns, (n // size, size, n_columns))
    ones = b.view(b.full((1, size), 1.0, columns.dtype), lambda array: np.broadcast_to(array, (n // size, 1, size)))
    sums = b.call(kernels.stacked_product, ones, parts, shape=(n // size, 1, n_columns), dtype=columns.dtype)
    return b.reshape(sums, (n // size, n_columns))


_MOST_ADDED = 512


def _is_dense(x: Array) -> bool:
    return bool(x.view.flags.c_contiguous or x.view.flags.f_contiguous)


def _without(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


def _chain(b: Builder, x: Array, axis: int, function: np.ufunc) -> Array:
    """Return a reduction along a short axis, kept with size 1, slice by slice."""
    before = (slice(None),) * axis
    parts = [b.view(x, itemgetter((*before, slice(i, i + 1)))) for i in range(x.shape[axis])]
    total = parts[0]
    for part in parts[1:]:
        total = apply(b, function, total, part, shape=part.shape, dtype=x.dtype)
    return total


def _largest(b: Builder, x: Array, dim: int, function: np.ufunc) -> Array:
    """Return the maximum or minimum along an axis, which is kept with size 1."""
    axis = dim % x.view.ndim
    if x.shape[axis] <= _SHORT:
        return _chain(b, x, axis, function)
    kept = tuple(1 if i == axis else size for i, size in enumerate(x.shape))
    options = function, (axis,), True
    return b.call(kernels.reduce, x, shape=kept, dtype=x.dtype, options=options)


@_operation("sum")
def _sum(b: Builder, node: Node, x: Array, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Array:
    return b.cast(_summed(b, b.cast(x, dtype_of(node)), dims, keepdim=keepdim), dtype_of(node))


@_operation("mean")
def _mean(b: Builder, node: Node, x: Array, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Array:
    x = b.cast(x, dtype_of(node))
    total = _summed(b, x, dims, keepdim=keepdim)
    n = math.prod(x.shape[axis] for axis in _axes(dims, x.view.ndim))
    return total if n == 1 else apply(b, np.divide, total, n, shape=total.shape, dtype=total.dtype)


@_operation("any")
def _any(b: Builder, node: Node, x: Array, dims: Any = None, keepdim: bool = False) -> Array:
    return _logical(b, node, x, dims, np.logical_or)


@_operation("all")
def _all(b: Builder, node: Node, x: Array, dims: Any = None, keepdim: bool = False) -> Array:
    return _logical(b, node, x, dims, np.logical_and)


def _logical(b: Builder, node: Node, x: Array, dims: Any, function: np.ufunc) -> Array:
    axes = _axes(dims, x.view.ndim)
    is_set = x if x.dtype == np.bool_ else apply(b, np.not_equal, x, 0, shape=x.shape, dtype=np.bool_, of=x.dtype)
    if len(axes) == 1 and x.shape[axes[0]] <= _SHORT:
        return b.reshape(_chain(b, is_set, axes[0], function), node.shape)
    options = function, axes, False
    return b.reshape(
        b.call(kernels.reduce, is_set, shape=_without(x.shape, axes), dtype=np.bool_, options=options), node.shape
    )


@_operation("amax")
def _amax(b: Builder, node: Node, x: Array, dims: Any = (), keepdim: bool = False) -> Array:
    return _extreme(b, node, x, dims, np.maximum)


@_operation("amin")
def _amin(b: Builder, node: Node, x: Array, dims: Any = (), keepdim: bool = False) -> Array:
    return _extreme(b, node, x, dims, np.minimum)


@_operation("max")
def _max(b: Builder, node: Node, x: Array, dim: Any = None, keepdim: bool = False) -> Any:
    return _maximum(b, node, x, dim, keepdim, np.maximum)


@_operation("min")
def _min(b: Builder, node: Node, x: Array, dim: Any = None, keepdim: bool = False) -> Any:
    return _maximum(b, node, x, dim, keepdim, np.minimum)


def _maximum(b: Builder, node: Node, x: Array, dim: Any, keepdim: bool, function: np.ufunc) -> Any:
    if isinstance(dim, Array):
        return apply(b, function, x, dim, shape=node.shape, dtype=dtype_of(node))
    if dim is None:
        return _extreme(b, node, x, None, function)
    index = _arg(b, node, x, dim, kernels.largest_at if function is np.maximum else kernels.smallest_at)
    return _extreme(b, node, x, [dim], function), index


def _extreme(b: Builder, node: Node, x: Array, dims: Any, function: np.ufunc) -> Array:
    axes = _axes(list(dims) if isinstance(dims, tuple) else dims, x.view.ndim)
    if len(axes) == x.view.ndim and _is_dense(x) and x.view.size > 1:
        x, axes = _flat(b, x, _order(x)), (0,)
    if len(axes) == x.view.ndim == 1 and x.shape[0] > _SHORT:  # the index is found in a fraction of the time
        find = kernels.largest_at if function is np.maximum else kernels.smallest_at
        at = b.call(find, x, shape=(), dtype=np.int64, options=(0,))
        return b.reshape(b.call(kernels.extreme, x, at, shape=(), dtype=x.dtype), node.shape)
    if len(axes) == 1:
        return b.reshape(_largest(b, x, axes[0], function), node.shape)
    options = function, axes, False
    return b.reshape(
        b.call(kernels.reduce, x, shape=_without(x.shape, axes), dtype=x.dtype, options=options), node.shape
    )


@_operation("argmax")
def _argmax(b: Builder, node: Node, x: Array, dim: Any = None, keepdim: bool = False) -> Array:
    return _arg(b, node, x, dim, kernels.largest_at)


@_operation("argmin")
def _argmin(b: Builder, node: Node, x: Array, dim: Any = None, keepdim: bool = False) -> Array:
    return _arg(b, node, x, dim, kernels.smallest_at)


def _arg(b: Builder, node: Node, x: Array, dim: Any, find: Any) -> Array:
    x, axis = (b.reshape(x, (x.view.size,)), 0) if dim is None else (x, dim % x.view.ndim)
    index = b.call(find, x, shape=_without(x.shape, (axis,)), dtype=np.int64, options=(axis,))
    index.is_index = True
    return b.reshape(index, node.shape)


@_operation("cumsum")
def _cumsum(b: Builder, node: Node, x: Array, dim: int, dtype: Any = None) -> Array:
    x = b.cast(x, dtype_of(node))
    return b.call(kernels.accumulate, x, shape=node.shape, dtype=x.dtype, options=(dim % x.view.ndim,))


# ---- products ----


def _product(b: Builder, x: Array, y: Array) -> Array:
    """Return a product of matrices, of stacks of them, or of a matrix and a vector.

    Where few rows are multiplied by a transposed parameter, W^T, the product is computed as (W x^T)^T: numpy's kernels
    take W as it lies, and the result's columns lie in order, for the next layer. Any other transposed second matrix is
    copied, which a backward pass does once for the gradients of a layer and of what follows it.
    """
    if x.view.ndim == y.view.ndim > 1 and _is_transposed(y) and kernels.spares_packing():
        if not y.memory.is_room and _likes_columns(x.shape[-2], *y.shape[-2:]):
            return b.view(_multiplied(b, b.view(y, _swapped), b.view(x, _swapped)), _swapped)
        if y.memory.is_room and x.shape[-1] <= _FEW_ROWS:
            y = b.in_order(y)
    return _multiplied(b, x, y)


_FEW_ROWS = 64


def _likes_columns(n_rows: int, n_inputs: int, n_outputs: int) -> bool:
    """Whether a parameter multiplies rows faster as columns: not a narrow one, nor a small one very few rows."""
    is_large = n_rows >= 16 or n_inputs * n_outputs >= 2**13
    return n_rows <= _FEW_ROWS and n_outputs >= 16 and is_large


def _swapped(array: Any) -> Any:
    return array.swapaxes(-1, -2)


def _is_transposed(x: Array) -> bool:
    """Whether matrices lie in order but for the last two axes, which are swapped."""
    return bool(_swapped(x.view).flags.c_contiguous) and not x.view.flags.c_contiguous


def _multiplied(b: Builder, x: Array, y: Array) -> Array:
    if x.view.ndim == 3:
        return b.call(kernels.stacked_product, x, y, shape=(*x.shape[:2], y.shape[2]), dtype=x.dtype)
    shape = (*x.shape[:-1], *y.shape[1:]) if y.view.ndim > 1 else x.shape[:-1]
    return b.call(kernels.product, _blas(b, x), _blas(b, y), shape=shape, dtype=x.dtype)


def _blas(b: Builder, x: Array) -> Array:
    """Return a matrix as BLAS takes it: in order, or transposed."""
    return x if _is_dense(x) else b.copy(x)


@_operation("mm", "mv", "dot")
def _mm(b: Builder, node: Node, x: Array, y: Array) -> Array:
    return _product(b, x, y)


@_operation("addmm")
def _addmm(b: Builder, node: Node, bias: Array, x: Array, y: Array, beta: float = 1, alpha: float = 1) -> Array | None:
    if beta != 1 or alpha != 1:
        return None
    return apply(b, np.add, _product(b, x, y), bias, shape=node.shape, dtype=dtype_of(node))


@_operation("bmm")
def _bmm(b: Builder, node: Node, x: Array, y: Array) -> Array:
    return _product(b, x, y)


@_operation("baddbmm")
def _baddbmm(
    b: Builder, node: Node, bias: Array, x: Array, y: Array, beta: float = 1, alpha: float = 1
) -> Array | None:
    if beta != 1 or alpha != 1:
        return None
    return apply(b, np.add, _bmm(b, node, x, y), bias, shape=node.shape, dtype=dtype_of(node))


# ---- views ----


@_operation("detach", "alias")
def _same(b: Builder, node: Node, x: Array) -> Array:
    return x


@_operation("t")
def _t(b: Builder, node: Node, x: Array) -> Array:
    kernel, operands, _ = b.maker(x)
    if kernel is kernels.product and _is_result(x) and len(operands[0].shape) == len(operands[1].shape) == 2:
        return _product(b, *(b.view(one, _swapped) for one in reversed(operands)))  # (x y)^T = y^T x^T lies in order
    return b.view(x, lambda array: array.T)


def _is_result(x: Array) -> bool:
    """Whether an array is what a call computes, in the same shape."""
    return x.is_whole and x.shape == x.memory.array.shape


@_operation("transpose")
def _transpose(b: Builder, node: Node, x: Array, first: int, second: int) -> Array:
    kernel, operands, _ = b.maker(x)
    if {first % x.view.ndim, second % x.view.ndim} == {1, 2} and kernel is kernels.stacked_product and _is_result(x):
        return _product(b, *(b.view(one, _swapped) for one in reversed(operands)))
    return b.view(x, lambda array: array.swapaxes(first, second))


@_operation("permute")
def _permute(b: Builder, node: Node, x: Array, dims: Sequence[int]) -> Array:
    return b.view(x, lambda array: array.transpose(dims))


@_operation("view", "_unsafe_view")
def _view(b: Builder, node: Node, x: Array, size: Any) -> Array | None:
    if isinstance(size, torch.dtype):
        return None
    has_inner_rows = len(node.shape) > 2 and node.shape[-1] > 1
    return b.reshape(b.in_order(x) if has_inner_rows else x, node.shape)


@_operation("unsqueeze", "squeeze")
def _squeeze(b: Builder, node: Node, x: Array, *_: Any) -> Array:
    return b.reshape(x, node.shape)


@_operation("expand")
def _expand(b: Builder, node: Node, x: Array, size: Any, *, implicit: bool = False) -> Array:
    return b.view(x, lambda array: np.broadcast_to(array, node.shape))


@_operation("select")
def _select(b: Builder, node: Node, x: Array, dim: int, index: int) -> Array:
    at = (slice(None),) * (dim % x.view.ndim) + (index,)
    return b.view(x, lambda array: array[(*at, ...)])


@_operation("slice")
def _slice(b: Builder, node: Node, x: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Array:
    at = (slice(None),) * (dim % x.view.ndim) + (slice(start, end, step),)
    return b.view(x, lambda array: array[at])


@_operation("split", "split_with_sizes")
def _split(b: Builder, node: Node, x: Array, sizes: Any, dim: int = 0) -> tuple[Array, ...]:
    axis = dim % x.view.ndim
    n = x.shape[axis]
    sizes = [sizes] * -(-n // sizes) if isinstance(sizes, int) else sizes
    ends = np.minimum(np.cumsum(sizes), n).tolist()
    return tuple(_slice(b, node, x, axis, start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True))


@_operation("unbind")
def _unbind(b: Builder, node: Node, x: Array, dim: int = 0) -> tuple[Array, ...]:
    return tuple(_select(b, node, x, dim, i) for i in range(x.shape[dim]))


# ---- copies and constants ----


@_operation("clone")
def _clone(b: Builder, node: Node, x: Array, **_: Any) -> Array:
    return b.in_order(x)


@_operation("_to_copy")
def _to_copy(b: Builder, node: Node, x: Array, **_: Any) -> Array:
    return b.cast(x, dtype_of(node))


@_operation("copy")
def _copy(b: Builder, node: Node, x: Array, source: Array, non_blocking: bool = False) -> Array:
    made = b.cast(source, dtype_of(node))
    return b.view(made, lambda array: np.broadcast_to(array, node.shape))


@_operation("zeros", "new_zeros", "zeros_like", "zero", "empty", "new_empty", "empty_like", "new_empty_strided")
def _zeros(b: Builder, node: Node, *_: Any, **__: Any) -> Array:
    return b.full(node.shape, 0, dtype_of(node))


@_operation("ones", "new_ones", "ones_like")
def _ones(b: Builder, node: Node, *_: Any, **__: Any) -> Array:
    return b.full(node.shape, 1, dtype_of(node))


@_operation("full", "new_full", "full_like")
def _full(b: Builder, node: Node, _: Any, value: Any, **__: Any) -> Array:
    return b.full(node.shape, value, dtype_of(node))


@_operation("new_full")
def _new_full(b: Builder, node: Node, _: Any, __: Any, value: Any, **___: Any) -> Array:
    return b.full(node.shape, value, dtype_of(node))


@_operation("fill")
def _fill(b: Builder, node: Node, x: Array, value: Any) -> Array:
    if isinstance(value, Array):
        return b.view(b.cast(value, x.dtype), lambda array: np.broadcast_to(array, node.shape))
    return b.full(node.shape, value, dtype_of(node))


@_operation("scalar_tensor")
def _scalar_tensor(b: Builder, node: Node, value: Any, **_: Any) -> Array:
    return b.full((), value, dtype_of(node))


@_operation("arange")
def _arange(b: Builder, node: Node, *bounds: Any, **_: Any) -> Array:
    return b.constant(np.arange(*bounds).astype(dtype_of(node)))


@_operation("cat")
def _cat(b: Builder, node: Node, parts: Sequence[Array], dim: int = 0) -> Array:
    parts = [b.cast(part, dtype_of(node)) for part in parts if part.view.size]
    return b.call(kernels.join, *parts, shape=node.shape, dtype=dtype_of(node), options=(dim % len(node.shape),))


@_operation("stack")
def _stack(b: Builder, node: Node, parts: Sequence[Array], dim: int = 0) -> Array:
    axis = dim % len(node.shape)
    shape = (*parts[0].shape[:axis], 1, *parts[0].shape[axis:])
    return _cat(b, node, [b.reshape(part, shape) for part in parts], axis)


@_operation("slice_backward")
def _slice_backward(
    b: Builder, node: Node, grad: Array, sizes: Any, dim: int, start: int, end: int, step: int
) -> Array:
    at = (slice(None),) * (dim % len(node.shape)) + (slice(start, end, step),)
    return b.call(kernels.embed, grad, shape=node.shape, dtype=dtype_of(node), options=(_Slices(at),))


@_operation("constant_pad_nd")
def _pad(b: Builder, node: Node, x: Array, pads: Sequence[int], value: float = 0) -> Array | None:
    if value != 0 or min(pads) < 0:
        return None
    at: list[slice] = [slice(None)] * x.view.ndim
    for i, start in enumerate(pads[::2]):  # of the last axis first
        axis = x.view.ndim - 1 - i
        at[axis] = slice(start, start + x.shape[axis])
    return b.call(kernels.embed, x, shape=node.shape, dtype=x.dtype, options=(_Slices(at),))


@_operation("sort")
def _sort(
    b: Builder, node: Node, x: Array, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> tuple[Array, Array] | None:
    if descending:
        return None  # else equal numbers stay in their order, whether or not `stable` asks for it
    how: dict[str, Any] = {"shape": node.shape, "options": (dim % x.view.ndim,)}
    places = b.call(kernels.sorting_order, x, dtype=np.int64, **how)
    places.is_index = True
    return b.call(kernels.sort, x, dtype=x.dtype, **how), places


@_operation("select_backward")
def _select_backward(b: Builder, node: Node, grad: Array, sizes: Any, dim: int, index: int) -> Array:
    axis = dim % len(node.shape)
    one = b.reshape(grad, (*grad.shape[:axis], 1, *grad.shape[axis:]))
    index %= node.shape[axis]
    return _slice_backward(b, node, one, sizes, axis, index, index + 1, 1)


class _Slices(tuple[slice, ...]):
    """Slices that can be the key of a dict, which Python's are not before 3.12."""

    def __hash__(self) -> int:
        return hash(repr(self))


# ---- rows by index ----


def _rows(b: Builder, x_shape: tuple[int, ...], dim: int, index: Array) -> tuple[Array, int] | None:
    """Return (index [M] of rows, their length) of numbers at `index` along an axis; None for shapes that differ.

    An index that is the same along the axes after `dim` takes whole rows.
    """
    axis = dim % len(x_shape)
    lead, size, trail = x_shape[:axis], x_shape[axis], x_shape[axis + 1 :]
    if index.shape[:axis] != lead or index.shape[axis + 1 :] != trail:
        return None
    if not index.is_index:
        b.check(kernels.check_index, b.in_order(_small(b, index)), options=(size,))
    is_row = all(_stride(index, i, len(x_shape)) == 0 for i in range(axis + 1, len(x_shape)))
    n_trail = math.prod(trail)
    if is_row or n_trail == 1:
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


def _small(b: Builder, x: Array) -> Array:
    return _shrunk(b, x, tuple(1 if _stride(x, i, x.view.ndim) == 0 else size for i, size in enumerate(x.shape)))


def _gathered(b: Builder, x: Array, dim: int, index: Array) -> Array | None:
    found = _rows(b, x.shape, dim, index)
    if found is None:
        return None
    flat, length = found
    n = x.view.size // length
    table = b.reshape(x, (n, length)) if length > 1 else b.reshape(x, (n,))
    shape = (flat.shape[0], length) if length > 1 else flat.shape
    return b.reshape(b.call(kernels.take, table, flat, shape=shape, dtype=x.dtype), index.shape)


def _scattered(b: Builder, node: Node, dim: int, index: Array, source: Array) -> Array | None:
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
    made = b.call(kernel, flat, b.reshape(source, rows), shape=table, dtype=dtype_of(node))
    return b.reshape(made, node.shape)


@_operation("gather")
def _gather(b: Builder, node: Node, x: Array, dim: int, index: Array, *, sparse_grad: bool = False) -> Array | None:
    return _gathered(b, x, dim, index)


@_operation("scatter_add")
def _scatter_add(b: Builder, node: Node, x: Array, dim: int, index: Array, source: Array) -> Array | None:
    made = _scattered(b, node, dim, index, source)
    if made is None or _is_zeros(x):
        return made
    return apply(b, np.add, x, made, shape=node.shape, dtype=dtype_of(node))


@_operation("scatter")
def _scatter(
    b: Builder, node: Node, x: Array, dim: int, index: Array, source: Any, *, reduce: str | None = None
) -> Array | None:
    if reduce is not None or not _is_zeros(x) or index.shape[dim] != 1:
        return None
    if not isinstance(source, Array):
        source = b.full(index.shape, source, dtype_of(node))
    return _scattered(b, node, dim, index, source) if source.shape == index.shape else None


def _is_zeros(x: Array) -> bool:
    return x.memory.is_constant and not x.view.any()


@_operation("index_select")
def _index_select(b: Builder, node: Node, x: Array, dim: int, index: Array) -> Array | None:
    if dim % x.view.ndim != 0:
        return None
    if not index.is_index:
        b.check(kernels.check_index, index, options=(len(x.view),))
    return b.call(kernels.take, x, index, shape=node.shape, dtype=x.dtype)


@_operation("index")
def _index(b: Builder, node: Node, x: Array, indices: Sequence[Array | None]) -> Array | None:
    """Index the first axes by integers of one shape."""
    if any(index is None or index.shape != indices[0].shape for index in indices):  # type: ignore[union-attr]
        return None
    flat: Array | None = None
    for index, size in zip(indices, x.shape, strict=False):
        assert index is not None
        if not index.is_index:
            b.check(kernels.check_index, b.in_order(index), options=(size,))
        how: dict[str, Any] = {"shape": index.shape, "dtype": np.int64}
        flat = index if flat is None else apply(b, np.add, apply(b, np.multiply, flat, size, **how), index, **how)
    assert flat is not None, "there is an index"
    n = len(indices)
    table = b.reshape(x, (math.prod(x.shape[:n]), *x.shape[n:]))
    flat = b.reshape(flat, (flat.view.size,))
    made = b.call(kernels.take, table, flat, shape=(*flat.shape, *table.shape[1:]), dtype=x.dtype)
    return b.reshape(made, node.shape)


@_operation("embedding")
def _embedding(b: Builder, node: Node, table: Array, index: Array, *_: Any) -> Array | None:
    flat = b.reshape(index, (index.view.size,))
    made = b.call(kernels.take, table, flat, shape=(flat.view.size, *table.shape[1:]), dtype=table.dtype)
    b.check(kernels.check_index, b.in_order(flat), options=(len(table.view),))
    return b.reshape(made, node.shape)
