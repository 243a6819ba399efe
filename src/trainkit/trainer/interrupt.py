"""Signals, deferred to the next moment at which everything is whole: Ctrl-C, a request to end, one to save."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

TERMINATE = "SIGTERM"
_SAVE = getattr(signal, "SIGUSR1", None)  # Windows has none


class Terminated(BaseException):
    """SIGTERM came: the run is to be saved and to end."""


class DeferredInterrupt:
    """While entered, hold signals back until `check` is called.

    - A first SIGINT goes to the handler that was there before: Python's own raises KeyboardInterrupt. A second one goes
      through at once.
    - SIGTERM raises `Terminated`; one more changes nothing.
    - SIGUSR1, where there is something to save to, calls `save`, and the work goes on.

    What was there before comes back on leaving. A signal that is ignored stays so; only the main thread gets signals,
    elsewhere this does nothing.

    Args:
        save: called on SIGUSR1; None leaves that signal alone.
    """

    def __init__(self, save: Callable[[], object] | None = None) -> None:
        self._save = save
        self._is_asked = False  # whether any signal waits
        self._is_ending = False  # whether SIGTERM was let through
        self._waiting: set[int] = set()
        self._former: dict[int, Any] = {}  # {signal: handler}
        self._process = os.getpid()

    def __enter__(self) -> Self:
        self._is_asked = self._is_ending = False
        self._waiting.clear()
        self._former = {}
        self._process = os.getpid()
        if threading.current_thread() is threading.main_thread():
            self._take(signal.SIGINT, self._ask_to_stop)
            self._take(signal.SIGTERM, self._ask)
            if self._save is not None and _SAVE is not None:
                self._take(_SAVE, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)
        if signal.SIGTERM in self._waiting:  # too late to end the run in order
            self._waiting.clear()
            os.kill(os.getpid(), signal.SIGTERM)
        if kind is None:
            self.check()
        self._is_asked = False  # whatever went wrong stopped the work as well

    def check(self, *, is_whole: bool = True) -> None:
        """Let through what was held back; where not all is whole, Ctrl-C only."""
        if not self._is_asked:
            return
        if signal.SIGINT in self._waiting:
            self._waiting.discard(signal.SIGINT)
            self._is_asked = bool(self._waiting)
            self._former[signal.SIGINT](signal.SIGINT, None)
        if is_whole:
            self._is_asked = False  # before the exchange: what comes in between is asked about once too often
            waiting, self._waiting = self._waiting, set()
            if _SAVE in waiting and self._save is not None:
                self._save()
                self.pass_on(_SAVE)
            if signal.SIGTERM in waiting:
                self._is_ending = True
                raise Terminated

    def pass_on(self, number: int) -> None:
        """Tell the handler that was there before, where it is somebody's own."""
        former = self._former.get(number)
        if callable(former):
            former(number, None)

    def _take(self, number: int, handler: Callable[[int, FrameType | None], None]) -> None:
        former = signal.getsignal(number)
        is_default = former is signal.SIG_DFL and number != signal.SIGINT  # Python's own SIGINT handler is callable
        if callable(former) or is_default:
            self._former[number] = former
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a child forked meanwhile: not its affair
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        if not self._is_ending:  # one more SIGTERM says nothing new
            self._waiting.add(number)
            self._is_asked = True

    def _ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        if number in self._waiting:
            self._former[number](number, frame)
        self._waiting.add(number)
        self._is_asked = True
