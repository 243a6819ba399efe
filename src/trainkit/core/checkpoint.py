"""Checkpoints: a folder with one file per component and a manifest that names the newest complete set.

Every save writes new files, and then replaces the manifest in one move: at every moment the manifest names files that
all exist. The manifest holds the size and the SHA-256 of each file, and its own: what was changed since is rejected
before it is read. Other files in the folder are left alone. Weights and moments are read by
`torch.load(weights_only=True)`, everything else as arrays and JSON: loading never executes code.
"""

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import zipfile
from collections.abc import Container, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import torch

from trainkit.core import files
from trainkit.core.errors import CheckpointError
from trainkit.core.extras import import_extra
from trainkit.core.folders import CHECKPOINT
from trainkit.core.signatures import checked
from trainkit.core.versions import versions

FORMAT = 2
MANIFEST = "manifest.json"
_TORCH, _ARRAYS = ".pt", ".npz"
_FIELDS: dict[str, tuple[Any, bool]] = {  # of a manifest: their types, and whether they must be there
    **dict.fromkeys(("format", "serial"), (int, True)),
    "components": (dict, True),
    **dict.fromkeys(("versions", "settings", "spaces", "progress", "evaluation"), (dict, False)),
    "policy": ((dict, type(None)), False),
    "logs": (list, False),
}
_NUMBERED = re.compile(r"save-(\d{6,})")


def save_checkpoint(folder: str | Path, components: Mapping[str, Any], about: Mapping[str, Any]) -> Path:
    """Write components and a manifest into `folder`; an existing checkpoint stays until the new one is complete.

    Args:
        folder: made where it is missing.
        components: nested dicts and lists of plain values with tensors, or with arrays, in them.
        about: further entries of the manifest, in plain values.

    Raises:
        CheckpointError: it cannot be written; the former one is as it was.
    """
    folder = Path(folder)
    former = _read_signed(folder) if (folder / MANIFEST).exists() else None  # of any format
    serial = 1 if former is None else former["serial"] + 1
    names = {
        name: f"{name.replace('/', '.')}-{serial}{_TORCH if _has_tensor(state) else _ARRAYS}"
        for name, state in components.items()
    }
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


def load_checkpoint(
    folder: str | Path, names: Container[str] | None = None, *, max_bytes: int | None = None
) -> dict[str, Any]:
    """Read the components of a checkpoint, all or those named, tensors on the CPU.

    Args:
        folder: of the checkpoint.
        names: of the components to read.
        max_bytes: largest size of one component's file, checked before anything is allocated; None is half of the free
            memory.

    Raises:
        CheckpointError: there is none, it is damaged, too large, or of a newer format.
    """
    with open_checkpoint(folder, names, max_bytes=max_bytes) as components:
        return components


@contextmanager
def open_checkpoint(
    folder: str | Path, names: Container[str] | None = None, *, lazy: Container[str] = (), max_bytes: int | None = None
) -> Iterator[dict[str, Any]]:
    """Read components as `load_checkpoint` does; large arrays of those in `lazy` are read on use, inside the block.

    Those are `StoredArray`s: `copy_into` reads them into memory that is there.
    """
    entries = read_manifest(folder)["components"]
    chosen = {name: entry for name, entry in entries.items() if names is None or name in names}
    paths = {name: _checked(Path(folder), entry) for name, entry in chosen.items()}  # all, before any is read
    with ExitStack() as files_open:
        yield {
            name: files_open.enter_context(files.open_state(path, max_bytes=max_bytes))
            if name in lazy and path.suffix == _ARRAYS
            else _read(path, max_bytes)
            for name, path in paths.items()
        }


@checked
def inspect_checkpoint(path: str | Path) -> dict[str, Any]:
    """Return the run and the progress of a checkpoint in plain values; `problem` is what is wrong with it, or None.

    Args:
        path: a checkpoint, or the folder of several or of a run: then the newest whole one.

    Raises:
        CheckpointError: there is no readable manifest.
    """
    folders = find_checkpoints(path)
    for position, folder in enumerate(folders):
        problem = damage(folder)
        if problem is None or position + 1 == len(folders):
            return {"path": str(folder), "problem": problem, **read_manifest(folder)}
    raise CheckpointError(nothing_at(path))


def find_checkpoints(path: str | Path) -> list[Path]:
    """List the checkpoints at a path, newest first: the path itself, the numbered ones in it, or those of a run."""
    return checkpoints_in(folder_of_checkpoints(path))


