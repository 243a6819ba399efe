"""Files written whole or not at all, and states of arrays and plain values kept in one, without pickle."""

import contextlib
import json
import os
import secrets
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from trainkit.errors import CheckpointError

_ARRAY = "$array"  # marks the place of an array inside the JSON skeleton
_SKELETON = "skeleton"
# What numpy, zipfile and json raise over bytes that are not what was written.
DAMAGED = (OSError, ValueError, LookupError, TypeError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile)


def write_whole(path: Path, write: Callable[[IO[bytes]], object], *, replace: bool = True) -> None:
    """Let `write` fill a file beside `path`, then put it in place in one move; on any error nothing stays.

    Without `replace` a file that is there stays, and FileExistsError is raised.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with beside.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            beside.replace(path)
        else:
            _put_where_nothing_is(beside, path)
        sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):  # what went wrong first is what matters
            beside.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Have the names in a folder written down, as fsync has the contents of a file; where a system cannot, nothing."""
    with contextlib.suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def refuse_unsound_zip(path: Path) -> None:
    """Refuse a zip file that is not as we write them: stored, named within itself, no larger inside than outside.

    Raises:
        CheckpointError: it could fill the memory, or means to write elsewhere.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
        names = [PurePosixPath(member.filename.replace("\\", "/")) for member in members]
        is_within = not any(name.is_absolute() or ".." in name.parts for name in names)
        is_stored = all(member.compress_type == zipfile.ZIP_STORED for member in members)
        is_true_to_size = sum(member.file_size for member in members) <= path.stat().st_size
    except DAMAGED as error:
        raise CheckpointError(f"{path} cannot be read ({error}): it is missing or damaged") from error
    if not (is_within and is_stored and is_true_to_size):
        raise CheckpointError(f"{path} cannot be read: its members lie elsewhere, or claim to be larger than it is")


def _put_where_nothing_is(beside: Path, path: Path) -> None:
    """Move a file to a place that must be free; unlike a plain move this never covers another."""
    try:
        os.link(beside, path)
        beside.unlink()
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: reserve the name, then cover the empty file
        path.open("xb").close()
        beside.replace(path)


def save_new_arrays(path: Path, arrays: dict[str, NDArray[Any]], *, compress: bool = False) -> None:
    """Write named arrays as one npz file, whole or not at all, and never over another: FileExistsError."""
    if any(array.dtype.hasobject for array in arrays.values()):
        raise CheckpointError("an array of Python objects cannot be saved without pickle: store numbers instead")
    save = np.savez_compressed if compress else np.savez
    write_whole(path, lambda file: save(file, **arrays), replace=False)  # type: ignore[arg-type]  # as below


def load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read named arrays from an npz file; nothing in it is ever executed.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    try:
        # Opened here: numpy leaves a damaged file that it opened itself open.
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except DAMAGED as error:
        raise CheckpointError(f"{path} cannot be read as arrays ({error}): it is missing or damaged") from error


def save_state(path: Path, state: Any) -> None:
    """Write nested dicts and lists of plain values and arrays as one npz file."""
    arrays: dict[str, NDArray[Any]] = {}
    skeleton = json.dumps(_strip(state, arrays))
    arrays[_SKELETON] = np.frombuffer(skeleton.encode(), np.uint8)
    write_whole(path, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]  # names never are `file`


def load_state(path: Path) -> Any:
    """Read what `save_state` wrote; nothing in the file is ever executed, and it cannot claim more than it has."""
    refuse_unsound_zip(path)
    try:
        # Opened here: numpy leaves a damaged file that it opened itself open.
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return _fill(json.loads(arrays.pop(_SKELETON).tobytes()), arrays)
    except DAMAGED as error:
        raise CheckpointError(f"{path} cannot be read as a saved state ({error}): it is missing or damaged") from error


def _strip(value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """Replace every array by its name, gathering them in `arrays`."""
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise CheckpointError("an array of Python objects cannot be saved without pickle: store numbers instead")
        name = f"array_{len(arrays)}"
        arrays[name] = value
        return {_ARRAY: name}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {str(key): _strip(child, arrays) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strip(child, arrays) for child in value]
    return value


def _fill(value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """Put the arrays back where `_strip` took them from."""
    if isinstance(value, dict):
        if _ARRAY in value:
            return arrays[value[_ARRAY]]
        return {key: _fill(child, arrays) for key, child in value.items()}
    if isinstance(value, list):
        return [_fill(child, arrays) for child in value]
    return value
