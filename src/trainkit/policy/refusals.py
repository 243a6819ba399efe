"""What every policy refuses in the same words: observations its networks cannot take, answers that are not finite."""

import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from numpy.typing import NDArray

from trainkit import tree
from trainkit.errors import DivergedError, SpaceMismatchError
from trainkit.spaces import array_specs

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
