"""Distributions of actions: what a network's numbers per observation say about the next action, by action space.

Each draws from a generator of its owner, and none from torch's global one.
"""

import math
from typing import Any, Protocol, get_args

import numpy as np
import torch
from gymnasium import Space, spaces
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from trainkit.core.errors import Checks, SpaceMismatchError
from trainkit.core.spaces import count_actions
from trainkit.core.structured_actions import StructuredHybrid, flat_actions
from trainkit.nets.action_scale import ActionBound
from trainkit.nets.squashed import HALF_LOG_2_PI, SquashedGaussian, draw_normal

Array = NDArray[np.float32]


class Distribution(Protocol):
    """A family of distributions over one action space; `numbers` [B, width] choose one per row.

    Actions in a Box are in policy units here: the policy's `action_scale` maps them to the space and clips them to it.
    """

    width: int

    def draw_noise(self, n_rows: int, generator: torch.Generator) -> Tensor:
        """Draw what makes `sample` random, [B, N], on the generator's device."""
        ...

    def sample(self, numbers: Tensor, legal: Tensor | None, noise: Tensor) -> Tensor:
        """Return an action per row, [B, ...], drawn by `noise` [B, N]."""
        ...

    def mode(self, numbers: Tensor, legal: Tensor | None) -> Tensor:
        """Return the likeliest action per row, [B, ...]."""
        ...

    def log_prob(self, numbers: Tensor, action: Tensor, legal: Tensor | None) -> Tensor:
        """Return the log-probability, or its density, of an action per row, [B]."""
        ...

    def entropy(self, numbers: Tensor, legal: Tensor | None) -> Tensor:
        """Return the entropy per row, [B]."""
        ...


class Categorical(nn.Module):
    """One of A actions; the numbers are logits. An illegal one has probability 0."""

    def __init__(self, space: spaces.Discrete) -> None:
        super().__init__()
        self.width = int(space.n)

    def draw_noise(self, n_rows: int, generator: torch.Generator) -> Tensor:
        return _exponential(n_rows, self.width, generator)

    def sample(self, numbers: Tensor, legal: Tensor | None, noise: Tensor) -> Tensor:
        return (_masked(numbers, legal) - noise.log()).argmax(dim=1)  # distributed as the softmax

    def mode(self, numbers: Tensor, legal: Tensor | None) -> Tensor:
        return _masked(numbers, legal).argmax(dim=1)

    def log_prob(self, numbers: Tensor, action: Tensor, legal: Tensor | None) -> Tensor:
        return -functional.cross_entropy(_masked(numbers, legal), action, reduction="none")

    def probability(self, numbers: Tensor, legal: Tensor | None) -> Tensor:
        """Return the probability of every action, [B, A]."""
        return functional.softmax(_masked(numbers, legal), dim=1)

    def entropy(self, numbers: Tensor, legal: Tensor | None) -> Tensor:
        log_p = functional.log_softmax(_masked(numbers, legal), dim=1)
        p = log_p.exp()
        if legal is not None:  # before the product: 0 * infinity has no gradient
            log_p = log_p.masked_fill(log_p == -torch.inf, 0.0)
        return -(p * log_p).sum(dim=1)


class MultiCategorical(nn.Module):
    """One of A_d actions in each of D independent places; the numbers are all logits in a row."""

    _start: Tensor  # [D], the first action of each place

    def __init__(self, space: spaces.MultiDiscrete) -> None:
        super().__init__()
        self._shape = space.nvec.shape
        self._sizes: list[int] = space.nvec.ravel().tolist()
        self.register_buffer("_start", torch.as_tensor(space.start.ravel()), persistent=False)
        self._places = [Categorical(spaces.Discrete(size)) for size in self._sizes]
        self.width = sum(self._sizes)

    def draw_noise(self, n_rows: int, generator: torch.Generator) -> Tensor:
        return _exponential(n_rows, self.width, generator)

    def sample(self, numbers: Tensor, legal: Tensor | None, noise: Tensor) -> Tensor:
        pairs = zip(self._split(numbers), self._split(noise), strict=True)
        return self._join([place.sample(own, None, drawn) for (place, own), (_, drawn) in pairs])

    def mode(self, numbers: Tensor, legal: Tensor | None) -> Tensor:
        return self._join([place.mode(own, None) for place, own in self._split(numbers)])

    def log_prob(self, numbers: Tensor, action: Tensor, legal: Tensor | None) -> Tensor:
        own = (action.flatten(1) - self._start).unbind(1)
        parts = zip(self._split(numbers), own, strict=True)
        return torch.stack([place.log_prob(logits, digit, None) for (place, logits), digit in parts]).sum(dim=0)

    def entropy(self, numbers: Tensor, legal: Tensor | None) -> Tensor:
        return torch.stack([place.entropy(own, None) for place, own in self._split(numbers)]).sum(dim=0)

    def _split(self, numbers: Tensor) -> list[tuple[Categorical, Tensor]]:
        return list(zip(self._places, torch.split(numbers, self._sizes, dim=1), strict=True))

    def _join(self, digits: list[Tensor]) -> Tensor:
        return (torch.stack(digits, dim=1) + self._start).view(-1, *self._shape)


