"""Settings of live objects as plain values: an object becomes its class, and the arguments of its constructor."""

import functools
import inspect
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space

from trainkit.core.schedules import Checked, Constant, Piecewise

_DEEPEST = 8  # levels of objects within objects
_LONGEST = 32  # elements of an array that are listed

Plain = bool | int | float | str | list[Any] | None


def described(path: str, value: object, *, known: Collection[object] = ()) -> dict[str, Plain]:
    """Return the settings of an object, flat: {path: its class, path/argument: value, path/argument/argument: ...}.

    Arguments are read from `arguments()`, where the object has that method, as a `Part` does, else from attributes of
    the same name, or with an underscore before it; those that the object did not keep are left out. A schedule is its
    number or its knots, a function its name.

    Args:
        path: of the object, such as "policy/value"; "" for a mapping whose names are the paths.
        value: a plain value, a collection, or any object.
        known: objects that are described elsewhere, and left out.
    """
    return dict(_walk(path, value, {id(one) for one in known}, 0))


def _walk(path: str, value: object, seen: set[int], depth: int) -> Iterator[tuple[str, Plain]]:
    """Yield (path, plain value) of a value and everything in it, an object only once within itself."""
    plain, is_plain = _as_plain(value)
    if is_plain:
        yield path, plain
        return
    if id(value) in seen or depth > _DEEPEST:
        return
    seen = seen | {id(value)}
    if isinstance(value, functools.partial):
        yield path, _name_of(value.func)
        children: Mapping[Any, object] = value.keywords
    elif isinstance(value, Mapping):
        children = value
    elif isinstance(value, (list, tuple)):
        yield path, [_title(one) for one in value]
        children = {index: one for index, one in enumerate(value) if not _as_plain(one)[1]}
    else:
        yield path, type(value).__name__
        children = _arguments(value)
    for name, child in children.items():
        yield from _walk(f"{path}/{name}" if path else str(name), child, seen, depth + 1)


def _as_plain(value: object) -> tuple[Plain, bool]:
    """Return (plain value, True) of a value that has no arguments to list, else (None, False)."""
    if isinstance(value, Checked):
        value = value.function
    if isinstance(value, (Constant, Piecewise)):
        value = value.value if isinstance(value, Constant) else value.knots
    if value is None or isinstance(value, (bool, int, float, str)):
        return value, True
    if isinstance(value, np.generic):
        return value.item(), True
    if isinstance(value, np.ndarray):
        is_short = value.size <= _LONGEST and value.dtype.kind in "biufU"
        return value.tolist() if is_short else f"{value.dtype.name}{list(value.shape)}", True
    if isinstance(value, (list, tuple, set, frozenset)) and all(_as_plain(one)[1] for one in value):
        return [_as_plain(one)[0] for one in value], True
    if isinstance(value, (Path, Space, np.dtype)):
        return str(value), True
    if isinstance(value, type) or inspect.isroutine(value):
        return _name_of(value), True
    return None, False


def _arguments(value: object) -> dict[str, object]:
    """Return the arguments of an object's constructor that it knows."""
    own = getattr(value, "arguments", None)
    if callable(own):
        return dict(own())
    try:
        names = list(inspect.signature(type(value)).parameters)
    except (TypeError, ValueError):  # of classes written in C
        return {}
    kept = dict(getattr(value, "__dict__", {}))
    slots = {name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())}
    kept |= {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return {name: kept.get(name, kept.get(f"_{name}")) for name in names if name in kept or f"_{name}" in kept}


def _title(value: object) -> Plain:
    """Return an element of a list: its plain value, or the name of its class."""
    plain, is_plain = _as_plain(value)
    return plain if is_plain else type(value).__name__


def _name_of(function: Any) -> str:
    """Return the path of a class or function."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    module = getattr(function, "__module__", None)
    return f"{module}.{name}" if module else str(name)
