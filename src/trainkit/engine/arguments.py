"""Trees of arrays and tensors, as functions are given them: dicts and tuples whose leaves may be None."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def arrays_of(node: Any) -> tuple[list[NDArray[Any]], list[Any]]:
    """Return the leaves as arrays, but None; and where None is, which keys dicts have, and how long tuples are."""
    arrays: list[NDArray[Any]] = []
    structure: list[Any] = []
    _collect((node,), arrays, structure)
    return arrays, structure


def _collect(nodes: Iterable[Any], arrays: list[NDArray[Any]], structure: list[Any]) -> None:
    for node in nodes:
        if isinstance(node, np.ndarray):
            arrays.append(node)
        elif isinstance(node, tuple):
            structure.append(len(node))
            _collect(node, arrays, structure)
        elif isinstance(node, dict):
            keys = tuple(sorted(node))
            structure.append(keys)
            _collect([node[key] for key in keys], arrays, structure)
        elif node is None:
            structure.append(~len(arrays))
        else:
            arrays.append(node.numpy())


def filled(inputs: Any, tensors: Sequence[Tensor]) -> Any:
    """Return a tree with other leaves, in the order of `arrays_of`."""
    queue = iter(tensors)

    def fill(node: Any) -> Any:
        if isinstance(node, dict):
            made = {key: fill(node[key]) for key in sorted(node)}
            return {key: made[key] for key in node}
        if isinstance(node, tuple):
            return tuple(map(fill, node))
        return None if node is None else next(queue)

    return fill(inputs)


def shared(array: NDArray[Any]) -> Tensor:
    """Return a tensor of the same memory, of a copy where torch cannot take it."""
    if not array.flags.writeable or min(array.strides, default=0) < 0:
        array = np.array(array)
    return torch.from_numpy(array)


def tensors_of(node: Any, device: torch.device) -> Any:
    """Return a tree of arrays or tensors as one of tensors on the device."""
    if isinstance(node, dict):
        return {key: tensors_of(child, device) for key, child in node.items()}
    if isinstance(node, tuple):
        return tuple(tensors_of(child, device) for child in node)
    if node is None or isinstance(node, Tensor):
        return node
    tensor = shared(node)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
