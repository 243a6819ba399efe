"""Driving single environments one by one in this process."""

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from trainkit.core.spaces import check_spaces
from trainkit.envs.backends import (
    RAISED,
    Begun,
    Failure,
    Fingerprint,
    Ids,
    Options,
    RawStep,
    Seeds,
    Work,
    call_or_read,
    check_equal,
)
from trainkit.envs.ownership import claim_environment, free_environments
from trainkit.envs.recovery import fingerprint
from trainkit.envs.validation import RowReader

_log = logging.getLogger(__name__)


class SyncBackend:
    """Step environments one by one, in this process, each reset explicitly and seeded for each episode."""

    takes_options = seeds_episodes = True

    def __init__(self, factories: Sequence[Callable[[], gym.Env[Any, Any]]]) -> None:
        self.envs: list[gym.Env[Any, Any]] = []
        self._factories = factories
        with contextlib.ExitStack() as made:
            made.callback(self.close)  # those made before one was rejected
            for env_id, factory in enumerate(factories):
                env = factory()
                claim_environment(env, self, env_id)
                self.envs.append(env)
                check_equal(env_id, env, self.envs[0])
            self.n = len(self.envs)
            self.observation_space = self.envs[0].observation_space
            self.action_space = self.envs[0].action_space
            check_spaces(self.observation_space, self.action_space)
            self._reader = RowReader(self.observation_space)
            made.pop_all()

    def reset(self, seeds: Seeds, options: Options) -> Begun:
        return self.begin(np.arange(self.n), seeds, options)

    def begin(self, env_ids: Ids, seeds: Seeds, options: Options) -> Begun:
        def take(row: int, env_id: int) -> Any:
            try:
                return self.envs[env_id].reset(seed=seeds[row], options=None if options is None else dict(options))
            except RAISED as error:
                raise _raised("reset", env_id, error) from error

        return self._reader.read_resets(env_ids, take)

    def step(self, action: NDArray[Any], env_ids: Ids, work: Work) -> RawStep:
        if work is not None:
            work()

        def take(row: int, env_id: int) -> Any:
            try:
                return self.envs[env_id].step(action[row])
            except RAISED as error:
                raise _raised("step", env_id, error) from error

        return self._reader.read_steps(env_ids, take)

    def rebuild(self, env_id: int) -> None:
        try:
            self.envs[env_id].close()
        except RAISED as error:
            _log.warning("env %d raised %s in close: %s", env_id, type(error).__name__, error)
        free_environments([self.envs[env_id]], self)
        env = self._factories[env_id]()
        check_equal(env_id, env, self)
        claim_environment(env, self, env_id)
        self.envs[env_id] = env

    def call(self, name: str, args: tuple[Any, ...], env_ids: Ids) -> list[Any]:
        results: list[Any] = []
        for env_id in env_ids.tolist():
            try:
                results.append(call_or_read(self.envs[env_id], name, args))
            except RAISED as error:
                raise _raised(name, env_id, error) from error
        return results

    def fingerprints(self) -> list[Fingerprint]:
        return [fingerprint(env) for env in self.envs]

    def close(self) -> None:
        self.detach()
        for env in self.envs:
            env.close()

    def detach(self) -> None:
        free_environments(self.envs, self)


def _raised(method: str, env_id: int, error: BaseException) -> Failure:
    return Failure(env_id, f"raised {type(error).__name__} in {method}: {error}")
