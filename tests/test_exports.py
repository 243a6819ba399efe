"""The public names: sorted, importable, the same at the top as in a namespace.

Which names are public is decided in the tables and `__all__` of the packages; the stubs in the repository show each
change. Taking one away is a breaking change.
"""

import ast
import functools
import inspect
import re
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import trainkit
from tests import stubs
from trainkit.core.extensions import table

NAMESPACES = [name for name in trainkit.__all__ if inspect.ismodule(getattr(trainkit, name))]
OF_EXTENSIONS = [(namespace, name) for namespace, _, name in (path.rpartition(".") for path in table("NAMES"))]
PUBLIC = sorted({*trainkit.__all__} - {*NAMESPACES})
PUBLIC += [f"{namespace}.{name}" for namespace in NAMESPACES for name in getattr(trainkit, namespace).__all__]
every_namespace = pytest.mark.parametrize("namespace", NAMESPACES)


def test_names_at_the_top_are_sorted_and_listed_by_dir() -> None:
    assert trainkit.__all__ == sorted({*trainkit.__all__})
    assert {*trainkit.__all__} <= {*dir(trainkit)}


@every_namespace
def test_names_in_a_namespace_are_sorted_and_listed_by_dir(namespace: str) -> None:
    module: ModuleType = getattr(trainkit, namespace)
    assert module.__all__ == sorted({*module.__all__})
    assert {*module.__all__} <= {*dir(module)}


def test_extensions_add_names_to_namespaces_only_and_none_that_is_the_kernels() -> None:
    assert {namespace for namespace, _ in OF_EXTENSIONS} <= {"", *NAMESPACES}
    for package in stubs.packages():
        kernel = stubs.own_names(ast.parse(stubs.path_of(package).with_suffix(".py").read_text()))
        assert {(package.partition(".")[2], name) for name in kernel} & {*OF_EXTENSIONS} == set()


@every_namespace
def test_a_namespace_is_a_module_to_import_from(namespace: str) -> None:
    assert import_module(f"trainkit.{namespace}") is getattr(trainkit, namespace)


def test_a_name_at_the_top_is_in_a_namespace_too_and_means_the_same() -> None:
    for name in {*trainkit.__all__} - {*NAMESPACES}:
        modules = [getattr(trainkit, namespace) for namespace in NAMESPACES]
        found = {id(getattr(module, name)) for module in modules if name in module.__all__}
        assert found == {id(getattr(trainkit, name))}, name


@pytest.mark.parametrize("package", stubs.packages())
def test_no_public_name_is_that_of_a_module_of_its_package(package: str) -> None:
    """Importing that module would put it into the package, in the place of what the name stands for."""
    module = import_module(package)
    next_to = {path.stem for path in Path(str(module.__file__)).parent.iterdir()}
    assert {name for name in module.__all__ if not inspect.ismodule(getattr(module, name))} & next_to == set()


@pytest.mark.parametrize("path", PUBLIC)
def test_help_on_how_a_module_is_made_and_called_is_not_torchs(path: str) -> None:
    kind: Any = functools.reduce(getattr, path.split("."), trainkit)
    if not (inspect.isclass(kind) and issubclass(kind, torch.nn.Module)):
        return
    assert inspect.getdoc(kind.__init__) != inspect.getdoc(torch.nn.Module.__init__)
    if kind.forward is not torch.nn.Module.forward:  # else it is not called
        assert kind.forward.__doc__


def test_help_on_rows_and_actions_has_their_shapes_and_units() -> None:
    for kind in (trainkit.engine.TensorBatch, trainkit.policy.ActOutput):
        described = re.findall(r"^    (\w+): \S", inspect.getdoc(kind) or "", re.MULTILINE)
        assert described == list(kind._fields)


def test_the_stubs_for_type_checkers_have_the_public_names() -> None:
    for package in stubs.packages():
        assert stubs.path_of(package).read_text() == stubs.text_of(package), "run python -m tests.stubs"


def test_the_version_stands_once_in_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "trainkit.__version__"}
    assert trainkit.__version__ == "0.2.0"
