"""Memories of policies: how a state is carried from step to step, and how networks learn from sequences.

Acting, a policy gets back the state that its last `act` returned, one row per environment, and stores with each step
the state before it. Learning, a network's memory passes once over the observations of each sequence: first without
gradient over the burn-in, which starts at the stored state, then over the rows to learn from and the observations that
their n-step windows reach. What it returns there are the features of rows; from these on the loss is that of rows
without a memory.
"""

from collections.abc import Callable, Iterator, Mapping, Set
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit.core import tree
from trainkit.core.data import ArraySpec, Rollout
from trainkit.core.errors import Checks, ConfigError
from trainkit.engine.device import to_device
from trainkit.engine.loss import Reduction, TensorBatch, legal_mask
from trainkit.extensions.memory.memories import reset
from trainkit.extensions.memory.sequences import STATE, SequenceBatch, SequenceBuffer, Sequences, draw_sequences
from trainkit.policy.advantages import RolloutRows, TensorRollout, normalized
from trainkit.policy.network_state import NetworkState, OutputsT

if TYPE_CHECKING:
    from trainkit.extensions.memory.encoder import RecurrentEncoder

STATE_OUT = "state_out"  # the state after a step, among the results of a forward pass


class Recall:
    """Features that an encoder with a memory resolves: it has passed over what came before them.

    Networks are called with it in the place of features.
    """

    def recall(self, encoder: "RecurrentEncoder") -> Tensor:
        """Return the outputs [B, F] of an encoder's memory."""
        raise TypeError(f"{type(self).__name__} must define recall")


