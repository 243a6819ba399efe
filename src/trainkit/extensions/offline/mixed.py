"""Batches from several replay buffers: each row comes from one of them, with given probabilities."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from numpy.typing import ArrayLike, NDArray

from trainkit.buffer.replay import ReplayBuffer
from trainkit.buffer.samplers import checked_priority
from trainkit.buffer.storage import checked_slots
from trainkit.core import seeding, tree
from trainkit.core.data import Horizon, RecordedEpisode, RowSpec, Transition, TransitionBatch
from trainkit.core.errors import CheckpointError, Checks, ConfigError, EmptyBufferError, SpaceMismatchError
from trainkit.core.signatures import checked
from trainkit.core.stats import html_table


@checked
class MixedBuffer:
    """Sample every row of a batch from one of several buffers, independently, with the given probabilities.

    A collector's rows go into the first source: `MixedBuffer({online: 0.5, demonstrations: 0.5})`. Weights correct for
    priorities within a prioritized source, (size * P)**-beta, and are 1 in a uniform one; then all are divided by the
    batch's largest. They do not correct for the proportions.

    Args:
        proportions: {buffer: expected proportion of its rows in a batch}, of `ReplayBuffer` and its subclasses; each is
            above 0, and they add up to 1.
        seed: root of the choices of sources; None takes the trainer's.
    """

    def __init__(self, proportions: Mapping[ReplayBuffer, float], *, seed: int | None = None) -> None:
        with Checks("MixedBuffer") as checks:
            is_given = isinstance(proportions, Mapping) and len(proportions) > 0
            checks.require(is_given, f" needs at least one buffer, {{buffer: proportion, ...}}, got {proportions!r}")
            checks.done()
            for position, (source, proportion) in enumerate(proportions.items()):
                known = isinstance(source, ReplayBuffer)
                checks.require(known, f".proportions[{position}] must be a ReplayBuffer, got {source!r}")
                checks.require(
                    not known or source.frames is None,
                    f".proportions[{position}] has frames on a device, but rows are joined in numpy: omit frames=",
                )
                checks.number(f"proportions[{position}]", proportion, low=0, high=1, above_low=True)
            checks.integer("seed", seed, low=0, optional=True)
            checks.done()
            total = math.fsum(proportions.values())
            adds_up = math.isclose(total, 1.0, rel_tol=1e-9)
            got = f"got {list(proportions.values())}, which is {total:g}"
            checks.require(adds_up, f".proportions must add up to 1, {got}")
        self._sources: list[ReplayBuffer] = list(proportions)
        self._proportions = np.array([proportion / total for proportion in proportions.values()])  # [sources]
        self._has_own_seed = seed is not None
        self._rng = seeding.generator(seeding.fresh_root() if seed is None else seed, "mixed")
        self._check_specs()

    @property
    def sources(self) -> Sequence[ReplayBuffer]:
        """The buffers; a collector's rows go into the first one. Others need another `MixedBuffer({buffer: share})`."""
        return tuple(self._sources)

    @property
    def proportions(self) -> NDArray[np.float64]:
        """The probability of each source [sources]."""
        return self._proportions.copy()

    def __len__(self) -> int:
        return sum(map(len, self._sources))

    def __repr__(self) -> str:
        parts = zip(self._proportions.tolist(), self._sources, strict=True)
        return f"MixedBuffer({', '.join(f'{proportion:g} of {source!r}' for proportion, source in parts)})"

    def _repr_html_(self) -> str:
        return html_table(repr(self), [(f"source {i}", source) for i, source in enumerate(self._sources)])

    @property
    def capacity(self) -> int:
        """Transitions in all sources."""
        return sum(source.capacity for source in self._sources)

    @property
    def nbytes(self) -> int:
        """Bytes allocated by all sources."""
        return sum(source.nbytes for source in self._sources)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names that `sample(columns=)` accepts: those that every source has."""
        return tuple(name for name in self._sources[0].columns if all(name in one.columns for one in self._sources))

    @property
    def prioritized(self) -> bool:
        """Whether `update_priorities` has any effect."""
        return any(source.prioritized for source in self._sources)

    @property
    def is_seeded(self) -> bool:
        """Whether it and all its sources have a seed."""
        return self._has_own_seed and all(source.is_seeded for source in self._sources)

    @property
    def observation_space(self) -> Space[Any]:
        """Space of one environment, from the first source that has one."""
        return self._with_spaces.observation_space

    @property
    def action_space(self) -> Space[Any]:
        """Space of one environment, from the first source that has one."""
        return self._with_spaces.action_space

    @property
    def _with_spaces(self) -> ReplayBuffer:
        """The first source that knows its spaces, else a source whose error explains how to provide them."""
        return next((source for source in self._sources if source.spaces is not None), self._sources[0])

    def seed(self, root: int) -> None:
        """Seed the choice of sources, and sources without a seed, from this root."""
        if not self._has_own_seed:
            self._rng = seeding.generator(root, "mixed")
            self._has_own_seed = True
        for position, source in enumerate(self._sources):
            if not source.is_seeded:
                source.seed(seeding.derive(root, "source", position))

    def bind(self, spec: RowSpec) -> None:
        """Bind the first source to a collector's rows, which must have the spec of the other sources' rows."""
        self._sources[0].bind(spec)
        self._check_specs()

    def add(self, transition: Transition) -> NDArray[np.int64]:
        """Store K rows in the first source and return their slots [K]."""
        return self._slots(0, self._sources[0].add(transition))

    def cut(self, env_ids: ArrayLike) -> None:
        """End the open episodes of these environments in the first source."""
        self._sources[0].cut(env_ids)

    def drop(self, env_ids: ArrayLike) -> int:
        """Remove the open episodes of these environments from the first source; return the number of rows removed."""
        return self._sources[0].drop(env_ids)

    def clear(self) -> None:
        """Discard the rows of the first source, which a collector fills; the others keep theirs."""
        self._sources[0].clear()

    def is_stored(self, slots: ArrayLike) -> NDArray[np.bool_]:
        """Return which slots [K] still have their row."""
        named = checked_slots("MixedBuffer", slots)
        held = np.zeros(named.shape, np.bool_)
        for source, own in self._by_source(named):
            held[own] = source.is_stored(named[own] // len(self._sources))
        return held

    def get(self, slots: ArrayLike, columns: Sequence[str] = (), *, stack: int | None = None) -> Transition:
        """Return the rows of these slots [K], in their order; `extras` has the columns that all of them have.

        See `ReplayBuffer.get`.
        """
        named = checked_slots("MixedBuffer", slots)
        parts = [
            (own, source.get(named[own] // len(self._sources), columns, stack=stack))
            for source, own in self._by_source(named)
        ]
        if not parts:
            return self._sources[0].get(named, columns, stack=stack)
        order = np.argsort(np.concatenate([np.flatnonzero(own) for own, _ in parts]))
        common = set.intersection(*(set(rows.extras) for _, rows in parts))
        columns_of = [tuple(rows._replace(extras={name: rows.extras[name] for name in common})) for _, rows in parts]
        return Transition(*tree.map_tree(lambda *leaves: np.concatenate(leaves)[order], *columns_of))

    def rewrite(self, slots: NDArray[np.int64], *, reward: ArrayLike | None = None, **columns: ArrayLike) -> None:
        """Change the rewards and stored columns of rows of any source; see `ReplayBuffer.rewrite`."""
        slots = checked_slots("MixedBuffer", slots)
        for source, own in self._by_source(slots):
            source.rewrite(np.where(own, slots // len(self._sources), -1), reward=reward, **columns)  # ignores -1

    def sample(
        self, batch_size: int | None, *, horizon: Horizon | None = None, step: int = 0, columns: Sequence[str] = ()
    ) -> TransitionBatch:
        """Sample B rows, ordered by source; see `ReplayBuffer.sample`.

        With batch_size None it returns every row of every source once. Then the weights of a source's rows add up to
        its proportion of the batch, so that the weighted mean over all rows is the expectation of a draw.

        Raises:
            EmptyBufferError: a source has no row, even if none would be sampled from it.
        """
        for position, source in enumerate(self._sources):
            if len(source) == 0:
                raise EmptyBufferError(
                    f"MixedBuffer: source {position}, {source!r} with proportion {self._proportions[position]:g}, is "
                    "empty: fill it before sampling"
                )
        if batch_size is None:
            return self._read_all(horizon, step, columns)
        if isinstance(batch_size, bool) or not (isinstance(batch_size, (int, np.integer)) and batch_size >= 1):
            raise ConfigError(f"MixedBuffer.sample needs an integer batch_size >= 1, got {batch_size!r}")
        counts = self._rng.multinomial(batch_size, self._proportions)
        wanted = [*columns, *({"weight"} - set(columns))]
        drawn = {
            position: self._sources[position].sample(int(counts[position]), horizon=horizon, step=step, columns=wanted)
            for position in np.flatnonzero(counts).tolist()
        }
        weight = np.concatenate([batch.extras["weight"] for batch in drawn.values()])
        return self._joined(drawn, weight / weight.max(), columns)

    def _read_all(self, horizon: Horizon | None, step: int, columns: Sequence[str]) -> TransitionBatch:
        """Return every row once, weighted by its source's proportion."""
        rows = [source.sample(None, horizon=horizon, step=step, columns=columns) for source in self._sources]
        per_row = [part * len(self) / len(batch.reward) for part, batch in zip(self._proportions, rows, strict=True)]
        weight = np.concatenate([np.full(len(batch.reward), one) for one, batch in zip(per_row, rows, strict=True)])
        return self._joined(dict(enumerate(rows)), weight, columns)

    def _joined(
        self, parts: Mapping[int, TransitionBatch], weight: NDArray[np.float64], columns: Sequence[str]
    ) -> TransitionBatch:
        """Return the concatenated batches of some sources, {position: batch}."""
        batches = list(parts.values())

        def joined(*leaves: NDArray[Any]) -> NDArray[Any]:
            return np.concatenate(leaves)

        return TransitionBatch(
            obs=tree.map_tree(joined, *(batch.obs for batch in batches)),
            action=joined(*(batch.action for batch in batches)),
            reward=joined(*(batch.reward for batch in batches)),
            discount=joined(*(batch.discount for batch in batches)),
            next_obs=tree.map_tree(joined, *(batch.next_obs for batch in batches)),
            weight=weight.astype(np.float32),
            slots=joined(*(self._slots(position, batch.slots) for position, batch in parts.items())),
            extras={name: joined(*(batch.extras[name] for batch in batches)) for name in columns},
        )

    def sample_round(
        self, n_batches: int, batch_size: int, *, horizon: Horizon, step: int = 0, columns: Sequence[str] = ()
    ) -> list[TransitionBatch]:
        """Sample the batches of several updates one by one: the number of rows per source is drawn for each."""
        return [self.sample(batch_size, horizon=horizon, step=step, columns=columns) for _ in range(n_batches)]

    def return_range(self, horizon: Horizon) -> tuple[float, float]:
        """Return the smallest and the largest return of all sources; see `ReplayBuffer.return_range`."""
        lows, highs = zip(*(source.return_range(horizon) for source in self._sources), strict=True)
        return min(lows), max(highs)

    @checked
    def transitions(self, n_rows: int = 10_000) -> Iterator[Transition]:
        """Yield all rows of every source once, `n_rows` at a time."""
        for source in self._sources:
            yield from source.transitions(n_rows)

    def episodes(self) -> Iterator[RecordedEpisode]:
        """Yield the episodes of all sources, one source after another."""
        for source in self._sources:
            if len(source):
                yield from source.episodes()

    def update_priorities(self, slots: NDArray[np.int64], priority: NDArray[Any]) -> None:
        """Write priorities [B] to the sources of the slots; uniform sources ignore them.

        Raises:
            PriorityError: a priority is nan, infinite or negative; nothing is written then, in any source.
        """
        values = checked_priority(priority, len(slots))
        slots = np.asarray(slots)
        for source, own in self._by_source(slots):
            if source.prioritized:
                source.update_priorities(slots[own] // len(self._sources), values[own])

    def metrics(self, step: int) -> dict[str, float]:
        """Return the total size, and each source's own metrics with its index appended."""
        own = [(position, source.metrics(step)) for position, source in enumerate(self._sources)]
        named = {f"{name}_{position}": number for position, numbers in own for name, number in numbers.items()}
        return {"size": float(len(self)), **named}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every source, and of the random choice of sources."""
        return {
            "sources": [source.state_dict() for source in self._sources],
            "proportions": self._proportions.tolist(),
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of a mixed buffer with the same kinds of sources and the same proportions."""
        saved, own = state["proportions"], self._proportions.tolist()
        if saved != own:
            raise CheckpointError(f"a MixedBuffer of proportions {saved} was saved, this has {own}: make it as it was")
        for source, one in zip(self._sources, state["sources"], strict=True):
            source.load_state_dict(one)
        self._rng.bit_generator.state = state["rng"]

    def _by_source(self, slots: NDArray[np.int64]) -> Iterator[tuple[ReplayBuffer, NDArray[np.bool_]]]:
        """Yield each source that has any of the slots, and which of them [K] it has."""
        origin = slots % len(self._sources)
        for position, source in enumerate(self._sources):
            own = origin == position
            if own.any():
                yield source, own

    def _slots(self, position: int, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the slots of one source's rows in the mixed buffer."""
        mixed: NDArray[np.int64] = slots * len(self._sources) + position
        return mixed

    def _check_specs(self) -> None:
        """Raise if observations or actions of the sources cannot be in one array."""
        bound = [(position, source.spec) for position, source in enumerate(self._sources) if source.spec is not None]
        for position, spec in bound[1:]:
            first, other = bound[0]
            for name in ("obs", "action"):
                own, theirs = getattr(other, name), getattr(spec, name)
                if own != theirs:
                    raise SpaceMismatchError(
                        f"MixedBuffer: source {position} has {name} {theirs}, source {first} has {own}: mix rows of "
                        "the same spaces"
                    )
