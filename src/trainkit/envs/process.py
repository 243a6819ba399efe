"""Running environments in a process each."""

import contextlib
import errno
import logging
import math
import multiprocessing
import multiprocessing.connection
import multiprocessing.process
import multiprocessing.util
import os
import pickle
import signal
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper
from numpy.typing import NDArray

from trainkit.core.errors import ConfigError, EnvError
from trainkit.core.spaces import Spaces
from trainkit.core.worker_process import blocked_signals, can_die_with_parent, die_with_parent, ignore_signals
from trainkit.envs.backends import (
    RAISED,
    Failure,
    Fingerprint,
    Ids,
    Options,
    Seeds,
    Take,
    Work,
    call_or_read,
    packed_request,
    what_raised,
)
from trainkit.envs.ownership import OwnerProcess
from trainkit.envs.recovery import fingerprint

_log = logging.getLogger(__name__)

Factory = Callable[[], gym.Env[Any, Any]]

_MIN_MAKING_S = 60.0  # to make an environment, where steps have a time limit: simulators start slowly
_CLOSING_S = 3.0  # for environments to close themselves
_REPLACING_S = 1.0  # for one that failed, while all others wait

_FINGERPRINT = "the fingerprint of its attributes"  # a request; no attribute has such a name


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
        self._workers: list[Worker] = []
        self._in_flight: set[int] = set()  # whose steps were sent and not taken
        self._early: dict[int, Any] = {}  # answers to steps in flight, or failures, that a call had to receive first
        self._process = OwnerProcess()
        # The priority runs it before multiprocessing ends the processes itself, by a SIGTERM that they ignore.
        self._close = multiprocessing.util.Finalize(self, _stop_all, (self._workers,), exitpriority=10)
        with contextlib.ExitStack() as unfinished:
            unfinished.callback(self.close)
            for index, factory in enumerate(factories):
                self._workers.append(Worker(index, factory))  # one by one, to be stopped if the next cannot start
            self.spaces = [self._spaces_of(index) for index in range(len(factories))]
            unfinished.pop_all()

    @property
    def in_flight(self) -> list[int]:
        return sorted(self._in_flight)

    def reset(self, indices: Ids, seeds: Seeds, options: Options) -> Take:
        self._process.check_between_steps("reset")
        for index in indices.tolist():
            self._in_flight.discard(index)
            self._early.pop(index, None)
            if not self._workers[index].is_usable:  # it ended, or Ctrl-C interrupted a message
                self.rebuild(index)
        for index, seed in zip(indices.tolist(), seeds, strict=True):
            self._workers[index].send("reset", (seed, options))
        return self._receive

    def step(self, actions: Sequence[Any] | NDArray[Any], indices: Ids, work: Work) -> tuple[Ids, Take]:
        self._process.check_between_steps("stepped")
        for row, index in enumerate(indices.tolist()):
            self._workers[index].send("step", actions[row])
            self._in_flight.add(index)
        self._process.overlap(work)
        if len(self._in_flight) == len(indices) <= self._wait_num:
            self._in_flight.clear()
            return indices, self._take_step
        answered = self._wait()
        self._in_flight.difference_update(answered)
        return np.array(answered, np.intp), self._take_step

    def rebuild(self, index: int) -> Spaces:
        _stop_all([self._workers[index]], _REPLACING_S)
        self._workers[index] = Worker(index, self._factories[index])
        return self._spaces_of(index)

    def call(self, name: str, args: tuple[Any, ...], indices: Ids) -> list[Any]:
        self._process.check_between_steps(f"called for {name}")
        for index in self._in_flight.intersection(indices.tolist()) - self._early.keys():
            try:
                self._early[index] = self._receive(0, index)
            except Failure as failure:
                self._early[index] = failure
        for index in indices.tolist():
            self._workers[index].send(name, args)
        return [self._workers[index].receive(self._timeout_s) for index in indices.tolist()]

    def fingerprints(self) -> list[Fingerprint]:
        # One that was interrupted in a step may never answer.
        waiting = [worker for worker in self._workers if worker.awaits_request]
        for worker in waiting:
            worker.send(_FINGERPRINT)
        return [self._fingerprint_of(worker) if worker in waiting else {} for worker in self._workers]

    def close(self) -> None:
        self._close()

    def detach(self) -> None:
        self._close()  # its processes cannot be used by anything else

    def _wait(self) -> list[int]:
        """Wait until `wait_num` environments in flight have answered, or failed; return all that have, ascending."""
        n_needed = min(self._wait_num, len(self._in_flight))
        answered = {index for index in self._in_flight if index in self._early or not self._workers[index].is_usable}
        pipes = {self._workers[index].pipe: index for index in self._in_flight - answered}
        while len(answered) < n_needed:
            left = [self._workers[index].seconds_left(self._timeout_s) for index in pipes.values()]
            ready = multiprocessing.connection.wait(
                list(pipes), None if self._timeout_s is None else max(0.0, min(left))
            )
            late = [pipe for pipe, seconds in zip(pipes, left, strict=True) if seconds <= 0.0]  # `receive` raises
            answered.update(pipes.pop(pipe) for pipe in {*ready, *late})
        return sorted(answered)

    def _take_step(self, row: int, index: int) -> Any:
        if index not in self._early:
            return self._receive(row, index)
        answer = self._early.pop(index)
        if isinstance(answer, Failure):
            raise answer
        return answer

    def _receive(self, row: int, index: int) -> Any:
        return self._workers[index].receive(self._timeout_s)

    def _fingerprint_of(self, worker: "Worker") -> Fingerprint:
        """Return a worker's answer, or an empty one if its process died, so that a save does not raise."""
        try:
            answer: Fingerprint = worker.receive(self._timeout_s)
        except Failure as failure:
            _log.warning("env %d %s", failure.env_id, failure.what)
            return {}
        return answer

    def _spaces_of(self, index: int) -> Spaces:
        """Wait for an environment to be made, and return its spaces."""
        timeout_s = None if self._timeout_s is None else max(self._timeout_s, _MIN_MAKING_S)
        try:
            observation_space, action_space = self._workers[index].receive(timeout_s)
        except Failure as failure:
            error = failure.__cause__
            if isinstance(error, (ConfigError, EnvError)):  # its text has the environment and the occasion already
                raise error from error.__cause__
            raise EnvError(f"make_envs: env {index} {failure.what}", env_id=index) from error
        return Spaces(observation_space=observation_space, action_space=action_space)


