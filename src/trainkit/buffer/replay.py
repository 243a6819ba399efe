"""The replay buffer: rings of rows, a sampler that picks among them, and n-step returns on the way out."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainkit import files, seeding
from trainkit.buffer.batches import cut_up, read_column
from trainkit.buffer.dataset import count_episodes, read_episodes, recorded
from trainkit.buffer.heads import Rows
from trainkit.buffer.layout import spec_of
from trainkit.buffer.memory import refuse_too_large
from trainkit.buffer.mirror import Mirror
from trainkit.buffer.nstep import Windows, read_windows
from trainkit.buffer.samplers import Sampler, Uniform, checked_priority
from trainkit.buffer.scratch import Scratch
from trainkit.buffer.storage import Rings
from trainkit.data import Horizon, Obs, RecordedEpisode, RowSpec, Transition, TransitionBatch
from trainkit.errors import CheckpointError, Checks, ConfigError, EmptyBufferError, refuse_unknown
from trainkit.protocols import EnvSpaces, FrameStore
from trainkit.spaces import Spaces, ToldSpaces
from trainkit.stats import html_table

_log = logging.getLogger(__name__)


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

    prioritized: ClassVar[bool] = False  # whether `update_priorities` has any effect

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

        Rows of one environment follow each other: where the next observation is not the one acted on next, end
        the episode first, with a flag or with `cut`.
        """
        if self._bound is None:
            self.bind(spec_of(transition, self._n_envs, self._stack))
        slots, rows, dead = self._rings.add(transition)
        self._sampler.touch(rows, dead)
        return slots

    def sample(
        self, batch_size: int, *, horizon: Horizon, step: int = 0, columns: Sequence[str] = ()
    ) -> TransitionBatch:
        """Draw B rows with replacement and compute their n-step returns.

        Args:
            batch_size: B, at least 1.
            horizon: what return to compute.
            step: the environment step, for schedules.
            columns: what to bring along in `extras`: "n" (real steps of the window), "t" (step in the episode),
                "episode", "env_id", "terminated", "truncated" (of the row itself), "weight" (not divided by any
                largest one), or a column of the policy's.

        Raises:
            EmptyBufferError: there is no row.
        """
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
        if len(self) == 0:
            raise EmptyBufferError(f"{type(self).__name__} is empty: collect or add transitions before sampling")
        rows, weight = self._sampler.draw(batch_size, step, self._rng, n_batches)
        rings = self._rings
        windows = read_windows(rings, rows, horizon, self._rng)
        self._scratch.turn()
        drawn = TransitionBatch(
            obs=rings.obs_at(rows, self._scratch),
            action=windows.first["action"].copy(),
            reward=windows.reward,
            discount=windows.discount,
            next_obs=rings.next_obs_at(windows.last, self._scratch, windows.final),
            weight=weight,
            slots=rings.slots(rows, windows.first["stamp"]),
            extras={name: self._column(name, rows, windows, step) for name in columns},
        )
        return cut_up(drawn, n_batches)

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

    def rewrite(self, slots: NDArray[np.int64], *, reward: ArrayLike) -> None:
        """Change the rewards of stored rows, the only thing that can be changed; overwritten rows are left alone."""
        rows, lives = self._rings.rows(slots)
        self._rings.reward[rows[lives]] = np.broadcast_to(np.asarray(reward, np.float64), rows.shape)[lives]

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
        """Take over what a buffer of the same kind and capacity returned."""
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
    def load(cls, path: str | Path, **options: Any) -> Self:
        """Read a buffer that `save` wrote; `options` replace saved ones, such as a beta that was a function."""
        saved = files.load_state(Path(path))
        if not (isinstance(saved, dict) and saved.get("kind") == cls.__name__):
            raise CheckpointError(f"{path} does not hold a {cls.__name__}: load it with the class that saved it")
        if "spaces" in saved:
            options = {"spaces": Spaces.from_plain(saved["spaces"]), **options}
        buffer = cls(**saved["options"] | options)
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
        it is taken from the next row; then only terminations may end an episode. Where `ends` is given it says which
        rows are their episode's last, flags aside. With `stack=`, observations are given as single frames.
        """
        step, ends = recorded(
            f"{cls.__name__}.from_arrays",
            obs=obs,
            action=action,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            next_obs=next_obs,
            ends=ends,
            extras=extras or {},
        )
        refuse_unknown(f"{cls.__name__}.from_arrays", options.keys() & {"n_envs"}, ())  # they are one environment's
        buffer = cls(len(ends) if capacity is None else capacity, n_envs=1, **options)
        if buffer.capacity < len(ends):
            raise ConfigError(f"{cls.__name__}.capacity {buffer.capacity} cannot hold the {len(ends)} rows given")
        buffer.bind(spec_of(step, 1, buffer._stack, is_stacked=False))
        buffer._rings.fill(step, ends)
        buffer._sampler.touch(np.arange(len(ends)))
        return buffer

    def episodes(self) -> Iterator[RecordedEpisode]:
        """Yield the episodes whose first row is still there, environment by environment, oldest first."""
        return read_episodes(self._rings)

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

    def _column(self, name: str, rows: Rows, windows: Windows, step: int) -> NDArray[Any]:
        if name == "weight":
            return self._sampler.weight(rows, step)
        return read_column(type(self).__name__, name, self._rings, rows, windows)
