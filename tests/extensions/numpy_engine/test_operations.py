"""Every operation of the table against torch, forward and backward, with and without shared memory."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from trainkit.extensions.numpy_engine import kernels
from trainkit.extensions.numpy_engine.numpy_function import derive_program
from trainkit.extensions.numpy_engine.operations.aten_table import OPERATIONS
from trainkit.extensions.numpy_engine.program import Program
from trainkit.extensions.numpy_engine.recording import NotDerivableError, Pass, torch_pass

SEED = torch.Generator().manual_seed(3)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=SEED)


def flags(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=SEED) < 0.5


def whole(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape, generator=SEED)


def moving_batch_norm(x: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
    """Normalize rows; return what a layer with running statistics computes, and the statistics after it."""
    results: tuple[Tensor, ...] = torch.ops.aten._native_batch_norm_legit_functional(
        x, None, None, mean, variance, True, 0.1, 1e-5
    )
    return results


X, Y = normal(6, 5), normal(6, 5)
ROW, COLUMN = normal(5), normal(6, 1)
CUBE = normal(6, 3, 7)
POSITIVE = normal(6, 5).exp()
MASK = flags(6, 5)


def strided(x: Tensor) -> Tensor:
    return x.new_empty_strided((6, 5), (5, 1))


def byte(x: Tensor) -> Tensor:
    return x.to(torch.uint8)


def unlabeled(x: Tensor, label: Tensor, ignored: int) -> Tensor:
    return functional.cross_entropy(x, label, ignore_index=ignored, reduction="none")


def _sizes(x: Tensor, y: Tensor) -> Tensor:
    return (x - y).t() * (y - x).t().abs()


INDEX = whole(5, 6, 1)
WIDE = whole(3, 6, 1, 1).expand(6, 1, 7)

STACKED = [normal(2, 1, 4), normal(2, 6, 5), normal(2, 4, 5)]
COMPARISONS = "eq", "lt", "le", "gt", "ge", "ne"
REDUCTIONS = "none", "mean", "sum"

# name: (function of the inputs, inputs); float inputs are differentiated by, unless the result has no gradient
CASES: dict[str, tuple[Callable[..., Tensor], Sequence[Tensor]]] = {
    **{name: (getattr(torch, name), [X]) for name in ("exp", "tanh", "cos", "sin", "abs", "neg", "square", "sigmoid")},
    **{name: (getattr(torch, name), [X]) for name in ("sign", "floor", "ceil", "trunc", "round", "expm1", "asinh")},
    **{name: (getattr(torch, name), [POSITIVE]) for name in ("log", "log1p", "sqrt", "rsqrt", "reciprocal")},
    "atanh": (lambda x: torch.atanh(x.tanh() * 0.9), [X]),
    **{name: (getattr(torch, name), [X, Y]) for name in ("add", "sub", "mul", "maximum", "minimum", "atan2")},
    "div": (torch.div, [X, POSITIVE]),
    "add alpha": (lambda x, y: torch.add(x, y, alpha=0.3), [X, Y]),
    "rsub": (lambda x: 1.5 - x, [X]),
    "rdiv": (lambda x: 1.5 / x, [POSITIVE]),
    "div floor": (lambda x, y: torch.div(x, y, rounding_mode="floor"), [X, POSITIVE]),
    "div trunc": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), [X, POSITIVE]),
    "add broadcast row": (torch.add, [X, ROW]),
    "mul broadcast column": (torch.mul, [X, COLUMN]),
    "mul both broadcast": (torch.mul, [ROW, COLUMN]),
    "bool times float": (lambda m, x: m * x, [MASK, X]),
    "int plus float": (lambda i, x: i + x, [INDEX, X]),
    "minus minus, transposed": (lambda x: -((-x[:, ::2].t()).t()) * 2.0, [X]),
    "size of a difference, transposed": (lambda x, y: _sizes(x[:, ::2].t(), y[:, ::2].t()), [X, Y]),
    "pow 2": (lambda x: x**2, [X]),
    "pow 3": (lambda x: x**3, [X]),
    "pow half": (lambda x: x**0.5, [POSITIVE]),
    "pow tensor": (lambda x, y: x**y, [POSITIVE, Y]),
    "exponential": (lambda x: 2.0**x, [X]),
    "addcmul": (lambda x, y, z: torch.addcmul(x, y, z, value=0.5), [X, Y, POSITIVE]),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3), [X, Y]),
    "clamp": (lambda x: x.clamp(-0.5, 0.7), [X]),
    "clamp min": (lambda x: x.clamp(min=0.1), [X]),
    "clamp max": (lambda x: x.clamp(max=0.1), [X]),
    "clamp by tensor": (lambda x, y: x.clamp(max=y), [X, Y]),
    "clamp in place": (lambda x: (x * 1.0).clamp_(-0.5, 0.5), [X]),
    "where": (torch.where, [MASK, X, Y]),
    "where number": (lambda m, x: torch.where(m, x, 0.25), [MASK, X]),
    "where broadcast": (torch.where, [MASK, ROW, COLUMN]),
    "masked_fill": (lambda x, m: x.masked_fill(m, -2.0), [X, MASK]),
    "masked_fill infinite": (lambda x, m: x.masked_fill(m, -torch.inf).amax(dim=0).clamp(min=-9.0), [X, MASK]),
    "xlogy": (lambda m, y: torch.xlogy(m * y, y), [MASK, POSITIVE]),
    **{f"compare {n}": (lambda x, y, n=n: getattr(torch, n)(x, y) * x, [X, Y]) for n in COMPARISONS},
    "compare with number": (lambda x: (x > 0.2) * x, [X]),
    "round to decimals": (lambda x: x.round(decimals=1) + x, [X]),
    "compare integers": (lambda i, x: (i == 2) * x, [INDEX, X]),
    "bitwise": (lambda m, x: ((m | (x > 0)) & ~(x > 1) ^ m) * x, [MASK, X]),
    "logical": (lambda m, x: torch.logical_or(m, torch.logical_and(x > 0, torch.logical_not(m))) * x, [MASK, X]),
    "compare with a number that uint8 cannot hold": (lambda i, x: byte(i).eq(-1) * x + byte(i).lt(300) * x, [INDEX, X]),
    "numbers that bytes cannot hold": (lambda i, x: byte(i) * -1 * x + (i.to(torch.int8) + 200) * x, [INDEX, X]),
    "an axis of a scalar": (lambda x: x.mean().max(0)[0] + x.mean().softmax(0) + x.mean().cumsum(0), [X]),
    "isfinite": (lambda x: x.isfinite() * x + x.isnan(), [X]),
    "isnan": (lambda x: (x.clamp(max=0.0).detach().sqrt() * 0.0).isnan() * x, [X]),
    "relu": (torch.relu, [X]),
    "relu of a transposed": (lambda x: torch.relu(x.t() * 1.0), [X]),
    "relu twice": (lambda x: torch.relu(x) * torch.relu(x) + x, [X]),
    "relu in place": (lambda x: torch.relu_(x * 2.0), [X]),
    "threshold": (lambda x: functional.threshold(x, 0.3, 0.0), [X]),
    "leaky_relu": (functional.leaky_relu, [X]),
    "gelu": (functional.gelu, [X]),
    "gelu of an expanded": (lambda x, y: functional.gelu(y.expand(6, 5)) * x, [X, ROW]),
    "sort of an expanded": (lambda i, x: i.expand(6, 5).sort(dim=1).values * x, [INDEX, X]),
    "convolution": (lambda x, w, b: functional.conv1d(x, w, b), [CUBE, normal(4, 3, 2), normal(4)]),
    "convolution of a constant": (lambda w, b: functional.conv1d(torch.ones(2, 3, 7), w, b), [CUBE, normal(6)]),
    "leaky_relu with a steep slope": (lambda x: functional.leaky_relu(x, 1.5), [X]),
    "elu": (lambda x: functional.elu(x * 60.0), [X]),
    "elu with alpha": (lambda x: functional.elu(x, 0.5), [X]),
    "silu": (functional.silu, [X]),
    "silu of a transposed": (lambda x: functional.silu(x.t() * 1.0), [X]),
    "batch_norm": (lambda x, w, b: functional.batch_norm(x, None, None, w, b, training=True), [X + 3.0, ROW, ROW]),
    "batch_norm without weights": (lambda x: functional.batch_norm(x, None, None, training=True), [X]),
    "batch_norm in evaluation": (
        lambda x, m, v, w, b: functional.batch_norm(x, m.detach(), v.detach().square(), w, b),
        [X, ROW, normal(5), ROW + 1.0, normal(5)],
    ),
    "batch_norm of images": (lambda x: functional.batch_norm(x, None, None, training=True), [CUBE]),
    "batch_norm with running statistics": (
        lambda x, m, v: torch.cat([out.reshape(-1, 5) for out in moving_batch_norm(x, m.detach(), v.detach())]),
        [X, ROW, ROW.square()],
    ),
    "vdot": (lambda x, y: torch.vdot(x, y) * x, [ROW, normal(5)]),
    "layer_norm": (lambda x, w, b: functional.layer_norm(x, (5,), w, b), [X + 3.0, ROW, normal(5)]),
    "layer_norm of a cube": (lambda x, w: functional.layer_norm(x, (7,), w), [CUBE, normal(7)]),
    "layer_norm of two axes": (lambda x: functional.layer_norm(x, (3, 7)), [CUBE]),
    "layer_norm of a transposed": (lambda x, y: functional.layer_norm((x @ y.t()).t(), (6,)), [X, Y]),
    "layer_norm of a frozen weight": (lambda i, x: functional.layer_norm(x, (5,), i.expand(6, 5)[0] * 1.0), [INDEX, X]),
    "rms_norm": (lambda x, w: functional.rms_norm(x, (5,), w, 1e-5), [X, ROW]),
    "hardtanh": (functional.hardtanh, [X]),
    "softplus": (functional.softplus, [X * 10]),
    "softplus with a low threshold": (lambda x: functional.softplus(x, threshold=0.5), [X]),
    "softplus beta": (lambda x: functional.softplus(x, beta=2.0), [X]),
    "softmax": (lambda x: x.softmax(dim=1), [X]),
    "softmax of a cube": (lambda x: x.softmax(dim=2), [CUBE]),
    "softmax of a short axis": (lambda x: x.softmax(dim=1), [CUBE]),
    "log_softmax": (lambda x: x.log_softmax(dim=-1), [X]),
    "log_softmax of a cube": (lambda x: x.log_softmax(dim=1), [CUBE]),
    "logsumexp": (lambda x: x.logsumexp(dim=1), [X]),
    "logsumexp masked": (lambda x, m: x.masked_fill(m, -torch.inf).logsumexp(dim=1).clamp(min=-5), [X, MASK]),
    "logsumexp keepdim": (lambda x: x.logsumexp(dim=0, keepdim=True), [X]),
    **{f"huber {r}": (lambda x, y, r=r: functional.huber_loss(x, y, r, 0.7), [X, Y]) for r in REDUCTIONS},
    **{f"mse {r}": (lambda x, y, r=r: functional.mse_loss(x, y, reduction=r), [X, Y]) for r in REDUCTIONS},
    "smooth l1": (functional.smooth_l1_loss, [X, Y]),
    "cross_entropy": (lambda x, i: functional.cross_entropy(x, i.squeeze(1), reduction="none"), [X, INDEX]),
    "cross_entropy without a label": (lambda x, i: unlabeled(x, i.squeeze(1), 2), [X, INDEX]),
    "cross_entropy mean": (lambda x, i: functional.cross_entropy(x, i.squeeze(1)), [X, INDEX]),
    "bce": (lambda x, m: functional.binary_cross_entropy_with_logits(x, m.float(), reduction="none"), [X, MASK]),
    "bce mean": (lambda x, y: functional.binary_cross_entropy_with_logits(x, y.sigmoid()), [X, Y]),
    **{f"sum {d}": (lambda x, d=d: x.sum(dim=d), [CUBE]) for d in (0, 1, 2, (0, 1), (1, 2), (0, 2))},
    "sum": (lambda x: x.sum(), [CUBE]),
    "sum of many rows": (lambda x: x.sum(dim=0), [normal(1224, 2).exp()]),
    "sum of many rows, a prime number": (lambda x: x.sum(dim=0), [normal(1223, 2).exp()]),
    "sum keepdim": (lambda x: x.sum(dim=1, keepdim=True), [CUBE]),
    "sum of a transposed": (lambda x: x.t().sum(dim=0), [X]),
    "sum of an expanded": (lambda x: x.expand(4, 6, 5).sum(dim=0), [X]),
    "sum of an expanded over another axis": (lambda x: x.expand(6, 5).sum(dim=0), [COLUMN]),
    "sum of an expanded over both": (lambda x: x.expand(6, 5).sum(), [COLUMN]),
    "sum of an expanded over two of three": (lambda x: x.unsqueeze(1).expand(6, 4, 5).sum(dim=(0, 1)), [X]),
    "sum of many that are equal": (lambda x: (x.mean() / 891).expand(891, 3).sum(dim=0), [X]),
    "sum of booleans": (lambda m, x: m.sum(dim=1, keepdim=True) * x, [MASK, X]),
    "mean": (lambda x: x.mean(), [CUBE]),
    "mean over an axis": (lambda x: x.mean(dim=1, keepdim=True), [CUBE]),
    "mean over two": (lambda x: x.mean(dim=(1, 2)), [CUBE]),
    "var": (lambda x: x.var(dim=1), [X]),
    "std": (lambda x: x.std(), [X]),
    "norm": (lambda x: x.norm(dim=1), [X]),
    "any": (lambda m, x: m.any(dim=1, keepdim=True) * x, [MASK, X]),
    "all": (lambda m, x: (m | ~m[:1]).all(dim=0) * x, [MASK, X]),
    "any of all": (lambda m, x: m.any() * x, [MASK, X]),
    **{name: (lambda x, n=name: getattr(x, n)(dim=1), [CUBE]) for name in ("amax", "amin")},
    "amax of a long axis": (lambda x: x.amax(dim=2), [CUBE]),
    "amax of all": (lambda x: x.amax(), [X]),
    "amax of a vector, kept": (lambda x: x.amax(dim=0, keepdim=True), [X.flatten()]),
    "max": (lambda x: x.max(), [X.flatten()]),
    "min": (lambda x: x.min(), [X]),
    "max over an axis": (lambda x: x.max(dim=1).values, [CUBE]),
    "min over an axis": (lambda x: x.min(dim=2, keepdim=True).values, [CUBE]),
    "argmax": (lambda x: x.argmax(dim=1) * x.sum(), [X]),
    "argmin of all": (lambda x: x.argmin() * x.sum(), [X]),
    "cumsum": (lambda x: x.cumsum(dim=1), [X]),
    "sort": (lambda x: x.sort(dim=1).values * torch.arange(5), [X]),
    "pad": (lambda x: functional.pad(x, (1, 2, 0, 1)) * 2.0, [X]),
    "pad with a value": (lambda x: functional.pad(x, (1, 0), value=1.0) * 2.0, [X]),
    "sort descending": (lambda x: x.sort(dim=1, descending=True).values * torch.arange(5), [X]),
    "sort stable": (lambda x, i: i.expand(6, 5).sort(dim=1, stable=True).indices * x, [X, INDEX]),
    "sort of a cube": (lambda x: x.sort(dim=1).values * x.sort(dim=1).indices, [CUBE]),
    "searchsorted": (lambda x, y: torch.searchsorted(x.detach().sort(dim=1).values, y.detach()) * y, [X, Y]),
    "mm": (torch.mm, [X, normal(5, 4)]),
    "mm of transposed": (lambda x, y: x.t() @ y, [X, Y]),
    "mm with one sum": (torch.mm, [COLUMN, normal(1, 4)]),
    "mv": (lambda x, y: x @ y, [X, ROW]),
    "dot": (lambda x, y: x @ y, [ROW, normal(5)]),
    "linear": (functional.linear, [X, normal(4, 5), normal(4)]),
    "linear of a cube": (functional.linear, [CUBE, normal(4, 7), normal(4)]),
    "linear of few": (functional.linear, [X[:1], normal(4, 5), normal(4)]),
    "two layers": (lambda x, w, v: torch.relu(x @ w.t()) @ v.t(), [X, normal(8, 5), normal(3, 8)]),
    "bmm": (torch.bmm, [CUBE, normal(6, 7, 2)]),
    "baddbmm": (lambda b, x, w: torch.baddbmm(b, x, w.transpose(1, 2)), STACKED),
    "large product": (torch.mm, [normal(128, 96), normal(96, 128) / 96**0.5]),
    "bmm in four dimensions": (lambda x: (x @ x.transpose(2, 3)).transpose(1, 2) * 2.0, [normal(2, 3, 4, 5)]),
    "t of a product in another shape": (lambda x, y: torch.mm(x.t(), y).view(1, 25).t() * 2.0, [X, Y]),
    "attention": (lambda x: functional.scaled_dot_product_attention(x, x * 2.0, x), [normal(2, 3, 4, 5)]),
    "gelu of a layer": (lambda x, w: functional.gelu(functional.linear(x, w)), [X, normal(8, 5)]),
    "group norm of a layer": (lambda x, w: functional.group_norm(functional.linear(x, w), 2), [X, normal(8, 5)]),
    "t": (lambda x: x.t() * 2.0, [X]),
    "transpose": (lambda x: x.transpose(1, 2) + 1.0, [CUBE]),
    "permute": (lambda x: x.permute(2, 0, 1) * 2.0, [CUBE]),
    "view": (lambda x: x.view(3, 10) * 2.0, [X]),
    "reshape of a transposed": (lambda x: x.t().reshape(10, 3) * 2.0, [X]),
    "flatten": (lambda x: x.flatten(1) * 2.0, [CUBE]),
    "unsqueeze": (lambda x: (x.unsqueeze(1) * 2.0).squeeze(1), [X]),
    "expand": (lambda x: x.expand(6, 4) * 2.0, [COLUMN]),
    "select": (lambda x: x[:, 1] * 2.0, [CUBE]),
    "slice": (lambda x: x[:, 1:3] * 2.0, [X]),
    "slice with a step": (lambda x: x[:, ::2] * 2.0, [X]),
    "split": (lambda x: x.split([2, 3], dim=1)[1] * 2.0, [X]),
    "chunk": (lambda x: x.chunk(2, dim=1)[0] * x.chunk(2, dim=1)[0], [normal(6, 4)]),
    "unbind": (lambda x: x.unbind(1)[2] * x.unbind(1)[0], [CUBE]),
    "cat": (lambda x, y: torch.cat([x, y * 2.0], dim=1) * 2.0, [X, Y]),
    "stack": (lambda x, y: torch.stack([x, y * 2.0], dim=1) * 2.0, [X, Y]),
    "zeros_like": (lambda x: torch.zeros_like(x) + x + torch.ones_like(x) * 2.0, [X]),
    "new_full": (lambda x: x.new_full((6, 5), 3.0) * x + torch.full_like(x, 2.0), [X]),
    "constants": (lambda x: x + torch.zeros(5) + torch.ones(6, 5) + torch.full((5,), 2.0) + x.new_ones(5), [X]),
    "empty ones": (lambda x: x + torch.empty(5).zero_() + x.new_empty(5).zero_() + strided(x).zero_(), [X]),
    "clamp_min": (lambda x: x.clamp_min(0.1).clamp_max(0.9), [X]),
    "alias": (torch.ops.aten.alias, [X]),
    "arange": (lambda x: torch.arange(5) * x, [X]),
    "fill in place": (lambda x: torch.empty_like(x).fill_(3.0) * x, [X]),
    "constant tensor": (lambda x: torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]) * x, [X]),
    "copy": (lambda x: torch.empty_like(x).copy_(x * 2.0) * 3.0, [X]),
    "to int and back": (lambda x: x.long().float() * x, [X]),
    "clone": (lambda x: x.clone() * x.contiguous(), [X]),
    "repeat_interleave": (lambda x: x.unsqueeze(1).expand(6, 2, 5).reshape(12, 5) * 2.0, [X]),
    "gather": (lambda x, i: x.gather(1, i), [X, INDEX]),
    "gather some": (lambda x, i: x.gather(1, i), [X, whole(5, 6, 3)]),
    "gather rows": (lambda x, i: x.gather(1, i), [CUBE, WIDE]),
    "gather within rows": (lambda x, i: x.gather(1, i), [CUBE, whole(3, 6, 2, 7)]),
    "gather first axis": (lambda x, i: x.gather(0, i), [X, whole(6, 1, 5)]),
    "scatter_add": (lambda x, i: torch.zeros(6, 5).scatter_add_(1, i, x), [X, whole(5, 6, 5)]),
    "scatter_add to numbers": (lambda x, y, i: y.scatter_add(1, i, x), [X, Y, whole(5, 6, 5)]),
    "scatter a number": (lambda x, i: torch.zeros(6, 5).scatter_(1, i, 2.0) * x, [X, INDEX]),
    "scatter": (lambda x, i: torch.zeros(6, 5).scatter(1, i, x[:, :1]) * x, [X, INDEX]),
    "scatter to numbers": (lambda x, y, i: (y * 2.0).scatter_(1, i, x[:, :1]), [X, Y, INDEX]),
    "scatter many": (lambda x, i: torch.zeros(6, 5).scatter_(1, i, 3.0) * x, [X, whole(5, 6, 3)]),
    "scatter a product": (lambda x, i: torch.ones(6, 5).scatter_(1, i, 3.0, reduce="multiply") * x, [X, INDEX]),
    "index_select": (lambda x, i: x.index_select(0, i), [X, whole(6, 4)]),
    "index": (lambda x, i: x[i], [X, whole(6, 4)]),
    "index from the end": (lambda x, i: x[i], [X, whole(12, 6, 4) - 6]),
    "index of int32 from the end": (lambda x, i: x[i.int()], [X, whole(12, 6, 4) - 6]),
    "index of rows from the end": (lambda x, i: x[i, i - 3], [X, whole(5, 6) - 2]),
    "index of rows": (lambda x, i: x[torch.arange(6), i], [X, whole(5, 6)]),
    "embedding": (lambda x, i: functional.embedding(i, x), [X, whole(6, 4, 2)]),
    "one hot": (lambda i, x: (i == torch.arange(5)).float() * x, [INDEX, X]),
    "weight norm": (lambda x, v, g: x @ torch._weight_norm(v, g, 0).t(), [X, normal(4, 5), normal(4, 1)]),
    "float64": (lambda x: (x.double() * 2.0).float(), [X]),
    "the result is an input": (lambda x: x, [X]),
    "addition to itself": (lambda x: x + x, [X]),
}  # fmt: skip


def weighted(
    function: Callable[..., Tensor], inputs: Sequence[Tensor]
) -> tuple[Callable[[Sequence[Tensor]], dict[str, Tensor]], list[Tensor], list[Tensor]]:
    """Return a loss that weighs every number of a function's result, its arguments, and its parameters.

    The function's float inputs are the parameters, the others the arguments.
    """
    parameters = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    others = [x for x in parameters if not x.requires_grad]

    def loss(given: Sequence[Tensor]) -> dict[str, Tensor]:
        queue = iter(given)
        made = function(*(x if x.requires_grad else next(queue) for x in parameters))
        value = (made * torch.linspace(-1.0, 1.5, max(made.numel(), 1)).view(made.shape)).sum()
        return {"loss": value if value.requires_grad else value + 0.0 * learning[0].sum(), "made": made}

    learning = [x for x in parameters if x.requires_grad]
    return loss, others, learning


def recorded(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> tuple[Pass, list[Tensor]]:
    """Record the `weighted` loss of a function, and return its arguments too."""
    loss, others, learning = weighted(function, inputs)
    return torch_pass(loss, others, learning, record=learning), others


def run(p: Pass, inputs: Sequence[Tensor], *, shares_memory: bool) -> tuple[list[Any], dict[str, Any], Program]:
    targets = [np.full(gradient.shape, np.nan, np.float32) for gradient in p.gradients if gradient is not None]
    derived = derive_program(inputs, p, targets, shares_memory=shares_memory)
    arrays = [x.numpy() for x in inputs]
    with np.errstate(all="ignore"):
        derived(arrays)  # so that what the first call leaves cannot help the second
        outputs = derived(arrays)
    return targets, outputs, derived


@pytest.mark.parametrize("name", CASES)
def test_an_operation_is_torchs(name: str) -> None:
    function, inputs = CASES[name]
    p, others = recorded(function, inputs)
    assert p.recorder is not None
    assert p.recorder.reason is None
    targets, outputs, _ = run(p, others, shares_memory=True)
    expected = [gradient for gradient in p.gradients if gradient is not None]
    for ours, theirs in zip(targets, expected, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(outputs["made"], p.outputs["made"].numpy(), rtol=2e-6, atol=1e-6)
    apart, apart_outputs, _ = run(p, others, shares_memory=False)
    for ours, theirs in zip(targets, apart, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(outputs["made"], apart_outputs["made"])


@pytest.mark.parametrize("name", CASES)
def test_operands_are_read_at_every_call(name: str) -> None:
    function, inputs = CASES[name]
    loss, others, learning = weighted(function, inputs)
    p = torch_pass(loss, others, learning, record=learning)
    targets = [np.full(gradient.shape, np.nan, np.float32) for gradient in p.gradients if gradient is not None]
    derived = derive_program(others, p, targets)
    others = [x.flip(0).contiguous() for x in others]
    with torch.no_grad():
        for parameter in learning:
            parameter.mul_(0.8).add_(0.01)
    expected = torch_pass(loss, others, learning)
    with np.errstate(all="ignore"):
        outputs = derived([x.numpy() for x in others])
    np.testing.assert_allclose(outputs["made"], expected.outputs["made"].numpy(), rtol=2e-5, atol=2e-6)
    gradients = [gradient for gradient in expected.gradients if gradient is not None]
    for ours, theirs in zip(targets, gradients, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=2e-5, atol=2e-6)


def by_numpy(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Any:
    """Return a function's result by a program, which leaves more to torch where numpy rejects the first one."""
    p = torch_pass(lambda leaves: {"made": function(*leaves)}, [x.clone() for x in inputs], [], record=())
    arrays = [x.numpy() for x in inputs]
    try:
        return derive_program(inputs, p)(arrays)["made"]
    except IndexError:
        raise
    except Exception:  # noqa: BLE001  # as the engine does
        return derive_program(inputs, p, floats_only=True)(arrays)["made"]


