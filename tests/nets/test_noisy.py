"""Noisy layers: the equation with given noise, how they start, and where the noise comes from."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from trainkit.nets import NoisyLinear
from trainkit.nets.noisy import sample_noise


def noisy(in_features: int, out_features: int, sigma0: float = 0.5, seed: int = 0) -> NoisyLinear:
    layer = NoisyLinear(in_features, out_features, sigma0=sigma0)
    layer.draw_parameters(torch.Generator().manual_seed(seed))
    return layer


def test_output_follows_the_papers_equation() -> None:
    layer = NoisyLinear(2, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0]]))
        layer.bias.fill_(3.0)
        layer.weight_sigma.copy_(torch.tensor([[0.1, 0.2]]))
        layer.bias_sigma.fill_(0.5)
    noise = torch.tensor([[2.0, -1.0, 3.0]])  # f(e_in) = (2, -1), f(e_out) = 3

    # (1 + 0.1 * 3 * 2) * 1 + (2 + 0.2 * 3 * -1) * 10 + 3 + 0.5 * 3 = 1.6 + 14 + 4.5
    assert_close(layer(torch.tensor([[1.0, 10.0]]), noise), torch.tensor([[20.1]]))


def slow(layer: NoisyLinear, x: Tensor, noise: Tensor) -> Tensor:
    """Build every row's own noisy network and apply it."""
    rows = []
    for row, own in zip(x, noise, strict=True):
        f_in, f_out = own[: layer.in_features], own[layer.in_features :]
        weight = layer.weight + layer.weight_sigma * torch.outer(f_out, f_in)
        rows.append(weight @ row + layer.bias + layer.bias_sigma * f_out)
    return torch.stack(rows)


@pytest.mark.parametrize(("in_features", "out_features"), [(1, 1), (5, 3), (3, 8)])
def test_every_row_has_a_network_of_its_own_when_it_has_noise_of_its_own(in_features: int, out_features: int) -> None:
    layer, generator = noisy(in_features, out_features), torch.Generator().manual_seed(1)
    x = torch.randn(6, in_features, generator=generator)
    noise = torch.randn(6, in_features + out_features, generator=generator)

    assert_close(layer(x, noise), slow(layer, x, noise))


def test_one_row_of_noise_is_one_network_for_all_rows() -> None:
    layer, generator = noisy(5, 3), torch.Generator().manual_seed(1)
    x, noise = torch.randn(6, 5, generator=generator), torch.randn(1, 8, generator=generator)

    assert_close(layer(x, noise), slow(layer, x, noise.expand(6, 8)))


def test_gradients_reach_means_and_sigmas_alike_for_one_row_of_noise_and_for_many() -> None:
    generator = torch.Generator().manual_seed(1)
    x, noise = torch.randn(6, 5, generator=generator), torch.randn(1, 8, generator=generator)
    one, many, reference = noisy(5, 3), noisy(5, 3), noisy(5, 3)
    one(x, noise).square().sum().backward()
    many(x, noise.expand(6, 8)).square().sum().backward()
    slow(reference, x, noise.expand(6, 8)).square().sum().backward()

    for name, parameter in reference.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0
        assert_close(one.get_parameter(name).grad, parameter.grad)
        assert_close(many.get_parameter(name).grad, parameter.grad)


def test_without_noise_it_is_the_mean_network() -> None:
    layer = noisy(5, 3)
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))

    assert_close(layer(x), x @ layer.weight.T + layer.bias)


@pytest.mark.parametrize(("in_features", "sigma0"), [(4, 0.5), (100, 0.5), (16, 0.1), (9, 0.0)])
def test_sigmas_of_weight_and_bias_start_at_sigma0_over_the_root_of_fan_in(in_features: int, sigma0: float) -> None:
    layer = noisy(in_features, 3, sigma0)

    assert_close(layer.weight_sigma, torch.full((3, in_features), sigma0 / math.sqrt(in_features)))
    assert_close(layer.bias_sigma, torch.full((3,), sigma0 / math.sqrt(in_features)))


def test_means_start_uniform_within_one_over_the_root_of_fan_in() -> None:
    layer = noisy(100, 400)
    for parameter in (layer.weight, layer.bias):
        assert parameter.abs().max() <= 0.1
        assert parameter.min() < -0.099
        assert parameter.max() > 0.099
        assert_close(parameter.std().item(), 0.1 / math.sqrt(3), rtol=0.1, atol=0)  # of a uniform on +-0.1


def test_noise_is_the_signed_root_of_a_standard_normal_from_the_given_generator() -> None:
    normal = torch.randn(4, 7, generator=torch.Generator().manual_seed(5))
    noise = sample_noise(4, 7, torch.Generator().manual_seed(5))

    assert_close(noise * noise.abs(), normal)
    assert_close(noise.sign(), normal.sign())


def test_noise_size_counts_inputs_and_outputs() -> None:
    assert NoisyLinear(5, 3).noise_size == 8
