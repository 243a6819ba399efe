"""Settings as data: arguments as plain values for files, live objects as flat records, and settings as text.

    form    example                                           functions, and what holds it
    plain   {"part": "Linear", "of": {"start": 1.0, ...}}     `to_plain`, `from_plain`: config.json, checkpoints
    flat    {"value": "QuantileValue", "value/quantiles": 5}  `flatten`: the record of a run
    text    "Linear(1.0, 0.05)", in a shell "linear:1.0,0.05" `to_text`, `to_shell`, `from_text`: the command line
            "Linear(1.0, 0.05)", [0, 1], "none"               `to_toml`, `from_toml`: entries of the zoo, --config

All three see an object as its class and the arguments of its constructor. Only parts that `trainkit` exports are made
again from data: a file or a command line cannot call anything else.
"""

import ast
import functools
import inspect
import json
import math
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeGuard

import numpy as np
from gymnasium import Space

from trainkit.core import extensions
from trainkit.core.errors import ConfigError


class Part:
    """A part of a policy, such as a value, a backup or a schedule, that is described by its arguments.

    A part keeps each argument of its constructor in an attribute of the same name, or overrides `arguments`. Those that
    `trainkit` exports are saved in checkpoints and made again by `load_policy`.

    Attributes:
        shorthand: the argument that options accept in the part's place, such as the number of a `Constant`.
    """

    __slots__ = ()
    shorthand: ClassVar[str | None] = None

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments for an equal part."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def __repr__(self) -> str:
        """Return the constructor's call, with the arguments that differ from the defaults."""
        usual = {name: one.default for name, one in inspect.signature(type(self)).parameters.items()}
        own = {name: repr(value) for name, value in self.arguments().items()}
        given = ", ".join(f"{name}={text}" for name, text in own.items() if text != repr(usual.get(name, usual)))
        return f"{type(self).__name__}({given})"


def arguments_of(value: object) -> dict[str, Any]:
    """Return the arguments of an object's constructor: of its `arguments()`, else those that it kept in attributes.

    An attribute has the argument's name, or an underscore before it; arguments that were not kept are left out.
    """
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


def with_arguments(part: Part, changes: Mapping[str, Any]) -> Any:
    """Return a part of the same class with some other arguments."""
    kind: Any = type(part)
    return kind(**{**arguments_of(part), **changes})


def exported_part(name: str) -> type[Part]:
    """Return the part that `trainkit` or one of its extensions exports by this name; raise LookupError if none does."""
    kind = extensions.exported(name, "trainkit", "trainkit.buffer", "trainkit.policy", "trainkit.schedules")
    if not (isinstance(kind, type) and issubclass(kind, Part)):
        raise LookupError(f"{name!r} is not a part that trainkit exports")
    return kind


def _is_exported(value: object) -> TypeGuard[Part]:
    if not isinstance(value, Part):
        return False
    try:
        return exported_part(type(value).__name__) is type(value)
    except LookupError:
        return False


# ---- plain values ----


def to_plain(value: Any) -> Any:
    """Convert an argument to JSON-compatible values; raise TypeError if that is impossible.

    A part becomes {"part": its class's name, "of": its arguments}, and "extension" where it is one's, a mapping with
    string keys {"mapping": its items}. A class of optimizers or schedulers of torch, or a `functools.partial` of one,
    becomes {"class": its path, "of": the options of the partial}.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [to_plain(child) for child in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"mapping": {key: to_plain(child) for key, child in value.items()}}
    if isinstance(value, functools.partial) and not value.args and _is_factory(value.func):
        return {**to_plain(value.func), "of": {name: to_plain(own) for name, own in value.keywords.items()}}
    if _is_factory(value):
        return {"class": _path_of(value), "of": {}}
    if not _is_exported(value):
        raise TypeError(f"{value!r} is not a part that trainkit exports")
    return {
        "part": type(value).__name__,
        "of": {argument: to_plain(child) for argument, child in value.arguments().items()},
        **extensions.named(type(value)),
    }


def from_plain(plain: Any) -> Any:
    """Construct what `to_plain` converted; raise LookupError, TypeError or ValueError for anything else.

    Only exported parts are made: a file cannot call anything else. Classes are looked up among those that are imported,
    and must be of optimizers or schedulers of torch; they are not called.

    Raises:
        UnknownClassError: a class is not imported.
        ConfigError: a part is of an extension that is not there.
    """
    if isinstance(plain, list):
        return tuple(from_plain(child) for child in plain)
    if isinstance(plain, dict) and "mapping" in plain:
        return {key: from_plain(child) for key, child in plain["mapping"].items()}
    if isinstance(plain, dict) and "class" in plain:
        kind, options = _factory_at(plain["class"]), {name: from_plain(child) for name, child in plain["of"].items()}
        return functools.partial(kind, **options) if options else kind
    if isinstance(plain, dict):
        extensions.require(plain.get("extension"), f"the part {plain['part']}")
        return exported_part(plain["part"])(**{name: from_plain(child) for name, child in plain["of"].items()})
    return plain


def plain_call(options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the options of a call as {"arguments": {name: plain value}, "unknown": {name: repr}}.

    "unknown" are those without a plain value, which no file can hold.
    """
    arguments: dict[str, Any] = {}
    unknown: dict[str, str] = {}
    for name, value in options.items():
        try:
            arguments[name] = to_plain(value)
        except TypeError:
            unknown[name] = repr(value)
    return {"arguments": arguments, "unknown": unknown}


