"""Driving environments in processes of their own, one each."""

import contextlib
import logging
import multiprocessing.util
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from trainkit.core.errors import BusyError, ConfigError, EnvError
from trainkit.core.spaces import Spaces, check_spaces
from trainkit.envs.backends import (
    FORKED,
    Begun,
    Failure,
    Ids,
    Options,
    RawStep,
    Seeds,
    Work,
    check_equal,
    read_begun,
    read_steps,
)
from trainkit.envs.conversion import RowReader
from trainkit.envs.fingerprints import Fingerprint
from trainkit.envs.worker import FINGERPRINT, Worker

_log = logging.getLogger(__name__)

_MAKING_S = 60.0  # to make an environment, at least, where steps have a limit: simulators take their time
_CLOSING_S = 3.0  # for environments to close themselves
_REPLACING_S = 1.0  # for one that failed, while all others wait


class WorkerBackend:
    """Step environments side by side, each reset explicitly and seeded for each episode.

    Args:
        factories: one per environment.
        timeout_s: for a step, a reset or a call; who gives no answer is killed. None waits for ever.
    """

    takes_options = seeds_episodes = True

    def __init__(self, factories: Sequence[Callable[[], gym.Env[Any, Any]]], timeout_s: float | None = None) -> None:
        self.n = len(factories)
        self._factories, self._timeout_s = factories, timeout_s
        self._workers: list[Worker] = []
        self._is_stepping = False  # whether they are, while other work is done here
        self._pid = os.getpid()
        # With a priority it runs before multiprocessing itself ends what is left, with a SIGTERM that they ignore.
        self._close = multiprocessing.util.Finalize(self, _stop_all, (self._workers,), exitpriority=10)
        with contextlib.ExitStack() as made:
            made.callback(self.close)
            for env_id, factory in enumerate(factories):
                self._workers.append(Worker(env_id, factory))  # one by one, to be stopped if the next cannot start
            spaces = [self._spaces_of(env_id) for env_id in range(self.n)]
            self.observation_space, self.action_space = spaces[0].observation_space, spaces[0].action_space
            for env_id, own in enumerate(spaces):
                check_equal(env_id, own, self)
            check_spaces(self.observation_space, self.action_space)
            self._reader = RowReader(self.observation_space)
            made.pop_all()

    def reset(self, seeds: Seeds, options: Options) -> Begun:
        return self.begin(np.arange(self.n), seeds, options)

    def begin(self, env_ids: Ids, seeds: Seeds, options: Options) -> Begun:
        self._check_usable("reset")
        for env_id in env_ids.tolist():
            if not self._workers[env_id].is_usable:  # as was told when it ended, or Ctrl-C struck in mid-message
                self.rebuild(env_id)
        for env_id, seed in zip(env_ids.tolist(), seeds, strict=True):
            self._workers[env_id].ask("reset", (seed, options))
        return read_begun(self._reader, env_ids, self._take)

    def step(self, action: NDArray[Any], env_ids: Ids, work: Work) -> RawStep:
        self._check_usable("stepped")
        for row, env_id in enumerate(env_ids.tolist()):
            self._workers[env_id].ask("step", action[row])
        self._is_stepping = True
        try:
            work()
        finally:
            self._is_stepping = False
        return read_steps(self._reader, env_ids, self._take)

    def rebuild(self, env_id: int) -> None:
        _stop_all([self._workers[env_id]], _REPLACING_S)
        self._workers[env_id] = Worker(env_id, self._factories[env_id])
        check_equal(env_id, self._spaces_of(env_id), self)

    def call(self, name: str, args: tuple[Any, ...], env_ids: Ids) -> list[Any]:
        self._check_usable(f"asked for {name}")
        for env_id in env_ids.tolist():
            self._workers[env_id].ask(name, args)
        return [self._workers[env_id].answer(self._timeout_s) for env_id in env_ids.tolist()]

    def fingerprints(self) -> list[Fingerprint]:
        asked = [worker for worker in self._workers if worker.is_idle]  # one interrupted in a step may never answer
        for worker in asked:
            worker.ask(FINGERPRINT)
        return [self._fingerprint_of(worker) if worker in asked else {} for worker in self._workers]

    def close(self) -> None:
        self._close()

    def detach(self) -> None:
        self._close()  # its processes are its own: nobody else could use them

    def _check_usable(self, what: str) -> None:
        """Raise a BusyError in a fork of the process that started them, and in the middle of a step."""
        if os.getpid() != self._pid:
            raise BusyError(FORKED)
        if self._is_stepping:
            raise BusyError(
                f"environments cannot be {what} in the middle of a step, where `Collector.meanwhile` is called, and "
                "with overlap=True on_train_batch and on_update_end: wait until it is whole, as in on_collect_end"
            )

    def _take(self, row: int, env_id: int) -> Any:
        return self._workers[env_id].answer(self._timeout_s)

    def _fingerprint_of(self, worker: Worker) -> Fingerprint:
        """Return a worker's answer; an empty one where its process died: the next step raises, a save does not."""
        try:
            answer: Fingerprint = worker.answer(self._timeout_s)
        except Failure as failure:
            _log.warning("env %d %s", failure.env_id, failure.what)
            return {}
        return answer

    def _spaces_of(self, env_id: int) -> Spaces:
        """Wait for an environment to be made, and return its spaces."""
        try:
            made = self._workers[env_id].answer(None if self._timeout_s is None else max(self._timeout_s, _MAKING_S))
        except Failure as failure:
            error = failure.__cause__
            if isinstance(error, (ConfigError, EnvError)):  # which says already who, and when
                raise error from error.__cause__
            raise EnvError(f"make_envs: env {env_id} {failure.what}", env_id=env_id) from error
        return Spaces(observation_space=made[0], action_space=made[1])


def _stop_all(workers: Sequence[Worker], seconds: float = _CLOSING_S) -> None:
    """Let environments close themselves, and kill those that have not after so long."""
    deadline = time.monotonic() + seconds
    for worker in workers:
        worker.ask_to_close()
    for worker in workers:
        worker.stop(deadline)
