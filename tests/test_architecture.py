"""The architecture: packages import only from the layers below, and torch in few of them.

Absolute imports and docstrings of modules are ruff's rules (TID252, D100, D104).
"""

import ast
import os
import subprocess
import sys
from collections import defaultdict
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from tests.stubs import own_names

SRC = Path(__file__).parents[1] / "src"
MODULES = {
    ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((SRC / "trainkit").rglob("*.py"))
}

# A package imports from its own files and from the layers below. Packages of one layer never import each other:
# they meet in `core`, by data and protocols.
LAYERS = [
    {"core"},
    {"datasets", "errors", "schedules"},  # namespaces, which re-export
    {"envs", "buffer", "nets", "engine"},
    {"collector", "policy", "loggers"},
    {"simulators"},  # a namespace
    {"trainer"},
    {"presets.base"},
    {"extensions"},
    {"callbacks"},  # a namespace
    {"presets", "plot", "testing"},
    {"zoo"},
    {"cli"},
    {"trainkit", "__main__"},  # the package itself re-exports
]
TORCH_PACKAGES = {"engine", "extensions", "nets", "policy", "simulators"}
TORCH_PACKAGES |= {"core.checkpoint", "loggers.tensorboard"}
CORE = {"torch", "gymnasium", "numpy", "threadpoolctl", "tqdm", "tensorboard", "typing_extensions"}
NOT_EVERYWHERE = {"fcntl", "resource"}  # of the standard library: Windows has none
SLOW_TO_LOAD = {
    "tensorboard",
    "torch.utils.tensorboard",
}  # imported where they are used: `import trainkit` stays quick

MODULES_LOADED = 100  # at most, by the import of one trainer; lower it where it can be

IMPORTS_BY_NAME = ("importlib", "pkgutil", "runpy")  # modules

# Where classes name each other in annotations: the trainer and its callbacks, a policy and its parts.
CYCLES_OF_TYPES = ["trainer", "policy", "extensions.games", "extensions.memory"]

# What presets are, by which extensions add theirs.
BASE_OF_PRESETS = {"base", "off_policy", "off_policy_actor_critic", "rollouts", "zoo_entry"}

LAYER_OF = {package: layer for layer, packages in enumerate(LAYERS) for package in packages}


def package_of(module: str) -> str:
    """Name the package under trainkit/ that a module belongs to; the top package itself is `trainkit`."""
    if module.removeprefix("trainkit.presets.") in BASE_OF_PRESETS:
        return "presets.base"
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def imported(node: ast.AST) -> list[str]:
    """List the full module names that an import statement loads.

    `from package import module` names the module, and `from package import name` the one that defines the name where
    the package imports it when it is first used.
    """
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = "." * node.level + (node.module or "")
        defined_in = names_of(base) if base in MODULES else {}
        paths = {alias.name: f"{base}.{alias.name}" for alias in node.names}
        return [path if path in MODULES else defined_in.get(name, base) for name, path in paths.items()]
    return []


@cache
def names_of(package: str) -> dict[str, str]:
    return own_names(tree_of(package))


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


@cache
def imports(module: str) -> list[tuple[str, int]]:
    """List every import of a module, those inside functions too, each with its line."""
    return [(name, node.lineno) for node in ast.walk(tree_of(module)) for name in imported(node)]


def type_only(module: str) -> set[tuple[str, int]]:
    """List the imports under a top-level `if TYPE_CHECKING`, which never run."""
    blocks = [node for node in tree_of(module).body if isinstance(node, ast.If)]
    nodes = [node for block in blocks if ast.unparse(block.test) == "TYPE_CHECKING" for node in block.body]
    return {(name, node.lineno) for node in nodes for name in imported(node)}


def is_ours(name: str) -> bool:
    return name.split(".")[0] == "trainkit"


def test_every_package_has_a_layer() -> None:
    assert sorted({package_of(module) for module in MODULES} ^ LAYER_OF.keys()) == [], "name it in LAYERS"


def test_packages_import_only_from_layers_below() -> None:
    upward = []
    for module in MODULES:
        own = package_of(module)
        for name, line in imports(module):
            if is_ours(name) and package_of(name) != own and LAYER_OF[package_of(name)] >= LAYER_OF[own]:
                upward.append(f"{module}:{line} imports {name}")
    assert upward == []


