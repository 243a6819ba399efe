"""Networks in tests: random features, drawn weights, and an MLP computed layer by layer."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainkit.nets import MLP, NoisyLinear
from trainkit.nets.weights import draw_parameters


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def drawn(module: nn.Module, seed: int = 0) -> Any:
    draw_parameters(module, torch.Generator().manual_seed(seed))
    return module


def run_by_hand(mlp: MLP, x: Tensor, noise: Tensor | None, *, activate_last: bool) -> Tensor:
    """Apply an MLP layer by layer, each noisy layer with the next slice of the noise."""
    start = 0
    for position, layer in enumerate(mlp.layers):
        if isinstance(layer, NoisyLinear) and noise is not None:
            x = layer(x, noise[:, start : start + layer.noise_size])
            start += layer.noise_size
        else:
            x = functional.linear(x, layer.weight, layer.bias)
        if activate_last or position < len(mlp.layers) - 1:
            x = x.relu()
    return x
