"""Programs: straight lines of numpy calls on memory that is allocated once.

A `Builder` collects, operation by operation, what to compute. `Builder.build` then decides which calls are needed and
in which memory each writes, and returns a `Program`: a list of (function, arguments) whose arguments are arrays that
already exist, so that running it allocates nothing but copies of its outputs.
"""

import contextlib
import contextvars
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.core import tree
from trainkit.engine.engine import Results
from trainkit.extensions.numpy_engine import kernels

Function = tuple[Callable[..., object], tuple[Any, ...]]  # a call, ready to be made
Kernel = Callable[..., Sequence[Function]]  # (out, operands, options) -> the calls that compute out
_ALIGNMENT = 64  # bytes
_NOTHING = contextlib.nullcontext()


class Memory:
    """One piece of memory: an input, a parameter, a constant, or a buffer for a result."""

    __slots__ = ("array", "is_buffer", "is_constant", "target")

    def __init__(self, array: NDArray[Any], *, is_buffer: bool = False, is_constant: bool = False) -> None:
        self.array = array  # in C order
        self.is_buffer = is_buffer  # written by the program itself, so that it may be shared
        self.is_constant = is_constant  # never written
        self.target: NDArray[Any] | None = None  # the memory of a result that lives outside, of as many bytes


class Array:
    """A view of a piece of memory while a program is built.

    Attributes:
        view: an array with the shape, dtype and strides that the one of the program will have.
        index_size: of an axis that every number is known to be an index of, 0 ... index_size - 1; None if of none.
    """

    __slots__ = ("index_size", "memory", "view")

    def __init__(self, memory: Memory, view: NDArray[Any], *, index_size: int | None = None) -> None:
        self.memory, self.view, self.index_size = memory, view, index_size

    @property
    def shape(self) -> tuple[int, ...]:
        return self.view.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.view.dtype

    @property
    def is_whole(self) -> bool:
        """Whether the array covers all of its memory, in C order."""
        return self.view.size == self.memory.array.size and bool(self.view.flags.c_contiguous)

    @property
    def is_dense(self) -> bool:
        """Whether the array has no gaps, as BLAS requires: in C order or in Fortran order."""
        return bool(self.view.flags.c_contiguous or self.view.flags.f_contiguous)

    def offset(self) -> int:
        """Return the offset in bytes from the start of the memory."""
        return _address(self.view) - _address(self.memory.array)


class _Line:
    """One kernel with its operands: calls that write `outs`, or only check their operands where there are none."""

    __slots__ = ("kernel", "operands", "options", "outs", "reusable")

    def __init__(
        self,
        kernel: Kernel,
        outs: Sequence[Array],
        operands: Sequence[Array],
        options: tuple[Any, ...] = (),
        reusable: Sequence[int] = (),
    ) -> None:
        self.kernel, self.outs, self.operands, self.options = kernel, outs, operands, options
        self.reusable = reusable  # operands in whose memory the first result may be written


