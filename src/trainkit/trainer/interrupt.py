"""Deferred signals: Ctrl-C, SIGTERM and SIGUSR1 take effect when a step is complete."""

import os
import signal
import threading
import weakref
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

TERMINATE = "SIGTERM"
_SAVE: Any = getattr(signal, "SIGUSR1", None)  # Windows has none


class Terminated(BaseException):
    """The signal SIGTERM: the run is saved and ends."""


class DeferredInterrupt:
    """A context in which signals are deferred until `check` is called.

    - A first SIGINT is passed to the former handler: Python's own raises KeyboardInterrupt. A second one is passed at
      once.
    - SIGTERM raises `Terminated`; another one has no effect. Of both, SIGTERM is first, and SIGINT follows on leaving,
      when the run is saved.
    - SIGUSR1 calls `save`, where there is one, and the work continues. Between two times of being entered it is
      deferred, too, until the next `check`, or `close`.

    The former handlers are restored on leaving; that of SIGUSR1 with `close` or when this object is collected. A signal
    that is ignored stays ignored; only the main thread receives signals, elsewhere this has no effect. A context
    entered within another passes Ctrl-C to the handler before both, so that it ends the inner work and then the outer.

    Args:
        save: called on SIGUSR1; None leaves that signal alone.
        ends_work: whether SIGTERM raises `Terminated`; if not, it waits for `take_termination`.
    """

    def __init__(self, save: Callable[[], object] | None = None, *, ends_work: bool = True) -> None:
        self._save, self._ends_work = save, ends_work
        self._is_pending = False  # whether any signal is deferred
        self._is_ending = False  # whether SIGTERM took effect
        self._deferred: set[int] = set()
        self._former: dict[int, Any] = {}  # {signal: handler}
        self._on_interrupt: Any = None  # receives Ctrl-C: the handler before all contexts
        self._process = os.getpid()
        self._save_handler: _SaveHandler | None = None  # while it is installed

    def __enter__(self) -> Self:
        self._is_ending = False
        self._deferred &= {_SAVE}  # which may have been received since the last time
        self._former = {}
        self._process = os.getpid()
        if threading.current_thread() is threading.main_thread():
            self._install(signal.SIGINT, self._defer_interrupt)
            self._install(signal.SIGTERM, self._defer)
            self._install_save()
            self._inherit()
        self._refresh()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)
        if signal.SIGTERM in self._deferred:  # too late to end the run at a complete step
            self._deferred.discard(signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        self._is_ending = False
        try:
            if kind is None:
                self.check()
        finally:
            self._deferred &= {_SAVE}  # the exception has ended the work already
            self._refresh()

    def close(self) -> None:
        """Save if SIGUSR1 was received since the last `check`, and restore its former handler."""
        handler, self._save_handler = self._save_handler, None
        if handler is not None:
            handler.uninstall()
        if _SAVE in self._deferred and self._save is not None:
            self._deferred.discard(_SAVE)
            self._save()

    def note_save(self) -> None:
        """Save at the next `check`."""
        self._deferred.add(_SAVE)
        self._is_pending = True

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
                if self._save_handler is not None:
                    self._save_handler.pass_on()

    def take_termination(self) -> bool:
        """Return whether a SIGTERM was received; its owner ends the work."""
        was_received = signal.SIGTERM in self._deferred
        self._deferred.discard(signal.SIGTERM)
        self._refresh()
        return was_received

    def pass_on(self, number: int) -> None:
        """Call the former handler, if it is a function."""
        former = self._former.get(number)
        if callable(former):
            former(number, None)

    def _pass_interrupt(self) -> None:
        self._deferred.discard(signal.SIGINT)
        self._refresh()
        self._on_interrupt(signal.SIGINT, None)

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

    def _install_save(self) -> None:
        """Install the handler of SIGUSR1, which stays installed after the context ends."""
        if self._save is None or _SAVE is None:
            return
        former: Any = signal.getsignal(_SAVE)
        installed = former
        while isinstance(installed, _SaveHandler):
            if installed is self._save_handler:  # still installed, perhaps behind that of another trainer
                return
            installed = installed.former
        if callable(former) or former is signal.SIG_DFL:
            self._save_handler = _SaveHandler(self, former)
            signal.signal(_SAVE, self._save_handler)

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
        if not self._is_ending:  # another SIGTERM has no effect
            self._deferred.add(number)
            self._is_pending = True

    def _defer_interrupt(self, number: int, frame: FrameType | None) -> None:
        if number in self._deferred:
            self._on_interrupt(number, frame)
        self._deferred.add(number)
        self._is_pending = True


class _SaveHandler:
    """Handler of SIGUSR1 that has a `DeferredInterrupt` save; without one it calls the former handler."""

    def __init__(self, owner: DeferredInterrupt, former: Any) -> None:
        self._owner, self.former, self._process = weakref.ref(owner), former, os.getpid()
        self._is_active = True
        weakref.finalize(owner, self.uninstall).atexit = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        owner = self._owner()
        if self._is_active and owner is not None and os.getpid() == self._process:
            owner.note_save()
            return
        former = self._restored()
        if callable(former):
            former(number, frame)
        elif former is signal.SIG_DFL:
            signal.signal(number, former)
            os.kill(os.getpid(), number)

    def pass_on(self) -> None:
        """Call the former handler, if it is a function."""
        former = self._restored()
        if callable(former):
            former(_SAVE, None)

    def uninstall(self) -> None:
        """Restore the former handler, unless another one was set since."""
        self._is_active = False
        installed: Any = signal.getsignal(_SAVE)
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and os.getpid() == self._process and installed is self:
            signal.signal(_SAVE, self._restored())

    def _restored(self) -> Any:
        """Return the handler that was installed before this one and is still installed."""
        former = self.former
        while isinstance(former, _SaveHandler) and not former._is_active:
            former = former.former
        return former
