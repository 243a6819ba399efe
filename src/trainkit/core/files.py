"""Files: written completely or not at all, and read with guards against damaged or hostile content.

- A file is written under a temporary name and moved into place.
- Only regular files are opened: a FIFO or a device raises instead of blocking.
- Sizes are read from headers and compared with a limit before anything is allocated.
- Whatever a decoder raises becomes one of our errors, which names the file. Nothing in a file is executed.
- States are nested dicts and lists of plain values and arrays, in one npz file, without pickle.
"""

import ast
import contextlib
import json
import math
import os
import re
import secrets
import stat
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from trainkit.core.errors import CheckpointError, ConfigError, TrainkitError

MAX_TEXT_BYTES = 64 * 2**20
MAX_DEPTH = 100  # of nested lists and dicts: recursive functions can follow it

CHUNK_BYTES = 2**20  # read at a time
_MAX_READ = 16 * 2**20  # bytes that a zip file's directory may take
_MAX_END = 2**17  # bytes that its end may take: a record, and a comment of up to 2**16
_MAX_HEADER = 2**16  # bytes of an npy header, which is a line of text
_ENCRYPTED = 1  # flag of a zip member
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others declare memory of their own

_MEMINFO, _CONTAINER = Path("/proc/meminfo"), Path("/sys/fs/cgroup")  # the latter is a container's own control group

_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
_KINDS |= {stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}

_ARRAY = "$array"  # marks the place of an array inside the JSON skeleton
_SKELETON = "skeleton"


def write_whole(path: Path, write: Callable[[IO[bytes]], object], *, replace: bool = True) -> None:
    """Write a temporary file next to `path`, then move it into place; an error leaves nothing behind.

    Without `replace` a file that is there stays, and FileExistsError is raised.
    """
    check_local(path)
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
            _move_to_free_path(temporary, path)
        sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):  # what went wrong first is what matters
            temporary.unlink(missing_ok=True)
        raise


def check_local(path: str | Path) -> None:
    """Raise `ConfigError` for an address such as s3://bucket/run, also as a `Path`, which has one slash less."""
    if re.match(r"[A-Za-z][\w+.-]+:/", str(path)):
        raise ConfigError(f"{path} is an address, and files are read and written locally: name a local or mounted path")


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, as fsync does the contents of a file; has no effect on some systems."""
    with contextlib.suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def _move_to_free_path(temporary: Path, path: Path) -> None:
    """Move a file to a path that must be free; unlike a plain move this never overwrites a file."""
    try:
        os.link(temporary, path)
        temporary.unlink()
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: reserve the name, then cover the empty file
        path.open("xb").close()
        temporary.replace(path)


@contextmanager
def open_regular(path: str | Path, *, error: type[TrainkitError] = CheckpointError) -> Iterator[BufferedReader]:
    """Open a regular file, or a link to one, to read bytes.

    Raises:
        error: it is missing, not readable, or anything but a regular file.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags)  # O_NONBLOCK: a FIFO without a writer would block here
    except (OSError, ValueError) as problem:
        check_local(path)
        raise error(f"{path} cannot be read ({problem}): it is missing or damaged") from problem
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise error(f"{path} cannot be read: it must be a regular file and is {kind}; name a file")
    with open(descriptor, "rb") as file:
        yield file


@contextmanager
def decoding(
    path: str | Path,
    what: str,
    *,
    remedy: str = "it is missing or damaged",
    error: type[TrainkitError] = CheckpointError,
) -> Iterator[None]:
    """Convert what a decoder raises for a file's content into `error`; trainkit's own errors pass unchanged."""
    try:
        yield
    except TrainkitError:
        raise
    except Exception as problem:
        # Decoders of numpy, zipfile, torch and HDF5 raise errors of dozens of types over damaged bytes.
        text = str(problem).partition("\n")[0]
        raise error(f"{path} cannot be read as {what} ({type(problem).__name__}: {text:.300}): {remedy}") from problem


