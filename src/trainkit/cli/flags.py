"""Typed flags of a preset's settings, such as `--lr 1e-3` and `--no-double`, with help from their docstrings."""

import argparse
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from trainkit.cli.output import Parser, as_flag
from trainkit.cli.run_config import OWN_OPTIONS
from trainkit.core.config import from_text, to_shell
from trainkit.core.errors import ConfigError
from trainkit.core.names import did_you_mean
from trainkit.core.schedules import Linear
from trainkit.core.signatures import mismatch, union_members
from trainkit.core.typed_options import documents_of
from trainkit.presets import PRESETS, Preset
from trainkit.presets.base import EnvPreset

SCHEDULES = """\
A SCHEDULE is a number; linear:1e-3,0 over the whole run, or linear:1e-3,0,0.5 over half of it; or 0:1e-3,5000:1e-4 by
steps, with straight lines between them. A LIST is 64,64; a DICT is written as in Python."""

_NOT_FLAGS = {*OWN_OPTIONS, "verbose", "show_progress"}  # the command's own
_PREFIX = "setting "  # of these flags in the parsed options, where no other option's name can be the same
_METAVARS = {bool: "BOOL", int: "N", float: "X", str: "NAME", Mapping: "DICT", dict: "DICT", Any: "VALUE"}
_SECTION = re.compile(r"^Args:\n((?:    .*\n?|\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"^    (\w+): (.*(?:\n {5,}.*)*)", re.MULTILINE)


def add_settings(parser: Parser, preset: Preset[..., Any, Any], words: Iterable[str]) -> None:
    """Add a flag for each setting of a preset that can be written in a shell, grouped by the class that documents it.

    Help shows the defaults of the environment that is among the words, else those of each domain.
    """
    tables = _tables(preset, words)
    kind, types = preset.kind, preset.option_types
    missing = {name for name, annotation in types.items() if name not in _NOT_FLAGS and _metavar(annotation)}
    for owner in documents_of(kind):
        helps = {name: text for name, text in documented(owner).items() if name in missing}
        missing -= helps.keys()
        if helps:
            title = re.split("[.:;]", inspect.cleandoc(owner.__doc__ or ""))[0]
            group = parser.add_argument_group(title[0].lower() + title[1:])
            for name, text in helps.items():
                default = _defaults({own: table[name] for own, table in tables.items()})
                _add_flag(group, name, types[name], f"{text.rstrip('.')} [{default}]")
    if missing:
        raise AssertionError(f"{kind.__name__} has settings without a line in a docstring: {sorted(missing)}")


def preset_name(word: str) -> str:
    """Return a word that names a preset."""
    if word not in PRESETS:
        raise argparse.ArgumentTypeError(
            f"no preset is called {word!r}{did_you_mean(word, PRESETS)}: see trainkit presets"
        )
    return word


def given_settings(options: argparse.Namespace) -> dict[str, str]:
    """Return {setting: text} of the flags that were given."""
    return {name.removeprefix(_PREFIX): text for name, text in vars(options).items() if name.startswith(_PREFIX)}


def preset_of(words: Iterable[str], with_value: Iterable[str]) -> str | None:
    """Return the preset among the words of a command, None without one.

    Args:
        words: after the name of the command.
        with_value: flags whose next word is their value.
    """
    rest, flags = iter(words), set(with_value)
    for word in rest:
        if word in flags:
            next(rest, None)
        elif word in PRESETS:
            return word
    return None


def documented(owner: type) -> dict[str, str]:
    """Return {argument: text} of the section "Args" of a class's own docstring."""
    section = _SECTION.search(inspect.cleandoc(vars(owner).get("__doc__") or ""))
    entries = _ENTRY.findall(section[1]) if section else []
    return {name: " ".join(text.split()) for name, text in entries}


def _add_flag(group: argparse._ArgumentGroup, name: str, annotation: Any, text: str) -> None:
    how: dict[str, Any] = {"dest": f"{_PREFIX}{name}", "default": argparse.SUPPRESS, "help": text.replace("%", "%%")}
    if annotation is bool:
        group.add_argument(as_flag(name), action=_Switch, **how)
    else:
        metavar = _metavar(annotation)
        words = metavar.split("|") if metavar.islower() else None  # which shells complete
        if words and NoneType in union_members(annotation):
            words.append("none")
        group.add_argument(as_flag(name), metavar=metavar, choices=words, type=_checked_text(annotation), **how)


class _Switch(argparse.BooleanOptionalAction):
    """A pair of flags, `--double` and `--no-double`, which give the texts "true" and "false"."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, "false" if str(option_string).startswith("--no-") else "true")


def _checked_text(annotation: Any) -> Callable[[str], str]:
    """Return a function that checks a text against the setting's type, and returns it as `--set` accepts it."""

    def check(text: str) -> str:
        try:
            value = from_text(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        problem = mismatch(value, annotation)
        if problem and isinstance(value, int) and not mismatch((value,), annotation):
            return f"({text},)"  # a list of one
        if problem and Linear in union_members(annotation):
            problem = f"must be a schedule such as 1e-3, linear:1e-3,0 or 0:1e-3,5000:1e-4, got {text!r}"
        if problem:
            raise argparse.ArgumentTypeError(problem)
        return text

    return check


def _metavar(annotation: Any) -> str:
    """Return the form of a setting's values in help, "" if none but `None` can be written in a shell."""
    known = [one for one in union_members(annotation) if one is not NoneType]
    words = [str(value) for one in known if get_origin(one) is Literal for value in get_args(one)]
    if Linear in known:
        return "|".join([*words, "SCHEDULE"])
    forms = [_METAVARS[form] for one in known if (form := get_origin(one) or one) in _METAVARS]
    lists = ["LIST" for one in known if get_origin(one) in (tuple, Sequence) and get_args(one)[0] in (int, float)]
    return "|".join(dict.fromkeys([*words, *forms, *lists]))


def _tables(preset: Preset[..., Any, Any], words: Iterable[str]) -> dict[str, Any]:
    """Return {name: settings} of the zoo or of a domain, if an environment among the words names it, else of all."""
    for word in words:
        if isinstance(preset, EnvPreset) and (entry := preset.zoo_entry(word, {})) is not None:
            return {"zoo": preset.zoo_table(entry)}
        if (domain := preset.domain_of_id(word)) is not None:
            return {domain: preset.table(domain)}
    return {domain: preset.table(domain) for domain in preset.domains}


def _defaults(values: Mapping[str, Any]) -> str:
    """Format a setting's default: the first domain's, then those of the domains that differ."""
    (_, usual), *others = ((domain, to_shell(value)) for domain, value in values.items())
    return ", ".join([usual, *(f"{domain} {text}" for domain, text in others if text != usual)])
