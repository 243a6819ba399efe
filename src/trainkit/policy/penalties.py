"""Penalties: terms of a Q-learner's loss in addition to the value part's, such as conservative Q-learning."""

from typing import Protocol

import torch
from torch import Tensor

from trainkit.core.errors import Checks
from trainkit.core.signatures import Part, checked


class Penalty(Protocol):
    """A term of the loss per row that depends on all action values."""

    def __call__(self, q: Tensor, action: Tensor, legal: Tensor | None) -> Tensor:
        """Return the term [B] for expected returns q [B, A] where `action` [B] was taken."""
        ...


@checked
class ConservativePenalty(Part):
    """Conservative Q-learning (CQL; Kumar et al., 2020): lower all values and raise those of the data's actions.

    weight * (log sum over legal a of exp q(s, a) - q(s, action)): equation 4, CQL(H). It keeps the
    values of actions low that the data never take, which a maximum would otherwise choose. It is never below 0 and is
    in units of return: for rewards ten times as large, divide the weight by ten with an mse loss.
    """

    def __init__(self, weight: float = 1.0) -> None:
        with Checks("ConservativePenalty") as checks:
            checks.number("weight", weight, low=0)
        self.weight = float(weight)

    def __call__(self, q: Tensor, action: Tensor, legal: Tensor | None) -> Tensor:
        chosen = q.gather(1, action.unsqueeze(1)).squeeze(1)
        if legal is not None:
            q = q.masked_fill(~legal, -torch.inf)
        return self.weight * (q.logsumexp(dim=1) - chosen)
