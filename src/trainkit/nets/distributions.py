"""Distributions of actions, parameterized by a network's outputs, one family per action space."""

import math
from typing import Any, Protocol, get_args, runtime_checkable

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn
from torch.nn import functional

from trainkit.core.config import Part
from trainkit.core.errors import Checks, ConfigError, SpaceMismatchError
from trainkit.core.schedules import Schedule
from trainkit.core.signatures import checked
from trainkit.core.spaces import USABLE_ACTIONS, StructuredHybrid, count_actions, flat_actions
from trainkit.nets.action_scale import ActionBound

HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)
_EDGE = 1e-6  # smallest distance of an action from its bounds when its density is computed
LOG_STD_RANGE = -20.0, 2.0  # of a network's log standard deviations (Haarnoja et al., 2018, in their code)
_N_NODES = 32  # of the quadrature


class Distribution(Protocol):
    """A family of distributions over one action space, with parameters `outputs` [B, width] per row.

    Actions of a Box are in policy units: the policy's `action_scale` maps them to the space and clips them.

    Attributes:
        width: the number of outputs.
        n_normal: how many of the last columns of noise are standard normal, one per dimension of a Box; else 0.
    """

    width: int
    n_normal: int

    def draw_noise(self, n_rows: int, generator: torch.Generator) -> Tensor:
        """Sample the noise of `sample`, [B, N], on the generator's device."""
        ...

    def sample(self, outputs: Tensor, legal: Tensor | None, noise: Tensor) -> Tensor:
        """Return an action per row, [B, ...], as a function of `noise` [B, N]."""
        ...

    def mode(self, outputs: Tensor, legal: Tensor | None) -> Tensor:
        """Return the most probable action per row, [B, ...]."""
        ...

    def log_prob(self, outputs: Tensor, action: Tensor, legal: Tensor | None) -> Tensor:
        """Return the log-probability, or log-density, of an action per row, [B]."""
        ...

    def entropy(self, outputs: Tensor, legal: Tensor | None) -> Tensor:
        """Return the entropy per row, [B]."""
        ...


