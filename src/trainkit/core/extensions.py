"""The door: public names, which are imported when they are first used, and what extensions add.

What the folders of `trainkit/extensions` add is found and imported here, nowhere else.

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
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from trainkit.core.errors import ConfigError
from trainkit.core.names import did_you_mean

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

    @property
    def folder(self) -> Path:
        """The folder of the extension."""
        return _FOLDER / self.extension

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
    """Return what all extensions list under a constant, such as "NAMES" or "ENGINES", by name."""
    entries: dict[str, Entry] = {}
    for extension, module in present().items():
        for name, path in getattr(module, constant, {}).items():
            assert name not in entries, f"{constant}[{name!r}] is of {entries[name].extension} and of {extension}"
            entries[name] = Entry(extension, path)
    return entries


def attach(
    package: str,
    names: Mapping[str, str] = MappingProxyType({}),
    *,
    modules: str = "",
    constant: str = "",
    hint: Callable[[str], str] | None = None,
) -> tuple[Callable[[], list[str]], Callable[[str], Any]]:
    """Return the `__dir__` and `__getattr__` of a package whose public names are imported when they are first used.

        __dir__, __getattr__ = attach(__name__, {"policy.dqn": "DQNPolicy", "policy.noise": "ColoredNoise Noise"})

    `__all__` is found by the latter. Type checkers read the package's stub, which has the same names.

    Args:
        package: "trainkit" or one below, such as "trainkit.policy"; the names that extensions have there follow.
        names: the kernel's, by the module below `trainkit` that defines them, with spaces between.
        modules: of these below `trainkit` the package has each, by its own name.
        constant: extensions list names of the package there, too.
        hint: returns the end of the error for an unknown name; None names the nearest one.
    """
    own = {name: module for module, line in names.items() for name in line.split()}
    spaces, space = modules.split(), package.partition(".")[2]

    def of_extensions() -> dict[str, Entry]:
        return {**dict(_names_in(space)), **(table(constant) if constant else {})}

    def __dir__() -> list[str]:  # noqa: N807  # of the module
        return sorted({*own, *spaces, *of_extensions()})

    def __getattr__(name: str) -> Any:  # noqa: N807  # of the module
        found: Any
        if name == "__all__":
            found = __dir__()
        elif name.startswith("_"):  # notebooks and test runners look for such names in every module
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        elif name in own:
            found = getattr(importlib.import_module(f"trainkit.{own[name]}"), name)
        elif name in spaces:
            found = importlib.import_module(f"trainkit.{name}")
        elif name in (theirs := of_extensions()):
            found = theirs[name].load()
        else:
            advice = did_you_mean(name, __dir__()) if hint is None else hint(name)
            is_imported_from = sys._getframe(1).f_code.co_name == "_handle_fromlist"
            if advice and is_imported_from and find_spec(f"{package}.{name}") is None:
                # `from package import name` would replace an AttributeError by an error of its own, without the hint
                raise ImportError(f"cannot import name {name!r} from {package!r}{advice}", name=name)
            raise AttributeError(f"module {package!r} has no attribute {name!r}{advice}")
        setattr(sys.modules[package], name, found)  # the next time it is there
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


def exported(name: str, *packages: str) -> Any:
    """Return what one of these packages exports by this name, else an extension in any namespace; None if none does."""
    for package in map(importlib.import_module, packages):
        if name in package.__all__:
            return getattr(package, name)
    entries = [entry for path, entry in table("NAMES").items() if path.rpartition(".")[2] == name]
    return entries[0].load() if entries else None


def _names_in(namespace: str) -> Iterator[tuple[str, Entry]]:
    """Yield the names that extensions have in a namespace, "" for the top."""
    for path, entry in table("NAMES").items():
        space, _, name = path.rpartition(".")
        if space == namespace:
            yield name, entry
