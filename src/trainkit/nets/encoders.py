"""Encoders of observations: convolutions by name, modules of the user's, and `Encoder`, which all networks use.

`encoder_names` lists the names. An encoder maps features, as `Preprocess` returns them, to a vector [B, F] per row.
"""

import copy
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainkit.core import extensions
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.names import did_you_mean
from trainkit.core.signatures import checked
from trainkit.core.spaces import SMALLEST_IMAGE
from trainkit.nets.layers import MLP, Activation, ChannelNorm, Norm, activation_function
from trainkit.nets.preprocess import Preprocess, blank_features, feature_paths, is_image_size
from trainkit.nets.weights import SeededModule, new_conv2d, seeded_parts

_LARGEST_SEED = 2**63 - 1
_WHAT_IS_FLAT = (
    " (images [C, H, W] are uint8 Boxes with two axes of 36 pixels or more, or of 22 with bounds 0 and 255; grids are "
    "Boxes from 0 to 1 of 5 to 21 cells a side; everything else is flat)"
)

Factory = Callable[[Any], nn.Module]  # features' shapes -> module that maps features to [B, F]
# A name, a module or a factory for all features; or a mapping of these by the keys of a Dict observation.
EncoderLike = str | nn.Module | Factory | Mapping[str, Any]
# What stands behind an encoder and carries a state from step to step: a name, or a function of the number of inputs.
Recurrent = str | Callable[[int], nn.Module]


def _check_shape(name: str, shape: Sequence[int], smallest: int = 1) -> None:
    """Raise `ConfigError` for anything but channels and at least `smallest` pixels per side."""
    with Checks(name) as checks:
        checks.require(len(shape) == 3, f".shape must be (channels, height, width), got {shape!r}")
        for size in shape:
            checks.integer("shape", size, low=1)
        checks.done()
        fits = min(shape[1:]) >= smallest
        smaller = "encoder='minatar' or 'impala'" if smallest > 3 else "encoder='mlp'"
        remedy = f"use {smaller}, or enlarge the images in a wrapper"
        checks.require(fits, f" needs at least {smallest} x {smallest} pixels, got {shape!r}: {remedy}")


def in_fast_layout(images: Tensor) -> Tensor:
    """Return images or weights [B, C, H, W] in the memory layout in which their device convolves fastest.

    On a GPU their channels are last; on the CPU they stay as they are.
    """
    return images if images.is_cpu else images.contiguous(memory_format=torch.channels_last)