@runtime_checkable
class Reparameterized(Distribution, Protocol):
    """A family of distributions over a Box whose draws have gradients, for off-policy actor-critics.

    Attributes:
        n_dimensions: D.
        noise_std: what the noise of exploring actions is multiplied by, a schedule of the environment step; None is 1.
        has_density: whether there are densities, which the temperature of an entropy needs.
    """

    n_dimensions: int
    noise_std: Schedule | None
    has_density: bool

    def draw(self, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return (actions [B, D] in policy units, their log-densities [B] or None) for standard normal noise [B, D]."""
        ...

    def draw_next(self, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return what `draw` returns, of the actions at which the critics' target is computed."""
        ...


class Categorical(nn.Module):
    """Categorical distribution of A actions; the outputs are logits. Illegal actions have probability 0."""

    n_normal = 0

    def __init__(self, space: spaces.Discrete) -> None:
        super().__init__()
        self.width = int(space.n)

    def draw_noise(self, n_rows: int, generator: torch.Generator) -> Tensor:
        return _exponential(n_rows, self.width, generator)

    def sample(self, outputs: Tensor, legal: Tensor | None, noise: Tensor) -> Tensor:
        return (_masked(outputs, legal) - noise.log()).argmax(dim=1)  # distributed as the softmax

    def mode(self, outputs: Tensor, legal: Tensor | None) -> Tensor:
        return _masked(outputs, legal).argmax(dim=1)

    def log_prob(self, outputs: Tensor, action: Tensor, legal: Tensor | None) -> Tensor:
        return -functional.cross_entropy(_masked(outputs, legal), action, reduction="none")

    def probability(self, outputs: Tensor, legal: Tensor | None) -> Tensor:
        """Return the probability of every action, [B, A]."""
        return functional.softmax(_masked(outputs, legal), dim=1)

    def entropy(self, outputs: Tensor, legal: Tensor | None) -> Tensor:
        log_p = functional.log_softmax(_masked(outputs, legal), dim=1)
        p = log_p.exp()
        if legal is not None:  # before the product: 0 * infinity has no gradient
            log_p = log_p.masked_fill(log_p == -torch.inf, 0.0)
        return -(p * log_p).sum(dim=1)


class MultiCategorical(nn.Module):
    """D independent categorical distributions of A_d actions each; the outputs are their concatenated logits."""

    n_normal = 0
    _start: Tensor  # [D], the first action of each dimension

    def __init__(self, space: spaces.MultiDiscrete) -> None:
        super().__init__()
        self._shape = space.nvec.shape
        self._sizes: list[int] = space.nvec.ravel().tolist()
        self.register_buffer("_start", torch.as_tensor(space.start.ravel()), persistent=False)
        self._parts = [Categorical(spaces.Discrete(size)) for size in self._sizes]
        self.width = sum(self._sizes)

    def draw_noise(self, n_rows: int, generator: torch.Generator) -> Tensor:
        return _exponential(n_rows, self.width, generator)

    def sample(self, outputs: Tensor, legal: Tensor | None, noise: Tensor) -> Tensor:
        pairs = zip(self._split(outputs), self._split(noise), strict=True)
        return self._join([part.sample(logits, None, drawn) for (part, logits), (_, drawn) in pairs])

    def mode(self, outputs: Tensor, legal: Tensor | None) -> Tensor:
        return self._join([part.mode(logits, None) for part, logits in self._split(outputs)])

    def log_prob(self, outputs: Tensor, action: Tensor, legal: Tensor | None) -> Tensor:
        digits = (action.flatten(1) - self._start).unbind(1)
        pairs = zip(self._split(outputs), digits, strict=True)
        return torch.stack([part.log_prob(logits, digit, None) for (part, logits), digit in pairs]).sum(dim=0)

    def entropy(self, outputs: Tensor, legal: Tensor | None) -> Tensor:
        return torch.stack([part.entropy(logits, None) for part, logits in self._split(outputs)]).sum(dim=0)

    def _split(self, outputs: Tensor) -> list[tuple[Categorical, Tensor]]:
        return list(zip(self._parts, torch.split(outputs, self._sizes, dim=1), strict=True))

    def _join(self, digits: list[Tensor]) -> Tensor:
        return (torch.stack(digits, dim=1) + self._start).view(-1, *self._shape)


class Bernoulli(nn.Module):
    """D independent Bernoulli distributions; the outputs are logits of 1."""

    n_normal = 0

    def __init__(self, space: spaces.MultiBinary) -> None:
        super().__init__()
        self._shape = space.shape
        self.width = math.prod(space.shape)

    def draw_noise(self, n_rows: int, generator: torch.Generator) -> Tensor:
        return torch.rand(n_rows, self.width, generator=generator, device=generator.device, dtype=torch.float32)

    def sample(self, outputs: Tensor, legal: Tensor | None, noise: Tensor) -> Tensor:
        return (noise < outputs.sigmoid()).to(torch.int8).view(-1, *self._shape)

    def mode(self, outputs: Tensor, legal: Tensor | None) -> Tensor:
        return (outputs > 0).to(torch.int8).view(-1, *self._shape)

    def log_prob(self, outputs: Tensor, action: Tensor, legal: Tensor | None) -> Tensor:
        bits = action.reshape(len(action), -1).to(outputs.dtype)
        return -functional.binary_cross_entropy_with_logits(outputs, bits, reduction="none").sum(dim=1)

    def entropy(self, outputs: Tensor, legal: Tensor | None) -> Tensor:
        p = outputs.sigmoid()
        return functional.binary_cross_entropy_with_logits(outputs, p, reduction="none").sum(dim=1)


class Gaussian(nn.Module):
    """Normal distribution in D dimensions; the outputs are means, the log standard deviations parameters.

    Actions are in policy units and unbounded: `ActionScale` maps them to the space and clips them, while the policy
    learns from the unclipped action. `log_std` is the initial log standard deviation.
    """

    def __init__(self, space: spaces.Box, *, log_std: float = 0.0) -> None:
        with Checks("Gaussian") as checks:
            checks.number("log_std", log_std)
        super().__init__()
        self._shape = space.shape
        self.width = self.n_dimensions = self.n_normal = math.prod(space.shape)
        self.log_std = nn.Parameter(torch.full((self.width,), float(log_std), dtype=torch.float32))

    def draw_noise(self, n_rows: int, generator: torch.Generator) -> Tensor:
        return draw_normal(n_rows, self.width, generator)

    def sample(self, outputs: Tensor, legal: Tensor | None, noise: Tensor) -> Tensor:
        return (outputs + self.log_std.exp() * noise).view(-1, *self._shape)

    def mode(self, outputs: Tensor, legal: Tensor | None) -> Tensor:
        return outputs.view(-1, *self._shape)

    def log_prob(self, outputs: Tensor, action: Tensor, legal: Tensor | None) -> Tensor:
        z = (action.reshape(len(action), -1).to(outputs.dtype) - outputs) / self.log_std.exp()
        return -(0.5 * z.square() + self.log_std + HALF_LOG_2_PI).sum(dim=1)

    def entropy(self, outputs: Tensor, legal: Tensor | None) -> Tensor:
        entropy = (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()
        return entropy.expand(len(outputs))


@checked
class SquashedGaussian(nn.Module):
    """Normal distribution in D dimensions squashed into policy units by tanh: unit = tanh(u), in [-1, 1].

    Haarnoja et al. (2018), appendix C: log p(unit) = log normal(u) - sum log(1 - tanh(u)**2), where
    log(1 - tanh(u)**2) = 2 (log 2 - u - softplus(-2u)) loses no digits (the form of TensorFlow Probability).

    `ActionScale` maps units to the bounds of the space. Densities and entropies are those of units, whatever the
    bounds; per unit of the space a log-density is smaller by the sum of log(half-width). The density of a unit is that
    of u = atanh(unit), at most 1e-6 from the bounds. `mode` is the unit at the normal's mean: the median, not the
    density's peak.

    Args:
        space: a Box of floats, bounded in every dimension.
        log_std: initial log standard deviation; these are parameters, and the outputs are D means. None: the outputs
            are D means and D log standard deviations, clipped to -20..2.
    """

    noise_std: Schedule | None = None
    has_density = True
    _nodes: Tensor  # [Q], of the quadrature, in standard deviations
    _shares: Tensor  # [Q], its weights, with sum 1

    def __init__(self, space: Space[Any], *, log_std: float | None = 0.0) -> None:
        space = bounded_box("SquashedGaussian", space)
        if log_std is not None:
            with Checks("SquashedGaussian") as checks:
                checks.number("log_std", log_std)
        super().__init__()
        self._shape = space.shape
        self.n_dimensions = self.n_normal = math.prod(space.shape)
        self.width = self.n_dimensions if log_std is not None else 2 * self.n_dimensions
        self.log_std = (
            None
            if log_std is None
            else nn.Parameter(torch.full((self.n_dimensions,), float(log_std), dtype=torch.float32))
        )
        nodes, shares = np.polynomial.hermite_e.hermegauss(_N_NODES)
        for name, outputs in (("_nodes", nodes), ("_shares", shares / shares.sum())):
            self.register_buffer(name, torch.as_tensor(outputs, dtype=torch.float32), persistent=False)

    def draw(self, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return (tanh(u) [B, D], its log-density [B]) for standard normal noise [B, D]; both have gradients."""
        mean, log_std = self._normal(outputs)
        u = mean + log_std.exp() * noise
        return u.tanh(), (-0.5 * noise.square() - log_std - HALF_LOG_2_PI - _log_derivative(u)).sum(dim=1)

    draw_next = draw

    def draw_noise(self, n_rows: int, generator: torch.Generator) -> Tensor:
        """Sample standard normal noise [B, D]."""
        return draw_normal(n_rows, self.n_dimensions, generator)

    def sample(self, outputs: Tensor, legal: Tensor | None, noise: Tensor) -> Tensor:
        """Return the actions [B, ...] that noise [B, D] selects."""
        mean, log_std = self._normal(outputs)
        return (mean + log_std.exp() * noise).tanh().view(-1, *self._shape)

    def mode(self, outputs: Tensor, legal: Tensor | None) -> Tensor:
        """Return tanh of the mean, [B, ...]."""
        return self._normal(outputs)[0].tanh().view(-1, *self._shape)

    def log_prob(self, outputs: Tensor, action: Tensor, legal: Tensor | None) -> Tensor:
        """Return the log-density [B] of actions in [-1, 1], after the tanh."""
        mean, log_std = self._normal(outputs)
        u = action.reshape(len(action), -1).to(mean.dtype).clamp(_EDGE - 1.0, 1.0 - _EDGE).atanh()
        z = (u - mean) / log_std.exp()
        normal = -0.5 * z.square() - log_std - HALF_LOG_2_PI
        return (normal - _log_derivative(u)).sum(dim=1)

    def entropy(self, outputs: Tensor, legal: Tensor | None) -> Tensor:
        """Return the entropy per row, [B], with gradients.

        It has no closed form: it is the normal's, plus the mean of log |d unit / d u| by Gauss-Hermite quadrature.
        Minus the log-probability of the action taken, the fallback of stable-baselines3, has an expected gradient of 0.
        """
        mean, log_std = self._normal(outputs)
        u = mean.unsqueeze(-1) + log_std.exp().unsqueeze(-1) * self._nodes  # [B, D, Q]
        of_normal = log_std + HALF_LOG_2_PI + 0.5
        return (of_normal + _log_derivative(u) @ self._shares).sum(dim=1)

    def _normal(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and log standard deviations, [B, D] each; the latter are [D] if they are parameters."""
        if self.log_std is not None:
            return outputs, self.log_std
        mean, log_std = outputs.chunk(2, dim=1)
        return mean, log_std.clamp(*LOG_STD_RANGE)


class DistributionOf(Protocol):
    """Makes the family of distributions of actions in a bounded Box, such as a part with options of its own."""

    def __call__(self, space: spaces.Box) -> Reparameterized: ...


class SquashedGaussians(Part):
    """`SquashedGaussian` distributions, whose means and log standard deviations are the actor's outputs."""

    def __call__(self, space: spaces.Box) -> Reparameterized:
        """Return the family for a space."""
        return SquashedGaussian(space, log_std=None)


def family_of(subject: str, distribution: DistributionOf | None, action_space: Space[Any]) -> Reparameterized:
    """Return the family that `distribution` makes for the actions of a space, by default `SquashedGaussians`.

    Raises:
        SpaceMismatchError: the space is no bounded Box of floats.
        ConfigError: what is made is not `Reparameterized`.
    """
    space, make = bounded_box(subject, action_space), SquashedGaussians() if distribution is None else distribution
    made: object = None
    cause: TypeError | None = None
    try:
        made = make(space)
    except TypeError as error:  # called with a Box alone
        cause = error
    if not isinstance(made, Reparameterized):
        raise ConfigError(
            f"{subject}.distribution must make a family of distributions from a Box, as SquashedGaussians() does, got "
            f"{make!r}, which {f'makes {made!r}' if cause is None else f'raises TypeError: {cause}'}"
        ) from cause
    return made


def bounded_box(subject: str, space: Space[Any]) -> spaces.Box:
    """Return a Box of floats with low < high, both finite, in every dimension; raise for any other space."""
    space = flat_actions(space)
    if not isinstance(space, spaces.Box) or space.dtype not in (np.float32, np.float64):
        remedy = "use PPOPolicy or A2CPolicy" if isinstance(space, StructuredHybrid) else "use DQNPolicy or PPOPolicy"
        if isinstance(space, spaces.Box):
            remedy = USABLE_ACTIONS
        raise SpaceMismatchError(f"{subject} needs actions in a Box of float32 or float64, got {space}: {remedy}")
    if not space.is_bounded():
        raise SpaceMismatchError(
            f"{subject} squashes actions between bounds, and {space} has an unbounded dimension: give the environment "
            "finite ones (gymnasium.wrappers.RescaleAction, or a Box of its own)"
        )
    if not np.all(space.low < space.high):
        raise SpaceMismatchError(
            f"{subject} squashes actions between bounds, and those of {space} are equal in a dimension: leave that "
            "dimension out of the actions"
        )
    return space


def draw_normal(n_rows: int, width: int, generator: torch.Generator) -> Tensor:
    """Sample standard normal noise [B, N] on the generator's device."""
    return torch.randn(n_rows, width, generator=generator, device=generator.device, dtype=torch.float32)


def _log_derivative(u: Tensor) -> Tensor:
    """Return log(1 - tanh(u)**2), elementwise."""
    return 2.0 * (math.log(2.0) - u - functional.softplus(-2.0 * u))


class Hybrid(nn.Module):
    """Flat rows with independent discrete and Box columns: a `MultiCategorical` and a normal distribution.

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
    _order: Tensor  # [W], the index of each column among discrete columns followed by Box columns

    def __init__(
        self, space: StructuredHybrid, *, action_bound_method: ActionBound = "clip", log_std: float = 0.0
    ) -> None:
        super().__init__()
        self.discrete = MultiCategorical(spaces.MultiDiscrete(space.discrete.nvec))
        kind = SquashedGaussian if action_bound_method == "tanh" else Gaussian
        self.box = kind(space.box, log_std=log_std)
        self.width, self.n_normal = self.discrete.width + self.box.width, self.box.n_normal
        is_discrete = space.structure.is_discrete
        columns = np.flatnonzero(is_discrete), np.flatnonzero(~is_discrete)
        order = np.concatenate(columns).argsort()
        for name, index in zip(("_discrete_columns", "_box_columns", "_order"), (*columns, order), strict=True):
            self.register_buffer(name, torch.as_tensor(index), persistent=False)

    def draw_noise(self, n_rows: int, generator: torch.Generator) -> Tensor:
        return torch.cat([part.draw_noise(n_rows, generator) for part in (self.discrete, self.box)], dim=1)

    def sample(self, outputs: Tensor, legal: Tensor | None, noise: Tensor) -> Tensor:
        logits, means = self._split(outputs)
        of_discrete, of_box = noise[:, : self.discrete.width], noise[:, self.discrete.width :]
        return self._join(self.discrete.sample(logits, None, of_discrete), self.box.sample(means, None, of_box))

    def mode(self, outputs: Tensor, legal: Tensor | None) -> Tensor:
        logits, means = self._split(outputs)
        return self._join(self.discrete.mode(logits, None), self.box.mode(means, None))

    def log_prob(self, outputs: Tensor, action: Tensor, legal: Tensor | None) -> Tensor:
        logits, means = self._split(outputs)
        choices, box = action[:, self._discrete_columns].long(), action[:, self._box_columns]
        return self.discrete.log_prob(logits, choices, None) + self.box.log_prob(means, box, None)

    def entropy(self, outputs: Tensor, legal: Tensor | None) -> Tensor:
        logits, means = self._split(outputs)
        return self.discrete.entropy(logits, None) + self.box.entropy(means, None)

    def _split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        logits, means = torch.split(outputs, [self.discrete.width, self.box.width], dim=1)
        return logits, means

    def _join(self, choices: Tensor, box: Tensor) -> Tensor:
        return torch.cat([choices.to(box.dtype), box], dim=1)[:, self._order]


def distribution_for(
    space: Space[Any], *, action_bound_method: ActionBound = "clip", log_std: float | None = None
) -> Distribution:
    """Return the family of distributions for an action space.

    Args:
        space: of one action.
        action_bound_method: how actions of a Box are bounded: "clip" is a `Gaussian` whose actions are clipped, "tanh"
            a `SquashedGaussian`; of a `StructuredHybrid`, in its Box columns.
        log_std: initial log standard deviation of a Box; None is 0.
    """
    with Checks("distribution_for") as checks:
        checks.one_of("action_bound_method", action_bound_method, get_args(ActionBound))
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
    raise SpaceMismatchError(f"there is no distribution of actions for {space}: {USABLE_ACTIONS}")


def normal_part(distribution: object) -> Gaussian | SquashedGaussian | None:
    """Return the normal distribution of a Box, or of a `Hybrid`'s Box columns; None for any other."""
    part = distribution.box if isinstance(distribution, Hybrid) else distribution
    return part if isinstance(part, (Gaussian, SquashedGaussian)) else None


def _exponential(n_rows: int, width: int, generator: torch.Generator) -> Tensor:
    """Sample exponential noise [B, N]: minus its logarithm is Gumbel noise."""
    empty = torch.empty(n_rows, width, device=generator.device, dtype=torch.float32)
    return empty.exponential_(generator=generator)


def _masked(logits: Tensor, legal: Tensor | None) -> Tensor:
    return logits if legal is None else logits.masked_fill(~legal, -torch.inf)
