"""Hidden layers: activations and normalization by name, and `MLP`.

A hidden layer is linear (or noisy, or a convolution), then the normalization, if there is one, then the activation.
"""

import copy
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainkit.core.errors import Checks, ConfigError
from trainkit.core.names import did_you_mean
from trainkit.core.signatures import checked
from trainkit.nets.noisy import NoisyLinear, check_noise, initial_noise
from trainkit.nets.weights import SeededModule, new_linear

Activation = str | nn.Module | Callable[..., Any]  # a name, a function of a tensor, or a module or its class
Norm = Literal["layer", "rms"]

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "relu": torch.relu,
        "tanh": torch.tanh,
        "silu": functional.silu,
        "gelu": functional.gelu,
        "elu": functional.elu,
        "leaky_relu": functional.leaky_relu,
        "mish": functional.mish,
    }
)
_MODULES: Mapping[type[nn.Module], str] = MappingProxyType(
    {
        nn.ReLU: "relu",
        nn.Tanh: "tanh",
        nn.SiLU: "silu",
        nn.GELU: "gelu",
        nn.ELU: "elu",
        nn.LeakyReLU: "leaky_relu",
        nn.Mish: "mish",
    }
)


@checked
def activation_names() -> list[str]:
    """List the names of activations, as `torch.nn.functional` has them."""
    return list(ACTIVATIONS)


def named_activation(activation: Any) -> Any:
    """Return the name in `ACTIVATIONS` of a function or a class of modules; anything else as it is."""
    pairs = (*((function, name) for name, function in ACTIVATIONS.items()), *_MODULES.items())
    return next((name for own, name in pairs if own is activation), activation)


def activation_function(activation: Activation | None) -> Callable[[Tensor], Tensor]:
    """Return an activation by its name; a class of modules is constructed, a module copied; None is relu.

    Raises:
        ConfigError: it is no name of `ACTIVATIONS`, and cannot be called.
    """
    if activation is None:
        return torch.relu
    activation = named_activation(activation)
    if isinstance(activation, str) and activation in ACTIVATIONS:
        return ACTIVATIONS[activation]
    if inspect.isclass(activation) and issubclass(activation, nn.Module):
        made: nn.Module = activation()
        return made
    if isinstance(activation, nn.Module):
        return copy.deepcopy(activation)
    if isinstance(activation, str) or inspect.isclass(activation) or not callable(activation):
        raise ConfigError(
            f"activation must be one of {', '.join(ACTIVATIONS)}, a function of a tensor, or a torch module or its "
            f"class, got {activation!r}{did_you_mean(activation, ACTIVATIONS)}"
        )
    return activation


def new_norm(norm: Norm, n_features: int) -> nn.Module:
    """Return the normalization of features [..., F]: layer norm (Ba et al., 2016), or RMS norm (Zhang, Sennrich, 2019).

    y = (x - mean) / sqrt(variance + 1e-5) * scale + shift, of "rms" y = x / sqrt(mean of squares + 1e-5) * scale, over
    the F features of each row; scale starts at 1, shift at 0.
    """
    check_norm(norm)
    if norm == "rms":
        return nn.RMSNorm(n_features, eps=1e-5, dtype=torch.float32)
    return nn.LayerNorm(n_features, dtype=torch.float32)


def check_norm(norm: object) -> None:
    """Raise `ConfigError` unless this is a normalization or None."""
    names = get_args(Norm)
    if norm is not None and norm not in names:
        raise ConfigError(
            f"norm must be {' or '.join(map(repr, names))} or None, got {norm!r}{did_you_mean(norm, names)}"
        )


@torch.no_grad()
def reset_norm(weight: Tensor, bias: Tensor | None) -> None:
    """Set the scales of a normalization to 1 and its shifts to 0."""
    weight.fill_(1.0)
    if bias is not None:
        bias.fill_(0.0)


