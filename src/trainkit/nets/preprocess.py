"""Preprocessing of raw observations into features: one-hot vectors, scaled images, running normalization, no mask."""

import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from trainkit.core import tree
from trainkit.core.data import ACTION_MASK
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.signatures import checked
from trainkit.core.spaces import SMALLEST_IMAGE, image_axes, is_unscaled, leaf_spaces

_GRID_SIDES = range(5, 22)  # cells
_CLIP = 10.0  # of normalized features, where it is not given


@runtime_checkable
class RunningStatistics(Protocol):
    """A preprocessing with running statistics of observations."""

    @property
    def observes(self) -> bool: ...

    @property
    def n_observed(self) -> int:
        """Number of rows in the statistics in use."""
        ...

    def observe(self, obs: Any) -> None:
        """Add raw observations [K, ...] on the device to the pending rows; `forward` ignores these until `fold`."""
        ...

    def fold(self) -> None:
        """Merge the pending rows into the statistics in use."""
        ...


@runtime_checkable
class MergeableStatistics(RunningStatistics, Protocol):
    """A preprocessing whose statistics can be merged with another's."""

    def merge(self, other: Any) -> None:
        """Merge all rows that another preprocessing of the same kind has observed."""
        ...


@checked
class Preprocess(nn.Module):
    """Map observations of one space to float32 features, leaf by leaf.

    Discrete and MultiDiscrete leaves become one-hot [B, F]. uint8 images become [B, C, H, W] in 0..1, wherever their
    channel and stack axes are: Boxes with two axes of at least 36 pixels or, with bounds 0 and 255, of at least 22.
    Other numbers up to 255 are not scaled, since they may be codes: `unscaled` lists their leaves. Small grids, which
    are boolean or a Box from 0 to 1, [H, W, C] or [C, H, W] with H and W from 5 to 21, become [B, C, H, W], too; where
    both orders are possible, it is the one with H = W, else the one with fewer channels, else [H, W, C]. All other
    leaves are flattened to [B, F]. The action mask is removed; a dict with only "obs" besides becomes that leaf.

    Args:
        space: of one observation.
        normalize: normalize each feature of Box leaves, except images and grids, by its running mean and standard
            deviation.
        clip: of normalized features.

    Attributes:
        shapes: a tree of features' shapes.
        sees_images, sees_grids: whether leaves are images of at least 36 x 36; whether other leaves are small images or
            grids, and none is such an image.
        sees_images_only: whether all leaves are such images.
        unscaled: paths of leaves of uint8 up to 255 that are no images.
    """

    def __init__(self, space: Space[Any], *, normalize: bool = False, clip: float = _CLIP) -> None:
        with Checks("Preprocess") as checks:
            checks.number("clip", clip, low=0, above_low=True)
            checks.require(normalize or clip == _CLIP, ".clip has no effect: normalize is False, leave it out")
        super().__init__()
        self._space = _unmasked(space)
        self.shapes: Any = _map_space(_feature_shape, self._space)
        leaves = leaf_spaces(self._space)
        tree.check_keys("Preprocess.space", leaves)
        named = tree.named_leaves(leaves)
        self.unscaled = [path for path, leaf in named if is_unscaled(leaf) and not normalize]
        self.is_identity = not normalize and isinstance(self._space, spaces.Box) and _is_float_vector(self._space)
        sizes = list(feature_sizes(self.shapes))
        planes = [size for size in sizes if len(size) == 3]
        self.sees_images = any(is_image_size(size) for size in planes)
        self.sees_images_only = bool(planes) and len(planes) == len(sizes) and all(map(is_image_size, planes))
        self.sees_grids = bool(planes) and not self.sees_images

        self.normalizers = nn.ModuleList()

        def add_normalizer(leaf: Space[Any]) -> int | None:
            if not normalize or not isinstance(leaf, spaces.Box) or _axes(leaf) is not None:
                return None
            self.normalizers.append(Normalizer(math.prod(leaf.shape), clip=clip))
            return len(self.normalizers) - 1

        self.indices: Any = _map_space(add_normalizer, self._space)  # of each leaf's normalizer, None where it has none

    def forward(self, obs: Any) -> Any:
        """Return the features of observations [B, ...], tensors on the device in the structure of the space."""
        unmasked = without_mask(obs)
        if self.is_identity and unmasked.dtype == torch.float32:
            return unmasked
        features = _map_space(_features, self._space, unmasked)
        if not self.observes:
            return features
        normalizers = self._normalizers
        return tree.map_tree(lambda i, leaf: leaf if i is None else normalizers[i](leaf), self.indices, features)

    @property
    def observes(self) -> bool:
        """Whether there are running statistics."""
        return len(self.normalizers) > 0

    @property
    def n_observed(self) -> int:
        """Number of rows in the statistics in use."""
        return int(self._normalizers[0].known.count) if self.observes else 0

    def observe(self, obs: Any) -> None:
        """Add raw observations [K, ...] on the device to the pending rows; `forward` ignores these until `fold`."""
        features = _map_space(_features, self._space, without_mask(obs))
        for i, leaf in zip(tree.leaves(self.indices), tree.leaves(features), strict=True):
            if i is not None:
                self._normalizers[i].observe(leaf)

    def fold(self) -> None:
        """Merge the pending rows into the statistics in use."""
        for normalizer in self._normalizers:
            normalizer.fold()

    def merge(self, other: "Preprocess") -> None:
        """Merge all rows that a preprocessing of the same space has observed; see `Normalizer.merge`."""
        if not isinstance(other, Preprocess) or other._space != self._space or other.indices != self.indices:
            raise ConfigError(f"Preprocess.merge needs a Preprocess of {self._space} that normalizes, got {other!r}")
        for own, theirs in zip(self._normalizers, other._normalizers, strict=True):
            own.merge(theirs)

    @property
    def _normalizers(self) -> "list[Normalizer]":
        return [part for part in self.normalizers if isinstance(part, Normalizer)]


