"""How a recurrent policy carries its state from step to step, and how it learns from sequences.

Acting, a policy gets back the state that its last `act` returned, one row per environment, and stores with each step
the state before it. Learning, a network passes once over the observations of each sequence: first without gradient
over the burn-in, which starts at the stored state, then over the rows to learn from and the observations that their
n-step windows reach. What its memory returns there are the features of rows; from these on the loss is that of rows
without a memory, where an observation is a position among them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit.core import tree
from trainkit.core.data import ArraySpec, SequenceBatch, Sequences
from trainkit.core.errors import Checks, ConfigError
from trainkit.engine.device_frames import with_frames
from trainkit.engine.loss import Loss, TensorBatch, legal_mask
from trainkit.nets.encoders import Encoder
from trainkit.nets.recurrent import Memory, reset

# ---- acting ----


class CarriedState:
    """The recurrent states of K rows, from those of all environments.

    Args:
        state: [N, S] as `after` returned it, None at first.
        size: S.
        n_rows: K.
        starts: [K], where a state is 0; None: nowhere.
        env_ids: [K], None: 0 to K - 1.

    Attributes:
        rows: the states before the step [K, S].
    """

    def __init__(
        self,
        state: Any,
        size: int,
        n_rows: int,
        starts: NDArray[np.bool_] | None = None,
        env_ids: NDArray[np.intp] | None = None,
    ) -> None:
        self._ids = np.arange(n_rows) if env_ids is None else env_ids
        n_envs = int(self._ids.max(initial=-1)) + 1
        held = np.zeros((n_envs, size), np.float32) if state is None else np.asarray(state, np.float32)
        if held.ndim != 2 or held.shape[1] != size:
            raise ConfigError(f"a recurrent state must be [N, {size}] as `act` returned it, got {list(held.shape)}")
        if len(held) < n_envs:
            held = np.concatenate([held, np.zeros((n_envs - len(held), size), np.float32)])
        self._all = held
        self.rows: NDArray[np.float32] = held[self._ids]
        if starts is not None:
            self.rows[starts] = 0.0

    def after(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the states of all environments [N, S] after the step, from those of the K rows."""
        state = self._all.copy()
        state[self._ids] = rows
        return state


def checked_state(policy: Any, state: NDArray[np.float32], obs: Any) -> NDArray[np.float32]:
    """Return the recurrent states [K, S] before observations [K, ...].

    Raises:
        ConfigError: the policy has no memory, or states of another shape.
    """
    name, size, n_rows = type(policy).__name__, policy.state_size, len(tree.first_leaf(obs))
    if not size:
        raise ConfigError(f"{name} has no memory: leave state out")
    if np.shape(state) != (n_rows, size):
        raise ConfigError(f"{name}: state must be [{n_rows}, {size}], a row per observation, got {np.shape(state)}")
    return np.asarray(state, np.float32)


def memory_of(network: object) -> Memory | None:
    """Return the memory of a network's encoder, None where it has none."""
    encoder = getattr(network, "encoder", None)
    return encoder.memory if isinstance(encoder, Encoder) else None


def state_size_of(*networks: object) -> int:
    """Return S, of the recurrent states of networks one after the other; 0 without memories."""
    memories = [memory_of(network) for network in networks]
    return sum(memory.state_size for memory in memories if memory is not None)


def state_spec(size: int) -> ArraySpec:
    """Return the specification of the column of recurrent states."""
    return ArraySpec(shape=(size,), dtype=np.dtype(np.float32))


def check_memory(checks: Checks, state_size: int, sequences: Sequences | None, auxiliary: object) -> None:
    """Note options that do not go with networks that have a memory, or that have none."""
    rule = ".sequences has no effect, as the network has no memory: give recurrent='lstm', or leave it out"
    checks.require(state_size > 0 or sequences is None, rule)
    rule = ".auxiliary is for networks without a memory: leave one of the two out"
    checks.require(state_size == 0 or auxiliary is None, rule)


# ---- learning ----


