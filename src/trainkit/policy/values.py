"""How a network's numbers stand for a return: what they mean, what they should become, how wrong they are.

Here are one number and a distribution over fixed returns; `quantiles` has the returns at fixed or drawn fractions.
"""

from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainkit.core.errors import Checks
from trainkit.core.parts import Part
from trainkit.core.signatures import checked


class Value(Protocol):
    """Interpret the last axis of a network's numbers."""

    @property
    def width(self) -> int:
        """W, how many numbers stand for one return."""
        ...

    def mean(self, numbers: Tensor) -> Tensor:
        """Return the expected return, [...], of numbers [..., W]."""
        ...

    def goal(self, after: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """Return what the chosen numbers should become, [B, W].

        `after` [B, W] are the next value's numbers, `reward` and `discount` [B] the window's; where the discount is
        0 the next value counts nothing, whatever it is.
        """
        ...

    def loss(self, chosen: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
        """Return (loss [B], priority [B]) of the chosen actions' numbers [B, W]; weighting is the policy's."""
        ...

    def metrics(
        self, chosen: Tensor, goal: Tensor, after: Tensor, reward: Tensor, discount: Tensor
    ) -> dict[str, Tensor]:
        """Return what dashboards show, scalars."""
        ...


@runtime_checkable
class Distributional(Protocol):
    """A value that knows the distribution of the return, in addition to its mean."""

    def distribution(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return ascending returns and their probabilities, [..., W] each, of outputs [..., W]."""
        ...


class ReturnValue(nn.Module, Part):
    """Base of the values whose numbers are returns: one of them, or W quantiles.

    With `rescale` they are h(return), so that returns of any size can be learnt unclipped (Pohlen et al., 2018):
    h(x) = sign(x) (sqrt(|x| + 1) - 1) + rescale * x, and the goal is h(reward + discount * h^-1(after)).
    """

    def __init__(self, rescale: float | None = None) -> None:
        if rescale is not None:
            checks = Checks(type(self).__name__)
            checks.number("rescale", rescale, low=0, above_low=True)
            checks.done()
        super().__init__()
        self.rescale = rescale

    def returns(self, numbers: Tensor) -> Tensor:
        """Return the returns that numbers [...] stand for."""
        return numbers if self.rescale is None else unsquash(numbers, self.rescale)

    def numbers(self, returns: Tensor) -> Tensor:
        """Return the numbers that stand for returns [...]."""
        return returns if self.rescale is None else squash(returns, self.rescale)

    def mean(self, numbers: Tensor) -> Tensor:
        return self.returns(numbers).mean(dim=-1)

    def goal(self, after: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        return self.numbers(td_target(self.returns(after), reward, discount))

    def distribution(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return sorted returns and their probabilities, all equal, [..., W] each, of numbers [..., W]."""
        returns = self.returns(numbers).sort(dim=-1).values
        return returns, torch.full_like(returns, 1 / returns.shape[-1])

    def metrics(
        self, chosen: Tensor, goal: Tensor, after: Tensor, reward: Tensor, discount: Tensor
    ) -> dict[str, Tensor]:
        return td_metrics(self.mean(goal) - self.mean(chosen))


@checked
class ExpectedValue(ReturnValue):
    """One number: the expected return (Mnih et al., 2015).

    The loss is huber, td**2 / 2 up to |td| = delta and delta * (|td| - delta / 2) beyond, or mse, td**2; the priority
    is |td|.

    Args:
        loss: "huber" or "mse".
        delta: where huber turns straight.
        rescale: see `ReturnValue`; Pohlen et al. take 1e-2, R2D2 (Kapturowski et al., 2019) 1e-3.
    """

    width = 1

    def __init__(
        self, loss: Literal["huber", "mse"] = "huber", *, delta: float = 1.0, rescale: float | None = None
    ) -> None:
        checks = Checks("ExpectedValue")
        checks.one_of("loss", loss, ["huber", "mse"])
        checks.number("delta", delta, low=0, above_low=True)
        checks.done()
        super().__init__(rescale)
        self.kind, self.delta = loss, delta

    def arguments(self) -> dict[str, Any]:
        return {"loss": self.kind, "delta": self.delta, "rescale": self.rescale}

    def mean(self, numbers: Tensor) -> Tensor:
        return self.returns(numbers).squeeze(-1)

    def metrics(
        self, chosen: Tensor, goal: Tensor, after: Tensor, reward: Tensor, discount: Tensor
    ) -> dict[str, Tensor]:
        return td_metrics(self.returns(goal) - self.returns(chosen))

    def loss(self, chosen: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
        chosen, goal = chosen.squeeze(1), goal.squeeze(1)
        priority = (goal - chosen).detach().abs()
        if self.kind == "mse":
            return functional.mse_loss(chosen, goal, reduction="none"), priority
        return functional.huber_loss(chosen, goal, reduction="none", delta=self.delta), priority


class SupportValue(nn.Module, Part):
    """Base of the values whose outputs are logits of the probabilities of W fixed returns, the support.

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

    def mean(self, numbers: Tensor) -> Tensor:
        return functional.softmax(numbers, dim=-1) @ self.support

    def cross_entropy(self, chosen: Tensor, goal: Tensor) -> Tensor:
        """Return the cross-entropy [B] of logits [B, W] to target probabilities [B, W]."""
        return -(goal * functional.log_softmax(chosen, dim=1)).sum(dim=1)

    def td_error(self, chosen: Tensor, goal: Tensor) -> Tensor:
        """Return the difference [B] of the means of target probabilities [B, W] and of logits [B, W]."""
        return goal @ self.support - self.mean(chosen)

    def support_metrics(self, chosen: Tensor, goal: Tensor, clipped: Tensor) -> dict[str, Tensor]:
        """Return metrics of the TD errors, the mean of `clipped` [B] and the mean entropy of logits [B, W] in nats."""
        log_probability = functional.log_softmax(chosen, dim=1)
        entropy = -(log_probability.exp() * log_probability).sum(dim=1).mean()
        td = td_metrics(self.td_error(chosen, goal))
        return {**td, "clipped_share": clipped.mean(), "value_entropy": entropy}


@checked
class CategoricalValue(SupportValue):
    """Logits of a distribution over fixed returns z_i, `atoms` of them evenly in [v_min, v_max] (C51).

    Bellemare et al. (2017): the goal is the distribution of R + discount * z, each atom's mass shared between its two
    neighbours in the support (algorithm 1), the loss the cross-entropy to it. The priority
    is the divergence KL(goal || chosen), which vanishes at the optimum (Hessel et al., 2018), or the cross-entropy.
    """

    def __init__(
        self, atoms: int = 51, v_min: float = -10.0, v_max: float = 10.0, *, priority: Literal["kl", "ce"] = "kl"
    ) -> None:
        checks = Checks("CategoricalValue")
        checks.integer("atoms", atoms, low=2)
        if checks.number("v_min", v_min) and checks.number("v_max", v_max):
            checks.require(v_min < v_max, f" needs v_min < v_max, got {v_min} and {v_max}")
        checks.one_of("priority", priority, ["kl", "ce"])
        checks.done()
        super().__init__(torch.linspace(v_min, v_max, atoms, dtype=torch.float32))
        self.atoms, self.v_min, self.v_max, self.priority = atoms, float(v_min), float(v_max), priority
        self._gap = (self.v_max - self.v_min) / (atoms - 1)

    def distribution(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return the support and its probabilities, [..., W] each, of logits [..., W]."""
        probability = functional.softmax(numbers, dim=-1)
        return self.support.expand_as(probability), probability

    def goal(self, after: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        probability = self._probability(after, discount)
        place = (self._moved(reward, discount).clamp(self.v_min, self.v_max) - self.v_min) / self._gap  # [B, W]
        below = place.floor().clamp(max=self.width - 2)  # so that the last atom is a neighbour above, never beyond
        above_share = (place - below).clamp(max=1.0) * probability
        index = below.long().clamp(0, self.width - 2)  # nan is no place: its loss is refused, not its index
        goal = torch.zeros_like(probability).scatter_add_(1, index, probability - above_share)
        return goal.scatter_add_(1, index + 1, above_share)

    def loss(self, chosen: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
        cross_entropy = self.cross_entropy(chosen, goal)
        priority = cross_entropy.detach()
        if self.priority == "kl":
            priority = (priority + torch.xlogy(goal, goal).sum(dim=1)).clamp(min=0.0)
        return cross_entropy, priority

    def metrics(
        self, chosen: Tensor, goal: Tensor, after: Tensor, reward: Tensor, discount: Tensor
    ) -> dict[str, Tensor]:
        moved = self._moved(reward, discount)
        beyond = (moved < self.v_min - 1e-3 * self._gap) | (moved > self.v_max + 1e-3 * self._gap)
        return self.support_metrics(chosen, goal, (self._probability(after, discount) * beyond).sum(dim=1))

    def _probability(self, after: Tensor, discount: Tensor) -> Tensor:
        """Return the next value's distribution, [B, W]; where nothing follows any will do, but not nan."""
        return torch.where(discount.unsqueeze(1) > 0, functional.softmax(after, dim=1), 1.0 / self.width)

    def _moved(self, reward: Tensor, discount: Tensor) -> Tensor:
        """Return the returns R + discount * z, [B, W], before any clipping."""
        return reward.unsqueeze(1) + discount.unsqueeze(1) * self.support


def td_target(returns: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
    """Return reward + discount * returns, [B, W], of the next state's returns [B, W], rewards and discounts [B].

    Where the discount is 0 it is the reward, whatever the returns are.
    """
    reward, discount = reward.unsqueeze(1), discount.unsqueeze(1)
    return torch.addcmul(reward, discount, returns.masked_fill(discount == 0, 0.0))  # never 0 * infinity


def td_metrics(td: Tensor) -> dict[str, Tensor]:
    """Return the mean and the largest of the absolute values of TD errors [B]."""
    size = td.abs()
    return {"td_abs_mean": size.mean(), "td_abs_max": size.max()}


def squash(x: Tensor, eps: float) -> Tensor:
    """Return h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps * x (Pohlen et al., 2018, proposition A.2)."""
    root = (x.abs() + 1.0).sqrt()
    return x / (root + 1.0) + eps * x  # sqrt(a + 1) - 1 = a / (sqrt(a + 1) + 1), which keeps small numbers exact


def unsquash(y: Tensor, eps: float) -> Tensor:
    """Return h^-1(y), the x of h(x) = y.

    With u = sqrt(|x| + 1) - 1, h is eps * u^2 + (1 + 2 eps) * u, and |x| is u (u + 2): nothing cancels near 0.
    """
    size, slope = y.abs(), 1.0 + 2.0 * eps
    u = 2.0 * size / (slope + (slope**2 + 4.0 * eps * size).sqrt())
    return y.sign() * u * (u + 2.0)