def folder_of_checkpoints(path: str | Path) -> Path:
    """Return the path, or the folder `checkpoint` in it if it has none itself, as the folder of a run."""
    place = Path(path)
    return place / CHECKPOINT if not checkpoints_in(place) and checkpoints_in(place / CHECKPOINT) else place


def checkpoints_in(place: Path) -> list[Path]:
    """List the checkpoints in a folder that they are saved to, newest first: the folder itself, or numbered ones."""
    if (place / MANIFEST).is_file():
        return [place]
    return [folder for _, folder in reversed(numbered(place)) if (folder / MANIFEST).is_file()]


def newest(path: str | Path) -> Path:
    """Return the checkpoint at a path, or the newest of several in it, or of a run.

    Raises:
        CheckpointError: there is none.
    """
    found = find_checkpoints(path)
    if not found:
        raise CheckpointError(nothing_at(path))
    return found[0]


def nothing_at(path: str | Path) -> str:
    """Return the text of an error: there is no checkpoint at a path."""
    files.check_local(path)
    if Path(path).is_file():
        folder = Path(path).resolve().parent
        return (
            f"{path} is a file, and a checkpoint is a folder, such as {folder}: name it, or load weights alone by "
            "policy.load_weights"
        )
    return (
        f"{path} holds no readable checkpoint: name a folder that a run or a policy was saved to, by checkpoint= or "
        "policy.save"
    )


def numbered(folder: Path) -> list[tuple[int, Path]]:
    """List (number, path) of the numbered checkpoints in a folder, complete or not, in order."""
    inside = folder.iterdir() if folder.is_dir() else ()
    found = [(int(match[1]), path) for path in inside if (match := _NUMBERED.fullmatch(path.name)) and path.is_dir()]
    return sorted(found)


def damage(folder: str | Path) -> str | None:
    """Return what is wrong with a checkpoint's files, None if nothing is."""
    try:
        for entry in read_manifest(folder)["components"].values():
            _checked(Path(folder), entry)
    except CheckpointError as error:
        return str(error)
    return None


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """Read the manifest of a checkpoint.

    Raises:
        CheckpointError: there is none, it was changed, or it has another format than this trainkit reads.
    """
    manifest = _read_signed(folder)
    found = manifest["format"]
    if found != FORMAT:
        writer = manifest.get("versions", {}).get("trainkit")
        older = f"train again, or load it with the version that wrote it{f', trainkit {writer}' if writer else ''}"
        remedy = older if found < FORMAT else "install a newer trainkit"
        raise CheckpointError(f"{folder} has checkpoint format {found}, this trainkit reads {FORMAT}: {remedy}")
    return manifest


def _read_signed(folder: str | Path) -> dict[str, Any]:
    """Read a manifest of any format that is as it was written."""
    path = Path(folder) / MANIFEST
    try:
        text = files.read_bytes(path)
        manifest = files.parse_json(text, path)
        _check_fields(path, manifest)
    except CheckpointError as problem:
        raise CheckpointError(f"{folder} holds no readable checkpoint: {problem}") from problem
    manifest.pop("sha256", None)
    if _signed(manifest) != text:
        raise CheckpointError(f"{path} is not as it was written: take an older checkpoint")
    return dict(manifest)


def _check_fields(path: Path, manifest: Any) -> None:
    """Raise if a manifest lacks a field that is read, or has one of another type."""
    if not isinstance(manifest, dict):
        raise CheckpointError(f"{path} must hold a JSON object, got a {type(manifest).__name__}: it is damaged")
    for name, (types, is_required) in _FIELDS.items():
        value = manifest.get(name)
        if (is_required or name in manifest) and (not isinstance(value, types) or isinstance(value, bool)):
            raise CheckpointError(f"{path} has no valid {name!r}, got {value!r:.80}: it is damaged")
    for name, entry in manifest["components"].items():
        fields = [entry.get(key) for key in ("file", "bytes", "sha256")] if isinstance(entry, dict) else [None]
        if [type(value) for value in fields] != [str, int, str]:
            raise CheckpointError(f"{path} has no valid component {name!r}, got {entry!r:.80}: it is damaged")


def processor() -> dict[str, str]:
    """Return the kind of processor, and the vector instructions torch uses on it: sums depend on both."""
    return {"processor": platform.machine(), "vector_instructions": torch.backends.cpu.get_cpu_capability()}


def is_deterministic(device: str) -> bool:
    """Return whether a device repeats bit for bit: the CPU does, others with torch's deterministic algorithms."""
    return torch.device(device).type == "cpu" or torch.are_deterministic_algorithms_enabled()


