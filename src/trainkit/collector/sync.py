"""Driving environments one by one in this process."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from trainkit.collector.backends import MISREAD, Begun, Failure, Ids, Options, RawStep, Seeds, call_or_read
from trainkit.collector.reading import ListInfos, RowReader
from trainkit.errors import ConfigError
from trainkit.spaces import check_spaces


class SyncBackend:
    """Step environments one by one, in this process, each reset explicitly and seeded for each episode."""

    takes_options = True
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

    def reset(self, seeds: Seeds, options: Options) -> Begun:
        return self._reset(np.arange(self.n), seeds, options)

    def begin(self, env_ids: Ids, seeds: Seeds, options: Options) -> Begun:
        return self._reset(env_ids, seeds, options)

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
            except MISREAD as error:
                raise Failure(env_id, str(error)) from None
            infos.append(info)
        return RawStep(next_obs, reward, terminated, truncated, ListInfos(infos), None)

    def call(self, name: str, args: tuple[Any, ...], env_ids: Ids) -> list[Any]:
        answers: list[Any] = []
        for env_id in env_ids.tolist():
            try:
                answers.append(call_or_read(self.envs[env_id], name, args))
            except Exception as error:
                raise Failure(env_id, f"raised {type(error).__name__} in {name}: {error}") from error
        return answers

    def close(self) -> None:
        for env in self.envs:
            env.close()

    def _reset(self, env_ids: Ids, seeds: Seeds, options: Options) -> Begun:
        obs = self._reader.empty(len(env_ids))
        infos: list[dict[str, Any]] = []
        for row, (env_id, seed) in enumerate(zip(env_ids.tolist(), seeds, strict=True)):
            try:
                result = self.envs[env_id].reset(seed=seed, options=None if options is None else dict(options))
            except Exception as error:
                raise Failure(env_id, f"raised {type(error).__name__} in reset: {error}") from error
            try:
                first, info = self._reader.unpack_reset(result)
                self._reader.write(obs, row, first)
            except MISREAD as error:
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
