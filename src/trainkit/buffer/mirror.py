"""Images that lie on a device too: what was written follows there before each draw, and batches say where they lie.

The rings stay the truth. What they wrote since the last draw is read off their heads, which moved on by as many rows,
so that adding rows costs nothing more. Places on the device are the rows, and behind them those of final observations.
"""

import logging
from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainkit.buffer.heads import Rows
from trainkit.buffer.scratch import Scratch
from trainkit.buffer.storage import Rings
from trainkit.core import tree
from trainkit.core.data import ArraySpec, Frames, Lookup
from trainkit.core.errors import ConfigError
from trainkit.core.protocols import FrameStore

_log = logging.getLogger(__name__)

_LEAST_FINALS, _SHARE_OF_FINALS = 16, 32  # room for final observations: so many, or one for so many rows


class _Moment(NamedTuple):
    """What rings had come to."""

    serial: int
    n_episodes: int  # which a cut begins without a step
    head: Rows  # [N]
    rewound: NDArray[np.int64]  # [N]


class Mirror(Scratch):
    """Give batches a `Lookup` for each leaf of uint8 images, [H, W] or more; other leaves are gathered as ever.

    Args:
        owner: the buffer's name.
        rings: has the rows.
        store: claims memory on the device.
    """

    def __init__(self, owner: str, rings: Rings, store: FrameStore) -> None:
        super().__init__()
        self._owner, self._rings, self._store = owner, rings, store
        specs: list[ArraySpec] = tree.leaves(rings.spec.obs)
        self._sees = [position for position, spec in enumerate(specs) if _is_image(spec)]
        if not self._sees:
            raise ConfigError(
                f"{owner}.frames is for observations with images, uint8 of two axes or more, got {rings.spec.obs}: "
                "leave it out (of a preset: frames_on_device)"
            )
        self._columns: list[NDArray[Any]] = [tree.leaves(rings.obs)[position] for position in self._sees]
        self._then: _Moment | None = None  # when all was there; None: nothing is
        self._frames: list[Frames] = []
        self._claim(max(_LEAST_FINALS, rings.n_rows // _SHARE_OF_FINALS))

    def clear(self) -> None:
        """Take nothing on the device for what the rings have now."""
        super().clear()
        self._then = None

    def turn(self) -> None:
        """Bring the device up to date, too."""
        super().turn()
        self._follow()

    def take(self, name: Hashable, column: NDArray[Any], rows: Rows) -> Any:
        """Say where rows of a column lie on the device, where it does; gather them where it does not."""
        for own, frames in zip(self._columns, self._frames, strict=True):
            if own is column:
                return Lookup(frames, rows % self._rings.n_rows, frames.n_written)
        return super().take(name, column, rows)

    def _follow(self) -> None:
        """Send what was written since the last time."""
        rings, then = self._rings, self._then
        now = _Moment(rings.serial, int(rings.episodes.sum()), rings.heads.rows, rings.rewound.copy())
        if then is not None and (now.serial, now.n_episodes) == (then.serial, then.n_episodes):
            return
        finals = rings.finals.columns
        self._then = None  # until all is written
        if len(rings.finals) > self._n_finals:
            self._claim(max(len(rings.finals), min(2 * len(rings.finals), rings.n_rows)))
            then = None
        rows, ends = self._everything() if then is None else self._written(then, now)
        for frames, column, position in zip(self._frames, self._columns, self._sees, strict=True):
            frames.write(rows, column, rows)
            frames.write(rings.n_rows + ends, finals[position], ends)
        self._then = now

    def _claim(self, n_finals: int) -> None:
        """Claim memory with room for so many final observations, in the place of what there was."""
        for frames in self._frames:
            frames.release()  # first: twice the memory may not be there, and the rings have everything
        n_places = self._rings.n_rows + n_finals
        self._frames = [self._store.claim(self._owner, n_places, column.shape[1:]) for column in self._columns]
        self._n_finals = n_finals
        n_bytes = n_places * sum(column[0].nbytes for column in self._columns)
        _log.info("%s claimed %s bytes on %s for its frames", self._owner, n_bytes, self._store.device)

    def _everything(self) -> tuple[Rows, Rows]:
        """Return all rows ever written, and the places of all final observations."""
        return np.arange(self._rings.n_used), np.arange(len(self._rings.finals))

    def _written(self, then: _Moment, now: _Moment) -> tuple[Rows, Rows]:
        """Return the rows whose observations may have been written in between, and the final ones.

        Each environment's are those from the lowest that its head can have come back to, up to where its head is: a
        pending row is written twice if its episode ends. A final one may also be of the row before, by a cut.
        """
        rings = self._rings
        if now.serial - then.serial >= rings.n_rows // rings.n_envs:  # a head may have come round
            return self._everything()
        lowest = rings.after(then.head, then.rewound - now.rewound)
        n_steps = (now.head - lowest) % rings.n_rows // rings.n_envs  # [N]
        step = np.arange(-1, n_steps.max() + 1)[:, None]
        walked, is_written = rings.after(lowest, step), step <= n_steps  # [steps, N]
        final = rings.final[walked[is_written]]
        return walked[1:][is_written[1:]], final[final >= 0].astype(np.int64)


def _is_image(spec: ArraySpec) -> bool:
    return spec.dtype == np.uint8 and len(spec.shape) >= 2
