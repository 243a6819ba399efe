"""Argument checks of the public API: `@checked` reports every mistake of a call at once, with the option meant.

    @checked
    class DQNPolicy(Policy): ...      # its constructor and its class methods that make one

    @checked
    def make_envs(env, n, ...): ...

    class Trainer:
        @checked
        def save(self, path, *, include=None, ...): ...

Python says of a misspelled option only that it is unexpected, and accepts a flag that is a word. A checked call raises
`ConfigError` instead: for unknown options, with the name that was misspelled; for missing and surplus arguments; for
flags and parts of another type. Ranges and choices stay with the callee, which knows them; where it fails with an error
of Python's own, all annotations are compared and name the wrong argument.

Signatures stay as they are, for readers, editors and type checkers; `inspect.signature`, as completion in
notebooks reads it, names the options that a `**` stands for. Not for functions that run in every training step.
"""

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import numpy as np
from typing_extensions import get_protocol_members, is_protocol, is_typeddict

from trainkit.core.assignments import ReadOnly
from trainkit.core.errors import ConfigError, TrainkitError
from trainkit.core.names import OTHER_LIBRARIES, option_hint, schedule_hint
from trainkit.core.typed_options import types_of

Function = Callable[..., Any]
Public = TypeVar("Public", bound=Function)
Kind = TypeVar("Kind", bound=type)

_public: list[Function] = []  # every checked class and function, and every preset


def checked(public: Public) -> Public:
    """Check the arguments of a public function, or of a class's constructor and its class methods.

    A class inherits the checks of its bases; a subclass's own constructor is not checked until it calls a base's. The
    class's public properties without a setter become `ReadOnly`.
    """
    if not inspect.isclass(public):
        if _Signature.of(public).positional[:1] not in (["self"], ["cls"]):
            list_options(public)
        same_signature: Public = _with_known_options(_checked_function(public), None)
        return same_signature
    list_options(public)
    if not any({"__init__", "__new__"} & vars(base).keys() for base in public.__mro__[:-1]):
        setattr(public, "__init__", _empty_init(public))  # noqa: B010  # mypy allows no assignment to it
    for name, member in list(vars(public).items()):
        if name == "__init__":
            constructor = _with_known_options(_checked_function(member), public)
            constructor.__doc__ = member.__doc__ or f"Make a {public.__name__}; its class describes the arguments."
            setattr(public, name, constructor)
        elif isinstance(member, classmethod) and not name.startswith("_"):
            setattr(public, name, classmethod(_with_known_options(_checked_function(member.__func__), public)))
    read_only(public)
    return public


def read_only(kind: Kind) -> Kind:
    """Make the public properties of a class that have no setter `ReadOnly`; for bases that are not `@checked`."""
    for name, member in list(vars(kind).items()):
        if type(member) is property and member.fset is None and not name.startswith("_"):
            assert member.fget is not None, "every property is read"
            setattr(kind, name, ReadOnly(member.fget, options_of))
    return kind


def _with_known_options(function: Any, owner: type | None) -> Any:
    """Have `inspect.signature`, and so completion in notebooks, name the options that `**` stands for."""
    own = inspect.signature(function)
    rest = [one for one in own.parameters.values() if one.kind is one.VAR_KEYWORD]
    if rest:
        bare: Function = inspect.unwrap(function)
        known, forwards = _known_options(bare, owner)
        left_out = {*own.parameters, "self", "return", _made_by(bare, owner)}
        defaults = _defaults(bare, owner)
        shown = [one for one in own.parameters.values() if one not in rest]
        shown += [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name, ...), annotation=annotation
            )
            for name, annotation in known.items()
            if name not in left_out
        ]
        function.__signature__ = own.replace(parameters=[*shown, *(rest if forwards else [])])
    return function


def list_options(public: Function) -> None:
    """Register a callable, so that errors can name it for options of its own that were given elsewhere."""
    _public.append(public)


