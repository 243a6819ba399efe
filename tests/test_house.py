"""The house stands as designed: imports point down, rooms keep apart, torch has its places."""

import ast
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
MODULES = {
    ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((SRC / "trainkit").rglob("*.py"))
}

# A room imports from its own level and below; the package itself stands on the roof and re-exports.
LEVELS = [
    {
        "arrays",
        "calls",
        "comparing",
        "errors",
        "files",
        "folders",
        "hints",
        "names",
        "memory",
        "parts",
        "reading",
        "scaling",
        "schedules",
        "seeding",
        "structured_actions",
    }
    | {"threads", "tree"},
    {"dashboards", "data", "spaces", "stats", "protocols"},
    {"buffer", "engine"},
    {"collector", "policy", "logger", "checkpoint", "runs"},
    {"trainer"},
    {"presets", "cli", "plot", "testing"},
    {"trainkit", "__main__"},
]
APART = [{"buffer", "collector", "policy"}, {"buffer", "collector", "engine"}]  # which meet in protocols and data alone
TORCH_ROOMS = {"engine", "policy", "checkpoint"}
CORE = {"torch", "gymnasium", "numpy", "threadpoolctl", "tqdm", "tensorboard", "typing_extensions"}
NOT_EVERYWHERE = {"fcntl"}  # of the standard library: Windows has none
SLOW_TO_LOAD = {"tensorboard"}  # may be imported where it is used, so that `import trainkit` stays quick

LEVEL_OF = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
every_module = pytest.mark.parametrize("module", MODULES)


def room_of(module: str) -> str:
    """Name the file or folder under trainkit/ that a module belongs to; the package itself is `trainkit`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def imported(node: ast.AST) -> list[str]:
    """List the full module names that an import statement loads; `from package import module` names the module."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = "." * node.level + (node.module or "")
        return [full if (full := f"{base}.{alias.name}") in MODULES else base for alias in node.names]
    return []


def imports(module: str) -> list[tuple[str, int]]:
    """List every import of a module, those inside functions too, each with its line."""
    tree = ast.parse(MODULES[module].read_text())
    return [(name, node.lineno) for node in ast.walk(tree) for name in imported(node)]


def type_only(module: str) -> set[tuple[str, int]]:
    """List the imports under a top-level `if TYPE_CHECKING`, which never run."""
    blocks = [node for node in ast.parse(MODULES[module].read_text()).body if isinstance(node, ast.If)]
    nodes = [node for block in blocks if ast.unparse(block.test) == "TYPE_CHECKING" for node in block.body]
    return {(name, node.lineno) for node in nodes for name in imported(node)}


def is_ours(name: str) -> bool:
    return name.split(".")[0] == "trainkit"


def test_there_is_a_house_to_walk() -> None:
    assert "trainkit" in MODULES


@every_module
def test_every_room_has_a_level(module: str) -> None:
    assert room_of(module) in LEVEL_OF, f"{module}: give room {room_of(module)!r} its level in LEVELS"


@every_module
def test_imports_only_point_down(module: str) -> None:
    level = LEVEL_OF[room_of(module)]
    up = [(name, line) for name, line in imports(module) if is_ours(name) and LEVEL_OF[room_of(name)] > level]
    assert up == []


@every_module
def test_buffer_collector_and_policy_or_engine_never_import_each_other(module: str) -> None:
    own = room_of(module)
    others = {room for rooms in APART if own in rooms for room in rooms} - {own}
    sideways = [(name, line) for name, line in imports(module) if is_ours(name) and room_of(name) in others]
    assert sideways == []


def test_imports_have_no_cycle() -> None:
    run = {module: set(imports(module)) - type_only(module) for module in MODULES}
    graph = {module: {name for name, _ in lines if is_ours(name)} for module, lines in run.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, naming the cycle


@every_module
def test_torch_lives_in_engine_policy_and_checkpoint_only(module: str) -> None:
    lines = [line for name, line in imports(module) if name.split(".")[0] == "torch"]
    assert lines == [] or room_of(module) in TORCH_ROOMS


@every_module
def test_imports_are_absolute(module: str) -> None:
    assert [(name, line) for name, line in imports(module) if name.startswith(".")] == []


@every_module
def test_imports_are_at_the_top_except_optional_ones(module: str) -> None:
    tree = ast.parse(MODULES[module].read_text())
    at_top = {(name, node.lineno) for node in tree.body for name in imported(node)} | type_only(module)
    required = CORE | {"trainkit"} | set(sys.stdlib_module_names) - NOT_EVERYWHERE
    misplaced = [
        (name, line)
        for name, line in imports(module)
        if ((name, line) in at_top) != ((root := name.split(".")[0]) in required) and root not in SLOW_TO_LOAD
    ]
    assert misplaced == []


@every_module
def test_every_file_begins_with_a_docstring(module: str) -> None:
    assert ast.get_docstring(ast.parse(MODULES[module].read_text()))
