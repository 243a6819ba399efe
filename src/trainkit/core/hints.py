"""Whether a value is what an annotation says, and what it says in words."""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import numpy as np

_WORDS = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a str",
    NoneType: "None",
    Path: "a Path",
    Callable: "callable",
    Mapping: "a mapping",
    dict: "a dict",
    np.ndarray: "an array",
}


def says_all(hint: Any) -> bool:
    """Whether an annotation tells all there is to know.

    Flags and classes do. Numbers have a range, words a list, sequences a length.
    """
    return all(_tells_all(_origin(member)) for member in _members(hint))


def _tells_all(kind: Any) -> bool:
    if kind in (bool, NoneType):
        return True
    plain = ("builtins", "typing", "collections.abc", "inspect", "pathlib", "numpy")
    return inspect.isclass(kind) and kind.__module__ not in plain


def misfit(value: object, hint: Any) -> str | None:
    """Say what a value must be and is not, None where it is or nobody can tell."""
    if fits(value, hint):
        return None
    shown = repr(value)
    if len(shown) > 60 or "\n" in shown:
        shown = type(value).__name__
    protocols = [kind for kind in map(_origin, _members(hint)) if is_protocol(kind)]
    is_plain = isinstance(value, (str, NoneType))  # no object of which a part is missing
    lacking = ", ".join(_lacking(value, protocols[0])[:3]) if protocols and not is_plain else ""
    return f"must be {_in_words(hint)}, got {shown}" + (f", which has no {lacking}" if lacking else "")


def fits(value: object, hint: Any) -> bool:
    """Whether a value is what an annotation says; what this function does not know fits."""
    members = _members(hint)
    if len(members) > 1:
        return any(fits(value, member) for member in members)
    kind, inner = _origin(members[0]), get_args(members[0])
    if kind is Literal:
        return value in inner
    if kind in (Sequence, tuple, list):
        if isinstance(value, str) or not isinstance(value, (Sequence, np.ndarray)):
            return False
        if kind is tuple and inner[1:] != (...,):
            return len(value) == len(inner) and all(fits(one, of) for one, of in zip(value, inner, strict=True))
        return all(fits(one, inner[0]) for one in value if inner)
    if kind is Callable:
        return callable(value)
    if kind is type:
        return inspect.isclass(value) and (not inner or issubclass(value, inner[0]))
    if not inspect.isclass(kind) or kind in (Any, object, inspect.Parameter.empty):
        return True
    if kind is bool:
        return isinstance(value, (bool, np.bool_))
    if kind in (int, float):
        is_number = isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
        return is_number and value == value  # nan is none
    if kind is Path:
        return isinstance(value, os.PathLike)
    return not _lacking(value, kind) if is_protocol(kind) else isinstance(value, kind)


def is_stranger(value: object, hint: Any) -> bool:
    """Whether a value does not fit and has nothing, either, of what a protocol asks for: no part with a gap."""
    asked = [name for kind in map(_origin, _members(hint)) if is_protocol(kind) for name in _asked(kind)]
    return not fits(value, hint) and not any(hasattr(value, name) for name in asked if name != "__call__")


def is_protocol(kind: Any) -> bool:
    """Whether a class is a protocol."""
    return bool(getattr(kind, "_is_protocol", False))


def _lacking(value: object, protocol: Any) -> list[str]:
    """Return what a protocol asks for and a value does not have."""
    return [name for name in _asked(protocol) if not hasattr(value, name)]


def _asked(protocol: Any) -> list[str]:
    """Return the public names, and `__call__`, that a protocol asks for."""
    kinds = [kind for kind in protocol.__mro__ if is_protocol(kind)]
    names = {name for kind in kinds for name in (*vars(kind), *kind.__annotations__)}
    return sorted(name for name in names if not name.startswith("_") or name == "__call__")


def _members(hint: Any) -> tuple[Any, ...]:
    """Return the annotations a union is of, or the one there is."""
    if isinstance(hint, TypeVar):
        hint = Any if hint.__bound__ is None else hint.__bound__
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (NoneType if hint is None else hint,)


def _origin(hint: Any) -> Any:
    return get_origin(hint) or hint


def _in_words(hint: Any) -> str:
    members = _members(hint)
    if len(members) > 1:
        return " or ".join(dict.fromkeys(map(_in_words, members)))
    kind, inner = _origin(hint), get_args(hint)
    if kind is Literal:
        return " or ".join(map(repr, inner))
    if kind in (Sequence, tuple, list):
        of = [one for one in inner[: 1 if kind is not tuple else None] if one is not ...]
        return "a sequence" + (f" of {', '.join(map(_in_words, of))}" if of else "")
    if kind is type:
        return f"a class like {inner[0].__name__}" if inner else "a class"
    name = getattr(kind, "__name__", str(kind))
    return _WORDS.get(kind, f"a{'n' * (name[0] in 'AEIO')} {name}")
