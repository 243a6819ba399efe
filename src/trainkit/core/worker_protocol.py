"""The protocol of workers: requests, answers, errors and deaths, as the owner and the worker send them.

A worker executes what its owner requests, in another process or elsewhere:

    request     (number, method, arguments)
    answer      (number, result), of what the method returned; a `Raised` in its place is an error with its traceback
    death       `WorkerLostError`: the worker has ended, or was killed as it gave no answer in time

An answer repeats the number of its request, so that a late one is never taken for that of a later request.
"""

import pickle
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from trainkit.core.errors import RAISED, EnvError

CLOSING_S = 3.0  # for workers to end by themselves


class Channel(Protocol):
    """The way to a worker, wherever that runs."""

    def send(self, message: bytes) -> None:
        """Send a request; to a worker that died nothing."""
        ...

    def poll(self, seconds: float) -> bool:
        """Wait for the next answer, or the death of the worker; return whether there is one."""
        ...

    def receive(self) -> bytes:
        """Wait for the next answer; raise EOFError if the worker died."""
        ...

    def end(self) -> str:
        """Release what is left of a worker that died, and describe how it ended."""
        ...

    def request_close(self) -> None:
        """Let the worker end, without waiting for it."""
        ...

    def stop(self, deadline: float) -> None:
        """Wait for the worker to end until a time by `time.monotonic`, then kill it; a second call has no effect."""
        ...


def stop_all(channels: Iterable[Channel], seconds: float = CLOSING_S) -> None:
    """Let workers end, and kill those that have not after these seconds."""
    deadline, waiting = time.monotonic() + seconds, list(channels)
    for channel in waiting:
        channel.request_close()
    for channel in waiting:
        channel.stop(deadline)


@dataclass(frozen=True, slots=True)
class Raised:
    """An error, as a worker sends it.

    Attributes:
        what: happened, to follow the name of what failed.
        error: what was raised, or an `EnvError` with its text if that cannot be sent; None where nothing was.
        cause: of the error.
        trace: its traceback in the worker.
    """

    what: str
    error: BaseException | None = None
    cause: BaseException | None = None
    trace: str = ""

    @classmethod
    def of(cls, error: BaseException, what: str) -> "Raised":
        """Return an error as it is sent."""
        cause = None if error.__cause__ is None else _sendable(error.__cause__)
        return cls(what, _sendable(error), cause, "".join(traceback.format_exception(error)))

    def restored(self, where: str) -> BaseException | None:
        """Return the error to be raised by the owner, with a note of where it was raised and its traceback there."""
        if self.error is not None:
            self.error.__cause__ = self.cause
            self.error.add_note(f"in {where}:\n{self.trace}")
        return self.error

    def throw(self, where: str) -> NoReturn:
        """Raise the error; one that would end the program, a `SystemExit`, as the cause of an `EnvError`."""
        error = self.restored(where)
        if isinstance(error, Exception):
            raise error
        raise EnvError(f"{where} {self.what}") from error


