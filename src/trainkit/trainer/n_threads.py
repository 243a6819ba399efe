"""On how many threads torch computes while a trainer runs."""

from types import TracebackType
from typing import Protocol

from trainkit.core.errors import ConfigError


class Threaded(Protocol):
    """Who computes on a number of threads that may be set."""

    @property
    def n_threads(self) -> int: ...

    @n_threads.setter
    def n_threads(self, count: int) -> None: ...


class Threads:
    """Let a policy compute on `wanted` threads within, and as before afterwards; None leaves them as they are."""

    def __init__(self, policy: Threaded, wanted: int | None) -> None:
        if wanted is not None and not hasattr(policy, "n_threads"):
            raise ConfigError(f"threads={wanted!r} needs a policy with n_threads, {type(policy).__name__} has none")
        self._policy = policy
        self._wanted = None if wanted is None else int(wanted)
        self._before: int | None = None  # outside; None where that is where we are, or nothing is wanted

    @property
    def count(self) -> int | None:
        """The number that is computed on within; None where the policy does not know."""
        return getattr(self._policy, "n_threads", None) if self._wanted is None else self._wanted

    def __enter__(self) -> None:
        if self._wanted is not None:
            self._before, self._policy.n_threads = self._policy.n_threads, self._wanted

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._before is not None:
            self._policy.n_threads, self._before = self._before, None
