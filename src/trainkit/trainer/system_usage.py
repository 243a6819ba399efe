"""What a run uses of the machine: memory and processor of its process, and the device's memory."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

MEGABYTE = 1e6
_MEMORY = Path("/proc/self/statm")  # of Linux: pages of memory, those resident second


class ProcessorTime:
    """The processor time of this process, all threads together, since an interval began."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def cores(self) -> float | None:
        """Return how many cores were busy on average, None where no time has passed."""
        wall = time.perf_counter() - self._wall
        return (time.process_time() - self._cpu) / wall if wall > 0 else None


def resident_memory() -> int | None:
    """Return the bytes of memory that this process holds, at its peak where the system does not say the present."""
    try:
        return int(_MEMORY.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError, AttributeError):
        pass
    try:
        import resource
    except ImportError:  # on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def system_usage(processor: ProcessorTime, device_memory: Callable[[], dict[str, int]]) -> dict[str, float]:
    """Return metrics of the machine, those that are known: {"memory_mb": 512.0, "cpu_cores": 1.9, ...}.

    Args:
        processor: since the interval began.
        device_memory: of the policy's device, in bytes: {"device_memory": ..., "device_memory_peak": ...}.
    """
    memory, cores = resident_memory(), processor.cores()
    metrics = {} if memory is None else {"memory_mb": memory / MEGABYTE}
    metrics |= {} if cores is None else {"cpu_cores": cores}
    return metrics | {f"{name}_mb": n_bytes / MEGABYTE for name, n_bytes in device_memory().items()}