class Convolutions(SeededModule):
    """Base of encoders of images, whose weights are in the memory layout in which their device convolves fastest."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch's own
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                layer.weight.data = in_fast_layout(layer.weight.data.contiguous())
        return self


class ImageCNN(Convolutions):
    """Convolutions without padding, each before an activation, flattened; for images of at least 36 x 36 pixels.

    Attributes:
        layers: (filters, kernel, stride) of each convolution.
        n_features: number of outputs.
    """

    layers: ClassVar[tuple[tuple[int, int, int], ...]]

    @checked
    def __init__(
        self,
        shape: Sequence[int],
        *,
        activation: Activation | None = None,
        norm: Norm | None = None,
    ) -> None:
        """Make the convolutions for images of the shape (C, H, W); the options are those of `Encoder`."""
        _check_shape(type(self).__name__, shape, SMALLEST_IMAGE)
        super().__init__()
        channels, height, width = shape
        self.convolutions = nn.ModuleList()
        for filters, kernel, stride in self.layers:
            self.convolutions.append(new_conv2d(channels, filters, kernel, stride))
            channels, height, width = filters, (height - kernel) // stride + 1, (width - kernel) // stride + 1
        self.norms = None if norm is None else nn.ModuleList([ChannelNorm(norm, own[0]) for own in self.layers])
        self.activation = activation_function(activation)
        self.n_features = channels * height * width
        self.draw()

    def forward(self, x: Tensor) -> Tensor:
        """Return features [B, F] of images [B, C, H, W]."""
        x = in_fast_layout(x)
        for position, convolution in enumerate(self.convolutions):
            x = convolution(x)
            x = self.activation(x if self.norms is None else self.norms[position](x))
        return x.flatten(1)


@checked
class NatureCNN(ImageCNN):
    """The convolutions of Mnih et al. (2015): 32 of 8x8/4, 64 of 4x4/2, 64 of 3x3/1, flattened."""

    layers = ((32, 8, 4), (64, 4, 2), (64, 3, 1))


@checked
class SmallCNN(ImageCNN):
    """The convolutions of Mnih et al. (2013), 16 of 8x8/4 and 32 of 4x4/2, and a third, 32 of 3x3/2, flattened.

    For training on a CPU: of 84 x 84 pixels it makes 512 features, where `NatureCNN` makes 3,136.
    """

    layers = ((16, 8, 4), (32, 4, 2), (32, 3, 2))


@checked
class MinAtarCNN(Convolutions):
    """The convolution of Young and Tian (2019) for grids such as MinAtar's 10 x 10: 16 of 3x3/1, flattened.

    Their linear layer of 128 is `hidden=(128,)` of the network.
    """

    def __init__(
        self,
        shape: Sequence[int],
        *,
        activation: Activation | None = None,
        norm: Norm | None = None,
    ) -> None:
        _check_shape("MinAtarCNN", shape, 3)
        super().__init__()
        channels, height, width = shape
        self.convolution = new_conv2d(channels, 16, 3, 1)
        self.norm = None if norm is None else ChannelNorm(norm, 16)
        self.activation = activation_function(activation)
        self.n_features = 16 * (height - 2) * (width - 2)
        self.draw()

    def forward(self, x: Tensor) -> Tensor:
        """Return features [B, F] of images [B, C, H, W]."""
        x = in_fast_layout(x)
        x = self.convolution(x)
        return self.activation(x if self.norm is None else self.norm(x)).flatten(1)


@checked
class ImpalaCNN(Convolutions):
    """The 15 convolutions of IMPALA's deep network (Espeholt et al., 2018, figure 3), flattened.

    Three sections of 16, 32 and 32 times `width` channels: a convolution of 3x3, the maximum over 3x3/2, two residual
    blocks of two convolutions, each after an activation; one more activation at the end. The paper's linear layer of
    256 is `hidden=(256,)` of the network. Differs in the padding of the maximum: one pixel on each side, where
    TensorFlow pads even sizes on one side only; the outputs have the same size. Width 2 is that of Schmidt and Schmied
    (2021), and of "Beyond the Rainbow" (Clark et al., 2024), without their spectral norm and their last maximum.

    Args:
        shape: (channels, height, width).
        width: factor of the numbers of channels.
        activation: before each convolution but a section's first, and after the last; default relu.
        norm: after each convolution of the residual blocks.
    """

    def __init__(
        self,
        shape: Sequence[int],
        *,
        width: int = 1,
        activation: Activation | None = None,
        norm: Norm | None = None,
    ) -> None:
        _check_shape("ImpalaCNN", shape)
        with Checks("ImpalaCNN") as checks:
            checks.integer("width", width, low=1)
        super().__init__()
        channels, *size = shape
        self.activation = activation_function(activation)
        sections: list[nn.Module] = []
        for n_channels in (16 * width, 32 * width, 32 * width):
            sections.append(ImpalaSection(channels, n_channels, activation, norm))
            channels, size = n_channels, [(one + 1) // 2 for one in size]
        self.sections = nn.ModuleList(sections)
        self.n_features = channels * math.prod(size)
        self.draw()

    def forward(self, x: Tensor) -> Tensor:
        """Return features [B, F] of images [B, C, H, W]."""
        x = in_fast_layout(x)
        for section in self.sections:
            x = section(x)
        return self.activation(x).flatten(1)


class ImpalaSection(nn.Module):
    """A section of `ImpalaCNN`: a convolution, a maximum that halves height and width, and two residual blocks."""

    def __init__(self, in_channels: int, out_channels: int, activation: Activation | None, norm: Norm | None) -> None:
        super().__init__()
        self.convolution = new_conv2d(in_channels, out_channels, 3, 1, padding=1)
        self.blocks = nn.ModuleList([ResidualBlock(out_channels, activation, norm) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(self.convolution(x), 3, stride=2, padding=1)
        for block in self.blocks:
            x = block(x)
        return x


class ResidualBlock(nn.Module):
    """A residual block of two convolutions of 3x3, each after an activation, and before a normalization if given."""

    def __init__(self, n_channels: int, activation: Activation | None, norm: Norm | None) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList([new_conv2d(n_channels, n_channels, 3, 1, padding=1) for _ in range(2)])
        self.norms = None if norm is None else nn.ModuleList([ChannelNorm(norm, n_channels) for _ in range(2)])
        self.activation = activation_function(activation)
        probe = torch.full((), -1.0)
        self.activation(probe)
        if probe != -1.0:
            raise ConfigError(
                f"activation {activation!r} works in place, which residual blocks cannot use: give another"
            )

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for position, convolution in enumerate(self.convolutions):
            y = convolution(self.activation(y))
            y = y if self.norms is None else self.norms[position](y)
        return x + y


# ---- names ----

_OF_IMAGES: Mapping[str, Callable[..., nn.Module]] = MappingProxyType(
    {
        "nature": NatureCNN,
        "small": SmallCNN,
        "minatar": MinAtarCNN,
        "impala": ImpalaCNN,
        "impala_x2": partial(ImpalaCNN, width=2),
        "impala_x4": partial(ImpalaCNN, width=4),
    }
)
_registered: dict[str, Factory] = {}


@checked
def register_encoder(name: str, factory: Factory) -> None:
    """Give an encoder of yours a name, for `encoder=` and for checkpoints.

    A process that loads a policy registers the same name before; a file names no code.

    Args:
        name: as in `encoder=name`.
        factory: a class of modules, or a function: the features' shapes, as `Preprocess(space).shapes`, -> a module
            that maps features to [B, F].

    Raises:
        ConfigError: the name is one of trainkit's, or of another factory.
    """
    if not isinstance(name, str) or not name:
        raise ConfigError(f"register_encoder.name must be a word for encoder=name, got {name!r}")
    if not callable(factory) or isinstance(factory, nn.Module):
        raise ConfigError(
            f"register_encoder({name!r}) needs a class of modules or a function that makes one, got {factory!r}"
        )
    if name in ("mlp", *_OF_IMAGES) or _registered.get(name, factory) is not factory:
        raise ConfigError(f"an encoder is already called {name!r}: choose another name")
    _registered[name] = factory


@checked
def encoder_names() -> list[str]:
    """List the names of encoders, those of `register_encoder` last."""
    return ["mlp", *_OF_IMAGES, *_registered]


def named_encoder(encoder: Any) -> Any:
    """Return an encoder with registered factories replaced by their names, also in mappings."""
    if isinstance(encoder, Mapping):
        return {key: named_encoder(own) for key, own in encoder.items()}
    return next((name for name, factory in _registered.items() if factory is encoder), encoder)


def default_hidden(preprocess: Preprocess, *, vectors: tuple[int, ...] = (128, 128)) -> tuple[int, ...]:
    """Return the hidden layers after the default encoder: for images and grids, those of the encoder's paper."""
    return (512,) if preprocess.sees_images else (128,) if preprocess.sees_grids else vectors


