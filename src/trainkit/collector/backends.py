"""The two ways to drive N environments: one by one in this process, or through a gymnasium vector environment.

A backend answers in *rows that are real steps*, whatever autoreset the environments below have:

    reset(seeds)         begin an episode everywhere
    step(action, ids)    step these environments; the answer's `next_obs` are true successors
    begin(ids, seeds)    begin the next episode where one ended; None where the environment does so by itself
                         at its next step (autoreset NEXT_STEP), which then reports it in `RawStep.begun`
"""

import contextlib
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from trainkit import tree
from trainkit.collector.reading import Infos, ListInfos, RowReader, VectorInfos
from trainkit.data import Obs
from trainkit.errors import ConfigError
from trainkit.spaces import check_spaces, zeros_of

Ids = NDArray[np.intp]
Seeds = Sequence[int]

# What reading raises when an environment returned something else than its spaces say.
_MISREAD = (KeyError, IndexError, TypeError, ValueError, RuntimeError)


class Failure(Exception):  # noqa: N818  # a message to `Envs`, never seen outside
    """An environment failed; `Envs` turns this into an error that says when and at which action."""

    def __init__(self, env_id: int | None, what: str) -> None:
        super().__init__(what)
        self.env_id = env_id
        self.what = what


class Begun(NamedTuple):
    """Episodes that just began."""

    env_ids: Ids  # [K]
    obs: Obs  # [K, ...]
    infos: Infos  # of K rows


class RawStep(NamedTuple):
    """One vector step as the environments told it."""

    next_obs: Obs  # [K, ...]
    reward: NDArray[np.float64]  # [K]
    terminated: NDArray[np.bool_]  # [K]
    truncated: NDArray[np.bool_]  # [K]
    infos: Infos  # of K rows
    begun: Begun | None  # episodes that began within the step


class Backend(Protocol):
    """Drive N environments."""

    n: int
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]

    @property
    def seeds_episodes(self) -> bool:
        """Whether every episode begins by its own seed, so that it can be played again."""
        ...

    def reset(self, seeds: Seeds, options: dict[str, Any] | None) -> Begun: ...

    def step(self, action: NDArray[Any], env_ids: Ids) -> RawStep: ...

    def begin(self, env_ids: Ids, seeds: Seeds) -> Begun | None: ...

    def close(self) -> None: ...


