"""The replay buffer: rings of rows, a sampler that picks among them, and n-step returns on the way out."""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainkit.buffer.batches import checked_slots, checked_values, cut_up, read_batch_column, read_column
from trainkit.buffer.blocks import Block
from trainkit.buffer.heads import Rows
from trainkit.buffer.layout import spec_of, spec_of_frames
from trainkit.buffer.mirror import Mirror
from trainkit.buffer.nstep import Windows, read_windows
from trainkit.buffer.recorded import RecordedRows, count_episodes, read_episodes, vector_steps
from trainkit.buffer.samplers import Sampler, Uniform, checked_priority
from trainkit.buffer.scratch import Scratch
from trainkit.buffer.sizes import bytes_needed, refuse_too_large
from trainkit.buffer.storage import Rings
from trainkit.core import files, seeding, tree
from trainkit.core.data import (
    ROW_COLUMNS,
    WINDOW_COLUMNS,
    Horizon,
    Obs,
    RecordedEpisode,
    RowSpec,
    Transition,
    TransitionBatch,
)
from trainkit.core.errors import (
    CheckpointError,
    Checks,
    ConfigError,
    EmptyBufferError,
    MissingRowError,
    SpaceMismatchError,
    nearest,
    refuse_unknown,
)
from trainkit.core.protocols import EnvSpaces, FrameStore
from trainkit.core.reading import check_declared, decoding
from trainkit.core.signatures import checked
from trainkit.core.spaces import Spaces, ToldSpaces
from trainkit.core.stats import html_table

_log = logging.getLogger(__name__)


