"""Activations, normalization and `MLP`: each against its formula, computed by hand."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from tests.helpers.learning import linear
from tests.helpers.networks import drawn, random, run_by_hand
from trainkit import ConfigError
from trainkit.nets import MLP, activation_names
from trainkit.nets.layers import ChannelNorm, StackedNorm, activation_function, named_activation, new_norm

X = [-2.0, -0.5, 0.0, 0.3, 3.0]
FORMULAS = {
    "relu": lambda x: max(x, 0.0),
    "tanh": math.tanh,
    "silu": lambda x: x / (1 + math.exp(-x)),
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "elu": lambda x: x if x > 0 else math.expm1(x),
    "leaky_relu": lambda x: x if x > 0 else 0.01 * x,
    "mish": lambda x: x * math.tanh(math.log1p(math.exp(x))),
}


class TestActivations:
    @pytest.mark.parametrize("name", activation_names())
    def test_a_name_is_its_formula(self, name: str) -> None:
        values = activation_function(name)(torch.tensor(X, dtype=torch.float64))

        np.testing.assert_allclose(values, [FORMULAS[name](x) for x in X], rtol=1e-6, atol=1e-7)

    @pytest.mark.parametrize("given", [nn.SiLU, functional.silu, "silu"], ids=["class", "function", "name"])
    def test_what_has_a_name_is_saved_by_it(self, given: Any) -> None:
        assert named_activation(given) == "silu"
        assert activation_function(given) is functional.silu

    def test_a_module_is_copied_and_another_class_constructed(self) -> None:
        module = nn.ELU(0.5)
        copied, made = activation_function(module), activation_function(nn.PReLU)

        assert copied is not module
        assert copied(torch.tensor(-50.0)).item() == -0.5
        assert isinstance(made, nn.PReLU)
        assert named_activation(module) is module

    @pytest.mark.parametrize(
        ("given", "message"),
        [("swilu", "got 'swilu', did you mean 'silu'"), (3, "got 3"), (int, "got <class 'int'>")],
    )
    def test_anything_else_is_an_error_that_lists_the_names(self, given: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=message) as error:
            MLP((2, 2), activation=given)

        assert "activation must be one of relu, tanh, silu, gelu, elu, leaky_relu, mish" in str(error.value)


def layer_norm(row: Any, scale: float = 1.0, shift: float = 0.0) -> Any:
    return (row - row.mean()) / math.sqrt(row.var() + 1e-5) * scale + shift


def rms_norm(row: Any, scale: float = 1.0, shift: float = 0.0) -> Any:
    return row / math.sqrt((row**2).mean() + 1e-5) * scale


class TestNorms:
    @pytest.mark.parametrize(("norm", "formula"), [("layer", layer_norm), ("rms", rms_norm)])
    def test_rows_images_and_stacked_networks_are_normalized_by_the_formula(self, norm: Any, formula: Any) -> None:
        rows = random(3, 5) * 4 + 1
        images, stacked = random(2, 3, 4, 4) * 3 - 1, random(2, 3, 5) + 2

        expected = [formula(row) for row in rows.double().numpy()]
        np.testing.assert_allclose(new_norm(norm, 5)(rows).detach(), expected, rtol=1e-5, atol=1e-6)
        channel = ChannelNorm(norm, 3)
        with torch.no_grad():
            channel.weight.copy_(torch.tensor([1.0, 2.0, 3.0]))
        expected = [formula(image) * np.array([1, 2, 3])[:, None, None] for image in images.double().numpy()]
        np.testing.assert_allclose(channel(images).detach(), expected, rtol=1e-5, atol=1e-5)
        own = StackedNorm(norm, 2, 5)
        with torch.no_grad():
            own.weight[1] = 2.0
        expected = [
            [formula(row, scale) for row in of] for of, scale in zip(stacked.double().numpy(), (1, 2), strict=True)
        ]
        np.testing.assert_allclose(own(stacked).detach(), expected, rtol=1e-5, atol=1e-5)

    def test_an_unknown_one_is_an_error_with_the_names(self) -> None:
        with pytest.raises(
            ConfigError, match="norm must be 'layer' or 'rms' or None, got 'laier', did you mean 'layer'"
        ):
            MLP((2, 2), norm="laier")  # type: ignore[arg-type]  # wrong on purpose


class TestMLP:
    @pytest.mark.parametrize("activate_last", [False, True])
    @pytest.mark.parametrize("is_noisy", [False, True])
    @pytest.mark.parametrize("sizes", [(3, 2), (3, 5, 4, 2), (3,)])
    def test_is_linear_layers_with_activations_between(
        self, sizes: tuple[int, ...], is_noisy: bool, activate_last: bool
    ) -> None:
        mlp = drawn(MLP(sizes, noisy=is_noisy, activate_last=activate_last))
        x = random(7, 3)

        assert_close(mlp(x), run_by_hand(mlp, x, None, activate_last=activate_last))

    @pytest.mark.parametrize("rows", [1, 7])
    def test_deals_every_noisy_layer_its_own_part_of_the_noise(self, rows: int) -> None:
        mlp = drawn(MLP((3, 5, 4, 2), noisy=True))
        x, noise = random(7, 3), random(rows, mlp.noise_size, seed=1)

        assert mlp.noise_size == (3 + 5) + (5 + 4) + (4 + 2)
        assert_close(mlp(x, noise), run_by_hand(mlp, x, noise, activate_last=False))

    def test_takes_other_activations(self) -> None:
        mlp = MLP((1, 1, 1), activation=torch.tanh)
        mlp.layers = nn.ModuleList([linear([[2.0]]), linear([[3.0]])])

        assert mlp(torch.tensor([[0.5]])).item() == pytest.approx(3 * math.tanh(1.0))

    @pytest.mark.parametrize("activate_last", [False, True])
    def test_normalizes_between_a_layer_and_its_activation(self, activate_last: bool) -> None:
        mlp = drawn(MLP((3, 5, 4), norm="layer", activation="silu", activate_last=activate_last))
        x, (first, last) = random(7, 3), mlp.layers

        expected = functional.silu(functional.layer_norm(functional.linear(x, first.weight, first.bias), (5,)))
        expected = functional.linear(expected, last.weight, last.bias)
        if activate_last:
            expected = functional.silu(functional.layer_norm(expected, (4,)))
        assert_close(mlp(x), expected)
        assert mlp.norms is not None
        assert len(mlp.norms) == 1 + activate_last
