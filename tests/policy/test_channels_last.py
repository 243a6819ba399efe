"""Images with their channels last: the same parameters."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.testing import assert_close

from tests.helpers.learning import (
    PARTS,
    assert_same,
    batch_of,
    made,
    parameters_of,
)
from trainkit.nets import ImplicitQNetwork, NatureCNN, QNetwork

IMAGES = spaces.Box(0, 255, (4, 36, 38), np.uint8)


def learn(policy: Any, n_updates: int, space: Any) -> list[Any]:
    return [policy.update(batch_of(16, seed=i, space=space), step=i).read_priority() for i in range(n_updates)]


def test_images_with_their_channels_last_give_the_same_features() -> None:
    plain, changed = NatureCNN((4, 36, 38)), NatureCNN((4, 36, 38), channels_last=True)
    changed.load_state_dict(plain.state_dict())
    x = torch.rand(5, 4, 36, 38, generator=torch.Generator().manual_seed(0))
    assert_close(changed(x), plain(x), rtol=1e-4, atol=1e-6)


def test_images_lie_with_their_channels_last_in_every_convolution() -> None:
    network = NatureCNN((4, 44, 44), channels_last=True)
    lies: list[bool] = []
    for convolution in network.convolutions:
        convolution.register_forward_pre_hook(
            lambda module, given: lies.append(given[0].is_contiguous(memory_format=torch.channels_last))
        )
    network(torch.rand(2, 4, 44, 44, generator=torch.Generator().manual_seed(0)))
    assert lies == [True, True, True]


@pytest.mark.parametrize("parts", [PARTS[2], PARTS[5]])
def test_learns_the_same_with_channels_last(parts: dict[str, Any]) -> None:
    changed, plain = (made(IMAGES, **parts, hidden=None, head=(8,), channels_last=wanted) for wanted in (True, False))
    assert_same(parameters_of(changed), parameters_of(plain))
    for one, other in zip(learn(changed, 4, IMAGES), learn(plain, 4, IMAGES), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
    assert_close(parameters_of(changed), parameters_of(plain), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", [QNetwork, ImplicitQNetwork])
def test_networks_of_vectors_take_it_and_need_it_not(kind: Any) -> None:
    assert kind((4,), 3, channels_last=True).encoder.n_features == kind((4,), 3).encoder.n_features