class Bernoulli(nn.Module):
    """A coin in each of D independent places; the numbers are logits of 1."""

    def __init__(self, space: spaces.MultiBinary) -> None:
        super().__init__()
        self._shape = space.shape
        self.width = math.prod(space.shape)

    def draw_noise(self, n_rows: int, generator: torch.Generator) -> Tensor:
        return torch.rand(n_rows, self.width, generator=generator, device=generator.device, dtype=torch.float32)

    def sample(self, numbers: Tensor, legal: Tensor | None, noise: Tensor) -> Tensor:
        return (noise < numbers.sigmoid()).to(torch.int8).view(-1, *self._shape)

    def mode(self, numbers: Tensor, legal: Tensor | None) -> Tensor:
        return (numbers > 0).to(torch.int8).view(-1, *self._shape)

    def log_prob(self, numbers: Tensor, action: Tensor, legal: Tensor | None) -> Tensor:
        coins = action.reshape(len(action), -1).to(numbers.dtype)
        return -functional.binary_cross_entropy_with_logits(numbers, coins, reduction="none").sum(dim=1)

    def entropy(self, numbers: Tensor, legal: Tensor | None) -> Tensor:
        p = numbers.sigmoid()
        return functional.binary_cross_entropy_with_logits(numbers, p, reduction="none").sum(dim=1)


