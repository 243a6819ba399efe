"""The automatic support of a categorical value: fitted to the data before learning, and widened while it learns."""

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from trainkit.core.data import Batch
from trainkit.core.errors import ConfigError
from trainkit.core.protocols import HasReturnRange
from trainkit.engine.gradient_step import GradientStep
from trainkit.nets.networks import MapsOutputs, mapped
from trainkit.policy.parts import LearningPart
from trainkit.policy.update_result import PeriodicMeans
from trainkit.policy.values import SupportValue, Value

if TYPE_CHECKING:
    from trainkit.policy.base import Policy

_log = logging.getLogger(__name__)

LARGEST_SHARE = 0.05  # of targets that are clipped at a bound
PERIOD = 500  # updates of which the mean share is taken
_BEYOND = -12.0  # logits of returns that were beyond the bounds, above that of the bound
_RIDGE = 1e-2  # rows' worth of trust in the map before it was fitted


class AutomaticSupport(LearningPart):
    """Keeps the automatic bounds of a value part as wide as the returns to learn.

    After each `PERIOD` updates in which more than `LARGEST_SHARE` of the targets was clipped at a bound, on average,
    that bound moves outwards by the width of the support. Where targets move beyond a bound so little that repeating
    it forever would end within `SLACK` of the width, they do not count. The last layers of the networks and the
    optimizer's moments of them are adapted, so that each network represents nearly the same distributions as before
    (`refit`).

    Args:
        subject: the policy's class, for messages.
        value: the value part.
        networks: whose outputs are its logits; the first one learns.
        logits: returns those of all networks for the observations of a batch, [N, W].
        learns_by: the name of the gradient step by which it learns.

    Attributes:
        watched: the clipped shares since the last look.
    """

    watched: PeriodicMeans

    def __init__(
        self,
        subject: str,
        value: SupportValue,
        networks: Sequence[nn.Module],
        logits: Callable[[Any], Tensor],
        *,
        learns_by: str,
    ) -> None:
        kind = type(value).__name__
        self._networks: list[MapsOutputs] = []
        for network in networks:
            own = getattr(network, "module", network)  # of the user's
            if not isinstance(own, MapsOutputs):
                raise ConfigError(
                    f"{subject}: {kind} without v_min and v_max widens its support, for which the network has to map "
                    f"its outputs, and {type(own).__name__} has no map_outputs(matrix, offset): give {kind} v_min and "
                    "v_max, or define it as nets.QNetwork does"
                )
            self._networks.append(own)
        self._subject, self.value, self._logits, self._learns_by = f"{subject}: {kind}", value, logits, learns_by
        self.watched = PeriodicMeans(("clipped_share", "clipped_below"), PERIOD)

    @property
    def is_fitted(self) -> bool:
        """Whether the bounds were set; this waits for the device."""
        return bool(self.value.is_fitted)

    def before_updates(self, policy: "Policy", buffer: Any) -> None:
        """Set the bounds by the returns in a buffer, unless they were set before."""
        if not self.is_fitted and isinstance(buffer, HasReturnRange):
            self.fit(*policy.extremes(buffer.return_range(policy.horizon)))

    def before_update(self, policy: "Policy", batch: Batch) -> None:
        """Set the bounds by the rewards of the first batch, where no trainer has set them."""
        if policy.n_updates == 0 and not self.is_fitted:
            self.fit(float(np.min(batch.reward)), float(np.max(batch.reward)))

    def after_update(self, policy: "Policy", batch: Batch) -> None:
        """Widen the support after each period."""
        if self.watched.is_due:
            gradient_step = policy.gradient_steps[self._learns_by]
            self.follow(lambda: self._logits(batch), gradient_step)

    def fit(self, low: float, high: float) -> None:
        """Set the bounds by the smallest and the largest return."""
        self.value.fit(low, high)
        _log.info("%s has the support %g..%g for returns of %g..%g", self._subject, *self._bounds, low, high)

    def follow(self, logits: Callable[[], Tensor], gradient_step: GradientStep) -> None:
        """Widen the support at the bounds where too much was clipped since the last look; this waits for the device.

        Args:
            logits: returns those of all networks for some observations, [N, W].
            gradient_step: which trains the first network; its processes widen it by the mean of their shares.
        """
        shares, processes = self.watched.read(), gradient_step.process_group
        own_below = shares.get("clipped_below", 0.0)
        below, above = processes.mean(own_below), processes.mean(shares.get("clipped_share", 0.0) - own_below)
        if max(below, above) <= LARGEST_SHARE:
            return
        before, bounds = self._bounds, self.value.widened(below=below > LARGEST_SHARE, above=above > LARGEST_SHARE)
        if bounds == before:  # those that were given
            return
        given = processes.copy(logits())
        support = self.value.support.clone()
        self.value.set_bounds(*bounds)
        projection = projected(support, self.value.support)
        matrix, offset = refit(given, projection)
        changed = [network.map_outputs(matrix, offset) for network in self._networks]
        of_gradients = _with_edges(projection).to(matrix)  # by the logits, probability - target
        gradient_step.map_moments(changed[0], lambda moment: mapped(moment, of_gradients))
        _log.info(
            "%s has the support %g..%g instead of %g..%g: %.1f%% of the last targets were below and %.1f%% above",
            *(self._subject, *bounds, *before, 100 * below, 100 * above),
        )

    @property
    def _bounds(self) -> tuple[float, float]:
        return self.value.v_min, self.value.v_max


