"""What is done while environments step: timed apart, and what it raises waits until the step is whole."""

import time
from types import TracebackType
from typing import Self

from trainkit.collector.episodes import Tally
from trainkit.envs.backends import Work


class Meanwhile:
    """Do something within each step that is entered, and on leaving it raise what it raised.

    Attributes:
        call: what; None is nothing.
        tally: of the collect, whose time it does not count.
        seconds: that it took, in the last step.
        is_at_work: whether it is being done, and environments may be in the middle of a step.
    """

    def __init__(self) -> None:
        self.call: Work | None = None
        self.tally = Tally()
        self._error: BaseException | None = None
        self.seconds = 0.0
        self.is_at_work = False

    @property
    def has_failed(self) -> bool:
        """Whether it raised in this step, which will be raised on leaving."""
        return self._error is not None

    @property
    def work(self) -> Work:
        """What is to be called within the step; it raises nothing."""
        return None if self.call is None else self._do

    def _do(self) -> None:
        assert self.call is not None
        began = time.perf_counter()
        self.is_at_work = True
        try:
            self.call()
        except BaseException as error:  # noqa: BLE001  # raised on leaving
            self._error = error
        self.is_at_work = False
        self.seconds = time.perf_counter() - began
        self.tally.seconds -= self.seconds

    def __enter__(self) -> Self:
        self.seconds = 0.0
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        own, self._error = self._error, None
        if own is None:
            return
        if error is None or (isinstance(error, Exception) and not isinstance(own, Exception)):  # Ctrl-C comes first
            raise own
        error.add_note(f"and what was done meanwhile raised {own!r}")
