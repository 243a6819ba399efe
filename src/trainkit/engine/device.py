"""Devices, and how batches get there: in one asynchronous copy, from one block of pinned memory."""

import contextlib
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainkit.core import tree
from trainkit.core.errors import DeviceError

T = TypeVar("T")
CPU = torch.device("cpu")
_NUMBERS = int, float, np.number


def resolve_device(device: str | torch.device) -> torch.device:
    """Return the device for "auto", for a name such as "cuda", "cuda:1", "xpu" or "mps", or for a torch device.

    "auto" is torch's accelerator where it is CUDA (or ROCm) or XPU, otherwise the CPU. A name without a number stands
    for the device of its type that is torch's current one now.

    Raises:
        DeviceError: the device is not available; the message says why.
    """
    if device == "auto":
        device = _auto_device()
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise DeviceError(
            "device must be 'auto', 'cpu', an accelerator's name such as 'cuda', 'cuda:1', 'xpu' or 'mps', or a "
            f"torch.device, got {device!r}"
        ) from error
    if resolved.type == "cpu":
        return CPU  # with a number or without it is the same one
    _check_available(resolved)
    return torch.device(resolved.type, torch.accelerator.current_device_index()) if resolved.index is None else resolved


def is_accelerator(device: str | torch.device) -> bool:
    """Return whether a name stands for another device than the CPU, which may not be available."""
    return str(_auto_device() if device == "auto" else device).partition(":")[0] != "cpu"


def _auto_device() -> str:
    """Return the type of the accelerator that "auto" stands for, "cpu" without one."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator.type if accelerator is not None and accelerator.type in _AUTO else "cpu"


def _check_available(device: torch.device) -> None:
    """Raise `DeviceError` unless torch sees this device."""
    name, built_for = f"device {str(device)!r}", torch.accelerator.current_accelerator()
    if built_for is None or built_for.type != device.type:
        accelerator = "no accelerator" if built_for is None else f"the accelerator {built_for.type!r} only"
        raise DeviceError(
            f"{name} must be one that this build of torch supports, and torch {torch.__version__} supports "
            f"{accelerator}: install torch's build for {device.type!r}, or choose device='auto'"
        )
    n_devices = torch.accelerator.device_count()
    if n_devices == 0:
        hint = " and CUDA_VISIBLE_DEVICES" if device.type == "cuda" else ""
        raise DeviceError(
            f"{name} must be visible, and torch finds no {device.type!r} device: check the driver{hint}, or choose "
            "device='cpu'"
        )
    if device.index is not None and device.index >= n_devices:
        raise DeviceError(
            f"{name} must have a number below {n_devices}, as torch finds {n_devices} {device.type!r} "
            f"device{'s' if n_devices > 1 else ''}: choose '{device.type}:0'"
            + (f" to '{device.type}:{n_devices - 1}'" if n_devices > 1 else "")
        )


_AUTO = {"cuda", "xpu"}  # not "mps", which has no float64; not a pretend device


@contextlib.contextmanager
def convolutions_timed(device: torch.device) -> Iterator[None]:
    """Let cuDNN time its algorithms for each new shape of a convolution, and use the fastest from then on.

    Without effect on other devices. Algorithms that were found are also used after this context, which restores
    `torch.backends.cudnn.benchmark`.
    """
    if device.type != "cuda":
        yield
        return
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def with_room(call: Callable[[], T], what: str) -> T:
    """Call a function; if the device runs out of memory, empty torch's cache and call it again.

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
    torch.accelerator.empty_cache()
    try:
        return call()
    except torch.OutOfMemoryError as error:
        raise DeviceError(
            f"{what} does not fit into the device's memory, twice; it was not taken, nothing has moved: lower "
            f"batch_size, or take a smaller network, or another device. torch says: {error}"
        ) from error


def device_memory(device: torch.device) -> dict[str, int]:
    """Return the bytes that torch has allocated on a device, now and at most; empty for the CPU, or if unknown."""
    if device.type == "cpu":
        return {}
    module = torch.get_device_module(device)
    calls = {"device_memory": "memory_allocated", "device_memory_peak": "max_memory_allocated"}
    return {name: int(getattr(module, call)(device)) for name, call in calls.items() if hasattr(module, call)}


def to_device(arrays: Any, device: torch.device, memory: "BatchMemory | None" = None) -> Any:
    """Return a tree of arrays and numbers as tensors on the device; tensors and None stay.

    On the CPU tensors have the arrays' memory. To any other device all arrays are sent by one asynchronous copy.
    Numbers become scalars of float32.

    Args:
        arrays: the tree.
        device: where to.
        memory: see `PinnedBatch`.
    """
    if isinstance(arrays, PinnedBatch):
        return arrays.on(device)
    if device.type != "cpu" and any(isinstance(leaf, np.ndarray) for leaf in tree.leaves(arrays)):
        return PinnedBatch(arrays, memory).on(device)

    def moved(leaf: Any) -> Any:
        if isinstance(leaf, _NUMBERS):
            return torch.full((), float(leaf), device=device, dtype=torch.float32)
        return leaf if leaf is None or isinstance(leaf, Tensor) else as_tensor(leaf)

    return tree.map_tree(moved, arrays)