def add_support(
    policy: "Policy", value: Value, networks: Sequence[nn.Module], logits: Callable[[Any], Tensor], *, learns_by: str
) -> None:
    """Add an `AutomaticSupport` to a policy if its value part has automatic bounds."""
    if isinstance(value, SupportValue) and value.is_automatic:
        policy.add_part(AutomaticSupport(type(policy).__name__, value, networks, logits, learns_by=learns_by))


def projected(before: Tensor, after: Tensor) -> Tensor:
    """Return the matrix [W, W] that projects probabilities of returns onto other returns, evenly spaced.

    The probability of a return is shared between its two neighbors among the others by nearness, which keeps the mean
    (Bellemare et al., 2017, algorithm 1). In float64 on the CPU, since not every device has it.
    """
    before, after = before.to("cpu", torch.float64), after.to("cpu", torch.float64)
    last = len(after) - 1
    position = (before.clamp(after[0], after[-1]) - after[0]) * last / (after[-1] - after[0])
    distance = position - torch.arange(last + 1).unsqueeze(1)
    return (1.0 - distance.abs()).clamp(min=0.0)


def refit(logits: Tensor, projection: Tensor) -> tuple[Tensor, Tensor]:
    """Return (matrix [W, W], offset [W]): softmax(matrix @ logits + offset) is about projection @ softmax(logits).

    The logarithm of a projected probability, log sum_i P_ji p_i, is not linear in the logits. Each row of the matrix is
    the best linear function of the logits i that have a part in it, by least squares over the rows, each weighted by
    its projected probability; a row adds up to 1, as softmax does not depend on what is added to all logits. Ridge
    regression towards P_ji / sum_i P_ji and log sum_i P_ji, which are exact for equal logits, where few rows have any
    probability. A return that no old one has a part in gets the logit of the nearest old one, minus 12.

    Args:
        logits: [N, W].
        projection: [W, W], of `projected`.
    """
    log_p = torch.log_softmax(logits.detach().to("cpu", torch.float64), dim=1)
    p_after = log_p.exp() @ projection.T
    total = projection.sum(dim=1)
    matrix = _with_edges(projection)
    matrix /= matrix.sum(dim=1, keepdim=True)
    offset = torch.where(total > 0, total.log(), _BEYOND)
    for j in torch.nonzero(total > 0).flatten().tolist():
        base, *others = matrix[j].argsort(descending=True)[: int((matrix[j] > 0).sum())].tolist()
        columns = torch.stack([*(log_p[:, i] - log_p[:, base] for i in others), torch.ones_like(log_p[:, 0])], dim=1)
        start = torch.cat([matrix[j, others], offset[j : j + 1]])
        error = p_after[:, j].clamp(min=1e-300).log() - log_p[:, base] - columns @ start
        weighted = (columns * p_after[:, j : j + 1]).T
        ridge = _RIDGE * torch.eye(len(start), dtype=start.dtype)
        *shares, offset[j] = start + torch.linalg.solve(weighted @ columns + ridge, weighted @ error)
        matrix[j, others] = torch.stack(shares) if shares else matrix[j, others]
        matrix[j, base] = 1.0 - sum(shares)
    return matrix.to(logits), offset.to(logits)


def _with_edges(projection: Tensor) -> Tensor:
    """Return a projection in which returns that no old one has a part in are those of the nearest old one."""
    (inside,) = torch.nonzero(projection.sum(dim=1) > 0, as_tuple=True)
    edges = projection.clone()
    edges[: inside[0], 0] = 1.0
    edges[inside[-1] + 1 :, -1] = 1.0
    return edges
