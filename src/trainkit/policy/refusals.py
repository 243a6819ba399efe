"""What every policy refuses in the same words: observations its networks cannot take, answers that are not finite."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from numpy.typing import NDArray

from trainkit.errors import DivergedError, SpaceMismatchError

_MISFITS = (RuntimeError, TypeError, ValueError, KeyError, IndexError, AttributeError)


@contextmanager
def trying(networks: str, observation_space: Space[Any]) -> Iterator[None]:
    """Try networks on a blank observation, without gradients; say of what they cannot take which space it was."""
    try:
        with torch.no_grad():
            yield
    except _MISFITS as error:
        raise SpaceMismatchError(f"{networks} cannot take an observation of {observation_space}: {error}") from error


def refuse_unsound(
    answers: str, is_sound: NDArray[np.bool_], told: Any, env_ids: NDArray[np.intp] | None, step: int
) -> None:
    """Refuse the first row [K] that is not sound, with what was told of it and its environment."""
    if is_sound.all():
        return
    row = int(np.argmin(is_sound))
    env = row if env_ids is None else int(env_ids[row])
    raise DivergedError(f"{answers} {told[row].tolist()} for env {env} at step {step}")
