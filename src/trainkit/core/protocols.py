"""What rooms may ask of each other: the borders of policy, buffer and logger."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from gymnasium import Space
from numpy.typing import ArrayLike, NDArray

from trainkit.core.data import (
    ActOutput,
    ArraySpec,
    Frames,
    Horizon,
    Obs,
    RecordedEpisode,
    Rollout,
    RowSpec,
    Transition,
    TransitionBatch,
)
from trainkit.core.stats import Summary


class EnvSpaces(Protocol):
    """Anything with the spaces of one environment."""

    @property
    def observation_space(self) -> Space[Any]: ...

    @property
    def action_space(self) -> Space[Any]: ...


class Stateful(Protocol):
    """A part whose state goes into a checkpoint."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


@runtime_checkable
class Seedable(Protocol):
    """A part with streams of random numbers of its own."""

    is_seeded: bool

    def seed(self, root: int) -> None: ...


class Policy(Protocol):
    """What a collector asks of a policy."""

    last_step: int  # the environment step of its last update

    @property
    def extras_spec(self) -> Mapping[str, ArraySpec]:
        """Columns that `act` gives with each action, to be stored."""
        ...

    def check_spaces(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        """Refuse spaces this policy was not made for."""
        ...

    def act(
        self,
        obs: Obs,
        *,
        step: int = 0,
        explore: bool = False,
        state: Any = None,
        starts: NDArray[np.bool_] | None = None,
        env_ids: NDArray[np.intp] | None = None,
    ) -> ActOutput: ...

    @property
    def observes(self) -> bool:
        """Whether `observe` has any effect."""
        ...

    def observe(self, transition: Transition) -> None:
        """Let running statistics learn from K new rows."""
        ...

    def cut(self, env_ids: NDArray[np.intp]) -> None:
        """Hear that the episodes of these environments were ended where they are."""
        ...

    def start_streams(self, root: int) -> None:
        """Start the random streams of exploring anew."""
        ...

    def streams_state(self) -> dict[str, Any]: ...

    def load_streams_state(self, state: Mapping[str, Any]) -> None: ...


class UpdateResult(Protocol):
    """What an update leaves behind, still on its device."""

    def read_priority(self) -> NDArray[np.float32] | None:
        """Wait for the device and return the priorities [B], None where the learner has none."""
        ...


class Trainee(Policy, Seedable, Protocol):
    """What every trainer asks of a policy."""

    horizon: Horizon

    @property
    def columns(self) -> Sequence[str]:
        """The names of the columns that its updates read in `extras`; none for most."""
        ...

    n_updates: int
    recipe: Mapping[str, Any] | None  # how to make one like it, in plain values; None where that is not known
    observation_space: Space[Any] | None  # None: not told yet
    action_space: Space[Any] | None

    def save(self, path: str | Path) -> Path:
        """Write what acting needs into a folder."""
        ...

    def training_state(self) -> dict[str, Any]: ...

    def load_training_state(self, state: Mapping[str, Any]) -> None: ...

    @property
    def n_threads(self) -> int:
        """Threads that torch computes on; may be set."""
        ...

    @n_threads.setter
    def n_threads(self, count: int) -> None: ...

    on_nan: Literal["raise", "skip"]  # what becomes of an update that is not finite

    def check_divergence(self) -> None:
        """Refuse to go on after an update that could not be taken, where nobody waited for it."""
        ...

    def read_metrics(self) -> dict[str, float]:
        """Return the means since the last call, and begin new ones."""
        ...

    def explore_metrics(self, step: int) -> dict[str, float]: ...


class Learner(Trainee, Protocol):
    """What an off-policy trainer asks of a policy."""

    def update(self, batch: TransitionBatch, *, step: int) -> UpdateResult: ...

    def study(self, dataset: "Dataset") -> None:
        """Learn running statistics of a whole dataset."""
        ...


class RolloutLearner(Trainee, Protocol):
    """What an on-policy trainer asks of a policy."""

    def learn(self, rollout: Rollout, *, step: int, batch_size: int | None, repeat: int) -> Iterator[UpdateResult]:
        """Learn from all rows `repeat` times, in batches; one item per update, taken when it is asked for."""
        ...


class Store(Stateful, Protocol):
    """What a collector asks of a buffer, and every trainer.

    A trainer gives `load_state_dict` large arrays as `trainkit.core.reading.StoredArray`s, which are read when they are
    copied (`trainkit.core.files.copy_into`) or converted (`np.asarray`), and only until it returns.
    """

    def __len__(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def columns(self) -> Sequence[str]:
        """The names of the columns that a policy's updates may read in `extras`."""
        ...

    def bind(self, spec: RowSpec) -> None: ...

    def add(self, transition: Transition) -> NDArray[np.int64]: ...

    def cut(self, env_ids: ArrayLike) -> None: ...

    def drop(self, env_ids: ArrayLike) -> int: ...

    def metrics(self, step: int) -> dict[str, float]: ...


@runtime_checkable
class FrameStore(Protocol):
    """Where a buffer keeps its images too, for those who learn from them there."""

    @property
    def device(self) -> object: ...

    def claim(self, owner: str, n_places: int, shape: tuple[int, ...]) -> Frames:
        """Claim memory for so many images of a shape; refuse, in the owner's name, what does not fit."""
        ...


class Recorder(Protocol):
    """Who hears all that a collector does, to keep it elsewhere than in its buffer."""

    def add(self, transition: Transition) -> object:
        """Hear of K steps; the arrays are borrowed until the next."""
        ...

    def cut(self, env_ids: NDArray[np.intp]) -> None:
        """Hear that the open episodes of these environments ended here, without a flag."""
        ...

    def drop(self, env_ids: NDArray[np.intp]) -> object:
        """Hear that the open episodes of these environments were broken off, and are not to be kept."""
        ...


@runtime_checkable
class Buffer(Store, Seedable, Protocol):
    """What an off-policy trainer asks of a buffer."""

    capacity: int

    @property
    def prioritized(self) -> bool:
        """Whether `update_priorities` has any effect."""
        ...

    def sample(
        self, batch_size: int | None, *, horizon: Horizon, step: int = 0, columns: Sequence[str] = ()
    ) -> TransitionBatch:
        """Draw B rows; None returns every row once."""
        ...

    def update_priorities(self, slots: NDArray[np.int64], priority: NDArray[Any]) -> None: ...


@runtime_checkable
class RoundBuffer(Buffer, Protocol):
    """What an off-policy trainer asks of a buffer where updates come in rounds."""

    def sample_round(
        self, n_batches: int, batch_size: int, *, horizon: Horizon, step: int = 0, columns: Sequence[str] = ()
    ) -> list[TransitionBatch]:
        """Draw the batches of several updates, in one pass where that is quicker."""
        ...


@runtime_checkable
class Dataset(Buffer, Protocol):
    """What an offline trainer asks of a buffer: all of it, too, once before it begins."""

    def transitions(self, n_rows: int = 10_000) -> Iterator[Transition]:
        """Go once through all rows, so many at a time."""
        ...

    def episodes(self) -> Iterator[RecordedEpisode]:
        """Go once through all episodes."""
        ...


class Logger(Protocol):
    """Write numbers and words somewhere."""

    @property
    def folder(self) -> str | None:
        """Where it writes, None where that is no folder."""
        ...

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write numbers at an environment step, whole: a reader sees all of them or none."""
        ...

    def describe(self, settings: Mapping[str, Any]) -> None:
        """Write the run's settings, once."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class PurgingLogger(Protocol):
    """A logger that can take back what a run wrote before it was killed, and writes again when it goes on."""

    def purge(self, step: int) -> None:
        """Forget what was written after this step."""
        ...


@runtime_checkable
class NormalActor(Protocol):
    """A policy that may draw actions from normal distributions."""

    def read_action_std(self) -> Summary:
        """Return the standard deviations of the draws since the last call; empty where there were none."""
        ...


@runtime_checkable
class VideoLogger(Protocol):
    """A logger that can show videos; one that cannot is never given any."""

    def write_video(self, step: int, tag: str, frames: NDArray[np.uint8], fps: float) -> None:
        """Write frames [T, H, W, 3], T at least 1, at an environment step."""
        ...


@runtime_checkable
class HistogramLogger(Protocol):
    """A logger that can show how numbers are spread; one that cannot is never told."""

    def write_histograms(self, step: int, values: Mapping[str, NDArray[Any]]) -> None:
        """Write the numbers [K], K at least 1, of each tag at an environment step."""
        ...
