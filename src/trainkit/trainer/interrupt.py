"""Ctrl-C, deferred to the next moment at which everything is whole."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class DeferredInterrupt:
    """While entered, hold a first SIGINT back until `check` is called; a second one goes through at once.

    What is held back goes to the handler that was there before: Python's own raises KeyboardInterrupt. It comes back
    on leaving. Where SIGINT is ignored it stays so; only the main thread gets signals, elsewhere this does nothing.
    """

    def __init__(self) -> None:
        self._is_asked = False
        self._former: Any = None

    def __enter__(self) -> Self:
        self._is_asked = False
        self._former = None
        if threading.current_thread() is threading.main_thread():
            former = signal.getsignal(signal.SIGINT)
            if callable(former):
                self._former = former
                signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._former is not None:
            signal.signal(signal.SIGINT, self._former)
        if kind is not None:
            self._is_asked = False  # whatever went wrong stopped the work as well
        self.check()

    def check(self) -> None:
        """Let through what was held back."""
        if self._is_asked:
            self._is_asked = False
            self._former(signal.SIGINT, None)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._is_asked:
            self._former(number, frame)
        self._is_asked = True
