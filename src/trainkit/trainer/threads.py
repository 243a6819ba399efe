"""On how many threads torch computes while a trainer runs: a number that was asked for, or the quickest of a few."""

import logging
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal, Protocol

from trainkit.errors import ConfigError
from trainkit.trial import Trial

_log = logging.getLogger(__name__)

_TRIES = 9  # training steps with updates, of each number: an odd one, for the median


class Threaded(Protocol):
    """Who computes on a number of threads that may be set."""

    @property
    def n_threads(self) -> int: ...

    @n_threads.setter
    def n_threads(self, count: int) -> None: ...


class Threads:
    """Let a policy compute on `wanted` threads within, and as before afterwards; None leaves them as they are.

    "auto" tries powers of two up to the cores there are, in turn, a training step each, and stays with the fewest that
    are about as quick as any.
    """

    def __init__(self, policy: Threaded, wanted: int | Literal["auto"] | None) -> None:
        if wanted is not None and not hasattr(policy, "n_threads"):
            raise ConfigError(f"threads={wanted!r} needs a policy with n_threads, {type(policy).__name__} has none")
        self._policy = policy
        self._is_auto = wanted == "auto"
        self._trial = (
            Trial(candidates(n_cores()), n_tries=_TRIES) if wanted == "auto" else None
        )  # None where all is decided
        self._count = wanted if isinstance(wanted, int) else None  # what is decided
        self._before: int | None = None  # outside; None where that is where we are, or nothing is wanted
        self._seconds, self._n_updates = 0.0, 0  # told until now

    @property
    def count(self) -> int | None:
        """The number that is computed on within; None where the policy does not know, or "auto" has not decided."""
        if self._trial is not None:
            return None
        return getattr(self._policy, "n_threads", None) if self._count is None else self._count

    def __enter__(self) -> None:
        count = self._count if self._trial is None else self._trial.next
        if count is not None:
            self._before, self._policy.n_threads = self._policy.n_threads, count

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._before is not None:
            self._policy.n_threads, self._before = self._before, None

    def note(self, seconds: float, n_updates: int) -> None:
        """Hear what updates took so far, and how many they were; try another number with the next ones."""
        trial = self._trial
        if trial is None:
            return
        made = n_updates - self._n_updates
        if made > 0:
            trial.add((seconds - self._seconds) / made)
            self._policy.n_threads = trial.next
            if trial.is_over:
                self._trial, self._count = None, trial.next
                _log.info("updates take %s: threads=%d", trial, trial.next)
        self._seconds, self._n_updates = seconds, n_updates

    def state_dict(self) -> dict[str, int | None]:
        """Return what "auto" has decided."""
        return {"count": self._count if self._is_auto else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Compute on as many as the run that was saved, should that have been left to us: the bits depend on it."""
        if self._is_auto and state["count"] is not None:
            self._trial, self._count = None, state["count"]


def candidates(cores: int) -> list[int]:
    """List 1, 2, 4, ... and the number of cores."""
    powers = [1 << power for power in range(cores.bit_length()) if 1 << power < cores]
    return [*powers, cores]


def n_cores() -> int:
    """Count the cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
