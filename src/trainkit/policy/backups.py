"""Backups, which define the next value of the TD target, and penalties, which are added to the loss."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from trainkit.core.config import Part
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.signatures import checked
from trainkit.engine.loss import TensorBatch
from trainkit.nets.networks import Prediction
from trainkit.policy.values import ReturnValue, Value

QFunction = Callable[[Any, Tensor | None], Prediction]  # (features, legal [B, A] | None) -> prediction


class Backup(Protocol):
    """The outputs [B, W] of the next value, and the reward [B], which a backup may change.

    Names of columns in its attribute `columns`, if it has one, are read from the buffer into `batch.extras`. Its
    `column_specs`, {name: `ArraySpec`}, has those that only some buffers have: the loss is tried before there is one.
    """

    def __call__(
        self, online: QFunction, target: QFunction, batch: TensorBatch, value: Value
    ) -> tuple[Tensor, Tensor]: ...


@checked
class MaxBackup(Part):
    """The value of the target network's best action (Mnih et al., 2015)."""

    def __call__(self, online: QFunction, target: QFunction, batch: TensorBatch, value: Value) -> tuple[Tensor, Tensor]:
        outputs = target(batch.next_obs, batch.next_legal).outputs
        return pick(outputs, best_action(value.mean(outputs), batch.next_legal)), batch.reward


@checked
class DoubleBackup(Part):
    """The target network's value of the online network's best action (van Hasselt et al., 2016).

    With distributions, the online network's expected values choose and the target's distribution is taken.
    """

    def __call__(self, online: QFunction, target: QFunction, batch: TensorBatch, value: Value) -> tuple[Tensor, Tensor]:
        q = value.mean(online(batch.next_obs, batch.next_legal).outputs)
        outputs = target(batch.next_obs, batch.next_legal).outputs
        return pick(outputs, best_action(q, batch.next_legal)), batch.reward


@checked
class MunchausenBackup(Part):
    """The soft value of the target network's softmax policy, and a log-probability bonus (Vieillard et al., 2020).

    With pi = softmax(q / temperature), equation 1 and its clip:
    reward + alpha * clip(temperature * log pi(a | s), lowest, 0)
    + discount * sum over a' of pi(a' | s') * (q(s', a') - temperature * log pi(a' | s')).
    With quantiles the sum is taken quantile by quantile. Over n steps the first action alone earns the bonus. The
    defaults are theirs. The network's outputs must be returns, as those of `ExpectedValue`, `QuantileValue` and
    `ImplicitQuantileValue`; logits are not.
    """

    def __init__(self, temperature: float = 0.03, *, alpha: float = 0.9, lowest: float = -1.0) -> None:
        with Checks("MunchausenBackup") as checks:
            checks.number("temperature", temperature, low=0, above_low=True)
            checks.number("alpha", alpha, low=0, high=1)
            checks.number("lowest", lowest, high=0)
        self.temperature, self.alpha, self.lowest = float(temperature), float(alpha), float(lowest)

    def __call__(self, online: QFunction, target: QFunction, batch: TensorBatch, value: Value) -> tuple[Tensor, Tensor]:
        if not isinstance(value, ReturnValue):
            raise ConfigError(
                f"MunchausenBackup adds to returns, which the outputs of {type(value).__name__} are not: use "
                "ExpectedValue, QuantileValue or ImplicitQuantileValue"
            )
        now = self._scaled_log_policy(value.mean(target(batch.obs, batch.legal).outputs), batch.legal)
        bonus = now.gather(1, batch.action.unsqueeze(1)).squeeze(1).clamp(self.lowest, 0.0)

        legal = batch.next_legal
        if legal is not None:
            legal = legal | ~legal.any(dim=1, keepdim=True)  # after the end of an episode no action may be legal
        outputs = target(batch.next_obs, batch.next_legal).outputs
        scaled = self._scaled_log_policy(value.mean(outputs), legal)  # [B, A]
        soft = value.returns(outputs) - scaled.unsqueeze(2)
        if legal is not None:
            soft = soft.masked_fill(~legal.unsqueeze(2), 0.0)  # not 0 * infinity
        probability = (scaled / self.temperature).exp().unsqueeze(2)
        return value.outputs((probability * soft).sum(dim=1)), batch.reward + self.alpha * bonus

    def _scaled_log_policy(self, q: Tensor, legal: Tensor | None) -> Tensor:
        """Return temperature * log pi, [B, A]."""
        if legal is not None:
            q = q.masked_fill(~legal, -torch.inf)
        return self.temperature * functional.log_softmax(q / self.temperature, dim=1)


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


def best_action(q: Tensor, legal: Tensor | None) -> Tensor:
    """Return the legal action [B] of the largest value in q [B, A]."""
    return (q if legal is None else q.masked_fill(~legal, -torch.inf)).argmax(dim=1)


def pick(outputs: Tensor, action: Tensor) -> Tensor:
    """Return the outputs [B, W] of one action [B] per row of [B, A, W]."""
    index = action.view(-1, 1, 1)
    if outputs.shape[2] > 1:
        index = index.expand(-1, 1, outputs.shape[2])
    return outputs.gather(1, index).squeeze(1)
