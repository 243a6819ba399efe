"""Scaling of actions between policy units, [-1, 1], and the bounds of a Box."""

import logging
from typing import Any, Literal, TypeGuard, TypeVar

import numpy as np
import torch
from gymnasium import Space, spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit.core.errors import Checks, ConfigError, SpaceMismatchError
from trainkit.core.signatures import checked
from trainkit.core.spaces import StructuredHybrid, flat_actions

ActionBound = Literal["clip", "tanh"]
Actions = TypeVar("Actions", NDArray[Any], Tensor)

_log = logging.getLogger(__name__)


@checked
class ActionScale(nn.Module):
    """Map between policy units and a Box: -1 is the lower bound, 1 the upper bound of each dimension.

    A policy's network and distribution work in policy units. Actions outside of the policy (what `act` and `predict`
    return, what environments take, what buffers and datasets store) are in the units of the space and inside it.

    A dimension with an infinite bound (or bounds so far apart that their difference overflows) keeps its units and is
    only clipped at its finite side; a message in the log says so once.

    Discrete columns of flat rows are counted from 0 in policy units, wherever the leaf starts.

    Args:
        space: a Box of float32 or float64, or a `StructuredHybrid`.
        scaling: False keeps the units of every dimension; actions are still clipped to the bounds.

    Attributes:
        scaling: as given.
        is_scaled: [...], which dimensions are scaled.
    """

    middle: Tensor  # [...], of the space's shape and dtype, as the others
    half_width: Tensor  # half the distance between the bounds, 1 where not scaled
    low: Tensor
    high: Tensor

    def __init__(self, space: Space[Any], *, scaling: bool = True) -> None:
        if not _has_units(space):
            raise SpaceMismatchError(f"ActionScale needs actions in a Box of float32 or float64, got {space}")
        with Checks("ActionScale") as checks:
            checks.flag("scaling", scaling)
        super().__init__()
        self.scaling = scaling
        with np.errstate(over="ignore", invalid="ignore"):
            is_finite = np.isfinite(space.high - space.low)
        low, high = (np.where(is_finite, bound, 0.0).astype(np.float64) for bound in (space.low, space.high))
        is_wide = is_finite & (high > low)
        if isinstance(space, StructuredHybrid):
            is_wide &= ~space.structure.is_discrete
        self.is_scaled: NDArray[np.bool_] = is_wide & scaling
        if scaling and not is_finite.all():
            _log.warning(
                "actions %s have infinite bounds: those dimensions keep their units and are only clipped; bounds of "
                "about the size of useful actions make learning easier (gymnasium.wrappers.TransformAction)",
                space,
            )
        one_value = is_finite & ~is_wide & scaling  # where both bounds are equal, that value is the origin
        middle = np.where(self.is_scaled | one_value, low + (high - low) / 2.0, 0.0)
        if isinstance(space, StructuredHybrid):
            middle = np.where(space.structure.is_discrete, low, middle)
        arrays = {
            "middle": middle,
            "half_width": np.where(self.is_scaled, (high - low) / 2.0, 1.0),
            "low": space.low,
            "high": space.high,
        }
        self._arrays = {name: np.asarray(array, space.dtype) for name, array in arrays.items()}
        for name, array in self._arrays.items():
            self.register_buffer(name, torch.as_tensor(array), persistent=False)

    def to_space(self, unit: Actions) -> Actions:
        """Return actions [..., *shape] in policy units as actions inside the space, in the space's dtype."""
        if isinstance(unit, Tensor):
            return (self.middle + self.half_width * unit).to(self.low.dtype).clamp(self.low, self.high)
        own = self._arrays
        scaled = (own["middle"] + own["half_width"] * unit).astype(own["low"].dtype, copy=False)
        inside: NDArray[Any] = np.minimum(np.maximum(scaled, own["low"]), own["high"])
        return inside

    def to_unit(self, action: Actions) -> Actions:
        """Return actions [..., *shape] of the space in policy units, as float32; the inverse of `to_space`."""
        if isinstance(action, Tensor):
            return ((action - self.middle) / self.half_width).to(torch.float32)
        own = self._arrays
        unit: NDArray[Any] = ((action - own["middle"]) / own["half_width"]).astype(np.float32, copy=False)
        return unit


def action_scale_for(space: Space[Any], *, scaling: bool) -> ActionScale | None:
    """Return the scale of actions with Box columns of floats; None for any other space, which has none to leave out."""
    flat = flat_actions(space)
    if _has_units(flat):
        return ActionScale(flat, scaling=scaling)
    if not scaling:
        raise ConfigError(f"action_scaling has no effect: actions are {space}, and it is for a Box; leave it out")
    return None


def _has_units(space: Space[Any]) -> TypeGuard[spaces.Box | StructuredHybrid]:
    is_float_box = isinstance(space, spaces.Box) and space.dtype in (np.float32, np.float64)
    return is_float_box or isinstance(space, StructuredHybrid)
