"""Kernels: numpy calls that write to existing memory, of which programs are made.

A kernel is given its result's array, its operands' arrays and plain options, and returns the calls that compute the
one from the others: (function, arguments) each.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

A = NDArray[Any]
Calls = Sequence[tuple[Callable[..., object], tuple[Any, ...]]]

# ---- element by element ----


@cache
def elementwise(function: np.ufunc) -> Callable[..., Calls]:
    """Return the kernel of a ufunc."""

    def kernel(out: A, *operands: A) -> Calls:
        return (
            ((partial(function, *operands, out=out), ()),)
            if function in _BY_KEYWORD
            else ((function, (*operands, out)),)
        )

    kernel.__name__ = function.__name__
    return kernel


_BY_KEYWORD = np.maximum, np.minimum  # which are deprecated with `out` by position


def relu(out: A, x: A, zeros: A) -> Calls:
    """Compute max(x, 0), and +0 for -0, on which `relu_backward` depends."""
    return ((partial(np.maximum, x, zeros, out=out), ()),)


def relu_backward(out: A, grad: A, y: A, ones: A) -> Calls:
    """Compute grad where y = relu(x) is above 0, else 0, as an integer product: grad's bits times min(y's bits, 1).

    Where y is nan anything may result: the loss is nan, too, and the update is rejected.
    """
    bits = out.view(np.int32)
    return (
        (partial(np.minimum, y.view(np.int32), ones, out=bits), ()),
        (np.multiply, (grad.view(np.int32), bits, bits)),
    )


def select(out: A, condition: A, x: A, y: A) -> Calls:
    """Compute x where the condition holds, else y."""
    calls = [] if _is_same(out, y) else [(out.__setitem__, (..., y))]
    return (*calls, (partial(np.copyto, out, x, where=condition), ()))


def logistic(out: A, x: A) -> Calls:
    """Compute 1 / (1 + exp(-x))."""
    one = np.ones((), x.dtype)
    return (np.negative, (x, out)), (np.exp, (out, out)), (np.add, (out, one, out)), (np.divide, (one, out, out))


# Operands of a kernel of several calls over which it may write its result; of all others it may be any.
IN_PLACE: dict[Callable[..., Calls], tuple[int, ...]] = {relu: (0,), relu_backward: (1,), select: (2,)}

# ---- sums and products ----


def product(out: A, x: A, y: A) -> Calls:
    """Multiply matrices [B, K] and [K, N], or of a vector and one of them."""
    if x.ndim == y.ndim == 2:
        if x.shape[1] == 1:
            return ((np.multiply, (x, y, out)),)
        n_parts = _n_parts(x, y)
        if n_parts > 1:
            parts = x.reshape(n_parts, -1, x.shape[1]), out.reshape(n_parts, -1, out.shape[1])
            return ((np.matmul, (parts[0], y, parts[1])),)
    return ((x.dot, (y, out)),)


def stacked_product(out: A, x: A, y: A) -> Calls:
    """Multiply stacked matrices [C, B, K] and [C, K, N]."""
    if x.shape[2] == 1:
        return ((np.multiply, (x, y, out)),)
    n_parts = _n_parts(x[0], y[0])
    if n_parts > 1 and out.flags.c_contiguous:
        n, n_rows = len(x), x.shape[1] // n_parts
        parts = x.reshape(n, n_parts, n_rows, x.shape[2]), out.reshape(n, n_parts, n_rows, out.shape[2])
        return ((np.matmul, (parts[0], y[:, None], parts[1])),)
    return ((np.matmul, (x, y, out)),)


def reduce(out: A, x: A, function: np.ufunc, axis: tuple[int, ...], keepdims: bool) -> Calls:
    """Reduce by a ufunc along axes."""
    return ((function.reduce, (x, axis, None, out, keepdims)),)


def accumulate(out: A, x: A, axis: int) -> Calls:
    """Add up cumulatively along an axis."""
    return ((np.add.accumulate, (x, axis, None, out)),)


def sort(out: A, x: A, axis: int) -> Calls:
    """Sort along an axis."""
    return (out.__setitem__, (..., x)), (out.sort, (axis,))


def sorting_order(out: A, x: A, axis: int) -> Calls:
    """Find the indices that would sort along an axis, equal numbers in their order."""

    def run() -> None:
        out[...] = x.argsort(axis, kind="stable")

    return ((run, ()),)


def largest_at(out: A, x: A, axis: int) -> Calls:
    """Find the index of the first largest number along an axis."""
    return ((x.argmax, (axis, out)),)


def smallest_at(out: A, x: A, axis: int) -> Calls:
    """Find the index of the first smallest number along an axis."""
    return ((x.argmin, (axis, out)),)


# ---- memory ----


def join(out: A, *parts_and_axis: Any) -> Calls:
    """Write the parts one after the other along an axis, which is the last argument."""
    *parts, axis = parts_and_axis
    calls = []
    start = 0
    for part in parts:
        end = start + part.shape[axis]
        calls.append((out[(slice(None),) * axis + (slice(start, end),)].__setitem__, (..., part)))
        start = end
    return calls


def take(out: A, x: A, index: A) -> Calls:
    """Take the rows of x [N, ...] at an index [M], which was checked before."""
    return ((x.take, (index, 0, out, "clip")),)


def put(out: A, index: A, source: A) -> Calls:
    """Write zeros, except for rows `source` [M, ...] at an index [M] without repetition."""
    return (out.fill, (0,)), (out.__setitem__, (index, source))


def add_at(out: A, index: A, source: A) -> Calls:
    """Write zeros, and add numbers `source` [M] at an index [M], which may repeat."""
    return (out.fill, (0,)), (np.add.at, (out, index, source))


def embed(out: A, x: A, bounds: Sequence[tuple[Any, Any, Any]]) -> Calls:
    """Write zeros, except for x at slices of (start, stop, step)."""
    at = tuple(slice(*one) for one in bounds)
    return (out.fill, (0,)), (out[at].__setitem__, (..., x))


def check_index(index: A, size: int) -> Calls:
    """Raise IndexError for an index [M] of int64 outside 0 ... size - 1."""
    return ((partial(_check_index, index.view(np.uint64), size), ()),)


def _check_index(index: A, size: int) -> None:
    flat = index.reshape(-1)
    if flat.size and flat[flat.argmax()] >= size:  # a negative one is large without its sign
        signed = flat.view(np.int64)
        wrong = signed[(signed < 0) | (signed >= size)][0]
        raise IndexError(f"an index must be in 0 ... {size - 1}, got {wrong}")


# ---- operations that numpy does not have ----


def by_torch(*arrays_and_options: Any) -> Calls:
    """Compute an ATen operation by torch in the same memory.

    Called with the arrays of results and operands, then (operation, n_results, whether gradients are enabled,
    structure of its arguments).
    """
    *arrays, operation, n_results, with_grad, arguments, keywords = arrays_and_options
    tensors = list(map(_tensor, arrays))
    outs, operands = tensors[:n_results], tensors[n_results:]

    def given(one: Any) -> Any:
        if isinstance(one, Operand):
            return operands[one.position]
        if isinstance(one, tuple):
            return [given(part) for part in one]
        return one

    args, kwargs = [given(one) for one in arguments], {name: given(one) for name, one in keywords}

    def run() -> None:
        with torch.set_grad_enabled(with_grad):
            made = operation(*args, **kwargs)
        results = [one for one in (made if isinstance(made, (tuple, list)) else (made,)) if one is not None]
        for out, result in zip(outs, results, strict=True):
            out.copy_(result)

    run.__name__ = f"torch.{operation}"
    return ((run, ()),)


class Operand(tuple[int]):
    """The position of an operand among an operation's arguments."""

    __slots__ = ()

    @property
    def position(self) -> int:
        return self[0]


