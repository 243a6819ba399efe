"""Driving a gymnasium vector environment, whatever autoreset it has."""

import copy
import logging
import operator
import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from trainkit.core import tree
from trainkit.core.data import Obs, any_true
from trainkit.core.errors import BadEnvDataError, ConfigError
from trainkit.core.spaces import check_spaces, flat_actions, structure_of, zeros_of
from trainkit.envs.backends import (
    MISREAD,
    Begun,
    Column,
    EachOptions,
    Failure,
    Fingerprint,
    HasEnvironments,
    Ids,
    Options,
    RawStep,
    Seeds,
    Work,
    what_raised,
)
from trainkit.envs.ownership import OwnerProcess, claim_environment, free_environments
from trainkit.envs.validation import RowReader

_log = logging.getLogger(__name__)
_SUSPICIOUS = 3  # episodes whose final observation was the next one's first, from which on it is no coincidence


class VectorInfos:
    """Rows of gymnasium's dict of arrays, where `_key` marks the environments that have `key`.

    A value that is not one for each of the n environments is common to all of them.
    """

    def __init__(self, infos: dict[str, Any], n: int, env_ids: Ids, ended: NDArray[np.bool_] | None = None) -> None:
        self._infos, self._n = infos, n
        self._env_ids = env_ids
        self._ended = ended  # [N], whose info is in "final_info" (SAME_STEP)

    def row(self, row: int) -> dict[str, Any]:
        env_id = self._env_ids[row]
        infos = self._infos
        if self._ended is not None and self._ended[env_id]:
            infos = infos.get("final_info", {})
        return _info_of(infos, self._n, env_id)

    def column(self, key: str) -> Column:
        values, marks = self._infos.get(key), self._infos.get(f"_{key}")
        is_whole = self._ended is None and _has_one_each(values, self._n)
        if is_whole and isinstance(values, np.ndarray) and (marks is None or np.all(marks[self._env_ids])):
            return values[self._env_ids]
        return [self.row(row).get(key) for row in range(len(self._env_ids))]

    def rows(self, keep: NDArray[np.bool_]) -> "VectorInfos":
        return VectorInfos(self._infos, self._n, self._env_ids[keep], self._ended)


def _info_of(infos: dict[str, Any], n: int, env_id: int) -> dict[str, Any]:
    present = {}
    for key, values in infos.items():
        if key.startswith("_") or key in ("final_info", "final_obs"):
            continue
        marks = infos.get(f"_{key}")
        if marks is None or bool(np.asarray(marks)[env_id]):
            if isinstance(values, dict):
                present[key] = _info_of(values, n, env_id)
            else:
                present[key] = values[env_id] if _has_one_each(values, n) else values
    return present


def _has_one_each(values: Any, n: int) -> bool:
    """Return whether an info is an array or a list with a value for each of n environments."""
    if isinstance(values, (list, tuple)):
        return len(values) == n
    return tuple(getattr(values, "shape", ())[:1]) == (n,)


