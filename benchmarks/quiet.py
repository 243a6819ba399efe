"""A machine that one measurement has for itself: the queue of runs waits meanwhile, and other measurements too."""

import fcntl
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = Path(tempfile.gettempdir()) / "trainkit-measures-time.lock"
POLL_SECONDS = 0.5  # between two looks of the queue


@contextmanager
def quiet_machine(lock: Path = LOCK) -> Iterator[None]:
    """Measure time inside the block, or as a decorator inside the function: `make runs-next` is paused until it ends.

    A second measurement waits for the first.
    """
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        time.sleep(2 * POLL_SECONDS)  # until the queue has seen it
        yield


def is_measuring(lock: Path = LOCK) -> bool:
    """Return whether a measurement is being made."""
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
