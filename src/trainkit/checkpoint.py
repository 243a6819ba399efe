"""A checkpoint: a folder with a manifest and one file per component, of which the manifest names the newest whole set.

Every save writes files of its own, and only then the manifest over the former one, in one move: at every moment the
manifest names files that are all there. It has the size and the SHA-256 of each, and of itself: what was changed
since is refused before anything reads it. What else lies in the folder is left alone. Weights and moments are read by
`torch.load(weights_only=True)`, everything else as arrays and JSON: loading never executes code.
"""

import contextlib
import hashlib
import json
import pickle
import re
import stat
from collections.abc import Container, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from trainkit import files
from trainkit.errors import CheckpointError, MissingExtraError

FORMAT = 1
MANIFEST = "manifest.json"
_TORCH, _ARRAYS = ".pt", ".npz"
_DAMAGE = (*files.DAMAGED, AttributeError, pickle.UnpicklingError)
_LARGEST_MANIFEST = 64 * 2**20  # bytes
_NUMBERED = re.compile(r"save-(\d{6,})")


def save_checkpoint(folder: str | Path, components: Mapping[str, Any], about: Mapping[str, Any]) -> Path:
    """Write components and a manifest into `folder`; until all is written a checkpoint that was there stays.

    Args:
        folder: made where it is missing.
        components: nested dicts and lists of plain values with tensors, or with arrays, in them.
        about: what else the manifest shall tell, in plain values.

    Raises:
        CheckpointError: it cannot be written; the former one is as it was.
    """
    folder = Path(folder)
    former = read_manifest(folder) if (folder / MANIFEST).exists() else None
    serial = 1 if former is None else former["serial"] + 1
    names = {name: f"{name}-{serial}{_TORCH if _has_tensor(state) else _ARRAYS}" for name, state in components.items()}
    manifest = {
        "format": FORMAT,
        "serial": serial,
        "saved_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        **about,
        "components": {},
    }
    try:
        for name, state in components.items():
            path = folder / names[name]
            _write(path, state)
            size, digest = path.stat().st_size, _digest(path)
            manifest["components"][name] = {"file": path.name, "bytes": size, "sha256": digest}
        text = _signed(manifest)
        files.write_whole(folder / MANIFEST, lambda file: file.write(text))
    except BaseException as error:
        _remove(folder, names.values())
        if isinstance(error, OSError):
            raise CheckpointError(
                f"no checkpoint could be written to {folder}: {error}; a former one is whole"
            ) from error
        raise
    if former is not None:
        _remove(folder, (entry["file"] for entry in former["components"].values()))
    return folder


def load_checkpoint(folder: str | Path, names: Container[str] | None = None) -> dict[str, Any]:
    """Read the components of a checkpoint, all or those named, tensors on the CPU.

    Raises:
        CheckpointError: there is none, it is damaged, or of a newer format.
    """
    folder = Path(folder)
    entries = read_manifest(folder)["components"]
    chosen = {name: entry for name, entry in entries.items() if names is None or name in names}
    paths = {name: _checked(folder, entry) for name, entry in chosen.items()}  # all of them before any is read
    return {name: _read(path) for name, path in paths.items()}


def inspect_checkpoint(path: str | Path) -> dict[str, Any]:
    """Tell what a checkpoint is of and how far it got, as plain values; `problem` is what is wrong with it, or None.

    Args:
        path: a checkpoint, or the folder of several: then the newest whole one.

    Raises:
        CheckpointError: there is no readable manifest.
    """
    folders = find_checkpoints(path)
    for position, folder in enumerate(folders):
        problem = damage(folder)
        if problem is None or position + 1 == len(folders):
            return {"path": str(folder), "problem": problem, **read_manifest(folder)}
    raise CheckpointError(f"{path} holds no readable checkpoint: name a folder that a run saved to")


def find_checkpoints(path: str | Path) -> list[Path]:
    """List the checkpoints at a place, newest first: itself if it is one, or those numbered in it."""
    place = Path(path)
    if (place / MANIFEST).is_file():
        return [place]
    return [folder for _, folder in reversed(numbered(place)) if (folder / MANIFEST).is_file()]


