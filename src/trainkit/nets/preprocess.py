"""From raw observations to what a network takes: float tensors, one-hot numbers, scaled images, no mask."""

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
from trainkit.nets.normalize import Normalizer

_SMALLEST_IMAGE = 36  # pixels per side that NatureCNN needs


@runtime_checkable
class RunningStatistics(Protocol):
    """A preprocessing that learns from what it sees."""

    @property
    def observes(self) -> bool: ...

    @property
    def n_observed(self) -> int:
        """How many rows the statistics in use have learnt from."""
        ...

    def observe(self, obs: Any) -> None:
        """Note raw observations [K, ...] on the device; what is in use stays until `fold`."""
        ...

    def fold(self) -> None:
        """Use what was noted from now on."""
        ...


@runtime_checkable
class MergeableStatistics(RunningStatistics, Protocol):
    """A preprocessing whose statistics can take in another's."""

    def merge(self, other: Any) -> None:
        """Take in all that statistics of the same kind have observed, and use the statistics of both from now on."""
        ...


@checked
class Preprocess(nn.Module):
    """Turn observations of one space into float32 features, leaf by leaf.

    Vectors and small grids are flattened to [B, F]; Discrete and MultiDiscrete leaves become one-hot [B, F]; uint8
    images of at least 36 x 36 pixels become [B, C, H, W] in 0..1, whatever the place of their channel and stack
    axes. The mask is taken out, and a dict that held nothing else but "obs" with it.

    Args:
        space: of one observation.
        normalize: give the features of Box leaves, but images, running mean 0 and deviation 1, each by itself.
        clip: of normalised features.
    """

    def __init__(self, space: Space[Any], *, normalize: bool = False, clip: float = 10.0) -> None:
        checks = Checks("Preprocess")
        checks.number("clip", clip, low=0, above_low=True)
        checks.done()
        super().__init__()
        self._space = _unmasked(space)
        self.spaces: Any = _map_space(lambda leaf: leaf, self._space)  # a tree of the leaves' spaces
        self.shapes: Any = _map_space(_feature_shape, self._space)  # a tree of features' shapes
        self.is_identity = not normalize and isinstance(self._space, spaces.Box) and _is_float_vector(self._space)
        self.sees_images = any(len(size) == 3 for size in feature_sizes(self.shapes))

        self.normalizers = nn.ModuleList()

        def place(leaf: Space[Any]) -> int | None:
            if not normalize or not isinstance(leaf, spaces.Box) or _image_axes(leaf) is not None:
                return None
            self.normalizers.append(Normalizer(math.prod(leaf.shape), clip=clip))
            return len(self.normalizers) - 1

        self.places: Any = _map_space(place, self._space)  # of each leaf in `normalizers`, None for one without

    def forward(self, obs: Any) -> Any:
        unmasked = without_mask(obs)
        if self.is_identity and unmasked.dtype == torch.float32:
            return unmasked
        features = _map_space(_features, self._space, unmasked)
        if not self.observes:
            return features
        own: Any = self.normalizers
        return tree.map_tree(lambda place, leaf: leaf if place is None else own[place](leaf), self.places, features)

    @property
    def observes(self) -> bool:
        """Whether there are statistics to learn."""
        return len(self.normalizers) > 0

    def observe(self, obs: Any) -> None:
        """Note raw observations [K, ...] on the device; what is in use stays until `fold`."""
        features = _map_space(_features, self._space, without_mask(obs))
        for place, leaf in zip(tree.leaves(self.places), tree.leaves(features), strict=True):
            if place is not None:
                self._own(place).observe(leaf)

    def fold(self) -> None:
        """Use what was noted from now on."""
        for place in range(len(self.normalizers)):
            self._own(place).fold()

    def merge(self, other: "Preprocess") -> None:
        """Take in all rows that the statistics of a preprocessing of the same space have observed; see `Normalizer`."""
        if not isinstance(other, Preprocess) or other._space != self._space or other.places != self.places:
            raise ConfigError(f"Preprocess.merge needs a Preprocess of {self._space} that normalizes, got {other!r}")
        for place in range(len(self.normalizers)):
            self._own(place).merge(other._own(place))

    @property
    def n_observed(self) -> int:
        """How many rows the statistics in use have learnt from."""
        return int(self._own(0).known.count) if self.observes else 0

    def _own(self, place: int) -> Normalizer:
        own = self.normalizers[place]
        assert isinstance(own, Normalizer), "nothing else is put there"
        return own


