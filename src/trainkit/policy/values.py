"""Value parts: how a network's outputs represent a return, their TD target and their loss.

This module has the expected return and distributions over fixed returns; `quantiles` has quantiles of the return.
"""

from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainkit.core.errors import Checks
from trainkit.core.former_names import former_members
from trainkit.core.signatures import Part, checked


class Value(Protocol):
    """The meaning of the last axis of a network's outputs."""

    @property
    def width(self) -> int:
        """W, the number of outputs that represent one return."""
        ...

    def mean(self, outputs: Tensor) -> Tensor:
        """Return the expected return, [...], of outputs [..., W]."""
        ...

    def target(self, after: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """Return the TD target of the chosen actions' outputs, [B, W].

        `after` [B, W] are the outputs of the next value, `reward` and `discount` [B] the n-step ones; where the
        discount is 0 the target does not depend on the next value.
        """
        ...

    def loss(self, chosen: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return (loss [B], priority [B]) of the chosen actions' outputs [B, W]; the policy weights them."""
        ...

    def metrics(
        self, chosen: Tensor, target: Tensor, after: Tensor, reward: Tensor, discount: Tensor
    ) -> dict[str, Tensor]:
        """Return scalars by name."""
        ...


@runtime_checkable
class Distributional(Protocol):
    """A value part that represents the distribution of the return."""

    def distribution(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return ascending returns and their probabilities, [..., W] each, of outputs [..., W]."""
        ...


@former_members("Value")
class ReturnValue(nn.Module, Part):
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

    def target(self, after: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        return self.outputs(td_target(self.returns(after), reward, discount))

    def distribution(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return sorted returns and their equal probabilities, [..., W] each, of outputs [..., W]."""
        returns = self.returns(outputs).sort(dim=-1).values
        return returns, torch.full_like(returns, 1 / returns.shape[-1])

    def metrics(
        self, chosen: Tensor, target: Tensor, after: Tensor, reward: Tensor, discount: Tensor
    ) -> dict[str, Tensor]:
        return td_metrics(self.mean(target) - self.mean(chosen))


@checked
class ExpectedValue(ReturnValue):
    """The expected return (Mnih et al., 2015).

    The loss is huber, td**2 / 2 up to |td| = delta and delta * (|td| - delta / 2) beyond, or mse, td**2; the priority
    is |td|.

    Args:
        loss: "huber" or "mse".
        delta: where huber becomes linear.
        rescale: see `ReturnValue`; Pohlen et al. take 1e-2, R2D2 (Kapturowski et al., 2019) 1e-3.
    """

    width = 1

    def __init__(
        self, loss: Literal["huber", "mse"] = "huber", *, delta: float = 1.0, rescale: float | None = None
    ) -> None:
        with Checks("ExpectedValue") as checks:
            checks.one_of("loss", loss, ["huber", "mse"])
            checks.number("delta", delta, low=0, above_low=True)
        super().__init__(rescale)
        self.kind, self.delta = loss, delta

    def arguments(self) -> dict[str, Any]:
        return {"loss": self.kind, "delta": self.delta, "rescale": self.rescale}

    def mean(self, outputs: Tensor) -> Tensor:
        """Return the single output as a return, [...]."""
        return self.returns(outputs).squeeze(-1)

    def metrics(
        self, chosen: Tensor, target: Tensor, after: Tensor, reward: Tensor, discount: Tensor
    ) -> dict[str, Tensor]:
        """Return the mean and maximum of the absolute TD error."""
        return td_metrics(self.returns(target) - self.returns(chosen))

    def loss(self, chosen: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the Huber or squared loss [B] and the absolute TD error [B]."""
        chosen, target = chosen.squeeze(1), target.squeeze(1)
        priority = (target - chosen).detach().abs()
        if self.kind == "mse":
            return functional.mse_loss(chosen, target, reduction="none"), priority
        return functional.huber_loss(chosen, target, reduction="none", delta=self.delta), priority


@former_members("Value")
class SupportValue(nn.Module, Part):
    """Base of the value parts whose outputs are logits over W fixed returns, the support.

    Args:
        support: [W].
    """

    support: Tensor  # [W]

    def __init__(self, support: Tensor) -> None:
        super().__init__()
        self.register_buffer("support", support, persistent=False)

    @property
    def width(self) -> int:
        """One logit per return."""
        return len(self.support)

    def mean(self, outputs: Tensor) -> Tensor:
        return functional.softmax(outputs, dim=-1) @ self.support

    def cross_entropy(self, chosen: Tensor, target: Tensor) -> Tensor:
        """Return the cross-entropy [B] of logits [B, W] to target probabilities [B, W]."""
        return -(target * functional.log_softmax(chosen, dim=1)).sum(dim=1)

    def td_error(self, chosen: Tensor, target: Tensor) -> Tensor:
        """Return the difference [B] of the means of target probabilities [B, W] and of logits [B, W]."""
        return target @ self.support - self.mean(chosen)

    def support_metrics(self, chosen: Tensor, target: Tensor, clipped: Tensor) -> dict[str, Tensor]:
        """Return metrics of the TD errors, the mean of `clipped` [B] and the mean entropy of logits [B, W] in nats."""
        log_probability = functional.log_softmax(chosen, dim=1)
        entropy = -(log_probability.exp() * log_probability).sum(dim=1).mean()
        td = td_metrics(self.td_error(chosen, target))
        return {**td, "clipped_share": clipped.mean(), "value_entropy": entropy}


@checked
class CategoricalValue(SupportValue):
    """Logits of a distribution over `atoms` returns z_i, evenly spaced in [v_min, v_max] (C51).

    Bellemare et al. (2017): the target is the distribution of R + discount * z, each atom's mass shared between its two
    neighbors in the support (algorithm 1), the loss the cross-entropy to it. The priority is the divergence
    KL(target || chosen), which vanishes at the optimum (Hessel et al., 2018), or the cross-entropy.
    """

    def __init__(
        self, atoms: int = 51, v_min: float = -10.0, v_max: float = 10.0, *, priority: Literal["kl", "ce"] = "kl"
    ) -> None:
        with Checks("CategoricalValue") as checks:
            checks.integer("atoms", atoms, low=2)
            if checks.number("v_min", v_min) and checks.number("v_max", v_max):
                checks.require(v_min < v_max, f" needs v_min < v_max, got {v_min} and {v_max}")
            checks.one_of("priority", priority, ["kl", "ce"])
        super().__init__(torch.linspace(v_min, v_max, atoms, dtype=torch.float32))
        self.atoms, self.v_min, self.v_max, self.priority = atoms, float(v_min), float(v_max), priority
        self._gap = (self.v_max - self.v_min) / (atoms - 1)

    def distribution(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the support and its probabilities, [..., W] each, of logits [..., W]."""
        probability = functional.softmax(outputs, dim=-1)
        return self.support.expand_as(probability), probability

    def target(self, after: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """Return the next value's distribution, shifted, scaled and projected onto the support, [B, W]."""
        probability = self._probability(after, discount)
        position = (self._moved(reward, discount).clamp(self.v_min, self.v_max) - self.v_min) / self._gap  # [B, W]
        below = position.floor().clamp(max=self.width - 2)  # so that the atom above is at most the last
        above_share = (position - below).clamp(max=1.0) * probability
        index = below.long().clamp(0, self.width - 2)  # valid also for nan, whose loss is rejected later
        target = torch.zeros_like(probability).scatter_add_(1, index, probability - above_share)
        return target.scatter_add_(1, index + 1, above_share)

    def loss(self, chosen: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy to the target [B] and the priority [B]."""
        cross_entropy = self.cross_entropy(chosen, target)
        priority = cross_entropy.detach()
        if self.priority == "kl":
            priority = (priority + torch.xlogy(target, target).sum(dim=1)).clamp(min=0.0)
        return cross_entropy, priority

    def metrics(
        self, chosen: Tensor, target: Tensor, after: Tensor, reward: Tensor, discount: Tensor
    ) -> dict[str, Tensor]:
        """Return the TD error, the entropy and the share of the target outside the support."""
        moved = self._moved(reward, discount)
        beyond = (moved < self.v_min - 1e-3 * self._gap) | (moved > self.v_max + 1e-3 * self._gap)
        return self.support_metrics(chosen, target, (self._probability(after, discount) * beyond).sum(dim=1))

    def _probability(self, after: Tensor, discount: Tensor) -> Tensor:
        """Return the next value's distribution, [B, W]; uniform where the discount is 0, so that it is never nan."""
        return torch.where(discount.unsqueeze(1) > 0, functional.softmax(after, dim=1), 1.0 / self.width)

    def _moved(self, reward: Tensor, discount: Tensor) -> Tensor:
        """Return R + discount * z, [B, W], before clipping."""
        return reward.unsqueeze(1) + discount.unsqueeze(1) * self.support


def td_target(returns: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
    """Return reward + discount * returns, [B, W], of the next state's returns [B, W], rewards and discounts [B].

    Where the discount is 0 it is the reward, even if the return is not finite.
    """
    reward, discount = reward.unsqueeze(1), discount.unsqueeze(1)
    return torch.addcmul(reward, discount, returns.masked_fill(discount == 0, 0.0))  # not 0 * infinity


def td_metrics(td: Tensor) -> dict[str, Tensor]:
    """Return the mean and the largest of the absolute values of TD errors [B]."""
    size = td.abs()
    return {"td_abs_mean": size.mean(), "td_abs_max": size.max()}


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
