"""From raw observations to features in numpy, [B, F]: what `Preprocess` does, and `Encoder` when it joins them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from numpy.typing import NDArray
from torch import nn

from trainkit import tree
from trainkit.data import Obs
from trainkit.policy.host.tape import Array
from trainkit.policy.host.watchers import hooks_of
from trainkit.policy.normalize import Normalizer
from trainkit.policy.preprocess import Preprocess, WithoutMask, without_mask


class HostPreprocess:
    """The twin of a `Preprocess` that sees no images, normalised by the statistics in use at each call; or of none.

    Args:
        preprocess: whose twin it is.
    """

    def __init__(self, preprocess: Preprocess | WithoutMask) -> None:
        self._module, self._hooks = preprocess, hooks_of(preprocess)
        self._is_identity = preprocess.is_identity
        self._convert: list[Callable[[NDArray[Any]], Array]] = []
        self._normalizers: list[Any] = []
        if isinstance(preprocess, Preprocess):
            self._convert = [_converter(space) for space in tree.leaves(preprocess.spaces)]
            places = tree.leaves(preprocess.places)
            self._normalizers = [None if place is None else preprocess.normalizers[place] for place in places]

    @classmethod
    def for_module(cls, preprocess: nn.Module, device: torch.device) -> "HostPreprocess | None":
        """Return the twin of a preprocessing on the CPU, None for images and for modules of one's own."""
        if device.type != "cpu" or type(preprocess) not in (Preprocess, WithoutMask):
            return None
        return None if getattr(preprocess, "sees_images", False) else cls(preprocess)  # type: ignore[arg-type]

    def takes(self, obs: Obs, module: object) -> bool:
        """Whether it is still this module's twin, and can make features of these observations.

        Where nothing is known of a space, these are float32 vectors alone.
        """
        if module is not self._module or any(self._hooks):
            return False
        if self._convert:
            return True
        rows = without_mask(obs)
        return isinstance(rows, np.ndarray) and rows.dtype == np.float32 and rows.ndim == 2

    def __call__(self, obs: Obs) -> Array:
        """Return the features [B, F] of raw observations [B, ...]."""
        rows = without_mask(obs)
        if self._is_identity and rows.dtype == np.float32:
            vector: Array = rows
            return vector
        parts = [convert(np.asarray(leaf)) for convert, leaf in zip(self._convert, tree.leaves(rows), strict=True)]
        for position, normalizer in enumerate(self._normalizers):
            if normalizer is not None:
                parts[position] = _normalized(parts[position], normalizer)
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def _converter(space: Space[Any]) -> Callable[[NDArray[Any]], Array]:
    if isinstance(space, spaces.Discrete):
        return partial(_one_hot, starts=np.array([space.start]), sizes=np.array([space.n]))
    if isinstance(space, spaces.MultiDiscrete):
        return partial(_one_hot, starts=space.start.ravel(), sizes=space.nvec.ravel())
    return _flat


def _flat(leaf: NDArray[Any]) -> Array:
    """Turn [B, ...] into [B, F]."""
    return leaf.reshape(len(leaf), -1).astype(np.float32, copy=False)


def _one_hot(leaf: NDArray[Any], starts: NDArray[Any], sizes: NDArray[Any]) -> Array:
    """Turn digits [B] or [B, D] into ones among zeros, [B, the sum of sizes]."""
    digits = leaf.reshape(len(leaf), -1).astype(np.int64) - starts
    if digits.size and not (digits.min() >= 0 and (digits < sizes).all()):
        raise ValueError(f"a number is outside its space: {leaf[((digits < 0) | (digits >= sizes)).any(axis=1)][0]}")
    features = np.zeros((len(leaf), int(sizes.sum())), np.float32)
    features[np.arange(len(leaf))[:, None], digits + (np.cumsum(sizes) - sizes)] = 1.0
    return features


def _normalized(features: Array, by: Normalizer) -> Array:
    moved: Array = (features - by.shift.numpy()) * by.scale.numpy()
    return np.clip(moved, -by.clip, by.clip, out=moved)