def options_of(public: Function) -> dict[str, Any]:
    """Return {option: annotation} of a class, class method, function or callable object, forwarded options included."""
    if hasattr(public, "__signature__") and not inspect.isroutine(public):  # a class method's is of the base it is in
        return {one.name: one.annotation for one in inspect.signature(public).parameters.values()}
    known = _known_options(*_resolve(public))[0]
    return {name: annotation for name, annotation in known.items() if name not in ("self", "cls", "return")}


def check_options(
    subject: str, options: Mapping[str, Any], annotations: Mapping[str, Any], hints: Mapping[str, str] | None = None
) -> None:
    """Raise `ConfigError` for unknown options, and for values that do not match the option's annotation.

    Args:
        subject: of the error.
        options: those given; a mapping for a `TypedDict` is checked like them.
        annotations: {option: annotation}.
        hints: {name: what to write for an option of this name}, of some that are unknown.
    """
    problems = _mistakes(subject, options, annotations, hints or {})
    if any(": unknown option " in problem for problem in problems):
        problems.append(OTHER_LIBRARIES)
    if problems:
        raise ConfigError("\n".join(problems))


def _mistakes(
    subject: str, options: Mapping[str, Any], annotations: Mapping[str, Any], hints: Mapping[str, str]
) -> list[str]:
    """Return what is wrong with options, a line for each."""
    problems = []
    for name, value in options.items():
        if name not in annotations:
            meant = f", did you mean {hints[name]}?" if name in hints else ""
            hint = meant or option_hint(name, annotations, options_by_owner())
            problems.append(f"{subject}: unknown option {name!r}{hint}")
        elif problem := mismatch(value, annotations[name]):
            problems.append(f"{subject}.{name} {problem}")
        elif is_typeddict(annotations[name]):
            problems += _mistakes(f"{subject}.{name}", value, types_of(annotations[name]), {})
    return problems


def _checked_function(function: Function) -> Any:
    bare: Function = inspect.unwrap(function)
    signature = _Signature.of(bare)
    checks_first = bool(signature.checked_first) or signature.has_rest  # Python accepts these, or fails later

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        if checks_first:
            _check_call(bare, args, options)
        try:
            return function(*args, **options)
        except TrainkitError:
            raise
        except Exception as error:
            _check_call(bare, args, options, error)
            raise

    return call


def _check_call(
    function: Function, args: tuple[Any, ...], options: Mapping[str, Any], error: Exception | None = None
) -> None:
    """Raise `ConfigError` with everything that is wrong with a call; after a first error, check every annotation."""
    signature = _Signature.of(function)
    owner, subject = _owner(function, args), _subject(function, args)
    problems: list[str] = []
    is_unknown = False
    if len(args) > len(signature.positional) and not signature.is_variadic:
        shown = [name for name in signature.positional if name not in ("self", "cls")]
        n_given = len(args) - len(signature.positional) + len(shown)
        accepted = f"only {', '.join(shown)}" if shown else "nothing"
        value = args[len(signature.positional)]
        free = (name for name in signature.optional if name not in signature.positional and name not in options)
        fitting = [name for name in free if type(value) in union_members(signature.annotations[name])]
        first = f", such as {fitting[0]}={value!r}" if fitting else ""
        problems.append(f"{subject} takes {accepted} by position, got {n_given} arguments: give options by name{first}")
    by_position = dict(zip(signature.positional, args, strict=False))
    known, forwards = _known_options(function, owner)
    made = _made_by(function, owner)
    for name, value in (by_position | dict(options)).items():
        if name == made and name not in signature.annotations:
            problems.append(f"{subject} makes the {name} itself: give yours to {owner.__name__}({name}, ...)")
        elif name not in known and name in options and not forwards:
            of_subclass = _passed_on_by(function, owner)
            hint = option_hint(name, {**of_subclass, **known}, options_by_owner()) or _all_of(function, of_subclass)
            problems.append(f"{subject}: unknown option {name!r}{hint}")
            is_unknown = True
        elif name in by_position and name in options:
            problems.append(f"{subject}.{name} was given by position and by name: give it once")
        elif error or (name in signature.checked_first and is_unrelated(value, known[name])):
            problem = mismatch(value, known.get(name, Any))
            problems += [] if problem is None else [f"{subject}.{name} {problem}"]
    missing = [name for name in signature.required if name not in by_position and name not in options]
    if missing:
        problems.append(f"{subject} needs {', '.join(missing)}")
    if is_unknown:
        problems.append(OTHER_LIBRARIES)
    if problems:
        raise ConfigError("\n".join(problems)) from error


