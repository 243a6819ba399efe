"""What a Q-learner is charged for beside its error: values of actions that the data say nothing about."""

from typing import Protocol

import torch
from torch import Tensor

from trainkit.core.errors import Checks
from trainkit.core.parts import Part
from trainkit.core.signatures import checked


class Penalty(Protocol):
    """Charge something per row for the values it predicts."""

    def __call__(self, q: Tensor, action: Tensor, legal: Tensor | None) -> Tensor:
        """Return what is added to the loss [B] for expected returns q [B, A] where `action` [B] was taken."""
        ...


@checked
class ConservativePenalty(Part):
    """Charge for every action's value, and give back the value of the action in the data (CQL; Kumar et al., 2020).

    weight * (log sum over legal a of exp q(s, a) - q(s, action)): equation 4, CQL(H). Where the data never took an
    action nothing else keeps its value down, and the maximum would believe in it. It is never below 0 and is in units
    of return, as the error is: rewards ten times as large want a tenth of the weight, beside mse.
    """

    def __init__(self, weight: float = 1.0) -> None:
        checks = Checks("ConservativePenalty")
        checks.number("weight", weight, low=0)
        checks.done()
        self.weight = float(weight)

    def __call__(self, q: Tensor, action: Tensor, legal: Tensor | None) -> Tensor:
        chosen = q.gather(1, action.unsqueeze(1)).squeeze(1)
        if legal is not None:
            q = q.masked_fill(~legal, -torch.inf)
        return self.weight * (q.logsumexp(dim=1) - chosen)
