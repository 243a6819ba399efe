"""Rows of a rollout, judged and ready to be learnt from: put in any order, dealt out in batches."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainkit.core import tree
from trainkit.policy.advantages import normalized


class RolloutRows(NamedTuple):
    """B rows of a rollout on the device."""

    features: Any
    legal: Tensor | None  # [B, A]
    action: Tensor  # [B, ...]
    log_prob: Tensor  # [B], of the action when it was taken
    value: Tensor  # [B], as the critic said then
    advantage: Tensor  # [B], normalised in its batch where that is wanted
    returns: Tensor  # [B], what the critic should have said
    extras: dict[str, Tensor] = {}  # noqa: RUF012  # {column: [B, ...]}, those that the policy's `columns` names
    inputs: Any = {}  # noqa: RUF012  # what the policy's `loss_inputs` returned
    weight: Tensor | None = None  # every row counts the same

    def at(self, index: Tensor) -> "RolloutRows":
        """Return the rows of an index."""
        return RolloutRows(*tree.map_tree(lambda column: None if column is None else column[index], tuple(self)))

    def in_arrays(self) -> "RolloutRows":
        """Return the same rows as arrays, of which batches are dealt faster; they are on the CPU."""
        return RolloutRows(*tree.map_tree(lambda column: None if column is None else column.numpy(), tuple(self)))

    def deal(self, n_batches: int) -> Iterator["RolloutRows"]:
        """Yield the rows in order in batches of equal size, give or take a row; they are views."""
        size, n_larger = divmod(len(self.advantage), n_batches)
        end = 0
        for i in range(n_batches):
            start, end = end, end + size + (i < n_larger)
            batch = slice(start, end)
            yield RolloutRows(
                *tree.map_tree(lambda column, at=batch: None if column is None else column[at], tuple(self))
            )

    def normalized_in(self, n_batches: int) -> "RolloutRows":
        """Return rows whose advantages are normalised in each of the batches that `deal` would yield, all at once."""
        size, n_larger = divmod(len(self.advantage), n_batches)
        larger, smaller = self.advantage.tensor_split([n_larger * (size + 1)])
        parts = larger.view(n_larger, size + 1), smaller.view(n_batches - n_larger, size)
        return self._replace(advantage=torch.cat([normalized(part).flatten() for part in parts if len(part)]))
