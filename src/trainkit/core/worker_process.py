"""Worker processes: a new Python, not a fork, that answers the messages of its owner on one thread.

A new Python shares no memory, lock or device with its owner, and needs no `if __name__ == "__main__"` in a script. It
ends when the pipe to it closes, ignores signals that are for the owner, and on Linux ends at once with an owner that is
killed, whatever it is doing. `PipedProcess` is what any other process with a pipe has in common with it.
"""

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from gymnasium.vector.utils import CloudpickleWrapper

from trainkit.core.errors import ConfigError
from trainkit.core.worker_protocol import CLOSING_S

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_OWNER_SIGNALS = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGUSR1", signal.SIGTERM)}  # Windows has no SIGUSR1

_PARENT_DEATH_SIGNAL = 1  # Linux's PR_SET_PDEATHSIG

Serve = Callable[["Inbox"], None]


def can_die_with_parent() -> bool:
    """Return whether a child of this thread may: Linux ends it with the thread that started it."""
    return sys.platform == "linux" and threading.current_thread() is threading.main_thread()


def die_with_parent() -> None:
    """Have Linux kill this process where its parent ends."""
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


# The same before anything is imported, which takes seconds; a parent that has ended by then sends no signal.
_DIE_WITH = "import ctypes, os; ctypes.CDLL(None).prctl({signal}, {kill}); os.getppid() == {owner} or os._exit(1); "


class PipedProcess(ABC):
    """A process and the pipe to it: a `Channel` to a worker. A fork of the owner gives it up.

    Attributes:
        pipe: readable when it has answered, or has died.
    """

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        _OWNED.add(self)

    def send(self, message: bytes) -> None:
        """Send a message; to a process that is dead nothing, as `receive` reports."""
        with contextlib.suppress(OSError):
            self.pipe.send_bytes(message)

    def poll(self, seconds: float) -> bool:
        """Wait for the next message, or the end of the process; return whether `receive` will not wait."""
        try:
            return self.pipe.poll(seconds)
        except OSError:  # it is closed, or broken
            return True

    def receive(self) -> bytes:
        """Wait for the next message.

        Raises:
            EOFError: the process died; `end` describes how.
        """
        try:
            return self.pipe.recv_bytes()
        except OSError:
            raise EOFError from None

    def end(self) -> str:
        """Release what is left of a process that died, and describe how it ended."""
        code = self.wait(CLOSING_S)
        self.stop(0.0)
        if code is None:
            return "closed its pipe"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"

    def request_close(self) -> None:
        """Close the pipe, which ends the process, without waiting for it."""
        self.pipe.close()

    def stop(self, deadline: float) -> None:
        """Wait for the process to end until a time by `time.monotonic`, then kill it; a second call has no effect."""
        if self.wait(max(0.0, deadline - time.monotonic())) is None:
            self.kill()
            self.wait(None)
        self.pipe.close()

    @abstractmethod
    def wait(self, seconds: float | None) -> int | None:
        """Wait for the process to end, and return its exit code, of a signal negative; None if it has not."""

    @abstractmethod
    def kill(self) -> None:
        """Send the process a SIGKILL."""

    def forget(self) -> None:
        """In a fork of the owner, close the pipe, so that the process sees the owner die."""
        self.pipe.close()


_OWNED: "weakref.WeakSet[PipedProcess]" = weakref.WeakSet()  # all of this process


def _leave_to_parent() -> None:
    """In a fork, give up the processes of the parent."""
    for process in list(_OWNED):
        process.forget()
    _OWNED.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


