"""A missing package is named with its extra, and every text names the distribution in the same way."""

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from trainkit.core.errors import MissingExtraError
from trainkit.core.extras import DISTRIBUTION, import_extra, install_command

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
PACKAGES = {
    "PIL": "pillow",
    "ale_py": "ale-py",
    "imageio_ffmpeg": "imageio-ffmpeg",
    "h5py": "(h5py|hdf5)",
}  # {module: distribution, or extra of one}


def texts() -> dict[str, str]:
    """Return {path: text} of every source, page and build file."""
    suffixes = (".py", ".md", ".toml", ".yml", ".ipynb", ".txt", ".in", "Makefile", ".ci/run")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    paths = listed.splitlines() or [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()]
    return {path: (ROOT / path).read_text() for path in paths if path.endswith(suffixes) and not path.startswith(".")}


def test_a_missing_package_is_an_error_with_both_ways_to_install_its_extra() -> None:
    with pytest.raises(MissingExtraError) as caught:
        import_extra("tk.plot", "no_such_package.inner", "plot")
    assert str(caught.value) == (
        "tk.plot needs no_such_package (No module named 'no_such_package'): "
        "pip install 'trainkit-rl[plot]', or '.[plot]' in a clone"
    )


def test_the_distribution_is_the_one_that_pyproject_declares() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    assert f"'{DISTRIBUTION}[onnx]'" in install_command("onnx")


def test_every_optional_import_names_an_extra_that_installs_its_package() -> None:
    found = set()
    for path, text in texts().items():
        if not path.startswith("src/") or "import_extra(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "import_extra":
                given = [argument.value for argument in node.args[1:] if isinstance(argument, ast.Constant)]
                if len(given) == 2:  # others read both from a table
                    found.add((str(given[0]).partition(".")[0], str(given[1])))
    for module, extra in found:
        required = " ".join(EXTRAS[extra])
        assert re.search(rf"\b{PACKAGES.get(module, module)}\b", required), (module, extra, required)
    assert {"hdf5", "minari", "onnx", "pandas", "plot", "safetensors", "video"} <= {extra for _, extra in found}


def test_no_text_installs_another_distribution_or_an_extra_that_does_not_exist() -> None:
    wrong = []
    for path, text in texts().items():
        for line in text.splitlines() if "pip install" in text or "trainkit-rl" in text or "trainkit[" in text else ():
            former = re.search(r"pip install [^#`]*\btrainkit(?!\w|-rl)|\btrainkit\[[a-z]", line)
            unknown = {
                name
                for extras in re.findall(rf"(?:{DISTRIBUTION}|'\.)\[([a-z0-9,]+)\]", line)
                for name in extras.split(",")
                if name not in EXTRAS
            }
            if former or unknown:
                wrong.append(f"{path}: {line.strip()}")
    assert wrong == []


def test_one_helper_says_how_to_install() -> None:
    command = re.compile(r"pip install '?(\{|train|\.)")  # ours, by its variable, by name or in a clone
    own = [path for path, text in texts().items() if path.startswith("src/") and command.search(text)]
    assert own == ["src/trainkit/core/extras.py"]
