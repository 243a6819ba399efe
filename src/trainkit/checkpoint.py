"""A checkpoint: a folder with a manifest and one file per component, put in place whole.

Weights and moments are read by `torch.load(weights_only=True)`, everything else as arrays and JSON: loading never
executes code.
"""

import json
import pickle
import shutil
import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from trainkit import files
from trainkit.errors import CheckpointError

FORMAT = 1
_MANIFEST = "manifest.json"
_TORCH, _ARRAYS = ".pt", ".npz"


def save_checkpoint(folder: str | Path, components: Mapping[str, Any], about: Mapping[str, Any]) -> Path:
    """Write components and a manifest into `folder`, replacing a checkpoint that was there only when all is written.

    A component is nested dicts and lists of plain values with tensors, or with arrays, in them.
    """
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        names = {}
        for name, state in components.items():
            suffix = _TORCH if _has_tensor(state) else _ARRAYS
            path = staging / f"{name}{suffix}"
            if suffix == _TORCH:
                files.write_whole(path, lambda file, state=state: torch.save(state, file))  # type: ignore[misc]  # bound now
            else:
                files.save_state(path, state)
            names[name] = path.name
        versions = {package: _version(package) for package in ("trainkit", "torch", "numpy", "gymnasium")}
        manifest = {"format": FORMAT, "versions": versions, "components": names, **about}
        text = json.dumps(manifest, indent=2)
        files.write_whole(staging / _MANIFEST, lambda file: file.write(text.encode()))
        _swap(staging, folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return folder


def load_checkpoint(folder: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read (manifest, components) of a checkpoint, tensors on the CPU.

    Raises:
        CheckpointError: there is none, it is damaged, or it is of a newer format.
    """
    folder = Path(folder)
    try:
        manifest: dict[str, Any] = json.loads((folder / _MANIFEST).read_text())
        names: dict[str, str] = manifest["components"]
        written = manifest["format"]
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{folder} holds no readable checkpoint: {error}") from error
    if written > FORMAT:
        raise CheckpointError(
            f"{folder} has checkpoint format {written}, this trainkit reads up to {FORMAT}: install a newer trainkit"
        )
    return manifest, {name: _load(folder / Path(file).name) for name, file in names.items()}


def _load(path: Path) -> Any:
    if path.suffix == _ARRAYS:
        return files.load_state(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(
            f"{path} cannot be read: it is missing, damaged, or holds more than tensors ({error})"
        ) from error


def _has_tensor(state: Any) -> bool:
    if isinstance(state, Mapping):
        return any(_has_tensor(child) for child in state.values())
    if isinstance(state, (list, tuple)):
        return any(_has_tensor(child) for child in state)
    return isinstance(state, torch.Tensor)


def _swap(staging: Path, folder: Path) -> None:
    """Put the staged folder in place of the old one."""
    if not folder.exists():
        staging.rename(folder)
        return
    old = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.old."))
    folder.rename(old / folder.name)
    staging.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
