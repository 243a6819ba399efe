"""Sequences for recurrent policies: consecutive rows of one episode, read from a replay buffer's one-step rows.

A drawn row is the first row to learn from. The rows before it, up to `burn_in`, bring a recurrent state up to date:

    `burn_in` stored rows of the episode before it     they are positions 0 to burn_in - 1
    fewer, as the episode starts there                 its first row is position burn_in: the state there is known
    fewer, as older rows were overwritten              the oldest row is position 0, and learning starts after burn_in

So the rows to learn from are those from position `burn_in` on, for all sequences of a batch, and a state is reset
before position 0 or `burn_in` and nowhere else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from trainkit.buffer.nstep import Windows, read_windows
from trainkit.buffer.replay import DrawnRows
from trainkit.buffer.rings import Rows
from trainkit.buffer.storage import Gather, Storage
from trainkit.core import tree
from trainkit.core.config import Part
from trainkit.core.data import Horizon, Lookup, Obs, shapes_of
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.protocols import Buffer
from trainkit.core.signatures import checked

BatchT = TypeVar("BatchT")

# The column with the recurrent state before each step, [S], zeros where an episode starts.
STATE = "state"


@runtime_checkable
class SequenceBuffer(Buffer, Protocol):
    """A buffer of which sequences can be read, as a replay buffer."""

    def sample_by(
        self,
        read: Callable[[DrawnRows], BatchT],
        batch_size: int,
        *,
        horizon: Horizon | None = None,
        step: int = 0,
    ) -> BatchT:
        """Sample B rows, and return the batch that a function reads of them."""
        ...


@checked
@dataclass(frozen=True, slots=True)
class Sequences(Part):
    """The sequences that a recurrent policy learns from; the defaults are those of R2D2 (Kapturowski et al., 2019).

    Args:
        length: consecutive rows of an episode to learn from, at most.
        burn_in: rows before them, which bring the recurrent state up to date and get no gradient; None begins every
            sequence with its episode.
        stored_state: whether each row is stored with the state before it, at which sequences begin; False begins at
            zero, so that only the burn-in is remembered.
        eta: the priority of a sequence is eta times the largest of its rows' and 1 - eta times their mean.
    """

    length: int = 80
    burn_in: int | None = 40
    stored_state: bool = True
    eta: float = 0.9

    def __post_init__(self) -> None:
        with Checks("Sequences") as checks:
            checks.integer("length", self.length, low=1)
            checks.integer("burn_in", self.burn_in, low=0, optional=True)
            checks.number("eta", self.eta, low=0, high=1)

    @property
    def n_before(self) -> int:
        """Positions before the rows to learn from."""
        return 0 if self.burn_in is None else self.burn_in


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SequenceBatch:
    """B sequences of up to T = burn_in + length consecutive rows, each of one episode.

    Where `valid` is false there is no row, and columns repeat the nearest one. Rows are learned from at
    positions `burn_in` and later; those before bring a recurrent state up to date. The state before the first row of
    column b is `state[b]`, and zero before a row that `starts`, which is at position 0 or `burn_in`.

    Arrays are valid until the second next sample, a `Lookup` until the next one; `copy()` keeps them.
    """

    obs_fields: ClassVar[tuple[str, ...]] = ("observations",)
    observations: Obs  # [T + n, B, ...], those of the rows, and those that their n-step windows reach
    after: NDArray[np.int64]  # [T, B], the position in `observations` of each row's next observation
    action: NDArray[Any]  # [T, B, ...]
    reward: NDArray[np.float32]  # [T, B], the discounted sum of the window's rewards
    discount: NDArray[np.float32]  # [T, B], gamma**m after m real steps, 0 when the window ended in termination
    valid: NDArray[np.bool_]  # [T, B]
    starts: NDArray[np.bool_]  # [T, B], whether an episode starts at the row
    burn_in: int
    state: NDArray[np.float32] | None  # [B, S], the stored column `STATE` of the first rows; None: none was stored
    weight: NDArray[np.float32]  # [B], importance weights; ones where rows were drawn uniformly
    slots: NDArray[np.int64]  # [B], of the drawn rows, for `update_priorities`
    extras: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # {column: [T, B, ...]}, those requested

    def __repr__(self) -> str:
        return shapes_of(self)

    def __len__(self) -> int:
        return len(self.weight)

    @property
    def n_rows(self) -> int:
        """The number of rows to learn from."""
        return int(np.count_nonzero(self.valid[self.burn_in :]))

    @property
    def obs(self) -> Obs:
        """The observations of the rows [T, B, ...]."""
        return self._observed(slice(len(self.reward)))

    @property
    def next_obs(self) -> Obs:
        """The observations after the rows' windows [T, B, ...], true final ones where an episode ended."""
        return self._observed((self.after, np.arange(len(self))))

    def _observed(self, at: Any) -> Obs:
        def rows_of(leaf: Any) -> Any:
            return replace(leaf, indices=leaf.indices[at]) if isinstance(leaf, Lookup) else leaf[at]

        return tree.map_tree(rows_of, self.observations)

    def copy(self) -> "SequenceBatch":
        """Return a copy that owns its arrays."""
        return replace(
            self,
            observations=tree.map_tree(np.copy, self.observations),
            after=self.after.copy(),
            action=self.action.copy(),
            reward=self.reward.copy(),
            discount=self.discount.copy(),
            valid=self.valid.copy(),
            starts=self.starts.copy(),
            state=None if self.state is None else self.state.copy(),
            weight=self.weight.copy(),
            slots=self.slots.copy(),
            extras={name: column.copy() for name, column in self.extras.items()},
        )


