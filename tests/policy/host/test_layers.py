"""Layers in numpy beside torch's own and autograd, at sizes where products are made in parts and passes by columns."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from trainkit.policy.critics import StackedLinear
from trainkit.policy.host import layers
from trainkit.policy.host.layers import HostLinear, HostMLP
from trainkit.policy.host.tape import Tape
from trainkit.policy.networks import MLP

SIZES = [(4, 8, 3), (4, 128, 128, 2), (4, 128, 130, 2), (3, 256, 256, 1)]
ROWS = [1, 32, 63, 64, 65, 256]  # products of a million multiplications and less, of two, four and eight, and of more


def rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def with_room(mlp: MLP) -> MLP:
    """Make room for gradients, with something in it that must be written over."""
    for parameter in mlp.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    return mlp


@pytest.mark.parametrize("activation", [torch.relu, torch.tanh])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("n_rows", ROWS)
def test_the_passes_of_an_mlp_are_autograds(
    n_rows: int, sizes: tuple[int, ...], activation: Callable[[Tensor], Tensor]
) -> None:
    mlp, x, slope = MLP(sizes, activation=activation), rows(n_rows, sizes[0]), rows(n_rows, sizes[-1], seed=1)
    mlp.draw(0)
    x.requires_grad_()
    y = mlp(x)
    expected = torch.autograd.grad(y, [x, *mlp.parameters()], slope)

    passes, tape = HostMLP.of(with_room(mlp)), Tape()
    here = x.detach().numpy()
    for _ in range(2):  # the second time in arrays that the tape has kept
        forward = passes.forward(here, None, tape.rewind())
        np.testing.assert_allclose(forward, y.detach(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(passes.ask(here.T, None, Tape()).T, y.detach(), rtol=1e-4, atol=1e-5)
        of_x = passes.backward(slope.numpy().copy(), tape)
        assert len(tape) == 0
        told = [of_x, *(parameter.grad for parameter in mlp.parameters())]
        for one, other in zip(told, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("n_rows", [5, 64])
@pytest.mark.parametrize("by_columns", [False, True])
def test_stacked_layers_pass_side_by_side(n_rows: int, by_columns: bool) -> None:
    layer, x, slope = StackedLinear(3, 6, 7), rows(n_rows, 6), rows(3, n_rows, 7)
    y = layer(x.expand(3, -1, -1))
    expected = torch.autograd.grad(y, list(layer.parameters()), slope)
    for parameter in layer.parameters():
        parameter.grad = torch.zeros_like(parameter)
    twin, tape, here = HostLinear(layer), Tape(), x.numpy()
    out = twin.ask(here.T, None, tape, here).swapaxes(1, 2) if by_columns else twin.forward(here, None, tape)
    np.testing.assert_allclose(out, y.detach(), rtol=1e-4, atol=1e-5)
    twin.write(slope.numpy(), *tape.pop())
    for parameter, gradient in zip(layer.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "n_parts", "n_turned"),  # rows x sums x units; parts of rows as they lie, and of turned ones
    [
        ((64, 100, 128), 1, 1),
        ((64, 128, 128), 2, 2),
        ((2, 64, 128, 128), 2, 2),
        ((63, 128, 128), 1, 1),
        ((256, 128, 128), 8, 8),
        ((3, 256, 256, 256), 32, 1),
        ((256, 512, 512), 1, 1),
    ],
)
@pytest.mark.parametrize("is_turned", [False, True])
def test_a_product_of_more_than_a_million_multiplications_is_made_in_parts(
    shape: tuple[int, ...], n_parts: int, n_turned: int, is_turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    *stack, n_rows, n_sums, width = shape
    x = rows(*stack, n_rows, n_sums).numpy()
    x = np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2) if is_turned else x
    y = rows(*stack, n_sums, width, seed=1).numpy()
    expected = x.astype(np.float64) @ y
    asked: list[int] = []
    matmul = np.matmul

    def noted(a: np.ndarray, b: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:  # type: ignore[type-arg]
        asked.append(a.shape[-3] if a.ndim > len(shape) - 1 else 1)
        return matmul(a, b, out=out)

    monkeypatch.setattr(np, "matmul", noted)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    room = np.empty(expected.shape, np.float32)
    for out in (None, room, np.empty(expected.T.shape, np.float32).T):
        product = layers._multiply(x, y, out)
        np.testing.assert_allclose(product, expected, rtol=1e-3, atol=1e-4)
        if out is not None:
            assert np.shares_memory(product, out)
            np.testing.assert_array_equal(product, out)
    n_asked = n_turned if is_turned else n_parts
    assert asked == [n_asked, n_asked, 1]  # whole where the rows of what is written do not lie side by side
    np.testing.assert_allclose(layers._multiply(x, np.asarray(y, order="F"), None), expected, rtol=1e-3, atol=1e-4)
    assert asked[3:] == [1]
