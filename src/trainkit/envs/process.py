"""Running environments in a process each."""

import contextlib
import errno
import multiprocessing
import multiprocessing.connection
import multiprocessing.process
import multiprocessing.util
import pickle
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper
from numpy.typing import NDArray

from trainkit.core.errors import ConfigError, EnvError
from trainkit.core.spaces import Spaces
from trainkit.core.worker_process import (
    PipedProcess,
    blocked_signals,
    can_die_with_parent,
    die_with_parent,
    ignore_signals,
)
from trainkit.core.worker_protocol import answer_all, stop_all
from trainkit.envs.backends import EachOptions, Fingerprint, Ids, Seeds, Take, Work
from trainkit.envs.ownership import OwnerProcess
from trainkit.envs.worker import EnvWorker, Factory, HostedEnvs, taken

_REPLACING_S = 1.0  # for an environment that failed to close itself, while all others wait
_ONLY = [0]  # the index of an environment in its process


class ProcessRunner:
    """Run environments in parallel, each in a process.

    Args:
        factories: one per environment.
        timeout_s: for a step, a reset or a call; a process that does not answer is killed. None: no limit.
        wait_num: a step returns as soon as this many environments have answered; None: when all have.
    """

    def __init__(
        self, factories: Sequence[Factory], timeout_s: float | None = None, wait_num: int | None = None
    ) -> None:
        self._factories, self._timeout_s = factories, timeout_s
        self._wait_num = len(factories) if wait_num is None else wait_num
        self._workers: list[EnvWorker] = []
        self._processes: list[EnvProcess] = []  # of the workers
        self._in_flight: set[int] = set()  # whose steps were sent and not taken
        self._early: dict[int, Any] = {}  # answers to steps in flight that a call had to receive first
        self._process = OwnerProcess()
        # The priority runs it before multiprocessing ends the processes itself, by a SIGTERM that they ignore.
        self._close = multiprocessing.util.Finalize(self, stop_all, (self._processes,), exitpriority=10)
        with contextlib.ExitStack() as unfinished:
            unfinished.callback(self.close)
            for index, factory in enumerate(factories):  # one by one, to be stopped if the next cannot start
                self._processes.append(EnvProcess(index, factory))
            self._workers += [EnvWorker(process, i, 1, timeout_s) for i, process in enumerate(self._processes)]
            self.spaces = [worker.made(worker.first, 1)[0] for worker in self._workers]
            unfinished.pop_all()

    @property
    def in_flight(self) -> list[int]:
        return sorted(self._in_flight)

    def reset(self, indices: Ids, seeds: Seeds, options: EachOptions) -> Take:
        self._process.check_between_steps("reset")
        for index in indices.tolist():
            self._in_flight.discard(index)
            self._early.pop(index, None)
            if not self._workers[index].is_usable:  # it ended, or Ctrl-C interrupted a message
                self.rebuild(index)
        for index, seed, own in zip(indices.tolist(), seeds, options, strict=True):
            self._workers[index].request("reset", _ONLY, [seed], [own])
        return self._take

    def step(self, actions: Sequence[Any] | NDArray[Any], indices: Ids, work: Work) -> tuple[Ids, Take]:
        self._process.check_between_steps("stepped")
        for row, index in enumerate(indices.tolist()):
            self._workers[index].request_step(actions[row : row + 1], _ONLY)
            self._in_flight.add(index)
        self._process.overlap(work)
        if len(self._in_flight) == len(indices) <= self._wait_num:
            self._in_flight.clear()
            return indices, self._take
        answered = self._wait()
        self._in_flight.difference_update(answered)
        return np.array(answered, np.intp), self._take

    def rebuild(self, index: int) -> Spaces:
        self._workers[index].stop(_REPLACING_S)
        self._processes[index] = process = EnvProcess(index, self._factories[index])
        self._workers[index] = worker = EnvWorker(process, index, 1, self._timeout_s)
        return worker.made(index, 1)[0]

    def call(self, name: str, args: tuple[Any, ...], indices: Ids) -> list[Any]:
        self._process.check_between_steps(f"called for {name}")
        for index in self._in_flight.intersection(indices.tolist()) - self._early.keys():
            (self._early[index],) = self._workers[index].answers(1)
        for index in indices.tolist():
            self._workers[index].request("call", name, args, _ONLY, name=name)
        return [self._workers[index].answer(index) for index in indices.tolist()]

    def fingerprints(self) -> list[Fingerprint]:
        are_requested = [worker.request_fingerprints() for worker in self._workers]
        pairs = zip(self._workers, are_requested, strict=True)
        return [worker.fingerprints()[0] if is_requested else {} for worker, is_requested in pairs]

    def close(self) -> None:
        self._close()

    def detach(self) -> None:
        self._close()  # its processes cannot be used by anything else

    def _wait(self) -> list[int]:
        """Wait until `wait_num` environments in flight have answered, or failed; return all that have, ascending."""
        n_needed = min(self._wait_num, len(self._in_flight))
        answered = {index for index in self._in_flight if index in self._early or not self._workers[index].is_usable}
        pipes: dict[Any, int] = {self._processes[index].pipe: index for index in self._in_flight - answered}
        while len(answered) < n_needed:
            limit_s = self._timeout_s
            left = [] if limit_s is None else [self._workers[i].seconds_left(limit_s) for i in pipes.values()]
            ready = multiprocessing.connection.wait(list(pipes), max(0.0, min(left)) if left else None)
            late = [pipe for pipe, seconds in zip(pipes, left, strict=False) if seconds <= 0.0]  # reported when taken
            answered.update(pipes.pop(pipe) for pipe in {*ready, *late})
        return sorted(answered)

    def _take(self, row: int, index: int) -> Any:
        if index in self._early:
            return taken(self._early.pop(index), index)
        return self._workers[index].answer(index)


