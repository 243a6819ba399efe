"""Critics with dropout and layer normalization, of DroQ."""

import itertools
from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from trainkit.core.config import Part
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.signatures import checked
from trainkit.nets.actor_critic_networks import ActorNetwork, LayerOptions, StackedLinear
from trainkit.nets.encoders import EncoderLike, make_encoder
from trainkit.nets.layers import Activation, Norm, StackedNorm, activation_function
from trainkit.nets.weights import SeededModule


class DropoutCritics(SeededModule):
    """C critics whose hidden layers are linear, dropout, layer normalization, activation (Hiraoka et al., 2022, DroQ).

    Dropout is by noise, which a loss draws for each of its passes; without noise nothing is dropped.

    Args:
        shapes: the features' shapes.
        n_dimensions: D, of actions [B, D].
        dropout: share of a layer's outputs that are dropped.
        n_critics, width, hidden, encoder, activation: as in `CriticNetwork`.
        norm: of the encoder that is named.
    """

    def __init__(
        self,
        shapes: Any,
        n_dimensions: int,
        *,
        dropout: float,
        n_critics: int,
        width: int | None,
        hidden: Sequence[int],
        encoder: EncoderLike | None,
        activation: Activation | None,
        norm: Norm | None = None,
    ) -> None:
        super().__init__()
        self.encoder = make_encoder(shapes, (), activation, encoder=encoder, norm=norm)
        sizes = [self.encoder.n_features + n_dimensions, *hidden, 1 if width is None else width]
        self.layers = nn.ModuleList([StackedLinear(n_critics, a, b) for a, b in itertools.pairwise(sizes)])
        self.norms = nn.ModuleList([StackedNorm("layer", n_critics, size) for size in hidden])
        self.activation = activation_function(activation)
        self.dropout, self.n_critics, self.width, self._hidden = dropout, n_critics, width, list(hidden)
        self.draw()

    def draw_noise(self, n_rows: int, generator: torch.Generator) -> Tensor:
        """Sample numbers in [0, 1) for all outputs of hidden layers, [C, B, sum of the layers' sizes]."""
        shape = self.n_critics, n_rows, sum(self._hidden)
        return torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float32)

    def forward(self, features: Any, action: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return outputs [B, C, W], or values [B, C] for a width of None, for features [B, ...] and actions [B, D]."""
        x = torch.cat([self.encoder(features), action], dim=1)
        x = x.expand(self.n_critics, *x.shape)
        noises: Any = [None] * len(self._hidden) if noise is None else noise.split(self._hidden, dim=2)
        *before, last = self.layers
        for layer, norm, own in zip(before, self.norms, noises, strict=True):
            x = layer(x)
            if own is not None:
                x = x * ((own >= self.dropout).to(x.dtype) / (1.0 - self.dropout))
            x = self.activation(norm(x))
        outputs: Tensor = last(x)
        return outputs.squeeze(2).T if self.width is None else outputs.transpose(0, 1)


@checked
class DropoutNetworks(Part):
    """An `ActorNetwork` and critics with dropout and layer normalization, for `for_envs(networks=)`.

    Args:
        dropout: share of the outputs of the critics' hidden layers that are dropped.
    """

    def __init__(self, dropout: float = 0.01) -> None:
        with Checks("DropoutNetworks") as checks:
            if checks.number("dropout", dropout, low=0, high=1):
                checks.require(dropout < 1, f".dropout must be below 1, got {dropout}")
        self.dropout = dropout

    def actor(self, shapes: Any, width: int, **layers: Unpack[LayerOptions]) -> nn.Module:
        """Return the actor: features -> [B, width]."""
        _check(layers)
        return ActorNetwork(shapes, width, **layers)

    def critics(
        self, shapes: Any, n_dimensions: int, *, n_critics: int, width: int | None, **layers: Unpack[LayerOptions]
    ) -> nn.Module:
        """Return the critics: (features, actions [B, D]) -> [B, C, W], or [B, C] for a width of None."""
        _check(layers)
        own: dict[str, Any] = {name: layers[name] for name in ("hidden", "encoder", "activation", "norm")}
        return DropoutCritics(shapes, n_dimensions, dropout=self.dropout, n_critics=n_critics, width=width, **own)


def _check(layers: LayerOptions) -> None:
    """Raise for options that would have no effect."""
    norm, recurrent = layers["norm"], layers["recurrent"]
    if norm not in (None, "layer") or recurrent is not None:
        raise ConfigError(
            f"DropoutNetworks' critics have layer normalization and no memory, got {norm=!r} and {recurrent=!r}: "
            "leave both out"
        )