@checked
class ReplayBuffer(ToldSpaces):
    """Keep the last `capacity` transitions and draw batches from them uniformly, with replacement.

    A collector binds the buffer: it tells the number of environments and the shape of a row, and memory is
    claimed then. A buffer used by hand binds at its first `add`.

    Args:
        capacity: transitions in all, split over the environments.
        n_envs: environments whose rows will be added, only when used by hand; default: those of the first `add`.
        stack: frames per observation, only when used by hand: observations come as [K, stack, ...], one frame is
            stored, and stacks are gathered on read.
        spaces: anything with `observation_space` and `action_space`, which the buffer then has too: a policy can be
            made `for_envs(buffer)`. Those of an environment: stacked, with the mask in.
        frames: keeps images where they are learnt from too, as `DeviceFrames` does; batches then say where they lie.
        seed: root of the draws; None takes the trainer's.
    """

    prioritized: bool = False  # whether `update_priorities` has any effect

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
        checks = Checks(type(self).__name__)
        checks.integer("capacity", capacity, low=1)
        checks.integer("stack", stack, low=1)
        if n_envs is not None:
            checks.integer("n_envs", n_envs, low=1)
        if seed is not None:
            checks.integer("seed", seed, low=0)
        checks.done()
        self.capacity = int(capacity)
        self._n_envs = n_envs
        self._stack = stack
        self.spaces = None if spaces is None else Spaces.of(spaces)
        self.frames = frames
        self._sampler: Sampler = Uniform()
        self._bound: Rings | None = None
        self.is_seeded = seed is not None
        self._rng = seeding.generator(seeding.fresh_root() if seed is None else seed, "buffer")
        self._scratch = Scratch()

    def __len__(self) -> int:
        return 0 if self._bound is None else self._bound.n_live

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} of {self.capacity:,} transitions, {self.nbytes:,} bytes)"

    def _repr_html_(self) -> str:
        return html_table(repr(self), [("episodes", count_episodes(self._bound)), ("row", self.spec)])

    @property
    def nbytes(self) -> int:
        """Bytes claimed, 0 before the buffer is bound."""
        return 0 if self._bound is None else self._bound.nbytes + self._sampler.nbytes

    @property
    def columns(self) -> tuple[str, ...]:
        """The names that `sample(columns=)` takes: those of every buffer, and the stored ones once it is bound."""
        return (*ROW_COLUMNS, *WINDOW_COLUMNS, *(() if self._bound is None else self._bound.extras))

    @property
    def spec(self) -> RowSpec | None:
        """What a row looks like, None before the buffer is bound."""
        return None if self._bound is None else self._bound.spec

    def seed(self, root: int) -> None:
        """Start the buffer's stream of draws anew from a root seed."""
        self._rng = seeding.generator(root, "buffer")
        self.is_seeded = True

    def bind(self, spec: RowSpec) -> None:
        """Claim all memory for rows of this shape; binding again is allowed with an equal spec only."""
        if self._bound is not None:
            if self._bound.spec != spec:
                raise ConfigError(
                    f"{type(self).__name__} holds rows of {self._bound.spec} and cannot take {spec}: "
                    "use a new buffer, or the environments and policy it was made for"
                )
            return
        tree.check_keys(f"{type(self).__name__}: observations", spec.obs)
        if self.capacity < spec.n_envs:
            raise ConfigError(
                f"{type(self).__name__}.capacity {self.capacity} is smaller than the {spec.n_envs} environments: "
                "raise it to hold at least one transition of each"
            )
        refuse_too_large(type(self).__name__, self.capacity, spec, self._sampler)
        rings = Rings(self.capacity, spec)
        if self.frames is not None:
            self._scratch = Mirror(type(self).__name__, rings, self.frames)
        self._bound = rings
        self._sampler.bind(rings)
        _log.info("%s claimed %s bytes for %s transitions", type(self).__name__, self.nbytes, self.capacity)

    def add(self, transition: Transition) -> NDArray[np.int64]:
        """Store K rows, one step of each of K environments, and return their slots [K].

        A row continues its environment's open episode if its `obs` equals the `next_obs` of the row before. If not,
        rows in between were skipped: the open episode ends at the row before, as `cut` would end it. That row keeps its
        own `next_obs` and its bootstrap; no n-step window crosses the border, and frame stacks start again behind it
        with the newest frame repeated.
        """
        if self._bound is None:
            self.bind(spec_of(transition, self._n_envs, self._stack))
        slots, rows, dead = self._rings.add(transition)
        self._sampler.touch(rows, dead)
        return slots

    def sample(
        self, batch_size: int | None, *, horizon: Horizon, step: int = 0, columns: Sequence[str] = ()
    ) -> TransitionBatch:
        """Draw B rows with replacement and compute their n-step returns.

        Args:
            batch_size: B, at least 1. None returns every row once, with no draw, environment by environment from the
                oldest on; all weights are 1 then.
            horizon: what return to compute.
            step: the environment step, for schedules.
            columns: what to return in `extras`: "n" (real steps of the window), "t" (step in the episode), "episode"
                (its number in its environment), "env_id", "terminated", "truncated" (of the row itself), "weight"
                (not divided by any largest one), "return_to_go" (the discounted sum of this and all later rewards of
                the episode, shaped as the horizon says; nan where the episode has not ended yet or was cut; reads
                every later row of the episode), or a stored column.

        Raises:
            EmptyBufferError: there is no row.
        """
        if batch_size is None:
            return self._read_all(horizon, step, columns)
        return self.sample_round(1, batch_size, horizon=horizon, step=step, columns=columns)[0]

    def sample_round(
        self, n_batches: int, batch_size: int, *, horizon: Horizon, step: int = 0, columns: Sequence[str] = ()
    ) -> list[TransitionBatch]:
        """Draw the batches of several updates in one pass, views of the same arrays; see `sample`.

        A stratified draw is dealt out like cards, so that each batch is stratified; weights are divided by the
        largest of each batch.
        """
        for name, count in (("n_batches", n_batches), ("batch_size", batch_size)):
            if isinstance(count, bool) or not (isinstance(count, (int, np.integer)) and count >= 1):
                raise ConfigError(f"{type(self).__name__}.sample needs a whole {name} >= 1, got {count!r}")
        self._check_not_empty()
        rows, weight = self._sampler.draw(batch_size, step, self._rng, n_batches)
        return cut_up(self._read(rows, weight, horizon, step, columns), n_batches)

    def _read_all(self, horizon: Horizon, step: int, columns: Sequence[str]) -> TransitionBatch:
        """Return every row once, with weight 1."""
        self._check_not_empty()
        rows = self._rings.live_row(np.arange(len(self)))
        batch = self._read(rows, np.ones(len(rows), np.float32), horizon, step, columns)
        weight = {"weight": np.ones(len(rows))} if "weight" in batch.extras else {}
        return replace(batch, extras={**batch.extras, **weight})

    def _check_not_empty(self) -> None:
        if len(self) == 0:
            raise EmptyBufferError(f"{type(self).__name__} is empty: collect or add transitions before sampling")

    def _read(
        self, rows: Rows, weight: NDArray[np.float32], horizon: Horizon, step: int, columns: Sequence[str]
    ) -> TransitionBatch:
        """Return rows and their n-step returns as one batch."""
        rings = self._rings
        windows = read_windows(rings, rows, horizon, self._rng)
        self._scratch.turn()
        return TransitionBatch(
            obs=rings.obs_at(rows, self._scratch),
            action=windows.first["action"].copy(),
            reward=windows.reward,
            discount=windows.discount,
            next_obs=rings.next_obs_at(windows.last, self._scratch, windows.final),
            weight=weight,
            slots=rings.slots(rows, windows.first["stamp"]),
            extras={name: self._column(name, rows, windows, horizon, step) for name in columns},
        )

    # ---- reading rows by name ----

    def slots(self) -> NDArray[np.int64]:
        """Return the slots of all rows [len(self)], environment by environment from the oldest."""
        if self._bound is None:
            return np.zeros(0, np.int64)
        return self._slots_of(self._bound.live_row(np.arange(len(self))))

    def is_stored(self, slots: ArrayLike) -> NDArray[np.bool_]:
        """Return which slots [K] still name a row: one that was overwritten or dropped is gone for good."""
        names = checked_slots(type(self).__name__, slots)
        return np.zeros(len(names), np.bool_) if self._bound is None else self._bound.holds(names)

    def get(self, slots: ArrayLike, columns: Sequence[str] = (), *, stack: int | None = None) -> Transition:
        """Return the rows of these slots [K], in their order, as they were stored; the arrays are the caller's.

        Args:
            slots: as `add`, `sample`, `slots`, `Episode.slots` and `Collector.collected_slots` name them.
            columns: what to return in `extras` besides all stored columns: "env_id", "t", "episode", "terminated",
                "truncated".
            stack: frames per observation; default: as the buffer stacks them. Before an episode's first frame, and
                before the oldest one stored, that one is repeated.

        Raises:
            MissingRowError: a slot names no row, or no longer; `is_stored` tells.
        """
        return self._rows_at(self._find(slots), columns, stack)

    def __getitem__(self, index: int | slice) -> Transition:
        """Return rows by their position in `slots()`: all of a slice, or one [1, ...].

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
        return self._rows_at(self._rings.live_row(positions))

    def prev(self, slots: ArrayLike) -> NDArray[np.int64]:
        """Return the slot of the row before each [K] in its episode; of an episode's oldest stored row, its own."""
        return self._slots_of(self._rings.previous(self._find(slots)))

    def next(self, slots: ArrayLike) -> NDArray[np.int64]:
        """Return the slot of the row after each [K] in its episode; of an episode's newest stored row, its own."""
        return self._slots_of(self._rings.following(self._find(slots)))

    def unfinished(self) -> NDArray[np.int64]:
        """Return the slots of the newest rows of the episodes that have not ended, at most one per environment."""
        return np.zeros(0, np.int64) if self._bound is None else self._slots_of(self._bound.open_rows())

    def extend(self, other: "ReplayBuffer") -> NDArray[np.int64]:
        """Add all rows of another buffer, and return their new slots.

        Episodes stay whole and in order; each goes to the environment that got the fewest rows so far, whose own open
        episode is cut. New rows have the largest priority. With frame stacks, an episode whose first rows were
        overwritten in `other` is left out.
        """
        if not isinstance(other, ReplayBuffer) or other is self:
            raise ConfigError(f"{type(self).__name__}.extend takes another ReplayBuffer, got {other!r}")
        if other._bound is None:
            return np.zeros(0, np.int64)
        theirs = other._bound.spec
        if self._bound is None:
            self.bind(replace(theirs, n_envs=theirs.n_envs if self._n_envs is None else self._n_envs))
        for name in ("obs", "action", "extras"):
            own, given = getattr(self._rings.spec, name), getattr(theirs, name)
            if own != given:
                raise SpaceMismatchError(
                    f"{type(self).__name__}.extend: rows have {name} {given}, this buffer's have {own}: "
                    "extend it by rows of the same environments and policy"
                )
        self.cut(np.arange(self._rings.n_envs))
        slots = np.zeros(0, np.int64)
        added = []
        for step, ends in vector_steps(other._rings, self._rings.n_envs):
            added.append(self.add(step))
            self.cut(ends)
        return np.concatenate([slots, *added])

    def transitions(self, n_rows: int = 10_000) -> Iterator[Transition]:
        """Go once through all rows, in order per environment, so many at a time."""
        return iter(()) if self._bound is None else self._bound.transitions(n_rows)

    def update_priorities(self, slots: NDArray[np.int64], priority: NDArray[Any]) -> None:
        """Write priorities [B]; rows overwritten since they were sampled are left alone, of twins the last stays.

        Raises:
            PriorityError: a priority is nan, infinite or negative; nothing is written then.
        """
        values = checked_priority(priority, len(slots))
        rows, lives = self._rings.rows(slots)
        self._sampler.set_priority(rows[lives], values[lives])

    def cut(self, env_ids: ArrayLike) -> None:
        """End the open episodes of these environments here; their last rows keep their bootstrap."""
        if self._bound is not None:
            self._bound.end_episodes(self._checked_ids(env_ids))

    def drop(self, env_ids: ArrayLike) -> int:
        """Take the open episodes of these environments back and return how many rows that were."""
        if self._bound is None:
            return 0
        rows = self._bound.drop_episodes(self._checked_ids(env_ids))
        self._sampler.touch(rows)
        return len(rows)

    def rewrite(self, slots: NDArray[np.int64], *, reward: ArrayLike | None = None, **columns: ArrayLike) -> None:
        """Change the rewards and stored columns of rows; rows that were overwritten in the meantime are left alone.

        Args:
            slots: [K], as `add`, `sample` and `Episode.slots` name them.
            reward: [K], or one for all.
            columns: of the policy or of `Collector(extra_columns=)` by name, [K, ...] each, or one row for all.
        """
        rows, lives = self._rings.rows(checked_slots(type(self).__name__, slots))
        stored = self._rings.extras
        refuse_unknown(f"{type(self).__name__}.rewrite", columns, stored)
        given = columns if reward is None else {**columns, "reward": reward}
        targets = {name: self._rings.reward if name == "reward" else stored[name] for name in given}
        checked = {
            name: checked_values(type(self).__name__, name, values, len(rows), targets[name])
            for name, values in given.items()
        }
        for name, own in checked.items():  # only when all are valid
            targets[name][rows[lives]] = own[lives]

    def clear(self) -> None:
        """Forget every row and priority; the memory stays claimed."""
        if self._bound is not None:
            self._bound.clear()
            self._sampler.clear()
            self._scratch.clear()

    def metrics(self, step: int) -> dict[str, float]:
        """Return what dashboards show about the buffer."""
        n_episodes = float(count_episodes(self._bound))
        return {"size": float(len(self)), "n_episodes": n_episodes, **self._sampler.metrics(step)}

    def state_dict(self) -> dict[str, Any]:
        """Return everything: rows, priorities, counters, the generator. Arrays may be views: copy or write them."""
        rings = self._bound
        return {
            "kind": type(self).__name__,
            "capacity": self.capacity,
            "spec": None if rings is None else rings.spec.to_plain(),
            "rings": None if rings is None else rings.state_dict(),
            "sampler": None if rings is None else self._sampler.state_dict(),
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what a buffer of the same kind and capacity returned; arrays may be `StoredArray`s.

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
                self._rings.load_state_dict(state["rings"])
                self._sampler.load_state_dict(state["sampler"])
            self._rng.bit_generator.state = state["rng"]

    def save(self, path: str | Path) -> None:
        """Write the whole buffer as one file, whole or not at all."""
        saved = {"kind": type(self).__name__, "options": self._options(), "state": self.state_dict()}
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
                raise CheckpointError(f"{path} does not hold a {cls.__name__}: load it with the class that saved it")
            check_declared(path, os.stat(path).st_size, max_bytes)
            with decoding(path, f"a {cls.__name__}"):
                if "spaces" in saved:
                    options = {"spaces": Spaces.from_plain(saved["spaces"]), **options}
                buffer = cls(**saved["options"] | options)
                spec = saved["state"]["spec"]
                if spec is not None:
                    n_bytes = bytes_needed(buffer.capacity, RowSpec.from_plain(spec), buffer._sampler)
                    check_declared(path, n_bytes, max_bytes)
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
        """Build a buffer from T transitions in time order, [T, ...] each, as of one environment.

        An episode also ends, with its bootstrap, where `next_obs` is not the next row's `obs`. Without `next_obs`
        it is taken from the next row; then only terminations may end an episode. `ends` marks rows that are their
        episode's last besides, as where it was cut. With `stack=`, observations are given as single frames. Arrays are
        copied block by block, so that memory-mapped ones take no memory besides the buffer's.

        Raises:
            ConfigError: columns do not fit each other, or one has a value that cannot be learned from: not a number,
                not finite, a flag other than 0 and 1, an action outside of `spaces`.
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
            action_space=None if given is None else Spaces.of(given).action_space,
        )
        refuse_unknown(f"{cls.__name__}.from_arrays", options.keys() & {"n_envs"}, ())  # they are one environment's
        spec = spec_of_frames(rows.obs, rows.action, rows.extras, options.get("stack", 1))
        return cls.from_blocks(spec, rows.ends, rows.blocks(), capacity=capacity, **options)

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
        buffer._rings.fill(ends, blocks)
        buffer._sampler.touch(np.arange(len(ends)))
        return buffer

    def episodes(self) -> Iterator[RecordedEpisode]:
        """Yield the episodes whose first row is still there, environment by environment, oldest first."""
        return read_episodes(self._rings)

    def _find(self, slots: ArrayLike) -> Rows:
        """Return the rows of slots [K]; raise a `MissingRowError` where one is gone."""
        names = checked_slots(type(self).__name__, slots)
        held = self.is_stored(names)
        if not held.all():
            raise MissingRowError(
                f"{type(self).__name__} does not hold slot {names[~held][0]} and {np.count_nonzero(~held) - 1} more of "
                f"the {len(names)} given: they were overwritten, dropped or never added; is_stored(slots) tells which"
            )
        return self._rings.rows(names)[0]

    def _rows_at(self, rows: Rows, columns: Sequence[str] = (), stack: int | None = None) -> Transition:
        if stack is not None:
            checks = Checks(f"{type(self).__name__}.get")
            checks.integer("stack", stack, low=1)
            checks.done()
        known = (*ROW_COLUMNS, *self._rings.extras)
        for name in columns:
            if name not in known:
                raise ConfigError(
                    f"{type(self).__name__}.get has no column {name!r}, only {list(known)}{nearest(name, known)}"
                )
        step = self._rings.read(rows, stack)
        return step._replace(extras={**step.extras, **{name: read_column(name, self._rings, rows) for name in columns}})

    def _slots_of(self, rows: Rows) -> NDArray[np.int64]:
        return self._rings.slots(rows, self._rings.stamp[rows])

    @property
    def _rings(self) -> Rings:
        if self._bound is None:
            raise EmptyBufferError(f"{type(self).__name__} holds nothing: give it to a Collector, or add a transition")
        return self._bound

    def _checked_ids(self, env_ids: ArrayLike) -> NDArray[np.intp]:
        """Return ids of environments [K], distinct; refuse masks and strangers."""
        ids = np.unique(np.atleast_1d(np.asarray(env_ids)))
        n_envs = self._rings.n_envs
        if len(ids) and not (ids.dtype.kind in "iu" and ids[0] >= 0 and ids[-1] < n_envs):
            raise ConfigError(f"env_ids must be whole numbers in [0, {n_envs}), got {env_ids!r}")
        return ids.astype(np.intp)

    def _options(self) -> dict[str, Any]:
        """Return the constructor's arguments, for `load`."""
        return {"capacity": self.capacity, "n_envs": self._n_envs, "stack": self._stack}

    def _column(self, name: str, rows: Rows, windows: Windows, horizon: Horizon, step: int) -> NDArray[Any]:
        if name == "weight":
            return self._sampler.weight(rows, step)
        if name not in self.columns:
            known = self.columns
            raise ConfigError(f"{type(self).__name__} has no column {name!r}, only {list(known)}{nearest(name, known)}")
        return read_batch_column(name, self._rings, rows, windows, horizon)