def variants(x: Tensor) -> dict[str, Tensor]:
    """Return an input as it is, of each other dtype, without rows, and as a number."""
    dtypes = (torch.float32, torch.int64, torch.int32, torch.uint8, torch.bool)
    found = {"same": x, "no rows": x[:0] if x.dim() else x, "a number": x.reshape(-1)[0].clone()}
    return found | {str(dtype): (3 * x if x.is_floating_point() else x).to(dtype) for dtype in dtypes}


CRASHING = "weight norm", "batch_norm"  # of torch, on integers


@pytest.mark.filterwarnings("ignore")  # of torch, about what is requested here
@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith(CRASHING)])
def test_what_torch_accepts_is_computed_as_by_torch_or_left_to_it(name: str) -> None:
    function, inputs = CASES[name]
    of_inputs = [variants(x) for x in inputs]
    kinds = {(kind,) * len(inputs) for kind in of_inputs[0]}
    kinds |= {
        tuple(kind if place == own else "same" for place in range(len(inputs)))
        for own in range(len(inputs))
        for kind in of_inputs[own]
    }
    n_tried = 0
    for chosen in sorted(kinds):
        given = [variant[kind].clone() for variant, kind in zip(of_inputs, chosen, strict=True)]
        try:
            expected = function(*(x.clone() for x in given))
        except Exception:  # noqa: BLE001  # torch rejects it
            continue
        try:
            made = by_numpy(function, given)
        except (NotDerivableError, IndexError):  # the function, or this call, is left to torch
            continue
        n_tried += 1
        np.testing.assert_allclose(np.asarray(made), expected.numpy(), rtol=1e-4, atol=1e-5, err_msg=str(chosen))
    assert n_tried > 0


