"""Modules outside of trainkit that are imported by name: optional packages, and what users name.

Optional packages are installed as extras of the distribution. What is inside of trainkit, the door `core.extensions`
imports.
"""

import importlib
from importlib.util import find_spec
from typing import Any

from trainkit.core.errors import MissingExtraError

DISTRIBUTION = "trainkit-rl"  # the name that pip installs and pyproject.toml declares; the module is `trainkit`


def install_command(extra: str) -> str:
    """Return how to install an extra, with and without a clone of the repository."""
    return f"pip install '{DISTRIBUTION}[{extra}]', or '.[{extra}]' in a clone"


def import_named(module: str) -> Any:
    """Import and return the module of a dotted name; may raise whatever importing it raises."""
    return importlib.import_module(module)


def is_installed(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    return find_spec(package) is not None


def import_extra(subject: object, module: str, extra: str) -> Any:
    """Import and return a module of an extra's packages.

    Args:
        subject: what needs it, with which the error begins.
        module: its dotted name.
        extra: one of `project.optional-dependencies` in pyproject.toml.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        return import_named(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingExtraError(f"{subject} needs {package} ({error}): {install_command(extra)}") from error


def connected_ray(subject: object) -> Any:
    """Return Ray, connected to the cluster that `RAY_ADDRESS` names or else started on this machine.

    Args:
        subject: what needs it, with which the error begins.

    Raises:
        MissingExtraError: it is not installed.
    """
    ray = import_extra(subject, "ray", "ray")
    if not ray.is_initialized():  # a dashboard's processes would take their share of the cores
        ray.init(include_dashboard=False, configure_logging=False, log_to_driver=False)
    return ray