_DEFAULTS = {"replay": Sequences(), "rollouts": Sequences(16, 0), "data": Sequences(stored_state=False)}


def sequences_for(policy: str, given: object, learns_from: str) -> Sequences:
    """Return the sequences of a policy that learns from "replay", "rollouts" or "data"; None is the default there.

    Raises:
        ConfigError: they are not for batches from there.
    """
    sequences = _DEFAULTS[learns_from] if given is None else given
    if not isinstance(sequences, Sequences):
        raise ConfigError(f"{policy}.sequences must be tk.Sequences(...) for a recurrent network, got {sequences!r}")
    with Checks(policy) as checks:
        if learns_from == "rollouts":
            rule = f".sequences must have burn_in=0 and stored states, got {sequences}"
            checks.require(sequences.burn_in == 0 and sequences.stored_state, rule)
        if learns_from == "data":
            rule = ".sequences must have stored_state=False: data have no states of this policy"
            checks.require(not sequences.stored_state, rule)
    return sequences


@checked
def sample_sequences(
    buffer: SequenceBuffer,
    batch_size: int,
    *,
    length: int,
    burn_in: int | None = 0,
    horizon: Horizon | None = None,
    step: int = 0,
    columns: Sequence[str] = (),
) -> SequenceBatch:
    """Sample B sequences of consecutive rows of one episode, for recurrent policies.

    A sequence is drawn by the first row to learn from, which any row may be, by priority where there is one. At most
    `burn_in` rows before it come along to bring a recurrent state up to date. It ends with its episode, a cut or the
    newest row; n-step windows do as in `buffer.sample`.

    Args:
        buffer: a replay buffer.
        batch_size: B, at least 1.
        length: rows to learn from, at most.
        burn_in: rows before them; where an episode starts, as many as there are rows, since its state is known. None
            begins every sequence with its episode.
        horizon: which return to compute, never None: `policy.horizon` to learn from it.
        step: the environment step, for schedules.
        columns: what to return in `extras`, [T, B, ...] each, as in `buffer.sample`.

    Raises:
        EmptyBufferError: there is no row.
    """
    with Checks("sample_sequences") as checks:
        checks.integer("length", length, low=1)
        checks.integer("burn_in", burn_in, low=0, optional=True)
        checks.integer("step", step, low=0)
    return draw_sequences(buffer, batch_size, length, burn_in, horizon=horizon, step=step, columns=columns)


def draw_sequences(
    buffer: SequenceBuffer,
    batch_size: int,
    length: int,
    burn_in: int | None,
    *,
    horizon: Horizon | None,
    step: int,
    columns: Sequence[str],
) -> SequenceBatch:
    """Sample sequences as `sample_sequences` does, whose length and burn-in were checked."""
    read = partial(_batch_of, length=length, burn_in=burn_in, columns=columns)
    return buffer.sample_by(read, batch_size, horizon=horizon, step=step)


