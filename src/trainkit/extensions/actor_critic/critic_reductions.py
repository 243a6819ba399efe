"""Reductions of several critics to one value: the first, the mean, the least of a subset, truncated quantiles."""

from typing import Any

import torch
from torch import Tensor, nn

from trainkit.core.errors import Checks, ConfigError
from trainkit.core.signatures import checked
from trainkit.nets.actor_critic_networks import CriticNetwork
from trainkit.policy.critics import CriticReduction, MinOfCritics, Network
from trainkit.policy.values import QuantileValue, Value


@checked
class FirstCritic(CriticReduction):
    """The outputs of the first critic, which TD3's actor ascends (Fujimoto et al., 2018, algorithm 1)."""

    def __call__(self, outputs: Tensor, value: Value, drawn: Tensor | None = None) -> Tensor:
        """Return outputs [B, W]."""
        return outputs[:, 0]

    def read(self, critics: Network, features: Any, action: Tensor) -> Tensor:
        """Call the first critic of a `CriticNetwork` alone; of other classes all, as they may not compute it alone."""
        first = {"n_first": 1} if type(critics) is CriticNetwork else {}
        return critics(features, action, **first)


@checked
class MeanOfCritics(CriticReduction):
    """The mean of the critics: of their values, of each quantile, or of their probabilities of each return.

    REDQ (Chen et al., 2021) and TQC (Kuznetsov et al., 2020) let the actor ascend it.
    """

    def __call__(self, outputs: Tensor, value: Value, drawn: Tensor | None = None) -> Tensor:
        """Return outputs [B, W]."""
        return value.average(outputs)


@checked
class MinOfSubset(CriticReduction):
    """The least of `size` critics that are drawn for each update, the same for all rows (Chen et al., 2021, REDQ).

    Where nothing is drawn, it is the least of all critics.

    Args:
        size: M; the paper's 2.
    """

    def __init__(self, size: int = 2) -> None:
        with Checks("MinOfSubset") as checks:
            checks.integer("size", size, low=1)
        self.size = size

    def draw(self, critics: nn.Module, generator: torch.Generator) -> Tensor:
        """Sample the indices [M] of different critics."""
        n_critics = getattr(critics, "n_critics", None)
        if not isinstance(n_critics, int) or n_critics < self.size:
            raise ConfigError(
                f"MinOfSubset({self.size}) needs critics with n_critics of at least {self.size}, got "
                f"{type(critics).__name__} with {n_critics}: give n_critics=, or a smaller size"
            )
        order = torch.rand(n_critics, generator=generator, device=generator.device)
        return order.topk(self.size).indices

    def __call__(self, outputs: Tensor, value: Value, drawn: Tensor | None = None) -> Tensor:
        """Return outputs [B, W]."""
        chosen = outputs if drawn is None else outputs.index_select(1, drawn)
        return MinOfCritics()(chosen, value)


@checked
class TruncatedQuantiles(CriticReduction):
    """The smallest of the quantiles of all critics, pooled: the largest `drop_per_critic` times C are dropped (TQC).

    Kuznetsov et al. (2020), "Controlling overestimation bias with truncated mixture of continuous distributional
    quantile critics", equation 10. `value` is a `QuantileValue`.

    Args:
        drop_per_critic: d; the paper's 2 of 25, of 5 critics. With 0 nothing is dropped.
    """

    def __init__(self, drop_per_critic: int = 2) -> None:
        with Checks("TruncatedQuantiles") as checks:
            checks.integer("drop_per_critic", drop_per_critic, low=0)
        self.drop_per_critic = drop_per_critic

    def __call__(self, outputs: Tensor, value: Value, drawn: Tensor | None = None) -> Tensor:
        """Return quantiles [B, C * (W - d)], ascending."""
        if not isinstance(value, QuantileValue):
            raise ConfigError(
                f"TruncatedQuantiles needs quantiles, got outputs of {type(value).__name__}: give value=QuantileValue()"
            )
        _, n_critics, width = outputs.shape
        if width <= self.drop_per_critic:
            raise ConfigError(
                f"TruncatedQuantiles drops {self.drop_per_critic} quantiles of each critic, which has {width}: give "
                "value=QuantileValue(quantiles) with more, or a smaller drop_per_critic"
            )
        return outputs.flatten(1).sort(dim=1).values[:, : n_critics * (width - self.drop_per_critic)]
