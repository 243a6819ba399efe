"""A policy's function in numpy: recorded in one pass by torch, derived, and compared with torch from time to time."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit.core import tree
from trainkit.engine.changes import Changes
from trainkit.engine.device import as_tensor
from trainkit.engine.engine import Function, Results
from trainkit.engine.gradient_step import GradientStep, present
from trainkit.engine.recording_engine import GaveUpError
from trainkit.extensions.numpy_engine.operations import aten_table
from trainkit.extensions.numpy_engine.program import Array, Builder, Program
from trainkit.extensions.numpy_engine.recording import Constant, Held, Input, Node, NotDerivableError, Pass, torch_pass

MOST_MULTIPLICATIONS = 1_000_000_000  # of one call, over torch's threads: beyond, torch is as fast
_MOST_SHAPES, _MOST_BYTES = 256, 2**27  # kept at a time
_MOST_IN_A_ROW = 8  # calls at each of which a function is recorded again
_TOLERANCE = {"loss": 1e-4, "gradient": 1e-4}  # of a comparison, relative; 1e-3 for all else


class NumpyFunction:
    """A function that is recorded when it is called with arrays of new shapes, and again after something has changed.

    Args:
        name: for errors.
        changes: of all that the function may read.
        is_limited: whether calls of many multiplications are left to torch.
        movable: returns the buffers by name that the function may write.
        n_changed, n_new: see below.

    Attributes:
        n_changed: calls in a row, up to the last one, before each of which something had changed.
        n_new: calls in a row, up to the last one, that were recorded.
    """

    def __init__(
        self,
        name: str,
        changes: Changes,
        *,
        is_limited: bool,
        movable: Callable[[], Mapping[str, Tensor]] = dict,
        n_changed: int = 0,
        n_new: int = 0,
    ) -> None:
        self._name, self._changes, self._is_limited, self._movable = name, changes, is_limited, movable
        self.n_changed, self.n_new = n_changed, n_new
        self._lock = RLock()
        self._derived: dict[tuple[Any, ...], _Derived] = {}  # by shapes and dtypes
        self._large: dict[tuple[Any, ...], int] = {}  # multiplications of calls that are left to torch
        self._wrote: _Derived | None = None  # what wrote the gradients last

    @property
    def reason_for_torch(self) -> str | None:
        """Why torch executes this function now; None where numpy does."""
        if self._changes.has_hooks():
            return f"a hook is registered, so torch executes {self._name}"
        if self._large and not self._derived:
            n_multiplications = list(self._large.values())[-1]
            return f"{self._name} takes {n_multiplications:,} multiplications, for which torch is as fast"
        return None

    def __call__(self, function: Function, inputs: Any, gradient_step: GradientStep | None = None) -> Results | None:
        """Return a function's results, and write its gradients to the parameters of a gradient step, if there is one.

        Where the function moves buffers, they stay as they are, and the results have their new values as "buffers".
        Returns None where torch should compute it.

        Raises:
            GaveUpError: it cannot be derived, differs from torch, or would be recorded at every call.
        """
        with self._lock:  # all calls compute in the same memory
            if self._changes.has_changed():
                if self.n_changed == _MOST_IN_A_ROW:
                    raise GaveUpError(f"{self._changes.first()} changes between all calls of {self._name}")
                self._forget()
            if self._changes.is_observed:
                return None
            self.n_changed = 0 if self._derived or self._large else self.n_changed + 1
            arrays: list[NDArray[Any]] = []
            structure: list[Any] = []
            flatten((inputs,), arrays, structure)
            layout = tuple(structure)
            derived = self._derived.get(layout)
            groups = None if gradient_step is None else gradient_step.groups
            if derived is None or derived.groups is not groups:
                # Torch is faster than a recording of every call.
                if layout in self._large or (gradient_step is not None and self.n_new == _MOST_IN_A_ROW):
                    self._wrote = None
                    return None
                self.n_new += 1
                return self._record(function, inputs, arrays, layout, gradient_step)
            self.n_new = 0
            if gradient_step is not None and derived is not self._wrote:
                gradient_step.zero_gradients()
                self._wrote = derived
            derived.n_calls += 1
            results, _ = self._run(derived, arrays)
            if results is not None and derived.n_calls >= derived.next_comparison:
                parameters = [] if gradient_step is None else gradient_step.trainable
                tensors = list(map(as_tensor, arrays))
                by_torch = torch_pass(
                    lambda leaves: function(with_leaves(inputs, leaves)), tensors, parameters, movable=self._movable()
                )
                self._compare(derived, results, gradient_step, by_torch)
            return results

    def _forget(self) -> None:
        """Record everything again."""
        self._derived.clear()
        self._large.clear()
        self._changes.remember(watch_all=True)

    def _record(
        self,
        function: Function,
        inputs: Any,
        arrays: Sequence[NDArray[Any]],
        layout: tuple[Any, ...],
        gradient_step: GradientStep | None,
    ) -> Results | None:
        """Compute by torch and record it; return the results of the derived program, or torch's if there is none."""
        tensors = [torch.from_numpy(np.array(x, order="C")) for x in arrays]  # two may share memory
        parameters = [] if gradient_step is None else gradient_step.trainable

        def record() -> Pass:
            how: dict[str, Any] = {"record": self._changes.tensors, "movable": self._movable()}
            return torch_pass(lambda leaves: function(with_leaves(inputs, leaves)), tensors, parameters, **how)

        recorded, changed = record(), None
        if self._changes.has_changed():  # it made what later calls read, or each call makes changes
            self._forget()
            again = record()
            changed = self._changes.first()
            recorded = again if changed is None else recorded
        assert recorded.recorder is not None, "the pass was recorded"
        if gradient_step is not None and all(gradient is None for gradient in recorded.gradients):
            return None  # torch's own step says what is wrong
        targets: list[NDArray[np.float32]] = []
        if gradient_step is not None:
            gradients = present(parameters, recorded.gradients)
            gradient_step.set_gradients(gradients)
            targets = [parameter.grad.numpy() for parameter in gradients if parameter.grad is not None]
            if changed is None and self._changes.has_changed():  # as the parameters are stored elsewhere now
                self._forget()
        if changed is not None:
            raise GaveUpError(f"{self._name} changes {changed} while it runs", _as_numpy(recorded.outputs))
        n_multiplications = recorded.recorder.n_multiplications()
        if self._is_limited and n_multiplications * torch.get_num_threads() > MOST_MULTIPLICATIONS:
            self._large[layout] = n_multiplications
            return _as_numpy(recorded.outputs)

        def program_of(*, floats_only: bool = False) -> Program:
            try:
                return derive_program(tensors, recorded, targets, floats_only=floats_only)
            except NotDerivableError as error:
                raise GaveUpError(str(error), _as_numpy(recorded.outputs)) from error

        program = program_of()
        self._changes.narrow(recorded.recorder.read)
        derived = _Derived(program, None if gradient_step is None else gradient_step.groups)
        self._derived[layout] = self._wrote = derived
        self._drop_oldest()
        results, error = self._run(derived, arrays)
        if error is not None and not isinstance(error, IndexError):  # numpy lacks an operation for a dtype, or whatever
            derived.program = program_of(floats_only=True)
            results, _ = self._run(derived, arrays)
        if results is not None:
            self._compare(derived, results, gradient_step, recorded)
        return results

    def _run(self, derived: "_Derived", arrays: Sequence[NDArray[Any]]) -> tuple[Results | None, Exception | None]:
        """Return the results of a program, or None and what numpy rejects it for, which torch may allow."""
        try:
            return derived.program(arrays), None
        except Exception as error:  # noqa: BLE001  # a label that cross_entropy ignores, a negative power of integers
            self._wrote = None
            return None, error

    def _drop_oldest(self) -> None:
        """Drop the oldest programs beyond the limit of memory."""

        def n_bytes() -> int:
            return sum(one.program.n_bytes for one in self._derived.values())

        while len(self._derived) > _MOST_SHAPES or (len(self._derived) > 1 and n_bytes() > _MOST_BYTES):
            self._derived.pop(next(iter(self._derived)))

    def _compare(
        self, derived: "_Derived", results: Results, gradient_step: GradientStep | None, by_torch: Pass
    ) -> None:
        """Give up numpy at the second difference in a row; a single one may come from a tie broken by rounding."""
        parameters = [] if gradient_step is None else gradient_step.trainable
        different = _difference(results, parameters, by_torch)
        derived.n_differences = 0 if different is None else derived.n_differences + 1
        derived.next_comparison = _next_comparison(derived.n_calls, derived.n_differences)
        if derived.n_differences == 2:
            if gradient_step is not None:
                gradient_step.set_gradients(present(parameters, by_torch.gradients))
            reason = f"numpy and torch differ in {different} of {self._name}: it reads something that changes unseen"
            raise GaveUpError(reason, _as_numpy(by_torch.outputs))


