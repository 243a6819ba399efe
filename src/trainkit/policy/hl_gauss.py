"""HL-Gauss: the expected return learned by classification, as the mean of a histogram."""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from trainkit.core.errors import Checks
from trainkit.core.signatures import checked
from trainkit.policy.values import SupportValue, td_target


@checked
class HLGaussValue(SupportValue):
    """Logits of a histogram over equal bins in [v_min, v_max], learned by cross-entropy (HL-Gauss).

    Imani and White (2018); Farebrother et al. (2024, "Stop regressing"), section 3.1. The expected return is the mean
    of the bins' centers. The TD target is one number per row, y = reward + discount * expected next return, clipped to
    [v_min, v_max]; the target histogram has in each bin the mass that a distribution around y has there, divided by
    the mass that it has in [v_min, v_max]:

    - "hl_gauss": the normal distribution N(y, (sigma * bin width)^2);
    - "two_hot": the uniform distribution of one bin width, so that the two nearest bins share the mass and its mean is
      y, as in MuZero (Schrittwieser et al., 2020). Beyond the outermost centers the outermost bin has all of it.

    The priority is |mean of the target histogram - expected return|, in units of return. Unlike those of
    `CategoricalValue`, these probabilities are not the distribution of returns: sigma determines their width.

    Args:
        bins: W.
        v_min, v_max: the outer edges of the first and the last bin. Targets within 3 sigma of them lose the mass beyond
            them, which shifts their mean inwards: choose both that much wider than returns reach.
        sigma: standard deviation of "hl_gauss" in bin widths; Farebrother et al. take 0.75. To keep the width in
            units of return, scale it with the number of bins. It has no effect with "two_hot".
        target: "hl_gauss" or "two_hot".
    """

    _edges: Tensor  # [W + 1], in bin widths from v_min

    def __init__(
        self,
        bins: int = 51,
        v_min: float = -10.0,
        v_max: float = 10.0,
        *,
        sigma: float = 0.75,
        target: Literal["hl_gauss", "two_hot"] = "hl_gauss",
    ) -> None:
        with Checks("HLGaussValue") as checks:
            checks.integer("bins", bins, low=2)
            if checks.number("v_min", v_min) and checks.number("v_max", v_max):
                checks.require(v_min < v_max, f" needs v_min < v_max, got {v_min} and {v_max}")
            checks.number("sigma", sigma, low=0, above_low=True)
            checks.one_of("target", target, ["hl_gauss", "two_hot"])
        bin_width = (v_max - v_min) / bins
        super().__init__(torch.linspace(v_min + bin_width / 2, v_max - bin_width / 2, bins, dtype=torch.float32))
        self.bins, self.v_min, self.v_max, self._bin_width = bins, float(v_min), float(v_max), bin_width
        self.sigma, self.kind = float(sigma), target
        self.register_buffer("_edges", torch.arange(bins + 1, dtype=torch.float32), persistent=False)

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        own = {name: getattr(self, name) for name in ("bins", "v_min", "v_max", "sigma")}
        return {**own, "target": self.kind}

    def target(self, after: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """Return the histogram of the TD target, [B, W]."""
        y = self._td_target(after, reward, discount).clamp(self.v_min, self.v_max)
        distance = self._edges - (y - self.v_min) / self._bin_width  # [B, W + 1]
        if self.kind == "two_hot":
            cumulative = distance.clamp(-0.5, 0.5)
        else:
            cumulative = torch.erf(distance / (math.sqrt(2.0) * self.sigma))
        return cumulative.diff(dim=1) / (cumulative[:, -1:] - cumulative[:, :1])

    def loss(self, chosen: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy to the target histogram [B] and the absolute TD error [B]."""
        return self.cross_entropy(chosen, target), self.td_error(chosen, target).detach().abs()

    def metrics(
        self, chosen: Tensor, target: Tensor, after: Tensor, reward: Tensor, discount: Tensor
    ) -> dict[str, Tensor]:
        """Return the TD error, the entropy and the share of TD targets outside the support."""
        y = self._td_target(after, reward, discount).squeeze(1)
        margin = 1e-3 * self._bin_width
        clipped = (y < self.v_min - margin) | (y > self.v_max + margin)
        return self.support_metrics(chosen, target, clipped.to(y.dtype))

    def _td_target(self, after: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """Return y, [B, 1], before it is clipped."""
        return td_target(self.mean(after).unsqueeze(1), reward, discount)
