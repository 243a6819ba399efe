"""Which file of a repository names which: imports, followed through the packages that re-export."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

NAMING = (ast.Import, ast.ImportFrom, ast.Attribute)


class Imports:
    """The modules of a package, of its tests, benchmarks and examples, and which names which.

    Args:
        root: of the repository; the packages are in `src`, the tests in `tests`.

    Attributes:
        paths: {dotted name of a module: its file}.
    """

    def __init__(self, root: Path) -> None:
        folders = [*sorted((root / "src").glob("*/")), root / "tests", root / "benchmarks", root / "examples"]
        found = [(folder.parent, path) for folder in folders for path in sorted(folder.rglob("*.py"))]
        names = {path: ".".join(path.relative_to(base).with_suffix("").parts) for base, path in found}
        self.paths = {name.removesuffix(".__init__"): path for path, name in names.items()}

    def is_package(self, module: str) -> bool:
        """Return whether a module is the `__init__.py` of a package, which re-exports."""
        return self.paths[module].name == "__init__.py"

    @cached_property
    def _nodes(self) -> dict[str, list[ast.AST]]:
        """The imports of each module, and the attributes that it names."""
        trees = {module: ast.walk(ast.parse(path.read_text())) for module, path in self.paths.items()}
        return {module: [node for node in tree if isinstance(node, NAMING)] for module, tree in trees.items()}

    def _from_imports(self, module: str) -> Iterator[tuple[str, str, str]]:
        """Yield (module, name in it, local name) of each `from ... import` of a module of ours."""
        for node in self._nodes[module]:
            if isinstance(node, ast.ImportFrom) and node.module in self.paths:
                for alias in node.names:
                    yield node.module, alias.name, alias.asname or alias.name

    @cached_property
    def _exports(self) -> dict[str, dict[str, tuple[str, str]]]:
        """Where the names of each package come from: {package: {name: (module, name in it)}}."""
        return {
            package: {local: (module, name) for module, name, local in self._from_imports(package)}
            for package in filter(self.is_package, self.paths)
        }

    def definer(self, module: str, name: str) -> str:
        """Return the module that defines what a module offers by a name, or is it."""
        if f"{module}.{name}" in self.paths:
            return f"{module}.{name}"
        exported = self._exports.get(module, {})
        return self.definer(*exported[name]) if name in exported else module

    def _uses(self, module: str) -> set[str]:
        # A test also uses the `conftest.py` of its folders; not that of all tests: what it names would reach each.
        folders = module.split(".")[:-1] if module.startswith("tests.") else []
        found = {".".join([*folders[:n], "conftest"]) for n in range(2, len(folders) + 1)} & self.paths.keys()
        local: dict[str, str] = {}  # {local name: the module that it is}
        for base, name, own in self._from_imports(module):
            found.add(there := self.definer(base, name))
            if there == f"{base}.{name}":
                local[own] = there
        for node in self._nodes[module]:
            for alias in node.names if isinstance(node, ast.Import) else ():
                if alias.name in self.paths:
                    found.add(alias.name)
                    root = alias.name.partition(".")[0]
                    local[alias.asname or root] = alias.name if alias.asname else root
        for node in self._nodes[module]:
            names = _dotted(node)
            if len(names) > 1 and names[0] in local:
                there = local[names[0]]
                for name in names[1:]:  # `tk.policy.DQNPolicy` is followed name by name
                    before, there = there, self.definer(there, name)
                    if there != f"{before}.{name}":
                        break
                found.add(there)
        return found - {module}

    @cached_property
    def uses(self) -> dict[str, set[str]]:
        """The modules that each module names, each where its names are defined."""
        return {module: self._uses(module) for module in self.paths}

    def distances(self, changed: set[str]) -> dict[str, int]:
        """Return how many imports lie between each module that is reached from changed ones and the nearest of these.

        What a package re-exports does not lead on: who names it is reached from the module that defines it.
        """
        users = defaultdict(set)
        for module, used in self.uses.items():
            for one in used:
                users[one].add(module)
        found, edge = dict.fromkeys(sorted(changed), 0), changed
        while edge:
            reached = {user for module in edge for user in users[module]} - found.keys()
            found |= dict.fromkeys(sorted(reached), max(found.values()) + 1)
            edge = {module for module in reached if not self.is_package(module)}
        return found


def _dotted(node: ast.AST) -> list[str]:
    """Return the names of `a.b.c`; none of an attribute of anything else than a name."""
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value)):
        return [*before, node.attr]
    return [node.id] if isinstance(node, ast.Name) else []
