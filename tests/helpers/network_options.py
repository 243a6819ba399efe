"""The options of networks that every preset has: another value of each, and where a trainer's policy has it."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trainkit import nets
from trainkit.nets.layers import StackedNorm


class Plain(nn.Module):
    """An encoder of vectors, of four features."""

    def __init__(self, shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.layer = nn.Linear(*shapes, 4)

    def forward(self, features: Tensor) -> Tensor:
        return torch.tanh(self.layer(features))


def penalty(features: Tensor, rows: Any) -> Tensor:
    return features.square().mean(dim=1)


def has(*kinds: type[nn.Module]) -> Callable[[Any], bool]:
    """Return whether the policy of a trainer has a module of these classes."""
    return lambda trainer: any(isinstance(module, kinds) for module in trainer.policy.modules())


NETWORK_OPTIONS: Mapping[str, tuple[Any, Callable[[Any], Any]]] = {
    "encoder": (Plain, lambda trainer: Plain if has(Plain)(trainer) else None),
    "activation": (nn.Softsign, lambda trainer: nn.Softsign if has(nn.Softsign)(trainer) else None),
    "norm": ("rms", lambda trainer: "rms" if has(nn.RMSNorm, StackedNorm)(trainer) else None),
    "recurrent": ("gru", lambda trainer: "gru" if has(nets.GRU)(trainer) else None),
    "sequence_length": (7, lambda trainer: trainer.policy.sequences.length),
    "burn_in": (3, lambda trainer: trainer.policy.sequences.burn_in),
    "stored_state": (False, lambda trainer: trainer.policy.sequences.stored_state),
    "auxiliary": (penalty, lambda trainer: trainer.policy.auxiliary),
}
OF_A_MEMORY = frozenset({"recurrent", "sequence_length", "burn_in", "stored_state"})
# What some of them need to have an effect.
MEMORY_NEEDS = {name: {"recurrent": "lstm"} for name in ("sequence_length", "burn_in", "stored_state")}
