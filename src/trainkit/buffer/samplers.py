"""Sampling distributions over live rows: uniform, or in proportion to priority."""

import logging
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainkit.buffer.rings import RowBlock, Rows, rows_of_block
from trainkit.buffer.segment_tree import MinTree, SumTree, tree_bytes
from trainkit.buffer.storage import Storage
from trainkit.core.errors import CheckpointError, Checks, PriorityError
from trainkit.core.schedules import Adjustable, Scheduled

_log = logging.getLogger(__name__)
_LARGEST_PRIORITY = 1e30  # powers of it can still be summed in float64
_MOST_UNANSWERED = 1_000  # draws without a priority before the log says so
_MOST_QUEUED = 256  # arrays of rows whose masses are not written yet


class UniformSampler:
    """Sample every live row with the same probability, with replacement; the base class of samplers.

    Its buffer binds it to its storage before anything else, calls `touch` with every row that is added or removed, and
    `draw` for each batch; `self._storage.rings` knows which rows are live, and their order in each environment. A
    subclass overrides `draw`, and what else it needs: `weight` where the buffer's column "weight" is not 1, and the
    state where draws depend on more than the storage, as those of `PrioritizedSampler` do.
    """

    _storage: Storage

    def bind(self, storage: Storage) -> None:
        """Sample from this storage from now on."""
        self._storage = storage

    def touch(self, *blocks: RowBlock) -> None:
        """Receive the rows that were added or removed; nothing follows from it where all are sampled alike."""

    def draw(
        self, batch_size: int, step: int, rng: np.random.Generator, n_batches: int = 1
    ) -> tuple[Rows, NDArray[np.float32]]:
        """Sample rows and their importance weights [n_batches * B], batch after batch; at least one row is live."""
        rings = self._storage.rings
        index = (rng.random(n_batches * batch_size) * rings.n_live).astype(np.int64)
        return rings.live_rows(index), np.ones(len(index), np.float32)

    def weight(self, rows: Rows, step: int) -> NDArray[np.float64]:
        """Return the importance weights of rows, without normalization: 1 where all are sampled alike."""
        return np.ones(len(rows))

    def set_priority(self, rows: Rows, priority: NDArray[np.float64]) -> None:
        """Set the priorities of live rows; has no effect on uniform sampling."""

    def clear(self) -> None:
        """Forget all priorities."""

    def metrics(self, step: int) -> dict[str, float]:
        """Return metrics to log."""
        return {}

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return 0

    def bytes_for(self, n_rows: int) -> int:
        """Return the bytes needed for this many rows."""
        return 0

    def state_dict(self) -> dict[str, Any]:
        """Return what later draws depend on, in plain values and arrays; options are the buffer's."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved state."""


