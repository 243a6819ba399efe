"""The distribution is whole: built from a clean copy and imported from an environment that has nothing else of ours."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

import trainkit
from trainkit.core.extras import DISTRIBUTION

ROOT = Path(__file__).parents[1]
SITE = sysconfig.get_path("purelib")


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = {**inherited, **variables}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build both from a copy, so that neither old build folders get in nor new ones stay behind: the wheel from the
    source distribution."""
    copy = tmp_path_factory.mktemp("copy")
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "Makefile", "constraints.txt"):
        shutil.copy(ROOT / name, copy)
    for name in ("src", "examples"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist", cwd=copy)
    return copy / "dist"


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


def sources() -> set[str]:
    """Return the paths below src of every file of the package, data included."""
    paths = (path for path in (ROOT / "src" / "trainkit").rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {path.relative_to(ROOT / "src").as_posix() for path in paths}


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    inside = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert inside == sources()
    assert "trainkit/py.typed" in inside


def test_the_source_distribution_has_the_files_of_the_wheel_and_the_clone(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert inside >= {f"src/{name}" for name in sources()} | {"Makefile", "constraints.txt", "examples/dqn_cartpole.py"}


def test_the_wheel_imports_from_a_clean_environment(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--no-compile"]
    run(*install, wheel, cwd=tmp_path)
    (site,) = (tmp_path / "venv").rglob("site-packages")
    # A .pth inside a folder named by a .pth is not read: we see the dependencies, not our own editable install.
    (site / "dependencies.pth").write_text(SITE)

    find = (
        "from importlib import metadata, util; "
        f"print(util.find_spec('trainkit').origin, metadata.version({DISTRIBUTION!r}))"
    )
    file, version = run(python, "-c", find, cwd=tmp_path).split()
    assert Path(file).is_relative_to(site)
    assert version == trainkit.__version__
    shown = run(tmp_path / "venv" / "bin" / "trainkit", "presets", cwd=tmp_path, PYTHONWARNINGS="error")
    assert shown.startswith("preset ")