def has_address(text: str) -> bool:
    """Return whether a `repr` has an object's address, which differs in every process."""
    return " at 0x" in text


class UnknownClassError(LookupError):
    """A class of optimizers or schedulers in a file that this process has not imported."""


_OF_TORCH = "torch.optim", "torch.optim.lr_scheduler"
_FACTORIES = "torch.optim.optimizer.Optimizer", "torch.optim.lr_scheduler.LRScheduler"


def _is_factory(value: object) -> TypeGuard[type]:
    """Return whether a value is a class of optimizers or schedulers of torch that has a path."""
    if not isinstance(value, type) or "<locals>" in value.__qualname__:
        return False
    return any(f"{base.__module__}.{base.__qualname__}" in _FACTORIES for base in value.__mro__)


def _path_of(kind: type) -> str:
    """Return the path of a class, of torch's own where torch exports it."""
    names = [name for name in _OF_TORCH if getattr(sys.modules.get(name), kind.__name__, None) is kind]
    return f"{[*names, kind.__module__][0]}.{kind.__qualname__}"


def _factory_at(path: str) -> type:
    """Return the class of optimizers or schedulers of torch at a path, without importing anything."""
    module, _, name = path.rpartition(".")
    found = vars(sys.modules[module]).get(name) if module in sys.modules else None
    if found is None:
        raise UnknownClassError(path)
    if not _is_factory(found):
        raise LookupError(f"{path} is no class of optimizers or schedulers of torch")
    return found


# ---- flat records ----

_DEEPEST = 8  # levels of objects within objects
_LONGEST = 32  # elements of an array that are listed

Plain = bool | int | float | str | list[Any] | None


def flatten(path: str, value: object, *, known: Collection[object] = ()) -> dict[str, Plain]:
    """Return the settings of an object, flat: {path: its class, path/argument: value, path/argument/argument: ...}.

    Unlike plain values, a record holds any object, also one that cannot be made again: by the name of its class, and
    its `arguments_of`. A part with a shorthand is that, a function its name.

    Args:
        path: of the object, such as "policy/value"; "" for a mapping whose names are the paths.
        value: a plain value, a collection, or any object.
        known: objects that are listed elsewhere, and left out.
    """
    return dict(_walk(path, value, {id(one) for one in known}, 0))


def _walk(path: str, value: object, seen: set[int], depth: int) -> Iterator[tuple[str, Plain]]:
    """Yield (path, plain value) of a value and everything in it, an object only once within itself."""
    plain, is_plain = _as_leaf(value)
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
        children = {index: one for index, one in enumerate(value) if not _as_leaf(one)[1]}
    else:
        yield path, type(value).__name__
        children = arguments_of(value)
    for name, child in children.items():
        yield from _walk(f"{path}/{name}" if path else str(name), child, seen, depth + 1)


def _as_leaf(value: Any) -> tuple[Plain, bool]:
    """Return (plain value, True) of a value that has no arguments to list, else (None, False)."""
    if isinstance(value, Part) and value.shorthand is not None:
        value = getattr(value, value.shorthand)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value, True
    if isinstance(value, np.generic):
        return value.item(), True
    if isinstance(value, np.ndarray):
        is_short = value.size <= _LONGEST and value.dtype.kind in "biufU"
        return value.tolist() if is_short else f"{value.dtype.name}{list(value.shape)}", True
    if isinstance(value, (list, tuple, set, frozenset)) and all(_as_leaf(one)[1] for one in value):
        return [_as_leaf(one)[0] for one in value], True
    if isinstance(value, (Path, Space, np.dtype)):
        return str(value), True
    if isinstance(value, type) or inspect.isroutine(value):
        return _name_of(value), True
    return None, False


def _title(value: object) -> Plain:
    """Return an element of a list: its plain value, or the name of its class."""
    plain, is_plain = _as_leaf(value)
    return plain if is_plain else type(value).__name__


