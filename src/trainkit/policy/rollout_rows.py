"""Rows of a rollout, judged and ready to be learnt from: put in any order, dealt out in batches."""

from collections.abc import Iterator
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainkit import tree
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

    def as_tensors(self) -> "RolloutRows":
        """Return the same rows."""
        return self

    def at(self, index: Tensor) -> "RolloutRows":
        """Return the rows of an index."""
        return RolloutRows(*tree.map_tree(lambda column: None if column is None else column[index], tuple(self)))

    def deal(self, n_batches: int) -> Iterator["RolloutRows"]:
        """Yield the rows in order in batches of equal size, give or take a row; they are views."""
        pieces = tree.map_tree(lambda column: _pieces(column, n_batches), tuple(self))
        for _ in range(n_batches):
            yield RolloutRows(*tree.map_tree(next, pieces))

    def normalized_in(self, n_batches: int) -> "RolloutRows":
        """Return rows whose advantages are normalised in each of the batches that `deal` would yield, all at once."""
        size, n_larger = divmod(len(self.advantage), n_batches)
        larger, smaller = self.advantage.tensor_split([n_larger * (size + 1)])
        parts = larger.view(n_larger, size + 1), smaller.view(n_batches - n_larger, size)
        return self._replace(advantage=torch.cat([normalized(part).flatten() for part in parts if len(part)]))


def _pieces(column: Tensor | None, n: int) -> Iterator[Tensor | None]:
    """Cut a column in n pieces of equal size, the first ones a row longer where it does not divide."""
    return repeat(None) if column is None else iter(column.tensor_split(n))
