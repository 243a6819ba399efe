"""A policy as a table, for notebooks."""

from typing import TYPE_CHECKING

from torch import nn

from trainkit.core.stats import html_table

if TYPE_CHECKING:
    from trainkit.policy.base import Policy


def policy_table(policy: "Policy") -> str:
    """Tell a policy's spaces, size and age; asks nothing of the device."""
    parts = {name: f"{type(part).__name__}, {_size(part)}" for name, part in policy.named_children()}
    rows = {
        "observation_space": policy.observation_space,
        "action_space": policy.action_space,
        "horizon": policy.horizon,
        "device": policy.device,
        "n_updates": policy.n_updates,
        **parts,
    }
    return html_table(type(policy).__name__, rows.items())


def _size(module: nn.Module) -> str:
    return f"{sum(parameter.numel() for parameter in module.parameters()):,} parameters"
