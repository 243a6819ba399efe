"""Deferred signals: Ctrl-C, SIGTERM and SIGUSR1 take effect when a step is complete."""

import logging
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

TERMINATE = "SIGTERM"
_SAVE: Any = getattr(signal, "SIGUSR1", None)  # Windows has none
_STAYING: set[Any] = {signal.SIGTERM} | ({_SAVE} - {None})  # deferred between two times of being entered, too
HANGS_S = 5.0  # after a SIGTERM, from which on another one does not wait for a complete step

_log = logging.getLogger(__name__)


class Terminated(BaseException):
    """The signal SIGTERM: the run is saved and ends."""


class DeferredInterrupt:
    """A context in which signals are deferred until `check` is called.

    - A first SIGINT is passed to the former handler: Python's own raises KeyboardInterrupt. A second one is passed at
      once.
    - SIGTERM raises `Terminated`; others within some seconds have no effect, and one that comes later is passed to the
      former handler at once: the step hangs. Of SIGTERM and SIGINT, the former is first, and SIGINT follows on leaving,
      when the run is saved.
    - SIGUSR1 calls `save`, where there is one, and the work continues.
    - Where there is a `save`, SIGTERM and SIGUSR1 are deferred between two times of being entered, too, until the next
      `check`; a second SIGTERM there is passed on at once. `close` saves, or passes the SIGTERM on.

    The former handlers are restored on leaving; those of SIGTERM and SIGUSR1 with `close` or when this object is
    collected, if there is a `save`. A signal that is ignored stays ignored; only the main thread receives signals,
    elsewhere this has no effect. A context entered within another passes Ctrl-C to the handler before both, so that it
    ends the inner work and then the outer.

    Args:
        save: called on SIGUSR1; None leaves that signal alone.
        ends_work: whether SIGTERM raises `Terminated`; if not, it waits for `take_termination`.
        summary: returns the line that IPython shows for a first Ctrl-C, in place of the traceback; None leaves that.
    """

    def __init__(
        self,
        save: Callable[[], object] | None = None,
        *,
        ends_work: bool = True,
        summary: Callable[[], str] | None = None,
    ) -> None:
        self._save, self._ends_work, self._summary = save, ends_work, summary
        self._is_pending = False  # whether any signal is deferred
        self._is_ending = False  # whether SIGTERM took effect
        self._deferred: set[int] = set()
        self._former: dict[int, Any] = {}  # {signal: handler}
        self._on_interrupt: Any = None  # receives Ctrl-C: the handler before all contexts
        self._process = os.getpid()
        self._terminated_at = 0.0  # when the SIGTERM that waits for a complete step was received
        self._staying: dict[int, _StayingHandler] = {}  # {signal: handler} while installed

    def __enter__(self) -> Self:
        self._is_ending = False
        self._deferred &= _STAYING  # which may have been received since the last time
        self._former = {}
        self._process = os.getpid()
        if threading.current_thread() is threading.main_thread():
            for number in _STAYING:
                self._install_staying(number)
            self._install(signal.SIGINT, self._defer_interrupt)
            self._install(signal.SIGTERM, self._defer)
            self._inherit()
        self._refresh()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)
        self._former = {}
        if signal.SIGTERM in self._deferred:  # too late to end the run at a complete step
            self._deferred.discard(signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        self._is_ending = False
        try:
            if kind is None:
                self.check()
        finally:
            self._deferred &= _STAYING  # the exception has ended the work already
            self._refresh()

    def close(self) -> None:
        """Save if SIGUSR1 was received since the last `check`, pass on a SIGTERM, and restore the former handlers."""
        for handler in self._staying.values():
            handler.uninstall()
        self._staying = {}
        if _SAVE in self._deferred and self._save is not None:
            self._deferred.discard(_SAVE)
            self._save()
        if signal.SIGTERM in self._deferred and not self._former:
            self._deferred.discard(signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)

    def note(self, number: int) -> bool:
        """Let a signal take effect at the next `check`; return whether it is the first."""
        is_first = number not in self._deferred
        if is_first and number == signal.SIGTERM:
            self._terminated_at = time.monotonic()
        self._deferred.add(number)
        self._is_pending = True
        return is_first

    def check(self, *, is_whole: bool = True) -> None:
        """Let deferred signals take effect; in an incomplete step only Ctrl-C, unless a SIGTERM came before it."""
        if not self._is_pending:
            return
        if signal.SIGTERM in self._deferred:
            if not (is_whole and self._ends_work):
                return
            self._deferred &= {signal.SIGINT}  # which takes effect on leaving
            self._is_ending = True
            self._refresh()
            raise Terminated
        if signal.SIGINT in self._deferred and not self._is_ending:
            self._pass_interrupt()
        if is_whole and _SAVE in self._deferred:
            self._deferred.discard(_SAVE)
            self._refresh()
            if self._save is not None:
                self._save()
                if _SAVE in self._staying:
                    self._staying[_SAVE].pass_on()

    def take_termination(self) -> bool:
        """Return whether a SIGTERM was received; its owner ends the work."""
        was_received = signal.SIGTERM in self._deferred
        self._deferred.discard(signal.SIGTERM)
        self._refresh()
        return was_received

    def pass_on(self, number: int) -> None:
        """Call the former handler, if it is a function."""
        if number in self._staying:
            self._staying[number].pass_on()
            return
        former = self._former.get(number)
        if callable(former):
            former(number, None)

    def _pass_interrupt(self) -> None:
        self._deferred.discard(signal.SIGINT)
        self._refresh()
        try:
            self._on_interrupt(signal.SIGINT, None)
        except KeyboardInterrupt as interrupt:
            if self._summary is not None:
                line = self._summary()
                # IPython calls this; of the error itself nothing changes, and elsewhere its traceback is shown.
                interrupt._render_traceback_ = lambda: [line]  # type: ignore[attr-defined]
            raise

    def _refresh(self) -> None:
        """Update `_is_pending`; in this order, so that a signal received during the update is not missed."""
        self._is_pending = False
        if self._deferred:
            self._is_pending = True

    def _install(self, number: int, handler: Callable[[int, FrameType | None], None]) -> None:
        former = signal.getsignal(number)
        is_default = former is signal.SIG_DFL and number != signal.SIGINT  # Python's own SIGINT handler is callable
        if callable(former) or is_default:
            self._former[number] = former
            signal.signal(number, handler)

    def _install_staying(self, number: int) -> None:
        """Install the handler of a signal which stays installed after the context ends."""
        if self._save is None:
            return
        former: Any = signal.getsignal(number)
        installed = former
        while isinstance(installed, _StayingHandler):
            if installed is self._staying.get(number):  # still installed, perhaps behind that of another trainer
                return
            installed = installed.former
        if callable(former) or former is signal.SIG_DFL:
            self._staying[number] = _StayingHandler(self, number, former)
            signal.signal(number, self._staying[number])

    def _inherit(self) -> None:
        """Inside another context, take over its deferred signals, since its work waits for this context's."""
        former = self._former.get(signal.SIGINT)
        outer = getattr(former, "__self__", None)
        if not isinstance(outer, DeferredInterrupt):
            self._on_interrupt = former
            return
        self._on_interrupt = outer._on_interrupt
        self._deferred |= outer._deferred & {signal.SIGINT, signal.SIGTERM}
        outer._deferred.discard(signal.SIGINT)  # which ends the outer work when the inner ends

    def _defer(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # in a forked child: restore the default
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        if self._is_ending:  # another SIGTERM has no effect
            return
        if not self.note(number) and time.monotonic() - self._terminated_at > HANGS_S:
            _log.warning("another SIGTERM, and the step is not complete: the run ends here, without saving")
            _deliver(
                number, frame, self._staying[number].restored() if number in self._staying else self._former[number]
            )

    def _defer_interrupt(self, number: int, frame: FrameType | None) -> None:
        if number in self._deferred:
            self._on_interrupt(number, frame)
        self._deferred.add(number)
        self._is_pending = True


class _StayingHandler:
    """Handler of a signal that a `DeferredInterrupt` defers between two times of being entered, too.

    A second SIGTERM, and every signal without a `DeferredInterrupt`, goes to the former handler.
    """

    def __init__(self, owner: DeferredInterrupt, number: int, former: Any) -> None:
        self._owner, self._number, self._process = weakref.ref(owner), number, os.getpid()
        self.former = former
        self._is_active = True
        weakref.finalize(owner, self.uninstall).atexit = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        owner = self._owner()
        is_here = self._is_active and os.getpid() == self._process
        if owner is not None and is_here and (owner.note(number) or number == _SAVE):
            return
        _deliver(number, frame, self.restored())

    def pass_on(self) -> None:
        """Call the former handler, if it is a function."""
        former = self.restored()
        if callable(former):
            former(self._number, None)

    def uninstall(self) -> None:
        """Restore the former handler, unless another one was set since."""
        self._is_active = False
        installed: Any = signal.getsignal(self._number)
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and os.getpid() == self._process and installed is self:
            signal.signal(self._number, self.restored())

    def restored(self) -> Any:
        """Return the handler that was installed before this one and is still installed."""
        former = self.former
        while isinstance(former, _StayingHandler) and not former._is_active:
            former = former.former
        return former


def _deliver(number: int, frame: FrameType | None, handler: Any) -> None:
    """Do what a handler, or the default, does with a signal."""
    if callable(handler):
        handler(number, frame)
    elif handler is signal.SIG_DFL:
        signal.signal(number, handler)
        os.kill(os.getpid(), number)