class SyncBackend:
    """Step environments one by one, in this process, each reset explicitly and seeded for each episode."""

    seeds_episodes = True

    def __init__(self, factories: Sequence[Callable[[], gym.Env[Any, Any]]]) -> None:
        self.envs: list[gym.Env[Any, Any]] = []
        with contextlib.ExitStack() as made:
            made.callback(self.close)  # those made before one was refused
            for factory in factories:
                self._append(factory())
            self.n = len(self.envs)
            self.observation_space = self.envs[0].observation_space
            self.action_space = self.envs[0].action_space
            check_spaces(self.observation_space, self.action_space)
            self._reader = RowReader(self.observation_space)
            made.pop_all()

    def reset(self, seeds: Seeds, options: dict[str, Any] | None) -> Begun:
        return self._reset(np.arange(self.n), seeds, options)

    def begin(self, env_ids: Ids, seeds: Seeds) -> Begun:
        return self._reset(env_ids, seeds, None)

    def step(self, action: NDArray[Any], env_ids: Ids) -> RawStep:
        n_rows = len(env_ids)
        reader = self._reader
        next_obs = reader.empty(n_rows)
        reward = np.empty(n_rows, np.float64)
        terminated, truncated = np.empty((2, n_rows), np.bool_)
        infos: list[dict[str, Any]] = []
        for row, env_id in enumerate(env_ids.tolist()):
            try:
                result = self.envs[env_id].step(action[row])
            except Exception as error:
                raise Failure(env_id, f"raised {type(error).__name__} in step: {error}") from error
            try:
                obs, gain, is_terminated, is_truncated, info = reader.unpack_step(result)
                reader.write(next_obs, row, obs)
                reward[row] = gain if type(gain) is float else reader.reward(gain)
                terminated[row] = (
                    is_terminated if type(is_terminated) is bool else reader.flag("terminated", is_terminated)
                )
                truncated[row] = is_truncated if type(is_truncated) is bool else reader.flag("truncated", is_truncated)
            except _MISREAD as error:
                raise Failure(env_id, str(error)) from None
            infos.append(info)
        return RawStep(next_obs, reward, terminated, truncated, ListInfos(infos), None)

    def close(self) -> None:
        for env in self.envs:
            env.close()

    def _reset(self, env_ids: Ids, seeds: Seeds, options: dict[str, Any] | None) -> Begun:
        obs = self._reader.empty(len(env_ids))
        infos: list[dict[str, Any]] = []
        for row, (env_id, seed) in enumerate(zip(env_ids.tolist(), seeds, strict=True)):
            try:
                result = self.envs[env_id].reset(seed=seed, options=options)
            except Exception as error:
                raise Failure(env_id, f"raised {type(error).__name__} in reset: {error}") from error
            try:
                first, info = self._reader.unpack_reset(result)
                self._reader.write(obs, row, first)
            except _MISREAD as error:
                raise Failure(env_id, str(error)) from None
            infos.append(info)
        return Begun(env_ids, obs, ListInfos(infos))

    def _append(self, env: gym.Env[Any, Any]) -> None:
        env_id = len(self.envs)
        if any(env is other for other in self.envs):
            raise ConfigError(
                f"make_envs: factory {env_id} returned an environment a second time: make a new one at each call"
            )
        self.envs.append(env)
        here, first = ((one.observation_space, one.action_space) for one in (env, self.envs[0]))
        if here != first:
            raise ConfigError(f"make_envs: env {env_id} has spaces {here}, env 0 has {first}: they must be equal")


