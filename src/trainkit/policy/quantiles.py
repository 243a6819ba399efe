"""Values whose numbers are quantiles of the return, at fixed fractions or at drawn ones."""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional

from trainkit.errors import Checks
from trainkit.policy.values import ReturnValue


class QuantileValue(ReturnValue):
    """The quantiles of the return at the midpoints (2 i + 1) / 2 N of N equal parts (QR-DQN).

    Dabney et al. (2018, QR-DQN), algorithm 1, with the loss and priority of `quantile_huber`; the defaults are
    theirs.

    Args:
        quantiles: N.
        kappa: where the Huber loss turns straight; 0 is plain quantile regression.
        rescale: see `ReturnValue`.
    """

    fractions: Tensor  # [1, N]

    def __init__(self, quantiles: int = 200, *, kappa: float = 1.0, rescale: float | None = None) -> None:
        checks = Checks("QuantileValue")
        checks.integer("quantiles", quantiles, low=1)
        checks.number("kappa", kappa, low=0)
        checks.done()
        super().__init__(rescale)
        self.width, self.kappa = quantiles, float(kappa)
        self.register_buffer("fractions", midpoints(quantiles), persistent=False)

    def loss(self, chosen: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
        return quantile_huber(chosen, goal, self.fractions, self.kappa)


@runtime_checkable
class DrawnFractions(Protocol):
    """A value that says at which fractions its network is asked, and is told them again with the answer."""

    @property
    def acting_fractions(self) -> Tensor:
        """Fractions [1, K] to act at: nothing is drawn."""
        ...

    def draw(self, rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw the fractions of one update, [B, W] for the online network and [B, W'] for the target."""
        ...

    def loss(self, chosen: Tensor, goal: Tensor, fractions: Tensor) -> tuple[Tensor, Tensor]:
        """Return (loss [B], priority [B]) of numbers [B, W] at fractions [B, W], towards a goal [B, W']."""
        ...


class ImplicitQuantileValue(ReturnValue):
    """The quantiles of the return at fractions drawn anew for every row (IQN), of an `ImplicitQNetwork`.

    Dabney et al. (2018, IQN), equation 3, with the loss and priority of `quantile_huber`; the defaults are theirs.
    They draw the fractions for acting too; here they are the midpoints, so that acting is a function of the
    observation. And the target's own fractions, not some more, tell which next action is best.

    Args:
        quantiles: fractions per row of the online network, N.
        target_quantiles: of the target network, N'.
        acting_quantiles: of every observation acted on, K.
        kappa: where the Huber loss turns straight; 0 is plain quantile regression.
        rescale: see `ReturnValue`.
    """

    _midpoints: Tensor  # [1, K]

    def __init__(
        self,
        quantiles: int = 64,
        *,
        target_quantiles: int = 64,
        acting_quantiles: int = 32,
        kappa: float = 1.0,
        rescale: float | None = None,
    ) -> None:
        checks = Checks("ImplicitQuantileValue")
        checks.integer("quantiles", quantiles, low=1)
        checks.integer("target_quantiles", target_quantiles, low=1)
        checks.integer("acting_quantiles", acting_quantiles, low=1)
        checks.number("kappa", kappa, low=0)
        checks.done()
        super().__init__(rescale)
        self.width, self.target_width, self.kappa = quantiles, target_quantiles, float(kappa)
        self.acting_width = acting_quantiles
        self.register_buffer("_midpoints", midpoints(acting_quantiles), persistent=False)

    @property
    def acting_fractions(self) -> Tensor:
        """Fractions [1, K] to act at, the midpoints."""
        return self._midpoints

    def draw(self, rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw fractions uniformly, [B, N] for the online network and [B, N'] for the target."""
        shape, device = (rows, self.width + self.target_width), generator.device
        drawn = torch.rand(shape, generator=generator, device=device, dtype=torch.float32)
        return drawn[:, : self.width], drawn[:, self.width :]

    def loss(self, chosen: Tensor, goal: Tensor, fractions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return (loss [B], priority [B]) of quantiles at `fractions` [B, W], the midpoints where none are given."""
        at = midpoints(chosen.shape[1]).to(chosen) if fractions is None else fractions
        return quantile_huber(chosen, goal, at, self.kappa)


def midpoints(n: int) -> Tensor:
    """Return the middle fraction of each of n equal parts, [1, n]."""
    return ((2 * torch.arange(n, dtype=torch.float32) + 1) / (2 * n)).unsqueeze(0)


def quantile_huber(chosen: Tensor, goal: Tensor, fractions: Tensor, kappa: float) -> tuple[Tensor, Tensor]:
    """Return the quantile Huber loss [B] and the mean absolute difference [B], the priority.

    The sum over own quantiles i of the mean over goals j of |fraction_i - 1(td_ij < 0)| * huber(td_ij) / kappa, with
    td_ij = goal_j - chosen_i: Dabney et al. (2018, QR-DQN), equations 9 and 10, over kappa as in IQN's equation 3.

    Args:
        chosen: [B, W], at `fractions` [B, W] or [1, W].
        goal: [B, W'], without gradient.
        fractions: where `chosen` are quantiles.
        kappa: where the Huber loss turns straight; at 0 it is the absolute value.
    """
    width, goal_width = chosen.shape[1], goal.shape[1]
    own = chosen.unsqueeze(2).expand(-1, width, goal_width)  # [B, W, W']
    theirs = goal.unsqueeze(1).expand(-1, width, goal_width)
    td = theirs - own
    size = functional.huber_loss(own, theirs, reduction="none", delta=kappa) / kappa if kappa else td.abs()
    share = (fractions.unsqueeze(2) - (td.detach() < 0).to(td.dtype)).abs()
    return (share * size).mean(dim=2).sum(dim=1), td.detach().abs().mean(dim=(1, 2))
