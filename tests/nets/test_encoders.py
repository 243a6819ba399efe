"""Encoders: the papers' convolutions and numbers of parameters, names, mappings, modules and factories."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from tests.helpers.networks import drawn, random
from trainkit import ConfigError
from trainkit.nets import (
    MLP,
    ActorCriticNetwork,
    ImpalaCNN,
    MinAtarCNN,
    NatureCNN,
    QNetwork,
    SmallCNN,
    encoder_names,
    register_encoder,
)
from trainkit.nets.encoders import Encoder, named_encoder


def n_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


class TestImageCNN:
    @pytest.mark.parametrize(
        ("kind", "layers", "n_features"),
        [
            (NatureCNN, [(32, 8, 4), (64, 4, 2), (64, 3, 1)], 3136),  # Mnih et al. (2015)
            (SmallCNN, [(16, 8, 4), (32, 4, 2), (32, 3, 2)], 512),  # Mnih et al. (2013), and a third
        ],
    )
    def test_is_convolutions_before_relus(self, kind: Any, layers: list[Any], n_features: int) -> None:
        cnn = drawn(kind((4, 84, 84)))
        x = random(2, 4, 84, 84).abs()
        weights = iter(cnn.parameters())

        expected, n_channels = x, 4
        for filters, kernel, stride in layers:
            weight, bias = next(weights), next(weights)
            assert weight.shape == (filters, n_channels, kernel, kernel)
            expected, n_channels = functional.conv2d(expected, weight, bias, stride=stride).relu(), filters
        assert_close(cnn(x), expected.flatten(1))
        assert cnn.n_features == n_features
        assert not list(weights)

    @pytest.mark.parametrize(("height", "width", "n_features"), [(36, 36, 64), (96, 44, 64 * 8 * 2)])
    def test_counts_its_features(self, height: int, width: int, n_features: int) -> None:
        cnn = drawn(NatureCNN((1, height, width)))

        assert cnn.n_features == n_features
        assert cnn(torch.zeros(2, 1, height, width)).shape == (2, n_features)

    def test_normalizes_after_each_convolution(self) -> None:
        cnn = drawn(NatureCNN((1, 36, 36), norm="layer", activation="elu"))
        x = random(2, 1, 36, 36)

        expected = x
        for convolution in cnn.convolutions:
            expected = functional.elu(functional.layer_norm(convolution(expected), convolution(expected).shape[1:]))
        assert_close(cnn(x), expected.flatten(1))

    def test_the_small_one_has_a_name_and_a_least_size(self) -> None:
        assert type(Encoder((4, 84, 84), (), encoder="small").encoders[0]) is SmallCNN
        assert SmallCNN((1, 36, 36)).n_features == 32
        with pytest.raises(ConfigError, match=r"SmallCNN needs at least 36 x 36 pixels, got \(1, 35, 36\)"):
            SmallCNN((1, 35, 36))


class TestMinAtarCNN:
    def test_is_the_papers_convolution(self) -> None:
        cnn = drawn(MinAtarCNN((4, 10, 10)))
        x = (random(2, 4, 10, 10) > 0).float()
        weight, bias = cnn.parameters()

        assert tuple(weight.shape) == (16, 4, 3, 3)
        assert cnn.n_features == 1024
        assert_close(cnn(x), functional.conv2d(x, weight, bias).relu().flatten(1))

    def test_normalizes_before_its_activation(self) -> None:
        cnn = drawn(MinAtarCNN((2, 5, 7), norm="layer", activation="elu"))
        outputs = cnn.convolution(random(2, 2, 5, 7))

        expected = functional.elu(functional.layer_norm(outputs, outputs.shape[1:])).flatten(1)
        assert_close(cnn(random(2, 2, 5, 7)), expected)
        assert cnn.n_features == expected.shape[1]

    @pytest.mark.parametrize(("size", "kind"), [(35, MinAtarCNN), (36, NatureCNN)])
    def test_is_the_default_below_36_pixels(self, size: int, kind: Any) -> None:
        encoder = Encoder((2, size, size), (8,))
        assert type(encoder.encoders[0]) is kind
        assert type(Encoder((2, size, size), (8,), encoder="minatar").encoders[0]) is MinAtarCNN

    def test_smaller_inputs_than_a_convolution_needs_are_rejected(self) -> None:
        with pytest.raises(ConfigError, match=r"NatureCNN needs at least 36 x 36 pixels, got \(4, 10, 10\): use enc"):
            Encoder((4, 10, 10), (8,), encoder="nature")
        with pytest.raises(ConfigError, match="MinAtarCNN needs at least 3 x 3 pixels"):
            MinAtarCNN((1, 2, 9))


def paper_section(section: Any, x: Tensor) -> Tensor:
    """Return a section of Espeholt et al. (2018), figure 3, right."""
    x = functional.max_pool2d(functional.conv2d(x, *section.convolution.parameters(), padding=1), 3, 2, 1)
    for block in section.blocks:
        first, second = block.convolutions
        y = functional.conv2d(x.relu(), first.weight, first.bias, padding=1)
        x = x + functional.conv2d(y.relu(), second.weight, second.bias, padding=1)
    return x


class TestImpalaCNN:
    def test_is_the_papers_deep_network(self) -> None:
        cnn = drawn(ImpalaCNN((3, 20, 12)))
        x = random(2, 3, 20, 12)

        expected = x
        for section in cnn.sections:
            expected = paper_section(section, expected)
        assert_close(cnn(x), expected.relu().flatten(1))
        assert sum(isinstance(layer, nn.Conv2d) for layer in cnn.modules()) == 15

    def test_has_the_papers_number_of_parameters(self) -> None:
        def convolution(n_in: int, n_out: int) -> int:
            return 9 * n_in * n_out + n_out

        cnn = ImpalaCNN((3, 72, 96))  # their frames
        n_convolutions = convolution(3, 16) + 4 * convolution(16, 16) + convolution(16, 32) + 9 * convolution(32, 32)
        torso = Encoder((3, 72, 96), (256,), encoder="impala")
        n_inputs = 256 + 64 + 9 + 1  # the features, an instruction, the last action of 9, the last reward
        n_lstm = 4 * 256 * (n_inputs + 256 + 2)

        assert n_parameters(cnn) == n_convolutions == 97_600
        assert cnn.n_features == 32 * 9 * 12
        assert round((n_parameters(torso) + n_lstm) / 1e6, 1) == 1.6  # "1.6 million parameters"

    @pytest.mark.parametrize(("name", "width"), [("impala_x2", 2), ("impala_x4", 4)])
    def test_a_width_multiplies_the_channels(self, name: str, width: int) -> None:
        shape = (4, 84, 84)
        torso = Encoder(shape, (), encoder=name)
        first = [section.convolution.out_channels for section in torso.encoders[0].sections]

        assert first == [16 * width, 32 * width, 32 * width]
        assert torso(torch.zeros(1, *shape)).shape == (1, 32 * width * 11 * 11)

    def test_normalizes_the_residual_branches(self) -> None:
        cnn = drawn(ImpalaCNN((1, 8, 8), norm="rms"))
        block = cnn.sections[0].blocks[0]
        x = random(2, 16, 4, 4)

        y = x
        for convolution in block.convolutions:
            y = functional.rms_norm(convolution(y.relu()), (16, 4, 4), eps=1e-5)
        assert_close(block(x), x + y)

    def test_rejects_activations_in_place_which_would_change_the_sum(self) -> None:
        with pytest.raises(ConfigError, match="works in place"):
            ImpalaCNN((1, 8, 8), activation=torch.relu_)


class Features(nn.Module):
    """An encoder of a user's: 2 * x in 7 features, with weights from torch's global generator."""

    def __init__(self, shape: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(math.prod(shape), 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(2 * x.flatten(1))


class Fused(nn.Module):
    """An encoder of a user's of two leaves at once, with a lazy layer and one of trainkit's MLPs."""

    def __init__(self, shapes: Any) -> None:
        super().__init__()
        self.lazy, self.mlp = nn.LazyLinear(6), MLP((6, 5))

    def forward(self, features: Any) -> Tensor:
        return self.mlp(self.lazy(torch.cat([features["a"], features["b"]], dim=1)))


SHAPES = {"camera": (3, 36, 36), "map": (1, 40, 40), "speed": (2,)}


class TestEncoder:
    @pytest.mark.global_rng  # modules of the user's
    @pytest.mark.parametrize(
        ("encoder", "n_features"),
        [
            (None, 64 + 64 + 2),  # NatureCNN of each image
            ("impala", 32 * 25 + 32 * 25 + 2),
            ("mlp", 3 * 36 * 36 + 1600 + 2),
            ({"camera": "impala"}, 32 * 25 + 64 + 2),
            ({"camera": "mlp", "speed": Features}, 3 * 36 * 36 + 64 + 7),
            ({"camera": Features, "map": nn.Flatten()}, 7 + 1600 + 2),
        ],
    )
    def test_leaves_are_encoded_by_their_own_and_concatenated(self, encoder: Any, n_features: int) -> None:
        network = Encoder(SHAPES, (), encoder=encoder)
        features = {name: random(2, *shape) for name, shape in SHAPES.items()}

        assert network.n_features == n_features
        assert network(features).shape == (2, n_features)
        for name in SHAPES:
            assert (network(features | {name: features[name] + 1.0}) != network(features)).any()

    def test_a_factory_is_given_all_leaves_and_hidden_layers_follow(self) -> None:
        network = Encoder({"a": (2,), "b": (3,)}, (4,), encoder=Fused)
        features = {"a": random(3, 2), "b": random(3, 3)}

        fused = network.encoders[0](features)
        assert fused.shape == (3, 5)
        assert_close(network(features), network.body(fused))

    def test_a_seed_decides_the_weights_of_a_factory(self) -> None:
        before = torch.get_rng_state()
        networks = [QNetwork({"a": (2,), "b": (3,)}, 2, hidden=(4,), encoder=Fused) for _ in range(2)]
        features = {"a": random(3, 2), "b": random(3, 3)}
        assert (networks[0](features).outputs != networks[1](features).outputs).any()
        for network in networks:
            network.draw(5)

        assert_close(networks[0](features).outputs, networks[1](features).outputs, rtol=0, atol=0)
        assert_close(torch.get_rng_state(), before)
        networks[1].draw(6)
        assert (networks[0](features).outputs != networks[1](features).outputs).all()

    @pytest.mark.global_rng
    @pytest.mark.parametrize("kind", [QNetwork, ActorCriticNetwork])
    def test_a_module_is_copied_with_its_weights(self, kind: Any) -> None:
        module = Features((3,))
        with torch.no_grad():
            module.layer.weight.fill_(0.25)
        network = kind((3,), 2, encoder=module)
        network.draw(1)
        copies = [part for part in network.modules() if isinstance(part, Features)]

        assert len(copies) == (2 if kind is ActorCriticNetwork else 1)
        assert all(part is not module and (part.layer.weight == 0.25).all() for part in copies)

    @pytest.mark.global_rng
    def test_a_registered_name_is_the_factory(self) -> None:
        register_encoder("test_features", Features)
        register_encoder("test_features", Features)  # a module that is imported again

        assert encoder_names()[-1] == "test_features"
        assert named_encoder({"a": Features, "b": "mlp"}) == {"a": "test_features", "b": "mlp"}
        assert Encoder((3,), (), encoder="test_features").n_features == 7
        with pytest.raises(ConfigError, match="already called 'test_features'"):
            register_encoder("test_features", Fused)
        with pytest.raises(ConfigError, match="already called 'mlp'"):
            register_encoder("mlp", Features)
        with pytest.raises(ConfigError, match="needs a class of modules or a function"):
            register_encoder("test_other", nn.Flatten())

    @pytest.mark.parametrize(
        ("shapes", "encoder", "message"),
        [
            ((4, 84, 84), "impalla", "got 'impalla', did you mean 'impala'"),
            ((4, 84, 84), 3, "encoder must be one of 'mlp', 'nature', .* got 3"),
            ((4,), "impala", r"encoder 'impala' is for images and grids, and the features' shapes, \(4,\), have none"),
            ((4,), {"camera": "mlp"}, "needs a dict of features"),
            (SHAPES, {"camra": "mlp"}, "names 'camra', .* did you mean 'camera'"),
            (SHAPES, {"speed": "nature"}, "is for images"),
            ((4,), lambda shape: 3, "must return a torch module, got 3"),
            ((4,), nn.Linear, r"Linear cannot be called with the features' shapes, \(4,\): TypeError"),
            ((4,), MLP((5, 2)), r"MLP cannot take features of shapes \(4,\): RuntimeError"),
            ((4,), nn.Unflatten(1, (2, 2)), r"to \[B, F\], got \[2, 2, 2\] for B = 2: flatten them"),
        ],
    )
    def test_what_does_not_fit_is_named(self, shapes: Any, encoder: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            Encoder(shapes, (), encoder=encoder)
