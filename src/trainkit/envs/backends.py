"""The backend protocol: how N environments are driven, and the rows they exchange with `Envs`.

Every row a backend returns is a real step with its true successor, whatever the environments' autoreset mode. A row may
be of an earlier action: an environment in a process may answer later, and a row that takes turns with others of its
group is observed again only when it is to act again. Until then it is open, and awaits no action.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from trainkit.core import tree
from trainkit.core.data import Obs
from trainkit.core.errors import CheckpointError, Checks, ConfigError, EnvError
from trainkit.core.extensions import table
from trainkit.core.protocols import ActingPolicy, BehaviorPolicy, EnvSpaces, OngoingCollect
from trainkit.core.stats import Summary

Ids = NDArray[np.intp]
Seeds = Sequence[int]
Options = dict[str, Any] | None  # of a reset
EachOptions = Sequence[Options]  # of resets [K]
Fingerprint = dict[str, str]  # digest of each attribute of an environment, by its name
Work = Callable[[], object] | None  # called while environments step; it raises nothing
Column = Sequence[Any] | NDArray[Any]  # of one key of K infos
Take = Callable[[int, int], Any]  # (row, index) -> what an environment returned; raises Failure


RESET_SIGNATURE = "def reset(self, *, seed=None, options=None), and begin it with super().reset(seed=seed)"


def has_old_reset(method: str, error: BaseException) -> bool:
    """Return whether an environment's `reset` raised because it takes no seed or options."""
    is_call = isinstance(error, TypeError) and "reset() got an unexpected keyword argument" in str(error)
    return method == "reset" and is_call


def what_raised(method: str, error: BaseException) -> str:
    """Describe what an environment raised in a method, to follow "env 3"."""
    remedy = f": define it as {RESET_SIGNATURE}" if has_old_reset(method, error) else ""
    return f"raised {type(error).__name__} in {method}: {error}{remedy}"


# What reading raises when an environment returned something that does not match its spaces.
MISREAD = (KeyError, IndexError, TypeError, ValueError, RuntimeError, ArithmeticError)


class Spent:
    """Total seconds spent around the environments' own steps and resets.

    Attributes:
        obs: processing what they returned: validation, stacks, masks, processors.
        action: processing actions: validation, conversion, processors.
        render: rendering.
    """

    def __init__(self) -> None:
        self.obs = self.action = self.render = 0.0


class Failure(Exception):  # noqa: N818  # a message to `Envs`, never seen outside
    """A failure of an environment; `Envs` converts it to an error with the episode, the step and the action.

    Args:
        env_id: which; None: the whole vector environment, or unknown.
        what: happened, to follow "env 3".
        kind: of the error.
    """

    def __init__(self, env_id: int | None, what: str, kind: type[EnvError] = EnvError) -> None:
        super().__init__(what)
        self.env_id, self.what, self.kind = env_id, what, kind

    def without_frames(self) -> "Failure":
        """Return an error without its traceback, a reference cycle that would keep all arrays of a collect alive."""
        self.__context__ = None
        return self.with_traceback(None)


class Infos(Protocol):
    """The info dicts of K rows."""

    def row(self, row: int) -> dict[str, Any]: ...

    def column(self, key: str) -> Column:
        """Return one value per row, None for rows without it."""
        ...

    def rows(self, keep: NDArray[np.bool_]) -> "Infos":
        """Return the infos of some rows."""
        ...


class ListInfos(NamedTuple):
    """One dict per row, as single environments return them."""

    infos: Sequence[dict[str, Any]]

    def row(self, row: int) -> dict[str, Any]:
        return self.infos[row]

    def column(self, key: str) -> list[Any]:
        return [info.get(key) for info in self.infos]

    def rows(self, keep: NDArray[np.bool_]) -> "ListInfos":
        return ListInfos([info for info, is_kept in zip(self.infos, keep, strict=True) if is_kept])


Failures = Mapping[int, Failure]  # by environment
_NONE: Failures = {}
_NO_REWARDS: Mapping[int, float] = {}


class Begun(NamedTuple):
    """Episodes that just began."""

    env_ids: Ids  # [K], where they did
    obs: Obs  # [K, ...]
    infos: Infos  # of K rows
    failures: Failures = _NONE  # where they could not; of a group, by its first row

    def without(self, env_ids: Ids) -> "Begun":
        """Return all rows but those of these environments."""
        keep = ~np.isin(self.env_ids, env_ids)
        obs = tree.map_tree(lambda leaf: leaf[keep], self.obs)
        return self._replace(env_ids=self.env_ids[keep], obs=obs, infos=self.infos.rows(keep))


