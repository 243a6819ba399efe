"""Value parts: how a network's outputs represent a return, their TD target and their loss.

In this order: the expected return, distributions over fixed returns, quantiles of the return.
"""

import copy
import math
from collections.abc import Mapping
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainkit.core.config import Part
from trainkit.core.errors import Checks
from trainkit.core.signatures import checked, read_only
from trainkit.engine.loss import Max, Metric


class Value(Protocol):
    """The meaning of the last axis of a network's outputs."""

    @property
    def width(self) -> int:
        """W, the number of outputs that represent one return."""
        ...

    def mean(self, outputs: Tensor) -> Tensor:
        """Return the expected return, [...], of outputs [..., W]."""
        ...

    def average(self, outputs: Tensor) -> Tensor:
        """Return the outputs [B, W] of the average of C values, for outputs [B, C, W]."""
        ...

    def target(self, after: Tensor, reward: Tensor, discount: Tensor, cost: Tensor | None = None) -> Tensor:
        """Return the TD target of the chosen actions' outputs, [B, W].

        `after` [B, W] are the outputs of the next value, `reward` and `discount` [B] the n-step ones; where the
        discount is 0 the target does not depend on the next value. `cost` [B], if there is one, is subtracted from the
        next return before it is discounted: temperature * log pi of an actor-critic. Q-learners give none.
        """
        ...

    def loss(self, chosen: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return (loss [...], priority [...]) of the chosen actions' outputs [..., W]; the engine weights them.

        Q-learners give outputs and targets [B, W], actor-critics with C critics outputs [B, C, W] and targets
        [B, 1, W].
        """
        ...

    def metrics(
        self, chosen: Tensor, target: Tensor, after: Tensor, reward: Tensor, discount: Tensor
    ) -> Mapping[str, Metric]:
        """Return numbers of rows by name, as `Loss.metrics`, of outputs [..., W] as in `loss`."""
        ...


@runtime_checkable
class Distributional(Protocol):
    """A value part that represents the distribution of the return."""

    def distribution(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return ascending returns and their probabilities, [..., W] each, of outputs [..., W]."""
        ...


def td_target(returns: Tensor, reward: Tensor, discount: Tensor, cost: Tensor | None = None) -> Tensor:
    """Return reward + discount * (returns - cost), [B, W], of the next state's returns [B, W], and of numbers [B].

    Where the discount is 0 it is the reward, even if the return is not finite.
    """
    reward, discount = reward.unsqueeze(1), discount.unsqueeze(1)
    after = returns if cost is None else returns - cost.unsqueeze(1)
    after = after.masked_fill(discount == 0, 0.0)  # not 0 * infinity
    if cost is None:
        return torch.addcmul(reward, discount, after)
    return reward + discount * after  # rounded twice, so that SAC keeps its bits


class ReturnValue(Part, nn.Module):
    """Base of the value parts whose outputs are returns: the expected one, or W quantiles.

    With `rescale` they are h(return), so that returns of any size can be learned without clipping (Pohlen et al.,
    2018): h(x) = sign(x) (sqrt(|x| + 1) - 1) + rescale * x, and the target is h(reward + discount * h^-1(after)).
    """

    def __init__(self, rescale: float | None = None) -> None:
        if rescale is not None:
            with Checks(type(self).__name__) as checks:
                checks.number("rescale", rescale, low=0, above_low=True)
        super().__init__()
        self.rescale = rescale

    def returns(self, outputs: Tensor) -> Tensor:
        """Return the returns that outputs [...] represent."""
        return outputs if self.rescale is None else unsquash(outputs, self.rescale)

    def outputs(self, returns: Tensor) -> Tensor:
        """Return the outputs that represent returns [...]."""
        return returns if self.rescale is None else squash(returns, self.rescale)

    def mean(self, outputs: Tensor) -> Tensor:
        return self.returns(outputs).mean(dim=-1)

    def average(self, outputs: Tensor) -> Tensor:
        """Return the outputs [B, W] of the mean of C critics' returns, of each quantile, for outputs [B, C, W]."""
        return self.outputs(self.returns(outputs).mean(dim=1))

    def target(self, after: Tensor, reward: Tensor, discount: Tensor, cost: Tensor | None = None) -> Tensor:
        return self.outputs(td_target(self.returns(after), reward, discount, cost))

    def distribution(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return sorted returns and their equal probabilities, [..., W] each, of outputs [..., W]."""
        returns = self.returns(outputs).sort(dim=-1).values
        return returns, torch.full_like(returns, 1 / returns.shape[-1])

    def metrics(
        self, chosen: Tensor, target: Tensor, after: Tensor, reward: Tensor, discount: Tensor
    ) -> Mapping[str, Metric]:
        return td_metrics(self.mean(target) - self.mean(chosen))


def own_tensors(value: Value) -> Value:
    """Return a value part for one policy: a copy if it has tensors, which move to the policy's device and change."""
    has_tensors = isinstance(value, nn.Module) and len(value.state_dict(keep_vars=True)) + len([*value.buffers()]) > 0
    return copy.deepcopy(value) if has_tensors else value


@checked
class ExpectedValue(ReturnValue):
    """The expected return (Mnih et al., 2015).

    The loss is huber, td**2 / 2 up to |td| = delta and delta * (|td| - delta / 2) beyond, mse, td**2, or half_mse,
    td**2 / 2; the priority is |td|.

    Args:
        loss: "huber", "mse" or "half_mse".
        delta: where huber becomes linear.
        rescale: see `ReturnValue`; Pohlen et al. take 1e-2, R2D2 (Kapturowski et al., 2019) 1e-3.
    """

    def __init__(
        self, loss: Literal["huber", "mse", "half_mse"] = "huber", *, delta: float = 1.0, rescale: float | None = None
    ) -> None:
        with Checks("ExpectedValue") as checks:
            checks.one_of("loss", loss, ["huber", "mse", "half_mse"])
            checks.number("delta", delta, low=0, above_low=True)
        super().__init__(rescale)
        self.kind, self.delta = loss, delta

    @property
    def width(self) -> int:
        """One output."""
        return 1

    def arguments(self) -> dict[str, Any]:
        return {"loss": self.kind, "delta": self.delta, "rescale": self.rescale}

    def mean(self, outputs: Tensor) -> Tensor:
        """Return the single output as a return, [...]."""
        return self.returns(outputs).squeeze(-1)

    def metrics(
        self, chosen: Tensor, target: Tensor, after: Tensor, reward: Tensor, discount: Tensor
    ) -> Mapping[str, Metric]:
        """Return the mean and maximum of the absolute TD error."""
        chosen, target = chosen.squeeze(-1), target.squeeze(-1).expand(chosen.shape[:-1])  # as in the loss
        return td_metrics(self.returns(target) - self.returns(chosen))

    def loss(self, chosen: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the Huber or squared loss [...] and the absolute TD error [...]."""
        chosen, target = chosen.squeeze(-1), target.squeeze(-1).expand(chosen.shape[:-1])
        if self.kind == "half_mse":
            td = target - chosen
            return 0.5 * td * td, td.detach().abs()
        priority = (target - chosen).detach().abs()
        if self.kind == "mse":
            return functional.mse_loss(chosen, target, reduction="none"), priority
        return functional.huber_loss(chosen, target, reduction="none", delta=self.delta), priority


_SMALLER_RETURNS = "let reward= of the horizon scale or clip rewards, or give v_min and v_max"
SLACK = 0.1  # room beyond the returns that bounds are fitted to; and beyond them before they are moved


@read_only
class SupportValue(Part, nn.Module):
    """Base of the value parts whose outputs are logits over W evenly spaced returns, the support.

    A bound that is given never changes. One that is None is automatic: the policy sets it before its first update and
    widens it when too many targets lie beyond (`AutomaticSupport`). An automatic support is saved with the weights.

    Args:
        width: W.
        n_gaps: number of gaps between neighboring returns from one bound to the other.
        v_min, v_max: the bounds; None is automatic.
        margin: gaps between the returns that must be represented and automatic bounds.

    Attributes:
        support: the returns.
        low, high: the bounds, as losses read them.
        gap: between neighboring returns.
        is_fitted: whether automatic bounds were set.
    """

    support: Tensor  # [W]
    low: Tensor  # []
    high: Tensor  # []
    gap: Tensor  # []
    is_fitted: Tensor  # []

    def __init__(
        self, width: int, n_gaps: int, v_min: float | None, v_max: float | None, *, margin: float = 0.0
    ) -> None:
        super().__init__()
        self._given = tuple(None if bound is None else float(bound) for bound in (v_min, v_max))
        self._n_gaps, self._margin = n_gaps, min(margin, n_gaps / 4)
        self._is_automatic = None in self._given
        for name, shape in {"support": (width,), "low": (), "high": (), "gap": ()}.items():
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float32), persistent=self.is_automatic)
        is_fitted = torch.tensor(not self.is_automatic)
        self.register_buffer("is_fitted", is_fitted, persistent=self.is_automatic)
        self.set_bounds(*self._with_given(-1.0, 1.0))

    @property
    def is_automatic(self) -> bool:
        """Whether a bound is automatic; `v_min=` and `v_max=` of the constructor give both."""
        return self._is_automatic

    @property
    def given_bounds(self) -> dict[str, float | None]:
        """The bounds as they were given."""
        return dict(zip(("v_min", "v_max"), self._given, strict=True))

    @property
    def v_min(self) -> float:
        """The lower bound; where it is automatic, reading it waits for the device."""
        return float(self.low) if self._given[0] is None else self._given[0]

    @property
    def v_max(self) -> float:
        """The upper bound; where it is automatic, reading it waits for the device."""
        return float(self.high) if self._given[1] is None else self._given[1]

    @torch.no_grad()
    def set_bounds(self, low: float, high: float) -> None:
        """Spread the returns evenly between other bounds.

        Raises:
            ConfigError: float32 cannot represent their distance.
        """
        with Checks("CategoricalValue") as checks:
            rule = f" cannot spread returns between {low:g} and {high:g}, which are too large for float32"
            checks.require(high - low < torch.finfo(torch.float32).max, f"{rule}: {_SMALLER_RETURNS}")
        gap = (high - low) / self._n_gaps
        rest = gap * (self._n_gaps - self.width + 1) / 2  # between a bound and the return next to it
        self.support.copy_(torch.linspace(low + rest, high - rest, self.width, dtype=torch.float32))
        for buffer, number in ((self.low, low), (self.high, high), (self.gap, gap)):
            buffer.fill_(number)

    def fit(self, low: float, high: float) -> None:
        """Set automatic bounds around 0 and returns in low..high, a tenth farther from 0; -1 and 1 if all are 0.

        Returns of episodes that were cut, and of a policy that has not learned yet, may fall short of those to learn.
        """
        low, high = (1.0 + SLACK) * min(low, 0.0), (1.0 + SLACK) * max(high, 0.0)
        if high - low < torch.finfo(torch.float32).tiny * self._n_gaps:
            low, high = -1.0, 1.0
        margin = self._margin * (high - low) / (self._n_gaps - 2 * self._margin)
        self.set_bounds(*self._with_given(low - margin, high + margin))
        self.is_fitted.fill_(True)

    def widened(self, *, below: bool, above: bool) -> tuple[float, float]:
        """Return the bounds, each that is automatic and named moved outwards by their distance."""
        low, high = self.v_min, self.v_max
        span = high - low
        return self._with_given(low - span * below, high + span * above)

    def _with_given(self, low: float, high: float) -> tuple[float, float]:
        """Return bounds, those that were given in their place; an automatic one gives way to a given one."""
        v_min, v_max = self._given
        low, high = low if v_min is None else v_min, high if v_max is None else v_max
        if low < high:
            return low, high
        return (low, low + 1.0) if v_max is None else (high - 1.0, high)

    @property
    def width(self) -> int:
        """One logit per return."""
        return len(self.support)

    def mean(self, outputs: Tensor) -> Tensor:
        return functional.softmax(outputs, dim=-1) @ self.support

    def average(self, outputs: Tensor) -> Tensor:
        """Return logits [B, W] of the mean of C critics' probabilities, for logits [B, C, W]."""
        return functional.log_softmax(outputs, dim=2).logsumexp(dim=1)

    def cross_entropy(self, chosen: Tensor, target: Tensor) -> Tensor:
        """Return the cross-entropy [...] of logits [..., W] to target probabilities [..., W]."""
        return -(target * functional.log_softmax(chosen, dim=-1)).sum(dim=-1)

    def td_error(self, chosen: Tensor, target: Tensor) -> Tensor:
        """Return the difference [...] of the means of target probabilities [..., W] and of logits [..., W]."""
        return target @ self.support - self.mean(chosen)

    def support_metrics(
        self, chosen: Tensor, target: Tensor, returns: Tensor, mass: Tensor, discount: Tensor
    ) -> Mapping[str, Metric]:
        """Return the numbers of `metrics`.

        Args:
            chosen: logits [..., W].
            target: probabilities [..., W].
            returns: of which the target was made before they were moved inside the bounds, [B, K].
            mass: their probabilities [B, K].
            discount: of the rows [B].
        """
        tolerance = 1e-3 * self.gap  # of rounding
        if self.is_automatic:  # a return that moves beyond a bound by x in every step ends up x / (1 - discount) beyond
            tolerance = tolerance + SLACK * (self.high - self.low) * (1.0 - discount).unsqueeze(1)
        is_below, is_above = returns < self.low - tolerance, returns > self.high + tolerance
        log_probability = functional.log_softmax(chosen, dim=-1)
        metrics: dict[str, Metric] = {
            **td_metrics(self.td_error(chosen, target)),
            "clipped_share": (mass * (is_below | is_above)).sum(dim=1),
            "value_entropy": -(log_probability.exp() * log_probability).sum(dim=-1),
        }
        if self.is_automatic:
            metrics["clipped_below"] = (mass * is_below).sum(dim=1)
            metrics |= {"v_min": self.low.clone(), "v_max": self.high.clone()}
        return metrics


def check_bounds(checks: Checks, v_min: float | None, v_max: float | None) -> None:
    """Check the bounds of a support."""
    are_numbers = [checks.number(name, bound, optional=True) for name, bound in (("v_min", v_min), ("v_max", v_max))]
    if all(are_numbers) and v_min is not None and v_max is not None:
        checks.require(v_min < v_max, f" needs v_min < v_max, got {v_min} and {v_max}: give both")


@checked
class CategoricalValue(SupportValue):
    """Logits of a distribution over `atoms` returns z_i, evenly spaced in [v_min, v_max] (C51).

    Bellemare et al. (2017): the target is the distribution of R + discount * z, each atom's mass shared between its two
    neighbors in the support (algorithm 1), the loss the cross-entropy to it. The priority is the divergence
    KL(target || chosen), which vanishes at the optimum (Hessel et al., 2018), or the cross-entropy.

    Args:
        atoms: W; the paper's 51.
        v_min, v_max: the first and the last return, in the paper -10 and 10. None, the default, is automatic: see
            `SupportValue`.
        priority: "kl" or "ce".
    """

    def __init__(
        self,
        atoms: int = 51,
        v_min: float | None = None,
        v_max: float | None = None,
        *,
        priority: Literal["kl", "ce"] = "kl",
    ) -> None:
        with Checks("CategoricalValue") as checks:
            checks.integer("atoms", atoms, low=2)
            check_bounds(checks, v_min, v_max)
            checks.one_of("priority", priority, ["kl", "ce"])
        super().__init__(atoms, atoms - 1, v_min, v_max)
        self.priority = priority

    @property
    def atoms(self) -> int:
        """The number of returns, which is fixed at construction."""
        return self.width

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {"atoms": self.atoms, **self.given_bounds, "priority": self.priority}

    def distribution(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the support and its probabilities, [..., W] each, of logits [..., W]."""
        probability = functional.softmax(outputs, dim=-1)
        return self.support.expand_as(probability), probability

    def target(self, after: Tensor, reward: Tensor, discount: Tensor, cost: Tensor | None = None) -> Tensor:
        """Return the next value's distribution, shifted, scaled and projected onto the support, [B, W]."""
        probability = self._probability(after, discount)
        if cost is not None:
            reward = reward - torch.where(discount > 0, discount * cost, 0.0)
        position = (self._moved(reward, discount).clamp(self.low, self.high) - self.low) / self.gap  # [B, W]
        below = position.floor().clamp(max=self.width - 2)  # so that the atom above is at most the last
        above_share = (position - below).clamp(max=1.0) * probability
        index = below.long().clamp(0, self.width - 2)  # valid also for nan, whose loss is rejected later
        target = torch.zeros_like(probability).scatter_add_(1, index, probability - above_share)
        return target.scatter_add_(1, index + 1, above_share)

    def loss(self, chosen: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy to the target [...] and the priority [...]."""
        cross_entropy = self.cross_entropy(chosen, target)
        priority = cross_entropy.detach()
        if self.priority == "kl":
            priority = (priority + torch.xlogy(target, target).sum(dim=-1)).clamp(min=0.0)
        return cross_entropy, priority

    def metrics(
        self, chosen: Tensor, target: Tensor, after: Tensor, reward: Tensor, discount: Tensor
    ) -> Mapping[str, Metric]:
        """Return the TD error, the entropy and the share of the target outside the support."""
        moved, probability = self._moved(reward, discount), self._probability(after, discount)
        return self.support_metrics(chosen, target, moved, probability, discount)

    def _probability(self, after: Tensor, discount: Tensor) -> Tensor:
        """Return the next value's distribution, [B, W]; uniform where the discount is 0, so that it is never nan."""
        return torch.where(discount.unsqueeze(1) > 0, functional.softmax(after, dim=1), 1.0 / self.width)

    def _moved(self, reward: Tensor, discount: Tensor) -> Tensor:
        """Return R + discount * z, [B, W], before clipping."""
        return reward.unsqueeze(1) + discount.unsqueeze(1) * self.support


def td_metrics(td: Tensor) -> Mapping[str, Metric]:
    """Return the mean and the largest of the absolute values of TD errors [B]."""
    size = td.abs()
    return {"td_abs_mean": size, "td_abs_max": Max(size)}


def squash(x: Tensor, eps: float) -> Tensor:
    """Return h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps * x (Pohlen et al., 2018, proposition A.2)."""
    root = (x.abs() + 1.0).sqrt()
    return x / (root + 1.0) + eps * x  # sqrt(a + 1) - 1 = a / (sqrt(a + 1) + 1), which keeps small outputs exact


def unsquash(y: Tensor, eps: float) -> Tensor:
    """Return h^-1(y), the x of h(x) = y.

    With u = sqrt(|x| + 1) - 1, h is eps * u^2 + (1 + 2 eps) * u, and |x| is u (u + 2): nothing cancels near 0.
    """
    size, linear = y.abs(), 1.0 + 2.0 * eps
    u = 2.0 * size / (linear + (linear**2 + 4.0 * eps * size).sqrt())
    return y.sign() * u * (u + 2.0)


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
            them, which shifts their mean inwards: choose both that much wider than returns reach. None, the default, is
            automatic, that much wider than returns reach: see `SupportValue`.
        sigma: standard deviation of "hl_gauss" in bin widths; Farebrother et al. take 0.75. To keep the width in
            units of return, scale it with the number of bins. It has no effect with "two_hot".
        target: "hl_gauss" or "two_hot".
    """

    _edges: Tensor  # [W + 1], in bin widths from v_min

    def __init__(
        self,
        bins: int = 51,
        v_min: float | None = None,
        v_max: float | None = None,
        *,
        sigma: float = 0.75,
        target: Literal["hl_gauss", "two_hot"] = "hl_gauss",
    ) -> None:
        with Checks("HLGaussValue") as checks:
            checks.integer("bins", bins, low=2)
            check_bounds(checks, v_min, v_max)
            checks.number("sigma", sigma, low=0, above_low=True)
            checks.one_of("target", target, ["hl_gauss", "two_hot"])
        super().__init__(bins, bins, v_min, v_max, margin=3 * sigma if target == "hl_gauss" else 0.5)
        self.sigma, self.kind = float(sigma), target
        self.register_buffer("_edges", torch.arange(bins + 1, dtype=torch.float32), persistent=False)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {"bins": self.bins, **self.given_bounds, "sigma": self.sigma, "target": self.kind}

    @property
    def bins(self) -> int:
        """The number of bins, which is fixed at construction."""
        return self.width

    def target(self, after: Tensor, reward: Tensor, discount: Tensor, cost: Tensor | None = None) -> Tensor:
        """Return the histogram of the TD target, [B, W]."""
        y = self._td_target(after, reward, discount, cost).clamp(self.low, self.high)
        distance = self._edges - (y - self.low) / self.gap  # [B, W + 1]
        if self.kind == "two_hot":
            cumulative = distance.clamp(-0.5, 0.5)
        else:
            cumulative = torch.erf(distance / (math.sqrt(2.0) * self.sigma))
        return cumulative.diff(dim=1) / (cumulative[:, -1:] - cumulative[:, :1])

    def loss(self, chosen: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy to the target histogram [...] and the absolute TD error [...]."""
        return self.cross_entropy(chosen, target), self.td_error(chosen, target).detach().abs()

    def metrics(
        self, chosen: Tensor, target: Tensor, after: Tensor, reward: Tensor, discount: Tensor
    ) -> Mapping[str, Metric]:
        """Return the TD error, the entropy and the share of TD targets outside the support."""
        y = self._td_target(after, reward, discount)
        return self.support_metrics(chosen, target, y, torch.ones_like(y), discount)

    def _td_target(self, after: Tensor, reward: Tensor, discount: Tensor, cost: Tensor | None = None) -> Tensor:
        """Return y, [B, 1], before it is clipped."""
        return td_target(self.mean(after).unsqueeze(1), reward, discount, cost)


@checked
class QuantileValue(ReturnValue):
    """The quantiles of the return at the midpoints (2 i + 1) / 2 N of N equal parts (QR-DQN).

    Dabney et al. (2018, QR-DQN), algorithm 1, with the loss and priority of `quantile_huber`; the defaults are
    theirs.

    Args:
        quantiles: N.
        kappa: where the Huber loss becomes linear; 0 is quantile regression.
        rescale: see `ReturnValue`.
        reduction: the loss is the "sum" over the N quantiles, or their "mean", as in TQC (Kuznetsov et al., 2020).
    """

    fractions: Tensor  # [1, N]

    def __init__(
        self,
        quantiles: int = 200,
        *,
        kappa: float = 1.0,
        rescale: float | None = None,
        reduction: Literal["sum", "mean"] = "sum",
    ) -> None:
        with Checks("QuantileValue") as checks:
            checks.integer("quantiles", quantiles, low=1)
            checks.number("kappa", kappa, low=0)
            checks.one_of("reduction", reduction, ["sum", "mean"])
        super().__init__(rescale)
        self._quantiles, self.kappa, self.reduction = quantiles, float(kappa), reduction
        self.register_buffer("fractions", midpoints(quantiles), persistent=False)

    @property
    def quantiles(self) -> int:
        """The number of quantiles."""
        return self._quantiles

    @property
    def width(self) -> int:
        """One output per quantile."""
        return self._quantiles

    def loss(self, chosen: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the quantile Huber loss [...] and the mean absolute TD error [...] over all pairs of quantiles."""
        loss, priority = quantile_huber(chosen, target, self.fractions, self.kappa)
        return (loss / self.quantiles if self.reduction == "mean" else loss), priority


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
        self.quantiles, self.target_quantiles = quantiles, target_quantiles
        self.kappa = float(kappa)
        self.register_buffer("_midpoints", midpoints(acting_quantiles), persistent=False)

    @property
    def width(self) -> int:
        """One output per fraction of the online network."""
        return self.quantiles

    @property
    def acting_quantiles(self) -> int:
        """Fractions of every observation acted on."""
        return self._midpoints.shape[1]

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
        at = midpoints(chosen.shape[1], chosen.device) if fractions is None else fractions
        return quantile_huber(chosen, target, at, self.kappa)


def midpoints(n: int, device: torch.device | None = None) -> Tensor:
    """Return the middle fraction of each of n equal parts, [1, n]."""
    return ((2 * torch.arange(n, dtype=torch.float32, device=device) + 1) / (2 * n)).unsqueeze(0)


def quantile_huber(chosen: Tensor, target: Tensor, fractions: Tensor, kappa: float) -> tuple[Tensor, Tensor]:
    """Return the quantile Huber loss [...] and the mean absolute TD error [...], the priority.

    With td_ij = target_j - chosen_i, the loss is the sum over i of the mean over j of

        |fraction_i - 1(td_ij < 0)| * huber(td_ij) / kappa

    (Dabney et al., 2018, QR-DQN, equations 9 and 10; over kappa as in IQN's equation 3). The table [..., W, W'] of all
    td_ij is not built. For a quantile x at fraction f, a target y contributes

        (1 - f) * (x - y - kappa / 2)      y < x - kappa
        (1 - f) * (x - y)^2 / (2 kappa)    x - kappa <= y < x
        f * (x - y)^2 / (2 kappa)          x <= y <= x + kappa
        f * (y - x - kappa / 2)            x + kappa < y

    With the targets of a row sorted, the sums of 1, x - y and (x - y)^2 over all y below each of the three bounds
    follow from the prefix sums of y and y^2, and the sums of a piece are their differences. With kappa = 0 the two
    pieces in the middle are empty: a target equal to x contributes neither loss nor gradient.

    Args:
        chosen: [B, W], at `fractions` [B, W] or [1, W]; or [B, C, W] of C critics.
        target: [B, W'], of C critics [B, 1, W'], without gradient.
        fractions: in [0, 1].
        kappa: where the Huber loss becomes linear; at 0 it is the absolute value.
    """
    width, curvature = target.shape[-1], 1.0 / kappa if kappa else 0.0
    with torch.no_grad():
        wide = target.double()  # as differences of prefix sums cancel
        center = wide.mean(dim=-1, keepdim=True)
        x = (chosen.double() - center).contiguous()
        y = (wide - center).contiguous().sort(dim=-1).values
        sums, squares = (functional.pad(column.cumsum(dim=-1), (1, 0)) for column in (y, y * y))
        if chosen.shape[:-1] != target.shape[:-1]:  # sorted once for all critics
            y, sums, squares = (one.expand(*x.shape[:-1], -1).contiguous() for one in (y, sums, squares))

        def below(bound: Tensor, *, included: bool) -> tuple[Tensor, Tensor, Tensor]:
            """Return the sums [..., W] of 1, x - y and (x - y)^2 over the targets y below a bound [..., W]."""
            n = torch.searchsorted(y, bound, right=included)
            total = sums.gather(-1, n)
            distance = x * n - total
            return n, distance, squares.gather(-1, n) + x * (distance - total)

        n_low, low, low_square = below(x - kappa, included=False)
        _, middle, middle_square = below(x, included=False)
        n_high, high, high_square = below(x + kappa, included=True)
        every = width * x - sums[..., -1:]  # the sum of x - y over all targets
        loss_below = low - 0.5 * kappa * n_low + 0.5 * curvature * (middle_square - low_square)
        loss_above = high - every + 0.5 * kappa * (n_high - width) + 0.5 * curvature * (high_square - middle_square)
        grad_below = n_low + curvature * (middle - low)
        grad_above = n_high - width + curvature * (high - middle)
        loss = (loss_below + fractions * (loss_above - loss_below)).sum(dim=-1) / width
        grad = (grad_below + fractions * (grad_above - grad_below)) / width
        priority = (2.0 * middle - every).mean(dim=-1) / width
        loss, grad, priority = (column.to(chosen.dtype) for column in (loss, grad, priority))
    return loss + (grad * (chosen - chosen.detach())).sum(dim=-1), priority
