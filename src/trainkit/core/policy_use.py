"""One thread at a time acts and learns with a policy: its modes and the memory of its programs are shared."""

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from trainkit.core.errors import BusyError
from trainkit.core.protocols import ActingPolicy

_registering = threading.Lock()
_locks: "weakref.WeakKeyDictionary[object, threading.RLock]" = weakref.WeakKeyDictionary()


class PolicyUse:
    """The right of one thread to act and learn with a policy, and all policies in it, the same for all who hold them.

    Args:
        policy: of a trainer or a collector.
    """

    def __init__(self, policy: ActingPolicy) -> None:
        self._policy, self._lock = policy, _lock_of(policy)

    @contextmanager
    def by_this_thread(self) -> Iterator[None]:
        """Use the policy inside the block; a thread may enter again.

        Raises:
            BusyError: another thread uses it, or one of the policies in it.
        """
        held: list[threading.RLock] = []
        try:
            for policy, lock in (
                (self._policy, self._lock),
                *((own, _lock_of(own)) for own in self._policy.policies.values()),
            ):
                if not lock.acquire(blocking=False):
                    raise BusyError(
                        f"another thread trains or plays with this {type(policy).__name__}, whose results both would "
                        "change: give this thread a copy, copy.deepcopy(policy), or evaluate in another process, "
                        "BackgroundEvaluation()"
                    )
                held.append(lock)
            yield
        finally:
            for lock in held:
                lock.release()


def _lock_of(policy: object) -> threading.RLock:
    """Return the lock of a policy, the same for all callers."""
    with _registering:
        return _locks.setdefault(policy, threading.RLock())