def numbered(folder: Path) -> list[tuple[int, Path]]:
    """List (number, path) of the numbered checkpoints in a folder, whole or not, in order."""
    inside = folder.iterdir() if folder.is_dir() else ()
    found = [(int(match[1]), path) for path in inside if (match := _NUMBERED.fullmatch(path.name)) and path.is_dir()]
    return sorted(found)


def damage(folder: str | Path) -> str | None:
    """Say what is wrong with a checkpoint's files; None where all are as they were written."""
    try:
        for entry in read_manifest(folder)["components"].values():
            _checked(Path(folder), entry)
    except CheckpointError as error:
        return str(error)
    return None


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """Read what a checkpoint says about itself.

    Raises:
        CheckpointError: there is none, it was changed, or its format is newer than this trainkit.
    """
    path = Path(folder) / MANIFEST
    try:
        if path.stat().st_size > _LARGEST_MANIFEST:
            raise ValueError("no manifest is that large")
        text = path.read_bytes()
        manifest = dict(json.loads(text))
        written, *_ = (manifest[name] for name in ("format", "serial", "components"))
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{folder} holds no readable checkpoint: {error!r}") from error
    if isinstance(written, int) and written > FORMAT:
        raise CheckpointError(
            f"{folder} has checkpoint format {written}, this trainkit reads up to {FORMAT}: install a newer trainkit"
        )
    manifest.pop("sha256", None)
    if _signed(manifest) != text:
        raise CheckpointError(f"{path} is not as it was written: take an older checkpoint")
    return manifest


def versions() -> dict[str, str | None]:
    """Tell which packages a run's bits depend on."""
    return {package: _version(package) for package in ("trainkit", "torch", "numpy", "gymnasium")}


def load_tensors(path: str | Path) -> Any:
    """Read a file that `torch.save` wrote, or a `.safetensors` file: tensors and plain values only, on the CPU.

    Raises:
        CheckpointError: it is missing or damaged, or holds anything else.
        MissingExtraError: safetensors is not installed.
    """
    path = Path(path)
    return _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)


def _signed(manifest: Mapping[str, Any]) -> bytes:
    """Return a manifest as text, with a digest of all else in it."""
    digest = hashlib.sha256(json.dumps(manifest, default=str).encode()).hexdigest()
    return json.dumps({**manifest, "sha256": digest}, indent=2, default=str).encode()


def _checked(folder: Path, entry: Any) -> Path:
    """Return where a component lies; refuse one that is not as it was written."""
    try:
        name, size, digest = (entry[key] for key in ("file", "bytes", "sha256"))
        path = folder / Path(name).name  # never out of the folder
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise CheckpointError(f"{path} cannot be read: it is no file")
        if found.st_size != size:
            raise CheckpointError(
                f"{path} is damaged: it has {found.st_size} of {size} bytes; take an older checkpoint"
            )
        if _digest(path) != digest:
            raise CheckpointError(f"{path} is damaged: its bytes are not those written; take an older checkpoint")
    except (OSError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(f"a file of {folder} cannot be read: {error}") from error
    return path


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(path: Path, state: Any) -> None:
    if path.suffix == _TORCH:
        files.write_whole(path, lambda file: torch.save(state, file))
    else:
        files.save_state(path, state)


def _read(path: Path) -> Any:
    return _read_torch(path) if path.suffix == _TORCH else files.load_state(path)


def _read_torch(path: Path) -> Any:
    files.refuse_unsound_zip(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except _DAMAGE as error:
        raise CheckpointError(
            f"{path} cannot be read: it is missing, damaged, or holds more than tensors ({error})"
        ) from error


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise MissingExtraError(f"{path} needs safetensors to be read: pip install trainkit[safetensors]") from error
    try:
        tensors: dict[str, torch.Tensor] = load_file(path)
    except (SafetensorError, *_DAMAGE) as error:
        raise CheckpointError(f"{path} cannot be read: it is missing or damaged ({error})") from error
    return tensors


def _remove(folder: Path, names: Any) -> None:
    for name in names:
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