def _sendable(error: BaseException) -> BaseException:
    """Return an error that can be sent: itself, or one with its text."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  # just made
    except Exception:  # noqa: BLE001  # it may hold anything
        return EnvError(f"{type(error).__name__}: {error}")
    return error


# ---- the owner's side ----


class WorkerLostError(Exception):
    """A worker has ended; the text says how, to follow the name of the worker."""


class Requests:
    """The requests to a worker, and its answers, which come in the same order.

    Args:
        channel: the way to it.

    Attributes:
        channel: as above.
        number: of the last request.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel, self.number = channel, 0
        self._answered = 0  # the number of the last answer
        self._occasion, self._sent_at = "", 0.0  # of the last request
        self._is_whole = True  # whether no message was left half sent or half received
        self._end = ""  # what became of it

    @property
    def is_usable(self) -> bool:
        """Whether it can answer: it has not ended, and no interrupt came in the middle of a message."""
        return self._is_whole and not self._end

    @property
    def awaits_request(self) -> bool:
        """Whether it can answer at once."""
        return self.is_usable and self._answered == self.number

    def send(self, method: str, arguments: tuple[Any, ...] = (), *, occasion: str | None = None) -> None:
        """Send a request; to a worker that cannot answer nothing, as `receive` reports.

        Args:
            method: of the worker.
            arguments: of the method.
            occasion: for errors; None: "in " and the method.

        Raises:
            Exception: what pickling the arguments raised; nothing was sent.
        """
        message = pickle.dumps((self.number + 1, method, arguments), pickle.HIGHEST_PROTOCOL)
        self.number += 1
        self._occasion, self._sent_at = occasion or f"in {method}", time.monotonic()
        if self._is_whole and not self._end:
            self._is_whole = False
            self.channel.send(message)
            self._is_whole = True

    def seconds_left(self, limit_s: float) -> float:
        """Return the time left for the answer to the last request."""
        return self._sent_at + limit_s - time.monotonic()

    def receive(self, limit_s: float | None = None) -> Any:
        """Wait for the answer to the last request, and return its result, which may be `Raised`.

        Args:
            limit_s: since the request was sent, after which the worker is killed; None: no limit.

        Raises:
            WorkerLostError: it has ended.
        """
        number, result = self.receive_next(limit_s)
        while number != self.number:
            number, result = self.receive_next(limit_s)
        return result

    def receive_next(self, limit_s: float | None = None) -> tuple[int, Any]:
        """Wait for the next answer to any request, as `receive` does, and return its number and result."""
        if self._end or not self._is_whole:
            raise WorkerLostError(self._end or f"has no process any more {self._occasion}")
        if limit_s is not None and not self.channel.poll(max(0.0, self.seconds_left(limit_s))):
            self.channel.stop(0.0)
            self._end = f"gave no answer within {limit_s:g} s {self._occasion}, and was killed"
            raise WorkerLostError(self._end)
        self._is_whole = False
        try:
            message = self.channel.receive()
        except EOFError:
            self._end = f"died {self._occasion}: its process {self.channel.end()}"
            raise WorkerLostError(self._end) from None
        self._is_whole = True
        try:
            self._answered, result = pickle.loads(message)  # noqa: S301  # from a worker of our own
        except Exception as error:  # noqa: BLE001  # it may be anything of a user's
            what = f"returned what cannot be read outside its process {self._occasion}: {error}"
            self._answered, result = self.number, Raised.of(error, what)
        return self._answered, result

    def stop(self, seconds: float = CLOSING_S) -> None:
        """Let the worker end, and kill it if it has not after these seconds; a second call has no effect."""
        self._is_whole = False
        stop_all([self.channel], seconds)


# ---- the worker's side ----


def answer_all(receive: Callable[[], bytes], send: Callable[[bytes], object], host: object) -> None:
    """Answer requests by the methods of an object, until receiving or sending raises."""
    while True:
        send(answer_to(receive(), host))


def answer_to(message: bytes, host: object) -> bytes:
    """Execute a request by a method of an object, and return the answer to send."""
    number, method, arguments = pickle.loads(message)  # noqa: S301  # from our owner
    return answer_by(number, method, lambda: getattr(host, method)(*arguments))


def answer_by(number: int, method: str, work: Callable[[], Any]) -> bytes:
    """Do the work that a request is for, and return the answer to send."""
    try:
        result = work()
    except RAISED as error:
        result = Raised.of(error, f"raised {type(error).__name__} in {method}: {error}")
    try:
        return pickle.dumps((number, result), pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # noqa: BLE001  # it may be anything of a user's
        unsent = TypeError(f"what it returned cannot be sent from its process: {error}")
        unsent.__cause__ = error
        result = Raised.of(unsent, f"raised TypeError in {method}: {unsent}")
        return pickle.dumps((number, result), pickle.HIGHEST_PROTOCOL)
