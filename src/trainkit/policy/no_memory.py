"""What a policy carries from step to step, and what it learns from: nothing and rows, unless networks have a memory.

`policy.recurrence.RecurrentMemory` has the same methods for networks with one. Neither acting nor a loss asks which:
features are joined with a state before networks are called, and a loss is reduced to samples after it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit.core.data import ArraySpec, Horizon, Rollout, Sequences, TransitionBatch
from trainkit.core.errors import Checks, ConfigError
from trainkit.engine.loss import Columns, TensorBatch, tensor_batch
from trainkit.policy.advantages import RolloutRows, TensorRollout, row_batches


class NothingCarried:
    """The states of K rows of a policy that carries none.

    Args:
        state: what a user passes from step to step.

    Attributes:
        rows: the states before the step, an empty tree.
        columns: what of them is stored.
    """

    __slots__ = ("_state",)
    rows: Any = ()
    columns: Mapping[str, NDArray[Any]] = {}

    def __init__(self, state: Any) -> None:
        self._state = state

    def after(self, results: Mapping[str, Any]) -> Any:
        """Return what the next step is given."""
        return self._state


class NoMemory:
    """A policy's networks remember nothing.

    Attributes:
        size: S, of the state of a row.
        sequences: what is learned from; None for rows.
        spec: of the columns that are stored with each row.
        columns: names of stored columns that learning from rollouts needs.
    """

    size = 0
    sequences: Sequences | None = None
    spec: Mapping[str, ArraySpec] = {}
    columns: tuple[str, ...] = ()

    # ---- acting ----

    def carry(self, state: Any, n_rows: int, starts: Any, env_ids: Any) -> Any:
        """Return the states of K rows, from what the last step returned."""
        return NothingCarried(state)

    def join(self, features: Any, state: Any) -> Any:
        """Return features [K, ...] as networks are given them, with the states before the step."""
        return features

    def after(self, x: Any) -> dict[str, Tensor]:
        """Return the states after the step, by name, of what `join` returned, once networks were called with it."""
        return {}

    def check_state(self, policy: str, state: Any, n_rows: int) -> Any:
        """Return the states [K, S] that a user has given; None stands for the starts of episodes.

        Raises:
            ConfigError: the policy has no memory, or states of another shape.
        """
        if state is not None:
            raise ConfigError(f"{policy} has no memory: leave state out")
        return ()

    # ---- learning from batches ----

    def draw(self, buffer: Any, batch_size: int | None, **how: Any) -> Any:
        """Sample a batch from a buffer; None samples every row once."""
        return buffer.sample(batch_size, **how)

    def check_draw(self, checks: Checks, policy: str, buffer: Any, batch_size: int | None, per_round: int) -> None:
        """Note a problem if the policy cannot learn from a buffer in this way."""

    def n_rows(self, n_samples: int) -> int:
        """Return the number of rows that a loss is computed of for B samples."""
        return n_samples

    def to_columns(self, policy: str, batch: Any) -> Any:
        """Return the columns of a batch.

        Raises:
            ConfigError: it is of sequences.
        """
        if not isinstance(batch, TransitionBatch):
            raise ConfigError(f"{policy} is not recurrent, and learns from rows: use buffer.sample")
        reward, discount = np.asarray(batch.reward, np.float32), np.asarray(batch.discount, np.float32)
        weight = np.asarray(batch.weight, np.float32)
        return Columns(batch.obs, batch.action, reward, discount, batch.next_obs, weight, dict(batch.extras))

    def to_rows(
        self, columns: Any, inputs: Any, preprocess: nn.Module, frames: Any, module: nn.Module | None
    ) -> TensorBatch:
        """Return columns on the device as the argument of losses; see `Policy.rows`."""
        return tensor_batch(columns, preprocess, frames)._replace(inputs=inputs)

    def blank(self, row: Columns, horizon: Horizon) -> Any:
        """Return the columns of one blank sample, from those of a row [1, ...]."""
        return row

    # ---- learning from rollouts ----

    def before_last(self, rollout: TensorRollout) -> tuple[Any, ...]:
        """Return the observations [E, ...] to bootstrap from, and what `join_last` needs in addition."""
        return (rollout.last_obs,)

    def join_last(self, preprocess: nn.Module, given: tuple[Any, ...]) -> Any:
        """Return the features of what `before_last` returned; the last E rows are those to bootstrap from."""
        return preprocess(given[0])

    def batches(
        self, rows: RolloutRows, rollout: Rollout | TensorRollout, n_batches: int, *, repeat: int, **how: Any
    ) -> Iterator[Any]:
        """Return the batches of rows, `repeat` times, each time in a new order."""
        return row_batches(rows, n_batches, repeat=repeat, **how)

    def rollout_rows(self, rows: RolloutRows) -> RolloutRows:
        """Return a batch of `batches` on the device as the argument of losses."""
        return rows
