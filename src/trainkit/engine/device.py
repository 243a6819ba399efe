"""Devices, and how batches get there: in one transfer per call, through pinned memory on CUDA."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit.core import tree
from trainkit.core.data import ACTION_MASK, TransitionBatch
from trainkit.core.errors import DeviceError

T = TypeVar("T")
CPU = torch.device("cpu")


class TensorBatch(NamedTuple):
    """B rows on the device, observations as features."""

    obs: Any
    action: Tensor  # [B] of a Discrete space, else [B, ...]
    reward: Tensor  # [B]
    discount: Tensor  # [B]
    next_obs: Any
    weight: Tensor  # [B]
    legal: Tensor | None  # [B, A], of obs
    next_legal: Tensor | None  # [B, A], of next_obs
    extras: Mapping[str, Tensor] = MappingProxyType({})  # {column: [B, ...]}, those that the policy's `columns` names
    inputs: Any = MappingProxyType({})  # what the policy's `loss_inputs` returned, and earlier losses' outputs


def in_float32(batch: TransitionBatch) -> TransitionBatch:
    """Return a batch whose reward, discount and weight are float32, as buffers sample it."""
    if batch.reward.dtype == batch.discount.dtype == batch.weight.dtype == np.float32:
        return batch
    reward, discount, weight = (np.asarray(c, np.float32) for c in (batch.reward, batch.discount, batch.weight))
    return replace(batch, reward=reward, discount=discount, weight=weight)


def rows_of(columns: Any, preprocess: nn.Module, frames: Any = None) -> TensorBatch:
    """Return obs, action, reward, discount, next_obs, weight and extras, which are on the device, as rows.

    A leaf of obs and next_obs for which `frames` has images holds indices, by which it is gathered. A next observation
    whose mask allows no action counts as the end of its episode, so its discount is 0.
    """
    obs, action, reward, discount, next_obs, weight, extras = columns
    if frames is not None:
        obs, next_obs = tree.map_tree(_gathered, (obs, next_obs), frames)
    legal, next_legal = legal_mask(obs), legal_mask(next_obs)
    if next_legal is not None:
        discount = discount * next_legal.any(dim=1)
    with torch.no_grad():
        obs, next_obs = preprocess(obs), preprocess(next_obs)
    action = action if action.is_floating_point() else action.long()
    return TensorBatch(obs, action, reward, discount, next_obs, weight, legal, next_legal, extras)


def _gathered(leaf: Tensor, frames: Any) -> Tensor:
    return leaf if frames is None else frames.gather(leaf)


def blank_row(obs: Any, preprocess: nn.Module, extras: Mapping[str, Tensor]) -> TensorBatch:
    """Return one row of a blank observation [1, ...] on the device, which leads to itself."""
    zero = torch.zeros(1, device=tree.first_leaf(obs).device, dtype=torch.float32)
    return rows_of((obs, zero.long(), zero, zero, obs, zero, dict(extras)), preprocess)


def resolve_device(device: str | torch.device) -> torch.device:
    """Return the available device that "auto" (CUDA where there is one), a name or a device stands for.

    CUDA without a number is the GPU that is torch's current one now.

    Raises:
        DeviceError: CUDA is not available; the message says why.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise DeviceError(f"device must be 'auto', 'cpu', 'cuda' or a torch.device, got {device!r}") from error
    if resolved.type != "cuda":
        return CPU if resolved.type == "cpu" else resolved  # with a number or without it is the same one
    _require_cuda(resolved)
    return torch.device("cuda", torch.cuda.current_device()) if resolved.index is None else resolved


def _require_cuda(device: torch.device) -> None:
    if torch.version.cuda is None and torch.version.hip is None:
        raise DeviceError(f"device {str(device)!r} needs CUDA, but this torch {torch.__version__} is a CPU build")
    if not torch.cuda.is_available():
        raise DeviceError(
            f"device {str(device)!r} needs CUDA, but no GPU is visible: check the driver and CUDA_VISIBLE_DEVICES"
        )
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise DeviceError(f"device {str(device)!r} is not there, only {torch.cuda.device_count()} GPUs are")


def with_room(call: Callable[[], T], what: str) -> T:
    """Call and, where the device runs out of memory, empty torch's cache and call once more.

    Args:
        call: leaves everything as it was where it runs out of memory.
        what: the action, for the message.

    Raises:
        DeviceError: there was not enough the second time either.
    """
    try:
        return call()
    except torch.OutOfMemoryError:
        pass  # whose tensors live as long as it is handled
    torch.cuda.empty_cache()
    try:
        return call()
    except torch.OutOfMemoryError as error:
        raise DeviceError(
            f"{what} does not fit into the device's memory, twice; it was not taken, nothing has moved: lower "
            f"batch_size, or take a smaller network, or another device. torch says: {error}"
        ) from error


def to_device(arrays: Any, device: torch.device) -> Any:
    """Return a tree of arrays as tensors on the device, on the CPU in the same memory; tensors and None stay."""

    def moved(leaf: Any) -> Any:
        if leaf is None or isinstance(leaf, Tensor):
            return leaf
        tensor = as_tensor(leaf)
        return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)

    return tree.map_tree(moved, arrays)


def as_tensor(array: NDArray[Any]) -> Tensor:
    """Return a tensor of the same memory, of a copy where torch cannot take it."""
    if not array.flags.writeable or min(array.strides, default=0) < 0:
        array = np.array(array)
    return torch.from_numpy(array)


def scalar(number: float | np.number[Any], device: torch.device) -> Any:
    """Return a number that changes from update to update as an input of losses: a tensor, on the CPU an array."""
    if device.type == "cpu":
        return np.asarray(number, np.float32)
    return torch.full((), float(number), device=device, dtype=torch.float32)


def legal_mask(obs: Any) -> Tensor | None:
    """Return the mask [B, A] in an observation of tensors, None where there is none."""
    return obs[ACTION_MASK] != 0 if isinstance(obs, dict) and ACTION_MASK in obs else None


class Staging:
    """Pinned memory for batches, in two sets: one is filled while the other is being copied to the device.

    The memory is pinned, so that copies to the device are asynchronous, and kept, as pinning is slow. The returned
    tensors are overwritten at the second next call, which waits for the device's work that was queued up to the next.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sets: list[_PinnedSet] = []  # the last one returned is at the end

    def __call__(self, arrays: Any) -> Any:
        """Return a tree of arrays as tensors in pinned memory; on the CPU, in plain memory."""
        if self._sets:
            self._sets[-1].note_queued()
        layout = [(path, leaf.shape, leaf.dtype) for path, leaf in tree.named_leaves(arrays)]
        oldest = self._sets.pop(0) if len(self._sets) == 2 else None
        here = oldest if oldest is not None and oldest.layout == layout else _PinnedSet(arrays, layout, self._device)
        self._sets.append(here)
        here.fill(arrays)
        return here.tensors

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Give a copy memory of its own."""
        return type(self)(self._device)


class _PinnedSet:
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
        self._sent = torch.cuda.Event() if is_cuda else None

    def note_queued(self) -> None:
        """Note that all work that reads this memory has been queued."""
        if self._sent is not None:
            self._sent.record(torch.cuda.current_stream(self._device))

    def fill(self, arrays: Any) -> None:
        """Copy arrays here, once the work that reads this memory is done."""
        if self._sent is not None:
            self._sent.synchronize()
        for own, array in zip(self._arrays, tree.leaves(arrays), strict=True):
            np.copyto(own, array)
