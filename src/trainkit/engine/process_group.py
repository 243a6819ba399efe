"""The process group: the processes that learn together. One, this process, unless a run was started as several."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from trainkit.engine.parameter_storage import ParameterGroup


class ObservesRows(Protocol):
    """Running statistics of observations."""

    def observe(self, obs: Any) -> None: ...

    def fold(self) -> None: ...


class ProcessGroup:
    """One process, which has nothing to exchange; an extension's are several.

    Attributes:
        rank: of this process, from 0.
        n: number of processes.
        not_recordable: why a CUDA graph cannot record gradient steps of this group; None where it can.
    """

    rank: int = 0
    n: int = 1
    not_recordable: str | None = None

    def part(self, folder: Path) -> Path:
        """Return where this process's part of a checkpoint is."""
        return folder

    def average(self, groups: Sequence[ParameterGroup], loss: Tensor | float) -> None:
        """Average the gradients of groups in place; without a finite loss everywhere they are not finite anywhere."""

    def share(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor of floats by its mean over all processes, in place."""

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes in their order; values can be pickled."""
        return [value]

    def mean(self, number: float) -> float:
        """Return the mean of a number over all processes."""
        return number

    def copy(self, tensor: Tensor) -> Tensor:
        """Overwrite a tensor by that of the first process, and return it."""
        return tensor

    def shared(self, statistics: ObservesRows, device: Any) -> ObservesRows:
        """Return what observes the rows of all processes in statistics of observations on a device."""
        return statistics


ONE_PROCESS = ProcessGroup()
