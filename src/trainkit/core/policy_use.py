"""One thread at a time acts and learns with a policy: its modes and the memory of its programs are shared."""

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from trainkit.core.errors import BusyError

_registering = threading.Lock()
_locks: "weakref.WeakKeyDictionary[object, threading.RLock]" = weakref.WeakKeyDictionary()


class PolicyUse:
    """The right of one thread to act and learn with a policy, the same for all who hold the policy.

    Args:
        policy: of a trainer or a collector.
    """

    def __init__(self, policy: object) -> None:
        self._name = type(policy).__name__
        with _registering:
            self._lock = _locks.setdefault(policy, threading.RLock())

    @contextmanager
    def by_this_thread(self) -> Iterator[None]:
        """Use the policy inside the block; a thread may enter again.

        Raises:
            BusyError: another thread uses it.
        """
        if not self._lock.acquire(blocking=False):
            raise BusyError(
                f"another thread trains or plays with this {self._name}, whose results both would change: give this "
                "thread a copy, copy.deepcopy(policy), or evaluate in another process, Evaluation(background=True)"
            )
        try:
            yield
        finally:
            self._lock.release()
