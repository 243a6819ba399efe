"""Safe reading of untrusted HDF5 files: every dataset is checked by its header before any is read.

A file is a tree of names. Only data inside of the file are read: links to other files, external storage and virtual
datasets raise, as do filters that would load a plugin, and two names for one object, which could be a cycle.
"""

import io
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.core.errors import CheckpointError
from trainkit.core.extras import import_extra
from trainkit.core.files import MAX_DEPTH, check_declared, decoding, open_regular

SUFFIXES = (".hdf5", ".h5")
_FILTERS = {1, 2, 3, 32000}  # deflate, shuffle, fletcher32, lzf: those that are built in
_MAX_CHUNK = 2**30  # bytes that are decompressed at once
_MANY_CHUNKS, _SMALL_CHUNK = 10_000, 1024


class H5Column:
    """A dataset in an open HDF5 file, read by slices or sequentially from its first row.

    HDF5 keeps chunks of an open dataset in memory: the first read opens it, and the read of its last row closes it.
    """

    def __init__(self, path: Path, name: str, dataset: Any, file: Any) -> None:
        self.path, self.name, self._file = path, name, file
        self._dataset: Any = None
        self.shape: tuple[int, ...] = tuple(map(int, dataset.shape))
        self.dtype: np.dtype[Any] = np.dtype(dataset.dtype)
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize
        self._n_read = 0

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        whole = self[:] if self.shape else self._read(())
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        return self._read(rows)

    def skip_to(self, row: int) -> None:
        """Let `read_rows` continue with this row."""
        self._n_read = row

    def read_rows(self, n_rows: int) -> NDArray[Any]:
        """Return the next rows [n_rows, ...], starting with the first."""
        begin, self._n_read = self._n_read, self._n_read + n_rows
        return self._read(slice(begin, self._n_read))

    def _read(self, rows: Any) -> NDArray[Any]:
        with decoding(self.path, "HDF5"):
            if self._dataset is None:
                self._dataset = self._file[self.name]
            found = np.asarray(self._dataset[rows])
            if not isinstance(rows, slice) or rows.indices(len(self))[1] == len(self):
                self._dataset = None
            return found


@contextmanager
def open_hdf5(
    path: str | Path, *, max_bytes: int | None = None, ignored: Callable[[str], bool] = lambda name: False
) -> Iterator[tuple[dict[str, H5Column], dict[str, Any]]]:
    """Open an HDF5 file; return its datasets of numbers and its attributes, both by their names such as `a/b`.

    Datasets whose rows are bytes of various lengths are returned as well, with the type object.

    Args:
        path: of the file.
        max_bytes: largest size of all datasets; None is half of the free memory.
        ignored: whether to leave out the object with a name, and all in it.

    Raises:
        CheckpointError: it is missing or damaged, refers to anything outside of itself, or declares more than
            `files.size_limit`.
        MissingExtraError: h5py is not installed.
    """
    path = Path(path)
    h5py = import_extra(path, "h5py", "hdf5")
    with open_regular(path):
        pass  # h5py opens by name, and would wait for a FIFO
    with decoding(path, "HDF5"):
        file = h5py.File(path, "r", locking=False)
    with file:
        columns: dict[str, H5Column] = {}
        attributes: dict[str, Any] = {}
        with decoding(path, "HDF5"):
            for name, item in _walk(h5py, file, "", 0, set(), ignored):
                attributes |= {f"{name}/{key}".lstrip("/"): value for key, value in _attributes(item)}
                if isinstance(item, h5py.Dataset) and (_is_numeric(item) or _is_bytes(h5py, item)):
                    columns[name] = H5Column(path, name, item, file)
        check_declared(path, sum(column.nbytes for column in columns.values()), max_bytes)
        yield columns, attributes


def hdf5_bytes(path: Path, arrays: Mapping[str, NDArray[Any]], *, compress: bool) -> bytes:
    """Return a file of named arrays, each with a checksum; the same arrays give the same bytes."""
    h5py, content = import_extra(path, "h5py", "hdf5"), io.BytesIO()
    with h5py.File(content, "w") as file:
        for name, array in arrays.items():
            is_empty = array.size == 0  # which HDF5 cannot cut into chunks
            how = {} if is_empty else {"compression": "gzip" if compress else None, "fletcher32": True}
            file.create_dataset(name, data=array, track_times=False, **how)
    return content.getvalue()


def _walk(
    h5py: Any, group: Any, path: str, depth: int, seen: set[Any], ignored: Callable[[str], bool]
) -> Iterator[tuple[str, Any]]:
    """Yield (name, item) of a group and everything in it, after checks."""
    if depth > MAX_DEPTH:
        raise ValueError(f"groups are nested deeper than {MAX_DEPTH} levels")
    yield path, group
    for name in group:
        inside = f"{path}/{name}".lstrip("/")
        if ignored(inside):
            continue
        link = group.get(name, getlink=True)
        if not isinstance(link, h5py.HardLink):
            raise CheckpointError(f"{group.file.filename} cannot be read: {inside!r} is a link to elsewhere")
        item = group[name]
        key = h5py.h5o.get_info(item.id).addr
        if key in seen:
            raise ValueError(f"{inside!r} is a second name of one object")
        seen.add(key)
        if isinstance(item, h5py.Group):
            yield from _walk(h5py, item, inside, depth + 1, seen, ignored)
        elif isinstance(item, h5py.Dataset):
            _check_dataset(inside, item)
            yield inside, item


def _check_dataset(name: str, dataset: Any) -> None:
    """Raise if a dataset's content is outside of its file, or needs plugins to be read."""
    if dataset.is_virtual or dataset.external:
        raise ValueError(f"{name!r} refers to another file")
    layout = dataset.id.get_create_plist()
    filters = {layout.get_filter(number)[0] for number in range(layout.get_nfilters())}
    if not filters <= _FILTERS:
        raise ValueError(f"{name!r} has filters {sorted(filters - _FILTERS)}, which need plugins")
    chunk = math.prod(dataset.chunks or ()) * dataset.dtype.itemsize
    if chunk > _MAX_CHUNK:
        raise ValueError(f"{name!r} declares chunks of {chunk:,} bytes")
    n_chunks = math.prod(
        -(-length // piece) for length, piece in zip(dataset.shape or (), dataset.chunks or (), strict=False)
    )
    if n_chunks > _MANY_CHUNKS and chunk < _SMALL_CHUNK:  # HDF5 needs kilobytes to read one, however small
        raise ValueError(f"{name!r} declares {n_chunks:,} chunks of {chunk} bytes")


def _is_numeric(dataset: Any) -> bool:
    return dataset.shape is not None and dataset.dtype.kind in "biuf" and not dataset.dtype.hasobject


def _is_bytes(h5py: Any, dataset: Any) -> bool:
    """Return whether rows are bytes of various lengths, such as compressed images."""
    return dataset.shape is not None and h5py.check_vlen_dtype(dataset.dtype) == np.uint8


def _attributes(item: Any) -> Iterator[tuple[str, Any]]:
    """Yield those attributes of an object that are single numbers; other attributes are not read."""
    for key in item.attrs:
        kind = item.attrs.get_id(key)
        if kind.shape == () and kind.dtype.kind in "biuf":
            yield key, item.attrs[key].item()
