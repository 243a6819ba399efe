"""How the C critics of an actor-critic become one value, and how they are called."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from trainkit.core.config import Part
from trainkit.core.signatures import checked
from trainkit.policy.values import Value


class CriticReduction(Part, ABC):
    """Base class of reductions of the critics' outputs [B, C, W] to outputs [B, W'] that represent one return.

    Reductions are used twice: of the target critics, and of the critics that the actor ascends, where gradients pass.

    Attributes:
        n_read: how many of the first critics are read, so that the actor's loss may leave out the others; None: all.
    """

    n_read: ClassVar[int | None] = None

    def draw(self, critics: nn.Module, generator: torch.Generator) -> Tensor | None:
        """Sample what one update's reduction of the target critics needs, on the generator's device; None: nothing."""
        return None

    @abstractmethod
    def __call__(self, outputs: Tensor, value: Value, drawn: Tensor | None = None) -> Tensor:
        """Return outputs [B, W'] for the critics' outputs [B, C, W].

        Args:
            outputs: of C critics.
            value: what they mean: `value.mean(outputs)` are the critics' expected returns [B, C].
            drawn: what `draw` returned; None where nothing random is sampled.
        """


@checked
class MinOfCritics(CriticReduction):
    """The outputs of the critic of the least expected return (Fujimoto et al., 2018, "clipped double Q-learning")."""

    def __call__(self, outputs: Tensor, value: Value, drawn: Tensor | None = None) -> Tensor:
        """Return outputs [B, W]."""
        if outputs.shape[2] == 1:
            return outputs.amin(dim=1)
        least = value.mean(outputs).argmin(dim=1)  # [B]
        return outputs.gather(1, least.view(-1, 1, 1).expand(-1, 1, outputs.shape[2])).squeeze(1)


@runtime_checkable
class CallsFirst(Protocol):
    """Critics of which the first ones can be called alone."""

    def first(self, n_critics: int, features: Any, action: Tensor) -> Tensor:
        """Return outputs [B, n_critics, W] or values [B, n_critics] of the first critics."""
        ...


@runtime_checkable
class DrawsNoise(Protocol):
    """Critics that take `noise`, a keyword argument, such as what dropout drops; each pass of a loss has its own."""

    def draw_noise(self, n_rows: int, generator: torch.Generator) -> Tensor:
        """Sample the noise of a pass over B rows, on the generator's device."""
        ...


Network = Callable[..., Tensor]  # (features, actions [B, D]) -> [B, C, W], or [B, C]


def with_noise(critics: Network, noise: Tensor | None) -> Network:
    """Return critics with the noise of a pass, if there is any."""
    return critics if noise is None else partial(critics, noise=noise)


class CriticPass(Protocol):
    """How the critics are called for their loss: on the steps of a batch, and on the next steps."""

    def __call__(
        self,
        critics: Network,
        target_critics: Network | None,
        obs: Any,
        action: Tensor,
        next_obs: Any,
        next_action: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return (outputs [B, C, W], next outputs [B, C, W] without gradients).

        Args:
            critics: in training mode.
            target_critics: in evaluation mode; None without target networks.
            obs, next_obs: features [B, ...].
            action, next_action: [B, D], in policy units.
        """
        ...


@checked
class SeparatePasses(Part):
    """Call the critics on the steps of the batch, and the target critics, or else the critics, on the next steps."""

    def __call__(
        self,
        critics: Network,
        target_critics: Network | None,
        obs: Any,
        action: Tensor,
        next_obs: Any,
        next_action: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return (outputs [B, C, W], next outputs [B, C, W] without gradients)."""
        with torch.no_grad():
            after = (critics if target_critics is None else target_critics)(next_obs, next_action)
        return critics(obs, action), after
