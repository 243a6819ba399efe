"""Images of a replay buffer on the device: written as they are stored, gathered there for updates."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainkit.buffer.storage import Storage
from trainkit.core.config import Part
from trainkit.core.errors import DeviceError
from trainkit.core.signatures import checked
from trainkit.engine.device import resolve_device, to_device
from trainkit.extensions.cuda.frame_mirror import FrameMirror

_MAX_SENT = 64  # images sent at once, which bounds the pinned memory that is kept


@checked
class DeviceFrames(Part):
    """Keep a replay buffer's images on a device too, where its policy gathers them: `ReplayBuffer(frames=...)`.

    A batch then has their indices instead, eight bytes for an image. The buffer's own memory and all that is saved
    stay the same; the device holds a second copy of every row's newest frame and of final ones.

    Args:
        device: the policy's: "auto", "cpu" (which gains nothing), "cuda", "xpu" or a torch device.
    """

    def __init__(self, device: str | torch.device = "auto") -> None:
        self.device, self._name = resolve_device(device), str(device)

    def arguments(self) -> dict[str, Any]:
        return {"device": self._name}

    def mirror(self, owner: str, storage: Storage) -> FrameMirror:
        """Return what keeps the images of a buffer's storage on the device."""
        return FrameMirror(owner, storage, self)

    def claim(self, owner: str, n_images: int, shape: tuple[int, ...]) -> "ResidentFrames":
        """Allocate memory for n_images images of a shape.

        Raises:
            DeviceError: the device has too little memory.
        """
        try:
            return ResidentFrames(torch.empty((n_images + 1, *shape), dtype=torch.uint8, device=self.device))
        except RuntimeError as error:
            n_bytes = n_images * int(np.prod(shape))
            raise DeviceError(
                f"{owner}.frames need {n_bytes:,} bytes ({n_bytes / 1e9:.1f} GB) on {self.device}, for {n_images:,} "
                f"images of {list(shape)}, which it does not have: lower the capacity, or leave frames out. torch "
                f"says: {error}"
            ) from error


class ResidentFrames:
    """Images in one tensor [n_images, ...], whose memory does not move until it is released.

    Args:
        tensor: of uint8; the last image becomes zeros.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._tensor: Tensor | None = tensor
        self.shape, self.device = tuple(tensor.shape[1:]), tensor.device
        self.n_written, self.blank = 0, len(tensor) - 1
        tensor[self.blank] = 0

    def write(self, indices: NDArray[np.int64], column: NDArray[np.uint8], rows: NDArray[np.int64]) -> None:
        """Copy these rows of a column to the images at these indices, asynchronously."""
        self.n_written += 1
        for start in range(0, len(rows), _MAX_SENT):
            chunk = slice(start, start + _MAX_SENT)
            where, images = to_device((indices[chunk], column.take(rows[chunk], axis=0)), self.device)
            self._there.index_copy_(0, where, images)

    def read(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Wait for the device and return the images at indices [...]."""
        images: NDArray[np.uint8] = self.gather(torch.from_numpy(indices).to(self.device)).cpu().numpy()
        return images

    def gather(self, indices: Tensor) -> Tensor:
        """Return the images [..., *shape] at indices [...] that are on the device."""
        if indices.device != self.device:
            raise DeviceError(
                f"a replay buffer's frames are on {self.device}, the policy that learns from them is on "
                f"{indices.device}: give DeviceFrames the policy's device"
            )
        return self._there.index_select(0, indices.flatten()).view(*indices.shape, *self.shape)

    def release(self) -> None:
        """Free the memory."""
        self._tensor, self.n_written = None, -1

    @property
    def _there(self) -> Tensor:
        assert self._tensor is not None, "released images cannot be read"
        return self._tensor
