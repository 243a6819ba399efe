"""Files written whole or not at all, and states of arrays and plain values kept in one, without pickle."""

import json
import os
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from trainkit.errors import CheckpointError

_ARRAY = "$array"  # marks the place of an array inside the JSON skeleton
_SKELETON = "skeleton"


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Let `write` fill a file beside `path`, then put it in place in one move; on any error nothing stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def save_state(path: Path, state: Any) -> None:
    """Write nested dicts and lists of plain values and arrays as one npz file."""
    arrays: dict[str, NDArray[Any]] = {}
    skeleton = json.dumps(_strip(state, arrays))
    arrays[_SKELETON] = np.frombuffer(skeleton.encode(), np.uint8)
    write_whole(path, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]  # names never are `file`


def load_state(path: Path) -> Any:
    """Read what `save_state` wrote; nothing in the file is ever executed."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return _fill(json.loads(arrays.pop(_SKELETON).tobytes()), arrays)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{path} cannot be read as a saved state ({error}): it is missing or damaged") from error


def _strip(value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """Replace every array by its name, gathering them in `arrays`."""
    if isinstance(value, np.ndarray):
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