class Lost(NamedTuple):
    """Episodes that cannot go on: an environment failed, and is replaced before its next episode begins."""

    errors: Mapping[int, EnvError]  # by row, of a group by all of its rows: the failure
    are_dropped: bool = True  # whether the rows of these episodes are dropped, else cut


NOTHING_LOST = Lost({})


class RawStep(NamedTuple):
    """One vector step as the environments returned it; rows of other environments than those that acted are older."""

    env_ids: Ids  # [K], ascending: those whose row is complete; the array that was passed where they are the same
    next_obs: Obs  # [K, ...], true successors
    reward: NDArray[np.float64]  # [K]
    terminated: NDArray[np.bool_]  # [K]
    truncated: NDArray[np.bool_]  # [K]
    over: NDArray[np.bool_]  # [K], whose episode ended; of a group, for all of its rows
    infos: Infos  # of K rows
    begun: Begun | None  # episodes that began within the step
    failures: Failures = _NONE  # of those that failed; of a group, by its first row
    late_rewards: Mapping[int, float] = _NO_REWARDS  # of rows that did not act

    def without(self, env_ids: Ids) -> "RawStep":
        """Return all rows but those of these environments."""
        keep = ~np.isin(self.env_ids, env_ids)
        return self._replace(
            env_ids=self.env_ids[keep],
            next_obs=tree.map_tree(lambda leaf: leaf[keep], self.next_obs),
            reward=self.reward[keep],
            terminated=self.terminated[keep],
            truncated=self.truncated[keep],
            over=self.over[keep],
            infos=self.infos.rows(keep),
            begun=None if self.begun is None else self.begun.without(env_ids),
        )


class Runner(Protocol):
    """Run single environments: `SyncRunner` of `sync` in this process, `ProcessRunner` of `process` in one each.

    An environment is named by its index. What it raises is a `Failure`, by `take` or by the method itself. All answers
    of a call are taken before the next one, each once and in order; `work` is done before or while environments step.
    """

    @property
    def spaces(self) -> Sequence[EnvSpaces]:
        """The spaces of each."""
        ...

    @property
    def in_flight(self) -> Sequence[int]:
        """Those whose step has not been answered, ascending."""
        ...

    def reset(self, indices: Ids, seeds: Seeds, options: EachOptions) -> Take:
        """Reset some of them; each answer is to be taken once, in the order of `indices` [K]."""
        ...

    def step(self, actions: Sequence[Any] | NDArray[Any], indices: Ids, work: Work) -> tuple[Ids, Take]:
        """Step some of them [K], and return all that have answered by now, ascending, each to be taken once.

        In this process they step when their answer is taken: `SyncRunner`.
        """
        ...

    def rebuild(self, index: int) -> EnvSpaces:
        """Replace one that failed by a new one, and return its spaces."""
        ...

    def call(self, name: str, args: tuple[Any, ...], indices: Ids) -> list[Any]:
        """Call a method of some of them, or read an attribute."""
        ...

    def fingerprints(self) -> list[Fingerprint]:
        """Return the digests of attributes of each."""
        ...

    def close(self) -> None:
        """Close all."""
        ...

    def detach(self) -> None:
        """Leave all open, where that is possible; no method is called afterwards."""
        ...


@runtime_checkable
class RunsEnvs(Protocol):
    """Where environments run, an object given as `make_envs(backend=)`: elsewhere than `sync` and `process` run them.

    Attributes:
        has_processes: whether environments run in processes, which a timeout can end and which have environment
            variables of their own.
    """

    has_processes: bool

    def check(self, checks: Checks, n_envs: int) -> None:
        """Report options that cannot work with this number of environments."""
        ...

    def run(self, factories: Sequence[Callable[[], Any]], timeout_s: float | None) -> Runner:
        """Make an environment by each factory; `timeout_s` is the time for a step or reset, None: no limit.

        It is None without processes. What runs in other processes or threads has an `OwnerProcess` of `ownership`, so
        that a fork does not use it.
        """
        ...

    def behavior(self, policy: ActingPolicy, collect: OngoingCollect) -> BehaviorPolicy | None:
        """Return what acts for the policy that learns from these environments; None where the policy does."""
        ...