class SequenceRows(NamedTuple):
    """B sequences on the device, observations as features; see `SequenceBatch`."""

    observations: Any  # [T + n, B, ...]
    after: Tensor  # [T, B]
    action: Tensor  # [T, B, ...]
    reward: Tensor  # [T, B]
    discount: Tensor  # [T, B]
    valid: Tensor  # [T, B]
    starts: Tensor  # [T, B]
    state: Tensor | None  # [B, S]
    weight: Tensor  # [B]
    extras: Mapping[str, Tensor]  # {column: [T, B, ...]}
    legal: Tensor | None  # [T + n, B, A]
    burn_in: int
    eta: float
    inputs: Any

    @property
    def steps(self) -> TensorBatch:
        """The rows to learn from, [length * B], where `valid` is false the last one before it.

        An observation is its position among those after the burn-in, [(length + n) * B].
        """
        valid = self.valid[self.burn_in :]
        column = torch.arange(valid.shape[1], device=valid.device)
        step = torch.arange(len(valid), device=valid.device).unsqueeze(1)
        last = valid.sum(dim=0).sub(1).clamp(min=0)
        obs = (torch.minimum(step, last) * valid.shape[1] + column).flatten()
        after = (self.after[self.burn_in :] - self.burn_in).clamp(min=0)
        next_obs = (after * valid.shape[1] + column).flatten()
        discount, legal, next_legal = self._flat(self.discount), None, None
        if self.legal is not None:
            of_all = self._flat(self.legal)
            legal, next_legal = of_all[obs], of_all[next_obs]
            discount = discount * next_legal.any(dim=1)
        action, reward, weight = self._flat(self.action), self._flat(self.reward), torch.ones_like(discount)
        extras = {name: self._flat(rows) for name, rows in self.extras.items()}
        action = action if action.is_floating_point() else action.long()
        rows = TensorBatch(obs, action, reward, discount, next_obs, weight, legal, next_legal, extras)
        return rows._replace(inputs=self.inputs)

    def _flat(self, column: Tensor) -> Tensor:
        """Return the part of a column [..., B, ...] after the burn-in as rows."""
        return column[self.burn_in :].flatten(0, 1)

    def recalled(self, network: nn.Module, part: slice = slice(None)) -> "Recalled":
        """Return a recurrent network as a function of positions among the observations after the burn-in.

        Args:
            network: has an `encoder` with a memory, and `predict`.
            part: of the states, those of this network.
        """
        encoder: Any = network.encoder
        n_rows = self.valid.shape[1]
        given = self.state
        state = self.reward.new_zeros(n_rows, encoder.memory.state_size) if given is None else given[:, part]
        with torch.no_grad():
            state = reset(state, self.starts[0])
            if self.burn_in:
                before = tree.map_tree(lambda leaf: leaf[: self.burn_in], self.observations)
                state = reset(encoder.unroll(before, state)[1], self.starts[self.burn_in])
        later = tree.map_tree(lambda leaf: leaf[self.burn_in :], self.observations)
        return Recalled(network, encoder.unroll(later, state.detach())[0].flatten(0, 1))

    def per_sample(self, loss: Loss) -> Loss:
        """Return the loss of sequences from that of `steps`: its mean over the batch is the mean over valid rows.

        The priority of a sequence is eta times the largest of its rows' and 1 - eta times their mean (Kapturowski et
        al., 2019, section 2.3).
        """
        valid = self.valid[self.burn_in :].to(loss.per_row.dtype)  # [length, B]
        n_valid = valid.sum(dim=0)
        share = valid.shape[1] / n_valid.sum().clamp(min=1.0)
        per_row = (loss.per_row.view(valid.shape) * valid).sum(dim=0) * share
        priority = loss.priority
        if priority is not None:
            of_rows = priority.view(valid.shape) * valid
            mean = of_rows.sum(dim=0) / n_valid.clamp(min=1.0)
            priority = self.eta * of_rows.amax(dim=0) + (1.0 - self.eta) * mean
        return replace(loss, per_row=per_row, priority=priority)


class Recalled:
    """A recurrent network whose memory has passed over sequences: called with positions in the place of features.

    Args:
        network: has `predict`, as `QNetwork`.
        features: what its memory returned [R, F].
    """

    def __init__(self, network: Any, features: Tensor) -> None:
        self._predict, self._features = network.predict, features

    def __call__(self, position: Tensor, *given: Any) -> Any:
        return self._predict(self._features[position], *given)


class RolloutSequences(NamedTuple):
    """S sequences of L rows of a rollout, each of one episode."""

    state: Any  # [S, size], before the first rows
    source: Any  # [L * S], the row whose outputs count, which where there is none is the last one before
    share: Any  # [L * S], what a row's loss is multiplied by: 0 where there is none, so that the mean is over rows


