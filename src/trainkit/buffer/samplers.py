"""Which rows to learn from next: uniformly, or in proportion to their priority."""

import logging
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from trainkit.buffer.heads import Rows, SomeRows, one_by_one
from trainkit.buffer.segment_tree import MinTree, SumTree, tree_bytes
from trainkit.buffer.storage import Rings
from trainkit.core.errors import CheckpointError, Checks, PriorityError
from trainkit.core.schedules import Scheduled, as_schedule

_log = logging.getLogger(__name__)
_LARGEST_PRIORITY = 1e30  # its power still adds up in float64
_MOST_PENDING = 256  # arrays of rows whose tree writes are saved up at most


class Sampler(Protocol):
    """Draw live rows, with the weights that undo how they were drawn."""

    def bind(self, rings: Rings) -> None: ...

    def touch(self, *rows: SomeRows) -> None:
        """Hear of rows that were added or died."""

    def draw(
        self, batch_size: int, step: int, rng: np.random.Generator, n_batches: int = 1
    ) -> tuple[Rows, NDArray[np.float32]]:
        """Return rows and weights [n_batches * B], batch after batch."""
        ...

    def weight(self, rows: Rows, step: int) -> NDArray[np.float64]:
        """Return the weights of rows, (size * P)**-beta, not divided by a largest one."""
        ...

    def set_priority(self, rows: Rows, priority: NDArray[np.float64]) -> None: ...

    def clear(self) -> None: ...

    def metrics(self, step: int) -> dict[str, float]: ...

    @property
    def nbytes(self) -> int: ...

    def bytes_for(self, n_rows: int) -> int:
        """Return what `nbytes` will be with this many rows."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Uniform:
    """Draw every live row with the same probability, with replacement."""

    _rings: Rings

    def bind(self, rings: Rings) -> None:
        self._rings = rings

    def touch(self, *rows: SomeRows) -> None:
        """Need nothing: whether a row lives is read off the rings."""

    def draw(
        self, batch_size: int, step: int, rng: np.random.Generator, n_batches: int = 1
    ) -> tuple[Rows, NDArray[np.float32]]:
        place = rng.random(n_batches * batch_size) * self._rings.n_live  # `integers` takes more than twice as long
        return self._rings.live_row(place.astype(np.int64)), np.ones(len(place), np.float32)

    def weight(self, rows: Rows, step: int) -> NDArray[np.float64]:
        return np.ones(len(rows))

    def set_priority(self, rows: Rows, priority: NDArray[np.float64]) -> None:
        """Ignore it: all rows are alike."""

    def clear(self) -> None:
        """Keep nothing."""

    def metrics(self, step: int) -> dict[str, float]:
        return {}

    nbytes = 0

    def bytes_for(self, n_rows: int) -> int:
        return 0

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep nothing."""


