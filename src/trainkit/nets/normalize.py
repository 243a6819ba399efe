"""Running normalisation of observations: mean and deviation of all that was seen, frozen until they are told to move.

What is observed is noted apart from what is in use, and folded in when the policy says so: an off-policy learner at
once, an on-policy one when it has learnt from its rollout, so that it learns with the features it acted on.
"""

import torch
from torch import Tensor, nn

from trainkit.core.errors import Checks, ConfigError


class Moments(nn.Module):
    """Count, mean and summed squared deviation of rows [K, F], in float64, merged exactly (Chan et al., 1979)."""

    count: Tensor  # [], rows
    mean: Tensor  # [F]
    square: Tensor  # [F], the sum of squared deviations from the mean

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(n_features, dtype=torch.float64))
        self.register_buffer("square", torch.zeros(n_features, dtype=torch.float64))

    def add(self, count: Tensor, mean: Tensor, square: Tensor) -> None:
        """Merge the moments of other rows, of none too."""
        total = self.count + count
        share = count / total.clamp(min=1.0)
        apart = mean - self.mean
        self.mean.add_(apart * share)
        self.square.add_(square + apart.square() * (self.count * share))
        self.count.copy_(total)

    def clear(self) -> None:
        """Forget every row."""
        for own in (self.count, self.mean, self.square):
            own.zero_()


class Normalizer(nn.Module):
    """Turn features [B, F] into (x - mean) / deviation, at most `clip` from 0; as they are before any were seen.

    The variance is the population's, plus 1e-8. Statistics move in `fold` alone and are saved with the weights.
    """

    shift: Tensor  # [F], the mean in use
    scale: Tensor  # [F], one over the deviation in use

    def __init__(self, n_features: int, *, clip: float = 10.0) -> None:
        checks = Checks("Normalizer")
        checks.integer("n_features", n_features, low=1)
        checks.number("clip", clip, low=0, above_low=True)
        checks.done()
        super().__init__()
        self.clip = clip
        self.known = Moments(n_features)
        self.fresh = Moments(n_features)  # observed since the last fold
        self.register_buffer("shift", torch.zeros(n_features, dtype=torch.float32))
        self.register_buffer("scale", torch.ones(n_features, dtype=torch.float32))

    def forward(self, features: Tensor) -> Tensor:
        return ((features - self.shift) * self.scale).clamp_(-self.clip, self.clip)

    @torch.no_grad()
    def observe(self, features: Tensor) -> None:
        """Note rows [K, F]; what is in use stays as it is."""
        rows = features.double()
        mean = rows.mean(dim=0)
        self.fresh.add(torch.full_like(self.fresh.count, len(rows)), mean, (rows - mean).square().sum(dim=0))

    @torch.no_grad()
    def merge(self, other: "Normalizer") -> None:
        """Take in all rows that another normalizer has observed, and use the statistics of both from now on.

        Exact: count, mean and deviation are those of the rows of both together, by the parallel formula of Chan et al.
        (1979). `other` stays as it is; merge it once only, as its rows are counted each time.
        """
        if other is self or other.known.mean.shape != self.known.mean.shape:
            raise ConfigError(
                f"Normalizer.merge needs another normalizer of {len(self.known.mean)} features, got "
                f"{'itself' if other is self else len(other.known.mean)}"
            )
        for theirs in (other.known, other.fresh):
            own = (part.to(self.fresh.mean.device) for part in (theirs.count, theirs.mean, theirs.square))
            self.fresh.add(*own)
        self.fold()

    @torch.no_grad()
    def fold(self) -> None:
        """Use what was noted from now on."""
        known, fresh = self.known, self.fresh
        known.add(fresh.count, fresh.mean, fresh.square)
        fresh.clear()
        variance = torch.where(known.count > 0, known.square / known.count.clamp(min=1.0), 1.0)
        self.shift.copy_(known.mean)
        self.scale.copy_((variance + 1e-8).rsqrt())
