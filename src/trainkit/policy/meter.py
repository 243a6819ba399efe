"""What an update leaves behind: priorities still on the device, and scalars whose means are read once in a while."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainkit.engine.gradient_step import Scalar


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What an update leaves on the device."""

    priority: Tensor | NDArray[np.float32] | None  # [B]
    is_lost: Scalar | None = None  # whether it was skipped, where that may be

    def read_priority(self) -> NDArray[np.float32] | None:
        """Wait for the device and return the priorities [B], None where the learner has none or was taught none."""
        if self.priority is None or (self.is_lost is not None and bool(self.is_lost)):
            return None
        return self.priority if isinstance(self.priority, np.ndarray) else self.priority.cpu().numpy()


class Meter:
    """Means of named scalars; those on a device are summed there, and read once in a while."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()  # of those on the device
        self._on_device: Tensor | None = None
        self._sums: dict[str, float] = {}  # of all others
        self._plain: dict[str, float] = {}
        self._count = 0

    def add(self, metrics: Mapping[str, Scalar], **numbers: float) -> None:
        """Add one update's scalars and plain numbers, always of the same names."""
        for name, number in numbers.items():
            self._plain[name] = self._plain.get(name, 0.0) + number
        there: dict[str, Tensor] = {}
        for name, scalar in metrics.items():
            if isinstance(scalar, Tensor) and not scalar.is_cpu:
                there[name] = scalar
            else:
                self._sums[name] = self._sums.get(name, 0.0) + float(scalar)
        if there:
            values = torch.stack(list(there.values())).double()  # so that means hardly depend on when they are read
            self._names = tuple(there)
            self._on_device = values if self._on_device is None else self._on_device + values
        self._count += 1

    def total(self, name: str) -> float:
        """Wait for the device and return the sum of a scalar since the last read."""
        return self._totals().get(name, 0.0)

    def read(self, left_out: str | None = None) -> dict[str, float]:
        """Wait for the device, return the means since the last read, and begin anew; empty after no update.

        `left_out` names a scalar that is 1 where an update's others are 0 and shall not count.
        """
        if not self._count:
            return {}
        sums = self._totals()
        n_counted = self._count - (sums[left_out] if left_out is not None else 0)
        means = {name: total / n_counted for name, total in sums.items() if n_counted}
        if left_out is not None:
            means[left_out] = sums[left_out] / self._count
        plain = {name: total / self._count for name, total in self._plain.items()}
        self._on_device, self._sums, self._plain, self._count = None, {}, {}, 0
        return {**means, **plain}

    def _totals(self) -> dict[str, float]:
        there = [] if self._on_device is None else self._on_device.tolist()
        return self._sums | dict(zip(self._names, there, strict=False))
