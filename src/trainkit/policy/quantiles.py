"""Value parts whose outputs are quantiles of the return, at fixed or at sampled fractions."""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional

from trainkit.core.errors import Checks
from trainkit.core.signatures import checked
from trainkit.policy.values import ReturnValue


@checked
class QuantileValue(ReturnValue):
    """The quantiles of the return at the midpoints (2 i + 1) / 2 N of N equal parts (QR-DQN).

    Dabney et al. (2018, QR-DQN), algorithm 1, with the loss and priority of `quantile_huber`; the defaults are
    theirs.

    Args:
        quantiles: N.
        kappa: where the Huber loss becomes linear; 0 is quantile regression.
        rescale: see `ReturnValue`.
    """

    fractions: Tensor  # [1, N]

    def __init__(self, quantiles: int = 200, *, kappa: float = 1.0, rescale: float | None = None) -> None:
        with Checks("QuantileValue") as checks:
            checks.integer("quantiles", quantiles, low=1)
            checks.number("kappa", kappa, low=0)
        super().__init__(rescale)
        self.quantiles, self.kappa = quantiles, float(kappa)
        self.register_buffer("fractions", midpoints(quantiles), persistent=False)

    @property
    def width(self) -> int:
        """One output per quantile."""
        return self.quantiles

    def loss(self, chosen: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the quantile Huber loss [B] and the mean absolute TD error [B] over all pairs of quantiles."""
        return quantile_huber(chosen, target, self.fractions, self.kappa)


@runtime_checkable
class DrawnFractions(Protocol):
    """A value part that samples the fractions at which its network computes quantiles."""

    @property
    def acting_fractions(self) -> Tensor:
        """Fractions [1, K] to act at, not random."""
        ...

    def draw(self, rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Sample the fractions of one update, [B, W] for the online network and [B, W'] for the target."""
        ...

    def loss(self, chosen: Tensor, target: Tensor, fractions: Tensor) -> tuple[Tensor, Tensor]:
        """Return (loss [B], priority [B]) of outputs [B, W] at fractions [B, W], towards a target [B, W']."""
        ...


@checked
class ImplicitQuantileValue(ReturnValue):
    """The quantiles of the return at fractions sampled for every row (IQN), of an `ImplicitQNetwork`.

    Dabney et al. (2018, IQN), equation 3, with the loss and priority of `quantile_huber`; the defaults are theirs.
    They sample the fractions for acting too; here they are the midpoints, so that acting is a function of the
    observation. The best next action is chosen by the target's fractions, not by additional ones.

    Args:
        quantiles: fractions per row of the online network, N.
        target_quantiles: of the target network, N'.
        acting_quantiles: of every observation acted on, K.
        kappa: where the Huber loss becomes linear; 0 is quantile regression.
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
        with Checks("ImplicitQuantileValue") as checks:
            checks.integer("quantiles", quantiles, low=1)
            checks.integer("target_quantiles", target_quantiles, low=1)
            checks.integer("acting_quantiles", acting_quantiles, low=1)
            checks.number("kappa", kappa, low=0)
        super().__init__(rescale)
        self.quantiles, self.target_quantiles, self.acting_quantiles = quantiles, target_quantiles, acting_quantiles
        self.kappa = float(kappa)
        self.register_buffer("_midpoints", midpoints(acting_quantiles), persistent=False)

    @property
    def width(self) -> int:
        """One output per fraction of the online network."""
        return self.quantiles

    @property
    def acting_fractions(self) -> Tensor:
        """Fractions [1, K] to act at, the midpoints."""
        return self._midpoints

    def draw(self, rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Sample fractions uniformly, [B, N] for the online network and [B, N'] for the target."""
        shape, device = (rows, self.quantiles + self.target_quantiles), generator.device
        fractions = torch.rand(shape, generator=generator, device=device, dtype=torch.float32)
        return fractions[:, : self.quantiles], fractions[:, self.quantiles :]

    def loss(self, chosen: Tensor, target: Tensor, fractions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return (loss [B], priority [B]) of quantiles at `fractions` [B, W], the midpoints by default."""
        at = midpoints(chosen.shape[1]).to(chosen) if fractions is None else fractions
        return quantile_huber(chosen, target, at, self.kappa)


def midpoints(n: int) -> Tensor:
    """Return the middle fraction of each of n equal parts, [1, n]."""
    return ((2 * torch.arange(n, dtype=torch.float32) + 1) / (2 * n)).unsqueeze(0)


def quantile_huber(chosen: Tensor, target: Tensor, fractions: Tensor, kappa: float) -> tuple[Tensor, Tensor]:
    """Return the quantile Huber loss [B] and the mean absolute TD error [B], the priority.

    With td_ij = target_j - chosen_i, the loss is the sum over i of the mean over j of

        |fraction_i - 1(td_ij < 0)| * huber(td_ij) / kappa

    (Dabney et al., 2018, QR-DQN, equations 9 and 10; over kappa as in IQN's equation 3). The table [B, W, W'] of all
    td_ij is not built. For a quantile x at fraction f, a target y contributes

        (1 - f) * (x - y - kappa / 2)      y < x - kappa
        (1 - f) * (x - y)^2 / (2 kappa)    x - kappa <= y < x
        f * (x - y)^2 / (2 kappa)          x <= y <= x + kappa
        f * (y - x - kappa / 2)            x + kappa < y

    With the targets of a row sorted, the sums of 1, x - y and (x - y)^2 over all y below each of the three bounds
    follow from the prefix sums of y and y^2, and the sums of a piece are their differences. With kappa = 0 the two
    pieces in the middle are empty: a target equal to x contributes neither loss nor gradient.

    Args:
        chosen: [B, W], at `fractions` [B, W] or [1, W].
        target: [B, W'], without gradient.
        fractions: in [0, 1].
        kappa: where the Huber loss becomes linear; at 0 it is the absolute value.
    """
    width, curvature = target.shape[1], 1.0 / kappa if kappa else 0.0
    with torch.no_grad():
        wide = target.double()  # as differences of prefix sums cancel
        center = wide.mean(dim=1, keepdim=True)
        x = (chosen.double() - center).contiguous()
        y = (wide - center).contiguous().sort(dim=1).values
        sums, squares = (functional.pad(column.cumsum(dim=1), (1, 0)) for column in (y, y * y))

        def below(bound: Tensor, *, included: bool) -> tuple[Tensor, Tensor, Tensor]:
            """Return the sums [B, W] of 1, x - y and (x - y)^2 over the targets y below a bound [B, W]."""
            n = torch.searchsorted(y, bound, right=included)
            total = sums.gather(1, n)
            distance = x * n - total
            return n, distance, squares.gather(1, n) + x * (distance - total)

        n_low, low, low_square = below(x - kappa, included=False)
        _, middle, middle_square = below(x, included=False)
        n_high, high, high_square = below(x + kappa, included=True)
        every = width * x - sums[:, -1:]  # the sum of x - y over all targets
        loss_below = low - 0.5 * kappa * n_low + 0.5 * curvature * (middle_square - low_square)
        loss_above = high - every + 0.5 * kappa * (n_high - width) + 0.5 * curvature * (high_square - middle_square)
        grad_below = n_low + curvature * (middle - low)
        grad_above = n_high - width + curvature * (high - middle)
        loss = (loss_below + fractions * (loss_above - loss_below)).sum(dim=1) / width
        grad = (grad_below + fractions * (grad_above - grad_below)) / width
        priority = (2.0 * middle - every).mean(dim=1) / width
        loss, grad, priority = (column.to(chosen.dtype) for column in (loss, grad, priority))
    return loss + (grad * (chosen - chosen.detach())).sum(dim=1), priority
