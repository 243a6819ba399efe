"""Ctrl-C, deferred to the next moment at which everything is whole."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class DeferredInterrupt:
    """While entered, hold a first SIGINT back until `check` is called; a second one is raised at once.

    Only the main thread gets signals: elsewhere this does nothing. The former handler comes back on leaving.
    """

    def __init__(self) -> None:
        self._is_asked = False
        self._former: Any = None

    def __enter__(self) -> Self:
        self._is_asked = False
        if threading.current_thread() is threading.main_thread():
            self._former = signal.getsignal(signal.SIGINT)
            if self._former is not None:  # None: set outside Python, and not ours to replace
                signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._former is not None:
            signal.signal(signal.SIGINT, self._former)
            self._former = None
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raise KeyboardInterrupt if one was asked for."""
        if self._is_asked:
            self._is_asked = False
            raise KeyboardInterrupt

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._is_asked:
            raise KeyboardInterrupt
        self._is_asked = True