LEFT_TO_TORCH: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "xlogy of a number": lambda x, i: torch.special.xlogy(2.0, x.abs() + 1.0).sum(1),
    "round of integers": lambda x, i: (x * i.round()).sum(1),
    "any of bytes": lambda x, i: x.sum(1) * i.to(torch.uint8).any(1),
    "all of bytes": lambda x, i: x.sum(1) * i.to(torch.uint8).all(1),
    "logsumexp of integers": lambda x, i: x.sum(1) + i.logsumexp(1),
    "a negative power of integers": lambda x, i: x.sum(1) + (2 ** (-i.abs()) * 1.0).sum(1),
}


@pytest.mark.parametrize("name", LEFT_TO_TORCH)
def test_what_numpy_lacks_for_a_dtype_is_computed_by_torch(name: str) -> None:
    function = LEFT_TO_TORCH[name]
    x, i = normal(6, 5), whole(4, 6, 5)
    expected = function(x, i)
    np.testing.assert_allclose(by_numpy(function, [x, i]), expected.numpy(), rtol=1e-5)


def test_every_entry_of_the_table_is_tested() -> None:
    seen = set()
    for function, inputs in CASES.values():
        p, _ = recorded(function, inputs)
        assert p.recorder is not None
        seen |= {call.name for call in p.recorder.calls}
    assert set(OPERATIONS) - seen == set()


REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "dropout": (lambda x: functional.dropout(x, 0.5, training=True), "draws random numbers"),
    "noise": (lambda x: x + torch.randn_like(x), "draws random numbers"),
    "item": (lambda x: x * float(x.detach().sum()), "reads a number"),
    "a branch": (lambda x: x if x.sum() > 0 else -x, "reads a number"),
    "a tensor from outside": (lambda x: x * RUNNING, "neither an argument nor a parameter"),
    "a boolean index": (lambda x: x[x > 0], "depends on the data"),
    "nonzero": (lambda x: x * len(x.nonzero()), "depends on the data"),
    "a write to a parameter": (lambda x: x.detach().add_(1.0) * x, "writes to an argument"),
    "a write to an array": (lambda x: torch.from_numpy(ARRAY).add_(1.0) * x, "writes to an argument"),
    "a sparse tensor": (lambda x: torch.sparse.mm(torch.eye(6).to_sparse(), x), "cannot be recorded"),
    "a zero without memory": (lambda x: x * x.sgn(), "cannot be recorded"),
    "a write to a part": (lambda x: _written(x * 2.0), "writes to a part"),
    "batch norm of an array": (lambda x: functional.batch_norm(x, *running(), training=True), "writes to an argument"),
    "batch norm": (lambda x: functional.batch_norm(x, RUNNING, RUNNING + 1.0, training=True), "neither an argument"),
}  # fmt: skip
RUNNING = torch.zeros(5)
ARRAY = np.zeros(5, np.float32)


