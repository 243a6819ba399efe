"""The process backend: each environment in a process of its own."""

import contextlib
import ctypes
import errno
import logging
import multiprocessing
import multiprocessing.process
import multiprocessing.util
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper
from numpy.typing import NDArray

from trainkit.core.errors import BusyError, ConfigError, EnvError
from trainkit.core.spaces import Spaces, check_spaces
from trainkit.envs.backends import (
    FORKED,
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
from trainkit.envs.recovery import fingerprint
from trainkit.envs.validation import RowReader

FINGERPRINT = "the fingerprint of its attributes"  # a request; no attribute has such a name

Factory = Callable[[], gym.Env[Any, Any]]

_OF_THE_TRAINER = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGUSR1", signal.SIGTERM)}  # Windows has no SIGUSR1
_PARENT_DEATH_SIGNAL = 1  # Linux's PR_SET_PDEATHSIG
_WORKERS: "weakref.WeakSet[Worker]" = weakref.WeakSet()  # all of this process


class Worker:
    """Start a process with an environment in it, and talk to it.

    Every request has a number, and its answer the same: one that comes late is never taken for another's.

    Args:
        env_id: for messages.
        factory: makes the environment, there.
    """

    def __init__(self, env_id: int, factory: Factory) -> None:
        self._env_id = env_id
        self._number = 0  # of the last request; making the environment is the first
        self._what, self._asked_at = "while it was made", time.monotonic()
        self._is_whole = True  # whether no message was left half written or half read
        self._has_answered = False  # the last request
        method = start_method()
        context: Any = multiprocessing.get_context(method)
        try:
            self._pipe, theirs = context.Pipe()
        except OSError as error:
            raise _not_started(env_id, error) from error
        _WORKERS.add(self)
        # A thread's children would be ended with the thread, not with the process; a fork server has but one.
        dies_with_parent = method == "forkserver" or threading.current_thread() is threading.main_thread()
        arguments = (theirs, CloudpickleWrapper(factory), dies_with_parent)
        # Not a daemon, so that an environment may start processes itself; `ProcessBackend` ends it before Python waits.
        self._process = context.Process(target=_work, args=arguments, daemon=False, name=f"trainkit-env-{env_id}")
        if multiprocessing.current_process().daemon:
            self._pipe.close()
            theirs.close()
            raise ConfigError(
                'make_envs.backend "async" cannot start processes in a daemonic process, such as a worker of '
                'multiprocessing.Pool: use backend="sync", or start this process with daemon=False'
            )
        try:
            with _signals_held_back():
                self._process.start()
        except OSError as error:
            self._pipe.close()
            raise _not_started(env_id, error) from error
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            self._pipe.close()
            raise ConfigError(
                f"make_envs: the factory of env {env_id} cannot be sent to a process ({method}): {error}: "
                'make what it holds inside of it, or use backend="sync"'
            ) from error
        finally:
            theirs.close()

    @property
    def is_usable(self) -> bool:
        """Whether there is a process that could answer."""
        return self._is_whole and not self._pipe.closed

    @property
    def is_idle(self) -> bool:
        """Whether its process waits for a request."""
        return self.is_usable and self._has_answered

    def ask(self, what: str, argument: Any = None) -> None:
        """Send a request: "reset", "step", or the name of something to call."""
        self._number += 1
        self._has_answered = False
        self._what, self._asked_at = f"in {what}", time.monotonic()
        message = pickle.dumps((self._number, what, argument), pickle.HIGHEST_PROTOCOL)
        if self.is_usable:
            self._is_whole = False
            with contextlib.suppress(OSError):  # it is dead, and `answer` will find out how
                self._pipe.send_bytes(message)
            self._is_whole = True

    def answer(self, timeout_s: float | None = None) -> Any:
        """Wait for the answer to the last request, so long after it was made.

        Raises:
            Failure: the environment raised, or the process died, or was too late and is killed.
        """
        while True:
            if not self.is_usable:
                raise Failure(self._env_id, f"has no process any more {self._what}")
            if timeout_s is not None and not self._pipe.poll(max(0.0, self._asked_at + timeout_s - time.monotonic())):
                self.kill()
                raise Failure(self._env_id, f"gave no answer within {timeout_s:g} s {self._what}, and was killed")
            self._is_whole = False
            try:
                message = self._pipe.recv_bytes()
            except (EOFError, OSError):
                raise Failure(self._env_id, f"died {self._what}: its process {self._end()}") from None
            self._is_whole = True
            number, is_fine, content = self._unpacked(message)
            if number == self._number:
                self._has_answered = True
                return content if is_fine else self._fail(*content)

    def _unpacked(self, message: bytes) -> Any:
        try:
            return pickle.loads(message)  # noqa: S301  # from a process of our own
        except Exception as error:
            what = f"answered what cannot be read outside its process {self._what}: {error}"
            raise Failure(self._env_id, what) from error

    def _fail(self, what: str, error: BaseException, cause: BaseException | None, trace: str) -> NoReturn:
        """Raise what the environment raised, with the words of its own process."""
        error.__cause__ = cause
        error.add_note(f"in the process of env {self._env_id}:\n{trace}")
        raise Failure(self._env_id, what) from error

    def ask_to_close(self) -> None:
        """Let the environment close itself and the process end, without waiting for it."""
        if self.is_usable:
            self.ask("close")
        else:
            self.kill()  # it waits for the rest of a message

    def stop(self, deadline: float) -> None:
        """Wait for the process to end till a time by `time.monotonic`, then kill it."""
        if not self._pipe.closed:
            self._process.join(max(0.0, deadline - time.monotonic()))
            self.kill()

    def kill(self) -> None:
        """End the process now; once is enough."""
        if not self._pipe.closed:
            self._process.kill()
            self._end()

    def _end(self) -> str:
        """Give back what the process had, and say how it ended."""
        self._process.join(1.0)
        code = self._process.exitcode
        self._pipe.close()
        if code is None:  # it closed its pipe, but does not end
            self._process.kill()
            self._process.join()
        self._process.close()
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"exited with code {code}"


def _not_started(env_id: int, error: OSError) -> EnvError:
    """Return the error of a process that could not be started, with the limit that was reached."""
    advice = 'lower n, or use backend="sync"'
    if error.errno in (errno.EMFILE, errno.ENFILE):
        advice = f"each process needs about three file descriptors: raise the limit (ulimit -n), {advice}"
    return EnvError(f"make_envs: no process could be started for env {env_id}: {error}; {advice}", env_id=env_id)


def _leave_to_parent() -> None:
    """In a fork, give up the parent's workers: their pipes, so that they see it die, and waiting for their end."""
    known: set[object] = getattr(multiprocessing.process, "_children", set())
    for worker in list(_WORKERS):
        worker._pipe.close()
        known.discard(getattr(worker, "_process", None))
    _WORKERS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


def start_method() -> str:
    """Return how to start a process: a fork is quick and takes any factory, but not when CUDA is running."""
    torch = sys.modules.get("torch")
    if sys.platform == "linux" and not (torch is not None and torch.cuda.is_initialized()):
        return "fork"
    return "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def _work(pipe: Connection, factory: Factory, dies_with_parent: bool) -> None:
    """Make an environment and answer requests about it until there are no more."""
    _deafen()
    if dies_with_parent and sys.platform == "linux":  # whatever runs here then; else at the next request
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    with contextlib.suppress(EOFError, OSError):  # the parent is gone, or has no use for us
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


def _answer(env: gym.Env[Any, Any], number: int, what: str, argument: Any) -> bytes | None:
    """Do what is asked and pack what comes of it; None at the end."""
    if what == "close":
        return None
    try:
        if what == "step":
            return _packed(number, env.step(argument))
        if what == "reset":
            seed, options = argument
            return _packed(number, env.reset(seed=seed, options=options))
        if what == FINGERPRINT:
            return _packed(number, fingerprint(env))
        return _packed(number, call_or_read(env, what, argument))
    except RAISED as error:
        return _packed_error(number, what, error)


def _packed(number: int, content: Any) -> bytes:
    try:
        return pickle.dumps((number, True, content), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise TypeError(f"what it returned cannot be sent from its process: {error}") from error


def _packed_error(number: int, what: str, error: BaseException) -> bytes:
    """Pack an error that can be unpacked, whatever it was made of."""
    trace = "".join(traceback.format_exception(error))
    told = f"raised {type(error).__name__} in {what}: {error}"
    content = (told, _portable(error), error.__cause__ and _portable(error.__cause__), trace)
    return pickle.dumps((number, False, content), pickle.HIGHEST_PROTOCOL)


def _portable(error: BaseException) -> BaseException:
    """Return an error that survives a pipe: itself, or its words."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  # just made
    except Exception:  # noqa: BLE001  # it may hold anything
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


@contextlib.contextmanager
def _signals_held_back() -> Iterator[None]:
    """Let no signal reach a process that starts before it can ignore it."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_THE_TRAINER)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _deafen() -> None:
    """Leave it to the parent when to end or save: Ctrl-C and a group's SIGTERM or SIGUSR1 do nothing here.

    A function that does nothing, not SIG_IGN: programs that an environment starts would inherit that.
    """
    for number in _OF_THE_TRAINER:
        signal.signal(number, lambda number, frame: None)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_THE_TRAINER)


_log = logging.getLogger(__name__)

_MAKING_S = 60.0  # to make an environment, at least, where steps have a limit: simulators take their time
_CLOSING_S = 3.0  # for environments to close themselves
_REPLACING_S = 1.0  # for one that failed, while all others wait


class ProcessBackend:
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
        return self._reader.read_resets(env_ids, self._take)

    def step(self, action: NDArray[Any], env_ids: Ids, work: Work) -> RawStep:
        self._check_usable("stepped")
        for row, env_id in enumerate(env_ids.tolist()):
            self._workers[env_id].ask("step", action[row])
        self._is_stepping = True
        try:
            if work is not None:
                work()
        finally:
            self._is_stepping = False
        return self._reader.read_steps(env_ids, self._take)

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
