"""A normal distribution squashed into [-1, 1] by tanh: actions that never leave their bounds."""

import math
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from trainkit.core.errors import Checks, SpaceMismatchError
from trainkit.core.signatures import checked
from trainkit.core.structured_actions import StructuredHybrid, flat_actions

Array = NDArray[np.float32]

HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)
_EDGE = 1e-6  # densities closer to a bound than this are those at this distance
LOG_STD_RANGE = -20.0, 2.0  # of deviations that a network tells (Haarnoja et al., 2018, as their code has it)
_N_NODES = 32  # of the quadrature


@checked
class SquashedGaussian(nn.Module):
    """A normal variable u in each of D dimensions, squashed into policy units: unit = tanh(u), in [-1, 1].

    Haarnoja et al. (2018), appendix C: log p(unit) = log normal(u) - sum log(1 - tanh(u)**2), where
    log(1 - tanh(u)**2) = 2 (log 2 - u - softplus(-2u)) loses no digits (TensorFlow Probability's form).

    `ActionScale` maps units to the bounds of the space. Densities and entropies are those of units, whatever the
    bounds; per unit of the space a log-density is smaller by the sum of log(half-width). The density of a unit is that
    of u = atanh(unit), at most 1e-6 from the bounds. `mode` is the unit at the normal's mean: the median, not the
    density's peak.

    Args:
        space: a Box of floats, bounded in every dimension.
        log_std: where the logarithms of the deviations start, as parameters of their own: the numbers are D means.
            None: the numbers are D means and D logarithms, kept within -20..2.
    """

    _nodes: Tensor  # [Q], where the quadrature looks, in deviations
    _shares: Tensor  # [Q], that add up to 1

    def __init__(self, space: Space[Any], *, log_std: float | None = 0.0) -> None:
        space = bounded_box("SquashedGaussian", space)
        if log_std is not None:
            checks = Checks("SquashedGaussian")
            checks.number("log_std", log_std)
            checks.done()
        super().__init__()
        self._shape = space.shape
        self.n_places = math.prod(space.shape)
        self.width = self.n_places if log_std is not None else 2 * self.n_places
        self.log_std = (
            None if log_std is None else nn.Parameter(torch.full((self.n_places,), float(log_std), dtype=torch.float32))
        )
        nodes, shares = np.polynomial.hermite_e.hermegauss(_N_NODES)
        for name, numbers in (("_nodes", nodes), ("_shares", shares / shares.sum())):
            self.register_buffer(name, torch.as_tensor(numbers, dtype=torch.float32), persistent=False)

    def draw(self, numbers: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return (tanh(u) [B, D], its log-density [B]) for standard normal noise [B, D]; both have gradients."""
        mean, log_std = self._normal(numbers)
        u = mean + log_std.exp() * noise
        return u.tanh(), (-0.5 * noise.square() - log_std - HALF_LOG_2_PI - _log_slope(u)).sum(dim=1)

    def middle(self, numbers: Tensor) -> Tensor:
        """Return tanh of the normal's mean, [B, D]."""
        return self._normal(numbers)[0].tanh()

    def draw_noise(self, n_rows: int, generator: torch.Generator) -> Tensor:
        return draw_normal(n_rows, self.n_places, generator)

    def sample(self, numbers: Tensor, legal: Tensor | None, noise: Tensor) -> Tensor:
        mean, log_std = self._normal(numbers)
        return (mean + log_std.exp() * noise).tanh().view(-1, *self._shape)

    def mode(self, numbers: Tensor, legal: Tensor | None) -> Tensor:
        return self.middle(numbers).view(-1, *self._shape)

    def log_prob(self, numbers: Tensor, action: Tensor, legal: Tensor | None) -> Tensor:
        mean, log_std = self._normal(numbers)
        u = action.reshape(len(action), -1).to(mean.dtype).clamp(_EDGE - 1.0, 1.0 - _EDGE).atanh()
        z = (u - mean) / log_std.exp()
        normal = -0.5 * z.square() - log_std - HALF_LOG_2_PI
        return (normal - _log_slope(u)).sum(dim=1)

    def entropy(self, numbers: Tensor, legal: Tensor | None) -> Tensor:
        """Return the entropy per row, [B], with gradients.

        It has no closed form: the normal's, plus the mean of log |d unit / d u| by Gauss-Hermite quadrature. Minus
        the log-probability of the action taken, which stable-baselines3 falls back on, has no gradient on average.
        """
        mean, log_std = self._normal(numbers)
        u = mean.unsqueeze(-1) + log_std.exp().unsqueeze(-1) * self._nodes  # [B, D, Q]
        of_normal = log_std + HALF_LOG_2_PI + 0.5
        return (of_normal + _log_slope(u) @ self._shares).sum(dim=1)

    def _normal(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and logarithms of deviations, [B, D] each, or [D] where they are parameters."""
        if self.log_std is not None:
            return numbers, self.log_std
        mean, log_std = numbers.chunk(2, dim=1)
        return mean, log_std.clamp(*LOG_STD_RANGE)


def bounded_box(subject: str, space: Space[Any]) -> spaces.Box:
    """Return a Box of floats with two finite bounds, apart from each other, in every place; refuse any other space."""
    space = flat_actions(space)
    if not isinstance(space, spaces.Box) or space.dtype not in (np.float32, np.float64):
        remedy = ": use PPOPolicy or A2CPolicy" if isinstance(space, StructuredHybrid) else ""
        raise SpaceMismatchError(f"{subject} needs actions in a Box of float32 or float64, got {space}{remedy}")
    if not space.is_bounded():
        raise SpaceMismatchError(
            f"{subject} squashes actions between bounds, and {space} has none in some place: give the environment "
            "finite ones (gymnasium.wrappers.RescaleAction, or a Box of its own)"
        )
    if not np.all(space.low < space.high):
        raise SpaceMismatchError(
            f"{subject} squashes actions between bounds, and those of {space} are equal in some place: leave that "
            "place out of the actions"
        )
    return space


def draw_normal(n_rows: int, width: int, generator: torch.Generator) -> Tensor:
    """Draw standard normal noise [B, N] on the generator's device."""
    return torch.randn(n_rows, width, generator=generator, device=generator.device, dtype=torch.float32)


def _log_slope(u: Tensor) -> Tensor:
    """Return log(1 - tanh(u)**2), place by place."""
    return 2.0 * (math.log(2.0) - u - functional.softplus(-2.0 * u))
