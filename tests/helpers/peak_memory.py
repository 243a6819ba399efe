"""How much memory Python and numpy allocate at most."""

import tracemalloc
from collections.abc import Callable
from typing import Any


def peak_of(work: Callable[[], Any]) -> tuple[Any, int]:
    """Return what `work` returns, and the most memory that was allocated in addition while it ran."""
    tracemalloc.start()
    try:
        return work(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
