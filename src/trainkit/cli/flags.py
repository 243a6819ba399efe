"""Typed flags of a preset's settings, such as `--lr 1e-3` and `--no-zoo`, with help from their docstrings."""

import argparse
import contextlib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import gymnasium as gym
from typing_extensions import is_protocol, is_typeddict

from trainkit import presets
from trainkit.cli.output import Parser, as_flag
from trainkit.cli.run_config import OWN_OPTIONS
from trainkit.core.config import Part, from_text, to_shell
from trainkit.core.errors import ConfigError
from trainkit.core.names import did_you_mean
from trainkit.core.schedules import Linear
from trainkit.core.signatures import mismatch, union_members
from trainkit.core.typed_options import documents_of, types_of
from trainkit.presets import PRESETS, Preset
from trainkit.presets.base import EnvPreset
from trainkit.trainer import Evaluation

SCHEDULES = """\
A SCHEDULE is a number; linear:1e-3,0 over the whole run, or linear:1e-3,0,0.5 over half of it; or 0:1e-3,5000:1e-4 by
steps, with straight lines between them. A LIST is 64,64; a DICT and a PART are written as in Python."""

_NOT_FLAGS = {*OWN_OPTIONS, "verbose", "show_progress"}  # the command's own
_PREFIX = "setting "  # of these flags in the parsed options, where no other option's name can be the same
_METAVARS = {bool: "BOOL", int: "N", float: "X", str: "NAME", Mapping: "DICT", dict: "DICT", Any: "VALUE"}
_SECTION = re.compile(r"^Args:\n((?:    .*\n?|\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"^    (\w+): (.*(?:\n {5,}.*)*)", re.MULTILINE)


# What most runs set, in the order of help.
_OFTEN_SET = (
    *(
        "max_epoch",
        "step_per_epoch",
        "update_per_epoch",
        "n_envs",
        "hidden",
        "recurrent",
        "normalize_obs",
        "lr",
        "gamma",
    ),
    *("n_step", "reward", "batch_size", "capacity", "buffer", "learning_starts", "step_per_collect", "update_per_step"),
    *("repeat_per_collect", "value", "backup", "target_every", "tau", "temperature", "epsilon", "lam", "clip_ratio"),
    *("entropy_weight", "loss", "stop_return", "evaluation", "zoo", "device", "engine"),
)


def add_settings(parser: Parser, preset: Preset[..., Any, Any], words: Iterable[str], *, shows_all: bool) -> None:
    """Add a flag for each setting of a preset, and for each option of a group, that can be written in a shell.

    Help shows the defaults of the environment that is among the words, else those of each domain.

    Args:
        parser: of the command.
        preset: has the settings.
        words: of the command.
        shows_all: whether help has all of them, grouped by the class that documents them, or those often set.
    """
    parser.hints = _hints(preset)
    tables = _tables(preset, words)
    flags = {name: flag for name, flag in _flags(preset).items() if name.partition(".")[0] not in _NOT_FLAGS}
    missing = {name for name, flag in flags.items() if not flag.text}
    if missing:
        raise AssertionError(f"{preset.kind.__name__} has settings without a line in a docstring: {sorted(missing)}")
    often = {name: flags[name] for name in _OFTEN_SET if name in flags}
    groups: dict[str, argparse._ArgumentGroup] = {}
    for name, flag in flags.items() if shows_all else {**often, **flags}.items():
        title = flag.title if shows_all else "what is set most often"
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        text = argparse.SUPPRESS
        if shows_all or name in often:
            default = _defaults({own: _value(table, name) for own, table in tables.items()})
            shown = flag.text if shows_all or _metavar(flag.annotation) == "none" else re.split("[;.] ", flag.text)[0]
            text = f"{shown} [{default}]".replace("%", "%%")
        _add_flag(groups[title], name, flag.annotation, text)


@dataclass(frozen=True, slots=True)
class _Flag:
    """A setting that can be written in a shell: its type, its line of docstring, and the title of its class."""

    annotation: Any
    text: str
    title: str


def _flags(preset: Preset[..., Any, Any]) -> dict[str, _Flag]:
    """Return {setting: flag}, "group.option" for those in a group, in the order of the classes that document them."""
    flags = {
        name: _Flag(annotation, *document)
        for name, (annotation, *document) in _documents(preset.kind).items()
        if name in preset.option_types and _metavar(annotation)
    }
    for group, kind in preset.option_types.items():
        if is_typeddict(kind):
            own = _documents(kind).items()
            flags |= {f"{group}.{name}": _Flag(*documented) for name, documented in own if _metavar(documented[0])}
    return flags


def _documents(kind: Any) -> dict[str, tuple[Any, str, str]]:
    """Return {option: (annotation, line of docstring, title of the class that has it)} of a TypedDict."""
    types = types_of(kind)
    found: dict[str, tuple[Any, str, str]] = {}
    for owner in documents_of(kind):
        title = re.split("[.:;,]", inspect.cleandoc(owner.__doc__ or ""))[0]
        for name, text in documented(owner).items():
            found.setdefault(name, (types[name], text.rstrip("."), title[0].lower() + title[1:]))
    return {**found, **{name: (types[name], "", "") for name in types.keys() - found.keys()}}


def _value(table: Mapping[str, Any], name: str) -> Any:
    """Return a setting, or an option of a group, in a table."""
    group, dot, option = name.partition(".")
    return table[group].get(option) if dot else table[group]


def _hints(preset: Preset[..., Any, Any]) -> dict[str, str]:
    """Return {name: how it is written in a shell} of what is no option but within one."""
    places: dict[str, list[str]] = {}
    for name, setting, value in preset.within_options():
        written = f'{as_flag(setting)} "{value}"'
        if value.startswith("{"):
            is_group = is_typeddict(preset.option_types[setting])
            written = as_flag(f"{setting}.{name}") if is_group else f"--set {setting}.{name}="
        places.setdefault(name, []).append(f"{as_flag(setting)} {name}" if value == repr(name) else written)
    return {name: " or ".join(found[:3]) for name, found in places.items()}


def preset_name(word: str) -> str:
    """Return a word that names a preset."""
    if word not in PRESETS:
        raise argparse.ArgumentTypeError(
            f"no preset is called {word!r}{did_you_mean(word, PRESETS)}: {_for_env(word)}see trainkit presets"
        )
    return word


def _for_env(word: str) -> str:
    """Return the hint for an environment in the place of the preset; "" for any other word."""
    if word not in gym.registry:
        return ""
    with contextlib.suppress(Exception):  # of the environment, which the hint is not about
        env = gym.make(word)
        is_continuous = isinstance(env.action_space, gym.spaces.Box)
        env.close()
        if is_continuous:
            return f"it is an environment; start with `trainkit train {presets.continuous_default.name} {word}`, or "
    return "it is an environment; name the preset before it, and "


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
    how: dict[str, Any] = {"dest": f"{_PREFIX}{name}", "default": argparse.SUPPRESS, "help": text}
    if annotation is bool:
        group.add_argument(as_flag(name), action=_Switch, **how)
    else:
        metavar = _metavar(annotation)
        words = metavar.split("|") if metavar.islower() else None  # which shells complete
        if words and NoneType in union_members(annotation):
            words.append("none")
        group.add_argument(as_flag(name), metavar=metavar, choices=words, type=_checked_text(annotation), **how)


class _Switch(argparse.BooleanOptionalAction):
    """A pair of flags, `--zoo` and `--no-zoo`, which give the texts "true" and "false"."""

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
    parts = ["PART" for one in known if is_protocol(one) or (isinstance(one, type) and issubclass(one, Part))]
    if Evaluation in known:  # which a preset has unless it is switched off
        parts.append("none")
    return "|".join(dict.fromkeys([*words, *forms, *lists, *parts]))


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
