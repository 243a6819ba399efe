"""Calls that fit: arguments of a wrong name or kind are refused like those of a wrong value, all at once.

Python says of a misspelt option only that it is unexpected, and of a flag that is a word nothing at all. `guard` goes
over the public names once, when the package is loaded; signatures stay as they are, for readers, editors and type
checkers. Flags and parts are looked at before a call. Numbers, words and functions are left to the one who is called
and knows their range; where that ends in an error of Python's own, the annotations tell whose fault it was.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from types import ModuleType
from typing import Any, get_args, is_typeddict

from trainkit.core.errors import ConfigError, TrainkitError
from trainkit.core.hints import is_protocol, is_stranger, misfit, says_all
from trainkit.core.names import nearest_word, similarity, suggest, translate

Function = Callable[..., Any]

_PACKAGE = __name__.partition(".")[0]

_GUARDED: set[Function] = set()
_takers: dict[str, list[str]] = {}  # {option: public calls that take it}


def guard(public: ModuleType) -> None:
    """Let the public classes, functions and presets of a module refuse arguments that do not fit."""
    functions: dict[Function, Function] = {}  # {bare: guarded}
    for name in public.__all__:
        thing = getattr(public, name)
        if inspect.ismodule(thing):
            guard(thing)
        elif inspect.isfunction(thing):
            functions[thing] = _guarded(thing, name)
        elif not inspect.isclass(thing) and callable(thing):
            for kind in type(thing).__mro__:
                if inspect.isfunction(vars(kind).get("__call__")):
                    _guard_member(kind, "__call__", repr(thing))
        elif inspect.isclass(thing) and not (issubclass(thing, Exception) or is_protocol(thing)):
            _guard_class(thing)
    _replace(functions)


def _guard_class(kind: type) -> None:
    """Guard a class's constructor and its other makers, wherever in this package they are defined."""
    if not any({"__init__", "__new__"} & vars(base).keys() for base in kind.__mro__[:-1]):
        setattr(kind, "__init__", _bare_init(kind))  # noqa: B010  # mypy knows no assignment to it
    for base in kind.__mro__:
        if _is_ours(base):
            for name, member in list(vars(base).items()):
                if name == "__init__" or (isinstance(member, classmethod) and not name.startswith("_")):
                    _guard_member(base, name, kind.__name__ if name == "__init__" else f"{kind.__name__}.{name}")


def _guard_member(kind: type, name: str, taker: str) -> None:
    member = vars(kind)[name]
    if isinstance(member, classmethod):
        setattr(kind, name, classmethod(_guarded(member.__func__, taker)))
    else:
        setattr(kind, name, _guarded(member, taker, is_record=is_dataclass(kind)))


def _replace(functions: Mapping[Function, Function]) -> None:
    """Put guarded functions in every place of this package where the bare ones are known."""
    for module in [module for name, module in sys.modules.items() if name.partition(".")[0] == _PACKAGE]:
        for name, thing in list(vars(module).items()):
            if inspect.isfunction(thing) and thing in functions:
                setattr(module, name, functions[thing])