# ---- a network's encoder ----


class Encoder(nn.Module):
    """Encoder of a tree of features, and hidden layers: [B, F].

    Args:
        shapes: the features' shapes, `Preprocess(space).shapes`.
        hidden: layers after the encoder.
        activation: after each hidden layer, and of convolutions; None: `default`, and relu of convolutions.
        default: see activation.
        encoder: of images and grids, one of `encoder_names()`; "mlp" flattens them. The default is "nature", below 36
            pixels per side "minatar". All leaves are concatenated. A module or a factory is given the features and
            returns [B, F]; a module is copied. A mapping has an encoder for each key of a dict of features; those left
            out are encoded by default.
        norm: before each activation.
        ignores: leaves of a dict of features that are not encoded.
    """

    def __init__(
        self,
        shapes: Any,
        hidden: Sequence[int],
        activation: Activation | None = None,
        *,
        default: Activation = torch.relu,
        encoder: EncoderLike | None = None,
        norm: Norm | None = None,
        ignores: Collection[str] = (),
    ) -> None:
        super().__init__()
        self._ignores = frozenset(ignores)
        shapes = self._seen(shapes)
        if isinstance(encoder, Mapping):
            encoder = self._seen(encoder)
        how: dict[str, Any] = {"activation": activation, "norm": norm}
        inputs = list(_inputs(shapes, encoder, how))
        self._paths = [path for path, _, _ in inputs]
        self._is_encoded = [module is not None for _, module, _ in inputs]
        self.encoders = nn.ModuleList([module for _, module, _ in inputs if module is not None])
        n_inputs = sum(n_features for _, _, n_features in inputs)
        self.body = MLP(
            [n_inputs, *hidden], activation=default if activation is None else activation, norm=norm, activate_last=True
        )
        self.n_features = [n_inputs, *hidden][-1]

    def forward(self, features: Any) -> Tensor:
        """Return outputs [B, F] of features [B, ...]."""
        return self.encode(features)

    def encode(self, features: Any) -> Tensor:
        """Return outputs [B, F] of features [B, ...]."""
        features, encoders = self._seen(features), iter(self.encoders)
        parts: list[Tensor] = []
        for path, is_encoded in zip(self._paths, self._is_encoded, strict=True):
            leaf = features
            for key in path:
                leaf = leaf[key]
            parts.append(next(encoders)(leaf) if is_encoded else leaf)
        outputs: Tensor = self.body(parts[0] if len(parts) == 1 else torch.cat(parts, dim=1))
        return outputs

    def _seen(self, leaves: Any) -> Any:
        """Return a dict of leaves without those that are ignored."""
        return {key: leaf for key, leaf in leaves.items() if key not in self._ignores} if self._ignores else leaves


