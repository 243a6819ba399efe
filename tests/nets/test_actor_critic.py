"""The networks of off-policy actor-critics: as torch's own layers compute, one critic like many."""

from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional

from tests.helpers.learning import observations, parameters_of
from trainkit import ConfigError
from trainkit.engine.device import to_device
from trainkit.nets import ActorNetwork, CriticNetwork, Preprocess

DICT = spaces.Dict({"image": spaces.Box(0, 255, (40, 40, 1), "uint8"), "place": spaces.Box(-1, 1, (2,))})


def tensor(n_rows: int, size: int) -> Tensor:
    return torch.randn(n_rows, size, generator=torch.Generator().manual_seed(size))


def by_hand(critics: CriticNetwork, which: int, x: Tensor) -> Tensor:
    """Ask one critic alone, layer by layer."""
    for position, layer in enumerate(critics.layers):
        x = functional.linear(x, layer.weight[which], layer.bias[which, 0])  # type: ignore[index]  # layers of our own
        x = x if position == len(critics.layers) - 1 else torch.relu(x)
    return x[:, 0]


@pytest.mark.parametrize("n_critics", [1, 2, 5])
def test_critics_side_by_side_are_each_a_network_of_its_own(n_critics: int) -> None:
    critics = CriticNetwork((3,), 2, n_critics=n_critics, hidden=(7, 5))
    features, action = tensor(6, 3), tensor(6, 2)
    q = critics(features, action)
    assert q.shape == (6, n_critics)
    for which in range(n_critics):
        torch.testing.assert_close(q[:, which], by_hand(critics, which, torch.cat([features, action], dim=1)))


def test_critics_start_different_from_each_other_and_as_torchs_linear_layers_do() -> None:
    critics = CriticNetwork((30,), 20, hidden=(40,))
    for name, parameter in parameters_of(critics).items():
        bound = 50**-0.5 if name.startswith("layers.0") else 40**-0.5
        assert (parameter[0] != parameter[1]).all()
        assert parameter.abs().max() <= bound
        if parameter.numel() > 20:
            assert parameter.abs().max() > 0.8 * bound


def test_an_actor_is_plain_layers() -> None:
    actor = ActorNetwork((3,), 4, hidden=(7, 5))
    x = tensor(6, 3)
    y = x
    for layer in actor.encoder.body.layers:
        y = torch.relu(layer(y))
    torch.testing.assert_close(actor(x), actor.head.layers[0](y))
    assert actor(x).shape == (6, 4)


@pytest.mark.parametrize(
    "make", [lambda: ActorNetwork((3,), 4), lambda: CriticNetwork((3,), 2)], ids=["actor", "critics"]
)
def test_a_seed_decides_the_weights(make: Any) -> None:
    one, same, other = make(), make(), make()
    for network, seed in ((one, 1), (same, 1), (other, 2)):
        network.draw(seed)
    for mine, theirs, others in zip(*(parameters_of(n).values() for n in (one, same, other)), strict=True):
        assert torch.equal(mine, theirs)
        assert not torch.equal(mine, others)


def test_both_see_images_and_vectors_together() -> None:
    preprocess = Preprocess(DICT)
    features = preprocess(to_device(observations(DICT, 3), torch.device("cpu")))
    assert ActorNetwork(preprocess.shapes, 4, hidden=(8,))(features).shape == (3, 4)
    assert CriticNetwork(preprocess.shapes, 2, hidden=(8,))(features, tensor(3, 2)).shape == (3, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ActorNetwork((3,), 0), "ActorNetwork.width must be a whole number >= 1, got 0"),
        (lambda: ActorNetwork((3,), 1, hidden=(0,)), "ActorNetwork.hidden sizes must be a whole number >= 1, got 0"),
        (lambda: CriticNetwork((3,), 0), "CriticNetwork.n_dimensions must be a whole number >= 1, got 0"),
        (lambda: CriticNetwork((3,), 1, n_critics=0), "CriticNetwork.n_critics must be a whole number >= 1, got 0"),
    ],
    ids=["width", "hidden", "places", "critics"],
)
def test_a_wrong_number_is_refused_by_name(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
