"""What engines that record functions share: torch executes what cannot be recorded, and the engine says why."""

import logging
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from trainkit.core.errors import ConfigError
from trainkit.engine.changes import Changes
from trainkit.engine.engine import Engine

_log = logging.getLogger(__name__)


class GaveUpError(Exception):
    """A function cannot be recorded, or not any more.

    Attributes:
        results: those of the call in which that was found, by torch; None where torch has not computed them.
    """

    def __init__(self, reason: str, results: Any = None) -> None:
        super().__init__(reason)
        self.results = results


class Recorded(Protocol):
    """A function of a policy that has been called."""

    @property
    def reason_for_torch(self) -> str | None:
        """Why torch executes it now; None where a recording does, or will."""


class RecordingEngine(Engine):
    """The base class of engines that record functions of a policy, and execute what they recorded.

    Chosen by "auto", it leaves everything to torch once a function cannot be recorded, and says so; chosen by its name
    it raises an error instead.

    Attributes:
        gave_up: why nothing is recorded any more, None while something is.
    """

    gave_up: str | None = None
    _own_name: str  # of the engine

    @abstractmethod
    def _recorded(self) -> Iterable[Recorded]:
        """Return the functions that have been called."""

    @property
    def name(self) -> str:
        """The engine that executes now: its own name, or "torch"."""
        return self._own_name if self.gave_up is None and None in self._reasons_for_torch() else super().name

    @property
    def reason(self) -> str:
        """The reason why this engine executes."""
        if self.gave_up is not None:
            return self.gave_up
        return "; ".join(one for one in self._reasons_for_torch() if one is not None) or super().reason

    def _reasons_for_torch(self) -> list[str | None]:
        """Return why torch executes each function for now, None for one that a recording executes."""
        functions = list(self._recorded())
        if not functions:
            return ["a hook is registered" if Changes(self._policy, self._ignored).is_observed else None]
        return [function.reason_for_torch for function in functions]

    def give_up(self, reason: str) -> None:
        """Use torch from now on.

        Raises:
            ConfigError: the engine was chosen by its name.
        """
        subject = type(self._policy).__name__
        if self.wanted != "auto":
            raise ConfigError(
                f"{subject}.engine {self.wanted!r} cannot execute its functions: {reason}. Use 'auto' or 'torch'"
            )
        self.gave_up = reason
        self.forget()
        _log.info("%s uses the engine torch: %s", subject, reason)

    def state_dict(self) -> dict[str, Any]:
        """Return why nothing is recorded any more, if so, and on which type of device."""
        state = {**super().state_dict(), "gave_up": self.gave_up}
        return state if self.gave_up is None else {**state, "device": self._device.type}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved state; what could not be recorded on another type of device may be possible here."""
        super().load_state_dict(state)
        self.gave_up, reason = None, state.get("gave_up")
        if reason is not None and state.get("device", "cpu") == self._device.type:
            self.give_up(str(reason))
