"""Signals, deferred to the next moment at which everything is whole: Ctrl-C, a request to end, one to save."""

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
    """SIGTERM came: the run is to be saved and to end."""


class DeferredInterrupt:
    """While entered, hold signals back until `check` is called.

    - A first SIGINT goes to the handler that was there before: Python's own raises KeyboardInterrupt. A second one goes
      through at once.
    - SIGTERM raises `Terminated`; one more changes nothing. Where both came, SIGTERM is first, and SIGINT follows on
      leaving, when the run is saved.
    - SIGUSR1, where there is something to save to, calls `save`, and the work goes on. It is also held back between two
      times of being entered, until the next `check`, or `close`.

    What was there before comes back on leaving; for SIGUSR1, with `close` or when this object is collected. A signal
    that is ignored stays so; only the main thread gets signals, elsewhere this does nothing. One that is entered within
    another passes Ctrl-C on to what was there before both, so that it ends the inner work and then the outer.

    Args:
        save: called on SIGUSR1; None leaves that signal alone.
    """

    def __init__(self, save: Callable[[], object] | None = None) -> None:
        self._save = save
        self._is_asked = False  # whether any signal waits
        self._is_ending = False  # whether SIGTERM was let through
        self._waiting: set[int] = set()
        self._former: dict[int, Any] = {}  # {signal: handler}
        self._on_interrupt: Any = None  # what Ctrl-C is passed on to: the handler before all that are entered
        self._process = os.getpid()
        self._save_handler: _SaveHandler | None = None  # while it is installed

    def __enter__(self) -> Self:
        self._is_ending = False
        self._waiting &= {_SAVE}  # which may have come since the last time
        self._former = {}
        self._process = os.getpid()
        if threading.current_thread() is threading.main_thread():
            self._take(signal.SIGINT, self._ask_to_stop)
            self._take(signal.SIGTERM, self._ask)
            self._take_save()
            self._inherit()
        self._look()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)
        if signal.SIGTERM in self._waiting:  # too late to end the run in order
            self._waiting.discard(signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        self._is_ending = False
        try:
            if kind is None:
                self.check()
        finally:
            self._waiting &= {_SAVE}  # whatever went wrong stopped the work as well
            self._look()

    def close(self) -> None:
        """Save if that was asked for since the last `check`, and leave SIGUSR1 to who had it before."""
        handler, self._save_handler = self._save_handler, None
        if handler is not None:
            handler.uninstall()
        if _SAVE in self._waiting and self._save is not None:
            self._waiting.discard(_SAVE)
            self._save()

    def note_save(self) -> None:
        """Save at the next `check`."""
        self._waiting.add(_SAVE)
        self._is_asked = True

    def check(self, *, is_whole: bool = True) -> None:
        """Let through what was held back; where not all is whole, Ctrl-C only, and not before a SIGTERM."""
        if not self._is_asked:
            return
        if signal.SIGTERM in self._waiting:
            if not is_whole:
                return
            self._waiting &= {signal.SIGINT}  # which comes on leaving
            self._is_ending = True
            self._look()
            raise Terminated
        if signal.SIGINT in self._waiting and not self._is_ending:
            self._let_through()
        if is_whole and _SAVE in self._waiting:
            self._waiting.discard(_SAVE)
            self._look()
            if self._save is not None:
                self._save()
                if self._save_handler is not None:
                    self._save_handler.pass_on()

    def pass_on(self, number: int) -> None:
        """Call the handler that was there before, where it is one that somebody set."""
        former = self._former.get(number)
        if callable(former):
            former(number, None)

    def _let_through(self) -> None:
        self._waiting.discard(signal.SIGINT)
        self._look()
        self._on_interrupt(signal.SIGINT, None)

    def _look(self) -> None:
        """Note whether any signal waits; in this order, so that one which comes meanwhile is not overlooked."""
        self._is_asked = False
        if self._waiting:
            self._is_asked = True

    def _take(self, number: int, handler: Callable[[int, FrameType | None], None]) -> None:
        former = signal.getsignal(number)
        is_default = former is signal.SIG_DFL and number != signal.SIGINT  # Python's own SIGINT handler is callable
        if callable(former) or is_default:
            self._former[number] = former
            signal.signal(number, handler)

    def _take_save(self) -> None:
        """Have SIGUSR1 noted from now on, also after leaving."""
        if self._save is None or _SAVE is None:
            return
        former: Any = signal.getsignal(_SAVE)
        installed = former
        while isinstance(installed, _SaveHandler):
            if installed is self._save_handler:  # as it was left, perhaps behind that of another trainer
                return
            installed = installed.former
        if callable(former) or former is signal.SIG_DFL:
            self._save_handler = _SaveHandler(self, former)
            signal.signal(_SAVE, self._save_handler)

    def _inherit(self) -> None:
        """Within another one, take over what it was told and has not let through: its work waits for this one's."""
        former = self._former.get(signal.SIGINT)
        outer = getattr(former, "__self__", None)
        if not isinstance(outer, DeferredInterrupt):
            self._on_interrupt = former
            return
        self._on_interrupt = outer._on_interrupt
        self._waiting |= outer._waiting & {signal.SIGINT, signal.SIGTERM}
        outer._waiting.discard(signal.SIGINT)  # which ends the outer work as it leaves the inner

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a child forked meanwhile: not its affair
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        if not self._is_ending:  # one more SIGTERM says nothing new
            self._waiting.add(number)
            self._is_asked = True

    def _ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        if number in self._waiting:
            self._on_interrupt(number, frame)
        self._waiting.add(number)
        self._is_asked = True


class _SaveHandler:
    """Handler of SIGUSR1 that asks a `DeferredInterrupt` to save; without one it does what the former handler did."""

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
        """Call the handler that was there before, where it is one that somebody set."""
        former = self._restored()
        if callable(former):
            former(_SAVE, None)

    def uninstall(self) -> None:
        """Put the former handler back, unless another one was set since."""
        self._is_active = False
        installed: Any = signal.getsignal(_SAVE)
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and os.getpid() == self._process and installed is self:
            signal.signal(_SAVE, self._restored())

    def _restored(self) -> Any:
        """Return the handler before this one, without those that were uninstalled since."""
        former = self.former
        while isinstance(former, _SaveHandler) and not former._is_active:
            former = former.former
        return former