def running() -> tuple[Tensor, Tensor]:
    """Return a running mean and variance that share the memory of arrays."""
    return torch.from_numpy(ARRAY), torch.from_numpy(np.ones(5, np.float32))


def _written(x: Tensor) -> Tensor:
    x[:, 0].mul_(3.0)
    return x


@pytest.mark.global_rng
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_recorded_is_named(name: str) -> None:
    function, reason = REFUSED[name]
    p, others = recorded(function, [X])
    with pytest.raises(NotDerivableError, match=reason):
        derive_program(others, p, [np.zeros((6, 5), np.float32)])


def test_an_index_out_of_range_is_an_error_as_in_torch() -> None:
    p, others = recorded(lambda x, i: x.gather(1, i), [X, INDEX])
    target = np.zeros((6, 5), np.float32)
    derived = derive_program(others, p, [target])
    for wrong in (5, -1):
        index = INDEX.numpy().copy()
        index[3] = wrong
        with pytest.raises(IndexError, match=f"must be in 0 ... 4, got {wrong}"):
            derived([index])


def test_a_negative_number_is_no_row_where_torch_rejects_it() -> None:
    p, others = recorded(lambda x, i: x.index_select(0, i), [X, whole(6, 4).int()])
    derived = derive_program(others, p, [np.zeros((6, 5), np.float32)])
    with pytest.raises(IndexError, match=r"must be in 0 ... 5, got -1"):
        derived([np.array([0, 5, -1, 2], np.int32)])


