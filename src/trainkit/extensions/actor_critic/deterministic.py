"""Deterministic actors, as of DDPG and TD3: explored by additive noise, and smoothed in the critics' target."""

import math

import torch
from gymnasium import spaces
from torch import Tensor, nn

from trainkit.core.config import Part
from trainkit.core.errors import Checks
from trainkit.core.schedules import Linear, Schedule, Scheduled, as_schedule
from trainkit.core.signatures import checked
from trainkit.nets.distributions import draw_normal


@checked
class Deterministic(Part):
    """The action tanh(outputs) in policy units; exploring adds normal noise to it and clips it to [-1, 1].

    The critics' target is computed at tanh(outputs) + clip(noise), clipped to [-1, 1]: target policy smoothing
    (Fujimoto et al., 2018, TD3, equation 14). Standard deviations are in policy units, of which a space is 2 wide.

    Args:
        noise_std: standard deviation of exploration, a schedule of the environment step; `exploration=` of the policy
            correlates it in time.
        target_noise_std: of target policy smoothing; 0 is none, as in DDPG (Lillicrap et al., 2016).
        target_noise_clip: the largest size of that noise.
    """

    def __init__(
        self,
        noise_std: Scheduled | Linear = 0.1,
        *,
        target_noise_std: float = 0.2,
        target_noise_clip: float = 0.5,
    ) -> None:
        with Checks("Deterministic") as checks:
            checks.number("target_noise_std", target_noise_std, low=0)
            checks.number("target_noise_clip", target_noise_clip, low=0)
            if not isinstance(noise_std, Linear):
                with checks.gather():
                    as_schedule("Deterministic", "noise_std", noise_std, low=0)
        self.noise_std, self.target_noise_std, self.target_noise_clip = noise_std, target_noise_std, target_noise_clip

    def __call__(self, space: spaces.Box) -> "DeterministicActions":
        """Return the family for a space."""
        schedule = as_schedule("Deterministic", "noise_std", self.noise_std, low=0)
        return DeterministicActions(space, schedule, self.target_noise_std, self.target_noise_clip)


class DeterministicActions(nn.Module):
    """Actions tanh(outputs) of a Box, one for each row, without a density; see `Deterministic`.

    Args:
        space: a Box, bounded in every dimension.
        noise_std, target_noise_std, target_noise_clip: as in `Deterministic`.
    """

    has_density = False

    def __init__(
        self, space: spaces.Box, noise_std: Schedule | None, target_noise_std: float, target_noise_clip: float
    ) -> None:
        super().__init__()
        self._shape = space.shape
        self.width = self.n_dimensions = self.n_normal = math.prod(space.shape)
        self.noise_std = noise_std
        self.target_noise_std, self.target_noise_clip = target_noise_std, target_noise_clip

    def extra_repr(self) -> str:
        """Return the standard deviations, for `print(policy)`."""
        return f"noise_std={self.noise_std}, target_noise_std={self.target_noise_std}"

    def draw_noise(self, n_rows: int, generator: torch.Generator) -> Tensor:
        """Sample standard normal noise [B, D]."""
        return draw_normal(n_rows, self.n_dimensions, generator)

    def sample(self, outputs: Tensor, legal: Tensor | None, noise: Tensor) -> Tensor:
        """Return the actions [B, ...] that deviate by noise [B, D], in policy units."""
        return (outputs.tanh() + noise).clamp(-1.0, 1.0).view(-1, *self._shape)

    def mode(self, outputs: Tensor, legal: Tensor | None) -> Tensor:
        """Return the actions [B, ...]."""
        return outputs.tanh().view(-1, *self._shape)

    def draw(self, outputs: Tensor, noise: Tensor) -> tuple[Tensor, None]:
        """Return the actions [B, D], with gradients, whatever the noise."""
        return outputs.tanh(), None

    def draw_next(self, outputs: Tensor, noise: Tensor) -> tuple[Tensor, None]:
        """Return smoothed actions [B, D] for standard normal noise [B, D]."""
        if self.target_noise_std == 0:
            return outputs.tanh(), None
        limit = self.target_noise_clip
        return (outputs.tanh() + (self.target_noise_std * noise).clamp(-limit, limit)).clamp(-1.0, 1.0), None

    def log_prob(self, outputs: Tensor, action: Tensor, legal: Tensor | None) -> Tensor:
        """Raise a TypeError: there is no density."""
        raise TypeError("deterministic actions have no density")

    def entropy(self, outputs: Tensor, legal: Tensor | None) -> Tensor:
        """Raise a TypeError: there is no entropy."""
        raise TypeError("deterministic actions have no entropy")
