"""Hold what an engine computes against the same functions evaluated in float64.

`Agreement` evaluates every loss that a policy minimizes, and every function that it acts by, three times: by the
policy's engine, by torch in float32 and by torch in float64. Torch's own error, in float32, is the unit in which the
engine's is measured. Of a single number it may be 0 by luck: where the engine's error is larger than it may be, torch's
is the largest of some evaluations with parameters changed by a thousandth.

At a kink, such as a relu at 0 or two values that tie for the maximum, rounding decides what the gradient is. Rows that
are within 1e-6 of a kink are replaced by other rows of the batch before anything is compared.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from trainkit.core import tree
from trainkit.engine.gradient_step import GradientStep, Taken
from trainkit.extensions.numpy_engine.numpy_engine import NumpyEngine
from trainkit.extensions.numpy_engine.numpy_function import flatten, with_leaves
from trainkit.extensions.numpy_engine.recording import torch_pass

MARGIN = 1e-6  # of a kink, relative to the root mean square of the numbers that have it, if that is above 1
Numbers = dict[str, NDArray[Any]]  # results by name
Evaluation = Callable[[Any, Any], Numbers]  # (policy, inputs) -> results


class Comparison(NamedTuple):
    """The errors of one result to float64: norms of differences."""

    name: str
    error: float  # of the engine
    error_of_torch: float  # in float32
    norm: float  # of the result

    @property
    def excess(self) -> float:
        """The error in units of what is allowed, 2 x torch's + 1e-6 of the norm: above 1 is a failure."""
        allowed = 2.0 * self.error_of_torch + 1e-6 * self.norm
        return 0.0 if self.error == 0.0 else self.error / allowed if allowed else np.inf