class Moments(nn.Module):
    """Count, mean and sum of squared deviations of rows [K, F], in float64, merged exactly (Chan et al., 1979)."""

    count: Tensor  # [], rows
    mean: Tensor  # [F]
    square: Tensor  # [F], the sum of squared deviations from the mean

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(n_features, dtype=torch.float64))
        self.register_buffer("square", torch.zeros(n_features, dtype=torch.float64))

    def add(self, count: Tensor, mean: Tensor, square: Tensor) -> None:
        """Merge the moments of other rows, possibly none."""
        total = self.count + count
        share = count / total.clamp(min=1.0)
        difference = mean - self.mean
        self.mean.add_(difference * share)
        self.square.add_(square + difference.square() * (self.count * share))
        self.count.copy_(total)

    def clear(self) -> None:
        """Remove every row."""
        for own in (self.count, self.mean, self.square):
            own.zero_()


class Normalizer(nn.Module):
    """Normalize features [B, F] to (x - mean) / deviation, clipped to +-`clip`; the identity before any `fold`.

    The variance is the population's, plus 1e-8. `observe` adds pending rows and `fold` merges them into the statistics
    in use: an off-policy learner folds at once, an on-policy one after it has learned from its rollout, so that it
    learns with the features it acted on. Statistics are saved with the weights.
    """

    shift: Tensor  # [F], the mean in use
    scale: Tensor  # [F], one over the deviation in use

    def __init__(self, n_features: int, *, clip: float = 10.0) -> None:
        with Checks("Normalizer") as checks:
            checks.integer("n_features", n_features, low=1)
            checks.number("clip", clip, low=0, above_low=True)
        super().__init__()
        self.clip = clip
        self.known = Moments(n_features)
        self.fresh = Moments(n_features)  # observed since the last fold
        self.register_buffer("shift", torch.zeros(n_features, dtype=torch.float32))
        self.register_buffer("scale", torch.ones(n_features, dtype=torch.float32))

    def forward(self, features: Tensor) -> Tensor:
        return ((features - self.shift) * self.scale).clamp_(-self.clip, self.clip)

    @torch.no_grad()
    def observe(self, features: Tensor) -> None:
        """Add rows [K, F] to the pending ones."""
        rows = features.double()
        mean = rows.mean(dim=0)
        self.fresh.add(torch.full_like(self.fresh.count, len(rows)), mean, (rows - mean).square().sum(dim=0))

    @torch.no_grad()
    def merge(self, other: "Normalizer") -> None:
        """Merge all rows that another normalizer has observed, pending ones included, and use the result.

        Exact: count, mean and deviation are those of the rows of both (Chan et al., 1979). `other` is unchanged; merge
        it only once, as its rows are counted each time.
        """
        if other is self or other.known.mean.shape != self.known.mean.shape:
            raise ConfigError(
                f"Normalizer.merge needs another normalizer of {len(self.known.mean)} features, got "
                f"{'itself' if other is self else len(other.known.mean)}"
            )
        for theirs in (other.known, other.fresh):
            own = (part.to(self.fresh.mean.device) for part in (theirs.count, theirs.mean, theirs.square))
            self.fresh.add(*own)
        self.fold()

    @torch.no_grad()
    def fold(self) -> None:
        """Merge the pending rows into the statistics in use."""
        known, fresh = self.known, self.fresh
        known.add(fresh.count, fresh.mean, fresh.square)
        fresh.clear()
        variance = torch.where(known.count > 0, known.square / known.count.clamp(min=1.0), 1.0)
        self.shift.copy_(known.mean)
        self.scale.copy_((variance + 1e-8).rsqrt())


class WithoutMask(nn.Module):
    """Preprocessing that only removes the action mask."""

    is_identity = True

    def forward(self, obs: Any) -> Any:
        return without_mask(obs)


def without_mask(obs: Any) -> Any:
    """Return an observation without its action mask; a dict with only "obs" left becomes that leaf."""
    if isinstance(obs, dict) and ACTION_MASK in obs:
        rest = {key: child for key, child in obs.items() if key != ACTION_MASK}
        return rest["obs"] if rest.keys() == {"obs"} else rest
    return obs


