"""Stubs of the packages whose names are imported when they are first used, for type checkers and editors.

    python -m tests.stubs           write them
    python -m tests.stubs --check   say which differ; exit status 1 if any does

Such a package calls `attach`, with a table of its names that no checker reads. Its stub imports them, and those that
extensions add, from where they are defined.
"""

import argparse
import ast
import importlib
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"
RUFF = Path(sys.executable).with_name("ruff")


def packages() -> list[str]:
    """Return the packages that call `attach`."""
    paths = (SRC / "trainkit").rglob("__init__.py")
    return sorted(
        ".".join(path.parent.relative_to(SRC).parts) for path in paths if attached(ast.parse(path.read_text()))
    )


def attached(tree: ast.Module) -> ast.Call | None:
    """Return the call of `attach` in a package, None if there is none."""
    calls = [node.value for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)]
    return next((call for call in calls if ast.unparse(call.func) == "attach"), None)


def own_names(tree: ast.Module) -> dict[str, str]:
    """Return what a package lists in its call of `attach`, {name: the module that defines it}."""
    call = attached(tree)
    lines = ast.literal_eval(call.args[1]) if call is not None and len(call.args) > 1 else {}
    return {name: f"trainkit.{module}" for module, line in lines.items() for name in line.split()}


def path_of(package: str) -> Path:
    """Return the path of a package's stub."""
    return SRC / package.replace(".", "/") / "__init__.pyi"


def text_of(package: str) -> str:
    """Return the stub of a package: its docstring, imports from where its names are, constants, and `__all__`."""
    from trainkit.core.extensions import table

    module = importlib.import_module(package)
    tree = ast.parse(path_of(package).with_suffix(".py").read_text())
    public = sorted(module.__all__)
    origin = {name: (source, name) for name, source in own_names(tree).items()}
    prefix = package.partition(".")[2]
    for path, entry in table("NAMES").items():
        space, _, name = path.rpartition(".")
        if space == prefix:
            origin[name] = (entry.module, entry.path.partition(":")[2])
    if package == "trainkit.presets":
        origin |= {name: (entry.module, name) for name, entry in table("PRESETS").items()}
    origin |= {name: (package, name) for name in public if name not in origin}  # modules
    by_module: dict[str, list[str]] = defaultdict(list)
    for name in public:
        source, own = origin[name]
        by_module[source].append(name if own == name else f"{own} as {name}")
    about = (ast.get_docstring(tree) or "").partition("\n")[0]
    lines = [f'"""{about}"""', "# Written by `python -m tests.stubs`", ""]
    lines += [f"from {source} import {', '.join(names)}" for source, names in sorted(by_module.items())]
    if package == "trainkit":
        lines += ["", "__version__: str"]
    lines += ["", f"__all__ = {public!r}"]
    formatted = subprocess.run(
        [str(RUFF), "check", "--fix-only", "--select=I", "--stdin-filename", str(path_of(package)), "-"],
        input="\n".join(lines) + "\n", capture_output=True, text=True, check=True, cwd=ROOT,
    ).stdout  # fmt: skip
    return subprocess.run(
        [str(RUFF), "format", "--stdin-filename", str(path_of(package)), "-"],
        input=formatted, capture_output=True, text=True, check=True, cwd=ROOT,
    ).stdout  # fmt: skip


def main() -> int | str:
    """Write the stubs, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    texts = {path_of(package): text_of(package) for package in packages()}
    stale = [path for path in (SRC / "trainkit").rglob("__init__.pyi") if path not in texts]
    if options.check:
        wrong = stale + [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
        names = ", ".join(str(path.relative_to(ROOT)) for path in wrong)
        return f"not what their packages export: {names}: run python -m tests.stubs" if wrong else 0
    for path in stale:
        path.unlink()
    for path, text in texts.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