def test_hints_for_misspelled_names_need_no_other_module() -> None:
    assert [name for name, _ in imports("trainkit.core.names") if is_ours(name)] == []


def test_imports_have_no_cycle() -> None:
    run = {module: set(imports(module)) - type_only(module) for module in MODULES}
    graph = {module: {name for name, _ in lines if is_ours(name)} for module, lines in run.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, naming the cycle


def test_types_have_a_cycle_in_few_packages_alone() -> None:
    inside = {module for module in MODULES if module.startswith(tuple(f"trainkit.{name}." for name in CYCLES_OF_TYPES))}
    graph = {
        module: {name for name, _ in imports(module) if is_ours(name) and not {module, name} <= inside}
        for module in MODULES
    }
    TopologicalSorter(graph).prepare()


def test_modules_are_imported_by_name_at_the_door_and_for_what_is_outside_alone() -> None:
    """Trainkit's own by `core/extensions.py`, others by `core/extras.py`; `importlib.metadata` imports nothing."""
    by_name = {
        module
        for module in MODULES
        for node in ast.walk(tree_of(module))
        if any(name.startswith(IMPORTS_BY_NAME) and name != "importlib.metadata" for name in imported(node))
        or (isinstance(node, ast.Name) and node.id in ("__import__", "eval", "exec"))
    }
    assert by_name == {"trainkit.core.extensions", "trainkit.core.extras"}


def test_torch_is_imported_by_networks_engine_policies_and_checkpoints_only() -> None:
    allowed = [module for module in MODULES if {package_of(module), module.removeprefix("trainkit.")} & TORCH_PACKAGES]
    assert [
        f"{module}:{line}"
        for module in MODULES
        for name, line in imports(module)
        if name.split(".")[0] == "torch" and module not in allowed
    ] == []


def test_cuda_is_called_by_name_for_its_graphs_only() -> None:
    named = [
        module
        for module in MODULES
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith(("torch.cuda", "torch.version.cuda"))
    ]
    assert set(named) == {"trainkit.extensions.cuda.cuda_graph"}, "elsewhere torch.accelerator serves every device"


def test_imports_are_at_the_top_except_optional_ones() -> None:
    required = CORE | {"trainkit"} | set(sys.stdlib_module_names) - NOT_EVERYWHERE
    misplaced = []
    for module in MODULES:
        at_top = {(name, node.lineno) for node in tree_of(module).body for name in imported(node)} | type_only(module)
        for name, line in imports(module):
            root = name.split(".")[0]
            if not {root, name} & SLOW_TO_LOAD and ((name, line) in at_top) != (root in required):
                misplaced.append(f"{module}:{line} imports {name}")
    assert misplaced == []


def test_no_file_name_is_used_twice_but_by_extensions() -> None:
    """Each extension may have its `presets.py`, but none a file that is named as one of the kernel."""
    owners = defaultdict[str, list[str]](list)
    for path in MODULES.values():
        if path.name not in ("__init__.py", "base.py"):
            parts = path.relative_to(SRC / "trainkit").parts
            owners[path.name].append(parts[1] if parts[0] == "extensions" else "the kernel")
    assert [name for name, of in owners.items() if len(of) > len({*of}) or (len(of) > 1 and "the kernel" in of)] == []


def test_importing_a_trainer_loads_no_more_modules_than_before() -> None:
    look = "hasattr(trainkit, '__wrapped__'), hasattr(trainkit, '_repr_html_')"  # by test runners and notebooks
    code = f"import sys, trainkit\nfrom trainkit import OffpolicyTrainer\n{look}\nprint(*sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(SRC)}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    loaded = [name for name in ran.stdout.split() if is_ours(name)]
    assert len(loaded) <= MODULES_LOADED


def test_no_test_imports_another() -> None:
    """What several tests share stands in a module that is no test; those of the buffer are run against mutants."""
    found = []
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests"):
                names = {*(node.module or "").split("."), *(alias.name for alias in node.names)}
                found += [path.name for name in names if name.startswith("test_")]
    assert {*found} <= {"test_mutants.py", "mutants.py"}