class Worker:
    """One process with an environment, and the pipe to it.

    Each request has a number that its answer repeats: a late answer is never taken for that of a later request.

    Args:
        env_id: for messages.
        factory: makes the environment in the process.

    Attributes:
        pipe: readable when it has answered, or has died.
    """

    def __init__(self, env_id: int, factory: Factory) -> None:
        self._env_id = env_id
        self._number = 0  # of the last request; making the environment is the first
        self._occasion, self._sent_at = "while it was made", time.monotonic()
        self._is_whole = True  # whether no message was left half written or half read
        self._has_answered = False  # the last request
        if multiprocessing.current_process().daemon:
            raise ConfigError(
                'make_envs.backend "async" cannot start processes in a daemonic process, such as a worker of '
                'multiprocessing.Pool: use backend="sync", or start this process with daemon=False'
            )
        method = start_method()
        context: Any = multiprocessing.get_context(method)
        # A thread's children would be ended with the thread, not with the process; a fork server has but one.
        dies_with_parent = can_die_with_parent() or (method == "forkserver" and sys.platform == "linux")
        with contextlib.ExitStack() as unfinished:
            try:
                self.pipe, theirs = context.Pipe()
                unfinished.callback(self.pipe.close)
                _WORKERS.add(self)
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

    @property
    def is_usable(self) -> bool:
        """Whether its process is running and can answer requests."""
        return self._is_whole and not self.pipe.closed

    def seconds_left(self, timeout_s: float | None) -> float:
        """Return the time left for the answer to the last request."""
        return math.inf if timeout_s is None else self._sent_at + timeout_s - time.monotonic()

    @property
    def awaits_request(self) -> bool:
        """Whether its process waits for a request."""
        return self.is_usable and self._has_answered

    def send(self, request: str, argument: Any = None) -> None:
        """Send a request: "reset", "step", "close", or the name of a method or attribute."""
        message = packed_request(request, (self._number + 1, request, argument))
        self._number += 1
        self._has_answered = False
        self._occasion, self._sent_at = f"in {request}", time.monotonic()
        if self.is_usable:
            self._is_whole = False
            with contextlib.suppress(OSError):  # it is dead, and `receive` reports how it ended
                self.pipe.send_bytes(message)
            self._is_whole = True

    def receive(self, timeout_s: float | None = None) -> Any:
        """Wait for the answer to the last request, until `timeout_s` after it was sent.

        Raises:
            Failure: the environment raised, or the process died, or did not answer in time and was killed.
        """
        while True:
            if not self.is_usable:
                raise Failure(self._env_id, f"has no process any more {self._occasion}")
            if timeout_s is not None and not self.pipe.poll(max(0.0, self.seconds_left(timeout_s))):
                self.kill()
                raise Failure(self._env_id, f"gave no answer within {timeout_s:g} s {self._occasion}, and was killed")
            self._is_whole = False
            try:
                message = self.pipe.recv_bytes()
            except (EOFError, OSError):
                raise Failure(self._env_id, f"died {self._occasion}: its process {self._end()}") from None
            self._is_whole = True
            try:
                number, is_result, content = pickle.loads(message)  # noqa: S301  # from a process of our own
            except Exception as error:
                what = f"returned what cannot be read outside its process {self._occasion}: {error}"
                raise Failure(self._env_id, what) from error
            if number == self._number:
                self._has_answered = True
                return content if is_result else self._raise_remote(*content)

    def _raise_remote(self, what: str, error: BaseException, cause: BaseException | None, trace: str) -> NoReturn:
        """Raise what the environment raised, with its own traceback as a note."""
        error.__cause__ = cause
        error.add_note(f"in the process of env {self._env_id}:\n{trace}")
        raise Failure(self._env_id, what) from error

    def request_close(self) -> None:
        """Let the environment close itself and the process end, without waiting for it."""
        if self.is_usable:
            self.send("close")
        else:
            self.kill()  # it waits for the rest of a message

    def stop(self, deadline: float) -> None:
        """Wait for the process to end until a time by `time.monotonic`, then kill it."""
        if not self.pipe.closed:
            self._process.join(max(0.0, deadline - time.monotonic()))
            self.kill()

    def kill(self) -> None:
        """End the process now; a second call has no effect."""
        if not self.pipe.closed:
            self._process.kill()
            self._end()

    def _end(self) -> str:
        """Release the process's resources, and describe how it ended."""
        self._process.join(1.0)
        code = self._process.exitcode
        self.pipe.close()
        if code is None:  # it closed its pipe, but does not end
            self._process.kill()
            self._process.join()
        self._process.close()
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"exited with code {code}"


