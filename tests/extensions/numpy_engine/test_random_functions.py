"""Random compositions of operations: numpy's results, and all gradients, are torch's, wherever things lie in memory."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from trainkit.extensions.numpy_engine.numpy_function import derive_program
from trainkit.extensions.numpy_engine.recording import torch_pass

N_FAST, N_ALL = 40, 4_000
SHAPES = [(6, 4), (4, 6), (6,), (6, 1), (1, 4), (2, 6, 4), (6, 2, 4), (24,)]
UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    **{name: getattr(torch, name) for name in ("relu", "tanh", "neg", "abs", "sigmoid", "square", "sin", "clone")},
    "exp": lambda x: x.clamp(max=2.0).exp(),
    "log": lambda x: (x.square() + 0.5).log(),
    "sqrt": lambda x: (x.abs() + 0.5).sqrt(),
    "softplus": functional.softplus,
    "contiguous": lambda x: x.contiguous() * 0.5,
    "times": lambda x: 1.5 * x - 0.25,
    "clamp in place": lambda x: (x * 1.0).clamp_(-1.0, 1.0),
    "relu in place": lambda x: (x + 0.1).relu_(),
    "detach": lambda x: x.detach() * x,
    "gelu": functional.gelu,
    "where": lambda x: torch.where(x > 0.2, x, -0.5),
    "mask": lambda x: x.masked_fill(x < -0.5, 0.75),
}
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    **{name: getattr(torch, name) for name in ("add", "sub", "mul", "maximum", "minimum")},
    "div": lambda x, y: x / (1.0 + y.square()),
    "opposite differences": lambda x, y: (x - y) * (y - x).abs(),
    "where": lambda x, y: torch.where(x > y, x * y, y),
    "huber": lambda x, y: functional.huber_loss(*torch.broadcast_tensors(x, y), reduction="none", delta=0.7),
    "mse": lambda x, y: functional.mse_loss(*torch.broadcast_tensors(x, y)),
}


class Writer:
    """Write a random function as a list of steps, each of which picks its operands from what is there so far."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.kinds = ["unary"] * 3 + ["binary"] * 3 + ["view"] * 4 + ["reduction"] * 2 + ["product"] * 2 + ["other"] * 2

    def __call__(self, tensors: Sequence[Tensor], n_steps: int) -> list[Tensor]:
        """Run the function, which is another one for each seed, and return all tensors."""
        known = list(tensors)
        for _ in range(n_steps):
            x = known[-min(int(self.rng.geometric(0.5)), len(known))]  # rather a recent one
            made = getattr(self, self.kinds[self.below(len(self.kinds))])(x, known)
            known.append(made if made.numel() and made.numel() <= 500 else x.tanh())
        return known

    def below(self, n: int) -> int:
        """Return a random integer in 0 ... n - 1."""
        return int(self.rng.integers(n))

    def unary(self, x: Tensor, known: Sequence[Tensor]) -> Tensor:
        return list(UNARY.values())[self.below(len(UNARY))](x)

    def binary(self, x: Tensor, known: Sequence[Tensor]) -> Tensor:
        fitting = [y for y in known if _broadcasts(x, y)]
        return list(BINARY.values())[self.below(len(BINARY))](x, fitting[self.below(len(fitting))])

    def view(self, x: Tensor, known: Sequence[Tensor]) -> Tensor:
        axis = self.below(max(x.dim(), 1)) if x.dim() else 0
        choices: list[Callable[[], Tensor]] = [lambda: x.unsqueeze(axis), lambda: x.reshape(-1)]
        if x.dim():
            choices += [
                lambda: x.permute(*self.rng.permutation(x.dim()).tolist()),
                lambda: x.narrow(axis, self.below(x.shape[axis]), 1),
                lambda: x.select(axis, self.below(x.shape[axis])),
                lambda: x[(slice(None),) * axis + (slice(self.below(2), None, 2),)],
                lambda: x.chunk(2, dim=axis)[-1],
                lambda: x.unsqueeze(axis).expand(*x.shape[:axis], 3, *x.shape[axis:]),
                lambda: x.reshape(*self.factors(x.numel())),
                lambda: x.flip(axis),
                lambda: x.squeeze(),
            ]
        if x.dim() >= 2:
            choices += [lambda: x.transpose(0, 1), lambda: x.transpose(-1, -2)]
        return choices[self.below(len(choices))]()

    def reduction(self, x: Tensor, known: Sequence[Tensor]) -> Tensor:
        if not x.dim():
            return x * 2.0
        axis, keep = self.below(x.dim()), bool(self.below(2))
        axes = tuple(sorted({axis, self.below(x.dim())}))
        choices: list[Callable[[], Tensor]] = [
            lambda: x.sum(dim=axes, keepdim=keep),
            lambda: x.mean(dim=axes, keepdim=keep),
            lambda: x.amax(dim=axis, keepdim=keep),
            lambda: x.min(dim=axis, keepdim=keep).values,
            lambda: x.logsumexp(dim=axis, keepdim=keep),
            lambda: x.sum(),
            lambda: x.mean(),
            lambda: x.max(),
            lambda: (x > 0.1).sum(dim=axis, keepdim=keep) * 0.1,
        ]
        return choices[self.below(len(choices))]()

    def product(self, x: Tensor, known: Sequence[Tensor]) -> Tensor:
        if x.dim() == 0:
            return x * x
        fitting = [y for y in known if y.dim() in (1, 2) and y.shape[0] == x.shape[-1]]
        if fitting and self.below(3):
            return (x @ fitting[self.below(len(fitting))]).tanh()
        return (x @ x.transpose(-1, -2) if x.dim() >= 2 else x @ x) * 0.1

    def other(self, x: Tensor, known: Sequence[Tensor]) -> Tensor:
        if not x.dim():
            return x.expand(3)
        axis = self.below(x.dim())
        index = torch.arange(x.shape[axis]).flip(0)[: 1 + self.below(x.shape[axis])]
        same = [y for y in known if y.shape == x.shape]
        y, order = same[self.below(len(same))], torch.arange(x.numel()).mul(7.3).sin().view(x.shape)
        choices: list[Callable[[], Tensor]] = [
            lambda: x.softmax(dim=axis),
            lambda: x.log_softmax(dim=axis),
            lambda: x.cumsum(dim=axis),
            lambda: x.sort(dim=axis).values,
            lambda: torch.cat([x, y], dim=axis),
            lambda: torch.stack([x, y], dim=axis),
            lambda: functional.pad(x, (1, 0)),
            lambda: x.index_select(axis, index),
            lambda: x.gather(axis, order.argmax(dim=axis, keepdim=True)),
            lambda: x.gather(axis, order.argsort(dim=axis)),
            lambda: torch.zeros_like(x).scatter_add(axis, order.argsort(dim=axis), y),
            lambda: functional.layer_norm(x, x.shape[-1:]),
        ]
        return choices[self.below(len(choices))]()

    def factors(self, n: int) -> tuple[int, int]:
        """Return two factors of a number."""
        divisors = [d for d in range(1, n + 1) if n % d == 0]
        d = divisors[self.below(len(divisors))]
        return d, n // d


