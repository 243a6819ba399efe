"""Observations of a batch that refer to images on a device: their indices are sent, and the images gathered there."""

from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from trainkit.core import tree
from trainkit.core.data import Lookup, SequenceBatch, TransitionBatch

BatchT = TypeVar("BatchT", bound=TransitionBatch | SequenceBatch)


def frame_indices(columns: Any) -> Any:
    """Return columns in which images on a device are replaced by their indices; raise for overwritten images."""
    return tree.map_tree(lambda leaf: leaf.valid_indices() if isinstance(leaf, Lookup) else leaf, columns)


def gathered(batch: BatchT) -> BatchT:
    """Return a batch whose indices of images are replaced by the images, on the CPU."""
    if isinstance(batch, SequenceBatch):
        return replace(batch, observations=tree.map_tree(_array_of, batch.observations))
    columns = tree.map_tree(_array_of, (batch.obs, batch.next_obs))
    return replace(batch, obs=columns[0], next_obs=columns[1])


def with_frames(observations: Any, frames: Any) -> Any:
    """Return observations on the device with images in place of indices; `frames` as `frames_of` returns them."""
    return observations if frames is None else tree.map_tree(_gathered, observations, frames)


def _gathered(leaf: Tensor, frames: Any) -> Tensor:
    return leaf if frames is None else frames.gather(leaf)


def _array_of(leaf: Any) -> Any:
    if not isinstance(leaf, Lookup):
        return leaf
    return leaf.frames.gather(torch.from_numpy(leaf.valid_indices())).numpy()


def frames_of(batch: TransitionBatch | SequenceBatch) -> Any:
    """Return the image stores that the indices in a batch's observations refer to; None without any."""
    observed = batch.observations if isinstance(batch, SequenceBatch) else (batch.obs, batch.next_obs)
    frames = tree.map_tree(lambda leaf: leaf.frames if isinstance(leaf, Lookup) else None, observed)
    return frames if any(leaf is not None for leaf in tree.leaves(frames)) else None