_WORKERS: "weakref.WeakSet[Worker]" = weakref.WeakSet()  # all of this process


def _stop_all(workers: Sequence[Worker], seconds: float = _CLOSING_S) -> None:
    """Ask environments to close, and kill the processes that have not ended after these seconds."""
    deadline = time.monotonic() + seconds
    for worker in workers:
        worker.request_close()
    for worker in workers:
        worker.stop(deadline)


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


def _leave_to_parent() -> None:
    """In a fork, give up the parent's workers: close their pipes, so that they see it die, and do not wait for them."""
    known: set[object] = getattr(multiprocessing.process, "_children", set())
    for worker in list(_WORKERS):
        worker.pipe.close()
        known.discard(getattr(worker, "_process", None))
    _WORKERS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


# ---- in the process of an environment ----


def _run(pipe: Connection, factory: Factory, dies_with_parent: bool) -> None:
    """Make an environment and answer requests until the request to close."""
    ignore_signals()
    if dies_with_parent:  # at once, whatever runs here; else at the next request
        die_with_parent()
    with contextlib.suppress(EOFError, OSError):  # the parent is gone, or does not need this process any more
        try:
            env = factory()
            message: bytes | None = _packed(0, (env.observation_space, env.action_space))
        except RAISED as error:
            pipe.send_bytes(_packed_error(0, "make", error))
            return
        try:
            while message is not None:
                pipe.send_bytes(message)
                message = _answer(env, *pickle.loads(pipe.recv_bytes()))  # noqa: S301  # from our parent
        finally:
            env.close()


def _answer(env: gym.Env[Any, Any], number: int, request: str, argument: Any) -> bytes | None:
    """Execute a request and pack its result; return None for the request to close."""
    if request == "close":
        return None
    try:
        if request == "step":
            return _packed(number, env.step(argument))
        if request == "reset":
            seed, options = argument
            return _packed(number, env.reset(seed=seed, options=options))
        if request == _FINGERPRINT:
            return _packed(number, fingerprint(env))
        return _packed(number, call_or_read(env, request, argument))
    except RAISED as error:
        return _packed_error(number, request, error)


def _packed(number: int, content: Any) -> bytes:
    try:
        return pickle.dumps((number, True, content), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise TypeError(f"what it returned cannot be sent from its process: {error}") from error


def _packed_error(number: int, request: str, error: BaseException) -> bytes:
    """Pickle an error so that it can be unpickled, whatever it contains."""
    what = what_raised(request, error)
    cause = error.__cause__ and _picklable(error.__cause__)
    content = (what, _picklable(error), cause, "".join(traceback.format_exception(error)))
    return pickle.dumps((number, False, content), pickle.HIGHEST_PROTOCOL)


def _picklable(error: BaseException) -> BaseException:
    """Return an error that can be pickled: itself, or one with its text."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  # just made
    except Exception:  # noqa: BLE001  # it may hold anything
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
