"""The warnings of a run: what its callbacks found wrong with it, and in which epochs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from trainkit.core.stats import RunWarning

_PAUSE = 5  # epochs without a finding after which it counts as new, and is printed in full again


class RunWarnings:
    """All warnings of a run, by name.

    Attributes:
        by_name: those of all epochs, each as it was last found.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all warnings."""
        self.by_name: dict[str, RunWarning] = {}

    def add(self, epoch: int, found: Mapping[str, str]) -> dict[str, RunWarning]:
        """Add what was found in an epoch, {name: message}; return its warnings with the epoch in which each began."""
        new = {}
        for name, message in found.items():
            before = self.by_name.get(name)
            continues = before is not None and before.last_epoch >= epoch - _PAUSE
            first = before.first_epoch if before is not None and continues else epoch
            new[name] = RunWarning(name=name, message=message, first_epoch=first, last_epoch=epoch)
        self.by_name |= new
        return new

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the warnings in plain values."""
        return [asdict(warning) for warning in self.by_name.values()]

    def load_state_dict(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Restore saved warnings."""
        self.by_name = {saved["name"]: RunWarning(**saved) for saved in state}