def _guarded(function: Function, taker: str, *, is_record: bool = False) -> Function:
    """Wrap a function so that a call that does not fit raises `ConfigError`, and note who takes its options.

    A record is made at every step, by us, and only looked at when Python refuses it.
    """
    bare: Function = inspect.unwrap(function)
    shape = _Shape.of(bare)
    for name in shape.options:
        _takers.setdefault(name, []).append(taker)
    if function in _GUARDED:
        return function
    looks_first = not is_record and (bool(shape.told) or shape.has_rest)  # Python would not, or not at once

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        if looks_first:
            _refuse_misfits(bare, args, options)
        try:
            return function(*args, **options)
        except TrainkitError:
            raise
        except Exception as error:
            _refuse_misfits(bare, args, options, error)
            raise

    _GUARDED.add(call)
    return call


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """What a function takes."""

    by_position: list[str]
    takes_any_number: bool
    required: list[str]
    options: list[str]  # of those in the signature, the ones with a default
    hints: dict[str, Any]  # annotations of what can be given by name, in a typed `**` too
    told: set[str]  # whose annotations say all there is to know
    has_rest: bool  # a `**`
    hands_on: bool  # it is not typed: others know its names

    @classmethod
    @functools.cache
    def of(cls, function: Function) -> "_Shape":
        """Read it off the signature."""
        own = list(inspect.signature(function).parameters.values())
        by_position = [one.name for one in own if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        by_name = [one for one in own if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
        rest = [one for one in own if one.kind is one.VAR_KEYWORD]
        typed = [kind for one in rest for kind in get_args(one.annotation) if is_typeddict(kind)]
        named = {*by_position, *(one.name for one in by_name)}
        hints = {one.name: one.annotation for one in by_name}
        for kind in typed:
            hints |= kind.__annotations__
        return cls(
            by_position=by_position,
            takes_any_number=any(one.kind is one.VAR_POSITIONAL for one in own),
            required=[one.name for one in own if one.name in named and one.default is one.empty],
            options=[one.name for one in by_name if one.default is not one.empty],
            hints=hints,
            told={name for name, hint in hints.items() if says_all(hint)},
            has_rest=bool(rest),
            hands_on=bool(rest) and not typed,
        )


def _refuse_misfits(
    function: Function, args: tuple[Any, ...], options: Mapping[str, Any], error: Exception | None = None
) -> None:
    """Refuse a call that does not fit a function, with everything that is wrong about it; all of it after an error."""
    shape = _Shape.of(function)
    subject = _subject(function, args)
    problems: list[str] = []
    if len(args) > len(shape.by_position) and not shape.takes_any_number:
        shown = [name for name in shape.by_position if name not in ("self", "cls")]
        n_given = len(args) - len(shape.by_position) + len(shown)
        told = f"only {', '.join(shown)}" if shown else "nothing"
        problems.append(f"{subject} takes {told} by position, got {n_given} arguments: give options by name")
    by_position = dict(zip(shape.by_position, args, strict=False))
    known, takes_others = _known(function, args)
    for name, value in (by_position | dict(options)).items():
        if name not in known and name in options and not takes_others:
            problems.append(f"{subject}: unknown option {name!r}{_hint(name, known)}")
        elif name in by_position and name in options:
            problems.append(f"{subject}.{name} was given by position and by name: give it once")
        elif error or (name in shape.told and is_stranger(value, known[name])):
            wrong = misfit(value, known.get(name, Any))
            problems += [] if wrong is None else [f"{subject}.{name} {wrong}"]
    missing = [name for name in shape.required if name not in by_position and name not in options]
    if missing:
        problems.append(f"{subject} needs {', '.join(missing)}")
    if problems:
        raise ConfigError("\n".join(problems)) from error


def options_of(maker: Any) -> list[str]:
    """Return the names of all options that a class method making an instance knows, its constructor's among them."""
    known, _ = _known(inspect.unwrap(maker.__func__), (maker.__self__,))
    return [name for name in known if name != "return"]


def _known(function: Function, args: tuple[Any, ...]) -> tuple[dict[str, Any], bool]:
    """Return the annotations of all options that a call knows, handed on ones too, and whether it may know others."""
    members = [function]
    if function.__name__ == "__init__":  # hands on to the same one of a base
        members = _definitions(type(args[0]), function)
    elif _is_maker(function):  # so does another maker, and the last one hands on to the constructor
        members = _definitions(args[0], function) + _definitions(args[0], args[0].__init__)
    hints: dict[str, Any] = {}
    for member in members:
        shape = _Shape.of(member)
        hints = shape.hints | hints
        if not shape.hands_on:
            return hints, False
    return hints, True


def _definitions(kind: type, first: Function) -> list[Function]:
    """Return a class's members of one name and its bases', in order, from one of them on, bare."""
    found = [vars(base)[first.__name__] for base in kind.__mro__ if first.__name__ in vars(base)]
    bare = [inspect.unwrap(one.__func__ if isinstance(one, classmethod) else one) for one in found]
    return bare[bare.index(inspect.unwrap(first)) :]


def _hint(name: str, known: Mapping[str, Any]) -> str:
    """Return which option was meant, or which other call takes one of this name."""
    takers = _takers.get(name, [])
    if "env_options" in known and "make_envs" in takers:
        return f", did you mean env_options={{{name!r}: ...}}?"
    translated = translate(name, known, _takers)
    if translated:
        return translated
    best = nearest_word(name, known)
    if takers and (best is None or similarity(name, best) < 0.8):
        return f": it belongs to {', '.join(dict.fromkeys(takers[:3]))}"
    return suggest(name, known)


def _subject(function: Function, args: tuple[Any, ...]) -> str:
    """Name what was called."""
    name = function.__name__
    if name == "__init__":
        return type(args[0]).__name__
    if name == "__call__":
        return repr(args[0])
    return f"{args[0].__name__}.{name}" if _is_maker(function) else name


def _is_maker(function: Function) -> bool:
    """Whether it is a class's method that makes one of it."""
    return _Shape.of(function).by_position[:1] == ["cls"]


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == _PACKAGE


def _bare_init(kind: Any) -> Function:
    """Make what a class without a constructor has: one that takes nothing, and hands on where others follow it."""

    def __init__(self: Any) -> None:  # noqa: N807  # that is its name
        """Take no arguments."""
        super(kind, self).__init__()

    return __init__