class Gaussian(nn.Module):
    """A normal variable in each of D dimensions; the numbers are means, the deviations parameters of their own.

    Actions are in policy units and unbounded: `ActionScale` maps them to the space and clips them to it, while what is
    learned from is the action drawn. `log_std` is the initial logarithm of the deviations.
    """

    def __init__(self, space: spaces.Box, *, log_std: float = 0.0) -> None:
        checks = Checks("Gaussian")
        checks.number("log_std", log_std)
        checks.done()
        super().__init__()
        self._shape = space.shape
        self.width = math.prod(space.shape)
        self.log_std = nn.Parameter(torch.full((self.width,), float(log_std), dtype=torch.float32))

    def draw_noise(self, n_rows: int, generator: torch.Generator) -> Tensor:
        return draw_normal(n_rows, self.width, generator)

    def sample(self, numbers: Tensor, legal: Tensor | None, noise: Tensor) -> Tensor:
        return (numbers + self.log_std.exp() * noise).view(-1, *self._shape)

    def mode(self, numbers: Tensor, legal: Tensor | None) -> Tensor:
        return numbers.view(-1, *self._shape)

    def log_prob(self, numbers: Tensor, action: Tensor, legal: Tensor | None) -> Tensor:
        z = (action.reshape(len(action), -1).to(numbers.dtype) - numbers) / self.log_std.exp()
        return -(0.5 * z.square() + self.log_std + HALF_LOG_2_PI).sum(dim=1)

    def entropy(self, numbers: Tensor, legal: Tensor | None) -> Tensor:
        one = (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()
        return one.expand(len(numbers))


class Hybrid(nn.Module):
    """Flat rows with discrete and Box columns, all independent: a `MultiCategorical` and a Gaussian side by side.

    The network's outputs are the logits of all discrete columns, then the means of the Box columns. Log-probabilities
    and entropies of the two parts add up. Actions are float32 rows [B, W] in policy units: discrete columns count from
    0, see `ActionScale`.

    Args:
        space: of the flat rows.
        action_bound_method, log_std: of the Box columns, as in `distribution_for`.

    Attributes:
        discrete: the distribution of the discrete columns.
        box: the distribution of the Box columns.
    """

    _discrete_columns: Tensor  # [C]
    _box_columns: Tensor  # [W - C]
    _order: Tensor  # [W], the place of each column among discrete columns followed by Box columns

    def __init__(
        self, space: StructuredHybrid, *, action_bound_method: ActionBound = "clip", log_std: float = 0.0
    ) -> None:
        super().__init__()
        self.discrete = MultiCategorical(spaces.MultiDiscrete(space.discrete.nvec))
        kind = SquashedGaussian if action_bound_method == "tanh" else Gaussian
        self.box = kind(space.box, log_std=log_std)
        self.width = self.discrete.width + self.box.width
        is_discrete = space.structure.is_discrete
        columns = np.flatnonzero(is_discrete), np.flatnonzero(~is_discrete)
        places = {
            "_discrete_columns": columns[0],
            "_box_columns": columns[1],
            "_order": np.concatenate(columns).argsort(),
        }
        for name, place in places.items():
            self.register_buffer(name, torch.as_tensor(place), persistent=False)

    def draw_noise(self, n_rows: int, generator: torch.Generator) -> Tensor:
        return torch.cat([part.draw_noise(n_rows, generator) for part in (self.discrete, self.box)], dim=1)

    def sample(self, numbers: Tensor, legal: Tensor | None, noise: Tensor) -> Tensor:
        logits, means = self._split(numbers)
        of_discrete, of_box = noise[:, : self.discrete.width], noise[:, self.discrete.width :]
        return self._join(self.discrete.sample(logits, None, of_discrete), self.box.sample(means, None, of_box))

    def mode(self, numbers: Tensor, legal: Tensor | None) -> Tensor:
        logits, means = self._split(numbers)
        return self._join(self.discrete.mode(logits, None), self.box.mode(means, None))

    def log_prob(self, numbers: Tensor, action: Tensor, legal: Tensor | None) -> Tensor:
        logits, means = self._split(numbers)
        choices = action[:, self._discrete_columns].long()
        return self.discrete.log_prob(logits, choices, None) + self.box.log_prob(
            means, action[:, self._box_columns], None
        )

    def entropy(self, numbers: Tensor, legal: Tensor | None) -> Tensor:
        logits, means = self._split(numbers)
        return self.discrete.entropy(logits, None) + self.box.entropy(means, None)

    def _split(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        logits, means = torch.split(numbers, [self.discrete.width, self.box.width], dim=1)
        return logits, means

    def _join(self, choices: Tensor, box: Tensor) -> Tensor:
        return torch.cat([choices.to(box.dtype), box], dim=1)[:, self._order]


def distribution_for(
    space: Space[Any], *, action_bound_method: ActionBound = "clip", log_std: float | None = None
) -> Distribution:
    """Return the family for an action space.

    Args:
        space: of one action.
        action_bound_method: how actions of a Box are bounded: "clip" is a `Gaussian` whose actions are clipped, "tanh"
            a `SquashedGaussian`; of a `StructuredHybrid`, in its Box columns.
        log_std: initial logarithm of a Box's deviations; None is 0.
    """
    checks = Checks("distribution_for")
    checks.one_of("action_bound_method", action_bound_method, get_args(ActionBound))
    checks.done()
    is_squashed = action_bound_method == "tanh"
    space = flat_actions(space)
    if isinstance(space, StructuredHybrid):
        return Hybrid(space, action_bound_method=action_bound_method, log_std=0.0 if log_std is None else log_std)
    if isinstance(space, spaces.Box) and space.dtype in (np.float32, np.float64):
        start = 0.0 if log_std is None else log_std
        return SquashedGaussian(space, log_std=start) if is_squashed else Gaussian(space, log_std=start)
    if is_squashed or log_std is not None:
        raise SpaceMismatchError(
            f"action_bound_method='tanh' and log_std are for actions in a Box of float32 or float64, got {space}"
        )
    if isinstance(space, spaces.Discrete):
        count_actions("a distribution of actions", space)
        return Categorical(space)
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategorical(space)
    if isinstance(space, spaces.MultiBinary):
        return Bernoulli(space)
    raise SpaceMismatchError(
        f"there is no distribution of actions for {space}: make them Discrete, MultiDiscrete, MultiBinary, or a Box of "
        "float32 or float64"
    )


def _exponential(n_rows: int, width: int, generator: torch.Generator) -> Tensor:
    """Draw exponential noise [B, N]: minus its logarithm is distributed as Gumbel noise."""
    empty = torch.empty(n_rows, width, device=generator.device, dtype=torch.float32)
    return empty.exponential_(generator=generator)


def _masked(logits: Tensor, legal: Tensor | None) -> Tensor:
    return logits if legal is None else logits.masked_fill(~legal, -torch.inf)
