"""What is done while environments step: timed apart, and what it raises waits until the step is whole."""

import time
from types import TracebackType
from typing import Self

from trainkit.collector.backends import Work


class Meanwhile:
    """Call some work, if there is any; on leaving, raise what it raised.

    Attributes:
        seconds: that it took.
    """

    def __init__(self, work: Work | None) -> None:
        self._work = work
        self._error: BaseException | None = None
        self.seconds = 0.0

    def __call__(self) -> None:
        if self._work is None:
            return
        began = time.perf_counter()
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001  # raised on leaving
            self._error = error
        self.seconds += time.perf_counter() - began

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        own, self._error = self._error, None
        if own is not None:
            raise own
