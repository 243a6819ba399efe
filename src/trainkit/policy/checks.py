"""Checks of observations, of the networks' outputs and of losses, common to all policies."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from numpy.typing import NDArray
from torch import Tensor

from trainkit.core.data import ArraySpec
from trainkit.core.errors import ConfigError, SpaceMismatchError
from trainkit.core.spaces import count_actions, flat_actions
from trainkit.engine.loss import Loss
from trainkit.nets.networks import Prediction
from trainkit.policy.values import DrawnFractions, Value

_MISMATCHES = (RuntimeError, TypeError, ValueError, KeyError, IndexError, AttributeError)


def check_same_spaces(policy: Any, observation_space: Space[Any], action_space: Space[Any]) -> None:
    """Raise `SpaceMismatchError` if a policy has a space that differs from the environments'."""
    name = type(policy).__name__
    pairs = {
        "observation_space": (policy.observation_space, observation_space),
        "action_space": (policy.action_space, flat_actions(action_space)),
    }
    wrong = [
        f"{name}.{which} is {own}, the environments' is {theirs}: make one fit the other, "
        "for example by the wrappers that training had"
        for which, (own, theirs) in pairs.items()
        if own is not None and own != theirs
    ]
    if wrong:
        raise SpaceMismatchError("\n".join(wrong))


@contextmanager
def forward_on(networks: str, observation_space: Space[Any]) -> Iterator[None]:
    """Run a forward pass on a blank observation without gradients; name the space if it fails."""
    try:
        with torch.no_grad():
            yield
    except _MISMATCHES as error:
        raise SpaceMismatchError(f"{networks} cannot take an observation of {observation_space}: {error}") from error


def check_prediction(subject: str, prediction: Prediction, action_space: Space[Any], value: Value) -> None:
    """Raise `SpaceMismatchError` if a network's action values for one observation have a wrong shape."""
    shape, fractions = tuple(prediction.outputs.shape), prediction.fractions
    width = value.width if fractions is None else fractions.shape[1]
    expected = (1, count_actions(subject, action_space), width)
    if shape != expected or (fractions is not None) != isinstance(value, DrawnFractions):
        raise SpaceMismatchError(
            f"{subject}'s network gives outputs {shape} for one observation, but {action_space} and "
            f"{type(value).__name__} need {expected} [B, A, W]: give "
            f"it {expected[1] * expected[2]} outputs"
        )


def check_loss(parts: str, loss_of_row: Callable[[], Loss], of_others: str) -> Loss:
    """Return the loss of one row; raise `ConfigError` if parts of a learner fail or do not give it per row.

    Args:
        parts: that give the loss, for messages.
        loss_of_row: returns it.
        of_others: what those besides the value part return, for messages.
    """
    try:
        with torch.no_grad():
            loss = loss_of_row()
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{parts} fail together on one row: {type(error).__name__}: {error}: a value part's `loss` returns "
            f"(loss [B], priority [B]), {of_others}"
        ) from error
    _check_per_row(parts, "loss", loss.per_row)
    return loss


def check_priority(parts: str, loss: Loss) -> None:
    """Raise `ConfigError` if parts of a learner do not give a priority for one row."""
    _check_per_row(parts, "priority", loss.priority)


def _check_per_row(parts: str, name: str, column: Tensor | None) -> None:
    shape = None if column is None else tuple(column.shape)
    if shape != (1,):
        raise ConfigError(
            f"{parts} must give a {name} per row, (1,) for one, got {shape}: a value part's `loss` returns "
            "(loss [B], priority [B])"
        )


def blank_columns(names: Any, known: Mapping[str, ArraySpec], device: torch.device) -> dict[str, Tensor] | None:
    """Return one row of zeros of each named column on the device; None if the shape of one is unknown."""
    if any(name not in known for name in names):
        return None
    arrays = {name: np.zeros((1, *known[name].shape), known[name].dtype) for name in names}
    return {name: torch.as_tensor(array, device=device) for name, array in arrays.items()}


def non_integer_actions(policy: Any, action: NDArray[Any]) -> ConfigError:
    """Return the error of actions of a Discrete space that are not integers."""
    return ConfigError(
        f"{type(policy).__name__}: actions of {policy.action_space or 'a Discrete space'} must be integers, got "
        f"{action.dtype}: cast them"
    )
