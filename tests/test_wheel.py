"""The wheel is whole: built from a clean copy and imported from an environment that has nothing else of ours."""

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


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
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
    assert inside == sources | {"trainkit/py.typed"}


def test_the_wheel_imports_from_a_clean_environment(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path))
    # A .pth inside a folder named by a .pth is not read: we see the dependencies, not our own editable install.
    (site / "dependencies.pth").write_text(SITE)

    report = "import trainkit, importlib.metadata as m; print(trainkit.__file__, m.version('trainkit'), sep='\\n')"
    file, version = run(python, "-W", "error", "-c", report, cwd=tmp_path).splitlines()

    assert Path(file).is_relative_to(site)
    told = run(tmp_path / "venv" / "bin" / "trainkit", "presets", cwd=tmp_path)
    assert told.startswith("preset ")
    assert version == trainkit.__version__
