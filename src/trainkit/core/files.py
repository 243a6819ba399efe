"""Files written whole or not at all, and states of arrays and plain values kept in one, without pickle."""

import contextlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from trainkit.core import reading
from trainkit.core.errors import CheckpointError, ConfigError

_ARRAY = "$array"  # marks the place of an array inside the JSON skeleton
_SKELETON = "skeleton"


def write_whole(path: Path, write: Callable[[IO[bytes]], object], *, replace: bool = True) -> None:
    """Write a temporary file next to `path`, then move it into place; on any error nothing stays.

    Without `replace` a file that is there stays, and FileExistsError is raised.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            temporary.replace(path)
        else:
            _put_where_nothing_is(temporary, path)
        sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):  # what went wrong first is what matters
            temporary.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Have the names in a folder written down, as fsync has the contents of a file; where a system cannot, nothing."""
    with contextlib.suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def _put_where_nothing_is(temporary: Path, path: Path) -> None:
    """Move a file to a place that must be free; unlike a plain move this never covers another."""
    try:
        os.link(temporary, path)
        temporary.unlink()
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: reserve the name, then cover the empty file
        path.open("xb").close()
        temporary.replace(path)


def save_new_arrays(path: Path, arrays: dict[str, NDArray[Any]], *, compress: bool = False) -> None:
    """Write named arrays as one npz file, whole or not at all, and never over another: FileExistsError."""
    if any(array.dtype.hasobject for array in arrays.values()):
        raise CheckpointError("an array of Python objects cannot be saved without pickle: store numbers instead")
    save = np.savez_compressed if compress else np.savez
    write_whole(path, lambda file: save(file, **arrays), replace=False)  # type: ignore[arg-type]  # as below


def load_arrays(path: Path, *, max_bytes: int | None = None) -> dict[str, NDArray[Any]]:
    """Read named arrays from an npz file; nothing in it is ever executed.

    Raises:
        CheckpointError: the file is missing or damaged, or declares more than `reading.size_limit`.
    """
    with reading.open_npz(path) as arrays:
        reading.check_declared(path, sum(array.nbytes for array in arrays.values()), max_bytes)
        return {name: np.asarray(array) for name, array in arrays.items()}


def save_state(path: Path, state: Any) -> None:
    """Write nested dicts and lists of plain values and arrays as one npz file.

    Keys come back as strings; tuples as lists.

    Raises:
        ConfigError: something in it cannot be written, or could not be read again.
    """
    arrays: dict[str, NDArray[Any]] = {}
    try:
        skeleton = json.dumps(_strip(state, arrays))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"a state cannot be saved ({error}): keep arrays and plain values in it") from error
    arrays[_SKELETON] = np.frombuffer(skeleton.encode(), np.uint8)
    write_whole(path, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]  # names never are `file`


def load_state(path: Path, *, max_bytes: int | None = None) -> Any:
    """Read what `save_state` wrote; nothing in the file is ever executed, and it cannot claim more than it has."""
    with open_state(path, max_bytes=max_bytes, lazy_bytes=None) as state:
        return state


@contextmanager
def open_state(
    path: Path, *, max_bytes: int | None = None, lazy_bytes: int | None = reading.CHUNK_BYTES
) -> Iterator[Any]:
    """Read what `save_state` wrote; arrays of `lazy_bytes` or more stay `reading.StoredArray`s, for use in the block.

    Raises:
        CheckpointError: the file is missing or damaged, or what is read at once is more than `reading.size_limit`.
    """
    with reading.open_stored_zip(path), reading.open_npz(path) as arrays:
        is_lazy = {name: lazy_bytes is not None and array.nbytes >= lazy_bytes for name, array in arrays.items()}
        at_once = sum(array.nbytes for name, array in arrays.items() if not is_lazy[name])
        reading.check_declared(path, at_once, max_bytes)
        found = {name: array if is_lazy[name] else np.asarray(array) for name, array in arrays.items()}
        with reading.decoding(path, "a saved state"):
            state = _fill(reading.parse_json(np.asarray(found.pop(_SKELETON)).tobytes(), path), found)
        yield state


def copy_into(out: NDArray[Any], source: NDArray[Any] | reading.StoredArray) -> None:
    """Copy an array of the same shape, or read a stored one, into memory that is there."""
    if isinstance(source, reading.StoredArray):
        source.read_into(out)
    else:
        out[...] = source


def _strip(value: Any, arrays: dict[str, NDArray[Any]], depth: int = 0) -> Any:
    """Replace every array by its name, gathering them in `arrays`."""
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise CheckpointError("an array of Python objects cannot be saved without pickle: store numbers instead")
        name = f"array_{len(arrays)}"
        arrays[name] = value
        return {_ARRAY: name}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (dict, list, tuple)) and depth == reading.MAX_DEPTH - 1:
        raise ConfigError(f"a state nested deeper than {depth} levels cannot be saved: flatten it")
    if isinstance(value, dict):
        children = {_escaped(str(key)): _strip(child, arrays, depth + 1) for key, child in value.items()}
        if len(children) < len(value):
            raise CheckpointError(
                f"a state cannot be saved: two of its keys {list(value)!r:.80} are the same as strings"
            )
        return children
    if isinstance(value, (list, tuple)):
        return [_strip(child, arrays, depth + 1) for child in value]
    return value


def _fill(value: Any, arrays: Mapping[str, Any]) -> Any:
    """Put the arrays back where `_strip` took them from."""
    if isinstance(value, dict):
        if _ARRAY in value:
            return arrays[value[_ARRAY]]
        return {_unescaped(key): _fill(child, arrays) for key, child in value.items()}
    if isinstance(value, list):
        return [_fill(child, arrays) for child in value]
    return value


def _escaped(key: str) -> str:
    """Return a key that is never our own mark."""
    return f"${key}" if key.startswith("$") else key


def _unescaped(key: str) -> str:
    return key[1:] if key.startswith("$$") else key