class RecurrentMemory(NetworkState):
    """The memories of a policy's networks.

    Args:
        encoders: of its networks.
        sequences: what they learn from.
    """

    batch_type = SequenceBatch

    def __init__(self, encoders: "list[RecurrentEncoder]", sequences: Sequences) -> None:
        self._encoders, self.sequences = encoders, sequences
        self.size = encoders[-1].part.stop
        spec = ArraySpec(shape=(self.size,), dtype=np.dtype(np.float32), zero_filled=True)
        self.spec = {STATE: spec} if sequences.stored_state else {}
        self.columns = (STATE, "t")
        self._sequences = sequences

    # ---- acting ----

    def carry(self, state: Any, n_rows: int, starts: Any, env_ids: Any) -> "CarriedState":
        """Return the states of K rows, from what the last step returned."""
        carried = CarriedState(state, self.size, n_rows, starts, env_ids)
        if self.spec:
            carried.columns[STATE] = carried.rows
        return carried

    def call(self, network: Callable[[Any], OutputsT], features: Any, state: Any) -> tuple[OutputsT, dict[str, Tensor]]:
        """Call a network with features [K, ...] and the states before the step [K, S]; return the states after it.

        Without states, (), the features are the first of their episodes.
        """
        if isinstance(state, tuple):
            return network(features), {}
        step = _Step(features, state)
        outputs = network(step)
        return outputs, {STATE_OUT: step.after(self._encoders)}

    def check_state(self, policy: str, state: Any, n_rows: int) -> Any:
        """Return the states [K, S] that a user has given; None stands for the starts of episodes."""
        if state is None:
            return ()
        if np.shape(state) != (n_rows, self.size):
            raise ConfigError(
                f"{policy}: state must be [{n_rows}, {self.size}], a row per observation, got {np.shape(state)}"
            )
        return np.asarray(state, np.float32)

    # ---- learning from batches ----

    def sample_batch(self, buffer: Any, batch_size: int | None, **how: Any) -> Any:
        """Sample a batch of sequences from a buffer."""
        n_sequences: Any = batch_size  # None is rejected
        return draw_sequences(buffer, n_sequences, self._sequences.length, self._sequences.burn_in, **how)

    def check_draw(self, checks: Checks, policy: str, buffer: Any, batch_size: int | None, per_round: int) -> None:
        """Note a problem if the policy cannot learn from a buffer in this way."""
        kind = type(buffer).__name__
        rule = f": {policy} is recurrent, and {kind} has no sequences to sample: use a ReplayBuffer"
        checks.require(isinstance(buffer, SequenceBuffer), rule)
        rule = ".batch_size is the number of sequences of a recurrent policy, got None: give one"
        checks.require(batch_size is not None, rule)
        rule = f".updates_per_round draws rows, and the policy is recurrent: leave it at 1, got {per_round}"
        checks.require(per_round == 1, rule)

    def n_rows(self, n_samples: int) -> int:
        """Return the number of rows that a loss is computed of for B sequences."""
        return n_samples * self._sequences.length

    def to_columns(self, policy: str, batch: Any) -> "SequenceColumns":
        """Return the columns of sequences."""
        if not isinstance(batch, SequenceBatch):
            raise ConfigError(
                f"{policy} is recurrent and learns from sequences, got a {type(batch).__name__}: use "
                "buffer.sample_sequences(replay_buffer, ...)"
            )
        sequences = self._sequences
        wanted, given = (sequences.n_before, sequences.n_before + sequences.length), (batch.burn_in, len(batch.reward))
        if given != wanted:
            raise ConfigError(
                f"sequences must have {wanted[0]} rows of burn-in, {wanted[1]} in all, as {sequences} says, got "
                f"{given}: sample them with length=policy.sequences.length, burn_in=policy.sequences.burn_in"
            )
        state = batch.state if sequences.stored_state else None
        fields = batch.observations, batch.after, batch.action, batch.reward, batch.discount, batch.valid, batch.starts
        return SequenceColumns(*fields, state, batch.weight, dict(batch.extras))

    def to_rows(self, columns: "SequenceColumns", preprocess: nn.Module, module: nn.Module | None) -> TensorBatch:
        """Return sequences on the device as the argument of losses: their rows, [length * B]."""
        observations = columns.observations
        shape = tree.first_leaf(observations).shape[:2]
        with torch.no_grad():
            features = preprocess(tree.map_tree(lambda leaf: leaf.flatten(0, 1), observations))
        features = tree.map_tree(lambda leaf: leaf.unflatten(0, shape), features)
        learning = {*self._encoders} if module is None else {*module.modules()}
        unrolled = _Unrolled(features, columns.starts, columns.state, self._sequences.n_before, learning)
        return _rows_of(columns, unrolled, legal_mask(observations), self._sequences)

    # ---- learning from rollouts ----

    def before_last(self, rollout: TensorRollout) -> tuple[Any, ...]:
        """Return the observations [E, ...] to bootstrap from, those before them, and the states before these."""
        rows = rollout.last_rows
        if rollout.positions is not None:
            rows = torch.searchsorted(rollout.positions, rows)
        before = tree.map_tree(lambda leaf: leaf[rows], rollout.obs)
        return rollout.last_obs, before, rollout.extras[STATE][rows]

    def join_last(self, preprocess: nn.Module, given: tuple[Any, ...]) -> "_Sequences":
        """Return the features of two steps, [2 * E]; the last E rows are those to bootstrap from."""
        obs, before, state = given
        two = tree.map_tree(lambda *leaves: torch.stack(leaves), preprocess(before), preprocess(obs))
        return _Sequences(two, state)

    def batches(
        self, rows: RolloutRows, rollout: Rollout | TensorRollout, n_batches: int, *, repeat: int, **how: Any
    ) -> Iterator[Any]:
        """Yield the batches of sequences, `repeat` times, each time in a new order."""
        assert isinstance(rollout, Rollout), "collectors of tensors reject memories"
        positions = np.flatnonzero(rollout.is_row)
        starts = np.ravel(rollout.extras["t"])[positions] == 0
        layout = RolloutLayout(positions, starts, rollout.reward.shape[1], self._sequences.length)
        for _ in range(repeat):
            yield from _sequence_batches(rows, layout, n_batches, **how)

    def rollout_rows(self, rows: RolloutRows) -> RolloutRows:
        """Return a batch of `batches` on the device as the argument of losses."""
        layout = RolloutSequences(*rows.layout)
        features = tree.map_tree(lambda leaf: leaf.unflatten(0, (-1, len(layout.state))), rows.features)
        return rows._replace(
            features=_Sequences(features, layout.state, layout.source), reduce=_OfRollout(layout.share)
        )


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
        columns: what of them is stored.
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
        self.columns: dict[str, NDArray[Any]] = {}

    def after(self, results: Mapping[str, Any]) -> NDArray[np.float32]:
        """Return the states of all environments [N, S] after the step, from the results of the K rows."""
        state = self._all.copy()
        state[self._ids] = results[STATE_OUT]
        return state


class _Step(Recall):
    """Features [K, ...] of one step, and the states before it [K, S]."""

    def __init__(self, features: Any, state: Tensor) -> None:
        self._features, self._state = features, state
        self._after: dict[int, Tensor] = {}  # by the start of a memory's part

    def recall(self, encoder: "RecurrentEncoder") -> Tensor:
        """Return the outputs [K, F] of an encoder's memory, and keep its next state."""
        first = tree.map_tree(lambda leaf: leaf.unsqueeze(0), self._features)
        outputs, self._after[encoder.part.start] = encoder.unroll(first, self._state[:, encoder.part])
        return outputs.squeeze(0)

    def after(self, encoders: "list[RecurrentEncoder]") -> Tensor:
        """Return the states after the step [K, S], also of encoders that were not called."""
        for encoder in encoders:
            if encoder.part.start not in self._after:
                self.recall(encoder)
        parts = [self._after[encoder.part.start] for encoder in encoders]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


