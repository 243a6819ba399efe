"""Settings as text, in the form of `--set`, TOML files and config.json: parsed, and formatted."""

import ast
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from trainkit.core.errors import ConfigError
from trainkit.core.schedules import Linear

_WORDS: dict[str, Any] = {"true": True, "false": False, "none": None, "null": None}
_LONGEST_SETTING = 100_000  # characters
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_KNOTS = re.compile(rf"\d+:{_NUMBER}(?:,\d+:{_NUMBER})*")


def parse_value(text: str) -> Any:
    """Parse a setting: a Python literal, true, false or none, a schedule, or else a string.

    `Linear(1e-3, 0.0)` and `linear:1e-3,0` are a change over the whole run, `linear:1e-3,0,0.5` over half of it;
    `0:1.0,8000:0.1` are the knots ((0, 1.0), (8000, 0.1)).

    Raises:
        ConfigError: it is too long, or nested too deeply, to be read.
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
        tree = ast.parse(word, mode="eval").body
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "Linear":
            return Linear(*map(ast.literal_eval, tree.args))
        return ast.literal_eval(tree)
    except (RecursionError, MemoryError) as error:
        raise ConfigError(f"a setting is nested too deeply: {short(word)}") from error
    except (SyntaxError, ValueError, TypeError):
        return text.strip()


def format_value(value: Any) -> str:
    """Format a setting as `--set` accepts it."""
    if isinstance(value, Linear):
        share = "" if value.share == 1 else f", {value.share!r}"
        return f"Linear({value.start!r}, {value.end!r}{share})"
    return value if isinstance(value, str) else repr(value)


def format_for_shell(value: Any) -> str:
    """Format a setting for a command line: schedules without brackets and spaces."""
    if isinstance(value, Linear):
        share = "" if value.share == 1 else f",{value.share!r}"
        return f"linear:{value.start!r},{value.end!r}{share}"
    if isinstance(value, (tuple, list)) and value and all(map(_is_knot, value)):
        return ",".join(f"{step}:{number!r}" for step, number in value)
    return "none" if value is None else format_value(value)


def _is_knot(value: object) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and type(value[0]) is int


def from_toml(value: Any) -> Any:
    """Return the setting that a value of a TOML file stands for: strings are parsed, and arrays are tuples."""
    if isinstance(value, str):
        return parse_value(value)
    if isinstance(value, list):
        return tuple(map(from_toml, value))
    return {key: from_toml(child) for key, child in value.items()} if isinstance(value, Mapping) else value


def texts_from_toml(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of a TOML file as texts, as they are written in a shell."""
    return {name: text if isinstance(text, str) else format_value(from_toml(text)) for name, text in settings.items()}


def to_toml(value: Any) -> str:
    """Return a setting as the value in a TOML file that `from_toml` reads; TOML has no null, so None is "none".

    Raises:
        ConfigError: it is not made of plain values.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:_}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    if value is None or isinstance(value, (str, Linear)):
        return json.dumps("none" if value is None else format_value(value), ensure_ascii=False)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(to_toml, value))}]"
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return "{" + ", ".join(f"{json.dumps(key)} = {to_toml(child)}" for key, child in value.items()) + "}"
    raise ConfigError(f"a TOML file holds numbers, words, schedules and collections of these, got {short(value)}")


def short(value: object) -> str:
    """Format a value from a file in at most a hundred characters."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
