"""How the C critics of an actor-critic become one value, and how they are called."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from trainkit.core.config import Part
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.signatures import checked
from trainkit.engine.loss import Max, Metric, Min
from trainkit.policy.values import Value

Network = Callable[..., Tensor]  # (features, actions [B, D]) -> [B, C, W], or [B, C]


class CriticReduction(Part, ABC):
    """Base class of reductions of the critics' outputs [B, C, W] to outputs [B, W'] that represent one return.

    Reductions are used twice: of the target critics, and of the critics that the actor ascends, where gradients pass.
    """

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

    def read(self, critics: Network, features: Any, action: Tensor) -> Tensor:
        """Return the critics' outputs [B, C, W], or [B, C], for the actor's loss; a subclass may call fewer critics."""
        return critics(features, action)


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
class DrawsNoise(Protocol):
    """Critics that take `noise`, a keyword argument; each pass of a loss has its own."""

    def draw_noise(self, n_rows: int, generator: torch.Generator) -> Tensor:
        """Sample the noise of a pass over B rows, on the generator's device."""
        ...


def with_noise(critics: Network, noise: Tensor | None) -> Network:
    """Return critics with the noise of a pass, if there is any."""
    return critics if noise is None else partial(critics, noise=noise)


class CriticInputs(NamedTuple):
    """What critics are called on: `critics(*inputs)`."""

    features: Any  # [B, ...]
    action: Tensor  # [B, D], in policy units


class CriticPass(Part, ABC):
    """Base class of how the critics are called for their loss: on the steps of a batch, and on the next steps."""

    def check(self, checks: Checks, critics: nn.Module, *, has_target: bool) -> None:
        """Check that the critics, and target critics if there are any, support this pass."""

    @abstractmethod
    def __call__(
        self, critics: Network, target_critics: Network | None, steps: CriticInputs, next_steps: CriticInputs
    ) -> tuple[Tensor, Tensor]:
        """Return (outputs [B, C, W], next outputs [B, C, W] without gradients).

        Args:
            critics: in training mode.
            target_critics: in evaluation mode; None without target networks.
            steps: the observations of a batch, and the actions that were taken.
            next_steps: the next observations, and actions of the next actor.
        """


@checked
class SeparatePasses(CriticPass):
    """Call the critics on the steps of the batch, and the target critics, or else the critics, on the next steps."""

    def __call__(
        self, critics: Network, target_critics: Network | None, steps: CriticInputs, next_steps: CriticInputs
    ) -> tuple[Tensor, Tensor]:
        """Return (outputs [B, C, W], next outputs [B, C, W] without gradients)."""
        with torch.no_grad():
            next_outputs = (critics if target_critics is None else target_critics)(*next_steps)
        return critics(*steps), next_outputs


def with_width(outputs: Tensor) -> Tensor:
    """Return critics' outputs [B, C, W], of values [B, C] with a width of 1."""
    return outputs.unsqueeze(2) if outputs.dim() == 2 else outputs


def check_reduction(reduction: CriticReduction, outputs: Tensor, value: Value) -> None:
    """Raise `ConfigError` unless a reduction gives outputs [2, W'] for those of two rows."""
    try:
        with torch.no_grad():
            shape: Any = tuple(reduction(outputs, value, None).shape)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001  # of the user's
        shape = f"{type(error).__name__}: {error}"
    if not isinstance(shape, tuple) or len(shape) != 2 or shape[0] != 2:
        raise ConfigError(
            f"{type(reduction).__name__} must map (outputs [B, C, W], value, drawn) to [B, W'], got {shape} for "
            f"{tuple(outputs.shape)}: keep the first axis, and one for the outputs"
        )


def over_critics(metric: Metric) -> Metric:
    """Return a metric of rows and critics [B, C, ...] as one of rows, of the means over critics."""
    if isinstance(metric, Max):
        return Max(_mean_over_critics(metric.of_rows))
    return Min(_mean_over_critics(metric.of_rows)) if isinstance(metric, Min) else _mean_over_critics(metric)


def _mean_over_critics(column: Tensor) -> Tensor:
    return column.flatten(1).mean(dim=1) if column.dim() > 1 else column