# ---- learning ----


class SequenceColumns(NamedTuple):
    """B sequences as an update is given them: see `SequenceBatch`."""

    observations: Any  # [T + n, B, ...]
    after: Any  # [T, B]
    action: Any  # [T, B, ...]
    reward: Any  # [T, B]
    discount: Any  # [T, B]
    valid: Any  # [T, B]
    starts: Any  # [T, B]
    state: Any  # [B, S]; None: none was stored
    weight: Any  # [B]
    extras: dict[str, Any]  # {column: [T, B, ...]}


class _Unrolled:
    """The features of sequences, and what memories return for them; only those of `learning` modules with gradients."""

    def __init__(
        self, features: Any, starts: Tensor, state: Tensor | None, burn_in: int, learning: Set[nn.Module]
    ) -> None:
        self._features, self._starts, self._state, self._burn_in = features, starts, state, burn_in
        self._learning = learning
        self._known: dict[RecurrentEncoder, tuple[Tensor, bool]] = {}  # outputs, and whether they have gradients

    def outputs(self, encoder: "RecurrentEncoder") -> Tensor:
        """Return the outputs [(length + n) * B, F] of an encoder's memory after the burn-in, by one pass over time."""
        with_grad = torch.is_grad_enabled() and encoder in self._learning
        known, has_grad = self._known.get(encoder, (None, False))
        if known is None or (with_grad and not has_grad):
            with torch.set_grad_enabled(with_grad):
                known = self._passed(encoder)
            self._known[encoder] = known, with_grad
        return known

    def _passed(self, encoder: "RecurrentEncoder") -> Tensor:
        n_rows, size = self._starts.shape[1], encoder.memory.state_size
        given = self._state
        first = tree.first_leaf(self._features)
        state = first.new_zeros(n_rows, size, dtype=torch.float32) if given is None else given[:, encoder.part]
        with torch.no_grad():
            state = reset(state, self._starts[0])
            if self._burn_in:
                before = tree.map_tree(lambda leaf: leaf[: self._burn_in], self._features)
                state = reset(encoder.unroll(before, state)[1], self._starts[self._burn_in])
        later = tree.map_tree(lambda leaf: leaf[self._burn_in :], self._features)
        return encoder.unroll(later, state.detach())[0].flatten(0, 1)


class _Positions(Recall):
    """Features of rows, as positions [R] among those of sequences after the burn-in."""

    def __init__(self, unrolled: _Unrolled, position: Tensor) -> None:
        self._unrolled, self._position = unrolled, position

    def recall(self, encoder: "RecurrentEncoder") -> Tensor:
        """Return the outputs [R, F] of an encoder's memory."""
        return self._unrolled.outputs(encoder)[self._position]


def _rows_of(columns: SequenceColumns, unrolled: _Unrolled, legal: Tensor | None, sequences: Sequences) -> TensorBatch:
    """Return the rows to learn from, [length * B], where `valid` is false the last one before it."""
    burn_in = sequences.n_before

    def flat(column: Tensor) -> Tensor:
        return column[burn_in:].flatten(0, 1)

    valid = columns.valid[burn_in:]
    column = torch.arange(valid.shape[1], device=valid.device)
    step = torch.arange(len(valid), device=valid.device).unsqueeze(1)
    last = valid.sum(dim=0).sub(1).clamp(min=0)
    obs = (torch.minimum(step, last) * valid.shape[1] + column).flatten()
    after = (columns.after[burn_in:] - burn_in).clamp(min=0)
    next_obs = (after * valid.shape[1] + column).flatten()
    discount, own_legal, next_legal = flat(columns.discount), None, None
    if legal is not None:
        of_all = flat(legal)
        own_legal, next_legal = of_all[obs], of_all[next_obs]
        discount = discount * next_legal.any(dim=1)
    action = flat(columns.action)
    return TensorBatch(
        obs=_Positions(unrolled, obs),
        action=action if action.is_floating_point() else action.long(),
        reward=flat(columns.reward),
        discount=discount,
        next_obs=_Positions(unrolled, next_obs),
        weight=columns.weight,
        legal=own_legal,
        next_legal=next_legal,
        extras={name: flat(rows) for name, rows in columns.extras.items()},
        reduce=_OfSequences(valid, sequences.eta),
    )


