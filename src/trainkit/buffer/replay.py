"""The replay buffer: storage of one-step rows, a sampler that picks rows, and n-step returns computed on read."""

import inspect
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainkit.buffer.nstep import Windows, read_return_range, read_return_to_go, read_windows
from trainkit.buffer.recorded import Block, RecordedRows
from trainkit.buffer.rings import Rows
from trainkit.buffer.samplers import UniformSampler, checked_priority
from trainkit.buffer.storage import (
    FrameStore,
    Gather,
    ImageMirror,
    Storage,
    checked_slots,
    rewrite_columns,
    row_spec,
    storage_size,
    take_rows,
    take_rows_into,
)
from trainkit.core import files, seeding, tree
from trainkit.core.assignments import fixed_options
from trainkit.core.config import from_plain, plain_call
from trainkit.core.data import (
    ROW_COLUMNS,
    WINDOW_COLUMNS,
    Allocate,
    Horizon,
    Lookup,
    Obs,
    RecordedEpisode,
    RowSpec,
    Transition,
    TransitionBatch,
    any_true,
)
from trainkit.core.errors import (
    CheckpointError,
    Checks,
    ConfigError,
    EmptyBufferError,
    MissingRowError,
    SpaceMismatchError,
    reject_unknown,
)
from trainkit.core.files import check_declared, decoding, memory_left
from trainkit.core.names import did_you_mean
from trainkit.core.protocols import EnvSpaces
from trainkit.core.signatures import checked
from trainkit.core.spaces import HasSpaces, Spaces, array_specs, flat_actions
from trainkit.core.stats import html_table

_log = logging.getLogger(__name__)

BatchT = TypeVar("BatchT")


class DrawnRows(NamedTuple):
    """B rows that were drawn from a replay buffer, and what a batch of another form is read with."""

    storage: Storage
    rows: Rows  # [B]
    weight: NDArray[np.float32]  # [B], importance weights
    horizon: Horizon
    rng: np.random.Generator
    gather: Gather
    column: Callable[[str, Rows, Windows], NDArray[Any]]  # (name, rows [K], their windows) -> the column [K, ...]


_NOT_SAVED = {"spaces", "frames", "seed"}  # options of a buffer that `save` writes otherwise, or not at all


