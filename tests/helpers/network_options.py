"""The options of networks that every preset has: another value of each, and where a trainer's policy has it."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import is_typeddict

from trainkit.core.typed_options import types_of
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
    "network.encoder": (Plain, lambda trainer: Plain if has(Plain)(trainer) else None),
    "network.activation": (nn.Softsign, lambda trainer: nn.Softsign if has(nn.Softsign)(trainer) else None),
    "network.norm": ("rms", lambda trainer: "rms" if has(nn.RMSNorm, StackedNorm)(trainer) else None),
    "network.auxiliary": (penalty, lambda trainer: trainer.policy.auxiliary),
}


def options_in(preset: Any) -> set[str]:
    """Return the settings of a preset, and in the place of a group "group.option" for each of its options."""
    types = {name: preset.option_types[name] for name in preset.settings()}
    groups = {name: types_of(kind) for name, kind in types.items() if is_typeddict(kind)}
    return types.keys() - groups.keys() | {f"{name}.{option}" for name, own in groups.items() for option in own}


def given(setting: str, value: Any) -> dict[str, Any]:
    """Return a setting, or an option of a group, as it is given to a preset."""
    group, _, option = setting.partition(".")
    return {group: {option: value} if option else value}


def current(settings: Mapping[str, Any], setting: str) -> Any:
    """Return the value of a setting, or of an option of a group."""
    group, _, option = setting.partition(".")
    return settings[group].get(option) if option else settings[group]