def size_limit(max_bytes: int | None) -> int | None:
    """Return the largest size that may be read: `max_bytes`, or half of the free memory, None if that is unknown."""
    if max_bytes is not None:
        if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 1:
            raise ConfigError(f"max_bytes must be an integer of at least 1, or None, got {max_bytes!r}")
        return max_bytes
    left = memory_left()
    return None if left is None else left // 2


def memory_left() -> int | None:
    """Return the bytes this process may still allocate, limited by the machine and its container; None: unknown."""
    limit, taken = _numbers(_CONTAINER / "memory.max"), _numbers(_CONTAINER / "memory.current")
    known = [1024 * kilobytes for name, kilobytes in _numbers(_MEMINFO).items() if name == "MemAvailable"]
    if limit and taken:  # what is cached can be dropped
        known.append(max(0, limit[""] - taken[""] + _numbers(_CONTAINER / "memory.stat").get("inactive_file", 0)))
    return min(known, default=None)


def _numbers(path: Path) -> dict[str, int]:
    """Return the numbers in a file of the system, by the word before each; empty without the file or a number."""
    try:
        lines = [line.replace(":", " ").split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    named = [("", *line) if len(line) == 1 else line for line in lines]
    return {line[0]: int(line[1]) for line in named if len(line) > 1 and line[1].isdecimal()}


def check_declared(
    path: str | Path, n_bytes: int, max_bytes: int | None = None, *, error: type[TrainkitError] = CheckpointError
) -> None:
    """Raise `error` if a file declares more bytes than `size_limit` allows; called before allocation."""
    limit = size_limit(max_bytes)
    if limit is not None and n_bytes > limit:
        default = " (half of the free memory)" if max_bytes is None else ""
        raise error(
            f"{path} declares {n_bytes:,} bytes of content, and max_bytes is {limit:,}{default}: read it on a machine "
            "with more memory or pass a larger max_bytes if you trust the file"
        )


def read_bytes(
    path: str | Path, *, max_bytes: int = MAX_TEXT_BYTES, error: type[TrainkitError] = CheckpointError
) -> bytes:
    """Read a regular file of at most `max_bytes`."""
    with open_regular(path, error=error) as file:
        n_bytes = _size(file)
        check_declared(path, n_bytes, max_bytes, error=error)
        with decoding(path, "bytes", error=error):
            return file.read(n_bytes)


def read_text(
    path: str | Path, *, max_bytes: int = MAX_TEXT_BYTES, error: type[TrainkitError] = CheckpointError
) -> str:
    """Read a regular file of UTF-8 text of at most `max_bytes`."""
    content = read_bytes(path, max_bytes=max_bytes, error=error)
    with decoding(path, "UTF-8 text", error=error):
        return content.decode("utf-8-sig")


def read_json(
    path: str | Path, *, max_bytes: int = MAX_TEXT_BYTES, error: type[TrainkitError] = CheckpointError
) -> Any:
    """Read a regular file of JSON of at most `max_bytes`, nested at most `MAX_DEPTH` deep; see `parse_json`."""
    return parse_json(read_text(path, max_bytes=max_bytes, error=error), path, error=error)


def parse_json(text: str | bytes, path: str | Path, *, error: type[TrainkitError] = CheckpointError) -> Any:
    """Parse JSON of the file `path`, nested at most `MAX_DEPTH` deep.

    NaN and Infinity are accepted, as Python writes them: what uses a number checks it.
    """
    with decoding(path, "JSON", error=error):
        value = json.loads(text.decode() if isinstance(text, bytes) else text)
        if is_deeper(value, MAX_DEPTH):
            raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
        return value


def is_deeper(value: Any, n_levels: int) -> bool:
    """Return whether lists and dicts are nested deeper than `n_levels`, without recursion."""
    level = [value]
    for _ in range(n_levels + 1):
        nested = (node.values() if isinstance(node, dict) else node for node in level if isinstance(node, (dict, list)))
        level = [child for children in nested for child in children]
        if not level:
            return False
    return True


class StoredArray:
    """An array in an open file of which only the header was read: shape, type and size.

    `np.asarray` reads all of it, `read_into` fills an array that is there, `read_rows` reads on row by row.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        open_content: Callable[[], IO[bytes]],
        *,
        is_fortran: bool = False,
    ) -> None:
        self.path, self.name, self.shape, self.dtype = path, name, shape, dtype
        self.size = math.prod(shape)
        self.nbytes = self.size * dtype.itemsize
        self._open_content, self._is_fortran = open_content, is_fortran and len(shape) > 1
        self._rest: IO[bytes] | None = None  # the content behind the rows read so far
        self._whole: NDArray[Any] | None = None  # where rows are not in one piece in the file
        self._n_read = 0

    def __repr__(self) -> str:
        return f"StoredArray({self.name!r} in {self.path}, {self.dtype} {self.shape})"

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        whole = np.empty(self.shape, self.dtype, order="F" if self._is_fortran else "C")
        self.read_into(whole)
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def __getitem__(self, key: Any) -> Any:
        return np.asarray(self)[key]

    def read_into(self, out: NDArray[Any]) -> None:
        """Fill an array of the same shape, in chunks if its memory order or type differs."""
        assert out.shape == self.shape, f"{self} cannot fill {out.shape}"
        target = out.T if self._is_fortran else out
        with decoding(self.path, "arrays"), self._open_content() as content:
            if target.flags.c_contiguous and out.dtype == self.dtype:
                _read_exactly(content, target)
            else:
                n_items = max(1, CHUNK_BYTES // max(1, self.dtype.itemsize))
                flat = target.flat
                for begin in range(0, self.size, n_items):
                    items = np.empty(min(n_items, self.size - begin), self.dtype)
                    _read_exactly(content, items)
                    flat[begin : begin + len(items)] = items
            _check_end(content)

    def skip_to(self, row: int) -> None:
        """Let `read_rows` continue with this row, which is at or after those read so far."""
        if self._is_fortran:
            self._n_read = row
        while self._n_read < row:
            row_bytes = self.nbytes // max(1, len(self))
            self.read_rows(min(row - self._n_read, max(1, CHUNK_BYTES // max(1, row_bytes))))

    def read_rows(self, n_rows: int) -> NDArray[Any]:
        """Return the next rows [n_rows, ...], starting with the first; reading the last row verifies the content."""
        begin, self._n_read = self._n_read, self._n_read + n_rows
        if self._n_read > len(self):
            raise CheckpointError(
                f"{self.path} has {len(self)} rows of {self.name!r}, not {self._n_read}: it is damaged"
            )
        if self._is_fortran:
            self._whole = np.asarray(self) if self._whole is None else self._whole
            return self._whole[begin : self._n_read]
        rows = np.empty((n_rows, *self.shape[1:]), self.dtype)
        with decoding(self.path, "arrays"):
            if self._rest is None:
                self._rest = self._open_content()
            _read_exactly(self._rest, rows)
            if self._n_read == len(self):
                with self._rest as content:
                    _check_end(content)
        return rows


@contextmanager
def open_npz(path: str | Path) -> Iterator[dict[str, StoredArray]]:
    """Open an npz file of arrays of numbers or text, stored or deflated, and read their headers only.

    Raises:
        CheckpointError: it is missing or damaged, or declares what it does not hold: names outside of the archive or
            used twice, members that overlap, arrays of objects or of a size other than their member's.
    """
    path = Path(path)
    with open_regular(path) as file:
        with decoding(path, "arrays"):
            archive = zipfile.ZipFile(_SmallReads(file))
            check_members(path, archive.infolist(), _size(file))
        with archive:
            with decoding(path, "arrays"):
                arrays = [_stored_array(path, archive, member) for member in archive.infolist()]
            yield {array.name: array for array in arrays}


@contextmanager
def open_stored_zip(path: str | Path) -> Iterator[BufferedReader]:
    """Open a zip file whose members are all uncompressed, so that it has as many bytes as it declares.

    Raises:
        CheckpointError: it is missing or damaged, or no such file; see `open_npz`.
    """
    path = Path(path)
    with open_regular(path) as file:
        with decoding(path, "a zip file"), zipfile.ZipFile(_SmallReads(file)) as archive:
            members = archive.infolist()
            check_members(path, members, _size(file))
        compressed = [member.filename for member in members if member.compress_type != zipfile.ZIP_STORED]
        if compressed:
            raise CheckpointError(f"{path} cannot be read: {compressed[0]!r} is compressed, and no member may be")
        file.seek(0)
        yield file


def check_members(path: Path, members: list[zipfile.ZipInfo], n_bytes: int) -> None:
    """Raise if members of a zip file of this size exceed it, overlap, or have the same name."""
    names = [member.filename for member in members]
    if len(set(names)) != len(names):
        raise CheckpointError(f"{path} cannot be read: it has two members of one name")
    for member in members:
        parts = PurePosixPath(member.filename.replace("\\", "/"))
        if parts.is_absolute() or ".." in parts.parts:
            raise CheckpointError(f"{path} cannot be read: its member {member.filename!r} lies outside of it")
        if member.flag_bits & _ENCRYPTED or member.compress_type not in _COMPRESSIONS:
            raise CheckpointError(f"{path} cannot be read: its member {member.filename!r} is not stored or deflated")
        if member.compress_type == zipfile.ZIP_STORED and member.file_size != member.compress_size:
            raise CheckpointError(f"{path} cannot be read: its member {member.filename!r} claims another size")
    in_order = sorted((member.header_offset, member.compress_size) for member in members)
    ends = [begin + size for begin, size in in_order]
    if any(end > begin for end, begin in zip(ends, [*(begin for begin, _ in in_order[1:]), n_bytes], strict=False)):
        raise CheckpointError(f"{path} cannot be read: its members overlap or claim to be larger than it is")


class _SmallReads:
    """A file that is read in pieces of at most the size of a header, whatever a header declares."""

    def __init__(self, file: BufferedReader) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, n_bytes: int = -1) -> bytes:
        if n_bytes > _MAX_READ:
            raise ValueError(f"a part declares {n_bytes:,} bytes")
        return self._file.read(_MAX_END if n_bytes < 0 else n_bytes)


def _size(file: BufferedReader) -> int:
    return os.fstat(file.fileno()).st_size


def _stored_array(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> StoredArray:
    """Read the header of one npy member."""
    name = member.filename.removesuffix(".npy")
    with archive.open(member) as content:
        shape, dtype, is_fortran, n_bytes = _read_npy_header(content)
    if math.prod(shape) * dtype.itemsize != member.file_size - n_bytes:
        raise ValueError(f"{name!r} declares {dtype} {shape} and has {member.file_size - n_bytes} bytes")

    def open_content() -> IO[bytes]:
        content = archive.open(member)
        content.read(n_bytes)
        return content

    return StoredArray(path, name, shape, dtype, open_content, is_fortran=is_fortran)


def _read_npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any], bool, int]:
    """Return shape, type, whether the first axis varies fastest, and the size of the header in bytes."""
    version = np.lib.format.read_magic(file)
    n_length = 2 if version < (2, 0) else 4
    n_text = int.from_bytes(file.read(n_length), "little")
    if n_text > _MAX_HEADER:
        raise ValueError(f"a header declares {n_text:,} bytes")
    text = file.read(n_text).decode("latin1" if version < (3, 0) else "utf-8")
    if not text.lstrip().startswith("{"):
        raise ValueError("no npy header")
    header = ast.literal_eval(text.strip())
    shape, is_fortran = header["shape"], header["fortran_order"]
    if not (isinstance(shape, tuple) and all(type(length) is int and 0 <= length < 2**62 for length in shape)):
        raise ValueError(f"a header declares shape {shape!r:.80}")
    dtype = np.lib.format.descr_to_dtype(header["descr"])
    if dtype.hasobject or dtype.subdtype is not None or not isinstance(is_fortran, bool):
        raise ValueError(f"arrays of {dtype} are not read: they hold Python objects")
    return shape, dtype, is_fortran, 8 + n_length + n_text


def _read_exactly(file: IO[bytes], out: NDArray[Any]) -> None:
    """Fill contiguous memory from a file."""
    if out.nbytes == 0:
        return
    view = memoryview(out.reshape(-1).view(np.uint8).data)
    begin = 0
    while begin < len(view):
        piece = file.read(min(CHUNK_BYTES, len(view) - begin))
        if not piece:
            raise EOFError(f"{len(view) - begin} bytes are missing")
        view[begin : begin + len(piece)] = piece
        begin += len(piece)


def _check_end(file: IO[bytes]) -> None:
    """Raise if data follow; reading to the end also compares a zip file's checksum."""
    if file.read(1):
        raise ValueError("there are more bytes than the header declares")


def save_new_arrays(path: Path, arrays: dict[str, NDArray[Any]], *, compress: bool = False) -> None:
    """Write named arrays as one npz file, completely or not at all; raise FileExistsError if the path is taken."""
    if any(array.dtype.hasobject for array in arrays.values()):
        raise CheckpointError("an array of Python objects cannot be saved without pickle: store numbers instead")
    save = np.savez_compressed if compress else np.savez
    write_whole(path, lambda file: save(file, **arrays), replace=False)  # type: ignore[arg-type]  # as below


def load_arrays(path: Path, *, max_bytes: int | None = None) -> dict[str, NDArray[Any]]:
    """Read named arrays from an npz file; nothing in it is ever executed.

    Raises:
        CheckpointError: the file is missing or damaged, or declares more than `size_limit`.
    """
    with open_npz(path) as arrays:
        check_declared(path, sum(array.nbytes for array in arrays.values()), max_bytes)
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
    """Read what `save_state` wrote; nothing in it is ever executed, and declared sizes are checked first."""
    with open_state(path, max_bytes=max_bytes, lazy_bytes=None) as state:
        return state


@contextmanager
def open_state(path: Path, *, max_bytes: int | None = None, lazy_bytes: int | None = CHUNK_BYTES) -> Iterator[Any]:
    """Read what `save_state` wrote; arrays of `lazy_bytes` or more are `StoredArray`s, valid inside the block.

    Raises:
        CheckpointError: the file is missing or damaged, or what is read at once is more than `size_limit`.
    """
    with open_stored_zip(path), open_npz(path) as arrays:
        is_lazy = {name: lazy_bytes is not None and array.nbytes >= lazy_bytes for name, array in arrays.items()}
        at_once = sum(array.nbytes for name, array in arrays.items() if not is_lazy[name])
        check_declared(path, at_once, max_bytes)
        found = {name: array if is_lazy[name] else np.asarray(array) for name, array in arrays.items()}
        with decoding(path, "a saved state"):
            state = _fill(parse_json(np.asarray(found.pop(_SKELETON)).tobytes(), path), found)
        yield state


def copy_into(out: NDArray[Any], source: NDArray[Any] | StoredArray) -> None:
    """Copy an array of the same shape, or read a stored one, into existing memory."""
    if isinstance(source, StoredArray):
        source.read_into(out)
    else:
        out[...] = source


def _strip(value: Any, arrays: dict[str, NDArray[Any]], depth: int = 0) -> Any:
    """Replace every array by its name, and collect them in `arrays`."""
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise CheckpointError("an array of Python objects cannot be saved without pickle: store numbers instead")
        name = f"array_{len(arrays)}"
        arrays[name] = value
        return {_ARRAY: name}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (dict, list, tuple)) and depth == MAX_DEPTH - 1:
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
    """Insert the arrays where `_strip` removed them."""
    if isinstance(value, dict):
        if _ARRAY in value:
            return arrays[value[_ARRAY]]
        return {_unescaped(key): _fill(child, arrays) for key, child in value.items()}
    if isinstance(value, list):
        return [_fill(child, arrays) for child in value]
    return value


def _escaped(key: str) -> str:
    """Escape a key that equals the reserved one."""
    return f"${key}" if key.startswith("$") else key


def _unescaped(key: str) -> str:
    return key[1:] if key.startswith("$$") else key