def _unmasked(space: Space[Any]) -> Space[Any]:
    if isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces:
        rest = without_mask(dict(space.spaces))
        return spaces.Dict(rest) if isinstance(rest, dict) else rest
    return space


def _map_space(fn: Any, space: Space[Any], *obs: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _map_space(fn, child, *(one[key] for one in obs)) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_map_space(fn, child, *(one[i] for one in obs)) for i, child in enumerate(space.spaces))
    return fn(space, *obs)


def _is_float_vector(space: spaces.Box) -> bool:
    return len(space.shape) == 1 and space.dtype == "float32"


def _features(space: Space[Any], obs: Tensor) -> Tensor:
    """Map one leaf [B, ...] to features, for any number of rows B in an exported graph."""
    if isinstance(space, spaces.Discrete):
        return _one_hot(obs.long() - int(space.start), int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        digits = zip(obs.flatten(1).long().unbind(1), space.start.ravel(), space.nvec.ravel(), strict=True)
        return torch.cat([_one_hot(d - int(start), int(n)) for d, start, n in digits], dim=1)
    order = _axes(space)
    if order is None:
        return obs.flatten(1).float() if obs.dim() > 2 else obs.float().reshape(obs.shape[0], -1)
    channels, height, width = order
    moved = obs.permute(0, *(axis + 1 for axis in (*channels, height, width)))
    planes = moved.reshape(obs.shape[0], -1, *moved.shape[-2:]).float()
    return planes if image_axes(space) is None else planes / 255.0


def _one_hot(index: Tensor, size: int) -> Tensor:
    """Return one-hot vectors [B, size] of an index [B]; raise `IndexError` on the CPU for one not in 0..size-1.

    `torch.nn.functional.one_hot` reads tensor values in Python, which engines cannot record.
    """
    columns = torch.arange(size, device=index.device)
    return (columns.index_select(0, index).unsqueeze(1) == columns).float()


def _feature_shape(space: Space[Any]) -> tuple[int, ...]:
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, spaces.MultiDiscrete):
        return (int(space.nvec.sum()),)
    assert space.shape is not None
    order = _axes(space)
    if order is None:
        return (math.prod(space.shape),)
    channels, height, width = order
    return math.prod(space.shape[axis] for axis in channels), space.shape[height], space.shape[width]


def is_image_size(size: Sequence[int]) -> bool:
    """Return whether a size [..., H, W] is that of an image for `NatureCNN`, not a small image or a grid."""
    return min(size[-2:]) >= SMALLEST_IMAGE


def _axes(space: Space[Any]) -> tuple[Sequence[int], int, int] | None:
    """Return (channel axes, height, width) of an image or a grid; None for any other space."""
    return image_axes(space) or _grid_axes(space)


def _grid_axes(space: Space[Any]) -> tuple[Sequence[int], int, int] | None:
    """Return ([channel axis], height, width) of a small grid of booleans or of numbers from 0 to 1, else None."""
    shape = space.shape
    if not isinstance(space, (spaces.Box, spaces.MultiBinary)) or shape is None or len(shape) != 3:
        return None
    if isinstance(space, spaces.Box) and space.dtype != bool and ((space.low != 0) | (space.high != 1)).any():
        return None
    orders = [([2], 0, 1), ([0], 1, 2)]
    fitting = [order for order in orders if all(shape[side] in _GRID_SIDES for side in order[1:])]
    return min(fitting, key=lambda order: (shape[order[1]] != shape[order[2]], shape[order[0][0]]), default=None)


def feature_paths(shapes: Any) -> list[tuple[tuple[Any, ...], tuple[int, ...]]]:
    """List (path, shape) of the leaves of a tree of features' shapes, in the tree's order; a path is keys, indices."""
    found: list[tuple[tuple[Any, ...], tuple[int, ...]]] = []

    def visit(node: Any, path: tuple[Any, ...]) -> None:
        if isinstance(node, dict):
            for key in sorted(node):
                visit(node[key], (*path, key))
        elif isinstance(node, tuple) and node and all(isinstance(size, int) and size > 0 for size in node):
            found.append((path, node))
        elif isinstance(node, tuple) and node:
            for position, child in enumerate(node):
                visit(child, (*path, position))
        else:
            raise ConfigError(f"a feature's shape must be a tuple of sizes, got {node!r}: use Preprocess(space).shapes")

    visit(shapes, ())
    return found


def feature_sizes(shapes: Any) -> list[tuple[int, ...]]:
    """List the shapes of a tree of features, in the tree's order."""
    return [shape for _, shape in feature_paths(shapes)]


def blank_features(shapes: Any, n_rows: int, device: torch.device) -> Any:
    """Return a tree of zeros [B, ...] for a tree of features' shapes."""
    if isinstance(shapes, dict):
        return {key: blank_features(child, n_rows, device) for key, child in shapes.items()}
    if all(isinstance(size, int) for size in shapes):
        return torch.zeros(n_rows, *shapes, device=device, dtype=torch.float32)
    return tuple(blank_features(child, n_rows, device) for child in shapes)
