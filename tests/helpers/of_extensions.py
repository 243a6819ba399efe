"""What extensions add to tables of all the tests: files of one name in the folders of their tests."""

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from trainkit.core.extensions import present

FOLDER = Path(__file__).parents[1] / "extensions"


def files_of_extensions(name: str) -> dict[str, ModuleType]:
    """Import `tests/extensions/EXTENSION/NAME.py` of each extension that is there and has one; by extension."""
    having = [extension for extension in present() if (FOLDER / extension / f"{name}.py").exists()]
    return {extension: import_module(f"tests.extensions.{extension}.{name}") for extension in having}


def learners_of_extensions(table: str = "LEARNERS") -> dict[str, Any]:
    """Return what all extensions have in a table of their `learners.py`: {name of a learner: its case}."""
    files = files_of_extensions("learners").values()
    return {name: case for file in files for name, case in getattr(file, table, {}).items()}
