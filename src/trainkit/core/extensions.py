"""The door to the extensions: what the folders of `trainkit/extensions` add is found and imported here, nowhere else.

The `__init__` of a folder has a docstring and constants, {name: "module:object"}, with a module of that folder:

    NAMES = {"MultiAgentPolicy": "multi_agent_policy:MultiAgentPolicy", ...}    public names: `tk.MultiAgentPolicy`,
                                                                               "policy.GameEpisode" in a namespace

and others that the kernel looks into by `table`. They are read without importing anything else of the extension, whose
modules are imported when one of its names is first used. A file can only name what is listed here.
"""

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from trainkit.core.errors import ConfigError

_PACKAGE = "trainkit.extensions"
_FOLDER = Path(__file__).parents[1] / "extensions"


@dataclass(frozen=True, slots=True)
class Entry:
    """An object of an extension, which is imported when it is loaded.

    Attributes:
        extension: the name of its folder.
        path: "module:object".
    """

    extension: str
    path: str

    @property
    def module(self) -> str:
        """The full name of the module."""
        return f"{_PACKAGE}.{self.extension}.{self.path.partition(':')[0]}"

    def load(self) -> Any:
        """Import the module, and return the object."""
        return getattr(importlib.import_module(self.module), self.path.partition(":")[2])


@cache
def present() -> Mapping[str, ModuleType]:
    """Return the extensions that are there, {name of the folder: its `__init__`}."""
    names = sorted(found.name for found in pkgutil.iter_modules([str(_FOLDER)]) if found.ispkg)
    return {name: importlib.import_module(f"{_PACKAGE}.{name}") for name in names}


@cache
def table(constant: str) -> Mapping[str, Entry]:
    """Return what all extensions list under a constant, such as "NAMES" or "BACKENDS", by name."""
    entries: dict[str, Entry] = {}
    for extension, module in present().items():
        for name, path in getattr(module, constant, {}).items():
            assert name not in entries, f"{constant}[{name!r}] is of {entries[name].extension} and of {extension}"
            entries[name] = Entry(extension, path)
    return entries


def attach(
    namespace: str, names: list[str], more: Mapping[str, Entry] | None = None
) -> tuple[Callable[[], list[str]], Callable[[str], Any]]:
    """Add the names that extensions have in a namespace to its `__all__`; return its `__dir__` and `__getattr__`.

        __all__ = ["DQNPolicy", ...]
        __dir__, __getattr__ = attach(__name__, __all__)

    Args:
        namespace: a module, "trainkit" or "trainkit.policy".
        names: its own public names; those of extensions are added.
        more: further names of extensions, such as `table("PRESETS")`.
    """
    own = {**dict(_names_in(namespace.partition(".")[2])), **(more or {})}
    names += own

    def __dir__() -> list[str]:  # noqa: N807  # of the module
        return sorted(names)

    def __getattr__(name: str) -> Any:  # noqa: N807  # of the module
        if name not in own:
            raise AttributeError(f"module {namespace!r} has no attribute {name!r}")
        found = own[name].load()
        setattr(sys.modules[namespace], name, found)  # the next time it is there
        return found

    return __dir__, __getattr__


def named(kind: type) -> dict[str, str]:
    """Return {"extension": its name} of a class that an extension defines, for a file; empty of others."""
    inside = kind.__module__.removeprefix(f"{_PACKAGE}.")
    return {} if inside == kind.__module__ else {"extension": inside.partition(".")[0]}


def require(extension: object, what: str) -> None:
    """Raise `ConfigError` for what a file names of an extension that is not there; None is of no extension."""
    if extension is not None and extension not in present():
        raise ConfigError(f"{what} is of the extension {extension!r}, which is not there: install all of trainkit")


def exported(name: str) -> Any:
    """Return the public object of an extension that has this name in any namespace; None if there is none."""
    entries = [entry for path, entry in table("NAMES").items() if path.rpartition(".")[2] == name]
    return entries[0].load() if entries else None


def _names_in(namespace: str) -> Iterator[tuple[str, Entry]]:
    """Yield the names that extensions have in a namespace, "" for the top."""
    for path, entry in table("NAMES").items():
        space, _, name = path.rpartition(".")
        if space == namespace:
            yield name, entry
