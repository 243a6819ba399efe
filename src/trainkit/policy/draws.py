"""What is random in a network for the length of one question: drawn outside, handed in."""

from typing import NamedTuple

from torch import Tensor, nn

from trainkit.policy.backups import Network


class Draw(NamedTuple):
    """What is random in one network for the length of an update, or of an act."""

    noise: Tensor | None = None  # [R, noise_size], of noisy layers
    fractions: Tensor | None = None  # [B, W] or [1, W], where the value part draws them


def ask(network: nn.Module, draw: Draw) -> Network:
    """Let a network be asked about features and legal actions alone."""
    noise, fractions = draw
    if fractions is None:
        return lambda features, legal: network(features, noise, legal)
    return lambda features, legal: network(features, noise, legal, fractions)