class WithoutMask(nn.Module):
    """Hand observations on as they are, without their mask."""

    is_identity = True

    def forward(self, obs: Any) -> Any:
        return without_mask(obs)


def without_mask(obs: Any) -> Any:
    """Return an observation without its mask; of a dict of nothing else but "obs", that leaf."""
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
    """Turn one leaf [B, ...] into features; `shape[0]`, as `len` would fix the number of rows of an exported graph."""
    if isinstance(space, spaces.Discrete):
        return _one_hot(obs.long() - int(space.start), int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        digits = zip(obs.flatten(1).long().unbind(1), space.start.ravel(), space.nvec.ravel(), strict=True)
        return torch.cat([_one_hot(d - int(start), int(n)) for d, start, n in digits], dim=1)
    order = _image_axes(space)
    if order is None:
        return obs.flatten(1).float() if obs.dim() > 2 else obs.float().reshape(obs.shape[0], -1)
    channels, height, width = order
    moved = obs.permute(0, *(axis + 1 for axis in (*channels, height, width)))
    return moved.reshape(obs.shape[0], -1, *moved.shape[-2:]).float() / 255.0


def _one_hot(index: Tensor, size: int) -> Tensor:
    """Return vectors [B, size] with a 1 at an index [B], on the CPU an `IndexError` for one that is not in 0..size-1.

    torch's own reads the numbers in Python, which no engine can record.
    """
    places = torch.arange(size, device=index.device)
    return (places.index_select(0, index).unsqueeze(1) == places).float()


def _feature_shape(space: Space[Any]) -> tuple[int, ...]:
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, spaces.MultiDiscrete):
        return (int(space.nvec.sum()),)
    assert space.shape is not None
    order = _image_axes(space)
    if order is None:
        return (math.prod(space.shape),)
    channels, height, width = order
    return math.prod(space.shape[axis] for axis in channels), space.shape[height], space.shape[width]


def _image_axes(space: Space[Any]) -> tuple[Sequence[int], int, int] | None:
    """Find (channel axes, height, width) of a uint8 image, stacked or not; None for what is no image."""
    shape = space.shape
    if not isinstance(space, spaces.Box) or space.dtype != "uint8" or shape is None or len(shape) not in (2, 3, 4):
        return None
    large = [axis for axis, size in enumerate(shape) if size >= _SMALLEST_IMAGE]
    if len(large) != 2:
        return None
    return [axis for axis in range(len(shape)) if axis not in large], large[0], large[1]


def feature_sizes(shapes: Any) -> list[tuple[int, ...]]:
    """List the shapes of a tree of features, in the tree's order."""
    found: list[tuple[int, ...]] = []

    def visit(node: Any) -> None:
        if isinstance(node, dict):
            for key in sorted(node):
                visit(node[key])
        elif isinstance(node, tuple) and node and all(isinstance(size, int) and size > 0 for size in node):
            found.append(node)
        elif isinstance(node, tuple) and node:
            for child in node:
                visit(child)
        else:
            raise ConfigError(
                f"a feature's shape must be a tuple of sizes, got {node!r}: take Preprocess(space).shapes"
            )

    visit(shapes)
    return found


def feature_leaves(features: Any) -> list[Tensor]:
    """List the tensors of a tree of features, in the order of `feature_sizes`."""
    return tree.leaves(features)