class Agreement:
    """Compare, from when it is made, all that policies compute by their engines.

    Attributes:
        comparisons: what was compared.
        n_rows: in all batches.
        n_excluded: of them, rows that were replaced, or not compared at all as no row of their batch was left.
        n_lucky: comparisons that took evaluations nearby.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.comparisons: list[Comparison] = []
        self.n_rows = self.n_excluded = self.n_lucky = 0
        own: Numbers = {}
        minimize, call, move = NumpyEngine.minimize, NumpyEngine.call, GradientStep.apply

        def noted_step(gradient_step: GradientStep, value: Any, shown: Any, **how: Any) -> Taken:
            own.clear()
            named = gradient_step.module.named_parameters()
            gradients = {name: parameter.grad for name, parameter in named if parameter.grad is not None}
            own.update(_numbers({"loss": value, **shown, "gradient": gradients}))
            return move(gradient_step, value, shown, **how)

        def compared_step(
            engine: NumpyEngine,
            gradient_step: GradientStep,
            objective: Any,
            given: Any,
            *,
            step: int,
            lr: Tensor | None = None,
        ) -> Taken:
            def evaluate(policy: Any, given: Any) -> Numbers:
                own_step = policy.gradient_steps[objective.name]
                own_objective = replace(objective, loss=own_step.loss, to_rows=policy.rows, module=own_step.module)
                return _differentiated(own_step, own_objective, given)

            policy = engine._policy
            given, references = self._references(policy, tree.map_tree(_array_of_number, given), evaluate)
            taken = minimize(engine, gradient_step, objective, given, step=step, lr=lr)
            self._compare(f"{type(policy).__name__}.{objective.name}", own, references)
            return taken

        def compared_call(engine: NumpyEngine, name: str, function: Any, inputs: Any, *, draw: Any = None) -> Any:
            def evaluate(policy: Any, inputs: Any) -> Numbers:
                with torch.no_grad():
                    return _numbers(getattr(policy, function.__name__)(inputs))

            policy = engine._policy
            inputs = inputs if draw is None else (*inputs[:-1], draw())
            inputs, references = self._references(policy, inputs, evaluate)
            results: dict[str, NDArray[Any]] = call(engine, name, function, inputs)
            self._compare(f"{type(policy).__name__}.{name}", _numbers(results), references)
            return results

        monkeypatch.setattr(GradientStep, "apply", noted_step)
        monkeypatch.setattr(NumpyEngine, "minimize", compared_step)
        monkeypatch.setattr(NumpyEngine, "call", compared_call)

    @property
    def failures(self) -> list[Comparison]:
        """Results whose error is larger than it may be."""
        return [one for one in self.comparisons if not one.excess <= 1.0]

    def _references(self, policy: Any, given: Any, evaluate: Evaluation) -> tuple[Any, "_References | None"]:
        """Return inputs without rows at a kink, and what is to be compared with; nothing if no row is left."""
        n_rows = len(tree.first_leaf(given))
        kinks = _Kinks(n_rows)
        _evaluated(torch.float64, policy, given, evaluate, kinks)
        self.n_rows += n_rows
        self.n_excluded += int(kinks.rows.sum())
        if kinks.rows.all():
            return given, None
        given = _replaced(given, kinks.rows)
        return given, _References(policy, given, evaluate)

    def _compare(self, name: str, own: Numbers, references: "_References | None") -> None:
        if references is None:
            return
        of_torch, exact = references.of_torch, references.exact
        assert own.keys() == of_torch.keys() == exact.keys(), (own.keys(), exact.keys())
        for key, wanted in exact.items():
            if wanted.dtype.kind != "f":
                continue
            norm = float(np.linalg.norm(wanted[np.isfinite(wanted)]))
            compared = Comparison(f"{name}.{key}", _error(own[key], wanted), _error(of_torch[key], wanted), norm)
            if compared.excess > 1.0:
                self.n_lucky += 1
                compared = compared._replace(error_of_torch=references.largest_error(key))
            self.comparisons.append(compared)


class _References:
    """What torch computes in float32 and in float64, for a policy as it is now."""

    def __init__(self, policy: Any, given: Any, evaluate: Evaluation) -> None:
        self._policy, self._given, self._evaluate = copy.deepcopy(policy), given, evaluate
        self.of_torch, self.exact = self._results(self._policy)
        self._nearby: list[tuple[Numbers, Numbers]] = []

    def largest_error(self, name: str) -> float:
        """Return the largest error of torch in a result, here and with parameters changed by a thousandth."""
        if not self._nearby:
            generator = torch.Generator().manual_seed(0)
            for _ in range(_N_NEARBY):
                policy = copy.deepcopy(self._policy)
                with torch.no_grad():
                    for parameter in policy.parameters():
                        change = torch.rand(parameter.shape, generator=generator, dtype=parameter.dtype)
                        parameter.mul_(1.0 + 1e-3 * change)
                self._nearby.append(self._results(policy))
        pairs = [(self.of_torch, self.exact), *self._nearby]
        return max(_error(of_torch[name], exact[name]) for of_torch, exact in pairs)

    def _results(self, policy: Any) -> tuple[Numbers, Numbers]:
        of_torch = _evaluated(torch.float32, policy, self._given, self._evaluate)
        return of_torch, _evaluated(torch.float64, policy, self._given, self._evaluate)


_N_NEARBY = 16


def _error(numbers: NDArray[Any], exact: NDArray[Any]) -> float:
    """Return the norm of the difference; what is not finite must be the same."""
    is_finite = np.isfinite(exact)
    np.testing.assert_array_equal(numbers[~is_finite], exact[~is_finite])
    return float(np.linalg.norm(numbers[is_finite].astype(np.float64) - exact[is_finite]))


def _array_of_number(leaf: Any) -> Any:
    return np.asarray(leaf, np.float32) if isinstance(leaf, (int, float, np.number)) else leaf


def _differentiated(gradient_step: GradientStep, objective: Any, given: Any) -> Numbers:
    """Return what an objective computes, and its gradients."""
    named = {name: p for name, p in gradient_step.module.named_parameters() if p.requires_grad}
    done = torch_pass(lambda x: objective.evaluate(with_leaves(given, x)), _leaves(given), list(named.values()))
    pairs = zip(named, done.gradients, strict=True)
    gradients = {name: gradient for name, gradient in pairs if gradient is not None}
    return _numbers({**done.outputs, "gradient": gradients})


def _evaluated(
    dtype: torch.dtype, policy: Any, given: Any, evaluate: Evaluation, kinks: "_Kinks | None" = None
) -> Numbers:
    """Evaluate with a copy of a policy, whose parameters, buffers and inputs have a dtype, and note kinks."""
    reference, tensors = copy.deepcopy(policy), _tensors(given)
    if dtype == torch.float32:
        return evaluate(reference, tensors)
    reference, tensors = reference.double(), tree.map_tree(_double, tensors)
    with _default_dtype(torch.float64), _Wide(), contextlib.nullcontext() if kinks is None else kinks:
        return evaluate(reference, tensors)


class _Wide(TorchFunctionMode):
    """Compute in float64 what is to be cast to float32."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def wide(one: Any) -> Any:
            return torch.float64 if one is torch.float32 else one

        function = Tensor.double if function is Tensor.float else function
        return function(*map(wide, args), **{name: wide(one) for name, one in (kwargs or {}).items()})


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


# ---- kinks ----