@dataclass(slots=True, eq=False)
class _Derived:
    """A program for arrays of one layout, and its comparisons with torch."""

    program: Program
    groups: object  # of the gradient step, to whose gradients it writes
    n_calls: int = 1
    n_differences: int = 0  # in a row
    next_comparison: int = 1  # the call to compare next


def _next_comparison(n_calls: int, n_differences: int) -> int:
    """Return the next call to compare: 1 to 4, 8, 16 ... 1,024, 2,048, 3,072 ..., and the one after a difference."""
    if n_calls < 4 or n_differences > 0:
        return n_calls + 1
    return 1 << n_calls.bit_length() if n_calls < 1024 else (n_calls // 1024 + 1) * 1024


def derive_program(
    inputs: Sequence[Tensor],
    recorded: Pass,
    targets: Sequence[NDArray[np.float32]] = (),
    *,
    shares_memory: bool = True,
    floats_only: bool = False,
) -> Program:
    """Return the program that computes in numpy what a pass by torch computed.

    Args:
        inputs: those it was recorded with.
        recorded: the pass.
        targets: where the program writes the gradients that are not None, arrays in C order.
        shares_memory: see `Builder.build`.
        floats_only: see `aten_table.derive`.

    Raises:
        NotDerivableError: there is no numpy for it.
    """
    recorder = recorded.recorder
    assert recorder is not None, "the pass was recorded"
    if recorder.reason is not None:
        raise NotDerivableError(recorder.reason)
    b = Builder()
    of_inputs = [b.input(tuple(x.shape), x.numpy().dtype) for x in inputs]
    arrays: dict[Node, Array] = {}

    def array_of(node: Node) -> Array:
        if node in arrays:
            return arrays[node]
        if isinstance(node, Input):
            return of_inputs[node.position]
        if isinstance(node, Held):
            assert node.numpy_dtype is not None, "numpy has the dtype"
            return b.held(node.tensor.detach().numpy())
        assert isinstance(node, Constant), "results of calls are known"
        return b.constant(node.array)

    def array_of_result(tensor: Tensor) -> Array:
        node = recorder.node_of(tensor)
        if node is None:
            raise NotDerivableError("a result is a tensor that no recorded operation returned")
        return array_of(node)

    for call in recorder.calls:
        arrays.update(zip(call.results, aten_table.derive(b, call, array_of, floats_only=floats_only), strict=True))
    gradients = [gradient for gradient in recorded.gradients if gradient is not None]
    for gradient, target in zip(gradients, targets, strict=True):
        b.result(array_of_result(gradient), target)
    own = {name: output for name, output in recorded.outputs.items() if name != "buffers"}
    outputs = tree.map_tree(lambda output: b.result(array_of_result(output)), own)
    if recorder.moved:
        outputs["buffers"] = {name: b.result(array_of_result(buffer)) for name, buffer in recorder.moved.items()}
    return b.build(outputs, shares_memory=shares_memory)


def flatten(nodes: Iterable[Any], arrays: list[NDArray[Any]], structure: list[Any]) -> None:
    """Append the leaves of trees to `arrays`, and their shapes and dtypes, keys, lengths and None to `structure`."""
    for node in nodes:
        if isinstance(node, np.ndarray):
            array = node
        elif node is None:
            structure.append(None)
            continue
        elif isinstance(node, tuple):
            structure.append(len(node))
            flatten(node, arrays, structure)
            continue
        elif isinstance(node, dict):
            structure.append(tuple(node))
            flatten(node.values(), arrays, structure)
            continue
        else:
            array = node.numpy() if isinstance(node, Tensor) else np.array(node, np.float32)
        arrays.append(array)
        structure += (array.shape, array.dtype)


def with_leaves(inputs: Any, leaves: Sequence[Tensor]) -> Any:
    """Return a tree with its leaves replaced, in the order of `flatten`."""
    queue = iter(leaves)
    return tree.map_tree(lambda leaf: None if leaf is None else next(queue), inputs)


def _difference(results: Results, parameters: Sequence[nn.Parameter], by_torch: Pass) -> str | None:
    """Return the name of a result that differs from torch's by more than rounding, None if all agree."""
    ours, theirs = (dict(tree.named_leaves(outputs)) for outputs in (results, by_torch.outputs))
    pairs = [(name, np.asarray(own), theirs[name].numpy()) for name, own in ours.items()]
    both = [
        (parameter.grad.numpy().ravel(), gradient.numpy().ravel())
        for parameter, gradient in zip(parameters, by_torch.gradients, strict=True)
        if gradient is not None and parameter.grad is not None
    ]
    if both:
        own, other = (np.concatenate(side) for side in zip(*both, strict=True))
        pairs.append(("gradient", own, other))
    for name, own, other in pairs:
        if own.dtype.kind != "f" or not np.isfinite(other).all():
            continue  # a tie may change an integer; the step checks for non-finite results
        error = np.linalg.norm((own - other).astype(np.float64))
        if error > _TOLERANCE.get(name, 1e-3) * np.linalg.norm(other.astype(np.float64)) + 1e-5:
            return name
    return None


def _as_numpy(outputs: Results) -> Results:
    """Convert outputs of torch to the form in which a program returns its own."""
    results: Results = tree.map_tree(
        lambda x: x.item() if not x.shape and x.dtype == torch.float32 else x.numpy(), outputs
    )
    return results