def _name_of(function: Any) -> str:
    """Return the path of a class or function."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    module = getattr(function, "__module__", None)
    return f"{module}.{name}" if module else str(name)


# ---- text ----

_WORDS: dict[str, Any] = {"true": True, "false": False, "none": None, "null": None}
_LONGEST_SETTING = 100_000  # characters
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_KNOTS = re.compile(rf"\d+:{_NUMBER}(?:,\d+:{_NUMBER})*")
_LINEAR = re.compile(r"Linear\((.*)\)")


def from_text(text: str) -> Any:
    """Parse a setting: a Python literal, true, false or none, an exported part, knots of a schedule, else a string.

    `Linear(1e-3, 0.0)` and `linear:1e-3,0` are a change over the whole run, `linear:1e-3,0,0.5` over half of it;
    `0:1.0,8000:0.1` are the knots ((0, 1.0), (8000, 0.1)).

    Raises:
        ConfigError: it is too long, or nested too deeply, to be read; or a part rejects its arguments.
    """
    word = text.strip()
    if len(word) > _LONGEST_SETTING:
        raise ConfigError(f"a setting has {len(word):,} characters, more than {_LONGEST_SETTING:,}: {short(word)}")
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    if _KNOTS.fullmatch(word):
        return tuple((int(step), float(value)) for step, _, value in (knot.partition(":") for knot in word.split(",")))
    if word.startswith("linear:"):
        word = f"Linear({word.removeprefix('linear:')})"
    try:
        return _evaluated(ast.parse(word, mode="eval").body)
    except (RecursionError, MemoryError) as error:
        raise ConfigError(f"a setting is nested too deeply: {short(word)}") from error
    except (LookupError, SyntaxError, ValueError, TypeError):
        return text.strip()


def _evaluated(tree: ast.expr) -> Any:
    """Return a literal, or the exported part that a call names; both may have others in them."""
    if isinstance(tree, ast.Dict) and None not in tree.keys:
        values = map(_evaluated, tree.values)
        return {ast.literal_eval(key): value for key, value in zip(tree.keys, values, strict=True) if key is not None}
    if isinstance(tree, (ast.List, ast.Tuple)):
        return (list if isinstance(tree, ast.List) else tuple)(map(_evaluated, tree.elts))
    if not (isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name)):
        return ast.literal_eval(tree)
    kind = exported_part(tree.func.id)
    return kind(*map(_evaluated, tree.args), **{str(own.arg): _evaluated(own.value) for own in tree.keywords})


def to_text(value: Any) -> str:
    """Format a setting as `from_text` and `--set` accept it."""
    return value if isinstance(value, str) else repr(value)


def to_shell(value: Any) -> str:
    """Format a setting for a command line: schedules without brackets and spaces."""
    if isinstance(value, (tuple, list)) and value and all(map(_is_knot, value)):
        return ",".join(f"{step}:{number!r}" for step, number in value)
    if value is None:
        return "none"
    text = to_text(value)
    linear = _LINEAR.fullmatch(text)
    return text if linear is None else f"linear:{linear[1].replace(' ', '')}"


def _is_knot(value: object) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and type(value[0]) is int


def from_toml(value: Any) -> Any:
    """Return the setting that a value of a TOML file stands for: strings are parsed, and arrays are tuples."""
    if isinstance(value, str):
        return from_text(value)
    if isinstance(value, list):
        return tuple(map(from_toml, value))
    return {key: from_toml(child) for key, child in value.items()} if isinstance(value, Mapping) else value


def texts_from_toml(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of a TOML file as texts, as they are written in a shell."""
    return {name: text if isinstance(text, str) else to_text(from_toml(text)) for name, text in settings.items()}


def to_toml(value: Any) -> str:
    """Return a setting as the value in a TOML file that `from_toml` reads; TOML has no null, so None is "none".

    Raises:
        ConfigError: it is not made of plain values and parts.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:_}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    if value is None or isinstance(value, str) or _has_text(value):
        return json.dumps("none" if value is None else to_text(value), ensure_ascii=False)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(to_toml, value))}]"
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return "{" + ", ".join(f"{json.dumps(key)} = {to_toml(child)}" for key, child in value.items()) + "}"
    raise ConfigError(f"a TOML file holds numbers, words, schedules and collections of these, got {short(value)}")


def _has_text(value: object) -> bool:
    """Return whether this is a part whose text is read again: an exported one, made of literals and such parts."""
    return _is_exported(value) and type(from_text(to_text(value))) is type(value)


def short(value: object) -> str:
    """Format a value from a file in at most a hundred characters."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