class Prioritized:
    """Draw rows in proportion to (priority + eps)**alpha (Schaul et al., 2016, section 3.3).

    New rows get the largest priority written so far. A draw of B is stratified: one point in each of B equal
    parts of the total mass ("iid" draws B independent points). Of several batches at once, each has one point in
    each of its B equal parts too. The weight (size * P)**-beta is divided by the largest of the batch, or of the
    buffer.
    """

    _rings: Rings
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
        checks = Checks(owner)
        checks.number("alpha", alpha, low=0, high=1)
        checks.number("eps", eps, low=0, above_low=True)
        checks.one_of("normalize", normalize, ["batch", "buffer"])
        checks.one_of("draw", draw, ["stratified", "iid"])
        checks.done()
        self.alpha, self.eps, self.normalize, self.how = alpha, eps, normalize, draw
        self._alpha, self._eps = np.array(alpha), np.array(eps)  # reckoned with in less time than Python's numbers
        self.beta = as_schedule(owner, "beta", beta, low=0, high=1)
        self.largest_priority = 1.0
        self._pending: list[SomeRows] = []  # rows whose mass must follow their life before the next draw

    def bind(self, rings: Rings) -> None:
        self._rings = rings
        self._tree = SumTree(rings.n_rows)
        self._min_tree = MinTree(rings.n_rows) if self.normalize == "buffer" else None

    def touch(self, *rows: SomeRows) -> None:
        self._pending.extend(rows)
        if len(self._pending) > _MOST_PENDING:
            self._settle()

    def draw(
        self, batch_size: int, step: int, rng: np.random.Generator, n_batches: int = 1
    ) -> tuple[Rows, NDArray[np.float32]]:
        self._settle()
        n_rows = n_batches * batch_size
        total = self._tree.total
        if self.how == "stratified":
            point = (np.arange(float(n_rows)) + rng.random(n_rows)) * (total / n_rows)
        else:
            point = rng.random(n_rows) * total
        rows = self._tree.find(point)
        if n_batches > 1:
            rows = rows.reshape(batch_size, n_batches).T.ravel()  # neighbours go to different batches
        mass = self._tree[rows].reshape(n_batches, batch_size)
        smallest = np.minimum.reduce(mass, axis=1, keepdims=True) if self._min_tree is None else self._min_tree.min
        weight = (smallest / mass) ** self.beta(step)  # (size * P)**-beta over its maximum: size and total cancel
        return rows, weight.ravel().astype(np.float32)

    def mass(self, rows: Rows) -> NDArray[np.float64]:
        """Return (priority + eps)**alpha of rows."""
        self._settle()
        return self._tree[rows]

    def priority(self, rows: Rows) -> NDArray[np.float64]:
        """Return the priorities of rows, as they were written; 1 where alpha 0 keeps none."""
        self._settle()
        if self.alpha == 0:
            return np.ones(len(rows))
        priority: NDArray[np.float64] = np.maximum(self._tree[rows] ** (1 / self.alpha) - self.eps, 0.0)
        return priority

    def weight(self, rows: Rows, step: int) -> NDArray[np.float64]:
        self._settle()
        weight: NDArray[np.float64] = (self._tree[rows] * (self._rings.n_live / self._tree.total)) ** -self.beta(step)
        return weight

    def set_priority(self, rows: Rows, priority: NDArray[np.float64]) -> None:
        self._settle()
        if len(rows) == 0:
            return
        self.largest_priority = max(self.largest_priority, float(priority[priority.argmax()]))
        self._set_mass(rows, (priority + self._eps) ** self._alpha)

    def clear(self) -> None:
        self._pending.clear()
        self.largest_priority = 1.0
        self.bind(self._rings)

    def metrics(self, step: int) -> dict[str, float]:
        return {"beta": self.beta(step), "largest_priority": self.largest_priority}

    @property
    def nbytes(self) -> int:
        return self._tree.nbytes + (0 if self._min_tree is None else self._min_tree.nbytes)

    def bytes_for(self, n_rows: int) -> int:
        return tree_bytes(n_rows) * (2 if self.normalize == "buffer" else 1)

    def state_dict(self) -> dict[str, Any]:
        self._settle()
        kept = {"mass": self._tree[:].copy(), "largest_priority": self.largest_priority}
        return kept | {"alpha": self.alpha, "eps": self.eps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("alpha", "eps"):
            if state[name] != getattr(self, name):
                raise CheckpointError(
                    f"priorities were saved with {name} {state[name]}, this buffer has {getattr(self, name)}: "
                    "make the buffer as it was"
                )
        self.clear()
        self.largest_priority = state["largest_priority"]
        with_mass = np.flatnonzero(state["mass"])
        self._set_mass(with_mass, state["mass"][with_mass])

    def _settle(self) -> None:
        """Give rows added since the last draw the largest priority, and the dead none; order does not matter."""
        if not self._pending:
            return
        rows = np.concatenate([one_by_one(rows) for rows in self._pending])
        self._pending.clear()
        lives = self._rings.stamp[rows] >= 0
        self._set_mass(rows, np.where(lives, (self.largest_priority + self.eps) ** self.alpha, 0.0))

    def _set_mass(self, rows: Rows, mass: NDArray[np.float64]) -> None:
        self._tree.put(rows, mass)
        if self._min_tree is not None:
            self._min_tree.put(rows, np.where(mass > 0.0, mass, np.inf))


def checked_priority(priority: NDArray[Any], n_rows: int) -> NDArray[np.float64]:
    """Refuse what is no priority, in float64 and clipped where its power could no longer be added up."""
    values = np.asarray(priority, np.float64)
    if values.shape != (n_rows,):
        raise PriorityError(f"update_priorities needs one priority per slot [{n_rows}], got shape {values.shape}")
    if n_rows == 0:
        return values
    low, high = values[values.argmin()], values[values.argmax()]  # either finds a nan
    if not (low >= 0.0 and high < np.inf):
        at = int(np.flatnonzero(~((values >= 0.0) & (values < np.inf)))[0])
        raise PriorityError(f"a priority must be finite and >= 0, got {values[at]} at index {at} of {n_rows}")
    if high > _LARGEST_PRIORITY:
        _log.warning("priorities above %g were clipped, the largest was %g", _LARGEST_PRIORITY, high)
        values = np.minimum(values, _LARGEST_PRIORITY)
    return values