class StatefulEncoder(Encoder):
    """Base class of encoders whose outputs depend on earlier observations, by a state that a policy carries.

    Such an encoder is of an extension, which names it under `ENCODERS` by the option of networks that selects it.
    """

    @staticmethod
    def network_state(
        encoders: "Sequence[StatefulEncoder]", *, policy: str, sequences: object, learns_from: str
    ) -> Any:
        """Return how a policy carries the states of its encoders and learns with them, a `policy.NetworkState`.

        Args:
            encoders: all of the policy's networks, whose states follow one another.
            policy: its class, for errors.
            sequences: the option of this name; None is the default.
            learns_from: "replay", "rollouts" or "data", which has none of the policy's columns.
        """
        raise NotImplementedError


def stateful_encoders(*networks: nn.Module) -> list[StatefulEncoder]:
    """Return the encoders of networks that have a state."""
    return [one for network in networks for one in network.modules() if isinstance(one, StatefulEncoder)]


def make_encoder(
    shapes: Any, hidden: Sequence[int], *layers: Any, recurrent: Recurrent | None = None, **how: Any
) -> Encoder:
    """Return an `Encoder`, or the one of an extension that `recurrent` selects."""
    if recurrent is None:
        return Encoder(shapes, hidden, *layers, **how)
    if "recurrent" not in extensions.table("ENCODERS"):
        raise ConfigError(f"recurrent={recurrent!r} selects an encoder of an extension that is not there: leave it out")
    encoder: Encoder = extensions.table("ENCODERS")["recurrent"].load()(
        shapes, hidden, *layers, recurrent=recurrent, **how
    )
    return encoder


class CustomEncoder(nn.Module):
    """A module of the user's, which maps features to [B, F].

    A factory is called again when weights are drawn, with torch's generator of the CPU seeded, so that a seed decides
    the initial weights; a module's weights are the initial ones.

    Attributes:
        n_features: F.
    """

    def __init__(self, encoder: nn.Module | Factory, shapes: Any) -> None:
        super().__init__()
        self._factory: Factory | None = None if isinstance(encoder, nn.Module) else encoder
        self._shapes = shapes
        with torch.random.fork_rng(devices=[]):
            self.module = copy.deepcopy(encoder) if isinstance(encoder, nn.Module) else _made(encoder, shapes)
            self.n_features = _n_outputs(self.module, shapes)

    def forward(self, features: Any) -> Tensor:
        outputs: Tensor = self.module(features)
        return outputs

    def draw_parameters(self, generator: torch.Generator) -> None:
        """Copy the initial weights of a module that the factory makes after seeding torch's generator of the CPU."""
        seed = int(torch.randint(_LARGEST_SEED, (), generator=generator))
        if self._factory is not None:
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(seed)
                fresh = _made(self._factory, self._shapes)
                _n_outputs(fresh, self._shapes)  # makes the parameters of lazy layers
            for _, part in seeded_parts(fresh):
                part.draw(int(torch.randint(_LARGEST_SEED, (), generator=generator)))
            self.module.load_state_dict(fresh.state_dict())


