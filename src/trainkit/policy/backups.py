"""Which next value counts: the maximum, or the online network's choice judged by the target."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from trainkit.policy.networks import Prediction
from trainkit.policy.values import Value

Network = Callable[[Any, Tensor | None], Prediction]  # (features, legal [B, A] | None) -> prediction


class TensorBatch(NamedTuple):
    """B rows on the device, observations as features."""

    obs: Any
    action: Tensor  # [B] of a Discrete space, else [B, ...]
    reward: Tensor  # [B]
    discount: Tensor  # [B]
    next_obs: Any
    weight: Tensor  # [B]
    legal: Tensor | None  # [B, A], of obs
    next_legal: Tensor | None  # [B, A], of next_obs


class Backup(Protocol):
    """Choose the next value's numbers [B, W] and, if it must, reshape the reward [B]."""

    def __call__(self, online: Network, target: Network, batch: TensorBatch, value: Value) -> tuple[Tensor, Tensor]: ...


class MaxBackup:
    """Follow the action the target network thinks best (Mnih et al., 2015)."""

    def __call__(self, online: Network, target: Network, batch: TensorBatch, value: Value) -> tuple[Tensor, Tensor]:
        numbers = target(batch.next_obs, batch.next_legal).numbers
        return pick(numbers, best_action(value.mean(numbers), batch.next_legal)), batch.reward


class DoubleBackup:
    """Follow the action the online network thinks best, as the target network values it (van Hasselt et al., 2016).

    With distributions, the online network's expected values choose and the target's distribution is taken.
    """

    def __call__(self, online: Network, target: Network, batch: TensorBatch, value: Value) -> tuple[Tensor, Tensor]:
        q = value.mean(online(batch.next_obs, batch.next_legal).numbers)
        numbers = target(batch.next_obs, batch.next_legal).numbers
        return pick(numbers, best_action(q, batch.next_legal)), batch.reward


def best_action(q: Tensor, legal: Tensor | None) -> Tensor:
    """Return the legal action [B] of the largest value in q [B, A]."""
    return (q if legal is None else q.masked_fill(~legal, -torch.inf)).argmax(dim=1)


def pick(numbers: Tensor, action: Tensor) -> Tensor:
    """Return the numbers [B, W] of one action [B] per row of [B, A, W]."""
    index = action.view(-1, 1, 1).expand(-1, 1, numbers.shape[2])
    return numbers.gather(1, index).squeeze(1)