class VectorBackend(HasEnvironments):
    """Drive a gymnasium vector environment of any autoreset mode.

    Args:
        venv: the vector environment.
        observation_space: instead of a single environment's own.
        action_space: instead of a single environment's own.
    """

    def __init__(
        self,
        venv: VectorEnv[Any, Any, Any],
        *,
        observation_space: gym.Space[Any] | None = None,
        action_space: gym.Space[Any] | None = None,
    ) -> None:
        self.venv = venv
        self.n = venv.num_envs
        self.observation_space = venv.single_observation_space if observation_space is None else observation_space
        single_action_space = venv.single_action_space if action_space is None else action_space
        check_spaces(self.observation_space, single_action_space)
        self.action_space = flat_actions(single_action_space)
        self._structure = structure_of(self.action_space)
        self._mode = _autoreset_mode(venv)
        if getattr(venv, "closed", False):
            raise ConfigError(f"make_envs: {type(venv).__name__} is closed already: make another vector environment")
        self.takes_options = self._mode is AutoresetMode.DISABLED
        self.seeds_episodes = False  # of one seed, all at once
        self._reader = RowReader(self.observation_space)
        self._over = np.zeros(self.n, np.bool_)  # [N], where an episode ended in the last step
        self._to_begin: Ids = np.arange(0)  # whose next step begins an episode (NEXT_STEP)
        self._last_obs: Obs = None  # after autoreset, [N, ...]
        self._last_infos: dict[str, Any] = {}
        self._all_ids = np.arange(self.n)
        self._unused_action: NDArray[Any] = zeros_of(self.action_space, self.n)  # of environments not stepped
        self._process = OwnerProcess()
        self._claimed = [venv, *getattr(venv.unwrapped, "envs", ())]  # and what a SyncVectorEnv steps one by one
        self._finals = _FinalObservations(type(venv.unwrapped).__name__)
        try:
            for env_id, env in enumerate(self._claimed, -1):
                claim_environment(env, self, None if env_id < 0 else env_id)
        except ConfigError:
            self.detach()
            raise
        if isinstance(venv.unwrapped, SyncVectorEnv):
            own = venv.unwrapped.envs
            own[:] = [_Inner(env, env_id, self._reader) for env_id, env in enumerate(own)]
        self._pipes: list[_Pipe] = []
        if isinstance(venv.unwrapped, AsyncVectorEnv):
            pipes: list[Any] = venv.unwrapped.parent_pipes
            pipes[:] = self._pipes = [_Pipe(pipe, env_id, self._reader) for env_id, pipe in enumerate(pipes)]

    @property
    def in_flight(self) -> Ids:
        return self._all_ids[:0]

    def reset(self, seeds: Seeds, options: EachOptions) -> Begun:
        self._over, self._to_begin = np.zeros(self.n, np.bool_), self._all_ids[:0]
        seed = seeds[0] % (2**31 - self.n)  # ale-py's counts up and takes no larger one
        return self._reset(self._all_ids, seed=seed, options=None if options[0] is None else dict(options[0]))

    def step(self, action: NDArray[Any], env_ids: Ids, work: Work) -> RawStep:
        if self._mode is AutoresetMode.DISABLED and any_true(self._over):
            self._reset_rows(np.flatnonzero(self._over))  # no environment must step past an end
        if len(env_ids) < self.n:
            actions = self._unused_action.copy()
            actions[env_ids] = action
        else:
            actions = action
        if self._structure is not None:
            actions = self._structure.unpack(actions)
        halves = None if work is None else _halves_of(self.venv)
        if work is not None and halves is not None:
            send, receive = halves
            self._call(send, actions)
            work()
            result = self._call(receive)
        else:
            if work is not None:
                work()
            result = self._call(self.venv.step, actions)
        try:
            return self._read_step(result, env_ids)
        except MISREAD as error:
            raise Failure(None, str(error), BadEnvDataError) from None

    def begin(self, env_ids: Ids, seeds: Seeds, options: EachOptions) -> Begun | None:
        if self._mode is AutoresetMode.NEXT_STEP:
            self._to_begin = np.union1d(self._to_begin, env_ids) if len(self._to_begin) else env_ids
            return None
        if self._mode is AutoresetMode.SAME_STEP:
            rows = self._reader.rows(self._last_obs, self.n, env_ids)
            return Begun(env_ids, rows, VectorInfos(self._last_infos, self.n, env_ids))
        return self._reset_rows(env_ids, options[0])

    def rebuild(self, env_id: int) -> None:
        raise NotImplementedError("make_envs does not restart environments that it did not make")

    def call(self, name: str, args: tuple[Any, ...], env_ids: Ids) -> list[Any]:
        if len(env_ids) < self.n:
            kind = type(self.venv).__name__
            raise ConfigError(f"Envs.call: {kind} supports {name} only for all environments at once: leave env_ids out")
        if name == "render_mode":
            return [self.venv.render_mode] * self.n
        if name == "render":
            frames = self._call(self.venv.render)
            return [None] * self.n if frames is None else list(frames)
        if not hasattr(self.venv, "call"):
            raise ConfigError(
                f"Envs.call: {type(self.venv).__name__} has no single environments that could be called: {name}"
            )
        return list(self._call(self.venv.call, name, *args))

    def fingerprints(self) -> list[Fingerprint]:
        return []  # it seeds itself, so its episodes are never replayed

    def close(self) -> None:
        self.detach()
        if self._process.is_current:  # a fork shares the parent's processes and pipes, and leaves them alone
            self.venv.close()

    def detach(self) -> None:
        free_environments(self._claimed, self)
        if isinstance(self.venv.unwrapped, SyncVectorEnv):
            envs = self.venv.unwrapped.envs
            envs[:] = [env.env if isinstance(env, _Inner) else env for env in envs]
        if isinstance(self.venv.unwrapped, AsyncVectorEnv):
            pipes = self.venv.unwrapped.parent_pipes
            pipes[:] = [pipe.pipe if isinstance(pipe, _Pipe) else pipe for pipe in pipes]

    def _read_step(self, result: Any, env_ids: Ids) -> RawStep:
        reader, n = self._reader, self.n
        obs, reward, terminated, truncated, infos = reader.unpack_step(result)
        reward = reader.rewards(reward, n)
        terminated, truncated = reader.flags("terminated", terminated, n), reader.flags("truncated", truncated, n)
        next_obs = reader.rows(obs, n, env_ids)
        row_infos = VectorInfos(infos, n, env_ids)
        begun: Begun | None = None
        if len(self._to_begin):
            ids = self._to_begin
            begun = Begun(ids, reader.rows(obs, n, ids), VectorInfos(infos, n, ids))
            self._to_begin = ids[:0]
        self._over = ended = terminated | truncated
        if self._mode is AutoresetMode.SAME_STEP and any_true(ended):
            self._last_obs, self._last_infos = obs, infos
            self._put_final_obs(next_obs, obs, infos, env_ids)
            row_infos = VectorInfos(infos, n, env_ids, ended=ended)
        self._finals.follow(next_obs, is_all=len(env_ids) == n)
        if len(env_ids) < n:
            reward, terminated, truncated = reward[env_ids], terminated[env_ids], truncated[env_ids]
            ended = ended[env_ids]
        return RawStep(env_ids, next_obs, reward, terminated, truncated, ended, row_infos, begun)

    def _reset_rows(self, env_ids: Ids, options: Options = None) -> Begun:
        """Reset some environments, which continue their own random streams."""
        mask = np.zeros(self.n, np.bool_)
        mask[env_ids] = True
        self._over[mask] = False
        return self._reset(env_ids, options={**(options or {}), "reset_mask": mask})

    def _reset(self, env_ids: Ids, **arguments: Any) -> Begun:
        result = self._call(self.venv.reset, **arguments)
        try:
            obs, infos = self._reader.unpack_reset(result)
            return Begun(env_ids, self._reader.rows(obs, self.n, env_ids), VectorInfos(infos, self.n, env_ids))
        except MISREAD as error:
            raise Failure(None, str(error), BadEnvDataError) from None

    def _call(self, method: Callable[..., Any], *args: Any, **arguments: Any) -> Any:
        self._process.check()
        try:
            result = method(*args, **arguments)
        except Failure:
            raise
        except Exception as error:
            raise Failure(None, what_raised(method.__name__, error)) from error
        for pipe in self._pipes:
            pipe.check()
        return result

    def _put_final_obs(self, next_obs: Obs, obs: Obs, infos: dict[str, Any], env_ids: Ids) -> None:
        """Overwrite the first observations of new episodes with the true last ones, in `infos` in SAME_STEP mode."""
        if "final_obs" not in infos:
            raise ValueError("ended an episode in SAME_STEP mode without infos['final_obs']")
        final = infos["final_obs"]
        for row in np.flatnonzero(self._over[env_ids]).tolist():
            one = tree.map_tree(operator.itemgetter(env_ids[row]), final)
            first = _row_of(next_obs, row)
            self._reader.write(next_obs, row, one)
            self._finals.check(int(env_ids[row]), first, _row_of(next_obs, row), one, obs)


