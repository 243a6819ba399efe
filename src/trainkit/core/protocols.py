"""Protocols between packages: policies, buffers, loggers and environments as other packages use them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from gymnasium import Space
from numpy.typing import ArrayLike, NDArray

from trainkit.core.data import (
    ActOutput,
    Allocate,
    ArraySpec,
    Batch,
    Horizon,
    Obs,
    RecordedEpisode,
    RowSpec,
    Transition,
    TransitionBatch,
)
from trainkit.core.errors import Checks
from trainkit.core.stats import CollectStats, Summary

Deliver = Callable[[str, Iterable[tuple[Any, ...]]], None]  # an event, and the arguments of each occurrence
RewardMetric = Callable[[NDArray[np.float64]], NDArray[np.float64]]


class EnvSpaces(Protocol):
    """Anything with the spaces of one environment."""

    @property
    def observation_space(self) -> Space[Any]:
        """Observation space of one environment."""
        ...

    @property
    def action_space(self) -> Space[Any]:
        """Action space of one environment."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """A part whose state goes into a checkpoint."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


@runtime_checkable
class Seedable(Protocol):
    """A part with its own random streams."""

    @property
    def is_seeded(self) -> bool:
        """Whether it has a seed."""
        ...

    def seed(self, root: int) -> None: ...