class _Kinks(TorchDispatchMode):
    """Find the rows of a batch in which an operation is given numbers within `MARGIN` of a kink, but not on it.

    A row is an index of an axis of B numbers, or of blocks of the first axis where there are B of them. Numbers that
    are exactly at a kink are there for a reason, in float32 as well, as where a loss is clamped twice. Without
    gradients, as in targets, only jumps matter: a clamped number is as exact near its bound as elsewhere.
    """

    def __init__(self, n_rows: int) -> None:
        super().__init__()
        self.rows = np.zeros(n_rows, np.bool_)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else it would import torch.compile

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::").rstrip("_")
        kinks = _DISTANCES if torch.is_grad_enabled() else _JUMPS
        if name in kinks and isinstance(args[0], Tensor) and args[0].is_floating_point():
            for numbers, distance in _DISTANCES[name](*args, **(kwargs or {})):
                self._note(numbers, distance)
        return func(*args, **(kwargs or {}))

    def _note(self, numbers: Tensor, distance: Tensor) -> None:
        finite = numbers[numbers.isfinite()]
        scale = max(1.0, float(finite.square().mean().sqrt())) if finite.numel() else 1.0
        is_near = ((distance.abs() < MARGIN * scale) & (distance != 0)).numpy()
        if is_near.any():
            self.rows |= self._of_rows(is_near)

    def _of_rows(self, is_near: NDArray[np.bool_]) -> NDArray[np.bool_]:
        n_rows = len(self.rows)
        if n_rows not in is_near.shape and is_near.ndim and is_near.shape[0] % n_rows == 0:
            is_near = is_near.reshape(n_rows, -1)
        if n_rows not in is_near.shape:
            return np.zeros(n_rows, np.bool_)  # a scalar or a parameter
        axis = is_near.shape.index(n_rows)
        rows: NDArray[np.bool_] = is_near.any(axis=tuple(i for i in range(is_near.ndim) if i != axis))
        return rows


Distances = Iterator[tuple[Tensor, Tensor]]  # (numbers, their distances to a kink)


def _to_zero(x: Tensor, *_: Any, **__: Any) -> Distances:
    yield x, x


def _to_bounds(x: Tensor, *bounds: Any, **named: Any) -> Distances:
    for bound in (*bounds, *named.values()):
        if bound is not None:
            yield x, x - bound


def _to_other(x: Tensor, y: Any, *_: Any) -> Distances:
    yield x, x - y


def _between_best(sign: float) -> Callable[..., Distances]:
    def distances(x: Tensor, dim: Any = None, *_: Any, **__: Any) -> Distances:
        dim = dim[0] if isinstance(dim, (list, tuple)) and len(dim) == 1 else dim
        if isinstance(dim, int) and x.shape[dim] > 1:
            best = (sign * x).topk(2, dim=dim).values
            yield x, best.select(dim, 0) - best.select(dim, 1)

    return distances


def _to_neighbors(ordered: Tensor, x: Tensor, *_: Any, **options: Any) -> Distances:
    index = torch.searchsorted(ordered, x)
    for neighbor in (index - 1, index):
        yield x, x - ordered.gather(-1, neighbor.clamp(0, ordered.shape[-1] - 1))


_DISTANCES: dict[str, Callable[..., Distances]] = {
    **dict.fromkeys(("relu", "leaky_relu", "abs", "sign", "sgn"), _to_zero),
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max", "hardtanh", "threshold"), _to_bounds),
    **dict.fromkeys(("maximum", "minimum", "lt", "le", "gt", "ge"), _to_other),
    **dict.fromkeys(("amax", "max", "argmax"), _between_best(1.0)),
    **dict.fromkeys(("amin", "min", "argmin"), _between_best(-1.0)),
    "searchsorted": _to_neighbors,
}
# Of them, those whose values jump; the others' gradients do.
_JUMPS = {"sign", "sgn", "lt", "le", "gt", "ge", "max", "argmax", "min", "argmin", "searchsorted"}


# ---- trees ----


def _replaced(given: Any, bad: NDArray[np.bool_]) -> Any:
    """Return inputs in which another row is in the place of the bad ones."""
    good = int(np.flatnonzero(~bad)[0])

    def replaced(leaf: Any) -> Any:
        if leaf is None or leaf.ndim == 0 or len(leaf) != len(bad):
            return leaf
        leaf = _copied(leaf)
        leaf[bad] = leaf[good]
        return leaf

    return tree.map_tree(replaced, given) if bad.any() else given


def _numbers(results: Any) -> Numbers:
    """Return results by name as arrays that nothing else writes to."""
    return {name: _copied(leaf) for name, leaf in tree.named_leaves(results)}


def _copied(leaf: Any) -> NDArray[Any]:
    return leaf.detach().numpy().copy() if isinstance(leaf, Tensor) else np.array(leaf)


def _tensors(given: Any) -> Any:
    return tree.map_tree(lambda leaf: None if leaf is None else torch.from_numpy(_copied(leaf)), given)


def _leaves(inputs: Any) -> list[Tensor]:
    arrays: list[NDArray[Any]] = []
    flatten((inputs,), arrays, [])
    return list(map(torch.from_numpy, arrays))


def _double(leaf: Any) -> Any:
    return leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf
