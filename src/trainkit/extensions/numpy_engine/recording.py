"""Record what torch computes, as ATen operations, during one real pass.

A `Recorder` sees every operation below autograd: those of the forward pass and those of the backward pass. What it
records is a list of calls whose tensors are replaced by nodes; `operations` has their counterparts in numpy. Recording
never changes a result. Where something cannot be recorded, `Recorder.reason` says why, and the pass continues
unrecorded.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from trainkit.core import tree, user_code
from trainkit.engine.engine import Results

_NUMPY_DTYPES: Mapping[torch.dtype, Any] = {
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


class NotDerivableError(Exception):
    """Something recorded has no counterpart in numpy."""


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A tensor of a recording."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The counterpart of the dtype in numpy."""
        if self.dtype not in _NUMPY_DTYPES:
            raise NotDerivableError(f"numpy has no {self.dtype}")
        dtype: np.dtype[Any] = np.dtype(_NUMPY_DTYPES[self.dtype])
        return dtype


@dataclass(frozen=True, slots=True, eq=False)
class Input(Node):
    """An argument of the recorded function."""

    position: int


@dataclass(frozen=True, slots=True, eq=False)
class Held(Node):
    """A parameter, a buffer or an array of numpy's: what it contains is read at every call."""

    tensor: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Constant(Node):
    """A tensor made of Python numbers inside the recorded function."""

    array: NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Result(Node):
    """What a call returned, or wrote in place."""

    call: "Call"
    position: int


@dataclass(slots=True, eq=False)
class Call:
    """One ATen operation on nodes and plain arguments; its results are in the order in which it returns them."""

    operation: Any  # a torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    with_grad: bool  # whether gradients were enabled, on which what oneDNN's LSTM returns depends
    results: list[Result] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The operation's name without overload and in-place mark, "mul" of aten.mul_.Tensor."""
        name: str = self.operation._schema.name
        return name.removeprefix("aten::").rstrip("_")


_View = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]  # address, shape, strides, dtype
_DRAWS = torch.Tag.nondeterministic_seeded
_DEPENDS_ON_DATA = torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape


class Recorder(TorchDispatchMode):
    """Record the operations of the code that runs inside `with recorder:`.

    Args:
        inputs: the tensors that change from call to call.
        held: parameters and buffers that the code may read.
        movable: buffers by name, among `held`, that the code may write as a whole, such as running statistics.

    Attributes:
        calls: what was recorded.
        read: the parameters and buffers that were read.
        moved: the buffers that were written, by name.
        reason: why the code cannot be recorded; None while it can.
    """

    def __init__(
        self, inputs: Sequence[Tensor], held: Iterable[Tensor], movable: Mapping[str, Tensor] = MappingProxyType({})
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.calls: list[Call] = []
        self.read: list[Tensor] = []
        self.moved: dict[str, Tensor] = {}
        self._movable = {_memory(tensor): (name, tensor) for name, tensor in movable.items()}
        self.reason: str | None = None
        self._nodes: dict[_View, tuple[Node, int]] = {}  # and the writes to its memory when it was noted
        self._n_writes: Counter[int] = Counter()  # by address of a tensor's memory
        self._fixed: set[int] = set()  # memory that is not the code's own
        self._alive: list[Any] = []  # so that no address is used twice
        for tensor in held:
            self._note(tensor, Held(tuple(tensor.shape), tensor.dtype, tensor), is_fixed=True)
        for position, tensor in enumerate(inputs):
            self._note(tensor, Input(tuple(tensor.shape), tensor.dtype, position), is_fixed=True)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first recording would import torch.compile

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        call = None if self.reason else self._tried(func, self._recorded, func, args, kwargs)
        output = func(*args, **kwargs)
        if call is not None and self.reason is None:
            self._tried(func, self._note_results, call, func, args, kwargs, output)
        return output

    def _tried(self, func: Any, note: Callable[..., Any], *given: Any) -> Any:
        """Call a function about an operation, and note why the operation cannot be recorded if it raises."""
        try:
            return note(*given)
        except RuntimeError as error:  # a tensor has no memory of its own, as sparse ones and torch's efficient zeros
            self.reason = f"{_title(func)} cannot be recorded: {error}"
            return None

    def node_of(self, tensor: Tensor) -> Node | None:
        """Return the node of a tensor, None if the tensor is not in the recording."""
        found = self._nodes.get(_view(tensor))
        if found is None or found[1] != self._n_writes[_memory(tensor)]:
            return None
        return found[0]

    def n_multiplications(self) -> int:
        """Return the number of multiplications of the recorded products and convolutions."""
        return sum(map(_cost, self.calls))

    def _recorded(self, func: Any, args: Any, kwargs: Any) -> Call | None:
        """Return a call with nodes in the place of tensors; note a reason and return None if it cannot be recorded."""
        if func is torch.ops.aten.lift_fresh.default:
            return Call(func, (), {}, False)  # of a tensor that Python has just made
        if func is torch.ops.aten._local_scalar_dense.default:
            self.reason = "it reads a number out of a tensor (item(), float(), bool() or a branch on data)"
        elif _draws(func, args):
            self.reason = f"{_title(func)} draws random numbers inside it: draw them outside, as an input"
        elif any(tag in func.tags for tag in _DEPENDS_ON_DATA) and not _has_whole_indices(func, args):
            self.reason = f"the shape of what {_title(func)} returns depends on the data"
        if self.reason:
            return None
        func, kwargs = (
            _returning_all(func, args),
            {name: one for name, one in kwargs.items() if not _is_out(func, name)},
        )
        operands = _map(self._node, args), _map(self._node, kwargs)
        return None if self.reason else Call(func, *operands, torch.is_grad_enabled())

    def _node(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        node = self.node_of(leaf)
        if isinstance(node, Held):
            self.read.append(node.tensor)
        if node is None and self.reason is None:
            is_stale = _view(leaf) in self._nodes
            self.reason = (
                "it reads a view of a tensor that was written in place since"
                if is_stale
                else f"it reads a tensor {list(leaf.shape)} that is neither an argument nor a parameter or buffer"
            )
        return node

    def _note_results(self, call: Call, func: Any, args: Any, kwargs: Any, output: Any) -> None:
        if call.operation is torch.ops.aten.lift_fresh.default:
            shape, dtype, tensor = tuple(output.shape), output.dtype, output.detach()
            is_of_numpy = not output.untyped_storage().resizable()  # an array's memory, which may change
            if is_of_numpy:
                self._note(output, Held(shape, dtype, tensor), is_fixed=True)
            else:
                self._note(output, Constant(shape, dtype, tensor.numpy().copy()))
            return
        returned = list(output) if isinstance(output, (tuple, list)) else [output]
        for tensor in _written(func, args, kwargs):
            memory = _memory(tensor)
            name, buffer = self._movable.get(memory, (None, None))
            if memory in self._fixed and name is None:
                self.reason = f"{_title(func)} writes to an argument or parameter"
            elif tensor.numel() * tensor.element_size() != tensor.untyped_storage().nbytes():
                self.reason = f"{_title(func)} writes to a part of a tensor"
            elif name is not None and buffer is not None:
                self.moved[name] = buffer
            self._n_writes[memory] += 1
            if all(tensor is not one for one in returned):
                returned.append(tensor)
        for tensor in returned:
            if isinstance(tensor, Tensor):
                result = Result(tuple(tensor.shape), tensor.dtype, call, len(call.results))
                call.results.append(result)
                self._note(tensor, result)
        self.calls.append(call)

    def _note(self, tensor: Tensor, node: Node, *, is_fixed: bool = False) -> None:
        self._alive.append(tensor)
        memory = _memory(tensor)
        self._nodes[_view(tensor)] = node, self._n_writes[memory]
        if is_fixed:
            self._fixed.add(memory)


@dataclass(frozen=True, slots=True)
class Pass:
    """Results of one pass by torch.

    `outputs` has as "buffers" the values that movable buffers would have after the pass, which leaves them as they
    were; without any it has no such entry.
    """

    outputs: Results
    gradients: Sequence[Tensor | None]  # of the parameters, None where one has no influence
    recorder: Recorder | None = None


def torch_pass(
    function: Callable[[Sequence[Tensor]], Mapping[str, Any]],
    inputs: Sequence[Tensor],
    parameters: Sequence[Tensor],
    *,
    record: Iterable[Tensor] | None = None,
    movable: Mapping[str, Tensor] = MappingProxyType({}),
) -> Pass:
    """Call a function and differentiate its output "loss", if there are parameters.

    Args:
        function: inputs -> tensors by name.
        inputs: on the CPU.
        parameters: what to differentiate by.
        record: parameters and buffers that the function may read, to record the pass; None records nothing.
        movable: buffers by name that the function may write.
    """
    recorder = None if record is None else Recorder(inputs, record, movable)
    before = {name: buffer.clone() for name, buffer in movable.items()}
    record_it = contextlib.nullcontext() if recorder is None else recorder
    with user_code.running(), torch.set_grad_enabled(bool(parameters)), record_it:
        outputs = dict(function(inputs))
        gradients: Sequence[Tensor | None] = [None] * len(parameters)
        if parameters and outputs["loss"].requires_grad:
            gradients = torch.autograd.grad(outputs["loss"], parameters, allow_unused=True)
        outputs = tree.map_tree(lambda output: output.detach(), outputs)
    if movable:
        outputs["buffers"] = {name: buffer.clone() for name, buffer in movable.items()}
        for name, buffer in movable.items():
            buffer.copy_(before[name])
    return Pass(outputs, gradients, recorder)


def _cost(call: Call) -> int:
    """Return the multiplications of a product or convolution, 0 for any other call."""
    if call.name not in _FACTORS:
        return 0
    first: tuple[int, ...] = call.args[_FACTORS[call.name]].shape
    each = call.results[0].shape
    if call.name == "convolution":
        return math.prod(each) * math.prod(first[1:])
    return math.prod(first) * (1 if call.name == "mv" else each[-1])


_FACTORS = {"mm": 0, "mv": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "convolution": 1}  # positions among the arguments


def _map(fn: Callable[[Any], Any], operands: Any) -> Any:
    """Apply `fn` to all arguments of an operation, also in lists."""
    if isinstance(operands, (list, tuple)):
        return type(operands)(_map(fn, one) for one in operands)
    if isinstance(operands, dict):
        return {name: _map(fn, one) for name, one in operands.items()}
    return fn(operands)


def _written(operation: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """List the tensors that an operation writes in place."""
    if operation is torch.ops.aten.native_batch_norm.default:  # whose schema lacks its running statistics
        return [tensor for tensor in args[3:5] if tensor is not None and args[5]]
    arguments = operation._schema.arguments
    is_written = [a.alias_info is not None and a.alias_info.is_write for a in arguments]
    if not any(is_written):
        return []
    given = [*args, *(kwargs.get(a.name) for a in arguments[len(args) :])]
    return [tensor for tensor, is_one in zip(given, is_written, strict=True) if is_one and isinstance(tensor, Tensor)]


def _returning_all(operation: Any, args: Any) -> Any:
    """Return the operation that returns what this one writes to running statistics, too."""
    if operation is torch.ops.aten.native_batch_norm.default and args[3] is not None and args[5]:
        return torch.ops.aten._native_batch_norm_legit_functional.default
    return operation


def _is_out(operation: Any, name: str) -> bool:
    """Return whether an argument is a tensor that the operation writes its result to."""
    return any(argument.name == name and argument.is_out for argument in operation._schema.arguments)


def _draws(func: Any, args: Any) -> bool:
    """Return whether an operation draws random numbers; attention does not, unless it has dropout."""
    if _DRAWS not in func.tags:
        return False
    names = [argument.name for argument in func._schema.arguments]
    return "dropout_p" not in names or args[names.index("dropout_p") :][:1] not in ((), (0.0,))


def _has_whole_indices(func: Any, args: Any) -> bool:
    """Return whether this is indexing by integers, so that the result's shape does not depend on their values."""
    if func is not torch.ops.aten.index.Tensor:
        return False
    return all(index is None or index.dtype in (torch.int64, torch.int32) for index in args[1])


def _view(tensor: Tensor) -> _View:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _title(operation: Any) -> str:
    return str(operation).removeprefix("aten.")