class VectorBackend:
    """Drive a gymnasium vector environment of any autoreset mode."""

    def __init__(self, venv: VectorEnv[Any, Any, Any], *, owned: bool) -> None:
        self.venv = venv
        self.n = venv.num_envs
        self.observation_space = venv.single_observation_space
        self.action_space = venv.single_action_space
        check_spaces(self.observation_space, self.action_space)
        self._mode = _autoreset_mode(venv)
        self._owned = self.seeds_episodes = owned  # an environment of our own making is seeded row by row
        self._reader = RowReader(self.observation_space)
        self._over = np.zeros(self.n, np.bool_)  # [N], where an episode ended in the last step
        self._begins = np.zeros(self.n, np.bool_)  # [N], asked to begin at the next step (NEXT_STEP)
        self._last_obs: Obs = None  # after autoreset, [N, ...]
        self._last_infos: dict[str, Any] = {}
        self._all_ids = np.arange(self.n)
        self._idle_action: NDArray[Any] = zeros_of(self.action_space, self.n)  # their action does not matter

    def reset(self, seeds: Seeds, options: dict[str, Any] | None) -> Begun:
        self._over, self._begins = np.zeros((2, self.n), np.bool_)
        seed = list(seeds) if self._owned else seeds[0] % (2**31 - self.n)  # ale-py's counts up and takes no larger one
        return self._reset(self._all_ids, seed=seed, options=options)

    def step(self, action: NDArray[Any], env_ids: Ids) -> RawStep:
        if self._mode is AutoresetMode.DISABLED and np.count_nonzero(self._over):
            self._reset_rows(np.flatnonzero(self._over))  # idle environments must not step past an end
        if len(env_ids) < self.n:
            actions = self._idle_action.copy()
            actions[env_ids] = action
        else:
            actions = action
        result = self._call(self.venv.step, actions)
        try:
            return self._read_step(result, env_ids)
        except _MISREAD as error:
            raise Failure(None, str(error)) from None

    def begin(self, env_ids: Ids, seeds: Seeds) -> Begun | None:
        if self._mode is AutoresetMode.NEXT_STEP:
            self._begins[env_ids] = True
            return None
        if self._mode is AutoresetMode.SAME_STEP:
            rows = self._reader.rows(self._last_obs, self.n, env_ids)
            return Begun(env_ids, rows, VectorInfos(self._last_infos, env_ids))
        return self._reset_rows(env_ids, seeds)

    def close(self) -> None:
        self.venv.close()

    def _read_step(self, result: Any, env_ids: Ids) -> RawStep:
        reader, n = self._reader, self.n
        obs, reward, terminated, truncated, infos = reader.unpack_step(result)
        reward = reader.rewards(reward, n)
        terminated, truncated = reader.flags("terminated", terminated, n), reader.flags("truncated", truncated, n)
        next_obs = reader.rows(obs, n, env_ids)
        row_infos = VectorInfos(infos, env_ids)
        begun: Begun | None = None
        if self._mode is AutoresetMode.NEXT_STEP and np.count_nonzero(self._begins):
            ids = np.flatnonzero(self._begins)
            begun = Begun(ids, reader.rows(obs, n, ids), VectorInfos(infos, ids))
            self._begins[:] = False
        self._over = ended = terminated | truncated
        if self._mode is AutoresetMode.SAME_STEP and np.count_nonzero(ended):
            self._last_obs, self._last_infos = obs, infos
            self._put_final_obs(next_obs, infos, env_ids)
            row_infos = VectorInfos(infos, env_ids, ended=ended)
        if len(env_ids) < n:
            reward, terminated, truncated = reward[env_ids], terminated[env_ids], truncated[env_ids]
        return RawStep(next_obs, reward, terminated, truncated, row_infos, begun)

    def _reset_rows(self, env_ids: Ids, seeds: Seeds = ()) -> Begun:
        """Reset some environments, seeded where they are our own."""
        mask = np.zeros(self.n, np.bool_)
        mask[env_ids] = True
        self._over[mask] = False
        row_seeds: list[int | None] | None = None
        if self._owned and seeds:
            row_seeds = [None] * self.n
            for env_id, seed in zip(env_ids.tolist(), seeds, strict=True):
                row_seeds[env_id] = seed
        return self._reset(env_ids, seed=row_seeds, options={"reset_mask": mask})  # a fresh dict: gymnasium empties it

    def _reset(self, env_ids: Ids, **arguments: Any) -> Begun:
        result = self._call(self.venv.reset, **arguments)
        try:
            obs, infos = self._reader.unpack_reset(result)
            return Begun(env_ids, self._reader.rows(obs, self.n, env_ids), VectorInfos(infos, env_ids))
        except _MISREAD as error:
            raise Failure(None, str(error)) from None

    def _call(self, method: Callable[..., Any], *args: Any, **arguments: Any) -> Any:
        try:
            return method(*args, **arguments)
        except Exception as error:
            raise Failure(
                self._failed_worker(), f"raised {type(error).__name__} in {method.__name__}: {error}"
            ) from error

    def _failed_worker(self) -> int | None:
        """Return which of our own processes failed, None where that cannot be known."""
        pipes = getattr(self.venv, "parent_pipes", []) if self._owned else []
        return next((env_id for env_id, pipe in enumerate(pipes) if pipe is None), None)

    def _put_final_obs(self, next_obs: Obs, infos: dict[str, Any], env_ids: Ids) -> None:
        """Put the true last observations, which SAME_STEP environments leave in `infos`, over the reset ones."""
        if "final_obs" not in infos:
            raise ValueError("ended an episode in SAME_STEP mode without infos['final_obs']")
        final = infos["final_obs"]
        for row in np.flatnonzero(self._over[env_ids]).tolist():
            one = tree.map_tree(operator.itemgetter(env_ids[row]), final)
            self._reader.write(next_obs, row, one)


def _autoreset_mode(venv: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    mode = venv.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError:
        raise ConfigError(
            f"make_envs: {type(venv).__name__}.metadata['autoreset_mode'] must be a gymnasium AutoresetMode, "
            f"got {mode!r}: set it to what the environment does (gymnasium >= 1.1)"
        ) from None
