"""Faults planted on purpose, to check that a test notices them: a wrong replacement, or a rewritten expression.

A fault says what goes wrong, not which line does it. `replaced` swaps a public method or function for a wrong one.
Where no public one can carry the fault, `rewritten` finds an expression or statement by its structure in a package's
syntax trees, wherever it is and however it is formatted; `$name` in a pattern stands for any expression.
"""

import ast
import copy
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

Plant = Callable[[pytest.MonkeyPatch], None]

_ANY = "_any_"  # what `$` of a pattern becomes, so that Python can parse it
_IGNORED = {"ctx", "kind", "type_comment"}  # fields of nodes that do not say what is computed


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault, and the check, a test without arguments, that must fail when it is planted."""

    plant: Plant  # until the test ends
    check: Callable[[], None]


def assert_noticed(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the check passes on the code as it is, and fails with the fault in it."""
    fault.check()
    fault.plant(monkeypatch)
    with pytest.raises(AssertionError):
        fault.check()


def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Plant:
    """Replace a class's method, or a module's function wherever it was imported, by `make(original)`."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        original = getattr(owner, name)
        faulty = make(original)
        places = [owner] if inspect.isclass(owner) else _loaded(sys.modules[owner.__name__.partition(".")[0]])
        for place in places:
            if getattr(place, name, None) is original:
                monkeypatch.setattr(place, name, faulty)

    return plant


def rewritten(within: ModuleType, find: str, into: str) -> Plant:
    """Rewrite what matches `find`, which must be in one place of a module or package, to `into`.

    The function around it gets new bytecode, so that everyone who has imported or wrapped it calls the faulty one.
    """

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        pattern, replacement = _parsed(find), _parsed(into)
        found = []
        for module in _loaded(within):
            tree = ast.parse(Path(inspect.getfile(module)).read_text(encoding="utf-8"))
            found += [(module, tree, *match) for match in _matches(tree, pattern)]
        assert len(found) == 1, f"{find!r} must match once in {within.__name__}, matched {len(found)} times"
        ((module, tree, names, node, bound),) = found
        tree = ast.fix_missing_locations(_Substitute(node, _Substitute.fill(replacement, bound)).visit(tree))
        function = _function(module, names)
        code = compile(tree, inspect.getfile(module), "exec")
        monkeypatch.setattr(function, "__code__", _code_of(code, ".".join(names)))

    return plant


def _loaded(within: ModuleType) -> list[ModuleType]:
    """Return a module and, of a package, all modules in it that have been imported."""
    name = within.__name__
    return [module for path, module in list(sys.modules.items()) if path == name or path.startswith(f"{name}.")]


def _parsed(pattern: str) -> ast.AST:
    """Parse an expression or a statement."""
    (statement,) = ast.parse(pattern.replace("$", _ANY)).body
    return statement.value if isinstance(statement, ast.Expr) else statement


Bound = dict[str, ast.AST]  # what each `$name` of a pattern stands for


def _matches(tree: ast.Module, pattern: ast.AST) -> Iterator[tuple[list[str], ast.AST, Bound]]:
    """Find (names of the classes and the function around it, the node, what it binds) of every match."""

    def walk(node: ast.AST, names: list[str], *, in_function: bool) -> Iterator[tuple[list[str], ast.AST, Bound]]:
        bound: Bound = {}
        if in_function and _is_match(pattern, node, bound):
            yield names, node, bound
        is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        if not in_function and (is_function or isinstance(node, ast.ClassDef)):
            names = [*names, node.name]
        for child in ast.iter_child_nodes(node):
            yield from walk(child, names, in_function=in_function or is_function)

    return walk(tree, [], in_function=False)


def _is_match(pattern: Any, node: Any, bound: Bound) -> bool:
    """Compare a pattern with what is there, field by field, and note what its `$names` stand for."""
    if isinstance(pattern, ast.Name) and pattern.id.startswith(_ANY):
        if not isinstance(node, ast.expr):
            return False
        known = bound.setdefault(pattern.id, node)
        return known is node or _is_match(known, node, {})
    if isinstance(pattern, ast.AST):
        fields = [field for field in pattern._fields if field not in _IGNORED]
        return type(pattern) is type(node) and all(
            _is_match(getattr(pattern, field, None), getattr(node, field, None), bound) for field in fields
        )
    if isinstance(pattern, list):
        pairs = zip(pattern, node, strict=False)
        return len(pattern) == len(node) and all(_is_match(one, other, bound) for one, other in pairs)
    return type(pattern) is type(node) and bool(pattern == node)


class _Substitute(ast.NodeTransformer):
    """Put another node in the place of one."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self._new if node is self._old else self.generic_visit(node)

    @classmethod
    def fill(cls, replacement: ast.AST, bound: Bound) -> ast.AST:
        """Return a replacement with what its `$names` stand for in their places."""
        holes = [node for node in ast.walk(replacement) if isinstance(node, ast.Name) and node.id in bound]
        for hole in holes:
            replacement = cls(hole, copy.deepcopy(bound[hole.id])).visit(replacement)
        return replacement


def _function(module: ModuleType, names: list[str]) -> FunctionType:
    """Return a module's function or a class's method, bare."""
    owner: Any = module
    for name in names[:-1]:
        owner = vars(owner)[name]
    found = vars(owner)[names[-1]]
    found = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
    function = inspect.unwrap(found)
    assert isinstance(function, FunctionType), f"{'.'.join(names)} of {module.__name__} is no function"
    return function


def _code_of(code: CodeType, name: str) -> CodeType:
    """Find a function's code in a module's."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    for one in inner:
        if one.co_qualname == name:
            return one
        if name.startswith(f"{one.co_qualname}."):
            return _code_of(one, name)
    raise AssertionError(f"the code of {name} was not found")
