"""Rows of a rollout in numpy: put in order, normalised and dealt out, as `RolloutRows` does with tensors."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainkit.policy.host.tape import Array
from trainkit.policy.rollout_rows import RolloutRows


class HostRows(NamedTuple):
    """B rows of a rollout, each of one float vector; the columns are those of `RolloutRows`."""

    features: Array  # [B, F]
    legal: NDArray[np.bool_] | None  # [B, A]
    action: NDArray[Any]  # [B, ...]
    log_prob: Array  # [B]
    value: Array  # [B]
    advantage: Array  # [B]
    returns: Array  # [B]

    @staticmethod
    def can_hold(rows: RolloutRows) -> bool:
        """Whether these are rows of one float vector each, without extra columns."""
        features = rows.features
        is_vector = isinstance(features, Tensor) and features.dtype == torch.float32 and features.dim() == 2
        return is_vector and not rows.extras

    @classmethod
    def of(cls, rows: RolloutRows) -> "HostRows":
        """Return the same rows, which share their memory."""
        return cls._make(None if column is None else column.numpy() for column in rows[:-1])

    def as_tensors(self) -> RolloutRows:
        """Return the same rows, which share their memory."""
        return RolloutRows._make([*(None if column is None else torch.from_numpy(column) for column in self), {}])

    def at(self, order: Tensor) -> "HostRows":
        """Return the rows of an index."""
        index = order.numpy()
        return HostRows._make(None if column is None else column.take(index, axis=0) for column in self)

    def normalized_in(self, n_batches: int) -> "HostRows":
        """Return rows whose advantages are normalised in each of the batches that `deal` would yield, all at once."""
        size, n_larger = divmod(len(self.advantage), n_batches)
        wide = self.advantage.astype(np.float64)  # equal ones must become 0
        larger, smaller = np.split(wide, [n_larger * (size + 1)])
        parts = larger.reshape(n_larger, size + 1), smaller.reshape(n_batches - n_larger, size)
        normalized = [_normalized(part).ravel() for part in parts if len(part)]
        return self._replace(advantage=np.concatenate(normalized, dtype=np.float32))

    def deal(self, n_batches: int) -> Iterator["HostRows"]:
        """Yield the rows in order in batches of equal size, give or take a row; they are views."""
        size, n_larger = divmod(len(self.action), n_batches)
        end = 0
        for i in range(n_batches):
            begin, end = end, end + size + (i < n_larger)
            yield HostRows._make(None if column is None else column[begin:end] for column in self)


def _normalized(advantage: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return advantages [N, B] with mean 0 and population deviation 1 over B; of one row, or of equal ones, 0."""
    n_rows = advantage.shape[1]
    centred: NDArray[np.float64] = advantage - np.add.reduce(advantage, axis=1, keepdims=True) / n_rows
    variance = np.add.reduce(centred * centred, axis=1, keepdims=True) / n_rows
    centred /= np.sqrt(variance) + 1e-8
    return centred
