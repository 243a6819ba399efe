"""A function of tensors as a function of arrays: recorded in one pass by torch, derived, and compared with torch's."""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainkit.core import tree
from trainkit.engine import operations
from trainkit.engine.operations import NotDerivableError
from trainkit.engine.program import Array, Builder
from trainkit.engine.recording import Constant, Held, Input, Node, Recorder

Named = dict[str, Any]  # tensors or arrays by name, or such dicts; in numpy, scalars are plain numbers


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass by torch returned."""

    outputs: Named
    gradients: Sequence[Tensor | None]  # of the parameters, None where one has no influence
    recorder: Recorder | None = None


def torch_pass(
    function: Callable[[Sequence[Tensor]], Mapping[str, Any]],
    inputs: Sequence[Tensor],
    parameters: Sequence[Tensor],
    *,
    record: Iterable[Tensor] | None = None,
) -> Pass:
    """Call a function and differentiate its output "loss", if there are parameters.

    Args:
        function: inputs -> tensors by name.
        inputs: on the CPU.
        parameters: what to differentiate by.
        record: parameters and buffers that the function may read, to record the pass; None records nothing.
    """
    recorder = None if record is None else Recorder(inputs, record)
    with torch.set_grad_enabled(bool(parameters)), contextlib.nullcontext() if recorder is None else recorder:
        outputs = dict(function(inputs))
        gradients: Sequence[Tensor | None] = [None] * len(parameters)
        if parameters and outputs["loss"].requires_grad:
            gradients = torch.autograd.grad(outputs["loss"], parameters, allow_unused=True)
        outputs = tree.map_tree(lambda output: output.detach(), outputs)
    return Pass(outputs, gradients, recorder)


class NumpyFunction:
    """A recorded function, in numpy.

    Args:
        inputs: those it was recorded with.
        recorded: the pass.
        targets: where the gradients that there are belong, arrays in C order.
        shares_memory: see `Builder.build`.

    Raises:
        NotDerivableError: there is no numpy for it.
    """

    def __init__(
        self,
        inputs: Sequence[Tensor],
        recorded: Pass,
        targets: Sequence[NDArray[np.float32]] = (),
        *,
        shares_memory: bool = True,
    ) -> None:
        recorder = recorded.recorder
        assert recorder is not None, "the pass was recorded"
        if recorder.reason is not None:
            raise NotDerivableError(recorder.reason)
        b, arrays = Builder(), _Arrays()
        for position, tensor in enumerate(inputs):
            node = Input(tuple(tensor.shape), tensor.dtype, position)
            arrays.inputs.append(b.input(node.shape, operations.dtype_of(node)))
        arrays.builder = b
        for call in recorder.calls:
            arrays |= dict(zip(call.results, operations.derive(b, call, arrays), strict=True))
        gradients = [gradient for gradient in recorded.gradients if gradient is not None]
        for gradient, target in zip(gradients, targets, strict=True):
            b.result(arrays[_node(recorder, gradient)], target)
        outputs = tree.map_tree(lambda output: arrays[_node(recorder, output)], recorded.outputs)
        is_number = tree.map_tree(lambda x: x.shape == () and x.dtype == np.float32, outputs)
        self._numbers = np.zeros(sum(tree.leaves(is_number)), np.float32)
        places = itertools.count()

        def result(x: Array, is_number: bool) -> Any:
            """Keep an output, and return its position among the numbers, or the array of the program's result."""
            if not is_number:
                return b.result(x)
            position = next(places)
            b.result(x, self._numbers[position : position + 1].reshape(()))
            return position

        kept = tree.map_tree(result, outputs, is_number)
        self.program, there = b.build(shares_memory=shares_memory)
        self._outputs: Named = tree.map_tree(lambda one: there(one) if isinstance(one, Array) else one, kept)

    def __call__(self, inputs: Sequence[NDArray[Any]]) -> Named:
        """Return the outputs, scalars as plain numbers, and write the gradients to their targets."""
        self.program(inputs)
        return _filled(self._outputs, self._numbers.tolist())


def _filled(outputs: Named, numbers: list[float]) -> Named:
    """Return outputs with numbers in the place of their positions, and copies of arrays, which the next call writes."""
    return {
        name: numbers[one] if type(one) is int else one.copy() if isinstance(one, np.ndarray) else _filled(one, numbers)
        for name, one in outputs.items()
    }


class _Arrays(dict[Node, Array]):
    """The arrays of a recording's nodes; those of parameters and constants are made when they are needed."""

    builder: Builder

    def __init__(self) -> None:
        super().__init__()
        self.inputs: list[Array] = []

    def __missing__(self, node: Node) -> Array:
        if isinstance(node, Input):
            return self.inputs[node.position]
        if isinstance(node, Held):
            operations.dtype_of(node)
            return self.builder.held(node.tensor.detach().numpy())
        assert isinstance(node, Constant), "results of calls are there"
        return self.builder.constant(node.array)

    def __ior__(self, other: Any) -> "_Arrays":  # type: ignore[override,misc]  # a dict's
        self.update(other)
        return self


def _node(recorder: Recorder, tensor: Tensor) -> Node:
    node = recorder.node_of(tensor)
    if node is None:
        raise NotDerivableError("a result is a tensor that no recorded operation returned")
    return node
