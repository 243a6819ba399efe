"""Weights handed over: from the names they have elsewhere to ours, and what of them does not fit."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainkit.core.errors import Checks, nearest

KeyMap = Mapping[str, str | None] | Callable[[str], str | None]


def renamed(owner: str, given: Mapping[str, Any], key_map: KeyMap) -> dict[str, Any]:
    """Return weights by our names, those left out that have none; what a dict does not name keeps its own.

    Raises:
        ConfigError: `key_map` names what is not there, or gives two the same name, or no name.
    """
    checks = Checks(f"{owner}.key_map")
    is_map = isinstance(key_map, Mapping)
    if not checks.require(is_map or callable(key_map), f" must be a dict or a function, got {key_map!r}"):
        checks.done()
    for name in key_map if isinstance(key_map, Mapping) else ():
        checks.require(name in given, f" names {name!r}, which is not given{nearest(name, given)}")
    came_from: dict[str, str] = {}
    for name in given:
        own = key_map.get(name, name) if isinstance(key_map, Mapping) else key_map(name)
        if own is None:
            continue
        if checks.require(isinstance(own, str), f" must give a name or None, got {own!r} for {name!r}"):
            first = came_from.setdefault(own, name)
            checks.require(first is name, f" gives both {first!r} and {name!r} the name {own!r}: leave one out")
    checks.done()
    return {own: given[name] for own, name in came_from.items()}


def parted(own: Mapping[str, Tensor], given: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return (what fits, as tensors of our dtypes; {name: why} of what does not), by what `own` weights are."""
    fits: dict[str, Tensor] = {}
    misfits = {name: f"{list(tensor.shape)} here, none given" for name, tensor in own.items() if name not in given}
    for name, weight in given.items():
        if (there := _as_tensor(weight)) is None:
            misfits[name] = f"an array of numbers is needed, a {type(weight).__name__} given"
        elif name not in own:
            misfits[name] = f"none here, {list(there.shape)} given"
        elif (why := _misfit(own[name], there)) is not None:
            misfits[name] = why
        else:
            fits[name] = there
    return fits, misfits


def as_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Copy a tensor into an array; numpy has no bfloat16, which becomes float32 without loss."""
    plain = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    return np.array(plain.numpy(force=True))


def _misfit(own: Tensor, there: Tensor) -> str | None:
    """Say why one weight cannot become another; None where it can.

    What is not finite may stay so: a network's own mask of infinities, say.
    """
    if own.shape != there.shape:
        return f"{list(own.shape)} here, {list(there.shape)} given"
    if not torch.can_cast(there.dtype, own.dtype):
        return f"{_word(own)} here, {_word(there)} given"
    lost = ~there.to(own).isfinite() & own.isfinite()  # in our dtype: 1e300 is no float32
    return f"{int(lost.sum())} of {lost.numel()} numbers given are not finite" if lost.any() else None


def _as_tensor(weight: Any) -> Tensor | None:
    """Return a tensor, or an array as one of its own; None where it is neither."""
    if isinstance(weight, Tensor):
        return weight.detach()
    try:
        array = np.array(weight)
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
    except (TypeError, ValueError):
        return None


def _word(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
