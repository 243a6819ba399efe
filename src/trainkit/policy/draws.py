"""What is random in a Q-learner's networks for the length of one question: drawn outside, handed in."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from trainkit.nets.networks import ActionValues
from trainkit.nets.noisy import draw_noise
from trainkit.policy.backups import Network
from trainkit.policy.quantiles import DrawnFractions
from trainkit.policy.values import Value


class Draw(NamedTuple):
    """What is random in one network for the length of an update, or of an act."""

    noise: Tensor | None = None  # [R, noise_size], of noisy layers
    fractions: Tensor | None = None  # [B, W] or [1, W], where the value part draws them


class Draws:
    """Draw what a network of noisy layers, and a value part of drawn fractions, have to be told."""

    def __init__(self, network: ActionValues, value: Value) -> None:
        self._network = network
        self.fractions: DrawnFractions | None = value if isinstance(value, DrawnFractions) else None

    @property
    def noise_size(self) -> int:
        """How much noise a row takes, 0 where no layer is noisy."""
        return self._network.noise_size

    def noise(self, rows: int, generator: torch.Generator) -> Tensor | None:
        """Draw noise for each of so many rows; None where no layer is noisy."""
        size = self.noise_size
        return draw_noise(rows, size, generator) if size else None

    def for_update(self, rows: int, generator: torch.Generator) -> tuple[Draw, Draw]:
        """Draw what is random in one update, for the online and for the target network."""
        noises = self.noise(1, generator), self.noise(1, generator)
        fractions = (None, None) if self.fractions is None else self.fractions.draw(rows, generator)
        return Draw(noises[0], fractions[0]), Draw(noises[1], fractions[1])

    def loss(self, value: Value, chosen: Tensor, goal: Tensor, fractions: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return (loss [B], priority [B]) by a value part, which is told the fractions where it draws them."""
        if self.fractions is None or fractions is None:
            return value.loss(chosen, goal)
        return self.fractions.loss(chosen, goal, fractions)

    def for_acting(self, noise: Tensor | None = None) -> Draw:
        """Return what to act with, where nothing but noise is random."""
        return Draw(noise, None if self.fractions is None else self.fractions.acting_fractions)


def ask(network: nn.Module, draw: Draw) -> Network:
    """Let a network be asked about features and legal actions alone."""
    noise, fractions = draw
    if fractions is None:
        return lambda features, legal: network(features, noise, legal)
    return lambda features, legal: network(features, noise, legal, fractions)
