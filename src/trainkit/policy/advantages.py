"""Advantages and returns of rollouts, rollouts on the device, and the rows that on-policy losses take.

`gae` and `discounted_returns` are pure functions of tensors [T, N] of T steps in N environments. `terminated` means
that no value follows; `truncated` means that the episode continues outside of the rollout, after a time limit or the
rollout's end. Both end the sum; only the first drops the next value.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainkit.core import tree
from trainkit.core.errors import Checks
from trainkit.core.signatures import checked
from trainkit.engine.loss import ROWS, Reduction


@checked
def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float,
    lam: float,
) -> Tensor:
    """Return the generalized advantage estimates [T, N] (Schulman et al., 2016, equation 16).

    td_t = reward_t + gamma * next_value_t - value_t, without the next value after a termination;
    advantage_t = td_t + gamma * lam * advantage_(t+1), without the rest where an episode ended.

    Args:
        reward: [T, N].
        value: [T, N], of the observations acted on.
        next_value: [T, N], of the true observations after; ignored where the row terminated.
        terminated: [T, N], bool.
        truncated: [T, N], bool: cut off, by a time limit or by the end of the rollout.
        gamma: discount per step.
        lam: 0 is the one-step advantage, 1 the whole return less the value.
    """
    with Checks("gae") as checks:
        checks.number("gamma", gamma, low=0, high=1)
        checks.number("lam", lam, low=0, high=1)
    advantage = reward + torch.where(terminated, 0.0, gamma * next_value) - value
    weight = gamma * lam * (~(terminated | truncated)).to(advantage.dtype)  # [T, N], of what follows
    n_summed = 1  # rows summed in each advantage, and spanned by its weight; doubles in each pass
    while n_summed < len(advantage):
        own, rest = advantage.tensor_split([-n_summed])
        own_weight, rest_weight = weight.tensor_split([-n_summed])
        longer = own + own_weight * advantage[n_summed:]
        advantage = torch.cat([torch.where(own_weight == 0, own, longer), rest])  # rows after an end may be nan
        weight = torch.cat([own_weight * weight[n_summed:], rest_weight])
        n_summed *= 2
    return advantage


@checked
def discounted_returns(
    reward: Tensor, next_value: Tensor, terminated: Tensor, truncated: Tensor, *, gamma: float
) -> Tensor:
    """Return reward_t + gamma * return_(t+1), [T, N]; at a truncation the next value replaces return_(t+1)."""
    zero = torch.zeros_like(reward)
    follows = torch.where(truncated & ~terminated, next_value, zero)
    return gae(reward, zero, follows, terminated, truncated, gamma=gamma, lam=1.0)


def normalized(advantage: Tensor, share: Tensor | None = None) -> Tensor:
    """Return advantages [..., B] with mean 0 and population standard deviation 1 over B; 0 if all are equal.

    With `share` [B], rows count that much.
    """
    if share is not None:  # in float64, in which equal advantages have their mean as mean
        exact, weight = advantage.double(), share.double() / share.double().sum()
        distance = exact - (weight * exact).sum()
        return (distance / ((weight * distance.square()).sum().sqrt() + 1e-8)).to(advantage.dtype)
    deviation, mean = torch.std_mean(advantage, dim=-1, correction=0, keepdim=True)
    return (advantage - mean) / (deviation + 1e-8)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRollout:
    """A rollout on the device: B rows in the order of their positions t * N + n in T steps of N environments."""

    obs: Any  # [B, ...]
    action: Tensor  # [B, ...], in policy units
    log_prob: Tensor  # [B], of the action when it was taken
    reward: Tensor  # [T, N]
    value: Tensor  # [T, N], of the critic when the action was taken
    terminated: Tensor  # [T, N]
    ended: Tensor  # [T, N], terminated, truncated, cut, or without a row
    last_rows: Tensor  # [E], positions of the rows that ended without termination
    last_obs: Any  # [E, ...], the true observations after them, to bootstrap from
    extras: Mapping[str, Tensor]  # {name: [B, ...]}, those that the policy's `columns` names
    positions: Tensor | None = None  # [B]; None where every position has a row

    def __len__(self) -> int:
        return len(self.action)

    def by_row(self, column: Tensor) -> Tensor:
        """Return a column [T, N] by row, [B]."""
        return column.flatten() if self.positions is None else column.flatten()[self.positions]


class RolloutRows(NamedTuple):
    """B rows of a rollout on the device, with their advantages and returns."""

    features: Any
    legal: Tensor | None  # [B, A]
    action: Tensor  # [B, ...]
    log_prob: Tensor  # [B], of the action when it was taken
    value: Tensor  # [B], of the critic when the action was taken
    advantage: Tensor  # [B]
    returns: Tensor  # [B], the critic's target
    extras: dict[str, Tensor] = {}  # noqa: RUF012  # {column: [B, ...]}, those that the policy's `columns` names
    layout: Any = ()  # of rows that networks with a state pass over in order: see `NetworkState.batches`
    inputs: Any = {}  # noqa: RUF012  # what the policy's `loss_inputs` returned
    weight: Tensor | None = None  # rows have equal weights
    reduce: Reduction = ROWS  # to the loss that is minimized

    @property
    def obs(self) -> Any:
        """The features, by the name that they have in a `TensorBatch`."""
        return self.features

    def columns(self) -> tuple[Any, ...]:
        """Return the columns, of which `RolloutRows(*columns)` makes rows again."""
        return tuple(self)[:_N_COLUMNS]

    def at(self, index: Tensor | NDArray[np.int64]) -> "RolloutRows":
        """Return the rows at these indices: a tensor, or an array for rows in arrays."""
        return self._map(partial(_taken, index=index))

    def in_arrays(self) -> "RolloutRows":
        """Return the rows as arrays that share memory; on the CPU only."""
        return self._map(lambda column: column.numpy())

    def split(self, n_batches: int) -> Iterator["RolloutRows"]:
        """Yield the rows in order, as views, in batches whose sizes differ by at most one."""
        size, n_larger = divmod(len(self.advantage), n_batches)
        end = 0
        for i in range(n_batches):
            start, end = end, end + size + (i < n_larger)
            yield self._map(itemgetter(slice(start, end)))

    def normalized_in(self, n_batches: int) -> "RolloutRows":
        """Return the rows with advantages normalized within each batch that `split` yields."""
        size, n_larger = divmod(len(self.advantage), n_batches)
        larger, smaller = torch.as_tensor(self.advantage).tensor_split([n_larger * (size + 1)])
        parts = larger.view(n_larger, size + 1), smaller.view(n_batches - n_larger, size)
        advantage: Any = torch.cat([normalized(part).flatten() for part in parts if len(part)])
        return self._replace(advantage=advantage if isinstance(self.advantage, Tensor) else advantage.numpy())

    def _map(self, function: Callable[[Any], Any]) -> "RolloutRows":
        return RolloutRows(*tree.map_tree(lambda column: None if column is None else function(column), self.columns()))


_N_COLUMNS = RolloutRows._fields.index("inputs")


def _taken(column: Any, index: Any) -> Any:
    """Return rows of a column by index; `take` of an array is faster than indexing."""
    return column[index] if isinstance(column, Tensor) else column.take(index, axis=0)


def row_batches(
    rows: RolloutRows, n_batches: int, *, repeat: int, normalize: bool, generator: torch.Generator
) -> Iterator[RolloutRows]:
    """Yield batches of all rows `repeat` times, each time in a new order; on the CPU they are in arrays.

    Args:
        rows: of a rollout.
        n_batches: their number each time.
        repeat: how often each row is in a batch.
        normalize: normalize the advantages within each batch.
        generator: of the order, on the rows' device.
    """
    is_on_cpu = generator.device.type == "cpu"
    own = rows.in_arrays() if is_on_cpu else rows
    for _ in range(repeat):
        order = torch.randperm(len(own.action), generator=generator, device=generator.device)
        shuffled = own.at(order.numpy() if is_on_cpu else order)
        yield from (shuffled.normalized_in(n_batches) if normalize else shuffled).split(n_batches)