def _broadcasts(x: Tensor, y: Tensor) -> bool:
    try:
        return math.prod(np.broadcast_shapes(x.shape, y.shape)) <= 500
    except ValueError:
        return False


def check(seed: int) -> None:
    """Derive a random function, and compare it at other inputs than those it was recorded with.

    Where a tie was broken by rounding, it agrees at one of three inputs.
    """
    generator = torch.Generator().manual_seed(seed)
    n_steps = 2 + seed % 14
    parameters = [torch.randn(shape, generator=generator).requires_grad_() for shape in SHAPES[::2]]
    weights = torch.randn(500, generator=generator)

    def function(inputs: Sequence[Tensor]) -> dict[str, Any]:
        made = Writer(seed)([*parameters, *inputs], n_steps)[-3:]
        loss = sum((one * weights[: one.numel()].view(one.shape)).sum() for one in made)
        loss = loss + 0.0 * sum(one.sum() for one in parameters)
        return {"loss": loss, "made": {str(i): one for i, one in enumerate(made)}}

    def inputs() -> list[Tensor]:
        return [torch.randn(shape, generator=generator) for shape in SHAPES[1::2]]

    first = inputs()
    recorded = torch_pass(function, first, parameters, record=[*parameters, weights])
    every_target = [[np.full(p.shape, np.nan, np.float32) for p in parameters] for _ in range(2)]
    both = [
        derive_program(first, recorded, targets, shares_memory=shares_memory)
        for targets, shares_memory in zip(every_target, (True, False), strict=True)
    ]

    def agrees(given: Sequence[Tensor]) -> bool:
        with np.errstate(all="ignore"):
            made = [derived([x.numpy() for x in given])["made"].values() for derived in both]
        together, apart = ([*targets, *one] for targets, one in zip(every_target, made, strict=True))
        wanted = torch_pass(function, given, parameters)
        is_close = True
        for ours, other, theirs in zip(
            together, apart, [*wanted.gradients, *wanted.outputs["made"].values()], strict=True
        ):
            np.testing.assert_array_equal(ours, other)
            numbers = theirs.numpy()
            is_close &= bool(np.linalg.norm(ours - numbers) <= 3e-4 * np.linalg.norm(numbers) + 1e-4)
        return is_close

    assert any(agrees(inputs()) for _ in range(3)), f"function {seed} differs"


@pytest.mark.parametrize("seed", range(0, N_FAST, 20))
def test_a_random_function_is_torchs(seed: int) -> None:
    for one in range(seed, seed + 20):
        check(one)


@pytest.mark.slow
def test_many_random_functions_are_torchs() -> None:
    for seed in range(N_FAST, N_ALL):
        check(seed)
