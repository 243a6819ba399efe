"""Where tensors live, and the way there: once per call, through pinned memory on CUDA."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit.core import tree
from trainkit.core.data import ACTION_MASK, TransitionBatch
from trainkit.core.errors import DeviceError

T = TypeVar("T")
CPU = torch.device("cpu")  # to compare with; a device's type is a word that torch makes anew each time


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
    """Return a batch whose reward, discount and weight are float32, as buffers sample it; a hand-made one is cast."""
    if batch.reward.dtype == batch.discount.dtype == batch.weight.dtype == np.float32:
        return batch
    reward, discount, weight = (np.asarray(c, np.float32) for c in (batch.reward, batch.discount, batch.weight))
    return replace(batch, reward=reward, discount=discount, weight=weight)


def rows_of(columns: Any, preprocess: nn.Module, frames: Any = None) -> TensorBatch:
    """Return obs, action, reward, discount, next_obs, weight and extras, which are on the device, as rows.

    Where `frames`, of obs and next_obs, say what a leaf's places are of, it is gathered there. A next observation whose
    mask allows no action counts as the end of its episode: nothing follows it, so its discount is 0.
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
    """Turn "auto", a name or a device into a device that is there ("auto": CUDA where there is one).

    CUDA without a number is the GPU that is torch's current one now.

    Raises:
        DeviceError: CUDA was asked for and is not there; the message says why.
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
    """Call and, where the device has no memory left, give back what torch keeps for later and call once more.

    Args:
        call: leaves everything as it was where it runs out of memory.
        what: what is done, for the message.

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


def to_device(obs: Any, device: torch.device) -> Any:
    """Return a tree of arrays as a tree of tensors on the device; on the CPU they share memory."""
    if device.type == "cpu":
        return tree.map_tree(_share, obs)
    return tree.map_tree(lambda leaf: _share(leaf).pin_memory().to(device, non_blocking=True), obs)


def _share(array: NDArray[Any]) -> Tensor:
    if not array.flags.writeable:
        array = np.array(array)
    try:
        return torch.from_numpy(array)
    except ValueError:  # a stride is negative
        return torch.from_numpy(np.array(array))


def on_device(inputs: Any, device: torch.device) -> Any:
    """Return a tree of arrays, tensors and None with tensors on the device in the place of arrays."""
    return tree.map_tree(lambda x: torch.as_tensor(x, device=device) if isinstance(x, np.ndarray) else x, inputs)


def scalar(number: float | np.number[Any], device: torch.device) -> Any:
    """Return a number that changes from update to update as an input of losses: a tensor, on the CPU an array."""
    if device.type == "cpu":
        return np.asarray(number, np.float32)
    return torch.full((), float(number), device=device, dtype=torch.float32)


def legal_mask(obs: Any) -> Tensor | None:
    """Return the mask [B, A] in an observation of tensors, None where there is none."""
    return obs[ACTION_MASK] != 0 if isinstance(obs, dict) and ACTION_MASK in obs else None
