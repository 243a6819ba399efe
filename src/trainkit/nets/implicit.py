"""The network of implicit quantiles: asked at any fraction, it gives that quantile of every action's return."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from trainkit.core.errors import Checks
from trainkit.core.signatures import checked
from trainkit.nets.networks import ActionHeads, Encoder, HeadOptions, Prediction, check_layers
from trainkit.nets.weights import SeededModule, blank_linear


class CosineEmbedding(nn.Module):
    """Turn fractions [B, W] into features [B, W, F]: relu(linear(cos(pi i fraction))), i = 0 ... n_cosines - 1.

    Dabney et al. (2018, IQN), equation 4.
    """

    frequencies: Tensor  # [n_cosines]

    def __init__(self, n_features: int, n_cosines: int = 64) -> None:
        super().__init__()
        self.linear = blank_linear(n_cosines, n_features)
        self.register_buffer("frequencies", math.pi * torch.arange(n_cosines, dtype=torch.float32), persistent=False)

    def forward(self, fractions: Tensor) -> Tensor:
        cosines = torch.cos(fractions.unsqueeze(-1) * self.frequencies)
        return torch.relu(self.linear(cosines))


@checked
class ImplicitQNetwork(SeededModule):
    """Give the quantiles at W fractions for each of A actions: heads on features * embedding(fraction).

    Dabney et al. (2018, IQN), section 3.1. Called with fractions [B, W], or [1, W] for all rows.

    Args:
        shapes: the features' shapes, as `Preprocess(space).shapes` tells them.
        n_actions: A.
        hidden: layers shared by all.
        n_cosines: of the embedding.
        activation: after each hidden layer.
        channels_last: of images, see `NatureCNN`.
        heads: `head`, `dueling`, `noisy` and `sigma0`, as in `ActionHeads`.
    """

    def __init__(
        self,
        shapes: Any,
        n_actions: int,
        *,
        hidden: Sequence[int] = (128, 128),
        n_cosines: int = 64,
        activation: Callable[[Tensor], Tensor] = torch.relu,
        channels_last: bool = False,
        **heads: Unpack[HeadOptions],
    ) -> None:
        checks = Checks("ImplicitQNetwork")
        check_layers(checks, n_actions, width=1, hidden=hidden, **heads)
        checks.integer("n_cosines", n_cosines, low=1)
        checks.done()
        super().__init__()
        self.encoder = Encoder(shapes, hidden, activation, channels_last=channels_last)
        self.embedding = CosineEmbedding(self.encoder.n_features, n_cosines)
        self.heads = ActionHeads(self.encoder.n_features, n_actions, activation=activation, **heads)
        self.noise_size = self.heads.noise_size
        self.draw()

    def forward(self, features: Any, noise: Tensor | None, legal: Tensor | None, fractions: Tensor) -> Prediction:
        x = self.encoder(features).unsqueeze(1) * self.embedding(fractions)  # [B, W, F]
        rows, width, _ = x.shape
        noise, legal = (
            per_row if per_row is None or per_row.shape[0] == 1 else per_row.repeat_interleave(width, dim=0)
            for per_row in (noise, legal)
        )
        numbers = self.heads(x.flatten(0, 1), noise, legal)  # [B * W, A, 1]
        return Prediction(numbers.view(rows, width, -1).transpose(1, 2), fractions)