def _batch_of(drawn: DrawnRows, *, length: int, burn_in: int | None, columns: Sequence[str]) -> SequenceBatch:
    """Return the sequences of drawn rows [B]."""
    storage = drawn.storage
    read = read_sequences(storage, drawn.rows, length, burn_in, drawn.horizon, drawn.rng, drawn.gather)
    shape, rows, windows = read.rows.shape, read.rows.ravel(), read.windows
    extras = {name: drawn.column(name, rows, windows) for name in columns}
    action = windows.first["action"]
    return SequenceBatch(
        observations=read.observations,
        after=read.after,
        action=action.reshape(*shape, *action.shape[1:]),
        reward=windows.reward.reshape(shape),
        discount=windows.discount.reshape(shape),
        valid=read.valid,
        starts=read.valid & (storage.records.age[read.rows] == 0),
        burn_in=0 if burn_in is None else burn_in,
        state=storage.extras[STATE][read.first] if STATE in storage.extras else None,
        weight=drawn.weight,
        slots=storage.slots(drawn.rows),
        extras={name: column.reshape(*shape, *column.shape[1:]) for name, column in extras.items()},
    )


class FoundSequences(NamedTuple):
    """B sequences of T = burn_in + length rows, as rows of the storage."""

    rows: Rows  # [T, B]; where a position is not valid, the nearest row of the sequence
    valid: NDArray[np.bool_]  # [T, B]
    first: Rows  # [B], the first row of each sequence
    windows: Windows  # of all rows, [T * B]
    after: NDArray[np.int64]  # [T, B], positions in `observations` of the rows' next observations
    observations: Obs  # [T + n, B, ...], those of the rows and of the steps after them, up to n


def read_sequences(
    storage: Storage,
    drawn: Rows,
    length: int,
    burn_in: int | None,
    horizon: Horizon,
    rng: np.random.Generator,
    gather: Gather,
) -> FoundSequences:
    """Return the sequences of drawn rows [B], with burn-in None from their episodes' starts, see the module.

    A sequence ends with its episode or the newest row; later positions are not valid.
    """
    rings, records = storage.rings, storage.records
    ring = drawn % rings.n_rings
    oldest = rings.after(rings.cursors[ring], -rings.count[ring])
    n_older = (drawn - oldest) % rings.n_rows // rings.n_rings
    age = records.age[drawn]
    n_before = np.minimum(age, n_older)  # rows of the episode that are stored
    if burn_in is not None:
        n_before = np.minimum(n_before, burn_in)
    first = rings.after(drawn, -n_before)
    is_whole = n_before == age  # it begins with its episode
    if burn_in is None:
        n_positions, offset = length, np.where(is_whole, 0, length)
    else:
        n_positions, offset = burn_in + length, np.where(is_whole & (n_before < burn_in), burn_in, 0)
    n_tracked = n_positions + horizon.longest

    step = np.arange(n_tracked)[:, None]
    ahead = records.array.take(rings.after(first, step))
    is_inside = np.ones(ahead.shape, np.bool_)
    is_inside[1:] = (ahead["final"][:-1] < 0) & (ahead["stamp"][1:] >= 0)
    n_rows = np.logical_and.accumulate(is_inside, axis=0).sum(axis=0)  # [B], at most n_tracked
    index = step - offset  # [T + n, B], of positions in their sequences
    nearest = np.clip(index, 0, n_rows - 1)
    all_rows = rings.after(first, nearest)
    rows, valid = all_rows[:n_positions], ((index >= 0) & (index < n_rows))[:n_positions]

    windows = read_windows(storage, rows.ravel(), horizon, rng)
    n_steps = np.broadcast_to(windows.n_steps, rows.size).reshape(rows.shape)
    return FoundSequences(
        rows=rows,
        valid=valid,
        first=first,
        windows=windows,
        after=np.minimum(nearest[:n_positions] + offset + n_steps, n_tracked - 1),  # of rows that are not valid, too
        observations=_observations(storage, all_rows, offset + n_rows, gather),
    )


def _observations(storage: Storage, rows: Rows, ends: NDArray[np.int64], gather: Gather) -> Obs:
    """Return the observations of rows [T, B], at positions `ends` [B] the next observations of the rows before."""
    (has_end,) = np.nonzero(ends < len(rows))
    at = (ends[has_end], has_end)
    last = rows[at]  # a position after the end repeats the last row
    final = storage.next_obs_at(last, storage.records.final[last], gather=gather)
    observations = storage.obs_at(rows.ravel(), gather=gather)

    def with_ends(column: Any, after: Any) -> Any:
        if isinstance(column, Lookup):
            indices = with_ends(column.indices, after.indices)
            return replace(column, indices=indices)
        shaped = column.reshape(*rows.shape, *column.shape[1:])
        shaped[at] = after
        return shaped

    return tree.map_tree(with_ends, observations, final)