class Builder:
    """Collect what a program computes; equal computations on the same arrays are one."""

    def __init__(self) -> None:
        self._lines: list[_Line] = []
        self._known: dict[Any, Array] = {}
        self._views: dict[Any, Array] = {}
        self._made_by: dict[Memory, _Line] = {}
        self._inputs: list[Array] = []
        self._results: list[Array] = []

    # ---- existing arrays ----

    def input(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return the array of the program's next argument, into which each call copies it."""
        array = np.zeros(shape, dtype)
        self._inputs.append(Array(Memory(array), array))
        return self._inputs[-1]

    def held(self, array: NDArray[Any]) -> Array:
        """Return an array outside of the program, which is read in place."""
        key = "held", _layout(array)
        if key not in self._views:
            self._views[key] = Array(Memory(array), array)
        return self._views[key]

    def constant(self, array: NDArray[Any]) -> Array:
        """Return the array of a constant."""
        key = "constant", array.shape, array.dtype, array.tobytes()
        if key not in self._known:
            array = np.array(array, order="C")
            array.setflags(write=False)
            self._known[key] = Array(Memory(array, is_constant=True), array)
        return self._known[key]

    def full(self, shape: tuple[int, ...], value: float, dtype: Any) -> Array:
        """Return a constant array filled with one value; numpy is slower with a scalar."""
        key = "full", shape, repr(value), np.dtype(dtype)
        if key not in self._known:
            array = np.full(shape, value, dtype)
            array.setflags(write=False)
            self._known[key] = Array(Memory(array, is_constant=True), array)
        return self._known[key]

    # ---- what is computed ----

    def view(self, x: Array, look: Callable[[NDArray[Any]], NDArray[Any]]) -> Array:
        """Return a view of an array; `look` must not copy."""
        view = look(x.view)
        key = id(x.memory), *_layout(view)
        if key not in self._views:
            self._views[key] = Array(x.memory, view, index_size=x.index_size)
        return self._views[key]

    def reshape(self, x: Array, shape: tuple[int, ...]) -> Array:
        """Return an array in another shape, as a view if its strides allow, else as a copy."""
        if x.view.size == 0 or np.may_share_memory(x.view, x.view.reshape(shape)):
            return self.view(x, lambda array: array.reshape(shape))
        return self.view(self.copy(x), lambda array: array.reshape(shape))

    def copy(self, x: Array, dtype: Any = None) -> Array:
        """Return a copy in C order, of another dtype if wanted."""
        return self.call(_copy, x, shape=x.shape, dtype=x.dtype if dtype is None else dtype)

    def cast(self, x: Array, dtype: Any) -> Array:
        """Return an array as another dtype."""
        return x if x.dtype == dtype else self.copy(x, dtype)

    def in_order(self, x: Array) -> Array:
        """Return an array in C order."""
        return x if x.view.flags.c_contiguous else self.copy(x)

    def call(
        self,
        kernel: Kernel,
        *operands: Array,
        shape: tuple[int, ...],
        dtype: Any,
        options: tuple[Any, ...] = (),
        reusable: Sequence[int] = (),
        like: Array | None = None,
    ) -> Array:
        """Return the array that a kernel computes.

        Args:
            kernel: of module `kernels`.
            operands: what it reads.
            shape, dtype: of its result.
            options: plain values it is given after the operands.
            reusable: positions of operands in whose memory the result may be written.
            like: an array whose order of axes in memory the result takes; None is C order.
        """
        key = kernel, tuple(map(id, operands)), options, shape, np.dtype(dtype)
        if key not in self._known:
            out = self._new(shape, np.dtype(dtype), like)
            self._known[key] = out
            if all(x.memory.is_constant for x in operands):
                return self._folded(key, kernel, operands, options)
            self._add(_Line(kernel, (out,), operands, options, reusable))
        return self._known[key]

    def known(self, kernel: Kernel, *operands: Array, shape: tuple[int, ...], dtype: Any) -> Array | None:
        """Return the array that a kernel computes, if an earlier call computes it; else None."""
        return self._known.get((kernel, tuple(map(id, operands)), (), shape, np.dtype(dtype)))

    def call_many(
        self, kernel: Kernel, *operands: Array, results: Sequence[tuple[tuple[int, ...], Any]], options: tuple[Any, ...]
    ) -> tuple[Array, ...]:
        """Return the arrays that a kernel with several results computes, with these shapes and dtypes."""
        outs = tuple(self._new(shape, np.dtype(dtype), None) for shape, dtype in results)
        self._add(_Line(kernel, outs, operands, options))
        return outs

    def check(self, kernel: Kernel, *operands: Array, options: tuple[Any, ...] = ()) -> None:
        """Check operands at every call."""
        key = kernel, tuple(map(id, operands)), options
        if key not in self._known:
            self._known[key] = operands[0]
            self._add(_Line(kernel, (), operands, options))

    def maker(self, x: Array) -> tuple[Kernel | None, Sequence[Array], tuple[Any, ...]]:
        """Return (kernel, operands, options) of the call that computes an array, or (None, (), ())."""
        line = self._made_by.get(x.memory)
        return (None, (), ()) if line is None else (line.kernel, line.operands, line.options)

    def result(self, x: Array, target: NDArray[Any] | None = None) -> Array:
        """Make an array a result of the program, in `target` (in C order) or in the program's own memory.

        Returns the array whose view has the content after a run.
        """
        is_free = x.memory.is_buffer and x.memory.target is None and x.is_whole
        if not is_free or any(x.memory is other.memory for other in self._results):
            x = self._own_copy(x)
        if target is not None:
            x.memory.target = target
        self._results.append(x)
        return x

    def build(self, outputs: Mapping[str, Any], *, shares_memory: bool = True) -> "Program":
        """Return the program that computes everything the results and checks need.

        Args:
            outputs: results by name, or dicts of them, that the program returns.
            shares_memory: let results that are needed at different times share memory; False is for tests.
        """
        lines = self._needed()
        buffers = _buffers_of(lines, self._results, shares_memory=shares_memory)

        def allocated(x: Array) -> NDArray[Any]:
            """Return the numpy array of x in the running program."""
            buffer = buffers.get(x.memory)
            if buffer is None or x.view.size == 0:
                return x.view
            return np.ndarray(x.shape, x.dtype, buffer, x.offset(), x.view.strides)

        calls: list[Function] = []
        for line in lines:
            calls += line.kernel(*map(allocated, line.outs), *map(allocated, line.operands), *line.options)
        products = [line.operands for line in lines if line.kernel in (kernels.product, kernels.stacked_product)]
        return Program(
            calls,
            inputs=[allocated(x) for x in self._inputs],
            outputs=tree.map_tree(allocated, outputs),
            kernels=[line.kernel for line in lines],
            is_threaded=any(kernels.is_threaded(x.view, y.view) for x, y in products),
            n_bytes=sum({id(one.base): one.nbytes for one in buffers.values()}.values()),
        )

    def _folded(self, key: Any, kernel: Kernel, operands: Sequence[Array], options: tuple[Any, ...]) -> Array:
        """Compute a kernel of constants now."""
        out = self._known[key]
        with np.errstate(all="ignore"):
            for function, arguments in kernel(out.view, *(x.view for x in operands), *options):
                function(*arguments)
        out.view.setflags(write=False)
        self._known[key] = Array(Memory(out.memory.array, is_constant=True), out.view, index_size=out.index_size)
        return self._known[key]

    def _new(self, shape: tuple[int, ...], dtype: np.dtype[Any], like: Array | None) -> Array:
        if like is None or like.view.ndim < 2 or like.view.flags.c_contiguous:
            array = np.empty(shape, dtype)
            return Array(Memory(array, is_buffer=True), array)
        order = np.argsort([-abs(stride) for stride in like.view.strides], kind="stable")
        array = np.empty([shape[axis] for axis in order], dtype)
        return Array(Memory(array, is_buffer=True), array.transpose(np.argsort(order)))

    def _own_copy(self, x: Array) -> Array:
        """Return a copy that no other operation reads."""
        out = self._new(x.shape, x.dtype, None)
        self._add(_Line(_copy, (out,), (x,), reusable=(0,)))
        return out

    def _add(self, line: _Line) -> None:
        self._lines.append(line)
        self._made_by |= {out.memory: line for out in line.outs}

    def _needed(self) -> list[_Line]:
        """List the lines that results and checks need, in order."""
        needed = {x.memory for x in self._results}
        lines = []
        for line in reversed(self._lines):
            if not line.outs or any(out.memory in needed for out in line.outs):
                needed.update(x.memory for x in line.operands)
                lines.append(line)
        return lines[::-1]


class Program:
    """Calls on arrays that exist.

    Attributes:
        calls: (function, arguments), in order.
        kernels: what computes each line.
        is_threaded: whether BLAS would compute a product on several threads.
        n_bytes: of the program's own memory.
    """

    def __init__(
        self,
        calls: Sequence[Function],
        *,
        inputs: Sequence[NDArray[Any]],
        outputs: Results,
        kernels: Sequence[Kernel],
        is_threaded: bool,
        n_bytes: int,
    ) -> None:
        self.calls, self.kernels, self.is_threaded, self.n_bytes = calls, kernels, is_threaded, n_bytes
        self._inputs, self._readers = inputs, tree.map_tree(_reader, outputs)
        self._silent = contextvars.Context()  # entered faster than `np.errstate`, whose setting it keeps
        self._silent.run(np.seterr, all="ignore")

    def __call__(self, inputs: Sequence[NDArray[Any]]) -> Results:
        """Compute on one thread, for inputs of the recorded shapes, and return outputs; scalars are Python floats."""
        for own, array in zip(self._inputs, inputs, strict=True):
            own[...] = array
        if self.is_threaded:
            with kernels.one_thread():
                self._silent.run(self._compute)
        else:
            self._silent.run(self._compute)
        return _read(self._readers)

    def _compute(self) -> None:
        for function, arguments in self.calls:
            function(*arguments)

    def __str__(self) -> str:
        lines = []
        for function, arguments in self.calls:
            name = getattr(function, "__name__", None) or getattr(getattr(function, "func", None), "__name__", "?")
            shapes = ", ".join(_shown(argument) for argument in (getattr(function, "__self__", None), *arguments))
            lines.append(f"{name}({shapes})")
        return "\n".join(lines)


def _copy(out: NDArray[Any], x: NDArray[Any]) -> Sequence[Function]:
    if _layout(out) == _layout(x):
        return ()
    return ((out.__setitem__, (..., x)),)


def _reader(output: NDArray[Any]) -> Callable[[], Any]:
    """Return a function that copies an output, which the next call overwrites; float32 scalars become Python floats."""
    return output.item if output.shape == () and output.dtype == np.float32 else output.copy


def _read(readers: Mapping[str, Any]) -> Results:
    return {name: one() if callable(one) else _read(one) for name, one in readers.items()}


def _buffers_of(
    lines: Sequence[_Line], results: Sequence[Array], *, shares_memory: bool
) -> dict[Memory, NDArray[np.uint8]]:
    """Assign memory to all results; results that are needed at different times share it."""
    last_use: dict[Memory, int] = {}
    for position, line in enumerate(lines):
        for x in line.operands:
            last_use[x.memory] = position
    last_use |= {x.memory: len(lines) for x in results}
    buffers: dict[Memory, NDArray[np.uint8]] = {}
    free: dict[int, list[NDArray[np.uint8]]] = {}  # by size

    def buffer_for(memory: Memory) -> NDArray[np.uint8]:
        if memory.target is not None:
            return _bytes_of(memory.target)
        size = _rounded(memory.array.nbytes)
        return free[size].pop() if free.get(size) else _allocated(size)

    for position, line in enumerate(lines):
        done = {x.memory for x in line.operands if x.memory in buffers and last_use[x.memory] == position}
        for i, out in enumerate(line.outs):
            heirs = line.reusable if i == 0 and shares_memory and out.memory.target is None else ()
            given = next((line.operands[j] for j in heirs if _can_inherit(line, j, done)), None)
            buffers[out.memory] = buffer_for(out.memory) if given is None else buffers[given.memory]
            if given is not None:
                done.discard(given.memory)
        if shares_memory:
            for memory in done:
                if memory.target is None:
                    free.setdefault(len(buffers[memory]), []).append(buffers[memory])
    return buffers


def _can_inherit(line: _Line, i: int, done: set[Memory]) -> bool:
    """Return whether a line's result may overwrite its operand i, which no later line reads."""
    x, out = line.operands[i], line.outs[0]
    if x.memory not in done or x.memory.target is not None or x.memory.array.nbytes != out.memory.array.nbytes:
        return False
    same = x.offset() == 0 and out.offset() == 0 and x.shape == out.shape and x.view.strides == out.view.strides
    others = (other for j, other in enumerate(line.operands) if j != i and other.memory is x.memory)
    return same and all(other is x for other in others)


def _allocated(size: int) -> NDArray[np.uint8]:
    """Allocate bytes aligned for vector instructions."""
    whole = np.empty(size + _ALIGNMENT, np.uint8)
    start = -_address(whole) % _ALIGNMENT
    return whole[start : start + size]


def _rounded(size: int) -> int:
    return max(-(-size // _ALIGNMENT), 1) * _ALIGNMENT


def _bytes_of(target: NDArray[Any]) -> NDArray[np.uint8]:
    return target.reshape(-1).view(np.uint8)


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _layout(array: NDArray[Any]) -> tuple[Any, ...]:
    return _address(array), array.shape, array.strides, array.dtype


def _shown(argument: Any) -> str:
    if isinstance(argument, np.ndarray):
        return f"{argument.dtype}{list(argument.shape)}"
    return "" if argument is None else str(argument)
