"""The wheel is whole: built from a clean copy and imported from an environment that has nothing else of ours."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

import trainkit

ROOT = Path(__file__).parents[1]
SITE = sysconfig.get_path("purelib")


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = {**inherited, **variables}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build from a copy, so that neither old build folders get in nor new ones stay behind."""
    copy = tmp_path_factory.mktemp("copy")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist", cwd=copy)
    (path,) = (copy / "dist").glob("*.whl")
    return path


def test_the_wheel_holds_every_source_file_and_the_type_marker(wheel: Path) -> None:
    inside = {name for name in ZipFile(wheel).namelist() if name.startswith("trainkit/")}
    sources = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src" / "trainkit").rglob("*.py")}
    assert inside == sources | {"trainkit/py.typed", "trainkit/testing/pretend_device.cpp"}


def test_the_wheel_imports_from_a_clean_environment(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--no-compile"]
    run(*install, wheel, cwd=tmp_path)
    (site,) = (tmp_path / "venv").rglob("site-packages")
    # A .pth inside a folder named by a .pth is not read: we see the dependencies, not our own editable install.
    (site / "dependencies.pth").write_text(SITE)

    find = (
        "from importlib import metadata, util; print(util.find_spec('trainkit').origin, metadata.version('trainkit'))"
    )
    file, version = run(python, "-c", find, cwd=tmp_path).split()
    assert Path(file).is_relative_to(site)
    assert version == trainkit.__version__
    shown = run(tmp_path / "venv" / "bin" / "trainkit", "presets", cwd=tmp_path, PYTHONWARNINGS="error")
    assert shown.startswith("preset ")
