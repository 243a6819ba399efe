"""The versions of the packages that a run's bits depend on."""

import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version


def versions() -> dict[str, str | None]:
    """Return {package: version}, None of one that is not installed."""
    return {"trainkit": sys.modules["trainkit"].__version__} | {
        package: _version(package) for package in ("torch", "numpy", "gymnasium")
    }


@cache  # each reads a file
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