def load_tensors(path: str | Path, *, max_bytes: int | None = None) -> Any:
    """Read a file that `torch.save` wrote, or a `.safetensors` file: tensors and plain values only, on the CPU.

    Raises:
        CheckpointError: it is missing, damaged or larger than `max_bytes`, or holds anything else.
        MissingExtraError: safetensors is not installed.
    """
    path = Path(path)
    if path.suffix == ".safetensors":
        return _read_safetensors(path, max_bytes)
    if path.is_file() and not zipfile.is_zipfile(path):
        kinds = "a file of torch.save (.pt) or safetensors (.safetensors), or a folder of checkpoints"
        raise CheckpointError(f"{path} is damaged or has no weights that can be read: give {kinds}")
    return _read_torch(path, max_bytes)


def _signed(manifest: Mapping[str, Any]) -> bytes:
    """Return a manifest as text, with a digest of everything else in it."""
    digest = hashlib.sha256(json.dumps(manifest, default=str).encode()).hexdigest()
    return json.dumps({**manifest, "sha256": digest}, indent=2, default=str).encode()


def _checked(folder: Path, entry: Mapping[str, Any]) -> Path:
    """Return the path of a component; raise if the file has changed."""
    path = folder / Path(entry["file"]).name  # never out of the folder
    with files.open_regular(path) as file:
        n_bytes = os.fstat(file.fileno()).st_size
        if n_bytes != entry["bytes"]:
            raise CheckpointError(
                f"{path} is damaged: it has {n_bytes} of {entry['bytes']} bytes; take an older checkpoint"
            )
        with files.decoding(path, "bytes"):
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != entry["sha256"]:
        raise CheckpointError(f"{path} is damaged: its bytes are not those written; take an older checkpoint")
    return path


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(path: Path, state: Any) -> None:
    """Write a component.

    Raises:
        OSError: it cannot be written; its text names the file, the bytes of its arrays, and those that are free.
    """
    try:
        if path.suffix == _TORCH:
            files.write_whole(path, lambda file: _save_tensors(state, file))
        else:
            files.save_state(path, state)
    except OSError as error:
        n_bytes = sum(getattr(leaf, "nbytes", 0) for leaf in _leaves(state))
        there = next(folder for folder in path.parents if folder.exists())  # it may not be made yet
        free = shutil.disk_usage(there).free
        raise OSError(f"{path.name} of {n_bytes:,} bytes, where {free:,} are free: {error}") from error


def _save_tensors(state: Any, file: IO[bytes]) -> None:
    """Save by torch, and raise the error of the file in place of torch's own."""
    watched: Any = _WatchedFile(file)
    try:
        torch.save(state, watched)
    except RuntimeError:
        if watched.error is not None:
            raise watched.error from None
        raise


class _WatchedFile:
    """A file to write to that keeps its first error, which torch replaces by one of its own."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, content: bytes) -> int:
        try:
            return self._file.write(content)
        except OSError as error:
            self.error = self.error or error
            raise

    def flush(self) -> None:
        self._file.flush()


def _leaves(state: Any) -> Iterator[Any]:
    """Yield the leaves of nested dicts and lists."""
    if isinstance(state, Mapping):
        state = list(state.values())
    if isinstance(state, (list, tuple)):
        for child in state:
            yield from _leaves(child)
    else:
        yield state


def _read(path: Path, max_bytes: int | None) -> Any:
    return _read_torch(path, max_bytes) if path.suffix == _TORCH else files.load_state(path, max_bytes=max_bytes)


def _read_torch(path: Path, max_bytes: int | None = None) -> Any:
    with files.open_stored_zip(path) as file:
        files.check_declared(path, os.fstat(file.fileno()).st_size, max_bytes)
        remedy = "it is damaged, or holds more than tensors and plain values"
        with files.decoding(path, "tensors and plain values", remedy=remedy):
            return torch.load(file, map_location="cpu", weights_only=True)


def _read_safetensors(path: Path, max_bytes: int | None = None) -> dict[str, torch.Tensor]:
    safetensors = import_extra(path, "safetensors.torch", "safetensors")
    with files.open_regular(path) as file:
        files.check_declared(path, os.fstat(file.fileno()).st_size, max_bytes)
        with files.decoding(path, "safetensors"):
            tensors: dict[str, torch.Tensor] = safetensors.load_file(path)
    return tensors


def _remove(folder: Path, names: Any) -> None:
    for name in names:
        with contextlib.suppress(OSError):  # a leftover file does no harm
            (folder / Path(name).name).unlink()


def _has_tensor(state: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in _leaves(state))
