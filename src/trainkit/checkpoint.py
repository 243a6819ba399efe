"""A checkpoint: a folder with a manifest and one file per component, of which the manifest names the newest whole set.

Every save writes files of its own, and only then the manifest over the former one, in one move: at every moment the
manifest names files that are all there. What else lies in the folder is left alone. Weights and moments are read by
`torch.load(weights_only=True)`, everything else as arrays and JSON: loading never executes code.
"""

import contextlib
import json
import pickle
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
_DAMAGE = (OSError, EOFError, RuntimeError, LookupError, TypeError, ValueError, AttributeError, pickle.UnpicklingError)


def save_checkpoint(folder: str | Path, components: Mapping[str, Any], settings: Mapping[str, Any]) -> Path:
    """Write components and a manifest into `folder`; until all is written a checkpoint that was there stays.

    A component is nested dicts and lists of plain values with tensors, or with arrays, in them.

    Raises:
        CheckpointError: it cannot be written; the former one is as it was.
    """
    folder = Path(folder)
    former = _read_manifest(folder) if (folder / _MANIFEST).exists() else None
    serial = 1 if former is None else former["serial"] + 1
    names = {name: f"{name}-{serial}{_TORCH if _has_tensor(state) else _ARRAYS}" for name, state in components.items()}
    manifest = {
        "format": FORMAT,
        "serial": serial,
        "versions": {package: _version(package) for package in ("trainkit", "torch", "numpy", "gymnasium")},
        "settings": dict(settings),
        "components": names,
    }
    try:
        for name, state in components.items():
            _write(folder / names[name], state)
        text = json.dumps(manifest, indent=2, default=str).encode()
        files.write_whole(folder / _MANIFEST, lambda file: file.write(text))
    except BaseException as error:
        _remove(folder, names)
        if isinstance(error, OSError):
            raise CheckpointError(
                f"no checkpoint could be written to {folder}: {error}; a former one is whole"
            ) from error
        raise
    if former is not None:
        _remove(folder, former["components"])
    return folder


def load_checkpoint(folder: str | Path, same: Mapping[str, Any]) -> dict[str, Any]:
    """Read the components of a checkpoint, tensors on the CPU.

    Args:
        folder: where one was saved.
        same: settings that must be as they were when it was saved.

    Raises:
        CheckpointError: there is none, it is damaged, of a newer format, or of another run.
    """
    folder = Path(folder)
    manifest = _read_manifest(folder)
    settings = manifest["settings"]
    wrong = [
        f"{folder} was saved with {name} {settings.get(name)!r}, this run has {own!r}: make it as it was"
        for name, own in same.items()
        if settings.get(name) != own
    ]
    if wrong:
        raise CheckpointError("\n".join(wrong))
    return {name: _read(folder / Path(file).name) for name, file in manifest["components"].items()}


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / _MANIFEST).read_text())
        written, *_ = (manifest[name] for name in ("format", "serial", "settings", "components"))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise CheckpointError(f"{folder} holds no readable checkpoint: {error!r}") from error
    if written > FORMAT:
        raise CheckpointError(
            f"{folder} has checkpoint format {written}, this trainkit reads up to {FORMAT}: install a newer trainkit"
        )
    return dict(manifest)


def _write(path: Path, state: Any) -> None:
    if path.suffix == _TORCH:
        files.write_whole(path, lambda file: torch.save(state, file))
    else:
        files.save_state(path, state)


def _read(path: Path) -> Any:
    if path.suffix == _ARRAYS:
        return files.load_state(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except _DAMAGE as error:
        raise CheckpointError(
            f"{path} cannot be read: it is missing, damaged, or holds more than tensors ({error})"
        ) from error


def _remove(folder: Path, names: Mapping[str, str]) -> None:
    for name in names.values():
        with contextlib.suppress(OSError):  # a file too many does no harm
            (folder / Path(name).name).unlink()


def _has_tensor(state: Any) -> bool:
    if isinstance(state, Mapping):
        return any(_has_tensor(child) for child in state.values())
    if isinstance(state, (list, tuple)):
        return any(_has_tensor(child) for child in state)
    return isinstance(state, torch.Tensor)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