class _OfRealRows(Reduction):
    """Reduction of rows, some of which are padding."""

    is_real: Tensor  # [R]

    def mean(self, column: Tensor) -> Tensor:
        """Return the mean over real rows, as that of the loss."""
        return self.losses(column.flatten(1).mean(dim=1) if column.dim() > 1 else column).mean()

    def largest(self, column: Tensor) -> Tensor:
        """Return the largest of real rows."""
        return column.masked_fill(self._padding(column), -torch.inf).max()

    def smallest(self, column: Tensor) -> Tensor:
        """Return the smallest of real rows."""
        return column.masked_fill(self._padding(column), torch.inf).min()

    def _padding(self, column: Tensor) -> Tensor:
        return ~self.is_real.view(-1, *[1] * (column.dim() - 1))


class _OfSequences(_OfRealRows):
    """Reduction of the rows [length * B] of sequences to sequences [B]; rows that are not `valid` are padding."""

    def __init__(self, valid: Tensor, eta: float) -> None:
        self._valid, self.is_real, self._eta = valid, valid.flatten(), eta

    def losses(self, per_row: Tensor) -> Tensor:
        """Return the losses [B] of sequences, whose mean is the mean over real rows."""
        valid = self._valid.to(per_row.dtype)
        share = valid.shape[1] / valid.sum(dim=0).sum().clamp(min=1.0)
        return (per_row.view(valid.shape) * valid).sum(dim=0) * share

    def priorities(self, priority: Tensor) -> Tensor:
        """Return eta times the largest priority of a sequence's rows and 1 - eta times their mean.

        Kapturowski et al. (2019), section 2.3.
        """
        valid = self._valid.to(priority.dtype)
        of_rows = priority.view(valid.shape) * valid
        mean = of_rows.sum(dim=0) / valid.sum(dim=0).clamp(min=1.0)
        return self._eta * of_rows.amax(dim=0) + (1.0 - self._eta) * mean


class _OfRollout(_OfRealRows):
    """Reduction of the rows of a rollout's sequences, whose losses are multiplied by a share, 0 for padding."""

    def __init__(self, share: Tensor) -> None:
        self._share, self.is_real = share, share > 0

    def losses(self, per_row: Tensor) -> Tensor:
        """Return losses whose mean is that over real rows."""
        return per_row * self._share


class _Sequences(Recall):
    """Features [T, S, ...] of sequences of one episode each, and the states before them [S, size].

    Networks give their outputs by row, [T * S], of the rows `source`, if they are given.
    """

    def __init__(self, features: Any, state: Tensor, source: Tensor | None = None) -> None:
        self._features, self._state, self._source = features, state, source

    def recall(self, encoder: "RecurrentEncoder") -> Tensor:
        """Return the outputs [R, F] of an encoder's memory."""
        outputs = encoder.unroll(self._features, self._state[:, encoder.part])[0].flatten(0, 1)
        return outputs if self._source is None else outputs[self._source]


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
        """Return the indices of the rows [L, S] of chosen sequences, and their numbers of rows [S].

        L is a power of two, or `length`, at least the longest of them. S is padded to a multiple by empty sequences,
        whose indices are those of one row.
        """
        padded = np.concatenate([chosen, np.repeat(chosen[:1], -len(chosen) % _MULTIPLE)])
        n_rows = self.n_rows[padded]
        longest = 1 << int(n_rows.max() - 1).bit_length()
        index = self.index[:longest, padded]
        index[:, len(chosen) :] = index[0, len(chosen) :]
        n_rows[len(chosen) :] = 0
        return index, n_rows


def _sequence_batches(
    rows: RolloutRows, layout: RolloutLayout, n_batches: int, *, normalize: bool, generator: torch.Generator
) -> Iterator[RolloutRows]:
    """Yield batches of sequences in a new order, see `RolloutSequences`."""
    n_sequences, device = len(layout.n_rows), generator.device
    order = torch.randperm(n_sequences, generator=generator, device=device).cpu().numpy()
    for chosen in np.array_split(order, min(n_batches, n_sequences)):
        index, n_rows = (to_device(column, device) for column in layout.batch(chosen))
        step = torch.arange(len(index), device=device).unsqueeze(1)
        valid = step < n_rows
        share = (valid * (valid.numel() / valid.sum())).flatten()
        last = (n_rows - 1).clamp(min=0)
        source = torch.minimum(step, last) * len(n_rows) + torch.arange(len(n_rows), device=device)
        batch = rows.at(index.flatten())
        if normalize:
            batch = batch._replace(advantage=normalized(batch.advantage, share))
        sequences = RolloutSequences(rows.extras[STATE][index[0]], source.flatten(), share)
        batch = batch._replace(layout=tuple(sequences))
        yield batch.in_arrays() if device.type == "cpu" else batch
