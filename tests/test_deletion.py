"""The rule of extensions, proved: a copy of the package without one of them imports, trains and loads all the same.

An extension is a folder of `src/trainkit/extensions`. Where it is deleted, nothing but its own tests may break.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from benchmarks.measuring import Live
from trainkit.presets import PRESETS

pytestmark = [
    pytest.mark.no_cover,  # what runs are copies
    pytest.mark.skipif(not hasattr(os, "fork"), reason="each copy is tried in a fork"),
]

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "trainkit"
THE_KERNEL = "the kernel"
KERNEL = "core envs collector buffer nets engine policy trainer loggers".split()

# Tests that need several extensions: neither the kernel's own tests nor those of one extension have them.
OF_SEVERAL = {
    "test_actor_critic_precision": "actor_critic cuda",
    "test_actor_critic_with_memory": "actor_critic memory",
    "test_actor_critic_with_resets": "actor_critic resets",
    "test_actors_with_others": "actors processors restarts",
    "test_cuda_with_numpy": "cuda numpy_engine",
    "test_cuda_with_restarts": "cuda restarts",
    "test_export_with_memory": "export memory",
    "test_export_with_offline": "export offline",
    "test_games_with_memory": "games memory",
    "test_games_with_others": "background games processors restarts",
    "test_memory_with_parameter_noise": "memory parameter_noise",
    "test_offline_engines": "numpy_engine offline",
    "test_offline_memory": "memory offline",
    "test_offline_with_others": "cuda export games memory offline",
    "test_ranks_with_others": "actor_critic ranks resets restarts",
    "test_recurrent_graphs": "cuda memory",
    "test_runs_by_numpy": "games memory numpy_engine offline",
    "test_switching": "compile cuda numpy_engine",
}


def extensions() -> list[str]:
    """Return the names of all extensions."""
    return [path.parent.name for path in sorted((PACKAGE / "extensions").glob("*/__init__.py"))]


def test_the_tests_that_need_several_extensions_are_these() -> None:
    folder = ROOT / "tests" / "extensions"
    assert sorted(path.stem for path in folder.glob("test_*.py")) == sorted(OF_SEVERAL)
    assert {name for names in OF_SEVERAL.values() for name in names.split()} <= {*extensions()}
    own = [path for path in folder.rglob("test_*.py") if path.parent != folder]
    assert {path.relative_to(folder).parts[0] for path in own} == {*extensions()}


def without(names: Iterable[str], folder: Path) -> Path:
    """Copy the package without some extensions, and return the folder to import it from."""
    shutil.copytree(PACKAGE, folder / "trainkit")  # with what is compiled already, which is as old as its source
    for name in names:
        shutil.rmtree(folder / "trainkit" / "extensions" / name)
    return folder


@pytest.fixture(scope="module")
def side() -> Iterator[Live]:
    """Start the process that tries copies."""
    command = ["/usr/bin/env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "tests.helpers.deletion_side"]
    with Live(command, sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0) as live:
        yield live


def failure(side: Live, source: Path, **requested: object) -> str:
    """Return what fails in the package that a folder has; see `try_copy` of the side."""
    text: str = side.query(json.dumps({"copy": str(source), **requested}))["failed"]
    return text


@pytest.fixture(scope="module")
def saved(side: Live, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a folder with a policy of each preset of the whole package, where each loads."""
    folder = str(tmp_path_factory.mktemp("saved"))
    assert failure(side, PACKAGE.parent, train=True, save=folder, load=folder) == ""
    return folder


def test_the_whole_package_trains_saves_and_loads_each_preset(saved: str) -> None:
    assert sorted(path.name for path in Path(saved).iterdir()) == sorted(PRESETS)


def test_a_copy_without_a_file_that_every_run_needs_fails(side: Live, tmp_path: Path) -> None:
    (without([], tmp_path) / "trainkit/policy/target.py").unlink()
    assert "No module named 'trainkit.policy.target'" in failure(side, tmp_path, train=False)


def test_a_policy_that_does_not_load_needs_an_extension_that_its_error_names(side: Live, tmp_path: Path) -> None:
    (tmp_path / "dqn").mkdir()  # of no policy
    requested = {"train": False, "load": str(tmp_path)}
    assert "dqn cannot be loaded" in failure(side, PACKAGE.parent, **requested)
    assert failure(side, PACKAGE.parent, **requested, missing=["dqn"]) == ""  # the path is in the error


@pytest.mark.parametrize("name", extensions())
def test_without_an_extension_the_rest_imports_trains_and_loads(
    name: str, side: Live, tmp_path: Path, saved: str
) -> None:
    assert failure(side, without([name], tmp_path), train=True, load=saved, missing=[name]) == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", [THE_KERNEL, *extensions()])
def test_the_kernel_and_each_extension_with_it_pass_their_tests_alone(
    name: str, side: Live, tmp_path: Path, saved: str
) -> None:
    missing = [other for other in extensions() if other != name]
    source = without(missing, tmp_path)
    assert failure(side, source, train=True, load=saved, missing=missing) == ""
    tests = [f"tests/{package}" for package in KERNEL] if name == THE_KERNEL else [f"tests/extensions/{name}"]
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
