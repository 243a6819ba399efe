"""Pinned memory that batches are sent to the device from, used again and again."""

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from trainkit.core import tree


class Staging:
    """Put arrays where the device fetches them: two sets of memory in turn, one filled while the other is on its way.

    The memory is pinned, so that nobody waits for a copy to the device, and kept, so that nobody waits for it to be
    pinned. What is handed out is overwritten at the second next call; that call waits until the device has done what
    it was asked for up to the next.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sets: list[_Set] = []  # the one handed out last at the end

    def __call__(self, arrays: Any) -> Any:
        """Return a tree of arrays as tensors in pinned memory; on the CPU, in plain memory."""
        if self._sets:
            self._sets[-1].hand_over()
        layout = [(path, leaf.shape, leaf.dtype) for path, leaf in tree.named_leaves(arrays)]
        oldest = self._sets.pop(0) if len(self._sets) == 2 else None
        here = oldest if oldest is not None and oldest.layout == layout else _Set(arrays, layout, self._device)
        self._sets.append(here)
        here.fill(arrays)
        return here.tensors

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Give a copy memory of its own."""
        return type(self)(self._device)


class _Set:
    """Memory for arrays of one layout."""

    def __init__(self, arrays: Any, layout: list[Any], device: torch.device) -> None:
        is_cuda = device.type == "cuda"

        def empty(array: NDArray[Any]) -> torch.Tensor:
            dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
            return torch.empty(array.shape, dtype=dtype, pin_memory=is_cuda)

        self.layout = layout
        self.tensors = tree.map_tree(empty, arrays)
        self._arrays = [tensor.numpy() for tensor in tree.leaves(self.tensors)]
        self._device = device
        self._sent = torch.cuda.Event() if is_cuda else None  # type: ignore[no-untyped-call]  # torch's own

    def hand_over(self) -> None:
        """Note that everything that reads this memory has been asked for."""
        if self._sent is not None:
            self._sent.record(torch.cuda.current_stream(self._device))

    def fill(self, arrays: Any) -> None:
        """Copy arrays here, once what reads this memory is done."""
        if self._sent is not None:
            self._sent.synchronize()
        for own, array in zip(self._arrays, tree.leaves(arrays), strict=True):
            np.copyto(own, array)
