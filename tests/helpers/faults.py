"""Faults planted on purpose, to see that a test notices."""

import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One line of the source gone wrong, and the check, a test without arguments, that must fail by it."""

    owner: Any  # the class of the method, or the module that calls the function
    function: str
    old: str
    new: str
    check: Callable[[], None]

    def plant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replace the function by one whose source was edited, until the test ends."""
        original = inspect.unwrap(getattr(self.owner, self.function))
        source = textwrap.dedent(inspect.getsource(original))
        assert source.count(self.old) == 1, f"{self.old!r} must be once in {self.function}, to be edited"
        made: dict[str, Any] = {}
        module = vars(sys.modules[original.__module__])
        exec(source.replace(self.old, self.new), module, made)  # noqa: S102 - our own source, edited
        monkeypatch.setattr(self.owner, self.function, made[self.function])


def assert_noticed(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the check passes on the source as it is, and fails with the fault in it."""
    fault.check()
    fault.plant(monkeypatch)
    with pytest.raises(AssertionError):
        fault.check()
