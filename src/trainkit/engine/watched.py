"""A policy's function in numpy: recorded for each set of shapes, watched, compared with torch from time to time."""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from threading import RLock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from trainkit.core import tree
from trainkit.engine.arguments import arrays_of, filled, shared
from trainkit.engine.derived import Named, NumpyFunction, Pass, torch_pass
from trainkit.engine.gradient_step import GradientStep
from trainkit.engine.operations import NotDerivableError
from trainkit.engine.watch import Watch

Function = Callable[[Any], Mapping[str, Any]]  # a tree of tensors -> tensors by name, or dicts of them

MOST_MULTIPLICATIONS = 1_000_000_000  # of one call, over torch's threads: beyond, torch is as fast
_MOST_SHAPES, _MOST_BYTES = 256, 2**27  # kept at a time
_MOST_IN_A_ROW = 8  # calls at each of which a function is recorded again
_TOLERANCE = {"loss": 1e-4, "gradient": 1e-4}  # of a comparison, relative; 1e-3 for all else

_shape_of, _dtype_of = attrgetter("shape"), attrgetter("dtype")


class GaveUpError(Exception):
    """Numpy cannot be used for a function any more.

    Attributes:
        results: those of the call in which that was found, by torch; None where torch has not computed them.
    """

    def __init__(self, reason: str, results: Named | None = None) -> None:
        super().__init__(reason)
        self.results = results


class WatchedFunction:
    """A function that is derived into numpy whenever it is called with arrays of new shapes, or something has changed.

    Args:
        name: for errors.
        watch: of all that the function may read.
        limited: whether functions of many multiplications are left to torch.
        n_changed, n_new: see below.

    Attributes:
        n_changed: calls in a row, up to the last one, before each of which something had changed.
        n_new: calls in a row, up to the last one, that were recorded.
        n_multiplications: of the last call that was left to torch, 0 where none was.
    """

    def __init__(self, name: str, watch: Watch, *, limited: bool, n_changed: int = 0, n_new: int = 0) -> None:
        self._name, self._watch, self._limited = name, watch, limited
        self.n_multiplications, self.n_changed, self.n_new = 0, n_changed, n_new
        self._lock = RLock()
        self._known: dict[tuple[Any, ...], _Compared | None] = {}  # by shapes and dtypes; None: left to torch
        self._layout: list[Any] = []  # of the arrays of the last call
        self._last: _Compared | None = None  # what was called with them
        self._wrote: _Compared | None = None  # what wrote the gradients last

    def __call__(self, function: Function, inputs: Any, gradient_step: GradientStep | None = None) -> Named | None:
        """Return a function's results, and leave its gradients with the parameters of a gradient step, if there is one.

        Returns None where torch should compute it.

        Raises:
            GaveUpError: it cannot be derived, differs from torch, or would be recorded at every call.
        """
        with self._lock:
            return self._called(function, inputs, gradient_step)

    def _called(self, function: Function, inputs: Any, gradient_step: GradientStep | None) -> Named | None:
        """Do what `__call__` says, in one thread at a time: all calls compute in the same memory."""
        if self._watch.has_changed():
            if self.n_changed == _MOST_IN_A_ROW:
                raise GaveUpError(f"{self._watch.changed()} changes between all calls of {self._name}")
            self._forget()
        if self._watch.is_observed:
            return None
        self.n_changed = 0 if self._known else self.n_changed + 1
        arrays, structure = arrays_of(inputs)
        layout = [*map(_shape_of, arrays), *map(_dtype_of, arrays), *structure]
        if layout != self._layout:
            self._layout, self._last = layout, None
            if tuple(layout) in self._known:
                self._last = self._known[tuple(layout)]
                if self._last is None:
                    self._layout, self._wrote = [], None
                    return None
        compared = self._last
        if compared is None or (gradient_step is not None and compared.layout is not gradient_step.layout):
            if gradient_step is not None and self.n_new == _MOST_IN_A_ROW:  # torch is faster than a recording
                self._layout, self._wrote = [], None
                return None
            self.n_new += 1
            return self._record(function, inputs, arrays, gradient_step)
        self.n_new = 0
        if gradient_step is not None and compared is not self._wrote:
            gradient_step.zero_gradients()
            self._wrote = compared
        results = compared(arrays)
        if compared.is_due():
            parameters = [] if gradient_step is None else gradient_step.learning
            by_torch = torch_pass(lambda x: function(filled(inputs, x)), list(map(shared, arrays)), parameters)
            self._check(compared, results, gradient_step, by_torch)
        return results

    def _forget(self) -> None:
        """Record everything again."""
        self._known.clear()
        self._layout = []
        self._watch.look(forget=True)

    def _record(
        self, function: Function, inputs: Any, arrays: Sequence[NDArray[Any]], gradient_step: GradientStep | None
    ) -> Named | None:
        """Compute by torch and record it; return the results of the numpy function derived from it, else torch's."""
        layout = tuple(self._layout)
        tensors = [torch.from_numpy(np.array(x, order="C")) for x in arrays]  # two may have the same memory
        parameters = [] if gradient_step is None else gradient_step.learning

        def record() -> Pass:
            return torch_pass(lambda x: function(filled(inputs, x)), tensors, parameters, record=self._watch.tensors)

        recorded, changed = record(), None
        if self._watch.has_changed():  # what a first call makes, and later ones read, or what every call changes
            self._forget()
            again = record()
            changed = self._watch.changed()
            recorded = again if changed is None else recorded
        assert recorded.recorder is not None, "it was to be recorded"
        if gradient_step is not None and all(gradient is None for gradient in recorded.gradients):
            return None  # torch's own step says what is wrong
        targets: list[NDArray[np.float32]] = []
        if gradient_step is not None:
            gradient_step.set_gradients(recorded.gradients)
            pairs = zip(parameters, recorded.gradients, strict=True)
            targets = [p.grad.numpy() for p, gradient in pairs if gradient is not None and p.grad is not None]
            if changed is None and self._watch.has_changed():  # as the parameters are stored elsewhere now
                self._forget()
        if changed is not None:
            raise GaveUpError(f"{self._name} changes {changed} while it runs", _plain(recorded.outputs))
        n_multiplications = recorded.recorder.n_multiplications()
        if self._limited and n_multiplications * torch.get_num_threads() > MOST_MULTIPLICATIONS:
            self._known[layout], self.n_multiplications = None, n_multiplications
            self._layout = []
            return _plain(recorded.outputs)
        try:
            derived = NumpyFunction(tensors, recorded, targets)
        except NotDerivableError as error:
            raise GaveUpError(str(error), _plain(recorded.outputs)) from error
        self._watch.narrow(recorded.recorder.read)
        compared = _Compared(derived, None if gradient_step is None else gradient_step.layout)
        self._known[layout] = self._last = self._wrote = compared
        while len(self._known) > _MOST_SHAPES or (len(self._known) > 1 and self._n_bytes() > _MOST_BYTES):
            self._known.pop(next(iter(self._known)))
        self._layout = list(layout)
        results = compared(arrays)
        self._check(compared, results, gradient_step, recorded)
        return results

    def _n_bytes(self) -> int:
        """Return the memory of all that is known."""
        return sum(one.n_bytes for one in self._known.values() if one is not None)

    def _check(self, compared: "_Compared", results: Named, gradient_step: GradientStep | None, by_torch: Pass) -> None:
        """Give up at the second difference in a row: one alone may be a tie that rounding broke."""
        different = _difference(results, [] if gradient_step is None else gradient_step.learning, by_torch)
        if compared.note(different is None):
            if gradient_step is not None:
                gradient_step.set_gradients(by_torch.gradients)
            reason = f"numpy and torch differ in {different} of {self._name}: it reads something that changes unseen"
            raise GaveUpError(reason, _plain(by_torch.outputs))