Players = Callable[[Ids], list[str]]  # the names of the policies that control rows [K]


class Backend(Protocol):
    """Read the rows of N environments: see `single` and `vector` for the implementations, made in `envs_config.py`.

    One may stand around another, `AroundBackend`; `HasEnvironments` is the base of those that do not.
    """

    n: int
    agents: tuple[str, ...]  # the names of rows that begin and end together, in order; empty where each is alone
    agent_views: Mapping[str, Any]  # {name of such a row: its own part of it}; empty where there is none
    source: str  # of the observations, for messages, such as " (through its processors)"
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    takes_options: bool  # whether `begin` passes on the options of a reset
    seeds_episodes: bool  # whether every episode begins with its own seed, so that it can be replayed
    may_lose_episodes: bool  # whether the failure of an environment ends its episode alone, not the run

    @property
    def no_action_remedy(self) -> str:
        """Return what to do about an observation that allows no action."""
        ...

    @property
    def spent(self) -> Spent:
        """Seconds that backends around the environments take."""
        ...

    @property
    def in_flight(self) -> Ids:
        """The rows whose environment has not answered their action yet, ascending."""
        ...

    def reset(self, seeds: Seeds, options: EachOptions) -> Begun:
        """Reset every environment."""
        ...

    def step(self, action: NDArray[Any], env_ids: Ids, work: Work) -> RawStep:
        """Step these environments and call `work`, at the same time if possible; return the rows complete by then."""
        ...

    def begin(self, env_ids: Ids, seeds: Seeds, options: EachOptions) -> Begun | None:
        """Start the next episode where one ended; backends that do not seed episodes receive no seeds.

        None where environments do so by themselves in their next step (autoreset NEXT_STEP), whose `RawStep.begun`
        then reports it; and where the episode is `lost`. Lost episodes are followed by others one environment at a
        time, by all of its rows.
        """
        ...

    @property
    def lost(self) -> Lost:
        """The episodes that cannot go on, until others have begun in their place."""
        ...

    def lose(self, error: EnvError) -> Ids:
        """Give up the episode of the environment that an error names, and return its rows; or raise the error."""
        ...

    def take_replaced(self) -> list[int]:
        """Return the environments replaced since the last call, by their first row, once for each time."""
        ...

    def rebuild(self, env_id: int) -> None:
        """Replace an environment that failed by a new one."""
        ...

    def call(self, name: str, args: tuple[Any, ...], env_ids: Ids) -> list[Any]:
        """Call a method of single environments, or read an attribute."""
        ...

    def fingerprints(self) -> list[Fingerprint]:
        """Return digests of the attributes of each environment; empty if they are not accessible."""
        ...

    def close(self) -> None:
        """Close the environments."""
        ...

    def detach(self) -> None:
        """Leave the environments open; no method is called afterwards."""
        ...

    def use_players(self, players: Players) -> None:
        """Receive the function that returns the names of the policies that control rows [K]."""
        ...

    def take_metrics(self) -> dict[str, Summary]:
        """Return what was logged since the last call, by name."""
        ...

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the states of the backends that stand around the environments, the innermost first."""
        ...

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Restore saved states."""
        ...

    def replace_environments(self, backend: "Backend") -> "Backend":
        """Put another backend of the same spaces in the place of the one that has the environments.

        Returns:
            What drives them from now on: this backend, where it stands around them, else the other one.
        """
        ...

    @property
    def runner(self) -> Runner | None:
        """What runs the single environments; None of a vector environment."""
        ...

    @property
    def environments(self) -> "Backend":
        """The backend that has the environments: this one, or the innermost that it stands around."""
        ...