def _passed_on_by(function: Function, owner: Any) -> dict[str, Any]:
    """Return all options of a subclass whose constructor passed its `**` on to this one; empty for other calls."""
    if function.__name__ != "__init__" or inspect.unwrap(owner.__init__) is function:
        return {}
    first: Function = inspect.unwrap(owner.__init__)
    taken = {**_Signature.of(first).annotations, **_known_options(first, owner)[0]}  # its own, then those of its bases
    return {name: annotation for name, annotation in taken.items() if name != "self"}


def _all_of(function: Function, of_subclass: Mapping[str, Any]) -> str:
    """Return the end of an error that lists all that a function, method or subclass takes; "" for others.

    Those are the constructors of trainkit, which take more than a line has room for.
    """
    if of_subclass:
        return f": it takes {', '.join(of_subclass)}"
    signature = _Signature.of(function)
    if signature.positional[:1] == ["cls"] or function.__name__.startswith("__"):
        return ""
    taken = [name for name in signature.annotations if name not in ("self", "return")]
    return f": it takes {', '.join(taken) or 'none'}"


def _made_by(function: Function, owner: Any) -> str:
    """Return the name of the network that a class method such as `for_envs` makes, "" for other functions.

    It is the first argument of the constructor.
    """
    if _Signature.of(function).positional[:1] != ["cls"]:
        return ""
    signature = _Signature.of(inspect.unwrap(owner.__init__))
    return next((name for name in signature.positional if name in signature.required and name != "self"), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signature:
    """The parts of a function's signature that calls are checked against."""

    positional: list[str]
    is_variadic: bool  # has `*args`
    required: list[str]
    optional: list[str]
    annotations: dict[str, Any]  # of all that can be given by name, those of a typed `**` included
    checked_first: set[str]  # options checked before the call, as their annotations are complete
    has_rest: bool  # has `**`
    forwards: bool  # has `**` without a type: another function knows its names

    @classmethod
    @functools.cache
    def of(cls, function: Function) -> "_Signature":
        """Return the signature of a function."""
        own = list(inspect.signature(function).parameters.values())
        positional = [one.name for one in own if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        by_name = [one for one in own if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
        rest = [one for one in own if one.kind is one.VAR_KEYWORD]
        typed = [kind for one in rest for kind in get_args(one.annotation) if is_typeddict(kind)]
        named = {*positional, *(one.name for one in by_name)}
        rest_of = {name: annotation for kind in typed for name, annotation in types_of(kind).items()}
        annotations = {one.name: one.annotation for one in by_name} | rest_of
        return cls(
            positional=positional,
            is_variadic=any(one.kind is one.VAR_POSITIONAL for one in own),
            required=[one.name for one in own if one.name in named and one.default is one.empty],
            optional=[*(one.name for one in by_name if one.default is not one.empty), *rest_of],
            annotations=annotations,
            checked_first={name for name, annotation in annotations.items() if is_complete(annotation)},
            has_rest=bool(rest),
            forwards=bool(rest) and not typed,
        )


@functools.cache
def _known_options(function: Function, owner: Any) -> tuple[dict[str, Any], bool]:
    """Return the annotations of all options of a call, including forwarded ones, and whether it accepts others.

    A constructor forwards to its base's; a class method to its base's of that name, the last one to the constructor.
    """
    annotations: dict[str, Any] = {}
    for member in _forwarded_to(function, owner):
        signature = _Signature.of(member)
        annotations = signature.annotations | annotations
        if not signature.forwards:
            return annotations, False
    return annotations, True


def _defaults(function: Function, owner: Any) -> dict[str, Any]:
    """Return the defaults of the options of a call, each of the first function that has one."""
    defaults: dict[str, Any] = {}
    for member in _forwarded_to(function, owner):
        own = inspect.signature(member).parameters.values()
        defaults = {one.name: one.default for one in own if one.default is not one.empty} | defaults
    return defaults


def _forwarded_to(function: Function, owner: Any) -> list[Function]:
    """Return a function and those that it may pass options on to, in their order."""
    if owner is None or function.__name__ == "__call__":
        return [function]
    members = _definitions(owner, function)
    return members if function.__name__ == "__init__" else members + _definitions(owner, owner.__init__)


def _definitions(owner: Any, first: Function) -> list[Function]:
    """Return a class's definitions of one method in method resolution order, starting at one of them, unwrapped."""
    found = [vars(base)[first.__name__] for base in owner.__mro__ if first.__name__ in vars(base)]
    bare = [inspect.unwrap(one.__func__ if isinstance(one, classmethod) else one) for one in found]
    return bare[bare.index(inspect.unwrap(first)) :]


def _resolve(public: Any) -> tuple[Function, Any]:
    """Return the unwrapped function of a public callable, and the class that it is called for, if any."""
    if inspect.ismethod(public):
        return inspect.unwrap(public.__func__), public.__self__
    if inspect.isfunction(public):
        return inspect.unwrap(public), None
    owner = public if inspect.isclass(public) else type(public)
    return inspect.unwrap(owner.__init__ if owner is public else owner.__call__), owner


def _owner(function: Function, args: tuple[Any, ...]) -> Any:
    """Return the class that a constructor, class method or callable object is called for; None for a function."""
    first = _Signature.of(function).positional[:1]
    return args[0] if first == ["cls"] else type(args[0]) if first == ["self"] else None


def _subject(function: Function, args: tuple[Any, ...]) -> str:
    """Name what was called."""
    return repr(args[0]) if function.__name__ == "__call__" else _label(function, _owner(function, args))


def _label(function: Function, owner: Any) -> str:
    """Name a function in an error: `make_envs`, `DQNPolicy` or `DQNPolicy.for_envs`."""
    if owner is None:
        return function.__name__
    return owner.__name__ if function.__name__ == "__init__" else f"{owner.__name__}.{function.__name__}"


def options_by_owner() -> dict[str, list[str]]:
    """Return {option: labels of the public calls that accept it}."""
    return _options_by_owner(len(_public))


@functools.cache
def _options_by_owner(n_public: int) -> dict[str, list[str]]:
    labels: dict[str, set[str]] = {}
    calls: list[Any] = []
    for public in _public[:n_public]:
        members = [getattr(public, name) for name in dir(public) if not name.startswith("_")]
        calls += [public, *(one for one in members if inspect.isclass(public) and inspect.ismethod(one))]
    for call in calls:
        function, owner = _resolve(call)
        label = repr(call) if function.__name__ == "__call__" else _label(function, owner)
        for member in [function] if owner is None else _definitions(owner, function):
            for name in _Signature.of(member).optional:
                labels.setdefault(name, set()).add(label)
    return {name: sorted(found) for name, found in labels.items()}


def _empty_init(kind: Any) -> Function:
    """Return a constructor for a class without one: it takes no arguments, and calls that of the next base."""

    def __init__(self: Any) -> None:  # noqa: N807  # that is its name
        """Take no arguments."""
        super(kind, self).__init__()

    return __init__


_WORDS = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a str",
    NoneType: "None",
    Path: "a Path",
    Callable: "a function",
    Mapping: "a mapping",
    dict: "a dict",
    np.ndarray: "an array",
}
_PLURALS = {"a whole number": "whole numbers", "a number": "numbers", "a str": "strs"}


def is_complete(annotation: Any) -> bool:
    """Return whether an annotation alone determines the valid values, as for flags and classes.

    Numbers also have a range, strings a list of choices, sequences a length.
    """
    return all(_is_complete_kind(_origin(member)) for member in union_members(annotation))


def _is_complete_kind(kind: Any) -> bool:
    if kind in (bool, NoneType):
        return True
    plain = ("builtins", "typing", "collections.abc", "inspect", "pathlib", "numpy")
    return inspect.isclass(kind) and kind.__module__ not in plain


def mismatch(value: object, annotation: Any) -> str | None:
    """Return the end of an error message, "must be ..., got ..."; None where a value matches its annotation."""
    if matches(value, annotation):
        return None
    wanted, shown = _in_words(annotation), repr(value)
    if len(shown) > 60 or "\n" in shown:
        kind = type(value)
        is_namesake = kind.__name__ in wanted.split()  # torch.optim's Adam is not ours
        shown = f"{kind.__module__}.{kind.__qualname__}" if is_namesake else kind.__name__
    protocols = [kind for kind in map(_origin, union_members(annotation)) if is_protocol(kind)]
    is_plain = isinstance(value, (str, NoneType))  # not an attempt at an implementation
    missing = ", ".join(missing_members(value, protocols[0])[:3]) if protocols and not is_plain else ""
    example = ""
    if isinstance(value, int) and _origin(annotation) is Sequence and get_args(annotation) == (int,):
        example = f" such as ({value},) or ({value}, {value})"
    return f"must be {wanted}{example}, got {shown}{schedule_hint(value)}" + (
        f", which has no {missing}" if missing else ""
    )


def matches(value: object, annotation: Any) -> bool:
    """Return whether a value matches an annotation; annotations that this function does not know match everything."""
    members = union_members(annotation)
    if len(members) > 1:
        return any(matches(value, member) for member in members)
    kind, inner = _origin(members[0]), get_args(members[0])
    if kind is Literal:
        return value in inner
    if kind in (Sequence, tuple, list):
        if isinstance(value, str) or not isinstance(value, (Sequence, np.ndarray)):
            return False
        if kind is tuple and inner[1:] != (...,):
            return len(value) == len(inner) and all(matches(one, of) for one, of in zip(value, inner, strict=True))
        return all(matches(one, inner[0]) for one in value if inner)
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
        return is_number and value == value  # nan is not a number
    if kind is Path:
        return isinstance(value, os.PathLike)
    return not missing_members(value, kind) if is_protocol(kind) else isinstance(value, kind)


def is_unrelated(value: object, annotation: Any) -> bool:
    """Return whether a value mismatches and has no member of the protocol, unlike an incomplete part."""
    if matches(value, annotation):
        return False
    protocols = [kind for kind in map(_origin, union_members(annotation)) if is_protocol(kind)]
    names = [name for kind in protocols for name in _members_of(kind) if not name.startswith("_")]
    return not any(hasattr(value, name) for name in names)


def missing_members(value: object, protocol: Any) -> list[str]:
    """Return the members of a protocol that a value lacks."""
    return [name for name in _members_of(protocol) if not hasattr(value, name)]


@functools.cache
def _members_of(protocol: Any) -> list[str]:
    """Return the names of a protocol's members, sorted."""
    return sorted(get_protocol_members(protocol))


def union_members(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the annotation itself."""
    if isinstance(annotation, TypeVar):
        annotation = Any if annotation.__bound__ is None else annotation.__bound__
    if get_origin(annotation) in (Union, UnionType):
        return get_args(annotation)
    return (NoneType if annotation is None else annotation,)


def _origin(annotation: Any) -> Any:
    return dict if is_typeddict(annotation) else get_origin(annotation) or annotation


def _in_words(annotation: Any) -> str:
    members = union_members(annotation)
    if len(members) > 1:
        return " or ".join(dict.fromkeys(map(_in_words, members)))
    kind, inner = _origin(annotation), get_args(annotation)
    if kind is Literal:
        return " or ".join(map(repr, inner))
    if kind is tuple and inner[1:] != (...,):
        return f"({', '.join(map(_in_words, inner))})"
    if kind in (Sequence, tuple, list):
        of = _in_words(inner[0]) if inner else ""
        return f"a sequence of {_PLURALS.get(of, of)}" if of else "a sequence"
    if kind is type:
        return f"a class like {inner[0].__name__}" if inner else "a class"
    name = getattr(kind, "__name__", str(kind))
    return _WORDS.get(kind, f"a{'n' * (name[0] in 'AEIO')} {name}")