def test_an_index_that_is_known_to_fit_a_longer_axis_is_checked() -> None:
    clamped, others = recorded(lambda x, i: x.gather(1, i.clamp(0, 100)), [X, INDEX])
    with pytest.raises(IndexError, match=r"must be in 0 ... 4, got 7"):
        derive_program(others, clamped, [np.zeros((6, 5), np.float32)])([np.full((6, 1), 7)])

    wide = -torch.arange(8).repeat(6, 1)
    found, others = recorded(lambda x, y: x.gather(1, y.argmax(1, keepdim=True)), [X, wide])
    with pytest.raises(IndexError, match=r"must be in 0 ... 4, got 7"):
        derive_program(others, found, [np.zeros((6, 5), np.float32)])([-wide.numpy()])


def test_what_numpy_lacks_is_computed_by_torch_in_the_same_memory() -> None:
    p, others = recorded(functional.gelu, [X])
    _, _, derived = run(p, others, shares_memory=True)
    assert kernels.by_torch in derived.kernels


@pytest.mark.parametrize(("n_actions", "is_copied"), [(20, True), (300, False)])
def test_rows_of_a_wide_head_are_multiplied_by_rows(
    n_actions: int, is_copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "spares_packing", lambda: True)
    weight, rows = normal(n_actions * 51, 64), normal(32, 64)

    def largest(given: Sequence[Tensor]) -> dict[str, Tensor]:
        return {"loss": functional.linear(given[0], weight).view(32, n_actions, 51).amax(2)}

    derived = derive_program([rows], torch_pass(largest, [rows], [], record=[weight]))
    shape = f"float32[32, {n_actions * 51}]"
    assert (f"__setitem__({shape}" in str(derived)) is is_copied