_MULTIPLE = 8  # of the number of sequences in a batch, so that few shapes are recorded


class RolloutLayout:
    """Divide the rows of a rollout into sequences of one episode, of `length` rows or fewer.

    Args:
        positions: of the rows [B], t * N + n, ascending.
        starts: whether an episode starts at them [B].
        n_envs: N.
        length: L.

    Attributes:
        index: of the rows [L, S], where there is none of the last one before.
        n_rows: of each sequence [S].
    """

    def __init__(self, positions: NDArray[np.int64], starts: NDArray[np.bool_], n_envs: int, length: int) -> None:
        env = positions % n_envs
        order = np.argsort(env, kind="stable")  # environment by environment, in the order of time
        is_first = starts[order]
        is_first[:1] = True
        is_first[1:] |= np.diff(env[order]) > 0
        at = np.arange(len(order))
        rank = at - np.maximum.accumulate(np.where(is_first, at, 0))  # in the episode, as far as it is here
        (first,) = np.nonzero(rank % length == 0)
        self.n_rows = np.diff(first, append=len(order))
        self.index = order[first + np.minimum(np.arange(length)[:, None], self.n_rows - 1)]

    def batch(self, chosen: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the indices of rows [L, S] and the number of rows [S] of some sequences, and of empty ones.

        L is a power of two, or `length`, that the longest of them fits in. In the place of the rows of an empty one is
        a single row, as often as it takes.
        """
        padded = np.concatenate([chosen, np.repeat(chosen[:1], -len(chosen) % _MULTIPLE)])
        n_rows = self.n_rows[padded]
        longest = 1 << int(n_rows.max() - 1).bit_length()
        index = self.index[:longest, padded]
        index[:, len(chosen) :] = index[0, len(chosen) :]
        n_rows[len(chosen) :] = 0
        return index, n_rows


def sequence_columns(batch: SequenceBatch, sequences: Sequences) -> Any:
    """Return the columns of a batch for `sequence_rows`."""
    wanted = (sequences.n_before, sequences.n_before + sequences.length)
    given = (batch.burn_in, len(batch.reward))
    if given != wanted:
        raise ConfigError(
            f"sequences must have {wanted[0]} rows of burn-in, {wanted[1]} in all, as {sequences} says, got {given}: "
            "sample them with length=policy.sequences.length, burn_in=policy.sequences.burn_in"
        )
    fields = (batch.observations, batch.after, batch.action, batch.reward, batch.discount, batch.valid, batch.starts)
    return *fields, batch.state if sequences.stored_state else None, batch.weight, dict(batch.extras)


def blank_sequence(obs: Any, sequences: Sequences, n_step: int, extras: Mapping[str, Tensor], state_size: int) -> Any:
    """Return the columns of one sequence of blank observations [1, ...] on the device."""
    n_rows = sequences.n_before + sequences.length
    number = torch.zeros((n_rows, 1), device=tree.first_leaf(obs).device, dtype=torch.float32)
    observations = tree.map_tree(lambda leaf: leaf.expand(n_rows + n_step, *leaf.shape), obs)
    after = torch.arange(1, n_rows + 1, device=number.device).unsqueeze(1)
    flags = number == 0
    state = number.new_zeros(1, state_size) if sequences.stored_state else None
    columns = {name: column.expand(n_rows, *column.shape) for name, column in extras.items()}
    return observations, after, number.long(), number, number, flags, ~flags, state, number[0], columns


def sequence_rows(columns: Any, preprocess: nn.Module, sequences: Sequences, frames: Any, inputs: Any) -> SequenceRows:
    """Return the columns of sequences on the device as the argument of losses."""
    observations, after, action, reward, discount, valid, starts, state, weight, extras = columns
    observations = with_frames(observations, frames)
    legal = legal_mask(observations)
    shape = tree.first_leaf(observations).shape[:2]
    with torch.no_grad():
        features = preprocess(tree.map_tree(lambda leaf: leaf.flatten(0, 1), observations))
    features = tree.map_tree(lambda leaf: leaf.unflatten(0, shape), features)
    of_rows = after, action, reward, discount, valid, starts
    return SequenceRows(features, *of_rows, state, weight, extras, legal, sequences.n_before, sequences.eta, inputs)
