"""The table of ATen operations that programs compute in numpy.

An entry is a function (builder, result node, arguments as ATen has them) -> the result's array, a tuple of them, or
None where it does not cover the arguments. What the table lacks is computed by torch in the program's memory: slower,
never wrong.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from trainkit.extensions.numpy_engine import kernels
from trainkit.extensions.numpy_engine.operations import (
    activations,
    elementwise,
    indexing,
    normalization,
    products,
    reductions,
    shapes,
)
from trainkit.extensions.numpy_engine.operations.elementwise import Operation, predicate, ufunc
from trainkit.extensions.numpy_engine.program import Array, Builder
from trainkit.extensions.numpy_engine.recording import Call, Node, NotDerivableError


def _named(names: str, operation: Operation) -> dict[str, Operation]:
    return dict.fromkeys(names.split(), operation)


OPERATIONS: dict[str, Operation] = {  # by names without overloads and in-place marks
    # arithmetic
    **{name: ufunc(getattr(np, name)) for name in ("exp", "expm1", "log", "log1p", "sqrt", "tanh", "cos", "sin")},
    **{name: ufunc(getattr(np, name)) for name in ("sign", "floor", "ceil", "trunc", "maximum", "minimum")},
    "atanh": ufunc(np.arctanh),
    "asinh": ufunc(np.arcsinh),
    "atan2": ufunc(np.arctan2),
    "neg": elementwise.neg,
    "abs": elementwise.absolute,
    "round": elementwise.rounded,
    "reciprocal": elementwise.reciprocal,
    "rsqrt": elementwise.rsqrt,
    "pow": elementwise.power,
    "add": elementwise.add,
    "sub": elementwise.sub,
    "rsub": elementwise.rsub,
    "mul": ufunc(np.multiply),
    "div": elementwise.div,
    "addcmul": elementwise.addcmul,
    "lerp": elementwise.lerp,
    "xlogy": elementwise.xlogy,
    # logic, comparisons, choices
    **{name: ufunc(getattr(np, name)) for name in ("logical_not", "logical_or", "logical_and")},
    **{name: ufunc(getattr(np, name)) for name in ("bitwise_not", "bitwise_or", "bitwise_and", "bitwise_xor")},
    "isnan": predicate(np.isnan),
    "eq": predicate(np.equal),
    "ne": predicate(np.not_equal),
    "lt": predicate(np.less),
    "le": predicate(np.less_equal),
    "gt": predicate(np.greater),
    "ge": predicate(np.greater_equal),
    **_named("clamp clamp_min", elementwise.clamp),
    "clamp_max": elementwise.clamp_max,
    "where": elementwise.where,
    "masked_fill": elementwise.masked_fill,
    # activations and softmax
    "relu": activations.relu,
    "threshold_backward": activations.threshold_backward,
    "tanh_backward": activations.tanh_backward,
    "sigmoid": activations.sigmoid,
    "sigmoid_backward": activations.sigmoid_backward,
    "silu": activations.silu,
    "silu_backward": activations.silu_backward,
    "elu": activations.elu,
    "elu_backward": activations.elu_backward,
    "softplus": activations.softplus,
    "softplus_backward": activations.softplus_backward,
    "_softmax": activations.softmax,
    "_softmax_backward_data": activations.softmax_backward,
    "_log_softmax": activations.log_softmax,
    "_log_softmax_backward_data": activations.log_softmax_backward,
    "native_layer_norm": normalization.layer_norm,
    "native_layer_norm_backward": normalization.layer_norm_backward,
    **_named("native_batch_norm _native_batch_norm_legit_functional", normalization.batch_norm),
    "native_batch_norm_backward": normalization.batch_norm_backward,
    # losses
    "huber_loss": activations.huber_loss,
    "huber_loss_backward": activations.huber_loss_backward,
    "mse_loss": activations.mse_loss,
    "mse_loss_backward": activations.mse_loss_backward,
    "nll_loss_forward": activations.nll_loss,
    "nll_loss_backward": activations.nll_loss_backward,
    "binary_cross_entropy_with_logits": activations.binary_cross_entropy_with_logits,
    # reductions
    "sum": reductions.total,
    "mean": reductions.mean,
    "cumsum": reductions.cumsum,
    "logsumexp": reductions.logsumexp,
    "any": reductions.logical(np.logical_or),
    "all": reductions.logical(np.logical_and),
    "amax": reductions.extreme(np.maximum),
    "amin": reductions.extreme(np.minimum),
    "max": reductions.extreme_and_index(np.maximum),
    "min": reductions.extreme_and_index(np.minimum),
    "argmax": reductions.index_of_extreme(np.maximum),
    "argmin": reductions.index_of_extreme(np.minimum),
    "sort": reductions.sort,
    # matrix products
    **_named("mm mv dot vdot bmm", products.mm),
    **_named("addmm baddbmm", products.addmm),
    "t": products.transpose_matrix,
    "transpose": products.transpose,
    # views, copies, constants, arrays put together
    **_named("detach alias", shapes.same),
    **_named("view _unsafe_view", shapes.view),
    **_named("squeeze unsqueeze", shapes.squeeze),
    "expand": shapes.expand,
    "permute": shapes.permute,
    "select": shapes.select,
    "slice": shapes.sliced,
    **_named("split split_with_sizes", shapes.split),
    "unbind": shapes.unbind,
    "clone": shapes.clone,
    "_to_copy": shapes.to_copy,
    "copy": shapes.copy,
    **_named("zeros new_zeros zeros_like zero empty new_empty empty_like new_empty_strided", shapes.full(0)),
    **_named("ones new_ones ones_like", shapes.full(1)),
    **_named("full new_full full_like scalar_tensor", shapes.full_of_argument),
    "fill": shapes.fill,
    "arange": shapes.arange,
    "cat": shapes.cat,
    "stack": shapes.stack,
    "slice_backward": shapes.slice_backward,
    "select_backward": shapes.select_backward,
    "constant_pad_nd": shapes.pad,
    # rows by index
    "gather": indexing.gather,
    "scatter": indexing.scatter,
    "scatter_add": indexing.scatter_add,
    "index": indexing.index,
    "index_select": indexing.index_select,
    "embedding": indexing.embedding,
}


def derive(b: Builder, call: Call, array_of: Callable[[Node], Array], *, floats_only: bool = False) -> Sequence[Array]:
    """Return the arrays of a call's results, from those of its operands; torch computes what the table cannot.

    Args:
        b: makes them.
        call: recorded.
        array_of: returns the array of an operand.
        floats_only: whether torch computes all calls that have operands of other dtypes than float32, except views.
    """

    def given(one: Any) -> Any:
        if isinstance(one, Node):
            return array_of(one)
        return [given(part) for part in one] if isinstance(one, (list, tuple)) else one

    args, kwargs = given(call.args), {name: given(one) for name, one in call.kwargs.items()}
    operation = OPERATIONS.get(call.name)
    if floats_only and not _is_view(call.operation):
        operands = _arrays([args, *kwargs.values()])
        operation = None if any(one.dtype != np.float32 for one in operands) else operation
    if operation is not None:
        try:
            made = operation(b, call.results[0] if call.results else None, *args, **kwargs)
        except Exception:  # noqa: BLE001  # a number that its dtype cannot hold, an axis of a scalar, anything
            made = None
        results = made if isinstance(made, tuple) else (made,)
        wanted = [(node.shape, node.numpy_dtype) for node in call.results]
        if made is not None and [(result.shape, result.dtype) for result in results] == wanted:
            return results
    return _by_torch(b, call, args, kwargs)


def _arrays(given: Any) -> list[Array]:
    """Return the arrays in nested lists of arguments."""
    if isinstance(given, Array):
        return [given]
    return [own for one in given for own in _arrays(one)] if isinstance(given, list) else []


def _is_view(operation: Any) -> bool:
    """Return whether an operation of torch returns a view or writes in place."""
    schema = operation._schema
    return any(one.alias_info is not None for one in (*schema.arguments, *schema.returns))


def _by_torch(b: Builder, call: Call, args: Any, kwargs: Any) -> Sequence[Array]:
    """Compute by torch, in new memory, an operation that the table lacks."""
    packet = getattr(torch.ops.aten, call.name, None)
    operation = getattr(packet, call.operation._overloadname, call.operation)  # the one that does not write in place
    if _is_view(operation):
        raise NotDerivableError(f"{operation} returns a view or writes in place, and is not in the table")
    operands: list[Array] = []

    def placed(one: Any) -> Any:
        if isinstance(one, Array):
            operands.append(b.in_order(one))  # some operations need C order
            return kernels.Operand((len(operands) - 1,))
        return tuple(placed(part) for part in one) if isinstance(one, list) else one

    arguments, keywords = placed(args), tuple((name, placed(one)) for name, one in kwargs.items())
    results = [(node.shape, node.numpy_dtype) for node in call.results]
    options = operation, len(results), call.with_grad, arguments, keywords
    return b.call_many(kernels.by_torch, *operands, results=results, options=options)
