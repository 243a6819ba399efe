"""Build TorchRL's C++ anew for the torch that is there: its wheel brings the sources, and a build for a newer torch.

Runs in TorchRL's environment and writes over the extension there; it needs `g++` and Python's headers.
"""

import importlib.util
import subprocess
import sysconfig
from pathlib import Path

from torch.utils.cpp_extension import include_paths, library_paths


def main() -> None:
    """Compile and link."""
    package = importlib.util.find_spec("torchrl")
    if package is None or package.origin is None:
        raise SystemExit("torchrl is not here: run this in its environment")
    here = Path(package.origin).parent
    include = [str(here.parent), sysconfig.get_path("include"), *include_paths()]
    libraries = ["c10", "torch", "torch_cpu", "torch_python"]
    command = ["g++", "-O3", "-DNDEBUG", "-fPIC", "-shared", "-std=c++20", "-DTORCH_EXTENSION_NAME=_torchrl"]
    command += [f"-I{path}" for path in include] + [f"-L{path}" for path in library_paths()]
    command += [str(here / "csrc" / name) for name in ("pybind.cpp", "utils.cpp")]
    command += [f"-l{name}" for name in libraries]
    subprocess.run([*command, "-o", str(here / f"_torchrl{sysconfig.get_config_var('EXT_SUFFIX')}")], check=True)


if __name__ == "__main__":
    main()