class _Inner(gym.Wrapper[Any, Any, Any, Any]):
    """An environment of a SyncVectorEnv, whose results are read before it joins or overwrites them.

    In SAME_STEP mode it resets an environment before it copies the final observation; rewards that are arrays, and
    infos that contain themselves, it rejects without the environment's index.

    Args:
        env: as given.
        env_id: its index.
        reader: of its results.
    """

    def __init__(self, env: gym.Env[Any, Any], env_id: int, reader: RowReader) -> None:
        super().__init__(env)
        self._env_id, self._reader = env_id, reader

    def step(self, action: Any) -> Any:
        """Step the environment; its final observation is a copy, its reward a float."""
        result = self.env.step(action)
        try:
            obs, gain, terminated, truncated, info = self._reader.unpack_step(result)
            reward = gain if type(gain) is float else self._reader.reward(gain)
            _check_nesting(info)
        except MISREAD as error:
            raise Failure(self._env_id, str(error), BadEnvDataError) from None
        if terminated or truncated:
            obs = copy.deepcopy(obs)
        return obs, reward, terminated, truncated, info


class _Pipe:
    """The pipe to an environment of an AsyncVectorEnv, whose results are read before it joins them.

    A wrong result is an error when all environments have answered, so that the vector environment can be closed: until
    then another takes its place.

    Args:
        pipe: as given.
        env_id: the environment's index.
        reader: of its results.
    """

    def __init__(self, pipe: Any, env_id: int, reader: RowReader) -> None:
        self.pipe, self._env_id, self._reader = pipe, env_id, reader
        self._is_step = False  # the command that was sent last
        self._failure: Failure | None = None

    @property
    def closed(self) -> bool:
        """Whether the pipe is closed."""
        closed: bool = self.pipe.closed
        return closed

    def fileno(self) -> int:
        """Return the pipe's descriptor."""
        number: int = self.pipe.fileno()
        return number

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Return whether there is a result."""
        is_ready: bool = self.pipe.poll(timeout)
        return is_ready

    def close(self) -> None:
        """Close the pipe."""
        self.pipe.close()

    def send(self, message: Any) -> None:
        """Send a command."""
        self._is_step = message[0] == "step"
        self.pipe.send(message)

    def recv(self) -> Any:
        """Return the result of a command; the reward of a step is a float."""
        result, is_successful = self.pipe.recv()
        if self._is_step and is_successful:
            obs, reward, terminated, truncated, info = result
            try:
                reward = reward if type(reward) is float else self._reader.reward(reward)
                _check_nesting(info)
            except MISREAD as error:
                self._failure = Failure(self._env_id, str(error), BadEnvDataError)
                reward, info = 0.0, {}
            result = obs, reward, terminated, truncated, info
        return result, is_successful

    def check(self) -> None:
        """Raise the failure of the last result, if it was wrong."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


