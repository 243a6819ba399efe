"""Observations of a batch that refer to images on a device: their indices are sent, and the images gathered there."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from trainkit.core import tree
from trainkit.core.data import Batch, Lookup

BatchT = TypeVar("BatchT", bound=Batch)


def frame_indices(columns: Any) -> Any:
    """Return columns in which images on a device are replaced by their indices; raise for overwritten images."""
    return tree.map_tree(lambda leaf: leaf.valid_indices() if isinstance(leaf, Lookup) else leaf, columns)


def gathered(batch: BatchT) -> BatchT:
    """Return a batch whose indices of images are replaced by the images, on the CPU."""
    whole: Any = batch
    observed = {name: tree.map_tree(_array_of, getattr(batch, name)) for name in batch.obs_fields}
    result: BatchT = replace(whole, **observed)
    return result


def with_frames(columns: Any, obs_fields: Sequence[str], frames: Any) -> Any:
    """Return columns on the device with images in place of indices.

    Args:
        columns: a NamedTuple.
        obs_fields: names of those with observations.
        frames: as `frames_of` returns them.
    """
    if frames is None:
        return columns
    observed = tree.map_tree(_gathered, tuple(getattr(columns, name) for name in obs_fields), frames)
    return columns._replace(**dict(zip(obs_fields, observed, strict=True)))


def _gathered(leaf: Tensor, frames: Any) -> Tensor:
    return leaf if frames is None else frames.gather(leaf)


def _array_of(leaf: Any) -> Any:
    if not isinstance(leaf, Lookup):
        return leaf
    return leaf.frames.gather(torch.from_numpy(leaf.valid_indices())).numpy()


def frames_of(batch: Batch) -> Any:
    """Return the image stores that indices in a batch's observations refer to, by `obs_fields`; None without any."""
    observed = tuple(getattr(batch, name) for name in batch.obs_fields)
    frames = tree.map_tree(lambda leaf: leaf.frames if isinstance(leaf, Lookup) else None, observed)
    return frames if any(leaf is not None for leaf in tree.leaves(frames)) else None