class EnvProcess(PipedProcess):
    """One process with an environment.

    Args:
        env_id: for messages.
        factory: makes the environment in the process.
    """

    def __init__(self, env_id: int, factory: Factory) -> None:
        if multiprocessing.current_process().daemon:
            raise ConfigError(
                'make_envs.backend "async" cannot start processes in a daemonic process, such as a worker of '
                'multiprocessing.Pool: use backend="sync", or start this process with daemon=False'
            )
        method = start_method()
        context: Any = multiprocessing.get_context(method)
        # A thread's children would be ended with the thread, not with the process; a fork server has but one.
        dies_with_parent = can_die_with_parent() or (method == "forkserver" and sys.platform == "linux")
        self._code: int | None = None
        with contextlib.ExitStack() as unfinished:
            try:
                pipe, theirs = context.Pipe()
                unfinished.callback(pipe.close)
                super().__init__(pipe)
                # No daemon, so that an environment may start processes; `ProcessRunner` ends it before Python waits.
                self._process = context.Process(
                    target=_run,
                    args=(theirs, CloudpickleWrapper(factory), dies_with_parent),
                    daemon=False,
                    name=f"trainkit-env-{env_id}",
                )
                with theirs, blocked_signals():
                    self._process.start()
            except OSError as error:
                advice = 'lower n, or use backend="sync"'
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    advice = f"each needs about three file descriptors: raise the limit (ulimit -n), {advice}"
                raise EnvError(
                    f"make_envs: no process could be started for env {env_id}: {error}; {advice}", env_id=env_id
                ) from error
            except (pickle.PicklingError, TypeError, AttributeError) as error:
                raise ConfigError(
                    f"make_envs: the factory of env {env_id} cannot be sent to a process ({method}): {error}: "
                    'create what it holds inside of it, or use backend="sync"'
                ) from error
            unfinished.pop_all()

    def wait(self, seconds: float | None) -> int | None:
        if self._code is None:
            self._process.join(seconds)
            self._code = self._process.exitcode
            if self._code is not None:
                self._process.close()
        return self._code

    def kill(self) -> None:
        self._process.kill()

    def forget(self) -> None:
        super().forget()
        known: set[object] = getattr(multiprocessing.process, "_children", set())
        known.discard(getattr(self, "_process", None))  # not to be waited for


def start_method() -> str:
    """Return how to start a process: a fork is quick and accepts any factory, but not when a GPU is running."""
    if sys.platform == "linux" and not _accelerator_is_running():
        return "fork"
    return "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def _accelerator_is_running() -> bool:
    """Return whether torch, if it is imported, has started its accelerator, which does not survive a fork."""
    torch = sys.modules.get("torch")
    device = None if torch is None else torch.accelerator.current_accelerator()
    is_initialized = None if device is None else getattr(getattr(torch, device.type), "is_initialized", None)
    return is_initialized is not None and bool(is_initialized())


def _run(pipe: Connection, factory: Factory, dies_with_parent: bool) -> None:
    """In the process of an environment, answer requests until the pipe closes."""
    ignore_signals()
    if dies_with_parent:  # at once, whatever runs here; else at the next request
        die_with_parent()
    host = HostedEnvs([factory])
    with contextlib.suppress(EOFError, OSError):  # the parent is gone, or does not need this process any more
        try:
            answer_all(pipe.recv_bytes, pipe.send_bytes, host)
        finally:
            host.close()