class ChannelNorm(nn.Module):
    """Normalization of images [B, C, H, W] over channels, height and width, with a scale (and shift) per channel.

    The mean and the variance are those of `new_norm`.
    """

    def __init__(self, norm: Norm, n_channels: int) -> None:
        check_norm(norm)
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n_channels, dtype=torch.float32))
        self.bias = nn.Parameter(torch.zeros(n_channels, dtype=torch.float32)) if norm == "layer" else None

    def draw_parameters(self, generator: torch.Generator) -> None:
        """Set scales to 1 and shifts to 0."""
        reset_norm(self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.bias is not None:
            return functional.group_norm(x, 1, self.weight, self.bias)
        return functional.rms_norm(x, x.shape[1:], eps=1e-5) * self.weight.view(-1, 1, 1)


def of_first(n: int, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return the parts of stacked weights and biases [C, ...] that the first n networks have."""
    return (weight, bias) if n == len(weight) else (weight[:n], None if bias is None else bias[:n])


class StackedNorm(nn.Module):
    """Normalization of C networks' features [C, B, F] over the features, with a scale (and shift) per network.

    Fewer features are those of the first networks.
    """

    def __init__(self, norm: Norm, n_networks: int, n_features: int) -> None:
        check_norm(norm)
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n_networks, 1, n_features, dtype=torch.float32))
        zeros = torch.zeros(n_networks, 1, n_features, dtype=torch.float32)
        self.bias = nn.Parameter(zeros) if norm == "layer" else None

    def draw_parameters(self, generator: torch.Generator) -> None:
        """Set scales to 1 and shifts to 0."""
        reset_norm(self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = of_first(len(x), self.weight, self.bias)
        if bias is not None:
            return torch.addcmul(bias, functional.layer_norm(x, x.shape[2:]), weight)
        return functional.rms_norm(x, x.shape[2:], eps=1e-5) * weight


@checked
class MLP(SeededModule):
    """Linear or noisy layers with an activation, by default relu, after each but the last.

    `sizes` are (in, hidden ..., out); with `activate_last` the last layer has an activation too. With `norm` each
    activation is preceded by a normalization of the layer's outputs.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        activation: Activation | None = None,
        norm: Norm | None = None,
        activate_last: bool = False,
        noisy: bool | float = False,
    ) -> None:
        with Checks("MLP") as checks:
            for size in sizes:
                checks.integer("sizes", size, low=1)
            checks.require(len(sizes) > 0, f".sizes must be (in, hidden ..., out), got {sizes!r}")  # (in) has no layer
            check_noise(checks, noisy)
            with checks.gather():
                check_norm(norm)
        super().__init__()
        pairs = list(itertools.pairwise(sizes))
        sigma0 = initial_noise(noisy)
        layers: list[Any] = [new_linear(a, b) if sigma0 is None else NoisyLinear(a, b, sigma0=sigma0) for a, b in pairs]
        self.layers = nn.ModuleList(layers)
        self.activation = activation_function(activation)
        self.is_active = [activate_last or position < len(layers) - 1 for position in range(len(layers))]
        active = [size for size, is_active in zip(sizes[1:], self.is_active, strict=True) if is_active]
        self.norms = None if norm is None else nn.ModuleList([new_norm(norm, size) for size in active])
        self._noise_sizes = [layer.noise_size if isinstance(layer, NoisyLinear) else 0 for layer in layers]
        self.noise_size = sum(self._noise_sizes)
        self.draw()

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return outputs [B, out] for inputs [B, in]; noisy layers add noise [B or 1, noise_size], None adds none."""
        noises: Iterator[Tensor] | None = None
        if noise is not None and self.noise_size:
            noises = iter(torch.split(noise, self._noise_sizes, dim=1))
        for position, (layer, is_active) in enumerate(zip(self.layers, self.is_active, strict=True)):
            x = layer(x) if noises is None else layer(x, next(noises))
            if is_active:
                x = self.activation(x if self.norms is None else self.norms[position](x))
        return x