def _tensor(array: A) -> torch.Tensor:
    """Return a tensor that shares an array's memory; torch only reads it, so read-only arrays are allowed."""
    with warnings.catch_warnings(), torch.inference_mode(False):
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)


def _is_same(x: A, y: A) -> bool:
    return x.__array_interface__["data"][0] == y.__array_interface__["data"][0] and x.strides == y.strides


# ---- the threads of BLAS ----


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Make BLAS multiply on one thread: for small matrices, threads wait longer than they multiply."""
    changed = [(one, count) for one in blas_libraries() if (count := one.get_num_threads()) != 1]
    for library, _ in changed:
        library.set_num_threads(1)
    try:
        yield
    finally:
        for library, count in changed:
            library.set_num_threads(count)


@cache
def blas_libraries() -> list[Any]:
    """List the BLAS libraries of the process whose threads can be set; finding them takes some milliseconds."""
    libraries: list[Any] = ThreadpoolController().select(user_api="blas").lib_controllers
    return libraries


def is_threaded(x: A, y: A) -> bool:
    """Return whether OpenBLAS would multiply on several threads, if it has them."""
    if x.ndim == y.ndim == 1:
        return len(x) > 10_000
    if 1 in (x.ndim, y.ndim):
        return x.size + y.size > 9_000
    return bool(x.shape[-2] * x.shape[-1] * y.shape[-1] > 2**18)


# ---- products in parts ----

_UNPACKED = 10**6  # multiplications, up to which OpenBLAS's AVX-512 kernels take matrices as they lie
_MOST_PARTS, _MOST_TRANSPOSED = 32, 8  # that still pay: of rows in order, and of transposed ones
_MOST_READ_AGAIN = 2**17  # numbers of the second matrix, which each part reads from the cache
_AVX512 = {"SkylakeX", "Cooperlake", "SapphireRapids"}  # as OpenBLAS calls its kernels


def _n_parts(x: A, y: A) -> int:
    """Return the number of equal row blocks of x that BLAS multiplies without packing; 1 if that gains nothing."""
    n_rows, cost = len(x), x.shape[0] * x.shape[1] * y.shape[1]
    if cost <= _UNPACKED or y.size > _MOST_READ_AGAIN or not y.flags.c_contiguous or not spares_packing():
        return 1
    most = _MOST_PARTS if x.flags.c_contiguous else _MOST_TRANSPOSED
    if not x.flags.c_contiguous and not x.T.flags.c_contiguous:
        return 1
    sizes = (2**i for i in range(most.bit_length()))
    return next((n for n in sizes if n_rows % n == 0 and cost <= n * _UNPACKED), 1)


@cache
def spares_packing() -> bool:
    """Return whether BLAS multiplies small matrices without packing them."""
    return any(getattr(library, "architecture", "") in _AVX512 for library in blas_libraries())
