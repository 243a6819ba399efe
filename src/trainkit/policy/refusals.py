"""What every policy refuses in the same words: observations its networks cannot take, answers that are not finite."""

import reprlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from numpy.typing import NDArray

from trainkit.core import tree
from trainkit.core.errors import ConfigError, DivergedError, SpaceMismatchError
from trainkit.core.spaces import array_specs, count_actions
from trainkit.engine.loss import Loss
from trainkit.nets.networks import Prediction
from trainkit.policy.quantiles import DrawnFractions
from trainkit.policy.values import Value

_MISFITS = (RuntimeError, TypeError, ValueError, KeyError, IndexError, AttributeError)


@contextmanager
def trying(networks: str, observation_space: Space[Any]) -> Iterator[None]:
    """Try networks on a blank observation, without gradients; say of what they cannot take which space it was."""
    try:
        with torch.no_grad():
            yield
    except _MISFITS as error:
        raise SpaceMismatchError(f"{networks} cannot take an observation of {observation_space}: {error}") from error


def read_rows(asker: str, obs: Any, observation_space: Space[Any]) -> tuple[Any, bool]:
    """Read one observation, or K of them, as arrays, and whether it was one; refuse what is neither."""
    specs = array_specs(observation_space)
    needed = tree.map_tree(lambda spec: spec.shape, specs)
    rule = f"{asker} needs one observation of shape {needed}, or K of them with K in front of each shape"
    try:
        rows = tree.map_tree(lambda spec, leaf: np.asarray(leaf, spec.dtype), specs, obs)
    except (*_MISFITS, OverflowError) as error:
        raise SpaceMismatchError(f"{rule}, got {reprlib.repr(obs)} ({error}): give it as in the space") from error
    pairs = list(zip(tree.leaves(specs), tree.leaves(rows), strict=True))
    if all(leaf.shape == spec.shape for spec, leaf in pairs):
        return rows, True
    first = pairs[0][1]
    if first.ndim == 0 or any(leaf.shape != (len(first), *spec.shape) for spec, leaf in pairs):
        raise SpaceMismatchError(f"{rule}, got {tree.map_tree(lambda leaf: leaf.shape, rows)}: reshape it")
    return rows, False


def refuse_unsound(
    answers: str, is_sound: NDArray[np.bool_], told: Any, env_ids: NDArray[np.intp] | None, step: int
) -> None:
    """Refuse the first row [K] that is not sound, with what was told of it and its environment."""
    if is_sound.all():
        return
    row = int(np.argmin(is_sound))
    env = row if env_ids is None else int(env_ids[row])
    raise DivergedError(f"{answers} {told[row].tolist()} for env {env} at step {step}")


def refuse_numbers(subject: str, prediction: Prediction, action_space: Space[Any], value: Value) -> None:
    """Refuse what a network of action values gives for one observation where the actions or the value need others."""
    shape, fractions = tuple(prediction.numbers.shape), prediction.fractions
    width = value.width if fractions is None else fractions.shape[1]
    expected = (1, count_actions(subject, action_space), width)
    if shape != expected or (fractions is not None) != isinstance(value, DrawnFractions):
        raise SpaceMismatchError(
            f"{subject}'s network gives numbers {shape} for one observation, but {action_space} and "
            f"{type(value).__name__} need {expected} [B, A, W]"
        )


def refuse_losses(parts: str, loss_of_row: Callable[[], Loss]) -> None:
    """Refuse parts of a learner that do not fit each other, by asking for loss and priority of one row."""
    try:
        with torch.no_grad():
            loss = loss_of_row()
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{parts} fail together on one row: {type(error).__name__}: {error}") from error
    shapes = tuple(loss.per_row.shape), None if loss.priority is None else tuple(loss.priority.shape)
    if shapes != ((1,), (1,)):
        raise ConfigError(f"{parts} must give a loss and a priority per row, (1,) and (1,) for one, got {shapes}")
