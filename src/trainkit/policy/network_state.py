"""What a policy's networks carry from step to step, and what they learn from: nothing, and rows.

The encoders of an extension that have a state give what stands in the place of `NetworkState`, see `StatefulEncoder`.
Neither acting nor a loss depends on which it is: networks are called by `call`, with the state before the step, and a
loss is reduced to what was sampled after it.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit.core.data import ArraySpec, Batch, Rollout, TransitionBatch
from trainkit.core.errors import Checks, ConfigError
from trainkit.engine.loss import Columns, TensorBatch, tensor_batch
from trainkit.nets.encoders import stateful_encoders
from trainkit.policy.advantages import RolloutRows, TensorRollout, row_batches

OutputsT = TypeVar("OutputsT")
LearnsFrom = Literal["replay", "rollouts", "data"]  # "data" has none of the columns that a policy stores


class NoState:
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
        """Return what the next step is given, from the results of `NetworkState.call`."""
        return self._state


class NetworkState:
    """How a policy's networks carry a state from step to step, and learn with it: here there is none, and rows.

    Attributes:
        size: S, of the state of a row.
        sequences: the option of this name; None where policies learn from rows.
        spec: of the columns that are stored with each row.
        columns: names of stored columns that learning from rollouts needs.
        batch_type: of what `draw` returns; its `obs_fields` are those of `to_columns`, too.
    """

    size = 0
    sequences: Any = None
    spec: Mapping[str, ArraySpec] = {}
    columns: tuple[str, ...] = ()
    batch_type: type[Batch] = TransitionBatch

    # ---- acting ----

    def carry(self, state: Any, n_rows: int, starts: Any, env_ids: Any) -> Any:
        """Return the states of K rows, from what the last step returned."""
        return NoState(state)

    def call(self, network: Callable[[Any], OutputsT], features: Any, state: Any) -> tuple[OutputsT, dict[str, Tensor]]:
        """Call a network with features [K, ...] and the states before the step; return the states after it by name."""
        return network(features), {}

    def check_state(self, policy: str, state: Any, n_rows: int) -> Any:
        """Return the states [K, S] that a user has given; None stands for the starts of episodes.

        Raises:
            ConfigError: the policy carries no state, or one of another shape.
        """
        if state is not None:
            raise ConfigError(f"{policy} carries no state: leave state out")
        return ()

    # ---- learning from batches ----

    def sample_batch(self, buffer: Any, batch_size: int | None, **how: Any) -> Any:
        """Sample a batch from a buffer; None samples every row once."""
        return buffer.sample(batch_size, **how)

    def check_draw(self, checks: Checks, policy: str, buffer: Any, batch_size: int | None, per_round: int) -> None:
        """Note a problem if the policy cannot learn from a buffer in this way."""

    def n_rows(self, n_samples: int) -> int:
        """Return the number of rows that a loss is computed of for B samples."""
        return n_samples

    def to_columns(self, policy: str, batch: Any) -> Any:
        """Return the columns of a batch, a NamedTuple.

        Raises:
            ConfigError: it is of another type.
        """
        if not isinstance(batch, TransitionBatch):
            raise ConfigError(
                f"{policy} learns from rows, a TransitionBatch, got a {type(batch).__name__}: use buffer.sample"
            )
        reward, discount = np.asarray(batch.reward, np.float32), np.asarray(batch.discount, np.float32)
        weight = np.asarray(batch.weight, np.float32)
        return Columns(batch.obs, batch.action, reward, discount, batch.next_obs, weight, dict(batch.extras))

    def to_rows(self, columns: Any, preprocess: nn.Module, module: nn.Module | None) -> TensorBatch:
        """Return columns on the device, with images in the place of indices, as the argument of losses.

        Args:
            columns: of `to_columns`.
            preprocess: maps observations to features.
            module: the only one whose states need gradients; None for all.
        """
        return tensor_batch(columns, preprocess)

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
        """Return the batches of rows, `repeat` times, each time in a new order; see `row_batches`."""
        return row_batches(rows, n_batches, repeat=repeat, **how)

    def rollout_rows(self, rows: RolloutRows) -> RolloutRows:
        """Return a batch of `batches` on the device as the argument of losses."""
        return rows


def state_of(
    policy: str, networks: tuple[nn.Module, ...], sequences: object, auxiliary: object, *, learns_from: LearnsFrom
) -> NetworkState:
    """Return how a policy carries the states of its networks and learns with them.

    Args:
        policy: the class, for errors.
        networks: whose encoders' states follow one another.
        sequences: the option of this name, for encoders with a state.
        auxiliary: the policy's auxiliary loss, which is for networks without one.
        learns_from: where its batches are from.

    Raises:
        ConfigError: `sequences` has no effect, or is not of these encoders; or there are a state and an auxiliary loss.
    """
    encoders = stateful_encoders(*networks)
    with Checks(policy) as checks:
        rule = ".sequences has no effect, as the network carries no state: give recurrent='lstm', or leave it out"
        checks.require(bool(encoders) or sequences is None, rule)
        rule = ".auxiliary is for networks that carry no state: leave one of the two out"
        checks.require(not encoders or auxiliary is None, rule)
    if not encoders:
        return NetworkState()
    made: NetworkState = encoders[0].network_state(
        encoders, policy=policy, sequences=sequences, learns_from=learns_from
    )
    return made