class WorkerProcess(PipedProcess):
    """A process that executes `serve(inbox)`, and the pipe to it.

    Args:
        serve: a function of a module.
        output: a file that its standard streams are appended to; None: those of this process.
        saves: whether its work has to be saved where the owner is killed, by `Inbox.terminate_with_owner`; otherwise it
            is killed, too.

    Attributes:
        pid: of the process.
    """

    def __init__(self, serve: Serve, *, output: Path | None = None, saves: bool = False) -> None:
        if os.name != "posix":
            raise ConfigError("a worker process needs a POSIX system: use one process")
        pipe, theirs = multiprocessing.Pipe()
        super().__init__(pipe)
        is_killed = can_die_with_parent() and not saves
        end = {"signal": _PARENT_DEATH_SIGNAL, "kill": int(signal.SIGKILL), "owner": os.getpid()}
        code = _DIE_WITH.format(**end) if is_killed else ""
        code += f"import sys; sys.path[:] = {sys.path!r}; from trainkit.core.worker_process import Inbox; "
        code += f"from {serve.__module__} import {serve.__name__}; "
        code += f"Inbox({theirs.fileno()}, {os.getpid()}).serve({serve.__name__})"
        with theirs, blocked_signals(), contextlib.ExitStack() as opened:
            stream = None if output is None else opened.enter_context(output.open("ab"))
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=os.environ | ONE_THREAD,
            )
        self.pid = self._process.pid
        self._close = weakref.finalize(self, _close, self._process, self.pipe, os.getpid())

    def wait(self, seconds: float | None) -> int | None:
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def signal(self, number: int) -> None:
        """Send a signal to the process, unless it has ended."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """Close the pipe, which ends the process; after some seconds it is killed."""
        self._close()


def _close(process: "subprocess.Popen[bytes]", pipe: Connection, owner: int) -> None:
    """End a process: its pipe closes, and if it has not ended after some seconds it is killed."""
    if os.getpid() != owner:  # a fork of the process that started it
        return
    pipe.close()
    try:
        process.wait(CLOSING_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def packed(content: Any, subject: str, name: str) -> bytes:
    """Pickle what a worker process is given, functions of a script included.

    Args:
        content: to send.
        subject: for the error.
        name: of the content, for the error.

    Raises:
        ConfigError: it cannot be pickled.
    """
    try:
        return pickle.dumps(CloudpickleWrapper(content), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise ConfigError(
            f"{subject}: {name} cannot be sent to another process: {error}: create what it holds inside of it, or use "
            "one process"
        ) from error


def unpacked(message: bytes) -> Any:
    """Return the content of `packed`."""
    return pickle.loads(message).fn  # noqa: S301  # packed by a process of our own


@contextlib.contextmanager
def blocked_signals() -> Iterator[None]:
    """Block the owner's signals until a process that starts can ignore them."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _OWNER_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ---- in the worker process ----


class OwnerGoneError(BaseException):
    """The owner of this process has ended, or does not need it any more."""


class Inbox:
    """The worker's side of the pipe.

    Args:
        descriptor: of the pipe.
        owner: the process that started this one.
    """

    def __init__(self, descriptor: int, owner: int) -> None:
        self.pipe, self._owner = Connection(descriptor), owner
        self._readable = select.poll()  # one for all messages: the pipe's own `poll` makes one for each
        self._readable.register(descriptor, select.POLLIN)

    def serve(self, function: Serve) -> None:
        """Execute the function of this process, until the owner closes the pipe or ends."""
        ignore_signals()
        with contextlib.suppress(OwnerGoneError, EOFError, BrokenPipeError, ConnectionResetError):
            function(self)

    def receive(self) -> bytes:
        """Wait for a message."""
        while not self._readable.poll(1_000):
            self.check_owner()
        return self.pipe.recv_bytes()

    def check_owner(self) -> None:
        """Raise `OwnerGoneError` if the owner has ended."""
        if os.getppid() != self._owner:
            raise OwnerGoneError

    def terminate_with_owner(self) -> None:
        """Send this process a SIGTERM each second from when the owner has ended, for work that reads no message."""

        def watch() -> None:
            while True:
                time.sleep(1.0)
                if os.getppid() != self._owner:
                    os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=watch, daemon=True).start()


def ignore_signals() -> None:
    """Ignore Ctrl-C, SIGTERM and SIGUSR1 to the process group: the owner decides when to end or save.

    The handler is an empty function and not SIG_IGN, which programs that are started here would inherit. Forks inherit
    even a function: a SIGTERM ends them again, so that their own parent can.
    """
    for number in _OWNER_SIGNALS:
        signal.signal(number, lambda number, frame: None)
    if sys.platform != "win32":
        os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _OWNER_SIGNALS)