def test_a_computation_requested_twice_is_made_once() -> None:
    p, others = recorded(lambda x: x.exp() * x.exp() + x.exp(), [X])
    _, _, derived = run(p, others, shares_memory=True)
    assert str(derived).count("exp(") == 1


def test_memory_is_shared() -> None:
    def layers(x: Tensor) -> Tensor:
        for _ in range(20):
            x = (x * 1.1).tanh()
        return x

    p = torch_pass(lambda given: {"loss": layers(given[0])}, [normal(64, 64)], [], record=[])
    together, apart = (derive_program([normal(64, 64)], p, shares_memory=shared) for shared in (True, False))
    assert together.n_bytes < 0.2 * apart.n_bytes


@pytest.mark.global_rng
def test_parameters_are_read_where_they_are() -> None:
    layer = nn.Linear(5, 3)
    p = torch_pass(lambda given: {"made": layer(given[0])}, [X], [], record=layer.parameters())
    derived = derive_program([X], p)
    with torch.no_grad():
        layer.weight.mul_(2.0)
        layer.bias.fill_(1.0)
    np.testing.assert_allclose(derived([Y.numpy()])["made"], layer(Y).detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("read", [torch.as_tensor, torch.from_numpy, torch.tensor, lambda a: torch.as_tensor(a)[1:4]])
def test_arrays_of_numpy_are_read_where_they_are(read: Callable[[Any], Tensor]) -> None:
    array = np.arange(5.0, dtype=np.float32)
    p = torch_pass(lambda given: {"made": given[0][:, :3] * read(array)[..., :3]}, [X], [], record=[])
    derived = derive_program([X], p)
    array[:] = 7.0
    np.testing.assert_allclose(derived([X.numpy()])["made"], 7.0 * X[:, :3].numpy(), rtol=1e-6)


def test_recording_leaves_the_result_as_it_is() -> None:
    function, inputs = CASES["two layers"]
    p, _ = recorded(function, inputs)
    parameters = [x.clone().requires_grad_() for x in inputs]
    torch.testing.assert_close(p.outputs["made"], function(*parameters).detach(), rtol=0, atol=0)