@checked
@fixed_options("n_envs", "stack")
class ReplayBuffer(HasSpaces):
    """Keep the last `capacity` transitions and sample batches of them uniformly, with replacement.

    A collector binds the buffer to the number of its environments and the spec of a row, and memory is allocated
    then. A buffer used without a collector is bound at its first `add`.

    Args:
        capacity: transitions in all, split over the environments.
        n_envs: environments whose rows will be added, only without a collector; default: those of the first `add`.
        stack: frames per observation, only without a collector: observations are given as [K, stack, ...], one frame
            is stored, and stacks are gathered on read.
        spaces: anything with `observation_space` and `action_space`, which the buffer then has too: a policy can be
            made `for_envs(buffer)`. Those of an environment: stacked, with the mask in.
        frames: keeps images on the device of the learner too, as `DeviceFrames` does; batches then contain their
            indices there.
        seed: root of the draws; None takes the trainer's.

    Attributes:
        own_columns: names of columns that this kind of buffer computes, and others do not have.

    A buffer that draws other rows is a subclass with another `sampler`, see `UniformSampler`. It keeps each option of
    its constructor in an attribute of the same name, by which it is saved.
    """

    own_columns: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        capacity: int,
        *,
        n_envs: int | None = None,
        stack: int = 1,
        spaces: EnvSpaces | None = None,
        frames: FrameStore | None = None,
        seed: int | None = None,
    ) -> None:
        with Checks(type(self).__name__) as checks:
            checks.integer("capacity", capacity, low=1)
            checks.integer("stack", stack, low=1)
            checks.integer("n_envs", n_envs, low=1, optional=True)
            checks.integer("seed", seed, low=0, optional=True)
        self._capacity = int(capacity)
        self._n_envs = n_envs
        self._stack = stack
        self._spaces = None if spaces is None else Spaces.of(spaces)
        self._frames = frames
        self._sampler: UniformSampler = UniformSampler()
        self._bound: Storage | None = None
        self._mirror: ImageMirror | None = None
        self._allocate: Allocate | None = None
        self._is_seeded = seed is not None
        self._rng = seeding.generator(seeding.fresh_root() if seed is None else seed, "buffer")

    def __len__(self) -> int:
        return 0 if self._bound is None else self._bound.rings.n_live

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} of {self.capacity:,} transitions, {self.nbytes:,} bytes)"

    def _repr_html_(self) -> str:
        return html_table(repr(self), [("episodes", self._n_episodes), ("row", self.spec)])

    @property
    def capacity(self) -> int:
        """Transitions in all."""
        return self._capacity

    @property
    def prioritized(self) -> bool:
        """Whether `update_priorities` has any effect, as in a `PrioritizedReplayBuffer`."""
        return False

    @property
    def frames(self) -> FrameStore | None:
        """What keeps images on the device of the learner too."""
        return self._frames

    @property
    def is_seeded(self) -> bool:
        """Whether there is a seed; `seed(root)` sets one."""
        return self._is_seeded

    @property
    def nbytes(self) -> int:
        """Bytes allocated, 0 before the buffer is bound."""
        return 0 if self._bound is None else self._bound.nbytes + self._sampler.nbytes

    @property
    def columns(self) -> tuple[str, ...]:
        """The names that `sample(columns=)` accepts: those of every buffer, and the stored ones once it is bound."""
        stored = () if self._bound is None else self._bound.extras
        return (*ROW_COLUMNS, *WINDOW_COLUMNS, *self.own_columns, *stored)

    @property
    def spec(self) -> RowSpec | None:
        """The spec of a row, None before the buffer is bound."""
        return None if self._bound is None else self._bound.spec

    @property
    def rng(self) -> np.random.Generator:
        """The generator of the draws."""
        return self._rng

    def seed(self, root: int) -> None:
        """Restart the buffer's random stream from a root seed."""
        self._rng = seeding.generator(root, "buffer")
        self._is_seeded = True

    def bind(self, spec: RowSpec) -> None:
        """Allocate all memory for rows of this spec; binding again is allowed with an equal spec only."""
        name = type(self).__name__
        if self._bound is not None:
            if self._bound.spec != spec:
                raise ConfigError(
                    f"{name} holds rows of {self._bound.spec} and cannot take {spec}: "
                    "use a new buffer, or the environments and policy it was made for"
                )
            return
        tree.check_keys(f"{name}: observations", spec.obs)
        self._check_options(spec)
        if self.capacity < spec.n_envs:
            raise ConfigError(
                f"{name}.capacity {self.capacity} is smaller than the {spec.n_envs} environments: "
                "raise it to hold at least one transition of each"
            )
        # The memory must be there: Linux allocates zeros for free, and kills the process when they are written to.
        needed, left = self._bytes_for(spec), memory_left()
        if left is not None and needed > left:
            raise ConfigError(
                f"{name} of {self.capacity:,} transitions needs {needed:,} bytes ({needed / 1e9:.1f} GB), and {left:,} "
                f"({left / 1e9:.1f} GB) are left: lower the capacity to {int(self.capacity * 0.9 * left / needed):,}, "
                "store smaller observations (uint8 images, single frames by stack=), or free memory"
            )
        storage = Storage(self.capacity, spec)
        if self.frames is not None:
            self._mirror = self.frames.mirror(name, storage)
        self._bound = storage
        self._sampler.bind(storage)
        _log.info("%s allocated %s bytes for %s transitions", name, self.nbytes, self.capacity)

    def _check_options(self, spec: RowSpec) -> None:
        """Raise `ConfigError` for options that describe other rows than those that will be added."""
        stack = max(leaf.stack for leaf in tree.leaves(spec.obs))
        with Checks(type(self).__name__) as checks:
            checks.require(
                self._n_envs in (None, spec.n_envs),
                f".n_envs is {self._n_envs}, and rows of {spec.n_envs} environments will be added: leave it out",
            )
            checks.require(
                self._stack in (1, stack),
                f".stack is {self._stack}, and the environments' observations have {stack} frames: leave it out, as "
                f"make_envs(stack={self._stack}) stacks them for the policy and the buffer",
            )
            if self._spaces is None:
                return
            observed = {
                path: (leaf.stack, *leaf.shape) if leaf.stack > 1 else leaf.shape
                for path, leaf in tree.named_leaves(spec.obs)
            }
            spaces = self._spaces.observation_space, self._spaces.action_space
            expected = {path: leaf.shape for path, leaf in tree.named_leaves(array_specs(spaces[0]))}
            checks.require(
                observed == expected and spec.action.shape == flat_actions(spaces[1]).shape,
                f".spaces are {spaces[0]} and {spaces[1]}, and rows of observations {observed} and actions "
                f"{spec.action.shape} will be added: give the spaces of these environments, or leave them out",
            )

    def add(self, transition: Transition) -> NDArray[np.int64]:
        """Store K rows, one step of each of K environments, and return their slots [K].

        A row continues its environment's open episode if its `obs` equals the `next_obs` of the row before. If not,
        rows in between were skipped: the open episode ends at the row before, as `cut` would end it. That row keeps its
        own `next_obs` and its bootstrap; no n-step window crosses the border, and frame stacks start again after it
        with the newest frame repeated, or zeros as `make_envs(pad=)` says.
        """
        if self._bound is None:
            self.bind(row_spec(transition, self._n_envs, self._stack))
        slots, touched = self._storage.add(transition)
        self._sampler.touch(*touched)
        return slots

    def sample(
        self, batch_size: int | None, *, horizon: Horizon | None = None, step: int = 0, columns: Sequence[str] = ()
    ) -> TransitionBatch:
        """Sample B rows with replacement and compute their n-step returns.

        Args:
            batch_size: B, at least 1. None returns every row once, without sampling, environment by environment from
                the oldest; all weights are 1 then.
            horizon: which return to compute, never None: `policy.horizon` to learn from it, `Horizon()` for one step.
            step: the environment step, for schedules.
            columns: what to return in `extras`: "n" (real steps of the window), "t" (step in the episode), "episode"
                (its number in its environment), "env_id", "terminated", "truncated" (of the row itself), "weight"
                (not divided by any largest one), "return_to_go" (the discounted sum of this and all later rewards of
                the episode, shaped as the horizon says; nan where the episode has not ended yet or was cut; reads
                every later row of the episode), or a stored column.

        Raises:
            ConfigError: no horizon is given.
            EmptyBufferError: there is no row.
        """
        return self._sample(1, batch_size, horizon, step, columns)[0]

    def sample_round(
        self, n_batches: int, batch_size: int, *, horizon: Horizon, step: int = 0, columns: Sequence[str] = ()
    ) -> list[TransitionBatch]:
        """Sample the batches of several updates at once, views of the same arrays; see `sample`.

        The points of a stratified draw go to the batches in turn, so that each batch is stratified; weights are
        divided by the largest of each batch.
        """
        return self._sample(n_batches, batch_size, horizon, step, columns)

    def _sample(
        self, n_batches: int, batch_size: int | None, horizon: Horizon | None, step: int, columns: Sequence[str]
    ) -> list[TransitionBatch]:
        """Return batches of B sampled rows and their n-step returns, or one batch of every row."""
        counts = {"n_batches": n_batches, "batch_size": 1 if batch_size is None else batch_size}
        storage, horizon = self._to_sample("sample", horizon, counts)
        if batch_size is None:
            rows = storage.rings.live_rows(np.arange(storage.rings.n_live))
            weight = np.ones(len(rows), np.float32)
        else:
            rows, weight = self._sampler.draw(batch_size, step, self._rng, n_batches)
        gather = self._gather(is_contiguous=n_batches == 1)
        windows = read_windows(storage, rows, horizon, self._rng)
        extras = {name: self._column(name, rows, windows, horizon, step) for name in columns}
        if batch_size is None and "weight" in extras:
            extras["weight"] = np.ones(len(rows))
        batch = TransitionBatch(
            obs=storage.obs_at(rows, gather=gather),
            action=windows.first["action"].copy(),
            reward=windows.reward,
            discount=windows.discount,
            next_obs=storage.next_obs_at(windows.last, windows.final, gather=gather),
            weight=weight,
            slots=storage.slots(rows),
            extras=extras,
        )
        return [batch] if n_batches == 1 else _split_batch(batch, n_batches)

    def sample_by(
        self,
        read: Callable[[DrawnRows], BatchT],
        batch_size: int,
        *,
        horizon: Horizon | None = None,
        step: int = 0,
    ) -> BatchT:
        """Sample B rows as `sample` does, and return the batch that a function reads of them, in another form.

        It reads what is stored around each row, such as the rest of its episode.

        Args:
            read: makes a batch of the rows that were drawn.
            batch_size: B, at least 1.
            horizon: which return to compute, never None: `policy.horizon` to learn from it.
            step: the environment step, for schedules.

        Raises:
            EmptyBufferError: there is no row.
        """
        storage, horizon = self._to_sample("sample_by", horizon, {"batch_size": batch_size})
        rows, weight = self._sampler.draw(batch_size, step, self._rng)
        column = partial(self._column, horizon=horizon, step=step)
        return read(DrawnRows(storage, rows, weight, horizon, self._rng, self._gather(is_contiguous=True), column))

    def _to_sample(self, method: str, horizon: Horizon | None, counts: Mapping[str, int]) -> tuple[Storage, Horizon]:
        """Return what a batch is sampled from; raise if there are no rows, or a count or the horizon is invalid."""
        subject = f"{type(self).__name__}.{method}"
        for name, count in counts.items():
            if isinstance(count, bool) or not (isinstance(count, (int, np.integer)) and count >= 1):
                raise ConfigError(f"{subject} needs an integer {name} >= 1, got {count!r}")
        if horizon is None:
            raise ConfigError(
                f"{subject} needs a horizon, the return to compute: horizon=policy.horizon to learn from it, "
                "horizon=tk.Horizon() for one step"
            )
        storage = self._bound
        if storage is None or storage.rings.n_live == 0:
            raise EmptyBufferError(f"{type(self).__name__} is empty: collect or add transitions before sampling")
        return storage, horizon

    def _gather(self, *, is_contiguous: bool) -> Gather:
        """Return how the observations of a batch are read; those of a round's batches are not contiguous."""
        if self._mirror is not None:
            self._mirror.update()
            return self._mirror.gather
        if self._allocate is not None and is_contiguous:
            return partial(take_rows_into, self._allocate)
        return take_rows

    def return_range(self, horizon: Horizon) -> tuple[float, float]:
        """Return the smallest and the largest of 0, all n-step rewards and all returns-to-go of the rows.

        Episodes that are open or were cut count as far as they are stored.
        """
        return (0.0, 0.0) if self._bound is None or not len(self) else read_return_range(self._bound, horizon)

    def use_batch_memory(self, allocate: Allocate | None) -> None:
        """Write the observations of the next batches to arrays that this function makes; None: to numpy's."""
        self._allocate = allocate

    # ---- rows by slot ----

    def slots(self) -> NDArray[np.int64]:
        """Return the slots of all rows [len(self)], environment by environment from the oldest."""
        if self._bound is None:
            return np.zeros(0, np.int64)
        return self._bound.slots(self._bound.rings.live_rows(np.arange(len(self))))

    def is_stored(self, slots: ArrayLike) -> NDArray[np.bool_]:
        """Return which slots [K] still have their row; rows that were overwritten or dropped have none."""
        given = checked_slots(type(self).__name__, slots)
        return np.zeros(len(given), np.bool_) if self._bound is None else self._bound.find(given)[1]

    def get(self, slots: ArrayLike, columns: Sequence[str] = (), *, stack: int | None = None) -> Transition:
        """Return the rows of these slots [K], in their order, as they were stored, in new arrays.

        Args:
            slots: as returned by `add`, `sample`, `slots`, `Episode.slots` and `Collector.collected_slots`.
            columns: what to return in `extras` in addition to all stored columns: "env_id", "t", "episode",
                "terminated", "truncated".
            stack: frames per observation; default: as the buffer stacks them. Before an episode's first frame, and
                before the oldest one stored, that one is repeated.

        Raises:
            MissingRowError: a slot has no row, or no longer; `is_stored` returns which.
        """
        return self._rows_at(self._find(slots), columns, stack)

    def __getitem__(self, index: int | slice) -> Transition:
        """Return rows by their position in `slots()`: those of a slice, or a single one as [1, ...].

        Raises:
            MissingRowError: there is no row at this position.
        """
        if isinstance(index, slice):
            positions = np.arange(*index.indices(len(self)))
        elif isinstance(index, (int, np.integer)) and not isinstance(index, bool):
            if not -len(self) <= index < len(self):
                raise MissingRowError(f"{type(self).__name__} has no row at position {index}: it holds {len(self)}")
            positions = np.array([index % len(self)])
        else:
            raise ConfigError(
                f"{type(self).__name__}[...] takes a position or a slice, got {index!r}: rows of slots are get(slots)"
            )
        return self._rows_at(self._storage.rings.live_rows(positions))

    def prev(self, slots: ArrayLike) -> NDArray[np.int64]:
        """Return the slots of the rows before these [K] in their episodes; an oldest stored row gives its own slot."""
        return self._storage.slots(self._storage.previous(self._find(slots)))

    def next(self, slots: ArrayLike) -> NDArray[np.int64]:
        """Return the slots of the rows after these [K] in their episodes; a newest stored row gives its own slot."""
        return self._storage.slots(self._storage.following(self._find(slots)))

    def unfinished(self) -> NDArray[np.int64]:
        """Return the slots of the newest rows of the episodes that have not ended, at most one per environment."""
        return np.zeros(0, np.int64) if self._bound is None else self._bound.slots(self._bound.open_rows())

    def extend(self, other: "ReplayBuffer") -> NDArray[np.int64]:
        """Add all rows of another buffer, and return their new slots.

        Episodes stay whole and in order; each goes to the environment that received the fewest rows so far, whose own
        open episode is cut. New rows have the largest priority. With frame stacks, an episode whose first rows were
        overwritten in `other` is left out. Where episodes differ in length, rows of an environment may be overwritten
        although the capacity has room for all: each environment has an equal share of it.
        """
        if not isinstance(other, ReplayBuffer) or other is self:
            raise ConfigError(f"{type(self).__name__}.extend takes another ReplayBuffer, got {other!r}")
        if other._bound is None:
            return np.zeros(0, np.int64)
        theirs = other._bound.spec
        if self._bound is None:
            self.bind(replace(theirs, n_envs=theirs.n_envs if self._n_envs is None else self._n_envs))
        for name in ("obs", "action", "extras"):
            own, given = getattr(self._storage.spec, name), getattr(theirs, name)
            if own != given:
                raise SpaceMismatchError(
                    f"{type(self).__name__}.extend: rows have {name} {given}, this buffer's have {own}: "
                    "extend it by rows of the same environments and policy"
                )
        n_envs = self._storage.spec.n_envs
        self.cut(np.arange(n_envs))
        added = [np.zeros(0, np.int64)]
        for step, ends in other._bound.vector_steps(n_envs):
            added.append(self.add(step))
            self.cut(ends)
        return np.concatenate(added)

    @checked
    def transitions(self, n_rows: int = 10_000) -> Iterator[Transition]:
        """Yield all rows once, in order per environment, `n_rows` at a time."""
        return iter(()) if self._bound is None else self._bound.transitions(n_rows)

    def update_priorities(self, slots: NDArray[np.int64], priority: NDArray[Any]) -> None:
        """Write priorities [B]; if a slot occurs twice, its last priority is kept.

        Rows overwritten since they were sampled are ignored.

        Raises:
            PriorityError: a priority is nan, infinite or negative; nothing is written then.
            MissingRowError: a slot is none that `add` returned; nothing is written then, either.
        """
        values = checked_priority(priority, len(slots))
        rows, is_stored = self._storage.find(slots)
        if any_true(~is_stored):
            self._storage.check_given(f"{type(self).__name__}.update_priorities", slots, is_stored)
            rows, values = rows[is_stored], values[is_stored]
        self._sampler.set_priority(rows, values)

    def cut(self, env_ids: ArrayLike) -> None:
        """End the open episodes of these environments; their last rows keep their bootstrap."""
        if self._bound is not None:
            self._bound.end_episodes(self._checked_ids(env_ids))

    def drop(self, env_ids: ArrayLike) -> int:
        """Remove the open episodes of these environments and return the number of rows removed."""
        if self._bound is None:
            return 0
        rows = self._bound.drop_episodes(self._checked_ids(env_ids))
        self._sampler.touch(rows)
        return len(rows)

    def rewrite(self, slots: NDArray[np.int64], *, reward: ArrayLike | None = None, **columns: ArrayLike) -> None:
        """Change the rewards and stored columns of rows; rows that were overwritten since are ignored.

        Args:
            slots: [K], as returned by `add`, `sample` and `Episode.slots`.
            reward: [K], or one for all.
            columns: of the policy or of `Collector(extra_columns=)` by name, [K, ...] each, or one row for all.
        """
        storage, name = self._storage, type(self).__name__
        rows, is_stored = storage.find(checked_slots(name, slots))
        reject_unknown(f"{name}.rewrite", columns, storage.extras)
        values = columns if reward is None else {**columns, "reward": reward}
        rewrite_columns(name, {**storage.extras, "reward": storage.records.reward}, values, rows, is_stored)

    def clear(self) -> None:
        """Forget every row and priority; the memory stays allocated."""
        if self._bound is not None:
            self._bound.clear()
            self._sampler.clear()
        if self._mirror is not None:
            self._mirror.clear()

    def metrics(self, step: int) -> dict[str, float]:
        """Return the buffer's metrics for logging."""
        return {"size": float(len(self)), "n_episodes": float(self._n_episodes), **self._sampler.metrics(step)}

    def state_dict(self) -> dict[str, Any]:
        """Return rows, priorities, counters and the generator; arrays may be views of the buffer."""
        storage = self._bound
        return {
            "kind": type(self).__name__,
            "capacity": self.capacity,
            "spec": None if storage is None else storage.spec.to_plain(),
            "rings": None if storage is None else storage.state_dict(),
            "sampler": None if storage is None else self._sampler.state_dict(),
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of a buffer of the same kind and capacity; arrays may be `StoredArray`s.

        Raises:
            CheckpointError: it is of another buffer, or damaged.
        """
        remedy = "make the buffer as it was, or take an older checkpoint"
        with decoding("a saved state", f"a {type(self).__name__}", remedy=remedy):
            kind = (type(self).__name__, self.capacity)
            if (state["kind"], state["capacity"]) != kind:
                raise CheckpointError(
                    f"a {state['kind']} of capacity {state['capacity']} was saved, this is a {kind[0]} of {kind[1]}: "
                    "make the buffer as it was"
                )
            self.clear()
            if state["spec"] is not None:
                self.bind(RowSpec.from_plain(state["spec"]))
                self._storage.load_state_dict(state["rings"])
                self._sampler.load_state_dict(state["sampler"])
            self._rng.bit_generator.state = state["rng"]

    @checked
    def save(self, path: str | Path) -> None:
        """Write the buffer to one file, completely or not at all."""
        call = plain_call(self.arguments())
        saved = {"kind": type(self).__name__, "options": call["arguments"], "unknown": call["unknown"]}
        saved["state"] = self.state_dict()
        if self.spaces is not None:
            saved["spaces"] = self.spaces.to_plain()
        files.save_state(Path(path), saved)

    @classmethod
    def load(cls, path: str | Path, *, max_bytes: int | None = None, **options: Any) -> Self:
        """Read a buffer that `save` wrote.

        Args:
            path: of the file.
            max_bytes: largest size of the buffer; None is half of the free memory.
            options: replace saved ones, such as a beta that was a function.

        Raises:
            CheckpointError: the file is missing, damaged or too large, or holds another kind of buffer.
        """
        with files.open_state(Path(path), max_bytes=max_bytes) as saved:
            if not (isinstance(saved, dict) and str(saved.get("kind")) == cls.__name__):
                kind = str(saved.get("kind")) if isinstance(saved, dict) else ""
                remedy = f"it is a {kind}: call {kind}.load" if kind.isidentifier() else "name a file of buffer.save"
                raise CheckpointError(f"{path} does not hold a {cls.__name__}, {remedy}")
            check_declared(path, os.stat(path).st_size, max_bytes)
            with decoding(path, f"a {cls.__name__}"):
                if "spaces" in saved:
                    options = {"spaces": Spaces.from_plain(saved["spaces"]), **options}
                unknown = {name: own for name, own in saved.get("unknown", {}).items() if name not in options}
                if unknown:
                    what = ", ".join(f"{name}={own}" for name, own in unknown.items())
                    how = ", ".join(f"{name}=..." for name in unknown)
                    raise CheckpointError(f"{path} cannot restore {what}: give it to {cls.__name__}.load, {how}")
                kept = {name: from_plain(own) for name, own in saved["options"].items()}
                buffer = cls(**kept | options)
                spec = saved["state"]["spec"]
                if spec is not None:
                    check_declared(path, buffer._bytes_for(RowSpec.from_plain(spec)), max_bytes)
                buffer.load_state_dict(saved["state"])
        return buffer

    @classmethod
    def from_arrays(
        cls,
        *,
        obs: Obs,
        action: NDArray[Any],
        reward: NDArray[Any],
        terminated: NDArray[Any],
        truncated: NDArray[Any] | None = None,
        next_obs: Obs | None = None,
        ends: NDArray[Any] | None = None,
        extras: Mapping[str, NDArray[Any]] | None = None,
        capacity: int | None = None,
        **options: Any,
    ) -> Self:
        """Build a buffer from T consecutive transitions of one environment, in columns [T, ...].

        An episode also ends, with its bootstrap, where `next_obs` is not the next row's `obs`. Without `next_obs`
        it is taken from the next row; then only terminations may end an episode. `ends` marks further rows as their
        episode's last, as where it was cut. With `stack=`, observations are given as single frames. Arrays are
        copied block by block, so that memory-mapped ones take no memory in addition to the buffer's.

        Raises:
            ConfigError: columns do not match each other or `spaces`, or one has an invalid value: not a number, not
                finite, masked, a flag other than 0 and 1, an action or an index outside of `spaces`.
        """
        given = options.get("spaces")
        rows = RecordedRows(
            f"{cls.__name__}.from_arrays",
            obs=obs,
            action=action,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            next_obs=next_obs,
            ends=ends,
            extras=extras or {},
            stack=options.get("stack", 1),
            spaces=None if given is None else Spaces.of(given),
        )
        reject_unknown(f"{cls.__name__}.from_arrays", options.keys() & {"n_envs"}, ())  # they are one environment's
        return cls.from_blocks(rows.spec(), rows.ends, rows.blocks(), capacity=capacity, **options)

    @classmethod
    def from_blocks(
        cls,
        spec: RowSpec,
        ends: NDArray[np.bool_],
        blocks: Iterable[Block],
        *,
        capacity: int | None = None,
        **options: Any,
    ) -> Self:
        """Build a buffer from T rows of one environment that are read block by block.

        Args:
            spec: of a row.
            ends: which rows are their episode's last [T].
            blocks: all rows in order.
            capacity: None is T.
            options: of the buffer.
        """
        buffer = cls(len(ends) if capacity is None else capacity, n_envs=1, **options)
        if buffer.capacity < len(ends):
            raise ConfigError(f"{cls.__name__}.capacity {buffer.capacity} cannot hold the {len(ends)} rows given")
        buffer.bind(spec)
        buffer.refill(ends, blocks)
        return buffer

    def refill(self, ends: NDArray[np.bool_], blocks: Iterable[Block]) -> None:
        """Replace all rows by T others of one environment, in the same memory; see `from_blocks`."""
        self.clear()
        self._storage.fill(ends, blocks)
        self._sampler.touch(np.arange(len(ends)))

    def episodes(self) -> Iterator[RecordedEpisode]:
        """Yield the episodes whose first row is still stored, environment by environment, oldest first."""
        return self._storage.episodes()

    # ---- inside ----

    @property
    def _storage(self) -> Storage:
        if self._bound is None:
            raise EmptyBufferError(f"{type(self).__name__} holds nothing: give it to a Collector, or add a transition")
        return self._bound

    @property
    def _n_episodes(self) -> int:
        return 0 if self._bound is None else self._bound.count_episodes()

    def _bytes_for(self, spec: RowSpec) -> int:
        """Return the bytes that binding to a spec allocates."""
        n_rows, n_bytes = storage_size(self.capacity, spec)
        return n_bytes + self._sampler.bytes_for(n_rows)

    def _find(self, slots: ArrayLike) -> Rows:
        """Return the rows of slots [K]; raise a `MissingRowError` where one is not stored."""
        given = checked_slots(type(self).__name__, slots)
        is_stored = self.is_stored(given)
        if not is_stored.all():
            raise MissingRowError(
                f"{type(self).__name__} does not hold slot {given[~is_stored][0]} and "
                f"{np.count_nonzero(~is_stored) - 1} more of the {len(given)} given: they were overwritten, dropped or "
                "never added; is_stored(slots) returns which"
            )
        return self._storage.find(given)[0]

    def _rows_at(self, rows: Rows, columns: Sequence[str] = (), stack: int | None = None) -> Transition:
        if stack is not None:
            with Checks(f"{type(self).__name__}.get") as checks:
                checks.integer("stack", stack, low=1)
        self._check_columns("get", columns, (*ROW_COLUMNS, *self._storage.extras))
        step = self._storage.read(rows, stack)
        return step._replace(extras={**step.extras, **{name: self._storage.column(name, rows) for name in columns}})

    def _column(self, name: str, rows: Rows, windows: Windows, horizon: Horizon, step: int) -> NDArray[Any]:
        """Return a column [B, ...] of a batch."""
        if name == "weight":
            return self._sampler.weight(rows, step)
        if name == "n":
            return np.full(len(rows), windows.n_steps)
        if name == "return_to_go":
            return read_return_to_go(self._storage, rows, horizon)
        self._check_columns("sample", (name,), self.columns)
        return self._storage.column(name, rows)

    def _check_columns(self, method: str, names: Sequence[str], known: Sequence[str]) -> None:
        for name in names:
            if name not in known:
                hint = did_you_mean(name, known)
                raise ConfigError(f"{type(self).__name__}.{method} has no column {name!r}, only {list(known)}{hint}")

    def _checked_ids(self, env_ids: ArrayLike) -> NDArray[np.intp]:
        """Return distinct environment indices [K] in ascending order; raise for masks and unknown indices."""
        ids = np.unique(np.atleast_1d(np.asarray(env_ids)))
        n_envs = self._storage.spec.n_envs
        if len(ids) and not (ids.dtype.kind in "iu" and ids[0] >= 0 and ids[-1] < n_envs):
            raise ConfigError(f"env_ids must be integers in [0, {n_envs}), got {env_ids!r}")
        return ids.astype(np.intp)

    @property
    def sampler(self) -> UniformSampler:
        """What draws rows. A subclass that draws others assigns its own in the constructor."""
        return self._sampler

    @sampler.setter
    def sampler(self, sampler: UniformSampler) -> None:
        with Checks(type(self).__name__) as checks:
            checks.require(isinstance(sampler, UniformSampler), f".sampler must be a sampler, got {sampler!r}")
        self._sampler = sampler
        if self._bound is not None:
            sampler.bind(self._bound)

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments, for `load`: each from the attribute of its name.

        Raises:
            ConfigError: there is none.
        """
        kept, names = vars(self), inspect.signature(type(self)).parameters.keys() - _NOT_SAVED
        with Checks(type(self).__name__) as checks:
            for name in names:
                rule = f" is saved with its options, and keeps none as {name!r}: assign it to an attribute of this name"
                checks.require(f"_{name}" in kept or hasattr(self, name), rule)
        return {name: kept[f"_{name}"] if f"_{name}" in kept else getattr(self, name) for name in sorted(names)}


def _split_batch(batch: TransitionBatch, n_batches: int) -> list[TransitionBatch]:
    """Return consecutive equal parts of a batch; their arrays are views."""

    def split(column: Any) -> list[Any]:
        if isinstance(column, dict):
            parts = [split(leaf) for leaf in column.values()]
            return [dict(zip(column, part, strict=True)) for part in zip(*parts, strict=True)] or [{}] * n_batches
        if isinstance(column, tuple):
            return list(zip(*map(split, column), strict=True))
        if isinstance(column, Lookup):
            return [replace(column, indices=indices) for indices in split(column.indices)]
        return list(column.reshape(n_batches, -1, *column.shape[1:]))

    names = [field.name for field in fields(batch)]
    columns = zip(*(split(getattr(batch, name)) for name in names), strict=True)
    return [TransitionBatch(**dict(zip(names, own, strict=True))) for own in columns]