class _Compared:
    """A numpy function, and when it is to be compared with torch: in calls 1 to 4, 8, 16 ... 1,024, 2,048, 3,072 ..."""

    def __init__(self, function: NumpyFunction, layout: object) -> None:
        self._function, self.n_bytes = function, function.program.n_bytes
        self.layout = layout  # of the gradient step, into whose gradients it writes
        self._n_calls = self._n_differences = 0

    def __call__(self, arrays: Sequence[NDArray[Any]]) -> Named:
        self._n_calls += 1
        return self._function(arrays)

    def is_due(self) -> bool:
        """Return whether this call is one to compare."""
        n = self._n_calls
        return n <= 4 or self._n_differences > 0 or n % 1024 == 0 or (n < 1024 and n & (n - 1) == 0)

    def note(self, agrees: bool) -> bool:
        """Note a comparison, and return whether the function is wrong."""
        self._n_differences = 0 if agrees else self._n_differences + 1
        return self._n_differences == 2


def _difference(results: Named, parameters: Sequence[nn.Parameter], by_torch: Pass) -> str | None:
    """Return the name of what differs from torch's results by more than rounding, None where nothing does."""
    own_leaves, their_leaves = (dict(tree.named_leaves(outputs)) for outputs in (results, by_torch.outputs))
    pairs = [(name, np.asarray(own_leaves[name]), tensor.numpy()) for name, tensor in their_leaves.items()]
    both = [
        (parameter.grad.numpy().ravel(), gradient.numpy().ravel())
        for parameter, gradient in zip(parameters, by_torch.gradients, strict=True)
        if gradient is not None and parameter.grad is not None
    ]
    if both:
        own, theirs = (np.concatenate(side) for side in zip(*both, strict=True))
        pairs.append(("gradient", own, theirs))
    for name, ours, other in pairs:
        if ours.dtype.kind != "f" or not np.isfinite(other).all():
            continue  # of integers a tie changes one; what is not finite is rejected
        error = np.linalg.norm((ours - other).astype(np.float64))
        if error > _TOLERANCE.get(name, 1e-3) * np.linalg.norm(other.astype(np.float64)) + 1e-5:
            return name
    return None


def _plain(outputs: Named) -> Named:
    """Return tensors as a numpy function returns its results."""
    plain: Named = tree.map_tree(lambda x: x.item() if not x.shape and x.dtype == torch.float32 else x.numpy(), outputs)
    return plain
