"""The ways to drive N environments: what each answers, in *rows that are real steps*, whatever happens below.

reset(seeds, options)       begin an episode everywhere
step(action, ids, work)     step these environments, and call `work`, which raises nothing, while they do so where
                            they can; the answer's `next_obs` are true successors
begin(ids, seeds, options)  begin the next episode where one ended; None where the environment does so by itself
                            at its next step (autoreset NEXT_STEP), which then reports it in `RawStep.begun`; who does
                            not seed episodes gets no seeds
call(name, args, ids)       call a method of single environments, or read an attribute
fingerprints()              digests of the attributes of each single environment; none where there is no access to them
close()                     close the environments
detach()                    leave them open to whoever passed them in; no method is called afterwards
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from trainkit.core import tree
from trainkit.core.data import Obs
from trainkit.core.errors import BadEnvDataError, ConfigError, EnvError
from trainkit.core.protocols import EnvSpaces
from trainkit.envs.conversion import Infos, ListInfos, RowReader

Ids = NDArray[np.intp]
Seeds = Sequence[int]
Options = dict[str, Any] | None  # of a reset
Fingerprint = dict[str, str]  # digest of each attribute of an environment, by its name
Work = Callable[[], object]


def no_work() -> None:
    """Let environments step and wait for them."""


# What calling an environment may raise: one that wants to exit has failed, too.
RAISED = (Exception, SystemExit)

# What reading raises when an environment returned something else than its spaces say.
MISREAD = (KeyError, IndexError, TypeError, ValueError, RuntimeError, ArithmeticError)


FORKED = (
    "these environments belong to the process that made them, and this is a fork of it: use them there, or make_envs "
    "in this process"
)


class Failure(Exception):  # noqa: N818  # a message to `Envs`, never seen outside
    """An environment failed; `Envs` turns this into an error that says when and at which action.

    Args:
        env_id: which; None: all of a vector environment, or nobody knows.
        what: happened, to follow "env 3".
        kind: of the error.
    """

    def __init__(self, env_id: int | None, what: str, kind: type[EnvError] = EnvError) -> None:
        super().__init__(what)
        self.env_id, self.what, self.kind = env_id, what, kind

    def kept(self) -> "Failure":
        """Return it without the frames it came through, a cycle that would keep all of a collect for long."""
        self.__context__ = None
        return self.with_traceback(None)


Failures = Mapping[int, Failure]  # by environment
_NONE: Failures = {}
_NO_REWARDS: Mapping[int, float] = {}


class Begun(NamedTuple):
    """Episodes that just began."""

    env_ids: Ids  # [K], where they did
    obs: Obs  # [K, ...]
    infos: Infos  # of K rows
    failures: Failures = _NONE  # where they could not

    def without(self, env_id: int) -> "Begun":
        """Return all but one of the rows."""
        keep = self.env_ids != env_id
        obs = tree.map_tree(lambda leaf: leaf[keep], self.obs)
        return self._replace(env_ids=self.env_ids[keep], obs=obs, infos=self.infos.rows(keep))


class RawStep(NamedTuple):
    """One vector step as the environments told it."""

    env_ids: Ids  # [K], those that answered
    next_obs: Obs  # [K, ...]
    reward: NDArray[np.float64]  # [K]
    terminated: NDArray[np.bool_]  # [K]
    truncated: NDArray[np.bool_]  # [K]
    over: NDArray[np.bool_]  # [K], whose game ended; of an environment alone, its episode
    infos: Infos  # of K rows
    begun: Begun | None  # episodes that began within the step
    failures: Failures = _NONE  # of those that did not answer
    late_rewards: Mapping[int, float] = _NO_REWARDS  # of agents that did not act, by row

    def without(self, env_id: int) -> "RawStep":
        """Return all but one of the rows."""
        keep = self.env_ids != env_id
        return self._replace(
            env_ids=self.env_ids[keep],
            next_obs=tree.map_tree(lambda leaf: leaf[keep], self.next_obs),
            reward=self.reward[keep],
            terminated=self.terminated[keep],
            truncated=self.truncated[keep],
            over=self.over[keep],
            infos=self.infos.rows(keep),
        )


class Backend(Protocol):
    """Drive N environments."""

    n: int
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    takes_options: bool  # whether `begin` can hand on the options of a reset
    seeds_episodes: bool  # whether every episode begins by its own seed, so that it can be played again

    def reset(self, seeds: Seeds, options: Options) -> Begun: ...

    def step(self, action: NDArray[Any], env_ids: Ids, work: Work) -> RawStep: ...

    def begin(self, env_ids: Ids, seeds: Seeds, options: Options) -> Begun | None: ...

    def rebuild(self, env_id: int) -> None: ...

    def call(self, name: str, args: tuple[Any, ...], env_ids: Ids) -> list[Any]: ...

    def fingerprints(self) -> list[Fingerprint]: ...

    def close(self) -> None: ...

    def detach(self) -> None: ...


def call_or_read(env: gym.Env[Any, Any], name: str, args: tuple[Any, ...]) -> Any:
    """Call a method of an environment or of what it wraps; an attribute is read, and takes no arguments."""
    found = env.get_wrapper_attr(name)
    if callable(found):
        return found(*args)
    if args:
        raise TypeError(f"{name} is a {type(found).__name__}, which cannot be called with arguments")
    return found


def check_equal(env_id: int, env: EnvSpaces, first: EnvSpaces) -> None:
    """Refuse an environment that has other spaces than the first."""
    here, there = ((one.observation_space, one.action_space) for one in (env, first))
    if here != there:
        raise ConfigError(f"make_envs: env {env_id} has spaces {here}, env 0 has {there}: they must be equal")


Take = Callable[[int, int], Any]  # (row, env_id) -> what an environment returned; raises Failure


def read_steps(reader: RowReader, env_ids: Ids, take: Take) -> RawStep:
    """Read the steps of single environments [K]; each is copied before the next is taken."""
    n_rows = len(env_ids)
    next_obs = reader.empty(n_rows)
    reward = np.empty(n_rows, np.float64)
    terminated, truncated = np.empty((2, n_rows), np.bool_)
    infos: list[dict[str, Any]] = [{}] * n_rows
    failures: dict[int, Failure] = {}
    for row, env_id in enumerate(env_ids.tolist()):
        try:
            obs, gain, is_terminated, is_truncated, infos[row] = reader.unpack_step(take(row, env_id))
            reader.write(next_obs, row, obs)
            reward[row] = gain if type(gain) is float else reader.reward(gain)
            terminated[row] = is_terminated if type(is_terminated) is bool else reader.flag("terminated", is_terminated)
            truncated[row] = is_truncated if type(is_truncated) is bool else reader.flag("truncated", is_truncated)
        except Failure as failure:
            failures[env_id] = failure.kept()
        except MISREAD as error:
            failures[env_id] = Failure(env_id, str(error), BadEnvDataError)
    over = terminated | truncated
    raw = RawStep(env_ids, next_obs, reward, terminated, truncated, over, ListInfos(infos), None, failures)
    for env_id in failures:
        raw = raw.without(env_id)
    return raw


def read_begun(reader: RowReader, env_ids: Ids, take: Take) -> Begun:
    """Read the resets of single environments [K]."""
    obs = reader.empty(len(env_ids))
    infos: list[dict[str, Any]] = [{}] * len(env_ids)
    failures: dict[int, Failure] = {}
    for row, env_id in enumerate(env_ids.tolist()):
        try:
            first, infos[row] = reader.unpack_reset(take(row, env_id))
            reader.write(obs, row, first)
        except Failure as failure:
            failures[env_id] = failure.kept()
        except MISREAD as error:
            failures[env_id] = Failure(env_id, str(error), BadEnvDataError)
    begun = Begun(env_ids, obs, ListInfos(infos), failures)
    for env_id in failures:
        begun = begun.without(env_id)
    return begun