def _made(factory: Factory, shapes: Any) -> nn.Module:
    """Return the module of a factory."""
    name = getattr(factory, "__name__", repr(factory))
    try:
        module = factory(shapes)
    except Exception as error:
        raise ConfigError(
            f"encoder {name} cannot be called with the features' shapes, {shapes}: {type(error).__name__}: {error}"
            f"{_WHAT_IS_FLAT}"
        ) from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"encoder {name} must return a torch module, got {module!r}")
    return module


def _n_outputs(module: nn.Module, shapes: Any) -> int:
    """Return F of a module that maps features to [B, F], by a forward pass on zeros."""
    name, was_training = type(module).__name__, module.training
    device = next((tensor.device for tensor in module.parameters()), torch.device("cpu"))
    blank = blank_features(shapes, 2, device)
    try:
        with torch.no_grad():
            outputs = module.eval()(blank)
    except Exception as error:
        raise ConfigError(
            f"encoder {name} cannot take features of shapes {shapes}: {type(error).__name__}: {error}{_WHAT_IS_FLAT}"
        ) from error
    finally:
        module.train(was_training)
    if not isinstance(outputs, Tensor) or outputs.dim() != 2 or len(outputs) != 2:
        got = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ConfigError(f"encoder {name} must map features [B, ...] to [B, F], got {got} for B = 2: flatten them")
    return outputs.shape[1]


def _inputs(
    shapes: Any, encoder: EncoderLike | None, how: Mapping[str, Any], path: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], nn.Module | None, int]]:
    """Yield (path in the features, module or None for a vector, number of outputs) in the order of the leaves."""
    if isinstance(encoder, Mapping):
        if not isinstance(shapes, dict):
            raise ConfigError(f"encoder is a mapping, which needs a dict of features, got {shapes}: give one encoder")
        for key in encoder:
            if key not in shapes:
                raise ConfigError(
                    f"encoder names {key!r}, which is not among the features {', '.join(sorted(shapes))}"
                    f"{did_you_mean(key, shapes)}"
                )
        for key in sorted(shapes):
            yield from _inputs(shapes[key], encoder.get(key), how, (*path, key))
        return
    if isinstance(encoder, str) and encoder in _registered:
        encoder = _registered[encoder]
    if encoder is None or isinstance(encoder, str):
        yield from _named_inputs(shapes, encoder, how, path)
    elif isinstance(encoder, nn.Module) or callable(encoder):
        custom = CustomEncoder(encoder, shapes)
        yield path, custom, custom.n_features
    else:
        raise ConfigError(f"encoder must be {_allowed()}, got {encoder!r}")


def _named_inputs(
    shapes: Any, name: str | None, how: Mapping[str, Any], path: tuple[Any, ...]
) -> Iterator[tuple[tuple[Any, ...], nn.Module | None, int]]:
    """Yield what `_inputs` yields for an encoder's name."""
    if name is not None and name != "mlp" and name not in _OF_IMAGES:
        raise ConfigError(f"encoder must be {_allowed()}, got {name!r}{did_you_mean(name, encoder_names())}")
    found = feature_paths(shapes)
    if name in _OF_IMAGES and all(len(shape) != 3 for _, shape in found):
        raise ConfigError(
            f"encoder {name!r} is for images and grids, and the features' shapes, {shapes}, have none: leave it out, "
            f"or give a module of yours{_WHAT_IS_FLAT}"
        )
    for own_path, shape in found:
        if len(shape) != 3:
            yield (*path, *own_path), None, math.prod(shape)
        elif name == "mlp":
            yield (*path, *own_path), nn.Flatten(), math.prod(shape)
        else:
            default = "nature" if is_image_size(shape) else "minatar"
            image: Any = _OF_IMAGES[default if name is None else name](shape, **how)
            yield (*path, *own_path), image, image.n_features


def _allowed() -> str:
    names = ", ".join(map(repr, encoder_names()))
    return f"one of {names}, a module, or a function of the features' shapes that returns one"
