"""When code of users may have run: what would look for its changes at every step looks only after it.

A policy that is called by its user may have been changed before each call. A trainer or a collector calls users' code
itself, callbacks and functions, and knows when:

    with user_code.known():         # from here on, it runs where it is said to
        ...
        with user_code.running():   # in here it runs
            callback.on_update_end(trainer)

Environments are users' code too; what they change shows at the end of an episode at the latest.
"""

import itertools
import threading
from types import TracebackType

_numbers = itertools.count(1)


class _Thread(threading.local):
    moment: int | None = None


_thread = _Thread()


def moment() -> int | None:
    """Return a number that changes when users' code may have run in this thread; None where it may run at any time."""
    return _thread.moment


def has_run() -> None:
    """Say that users' code may have run."""
    if _thread.moment is not None:
        _thread.moment = next(_numbers)


class known:  # noqa: N801 - a context manager, as `contextlib.suppress`
    """In the block users' code runs in this thread only where `running` or `has_run` says so."""

    def __enter__(self) -> None:
        self._is_outermost = _thread.moment is None
        if self._is_outermost:
            _thread.moment = next(_numbers)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_outermost:
            _thread.moment = None


class running:  # noqa: N801
    """In the block users' code runs, and may have changed anything before each call of it."""

    def __enter__(self) -> None:
        self._was_known = _thread.moment is not None
        _thread.moment = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._was_known:
            _thread.moment = next(_numbers)
