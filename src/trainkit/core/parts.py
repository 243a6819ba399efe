"""Parts: objects that files describe by their class's name and the arguments of its constructor."""

import inspect
import sys
from typing import Any

import numpy as np


class Part:
    """A part of a policy, such as a value, a backup or a schedule, which can be made again from its arguments.

    A part keeps each argument of its constructor in an attribute of the same name, or overrides `arguments`. Those that
    `trainkit` exports are described in checkpoints and made again by `load_policy`.
    """

    __slots__ = ()

    def arguments(self) -> dict[str, Any]:
        """Return the arguments with which the constructor makes a part like this one."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}


def to_plain(value: Any) -> Any:
    """Describe an argument in values that JSON keeps; raise TypeError where it cannot be described.

    A part becomes {"part": its class's name, "of": its arguments}.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [to_plain(child) for child in value]
    name = type(value).__name__
    if not isinstance(value, Part) or _exported().get(name) is not type(value):
        raise TypeError(f"{value!r} is not a part that trainkit exports")
    return {"part": name, "of": {argument: to_plain(child) for argument, child in value.arguments().items()}}


def from_plain(plain: Any) -> Any:
    """Make what `to_plain` described; raise LookupError, TypeError or ValueError for anything else.

    Only exported parts are made: a file cannot call anything else.
    """
    if isinstance(plain, list):
        return tuple(from_plain(child) for child in plain)
    if isinstance(plain, dict):
        return _exported()[plain["part"]](**{name: from_plain(child) for name, child in plain["of"].items()})
    return plain


def _exported() -> dict[str, type[Part]]:
    """Return the parts that the package exports, by their classes' names."""
    modules = [vars(sys.modules[name]) for name in ("trainkit", "trainkit.buffer", "trainkit.schedules")]
    exported = {name: kind for module in modules for name, kind in module.items()}
    return {name: kind for name, kind in exported.items() if isinstance(kind, type) and issubclass(kind, Part)}
