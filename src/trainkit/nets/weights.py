"""Weight initialization from a seed, without torch's global generator."""

import hashlib
import math
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from trainkit.core import seeding

_NORMS = nn.LayerNorm, nn.RMSNorm


@runtime_checkable
class DrawsItself(Protocol):
    """A layer with its own initialization."""

    def draw_parameters(self, generator: torch.Generator) -> None: ...


class SeededModule(nn.Module):
    """Base of the networks whose initial weights are a function of a seed; a subclass calls `draw` in `__init__`."""

    def draw(self, seed: int | None = None) -> None:
        """Initialize all parameters from a seed; None uses a random one."""
        self._initialize(torch.Generator().manual_seed(seeding.fresh_root() if seed is None else seed))
        self._drawn = self._fingerprint()

    @property
    def is_untouched(self) -> bool:
        """Whether the parameters are the initial ones, neither trained nor loaded."""
        return self._fingerprint() == self._drawn

    def _initialize(self, generator: torch.Generator) -> None:
        """Initialize every layer as torch does; a subclass may override this."""
        draw_parameters(self, generator)

    def _fingerprint(self) -> bytes:
        """Return a digest of the parameters' bytes, the same on every device."""
        digest = hashlib.blake2b()
        for parameter in self.parameters():
            digest.update(parameter.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        return digest.digest()


def seeded_parts(module: nn.Module, path: str = "") -> Iterator[tuple[str, SeededModule]]:
    """Yield (path, part) of the outermost seeded parts: the module itself if it is one."""
    if isinstance(module, SeededModule):
        yield path, module
        return
    for name, child in module.named_children():
        yield from seeded_parts(child, f"{path}.{name}")


def draw_parameters(module: nn.Module, generator: torch.Generator) -> None:
    """Initialize linear and convolution layers as torch does, from a given generator, and other layers as they define.

    Weights and biases are uniform in +-1/sqrt(fan_in).
    """
    for layer in _own_layers(module):
        if isinstance(layer, DrawsItself):
            layer.draw_parameters(generator)
        elif isinstance(layer, _NORMS):
            layer.reset_parameters()
        elif isinstance(layer, (nn.Linear, nn.Conv2d)):
            bound = 1.0 / math.sqrt(layer.weight[0].numel())
            draw_uniform(layer.weight, bound, generator)
            if layer.bias is not None:
                draw_uniform(layer.bias, bound, generator)


def _own_layers(module: nn.Module) -> Iterator[nn.Module]:
    """Yield a module and its submodules, without those of a layer that draws itself."""
    yield module
    if not isinstance(module, DrawsItself):
        for child in module.children():
            yield from _own_layers(child)


def draw_orthogonal(module: nn.Module, generator: torch.Generator, gain: float) -> None:
    """Initialize linear and convolution layers orthogonally, times a gain, with biases of 0; others as they define."""
    for layer in _own_layers(module):
        if isinstance(layer, DrawsItself):
            layer.draw_parameters(generator)
        elif isinstance(layer, _NORMS):
            layer.reset_parameters()
        elif isinstance(layer, (nn.Linear, nn.Conv2d)):
            drawn = torch.empty(layer.weight.shape, dtype=torch.float32)
            nn.init.orthogonal_(drawn, gain, generator=generator)
            with torch.no_grad():
                layer.weight.copy_(drawn)
                if layer.bias is not None:
                    layer.bias.zero_()


def draw_uniform(parameter: Tensor, bound: float, generator: torch.Generator) -> None:
    """Fill a parameter uniformly in +-bound, drawn on the CPU so that it is the same on every device."""
    with torch.no_grad():
        parameter.copy_(torch.empty(parameter.shape, dtype=torch.float32).uniform_(-bound, bound, generator=generator))


def new_linear(in_features: int, out_features: int) -> nn.Linear:
    """Return a linear layer without initial values, which its owner draws; torch's global generator is not used."""
    with torch.random.fork_rng(devices=[]):
        return nn.Linear(in_features, out_features, dtype=torch.float32)


def new_conv2d(in_channels: int, out_channels: int, kernel: int, stride: int, *, padding: int = 0) -> nn.Conv2d:
    """Return a convolution without initial values, which its owner draws; torch's global generator is not used."""
    with torch.random.fork_rng(devices=[]):
        return nn.Conv2d(in_channels, out_channels, kernel, stride, padding, dtype=torch.float32)