class ActingPolicy(Protocol):
    """A policy as a collector uses it."""

    @property
    def policies(self) -> Mapping[str, Any]:
        """The policies that it consists of by name; empty for an only one."""
        ...

    def behavior_for(
        self, envs: "GroupedEnvs", *, in_evaluation: bool = False, rows_per_step: int = 1
    ) -> "BehaviorPolicy | None":
        """Return the behavior policy of a collector; None where this policy controls all of its rows.

        Args:
            envs: the collector's environments.
            in_evaluation: whether nothing is stored.
            rows_per_step: up to this many rows of an environment, stored together, are one step of a policy's clock.
        """
        ...

    @property
    def last_step(self) -> int:
        """The environment step of its last update."""
        ...

    @property
    def extras_spec(self) -> Mapping[str, ArraySpec]:
        """Columns that `act` returns with each action, to be stored."""
        ...

    def check_spaces(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        """Raise if the policy was made for other spaces."""
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
        """Update running statistics with K new rows."""
        ...

    def cut(self, env_ids: NDArray[np.intp]) -> None:
        """Note that the open episodes of these environments ended here, without a flag."""
        ...

    def start_streams(self, root: int) -> None:
        """Restart the random streams of exploration."""
        ...

    def streams_state(self) -> dict[str, Any]: ...

    def load_streams_state(self, state: Mapping[str, Any]) -> None: ...


class GroupedEnvs(EnvSpaces, Protocol):
    """Environments whose rows begin and end in groups, as a policy uses them that acts for some rows of a group."""

    n: int  # rows
    agents: tuple[str, ...]  # the names of the rows of a group, in order; empty where each row is alone
    agent_views: Mapping[str, Any]  # {name: that row's own part of `obs` and of an action}; empty where each is alone
    stack: int  # frames per observation
    name: str

    @property
    def episode_keys(self) -> NDArray[np.int64]:
        """A number for the current episode of each row [N] that no other episode of the row has."""
        ...

    @property
    def episodes(self) -> NDArray[np.int64]:
        """The number of each row's current episode [N]."""
        ...

    def episode_seed(self, env_id: int) -> int:
        """Return the seed of a row's current episode; a group shares it."""
        ...


class OngoingCollect(Protocol):
    """A collector, as a behavior policy sees it that acts ahead."""

    @property
    def envs(self) -> Any:
        """The `Envs`."""
        ...

    @property
    def n_vector_steps_left(self) -> int:
        """Vector steps left in the current collect, with this one; 0 where that is open."""
        ...

    def most_updates_before(self, n_steps: int) -> int | None:
        """Return the most updates that may be performed before the last of the next n vector steps is stored.

        None where that is not known; the next one is that of the current collect.
        """
        ...


class BehaviorPolicy(Protocol):
    """The behavior policy of one collector: what acts in its environments, and which policy controls each row."""

    @property
    def acts(self) -> Any:
        """What has `act`, as in `ActingPolicy`."""
        ...

    @property
    def normal(self) -> "HasActionStd | None":
        """The policy, where it is one and may draw actions from normal distributions."""
        ...

    @property
    def acts_here(self) -> bool:
        """Whether each action is chosen here, when it is to be sent; else it may have been elsewhere, and before."""
        ...

    @property
    def max_lag(self) -> int:
        """The updates that the weights which act may be behind when a row is stored."""
        ...

    @property
    def extras_spec(self) -> Mapping[str, ArraySpec]:
        """Columns that are returned with each action, to be stored."""
        ...

    def row_spec(self, spec: RowSpec) -> RowSpec:
        """Return the spec of rows with which policy controls which of them; `spec` is that of the environments."""
        ...

    def row_extras(self, env_ids: NDArray[np.intp]) -> dict[str, NDArray[Any]]:
        """Return the columns of rows [K] that do not depend on their actions, for random ones."""
        ...

    def players(self, env_ids: NDArray[np.intp]) -> list[str]:
        """Return the name of the policy that controls each of these rows [K] in their episodes; "" without a name."""
        ...

    def last_players(self) -> tuple[NDArray[np.int64], Mapping[int, str]]:
        """Return the numbers of the policies that acted last in all rows [N], -1 for none, and their names."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any], *, with_running: bool) -> None:
        """Restore a saved state; `with_running` says whether its episodes continue."""
        ...


@runtime_checkable
class PredictsReturns(Protocol):
    """A policy that predicts the returns of its greedy actions."""

    def greedy_values(
        self, obs: Obs, state: NDArray[np.float32] | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the value [K] of the best action for raw observations [K, ...], and its gap [K] to the second best.

        The value is a return as the policy's horizon defines it; the gap is infinite where there is no other action.
        The states before the observations, [K, S], are given of policies that carry one.
        """
        ...


class HasPriority(Protocol):
    """The result of an update, whose priorities are still on its device."""

    @property
    def priority(self) -> object:
        """The priorities [B] on the device, None where the learner has none."""
        ...

    def read_priority(self) -> NDArray[np.float32] | None:
        """Wait for the device and return the priorities [B], None where there are none or the update was skipped."""
        ...

    def copy_priority(self, *, in_order: bool = False) -> Callable[[], NDArray[np.float32] | None]:
        """Start to copy the priorities to the CPU; return `read_priority` of this copy, which waits for it alone.

        With `in_order` any number of updates may be started before it is called, without it one.
        """
        ...


class StepClock(Protocol):
    """What counts the steps that schedules are evaluated at."""

    @property
    def env_step(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Learner:
    """A policy that learns, the buffer that it learns from, and the clock of both.

    Attributes:
        name: of the policy; "" where there is one.
    """

    name: str
    policy: Any
    buffer: Any
    clock: StepClock

    @property
    def prefix(self) -> str:
        """The start of its tags and keys, such as "main/"; empty where there is one."""
        return f"{self.name}/" if self.name else ""


Component = tuple[Callable[[], Any], Callable[[Any], object]]  # of a checkpoint: how it is read and restored


class Trainee(ActingPolicy, Seedable, Protocol):
    """A policy as every trainer uses it."""

    def learners(self, buffer: Any, clock: StepClock, names: Sequence[str] | None = None) -> Sequence[Learner]:
        """Return the policies that learn, each with its buffer of `buffer`; the clock of an only one is given.

        `names` are of those that learned when a run was saved; None: those that are to learn now.
        """
        ...

    @property
    def policy_numbers(self) -> Mapping[str, int]:
        """The numbers of its policies by name, of which none is ever given again; empty for an only one."""
        ...

    @property
    def configs(self) -> Mapping[str, Mapping[str, Any] | None]:
        """How each of its policies was made, by name; empty for an only one."""
        ...

    def components(self) -> Mapping[str, Component]:
        """Return the components of a checkpoint by name."""
        ...

    def settings(self) -> dict[str, Any]:
        """Return the settings, for the record of a run."""
        ...

    def check_modules(self) -> None:
        """Raise `ConfigError` if a module that learns was replaced by another one."""
        ...

    @property
    def n_updates(self) -> int:
        """The number of updates taken."""
        ...

    @property
    def config(self) -> Mapping[str, Any] | None:
        """How to make one like it, in plain values; None where that is not known."""
        ...

    @property
    def observation_space(self) -> Space[Any] | None:
        """Observation space of one environment, None until it is known."""
        ...

    @property
    def action_space(self) -> Space[Any] | None:
        """Action space of one environment, None until it is known."""
        ...

    def save(self, path: str | Path) -> Path:
        """Save everything that acting needs in a folder."""
        ...

    def training_state(self) -> dict[str, Any]:
        """Return all state of learning, as arrays, tensors and plain values."""
        ...

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `training_state` returned."""
        ...

    @property
    def n_threads(self) -> int:
        """Threads that torch computes on; may be set."""
        ...

    @n_threads.setter
    def n_threads(self, count: int) -> None: ...

    def check_divergence(self) -> None:
        """Raise `DivergedError` if an earlier update was not finite whose result the CPU did not wait for."""
        ...

    def read_metrics(self) -> dict[str, float]:
        """Return the means since the last call, and reset them."""
        ...

    def explore_metrics(self, step: int) -> dict[str, float]:
        """Return the exploration's values at `step`, such as epsilon, by name."""
        ...


class OffpolicyTrainee(Trainee, Protocol):
    """A policy as an off-policy trainer uses it."""

    @property
    def horizon(self) -> Horizon:
        """The return that it learns from."""
        ...

    @property
    def columns(self) -> Sequence[str]:
        """The names of the columns that its updates read in `extras`; empty for most policies."""
        ...

    @property
    def batch_type(self) -> type[Batch]:
        """The class of what `sample_batch` returns, as which checkpoints restore it."""
        ...

    def sample_batch(self, buffer: Any, batch_size: int | None, *, step: int) -> Any:
        """Sample what it learns from, a `TransitionBatch` or another `Batch`; None samples every row once."""
        ...

    def check_draw(self, checks: Checks, buffer: Any, batch_size: int | None, per_round: int = 1) -> None:
        """Note a problem if it cannot learn from a buffer in this way."""
        ...

    def before_updates(self, buffer: Any) -> None:
        """Adapt to the rows in a buffer before the first update."""
        ...

    def update(self, batch: Any, *, step: int) -> HasPriority:
        """Learn from a batch that `draw` returned; `step` is the clock."""
        ...

    def fit_statistics(self, dataset: "Dataset") -> None:
        """Fit running statistics to a whole dataset."""
        ...


@runtime_checkable
class HasReturnRange(Protocol):
    """A buffer that knows how large the returns in it are."""

    def return_range(self, horizon: Horizon) -> tuple[float, float]:
        """Return the smallest and the largest of 0, all n-step rewards and all returns-to-go of the rows."""
        ...


class OnpolicyTrainee(Trainee, Protocol):
    """A policy as an on-policy trainer uses it."""

    @property
    def horizon(self) -> Horizon:
        """The return that it learns from."""
        ...

    @property
    def columns(self) -> Sequence[str]:
        """The names of the columns that its updates read in `extras`; empty for most policies."""
        ...

    def learn(self, rollout: Any, *, step: int, batch_size: int | None, repeat: int) -> Iterator[object]:
        """Learn from all rows `repeat` times, in batches; one item per update, taken when the iterator advances.

        `rollout` is a `Rollout`, or a `TensorRollout` of a simulator.
        """
        ...


class Store(Stateful, Protocol):
    """What was collected, as every trainer uses it.

    A trainer gives `load_state_dict` large arrays as `trainkit.core.files.StoredArray`s, which are read when they are
    copied (`trainkit.core.files.copy_into`) or converted (`np.asarray`), and only until it returns.
    """

    def __len__(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def columns(self) -> Sequence[str]:
        """The names of the columns that a policy's updates may read in `extras`."""
        ...

    def metrics(self, step: int) -> dict[str, float]: ...


@runtime_checkable
class RolloutStore(Store, Protocol):
    """A store that a policy learns all of at once, such as a `RolloutBuffer`."""

    def read(self, horizon: Any = None, columns: Sequence[str] = ()) -> Any:
        """Return everything that was collected since `clear`."""
        ...

    def clear(self) -> None:
        """Remove everything."""
        ...


@runtime_checkable
class Clearable(Protocol):
    """A buffer that can discard its rows."""

    def clear(self) -> None: ...


class CollectedEnvs(EnvSpaces, Protocol):
    """Environments as a trainer sees those of its collector."""

    @property
    def n(self) -> int:
        """The number of rows of a step."""
        ...

    @property
    def name(self) -> str:
        """The name, for messages and manifests."""
        ...

    @property
    def made_with(self) -> Mapping[str, Any]:
        """What decides what the environments are, which a resumed run compares."""
        ...

    @property
    def takes_options(self) -> bool:
        """Whether a reset of one of them passes its options on."""
        ...


class StepCollector(Stateful, Seedable, Protocol):
    """What a trainer collects with: a policy that acts in environments, and a buffer of its steps; see `Collector`."""

    @property
    def policy(self) -> Any:
        """The policy that learns from the steps."""
        ...

    @property
    def envs(self) -> CollectedEnvs:
        """The environments."""
        ...

    @property
    def max_lag(self) -> int:
        """The updates that the weights which act may be behind when a row is stored."""
        ...

    @property
    def buffer(self) -> Any:
        """What stores the steps; None in an evaluation."""
        ...

    @property
    def env_step(self) -> int:
        """The steps collected ever, the clock of schedules."""
        ...

    @property
    def n_episode(self) -> int:
        """The episodes that ended ever."""
        ...

    @property
    def is_interrupted(self) -> bool:
        """Whether the last collect was interrupted, and `resume` continues it."""
        ...

    @property
    def counts_episodes(self) -> bool:
        """Whether a collect may end after a number of episodes."""
        ...

    @property
    def single_env_ids(self) -> Sequence[int]:
        """The ids of environments that callbacks can be given one by one; empty where there are none."""
        ...

    def collect(self, *, n_step: int | None = None, n_episode: int | None = None) -> CollectStats:
        """Act until there are as many steps or episodes; store every step."""
        ...

    def interrupt_with(self, check: Callable[[], None] | None) -> None:
        """Call this before every vector step: it only ever raises. None: stop."""
        ...

    def resume(self) -> CollectStats:
        """Continue the collect that was interrupted."""
        ...

    def restart(self) -> None:
        """Count from 0 again, in new episodes."""
        ...

    def require_reset(self) -> None:
        """Begin new episodes with the next collect."""
        ...

    def release(self) -> None:
        """Give up the environments, which stay open."""
        ...

    def close(self) -> None:
        """Close the environments."""
        ...

    def use_reward_metric(self, metric: RewardMetric) -> None:
        """Map the returns of finished episodes by a function, in statistics and scores."""
        ...

    def subscribe(self, deliver: Deliver, events: Sequence[str], *, in_evaluation: bool) -> None:
        """Deliver these events of single episodes from now on, in place of former ones.

        Raises:
            ConfigError: it has no such events.
        """
        ...


class RowStore(Store, Protocol):
    """A buffer as a collector uses it, which adds rows of arrays."""

    def bind(self, spec: RowSpec) -> None: ...

    def add(self, transition: Transition) -> NDArray[np.int64]: ...

    def cut(self, env_ids: ArrayLike) -> None: ...

    def drop(self, env_ids: ArrayLike) -> int: ...


@runtime_checkable
class HasBatchMemory(Protocol):
    """A policy with memory for batches from which its device reads them."""

    @property
    def batch_memory(self) -> Allocate | None:
        """Makes arrays in it; None if numpy's are as good."""
        ...


@runtime_checkable
class UsesBatchMemory(Protocol):
    """A buffer that can write sampled observations to given memory."""

    def use_batch_memory(self, allocate: Allocate | None) -> None:
        """Write the observations of the next batches to arrays that this function makes; None: to numpy's."""
        ...


class Recorder(Protocol):
    """A second receiver of everything a collector stores, in addition to its buffer."""

    def add(self, transition: Transition) -> object:
        """Add K steps; the arrays are valid until the next call."""
        ...

    def cut(self, env_ids: NDArray[np.intp]) -> None:
        """End the open episodes of these environments here, without a flag."""
        ...

    def drop(self, env_ids: NDArray[np.intp]) -> object:
        """Drop the open episodes of these environments."""
        ...


class SampledStore(Store, Seedable, Protocol):
    """Rows as updates read them."""

    @property
    def prioritized(self) -> bool:
        """Whether `update_priorities` has any effect."""
        ...

    def sample(
        self, batch_size: int | None, *, horizon: Horizon, step: int = 0, columns: Sequence[str] = ()
    ) -> TransitionBatch:
        """Sample B rows; None returns every row once."""
        ...

    def update_priorities(self, slots: NDArray[np.int64], priority: NDArray[Any]) -> None:
        """Write the priorities [K] of rows; rows that are no longer stored are ignored."""
        ...


@runtime_checkable
class Buffer(SampledStore, RowStore, Protocol):
    """A buffer as an off-policy trainer uses it."""

    @property
    def capacity(self) -> int:
        """Transitions in all."""
        ...


@runtime_checkable
class RoundBuffer(Buffer, Protocol):
    """A buffer as an off-policy trainer uses it if updates are taken in rounds."""

    def sample_round(
        self, n_batches: int, batch_size: int, *, horizon: Horizon, step: int = 0, columns: Sequence[str] = ()
    ) -> list[TransitionBatch]:
        """Sample the batches of several updates, in one pass if that is faster."""
        ...


@runtime_checkable
class Dataset(SampledStore, Protocol):
    """A buffer or streamed files as an offline trainer uses them: it reads all rows once before training."""

    def transitions(self, n_rows: int = 10_000) -> Iterator[Transition]:
        """Iterate once over all rows, `n_rows` at a time."""
        ...

    def episodes(self) -> Iterator[RecordedEpisode]:
        """Iterate once over all episodes."""
        ...


class Logger(Protocol):
    """A receiver of a run's statistics and settings."""

    @property
    def folder(self) -> str | None:
        """The folder it writes to, None if it writes elsewhere."""
        ...

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write statistics at an environment step atomically: a reader sees all of them or none."""
        ...

    def describe(self, settings: Mapping[str, Any]) -> None:
        """Write the run's settings, once."""
        ...

    def close(self) -> None:
        """Write what is pending and release the files."""
        ...


@runtime_checkable
class PurgingLogger(Protocol):
    """A logger that can remove what a killed run wrote after its last checkpoint, before the run resumes."""

    def purge(self, step: int) -> None:
        """Remove what was written after this step."""
        ...


@runtime_checkable
class HasActionStd(Protocol):
    """A policy that may draw actions from normal distributions."""

    def read_action_std(self) -> Summary:
        """Return the standard deviations of actions sampled since the last call; empty if there were none."""
        ...


@runtime_checkable
class VideoLogger(Protocol):
    """A logger that can show videos."""

    def write_video(self, step: int, tag: str, frames: NDArray[np.uint8], fps: float) -> None:
        """Write frames [T, H, W, 3], T at least 1, at an environment step."""
        ...


@runtime_checkable
class HistogramLogger(Protocol):
    """A logger that can show histograms."""

    def write_histograms(self, step: int, values: Mapping[str, NDArray[Any]]) -> None:
        """Write the numbers [K], K at least 1, of each tag at an environment step."""
        ...


@runtime_checkable
class EpisodeLogger(Protocol):
    """A logger that has a table of episodes."""

    def write_episodes(self, step: int, rows: Sequence[Mapping[str, float]]) -> None:
        """Write the episodes that ended since the last report, at least 1; their columns may differ."""
        ...


@runtime_checkable
class TextLogger(Protocol):
    """A logger that can show texts, such as warnings."""

    def write_texts(self, step: int, texts: Mapping[str, str]) -> None:
        """Write the text of each tag at an environment step."""
        ...