def to_arrays(tensors: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Return tensors as arrays, after one copy from their device; those on the CPU in the same memory."""
    return DeviceBlock(tensors).read()


class DeviceBlock:
    """Tensors by name, copied into one block of bytes on their device, which the CPU reads by one copy."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = dict(tensors)
        there = [(name, tensor) for name, tensor in tensors.items() if not tensor.is_cpu]
        there.sort(key=lambda item: -item[1].element_size())  # so that each is aligned
        parts = [tensor.reshape(-1).view(torch.uint8) for _, tensor in there]
        self._block = torch.cat(parts) if len(parts) > 1 else parts[0] if parts else None
        self._named = [name for name, _ in there]

    def read(self) -> dict[str, NDArray[Any]]:
        """Wait for the device and return the tensors as arrays."""
        if self._block is None:
            return {name: tensor.numpy() for name, tensor in self._tensors.items()}
        block = self._block.to(CPU, non_blocking=True)
        torch.accelerator.current_stream(self._block.device).synchronize()
        content, start = block.numpy(), 0
        arrays: dict[str, NDArray[Any]] = {}
        for name in self._named:
            one = self._tensors[name]
            arrays[name] = _array_in(content, start, one.shape, _numpy_dtype(one.dtype))
            start += one.nbytes
        return {name: arrays[name] if name in arrays else one.numpy() for name, one in self._tensors.items()}

    def copy(self) -> dict[str, Tensor]:
        """Return copies of the tensors, made by one operation."""
        if self._block is None:
            return self._tensors
        block, tensors, start = self._block.clone(), dict(self._tensors), 0
        for name in self._named:
            one = tensors[name]
            tensors[name] = block[start : start + one.nbytes].view(one.dtype).view(one.shape)
            start += one.nbytes
        return tensors


class CopyToCpu:
    """A copy of a tensor to the CPU, started at construction; reading it waits for nothing that was started later.

    torch keeps the pinned memory that copies are made to for later ones.

    Args:
        tensor: on any device. Nothing may write to it before it was read, unless the copy is on the current stream.
        stream: makes the copy, while the current stream continues; None is the current one.
    """

    def __init__(self, tensor: Tensor, stream: torch.Stream | None = None) -> None:
        self._copied: torch.Event | None = None
        if tensor.is_cpu:
            self._copy = tensor.clone()
            return
        current = torch.accelerator.current_stream(tensor.device)
        self._source = tensor  # keeps its memory from being used for other tensors until then
        if stream is None:
            self._copy = tensor.to(CPU, non_blocking=True)
            self._copied = current.record_event()
            return
        stream.wait_stream(current)
        with stream:
            self._copy = tensor.to(CPU, non_blocking=True)
        self._copied = stream.record_event()

    def read(self) -> Tensor:
        """Wait for the copy and return it."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._copy

    def __reduce__(self) -> tuple[type[Self], tuple[Tensor]]:
        return type(self), (self.read(),)


@cache
def copy_stream(device: torch.device) -> torch.Stream:
    """Return the stream for copies that shall not delay a device's other work."""
    return torch.Stream(device)


class DelayedRead:
    """A number on a device that is read without waiting: each call returns the number of the call before.

    At that time the device has long computed it, unless it lags behind by all that was queued between two calls.
    """

    def __init__(self) -> None:
        self._copy: CopyToCpu | None = None

    def __call__(self, number: Tensor) -> float:
        """Start to copy a number [] to the CPU, and return the previous one; 0 at first."""
        before = 0.0 if self._copy is None else float(self._copy.read())
        self._copy = CopyToCpu(number)
        return before

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        """Leave out of copies what is on its way."""
        return type(self), ()


def as_tensor(array: NDArray[Any]) -> Tensor:
    """Return a tensor that shares the array's memory, or a copy if torch cannot share it."""
    if not array.flags.writeable or min(array.strides, default=0) < 0:
        array = np.array(array)
    return torch.from_numpy(array)


class PinnedBatch:
    """A tree of arrays and numbers in one block of pinned memory, from which a device reads them by one copy.

    torch keeps pinned memory that was freed for later batches, and gives it away once copies from it are done.

    Args:
        arrays: a tree; numbers become scalars of float32, tensors and None in it stay.
        memory: has some of the arrays already, which are not copied if all others fit behind them.

    Attributes:
        block: all bytes.
        tensors: of the tree, in its order.
        layout: what trees with the same arrangement have in common.
    """

    def __init__(self, arrays: Any, memory: "BatchMemory | None" = None) -> None:
        self._leaves, self._structure = tree.flatten(arrays)
        given, end, block = ({}, 0, None) if memory is None else memory.take(self._leaves)
        starts = dict(given)  # in the block, by id of the array: one that occurs twice is sent once
        self._places: list[_Place | None] = []  # of each leaf in the block
        self.tensors: list[Tensor] = []
        kinds: list[Hashable] = []  # of leaves that are not in the block
        for leaf in self._leaves:
            if isinstance(leaf, np.ndarray):
                start = starts.get(id(leaf))
                if start is None:
                    start = starts[id(leaf)] = end
                    end += _aligned(leaf.nbytes)
                self._places.append((start, leaf.shape, leaf.dtype))
            elif isinstance(leaf, _NUMBERS):
                self._places.append((end, (), _FLOAT32))
                end += _ALIGNMENT
            else:
                if leaf is not None:
                    self.tensors.append(leaf)
                    kinds.append((leaf.shape, leaf.dtype))
                self._places.append(None)
        self.layout = self._structure, tuple(self._places), tuple(kinds)
        if memory is not None:
            memory.n_bytes = max(memory.n_bytes, end)
        if block is None or len(block) < end:
            given, block = {}, _pinned_block(end)
        self.block = block[:end]
        content = self.block.numpy()
        for leaf, place in zip(self._leaves, self._places, strict=True):
            if place is not None and id(leaf) not in given:
                _array_in(content, *place)[...] = leaf

    def on(self, device: torch.device) -> Any:
        """Return the tree as tensors on the device, without waiting for it."""
        return self.views(self.block.to(device, non_blocking=True) if len(self.block) else self.block)

    def views(self, block: Tensor, tensors: Sequence[Tensor] | None = None) -> Any:
        """Return the tree as views of a copy of the block, with other tensors in the place of its own."""
        typed: dict[torch.dtype, Tensor] = {}
        others = iter(self.tensors if tensors is None else tensors)

        def view(leaf: Any, place: "_Place | None") -> Any:
            if place is None:
                return None if leaf is None else next(others)
            start, shape, of_array = place
            dtype = _torch_dtype(of_array)
            if dtype not in typed:
                typed[dtype] = block.view(dtype)
            return typed[dtype].narrow(0, start // dtype.itemsize, math.prod(shape)).view(shape)

        return tree.unflatten(self._structure, map(view, self._leaves, self._places))


class BatchMemory:
    """Pinned memory that a buffer writes the large arrays of a batch to, from where `PinnedBatch` need not copy them.

    Each batch has a block of its own, as the device may still read those before. If another batch is sampled first,
    this one's arrays are copied like any others.

    Attributes:
        n_bytes: that the largest batch so far needed; the size of the next block.
    """

    def __init__(self) -> None:
        self.n_bytes = 0
        self._start_block(None)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an uninitialized array, as `np.empty`; a large one is in the block of the next batch."""
        n_bytes = math.prod(shape) * dtype.itemsize
        if n_bytes < _LARGE:
            return np.empty(shape, dtype)
        if self._block is None or self._end + n_bytes > len(self._block):
            self._start_block(_pinned_block(max(n_bytes, self.n_bytes)))
        assert self._block is not None, "it was started just now"
        array = _array_in(self._block.numpy(), self._end, shape, dtype)
        self._given[id(array)] = self._end, array
        self._end += _aligned(n_bytes)
        return array

    def take(self, arrays: Sequence[Any]) -> tuple[dict[int, int], int, Tensor | None]:
        """Return what is known of a batch's arrays, and start another block; nothing if none is from this block.

        Returns:
            Where those from the block start, by their id; the first free byte; the block.
        """
        given = {id(array): self._given[id(array)][0] for array in arrays if id(array) in self._given}
        if not given:
            return {}, 0, None
        end, block = self._end, self._block
        self._start_block(None)
        return given, end, block

    def _start_block(self, block: Tensor | None) -> None:
        self._block, self._end = block, 0
        self._given: dict[int, tuple[int, NDArray[Any]]] = {}  # start, array; kept, so that its id stays its own

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        """Leave out of copies what is written now."""
        return type(self), ()


_Place = tuple[int, tuple[int, ...], np.dtype[Any]]  # of an array in a block: its first byte, shape and dtype
_FLOAT32 = np.dtype(np.float32)
_ALIGNMENT = 64  # bytes, at which each array of a block starts
_LARGE = 1 << 15  # bytes, from which copying an array takes longer than finding a place for it


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // _ALIGNMENT) * _ALIGNMENT


def _pinned_block(n_bytes: int) -> Tensor:
    return torch.empty(n_bytes, dtype=torch.uint8, pin_memory=_has_accelerator())


def _array_in(block: NDArray[np.uint8], start: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.ndarray(shape, dtype, block, start)


_has_accelerator = cache(torch.accelerator.is_available)


@cache
def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    return torch.empty(0, dtype=dtype).numpy().dtype


@cache
def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
