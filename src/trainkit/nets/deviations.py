"""Standard deviations of the normal distributions that a policy draws actions from."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainkit.core.stats import NO_VALUES, Summary
from trainkit.nets.distributions import Gaussian, Hybrid
from trainkit.nets.squashed import LOG_STD_RANGE, SquashedGaussian

_MOST_NOTED = 256  # draws, before they are summarized


class Deviations:
    """Summarize the deviations of a policy's draws, in policy units and before any tanh.

    Args:
        distribution: of the actions; of one that is no normal distribution nothing is noted, of a `Hybrid` those of
            its Box columns.
    """

    def __init__(self, distribution: object) -> None:
        if isinstance(distribution, Hybrid):
            distribution = distribution.box
        self._distribution = distribution if isinstance(distribution, (Gaussian, SquashedGaussian)) else None
        self._noted: list[Tensor | NDArray[Any]] = []  # logarithms [K, D]
        self._summary = NO_VALUES

    def note(self, numbers: Tensor | NDArray[Any]) -> None:
        """Note that actions were drawn for a network's outputs [K, W]; waits for no device."""
        distribution = self._distribution
        if distribution is None:
            return
        if distribution.log_std is None:
            log_std = numbers[:, numbers.shape[1] // 2 :]
            self._noted.append(log_std.copy() if isinstance(log_std, np.ndarray) else log_std.detach())
            if len(self._noted) == _MOST_NOTED:
                self._summarize()
        elif not self._noted:  # the same for all rows
            self._noted.append(distribution.log_std.detach().clone().unsqueeze(0))

    def read(self) -> Summary:
        """Return the deviations noted since the last call, over rows and dimensions; empty where none were."""
        self._summarize()
        summary, self._summary = self._summary, NO_VALUES
        return summary

    def _summarize(self) -> None:
        if not self._noted:
            return
        arrays = [one for one in self._noted if isinstance(one, np.ndarray)]
        tensors = [one for one in self._noted if isinstance(one, Tensor)]
        if tensors:
            arrays.append(torch.cat(tensors).cpu().numpy())
        self._noted = []
        log_std = np.concatenate(arrays)
        is_predicted = self._distribution is not None and self._distribution.log_std is None
        std = np.exp(np.clip(log_std, *LOG_STD_RANGE) if is_predicted else log_std)
        self._summary = Summary.merge([self._summary, Summary.of(std.ravel().tolist())])
