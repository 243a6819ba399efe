"""Layers in numpy beside torch's own and autograd, by rows and by columns, their products whole and in parts."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from trainkit.policy.critics import StackedLinear
from trainkit.policy.host.layers import HostLinear, HostMLP, relu, relu_backward
from trainkit.policy.host.tape import Tape
from trainkit.policy.networks import MLP

SIZES = [(4, 8, 3), (4, 128, 128, 2), (4, 128, 130, 2), (3, 512, 256, 1)]  # narrow, in parts, whole, in kept memory
ROWS = [1, 32, 63, 64, 65, 256]


def rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_room(module: nn.Module) -> None:
    """Make room for gradients, with something in it that must be written over."""
    for parameter in module.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)


@pytest.mark.parametrize("packing_is_spared", [True, False], indirect=True)
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

    make_room(mlp)
    passes, tape = HostMLP.of(mlp), Tape()
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
    layer.draw_parameters(torch.Generator().manual_seed(2))
    y = layer(x.expand(3, -1, -1))
    expected = torch.autograd.grad(y, list(layer.parameters()), slope)
    make_room(layer)
    twin, tape, here = HostLinear(layer), Tape(), x.numpy()
    out = twin.ask(here.T, None, tape, here).swapaxes(1, 2) if by_columns else twin.forward(here, None, tape)
    np.testing.assert_allclose(out, y.detach(), rtol=1e-4, atol=1e-5)
    twin.write(slope.numpy(), *tape.pop())
    for parameter, gradient in zip(layer.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(8, 9), (2, 8, 9)])
def test_a_relu_lets_a_slope_through_where_it_let_a_number_through(shape: tuple[int, ...]) -> None:
    numbers = [-np.inf, -1.0, -1e-45, -0.0, 0.0, 1e-45, 1e-38, 1.0, np.inf]
    slopes = [-np.inf, -3.0, -1e-45, -0.0, 0.0, 1e-45, 0.1, np.inf]
    x = np.resize(np.array(numbers, np.float32), shape)
    slope = np.resize(np.repeat(np.array(slopes, np.float32), 9), shape)
    expected = np.where(x > 0.0, slope, np.float32(0.0))
    relu_backward(slope, relu(x))
    np.testing.assert_array_equal(slope, expected)
