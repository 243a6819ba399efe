"""What an update leaves behind: priorities still on the device, and scalars whose means are read once in a while."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What an update leaves on the device."""

    priority: Tensor | None  # [B]
    is_lost: Tensor | None = None  # whether it was skipped, where that may be

    def read_priority(self) -> NDArray[np.float32] | None:
        """Wait for the device and return the priorities [B], None where the learner has none or was taught none."""
        if self.priority is None or (self.is_lost is not None and bool(self.is_lost)):
            return None
        return self.priority.cpu().numpy()


def weight_metrics(weight: Tensor) -> dict[str, Tensor]:
    """Show importance weights [B]: their mean, and the effective sample size, (sum w)^2 / sum w^2, as a share of B."""
    mean = weight.mean()
    return {"weight_mean": mean, "effective_share": mean.square() / weight.square().mean()}


class Meter:
    """Means of named scalars, summed where they are, on the device or as plain numbers, and read once in a while."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._sum: Tensor | None = None
        self._plain: dict[str, float] = {}
        self._count = 0

    def add(self, metrics: Mapping[str, Tensor], **numbers: float) -> None:
        """Add one update's scalars and plain numbers, always of the same names."""
        for name, number in numbers.items():
            self._plain[name] = self._plain.get(name, 0.0) + number
        values = torch.stack(list(metrics.values())).double()  # so that means hardly depend on when they are read
        if self._sum is None:
            self._names, self._sum = tuple(metrics), values
        else:
            self._sum += values
        self._count += 1

    def total(self, name: str) -> float:
        """Wait for the device and return the sum of a scalar since the last read."""
        return 0.0 if self._sum is None else float(self._sum[self._names.index(name)])

    def read(self, left_out: str | None = None) -> dict[str, float]:
        """Wait for the device, return the means since the last read, and begin anew; empty after no update.

        `left_out` names a scalar that is 1 where an update's others are 0 and shall not count.
        """
        if self._sum is None:
            return {}
        sums = dict(zip(self._names, self._sum.tolist(), strict=True))
        n_counted = self._count - (sums[left_out] if left_out is not None else 0)
        means = {name: total / n_counted for name, total in sums.items() if n_counted}
        if left_out is not None:
            means[left_out] = sums[left_out] / self._count
        plain = {name: total / self._count for name, total in self._plain.items()}
        self._sum, self._plain, self._count = None, {}, 0
        return {**means, **plain}
