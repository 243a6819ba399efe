"""A mirror of image columns on a device: batches say where their images are there instead of containing them.

`Storage` remains the truth. Before each draw the images written since the last one are sent to the device; which these
are follows from how far the write cursors have moved, so that adding rows costs nothing. On the device, the indices of
images are the rows of the storage, and after these the indices of its final observations.
"""

import logging
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from trainkit.buffer.rings import Rows
from trainkit.buffer.storage import Storage, take_rows
from trainkit.core import tree
from trainkit.core.data import ArraySpec, Frames, Lookup
from trainkit.core.errors import ConfigError

_log = logging.getLogger(__name__)

_MIN_FINALS, _ROWS_PER_FINAL = 16, 32  # final observations for which memory is allocated at first


class ImageMemory(Protocol):
    """Where images are kept."""

    @property
    def device(self) -> object: ...

    def claim(self, owner: str, n_images: int, shape: tuple[int, ...]) -> Frames:
        """Allocate memory for `n_images` images of a shape; an error names the owner."""


class _Snapshot(NamedTuple):
    """The write positions of a storage at one moment."""

    serial: int
    n_episodes: int  # a cut ends one without a step
    cursors: Rows  # [N]
    n_dropped: NDArray[np.int64]  # [N]


class FrameMirror:
    """Keep every leaf of uint8 images, [H, W] or of more axes, on a device too.

    Args:
        owner: the buffer's name, for messages.
        storage: has the rows.
        store: allocates memory on the device.
    """

    def __init__(self, owner: str, storage: Storage, store: ImageMemory) -> None:
        self._owner, self._storage, self._store = owner, storage, store
        specs: list[ArraySpec] = tree.leaves(storage.spec.obs)
        self._leaves = [i for i, spec in enumerate(specs) if spec.dtype == np.uint8 and len(spec.shape) >= 2]
        if not self._leaves:
            raise ConfigError(
                f"{owner}.frames is for observations with images, uint8 of two axes or more, got {storage.spec.obs}: "
                "leave it out"
            )
        columns = tree.leaves(storage.obs)
        self._columns: list[NDArray[Any]] = [columns[i] for i in self._leaves]
        self._sent: _Snapshot | None = None  # when the device had everything; None: it has nothing
        self._frames: list[Frames] = []
        self._allocate(max(_MIN_FINALS, storage.rings.n_rows // _ROWS_PER_FINAL))

    def clear(self) -> None:
        """Mark everything on the device as outdated."""
        self._sent = None

    def gather(self, column: NDArray[Any], rows: Rows) -> Any:
        """Return a `Lookup` of rows where the column is on the device, else the rows themselves."""
        for own, frames in zip(self._columns, self._frames, strict=True):
            if own is column:
                return Lookup(frames, rows % self._storage.rings.n_rows, frames.n_written)
        return take_rows(column, rows)

    def update(self) -> None:
        """Send what was written since the last update."""
        storage, sent = self._storage, self._sent
        rings, finals = storage.rings, storage.finals
        now = _Snapshot(storage.serial, int(storage.n_episodes.sum()), rings.cursors, storage.n_dropped.copy())
        if sent is not None and (now.serial, now.n_episodes) == (sent.serial, sent.n_episodes):
            return
        self._sent = None  # until all is written
        if len(finals) > self._n_finals:
            self._allocate(max(len(finals), min(2 * len(finals), rings.n_rows)))
            sent = None
        if sent is None or now.serial - sent.serial >= rings.n_rows // rings.n_rings:  # a cursor may have gone round
            rows, ends = np.arange(storage.n_used), np.arange(len(finals))
        else:
            rows, ends = self._written(sent, now)
        for frames, column, leaf in zip(self._frames, self._columns, self._leaves, strict=True):
            frames.write(rows, column, rows)
            frames.write(rings.n_rows + ends, finals.columns[leaf], ends)
        self._sent = now

    def _allocate(self, n_finals: int) -> None:
        """Allocate memory with room for this number of final observations, replacing the previous memory."""
        for frames in self._frames:
            frames.release()  # first: there may not be memory for both, and the storage has everything
        n_images = self._storage.rings.n_rows + n_finals
        self._frames = [self._store.claim(self._owner, n_images, column.shape[1:]) for column in self._columns]
        self._n_finals = n_finals
        n_bytes = n_images * sum(column[0].nbytes for column in self._columns)
        _log.info("%s allocated %s bytes on %s for its frames", self._owner, n_bytes, self._store.device)

    def _written(self, sent: _Snapshot, now: _Snapshot) -> tuple[Rows, NDArray[np.int64]]:
        """Return the rows, and the indices of final observations, that may have changed between two snapshots.

        The rows of each environment are those from the lowest that its cursor can have come back to, up to its cursor,
        as an expected observation is written again if its episode ends. A cut may also give the row before these a
        final observation.
        """
        rings = self._storage.rings
        lowest = rings.after(sent.cursors, sent.n_dropped - now.n_dropped)
        n_steps = (now.cursors - lowest) % rings.n_rows // rings.n_rings  # [N]
        step = np.arange(-1, n_steps.max() + 1)[:, None]
        rows, is_written = rings.after(lowest, step), step <= n_steps  # [steps, N]
        final = self._storage.records.final[rows[is_written]]
        return rows[1:][is_written[1:]], final[final >= 0].astype(np.int64)
