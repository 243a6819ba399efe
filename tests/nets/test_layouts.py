"""Weights and images lie as the libraries of their device read them fastest; on the CPU as numpy's arrays."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.testing import assert_close

from tests.helpers.learning import FOUR_NUMBERS, batch_of, made, small_net
from tests.policy.regression import Regression
from tests.pretend import PretendDevice
from trainkit import Clip
from trainkit.nets import ImpalaCNN, MinAtarCNN, NatureCNN

SHAPE = (4, 36, 38)
IMAGES = spaces.Box(0, 255, SHAPE, np.uint8)


def has_channels_last(x: torch.Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("kind", [NatureCNN, MinAtarCNN, ImpalaCNN])
def test_kernels_and_images_have_their_channels_last_on_a_device(kind: type, pretend: PretendDevice) -> None:
    network = kind(SHAPE)
    images = torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(0))
    expected, lies = network(images), []
    network.to(pretend.device)
    convolutions = [module for module in network.modules() if isinstance(module, torch.nn.Conv2d)]
    for convolution in convolutions:
        assert has_channels_last(convolution.weight)
        convolution.register_forward_pre_hook(lambda _, given: lies.append(has_channels_last(given[0])))
    assert_close(network(images.to(pretend.device)).cpu(), expected, rtol=1e-4, atol=1e-6)
    assert lies == [True] * len(convolutions)
    network.to("cpu")
    assert all(convolution.weight.is_contiguous() for convolution in convolutions)
    assert torch.equal(network(images), expected)


class TwoBiases(torch.nn.Module):
    """A network with two biases that are added, whose gradients are one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = small_net((4, 1))
        self.one, self.other = (torch.nn.Parameter(torch.zeros(16, 1)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x) + (self.one + self.other)
        return result


@pytest.mark.parametrize("clip", [Clip(0.01), Clip(0.01, by="norm")], ids=str)
def test_parameters_that_share_a_gradient_are_clipped_once_each(clip: Clip, pretend: PretendDevice) -> None:
    here, there = (Regression(TwoBiases, of_step={"clip": clip}, device=name) for name in ("cpu", pretend.device))
    there.load_state_dict(here.state_dict())
    for step in range(4):
        for policy in (here, there):
            policy.update(batch_of(16, seed=step, space=FOUR_NUMBERS), step=step)
    assert_close(there.critic.one.cpu(), here.critic.one, rtol=1e-4, atol=1e-6)
    assert_close(there.critic.other.cpu(), here.critic.other, rtol=1e-4, atol=1e-6)


def test_a_step_keeps_the_layout_of_kernels_and_of_their_moments(pretend: PretendDevice) -> None:
    policy = made(IMAGES, hidden=None, head=(8,), device=pretend.device)
    for step in range(3):
        policy.update(batch_of(8, seed=step, space=IMAGES), step=step)
    kernels = [one for one in policy.network.parameters() if one.dim() == 4]
    moments = policy.training_state()["optimizers"]["network"]["state"].values()
    assert len(kernels) == 3
    assert all(map(has_channels_last, kernels))
    assert all(has_channels_last(one["exp_avg"]) for one in moments if one["exp_avg"].dim() == 4)