def whole_groups(env_ids: Ids, group_size: int) -> Ids:
    """Return all rows of the groups to which these rows belong; see `Envs.group_size`."""
    if group_size == 1:
        return env_ids
    groups: Ids = np.unique(env_ids // group_size)
    return (groups[:, None] * group_size + np.arange(group_size)).ravel()


class HasEnvironments:
    """Base class of backends that stand around no other: nothing is logged, and nothing saved."""

    agents: tuple[str, ...] = ()
    source = ""
    agent_views: Mapping[str, Any] = {}
    no_action_remedy = "Leave one action legal, or return terminated=True with that observation"
    may_lose_episodes = False
    lost = NOTHING_LOST
    runner: Any = None  # of single environments

    @cached_property
    def spent(self) -> Spent:
        """Seconds spent by the backends around this one."""
        return Spent()

    @property
    def environments(self) -> Any:
        return self

    def lose(self, error: EnvError) -> Ids:
        has_remedy = type(error) is not EnvError or RESET_SIGNATURE in str(error)
        handled = " or ".join(f'on_error="{name}"' for name in table("ON_ERROR"))
        if has_remedy or self.runner is None or not handled:
            raise error
        raise EnvError(f"{error}: fix it, or give make_envs {handled}", env_id=error.env_id) from error.__cause__

    def take_replaced(self) -> list[int]:
        return []

    def use_players(self, players: Players) -> None:
        """Ignore who controls the rows."""

    def take_metrics(self) -> dict[str, Summary]:
        return {}

    def state_dict(self) -> list[dict[str, Any]]:
        return []

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        if states:
            raise CheckpointError(
                f"{len(states)} backends around the environments were saved, and there are none: make_envs as before"
            )

    def replace_environments(self, backend: Backend) -> Backend:
        return backend


class AroundBackend(Backend):
    """Base class of backends that stand around another: what they do not override is the other one's.

    Attributes:
        inner: the other one; another one of the same spaces may take its place.
    """

    source = ""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.n = inner.n
        self.agents, self.agent_views = inner.agents, inner.agent_views
        self.takes_options, self.seeds_episodes = inner.takes_options, inner.seeds_episodes
        self.may_lose_episodes = inner.may_lose_episodes
        self.observation_space, self.action_space = inner.observation_space, inner.action_space

    @property
    def spent(self) -> Spent:
        return self.inner.spent

    @property
    def in_flight(self) -> Ids:
        return self.inner.in_flight

    @property
    def runner(self) -> Runner | None:
        return self.inner.runner

    @property
    def environments(self) -> Backend:
        return self.inner.environments

    @property
    def no_action_remedy(self) -> str:
        return self.inner.no_action_remedy

    def replace_environments(self, backend: Backend) -> "Backend":
        self.inner = self.inner.replace_environments(backend)
        return self

    def reset(self, seeds: Seeds, options: EachOptions) -> Begun:
        return self.inner.reset(seeds, options)

    def step(self, action: NDArray[Any], env_ids: Ids, work: Work) -> RawStep:
        return self.inner.step(action, env_ids, work)

    def begin(self, env_ids: Ids, seeds: Seeds, options: EachOptions) -> Begun | None:
        return self.inner.begin(env_ids, seeds, options)

    @property
    def lost(self) -> Lost:
        return self.inner.lost

    def lose(self, error: EnvError) -> Ids:
        return self.inner.lose(error)

    def take_replaced(self) -> list[int]:
        return self.inner.take_replaced()

    def rebuild(self, env_id: int) -> None:
        self.inner.rebuild(env_id)

    def call(self, name: str, args: tuple[Any, ...], env_ids: Ids) -> list[Any]:
        return self.inner.call(name, args, env_ids)

    def fingerprints(self) -> list[Fingerprint]:
        return self.inner.fingerprints()

    def use_players(self, players: Players) -> None:
        self.inner.use_players(players)

    def take_metrics(self) -> dict[str, Summary]:
        return self.inner.take_metrics()

    def state_dict(self) -> list[dict[str, Any]]:
        return self.inner.state_dict()

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        self.inner.load_state_dict(states)

    def close(self) -> None:
        self.inner.close()

    def detach(self) -> None:
        self.inner.detach()


@runtime_checkable
class StandsAround(Protocol):
    """What makes a backend around another, such as a processor."""

    def around(self, backend: Backend) -> Backend: ...


def call_or_read(env: gym.Env[Any, Any], name: str, args: tuple[Any, ...]) -> Any:
    """Call a method of an environment or of what it wraps; an attribute is read, and takes no arguments."""
    found = env.get_wrapper_attr(name)
    if callable(found):
        return found(*args)
    if args:
        raise TypeError(f"{name} is a {type(found).__name__}, which cannot be called with arguments")
    return found


def check_equal(env_id: int, env: EnvSpaces, first: EnvSpaces) -> None:
    """Raise a ConfigError if an environment's spaces differ from those of the first."""
    here, there = ((one.observation_space, one.action_space) for one in (env, first))
    if here != there:
        raise ConfigError(f"make_envs: env {env_id} has spaces {here}, env 0 has {there}: they must be equal")