def _check_nesting(info: dict[str, Any], outer: tuple[dict[str, Any], ...] = ()) -> None:
    """Raise a ValueError for an info that contains itself."""
    for key, value in info.items():
        if isinstance(value, dict):
            if value is info or any(value is one for one in outer):
                raise ValueError(f"returned an info whose {key!r} contains itself: leave it out")
            _check_nesting(value, (*outer, info))


class _FinalObservations:
    """Detects final observations that an environment's reset has overwritten in SAME_STEP mode.

    Args:
        kind: of the vector environment.

    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._n_same: int | None = 0  # episodes with equal observations; None once that was no rule, or reported
        self._before: Obs | None = None  # observations [N, ...] of the step before

    def follow(self, next_obs: Obs, *, is_all: bool) -> None:
        """Keep the observations of a step, if it was one of all environments, until the next step."""
        self._before = next_obs if is_all and self._n_same is not None else None

    def check(self, env_id: int, first: list[Any], final: list[Any], given: Obs, obs: Obs) -> None:
        """Compare a final observation with the first one of the next episode, leaf by leaf.

        Raises:
            ValueError: the final observation is a view of the vector environment's observations.
        """
        if any(map(_is_view, tree.leaves(given), tree.leaves(obs))):
            raise ValueError(
                "returned infos['final_obs'] that shares memory with the observations, which the reset has "
                "overwritten: copy it before the reset"
            )
        if self._n_same is None or self._before is None:
            return
        before = _row_of(self._before, env_id)
        if not all(map(np.array_equal, first, final)):
            self._n_same = None
        elif not all(map(np.array_equal, before, final)):  # else nothing is to be seen: it may never change
            self._n_same += 1
        if self._n_same == _SUSPICIOUS:
            self._n_same = None
            _log.warning(
                "%s in SAME_STEP mode: the final observations of the first %d episodes are the first ones of the next. "
                "An environment that writes into observations it returned before has overwritten them, and training "
                "would learn from wrong ones: copy observations in its step and reset, or let make_envs make the "
                "environments, or use AutoresetMode.NEXT_STEP. Ignore this if its episodes end where they start",
                *(self._kind, _SUSPICIOUS),
            )


def _row_of(rows: Obs, row: int) -> list[NDArray[Any]]:
    """Copy one row of observations, leaf by leaf."""
    return [leaf[row].copy() for leaf in tree.leaves(rows)]


def _is_view(one: Any, rows: Any) -> bool:
    return isinstance(one, np.ndarray) and isinstance(rows, np.ndarray) and bool(np.may_share_memory(one, rows))


def _halves_of(venv: VectorEnv[Any, Any, Any]) -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """Return the methods that send actions and receive results, None if `step` may do more than both."""
    known: list[tuple[Any, str, str]] = [(AsyncVectorEnv, "step_async", "step_wait")]
    ale = sys.modules.get("ale_py.vector_env")
    if ale is not None:
        known.append((ale.AtariVectorEnv, "send", "recv"))
    for kind, send, receive in known:
        names = "step", send, receive
        if all(getattr(type(venv), name, None) is getattr(kind, name) and name not in vars(venv) for name in names):
            return getattr(venv, send), getattr(venv, receive)
    return None


def _autoreset_mode(venv: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    mode = venv.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError:
        raise ConfigError(
            f"make_envs: {type(venv).__name__}.metadata['autoreset_mode'] must be a gymnasium AutoresetMode, "
            f"got {mode!r}: set it to what the environment does (gymnasium >= 1.1)"
        ) from None
