"""The networks of actor-critics that learn from replayed steps: an actor, and critics side by side."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trainkit.core import seeding
from trainkit.core.errors import Checks
from trainkit.core.signatures import checked
from trainkit.nets.networks import MLP, Encoder
from trainkit.nets.weights import SeededModule, draw_uniform


@checked
class ActorNetwork(SeededModule):
    """Give `width` numbers per observation, that choose a distribution of actions.

    Args:
        shapes: the features' shapes, as `Preprocess(space).shapes` tells them.
        width: how many numbers.
        hidden: layers.
        activation: after each hidden layer; the default works in place, which saves a tenth of SAC's update.
    """

    def __init__(
        self,
        shapes: Any,
        width: int,
        *,
        hidden: Sequence[int] = (256, 256),
        activation: Callable[[Tensor], Tensor] = torch.relu_,
    ) -> None:
        _check("ActorNetwork", width=width, hidden=hidden)
        super().__init__()
        self.encoder = Encoder(shapes, hidden, activation)
        self.head = MLP([self.encoder.n_features, width])
        self.draw()

    def forward(self, features: Any) -> Tensor:
        outputs: Tensor = self.head(self.encoder(features))
        return outputs


@checked
class CriticNetwork(SeededModule):
    """Give `n_critics` values of an action, [B, C], from critics that share nothing but an image's convolutions.

    Args:
        shapes: the features' shapes, as `Preprocess(space).shapes` tells them.
        n_places: D, of actions [B, D].
        n_critics: C.
        hidden: layers, of each critic.
        activation: after each hidden layer; the default works in place, which saves a tenth of SAC's update.
    """

    def __init__(
        self,
        shapes: Any,
        n_places: int,
        *,
        n_critics: int = 2,
        hidden: Sequence[int] = (256, 256),
        activation: Callable[[Tensor], Tensor] = torch.relu_,
    ) -> None:
        _check("CriticNetwork", n_places=n_places, n_critics=n_critics, hidden=hidden)
        super().__init__()
        self.encoder = Encoder(shapes, (), activation)
        sizes = [self.encoder.n_features + n_places, *hidden, 1]
        self.layers = nn.ModuleList([StackedLinear(n_critics, a, b) for a, b in itertools.pairwise(sizes)])
        self.n_critics = n_critics
        self.activation = activation
        self.draw()

    def forward(self, features: Any, action: Tensor) -> Tensor:
        x = torch.cat([self.encoder(features), action], dim=1)
        x = x.expand(self.n_critics, *x.shape)
        last = len(self.layers) - 1
        for position, layer in enumerate(self.layers):
            x = layer(x) if position == last else self.activation(layer(x))
        return x.squeeze(2).T


class StackedLinear(nn.Module):
    """C linear layers side by side in one batched product: [C, B, in] becomes [C, B, out]."""

    def __init__(self, n_layers: int, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_layers, out_features, in_features, dtype=torch.float32))
        self.bias = nn.Parameter(torch.empty(n_layers, 1, out_features, dtype=torch.float32))
        self.draw_parameters(torch.Generator().manual_seed(seeding.fresh_root()))

    def draw_parameters(self, generator: torch.Generator) -> None:
        """Initialise each layer as torch does a linear one."""
        bound = 1.0 / math.sqrt(self.weight.shape[2])
        draw_uniform(self.weight, bound, generator)
        draw_uniform(self.bias, bound, generator)

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight.transpose(1, 2))


def _check(name: str, *, hidden: Sequence[object], **counts: object) -> None:
    checks = Checks(name)
    for option, count in counts.items():
        checks.integer(option, count, low=1)
    for size in hidden:
        checks.integer("hidden sizes", size, low=1)
    checks.done()
