"""Updates that cannot be taken: what is told of them, and how many in a row are let pass."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from trainkit.core.errors import DivergedError
from trainkit.engine.gradient_step import Scalar

OnNan = Literal["raise", "skip"]

_MOST_IN_A_ROW = 10
_ADVICE = "lower the learning rate or clip the reward"


def diverged(who: str, facts: Mapping[str, Any]) -> DivergedError:
    """Return the error of an update that was not taken, which has the facts.

    They are: update, step, loss, grad_norm, lr, and slots where rows were replayed.
    """
    error = DivergedError(
        f"{who}: update {facts['update']} at step {facts['step']} has gradient norm {facts['grad_norm']} and loss "
        f"{facts['loss']} at lr {facts['lr']:g}; it was not taken: {_ADVICE}"
    )
    error.facts = dict(facts)
    return error


def diverged_among(who: str, first: int, last: int) -> DivergedError:
    """Return the error of an update among some, on a device that nobody waited for."""
    error = DivergedError(
        f"{who}: a loss or gradient among updates {first} to {last} was not finite; those steps were not taken: "
        f"{_ADVICE}"
    )
    error.facts = {"first_update": first, "last_update": last}
    return error


class Skips:
    """Let updates pass that were not taken, as if they had not been, up to ten in a row; on the device."""

    def __init__(self, device: torch.device) -> None:
        self._in_a_row = torch.zeros((), device=device, dtype=torch.float32)
        self._longest = torch.zeros((), device=device, dtype=torch.float32)

    def leave_out(self, shown: Mapping[str, Scalar]) -> dict[str, Tensor]:
        """Return an update's scalars, zeros where a step of it was skipped; `skipped` says so, 0 or 1."""
        there = {name: torch.as_tensor(value, device=self._longest.device) for name, value in shown.items()}
        is_lost = there["skipped"] > 0
        self._in_a_row = (self._in_a_row + 1) * is_lost
        self._longest = torch.maximum(self._longest, self._in_a_row)
        kept = {name: torch.where(is_lost, 0.0, value) for name, value in there.items()}
        return kept | {"skipped": is_lost.to(torch.float32)}

    def refuse(self, who: str, last: int) -> None:
        """Wait for the device, and refuse to go on when too many in a row were skipped."""
        longest = int(self._longest)
        if longest > _MOST_IN_A_ROW:
            self._in_a_row.zero_()
            self._longest = torch.zeros_like(self._longest)
            raise DivergedError(
                f"{who}: {longest} updates in a row up to update {last} had a loss or gradient that was not finite; "
                f"none was taken, and on_nan='skip' lets {_MOST_IN_A_ROW} pass: {_ADVICE}"
            )