class PrioritizedSampler(UniformSampler):
    """Sample rows in proportion to their mass (priority + eps)**alpha (Schaul et al., 2016, section 3.3).

    New rows get the largest priority written so far. A draw of B is stratified: one point in each of B equal
    parts of the total mass ("iid" draws B independent points). Of several batches at once, each has one point in
    each of its B equal parts too. The weight (size * P)**-beta is divided by the largest of the batch, or of the
    buffer.

    A row that is added or removed gets its mass at the latest at the next draw, many at once.
    """

    beta = Adjustable(low=0, high=1, owner="PrioritizedReplayBuffer")
    _tree: SumTree
    _min_tree: MinTree | None

    def __init__(
        self,
        alpha: float,
        beta: Scheduled,
        eps: float,
        normalize: Literal["batch", "buffer"],
        draw: Literal["stratified", "iid"],
    ) -> None:
        owner = "PrioritizedReplayBuffer"
        with Checks(owner) as checks:
            checks.number("alpha", alpha, low=0, high=1)
            checks.number("eps", eps, low=0, above_low=True)
            checks.one_of("normalize", normalize, ["batch", "buffer"])
            checks.one_of("draw", draw, ["stratified", "iid"])
        self.alpha, self.eps = alpha, eps
        self.normalize: Literal["batch", "buffer"] = normalize
        self.mode: Literal["stratified", "iid"] = draw
        self.beta = beta
        self.largest_priority = 1.0
        self._n_unanswered: int | None = 0  # draws before the first priority was written; None afterwards
        self._queued: list[Rows] = []  # rows added or removed whose masses are not written yet

    def bind(self, storage: Storage) -> None:
        super().bind(storage)
        self._tree = SumTree(storage.rings.n_rows)
        self._min_tree = MinTree(storage.rings.n_rows) if self.normalize == "buffer" else None

    def touch(self, *blocks: RowBlock) -> None:
        self._queued.extend(map(rows_of_block, blocks))
        if len(self._queued) > _MOST_QUEUED:
            self._write_masses()

    def draw(
        self, batch_size: int, step: int, rng: np.random.Generator, n_batches: int = 1
    ) -> tuple[Rows, NDArray[np.float32]]:
        self._write_masses()
        if self._n_unanswered is not None:
            self._n_unanswered += 1
        if self._n_unanswered == _MOST_UNANSWERED:
            _log.warning(
                "PrioritizedReplayBuffer was sampled %d times and got no priority, so that it samples uniformly: "
                "return Loss(per_row, priority=...) from the policy's loss, or use a ReplayBuffer",
                _MOST_UNANSWERED,
            )
        n_rows = n_batches * batch_size
        total = self._tree.total
        if self.mode == "stratified":
            point = (np.arange(float(n_rows)) + rng.random(n_rows)) * (total / n_rows)
        else:
            point = rng.random(n_rows) * total
        rows = self._tree.find(point)
        if n_batches > 1:
            rows = rows.reshape(batch_size, n_batches).T.ravel()  # neighboring points go to different batches
        mass = self._tree[rows].reshape(n_batches, batch_size)
        smallest = np.minimum.reduce(mass, axis=1, keepdims=True) if self._min_tree is None else self._min_tree.min
        weight = (smallest / mass) ** self.beta(step)  # (size * P)**-beta over its maximum: size and total cancel
        return rows, weight.ravel().astype(np.float32)

    def mass(self, rows: Rows) -> NDArray[np.float64]:
        """Return (priority + eps)**alpha of rows."""
        self._write_masses()
        return self._tree[rows]

    def priority(self, rows: Rows) -> NDArray[np.float64]:
        """Return the priorities of rows as they were written; 1 if alpha is 0, since none are stored then."""
        if self.alpha == 0:
            return np.ones(len(rows))
        priority: NDArray[np.float64] = np.maximum(self.mass(rows) ** (1 / self.alpha) - self.eps, 0.0)
        return priority

    def weight(self, rows: Rows, step: int) -> NDArray[np.float64]:
        mass = self.mass(rows)
        weight: NDArray[np.float64] = (mass * (self._storage.rings.n_live / self._tree.total)) ** -self.beta(step)
        return weight

    def set_priority(self, rows: Rows, priority: NDArray[np.float64]) -> None:
        self._write_masses()
        if len(rows) == 0:
            return
        self._n_unanswered = None
        self.largest_priority = max(self.largest_priority, float(priority[priority.argmax()]))
        self._set_mass(rows, (priority + self.eps) ** self.alpha)

    def clear(self) -> None:
        self._queued.clear()
        self.largest_priority = 1.0
        self.bind(self._storage)

    def metrics(self, step: int) -> dict[str, float]:
        return {"beta": self.beta(step), "largest_priority": self.largest_priority}

    @property
    def nbytes(self) -> int:
        return self._tree.nbytes + (0 if self._min_tree is None else self._min_tree.nbytes)

    def bytes_for(self, n_rows: int) -> int:
        return tree_bytes(n_rows) * (2 if self.normalize == "buffer" else 1)

    def state_dict(self) -> dict[str, Any]:
        self._write_masses()
        state = {"mass": self._tree[:].copy(), "largest_priority": self.largest_priority}
        return state | {"alpha": self.alpha, "eps": self.eps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name in ("alpha", "eps"):
            if state[name] != getattr(self, name):
                raise CheckpointError(
                    f"priorities were saved with {name} {state[name]}, this buffer has {getattr(self, name)}: "
                    "make the buffer as it was"
                )
        self.clear()
        self.largest_priority = state["largest_priority"]
        rows = np.flatnonzero(state["mass"])
        self._set_mass(rows, state["mass"][rows])

    def _write_masses(self) -> None:
        """Set rows that `touch` has queued to the largest priority so far, and removed ones to mass 0."""
        if self._queued:
            rows = np.concatenate(self._queued)
            self._queued.clear()
            is_live = self._storage.records.stamp[rows] >= 0
            self._set_mass(rows, np.where(is_live, (self.largest_priority + self.eps) ** self.alpha, 0.0))

    def _set_mass(self, rows: Rows, mass: NDArray[np.float64]) -> None:
        self._tree.put(rows, mass)
        if self._min_tree is not None:
            self._min_tree.put(rows, np.where(mass > 0.0, mass, np.inf))


def checked_priority(priority: NDArray[Any], n_rows: int) -> NDArray[np.float64]:
    """Return priorities [B] as float64, clipped so that sums of their powers are finite; raise if one is invalid."""
    values = np.asarray(priority, np.float64)
    if values.shape != (n_rows,):
        raise PriorityError(f"update_priorities needs one priority per slot [{n_rows}], got shape {values.shape}")
    if n_rows == 0:
        return values
    low, high = values[values.argmin()], values[values.argmax()]  # either is nan if there is one
    if not (low >= 0.0 and high < np.inf):
        at = int(np.flatnonzero(~((values >= 0.0) & (values < np.inf)))[0])
        raise PriorityError(f"a priority must be finite and >= 0, got {values[at]} at index {at} of {n_rows}")
    if high > _LARGEST_PRIORITY:
        _log.warning("priorities above %g were clipped, the largest was %g", _LARGEST_PRIORITY, high)
        values = np.minimum(values, _LARGEST_PRIORITY)
    return values
