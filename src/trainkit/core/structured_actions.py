"""Structured actions: a Dict or Tuple of action spaces as one flat row, and joint actions as one number.

The environment takes and `policy.predict` returns nested actions. Policies, buffers and datasets work with flat rows:

    nested leaves                                  flat row
    Discrete, MultiDiscrete, MultiBinary           MultiDiscrete: one column per number
    Box of floats                                  Box: one column per number
    both kinds                                     StructuredHybrid: one column per number, all of them floats
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from trainkit.core.errors import ConfigError, SpaceMismatchError
from trainkit.core.signatures import checked

MOST_JOINT_ACTIONS = 10_000
_DISCRETE = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
_EXACT_IN_FLOAT32, _EXACT_IN_FLOAT64 = 2**24, 2**53  # integers up to here are represented without rounding


@checked
class ActionStructure:
    """Map actions of a nested Dict or Tuple space to flat rows and back, without loss.

    Columns follow the leaves in the order of the space, each leaf in C order.

    Args:
        nested: a Dict or Tuple, of any depth, whose leaves are discrete or Boxes of floats.

    Attributes:
        nested: as given.
        width: W, columns of a row.
        is_discrete: [W], whether a column belongs to a discrete leaf.
    """

    def __init__(self, nested: Space[Any]) -> None:
        self.nested = nested
        self._leaves = list(_leaves(nested, "the action space"))
        ends = np.cumsum([_size(leaf) for _, leaf in self._leaves]).tolist()
        columns = map(slice, [0, *ends[:-1]], ends)
        self._parts = [
            (own, leaf.shape or (), np.dtype(leaf.dtype)) for own, (_, leaf) in zip(columns, self._leaves, strict=True)
        ]
        self.width: int = ends[-1]
        self.is_discrete: NDArray[np.bool_] = np.concatenate(
            [np.full(_size(leaf), not isinstance(leaf, spaces.Box)) for _, leaf in self._leaves]
        )
        self.float_dtype = _float_dtype(self._leaves)  # of rows that hold numbers of a Box

    @property
    def leaves(self) -> list[tuple[str, Space[Any]]]:
        """The leaves in the order of their columns, each with its path for messages."""
        return list(self._leaves)

    def pack(self, action: Any) -> NDArray[Any]:
        """Return nested actions as flat rows: one action as [W], K of them (arrays [K, ...] as leaves) as [K, W]."""
        columns: list[NDArray[Any]] = []
        for (path, leaf), value in zip(self._leaves, _values(self.nested, action), strict=True):
            array, shape = np.asarray(value), leaf.shape or ()
            lead = array.shape[: array.ndim - len(shape)]
            if array.shape != (*lead, *shape) or len(lead) > 1:
                raise ConfigError(f"{path} must hold actions of shape {shape}, alone or K of them, got {array.shape}")
            columns.append(array.reshape(*lead, _size(leaf)))
        rows = np.concatenate(columns, axis=-1)
        return rows if self.is_discrete.all() else rows.astype(self.float_dtype, copy=False)

    def bounds(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the lowest and the highest number of each column, [W] each."""
        lows, highs = zip(*(_bounds(leaf) for _, leaf in self._leaves), strict=True)
        return np.concatenate(lows), np.concatenate(highs)

    def unpack(self, rows: NDArray[Any]) -> Any:
        """Return flat rows as nested actions: [W] as one action, [K, W] as a tree of arrays [K, ...]."""
        lead = rows.shape[:-1]
        parts = (rows[..., own].reshape(lead + shape).astype(dtype) for own, shape, dtype in self._parts)
        return _nested(self.nested, parts)


class StructuredMultiDiscrete(spaces.MultiDiscrete):
    """Flat rows of a nested action space whose leaves are discrete."""

    def __init__(self, structure: ActionStructure) -> None:
        low, high = structure.bounds()
        super().__init__(high - low + 1, start=low)
        self.structure = structure

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StructuredMultiDiscrete) and self.structure.nested == other.structure.nested

    def __repr__(self) -> str:
        return f"flat {self.structure.nested}"


class StructuredBox(spaces.Box):
    """Flat rows of a nested action space whose leaves are Boxes of floats."""

    def __init__(self, structure: ActionStructure) -> None:
        dtype = structure.float_dtype
        low, high = structure.bounds()
        super().__init__(low.astype(dtype), high.astype(dtype), dtype=dtype.type)
        self.structure = structure

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StructuredBox) and self.structure.nested == other.structure.nested

    def __repr__(self) -> str:
        return f"flat {self.structure.nested}"


class StructuredHybrid(Space[NDArray[Any]]):
    """Flat rows of a nested action space with discrete leaves and Boxes of floats; discrete columns hold whole floats.

    Rows are float32, or float64 where a Box is, or where float32 would round a discrete number.

    Args:
        structure: of the nested actions.

    Attributes:
        structure: as given.
        low, high: [W], bounds of each column.
        discrete: the MultiDiscrete of the discrete columns, in order.
        box: the Box of the other columns, in order.
    """

    def __init__(self, structure: ActionStructure) -> None:
        dtype, is_discrete = structure.float_dtype, structure.is_discrete
        super().__init__((structure.width,), dtype)
        self.structure = structure
        low, high = structure.bounds()
        self.low, self.high = low.astype(dtype), high.astype(dtype)
        start, end = (bound[is_discrete].astype(np.int64) for bound in (self.low, self.high))
        self.discrete = spaces.MultiDiscrete(end - start + 1, start=start)
        self.box = spaces.Box(self.low[~is_discrete], self.high[~is_discrete], dtype=dtype.type)

    def join(self, discrete: NDArray[Any], box: NDArray[Any]) -> NDArray[Any]:
        """Return rows [..., W] of the discrete columns [..., C] and the Box columns [..., W - C]."""
        rows = np.empty((*box.shape[:-1], self.structure.width), self.dtype)
        rows[..., self.structure.is_discrete], rows[..., ~self.structure.is_discrete] = discrete, box
        return rows

    def invalid_choices(self, rows: NDArray[Any]) -> NDArray[np.bool_]:
        """Return where rows [..., W] have, in a discrete column, a number that its leaf does not contain, [..., W]."""
        invalid: NDArray[np.bool_] = (rows < self.low) | (rows > self.high) | (rows != np.floor(rows))
        return invalid & self.structure.is_discrete

    def seed(self, seed: int | None = None) -> Any:
        """Seed the streams of both parts."""
        used = super().seed(seed)
        for part in (self.discrete, self.box):
            part.seed(int(self.np_random.integers(2**31)))
        return used

    def sample(self, mask: None = None, probability: None = None) -> NDArray[Any]:
        """Draw one row [W], discrete columns uniformly, the others as a Box does; masks are rejected as by a Box."""
        return self.join(self.discrete.sample(), self.box.sample(mask, probability))

    def contains(self, x: Any) -> bool:
        """Return whether an array is one row: within the bounds, and whole in discrete columns."""
        if not isinstance(x, np.ndarray) or x.shape != self.shape or not np.can_cast(x.dtype, self.low.dtype):
            return False
        return bool(np.all((x >= self.low) & (x <= self.high))) and not self.invalid_choices(x).any()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StructuredHybrid) and self.structure.nested == other.structure.nested

    def __repr__(self) -> str:
        return f"flat {self.structure.nested}"


@checked
def flat_actions(space: Space[Any]) -> Space[Any]:
    """Return the space of flat rows of a Dict or Tuple of action spaces, and any other space unchanged.

    Raises:
        ConfigError: a leaf is neither discrete nor a Box of floats.
    """
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        return space
    structure = ActionStructure(space)
    if structure.is_discrete.all():
        return StructuredMultiDiscrete(structure)
    return StructuredHybrid(structure) if structure.is_discrete.any() else StructuredBox(structure)


def structure_of(space: Space[Any] | None) -> ActionStructure | None:
    """Return how flat rows of a space are nested, None where they are not."""
    return space.structure if isinstance(space, (StructuredMultiDiscrete, StructuredBox, StructuredHybrid)) else None


class JointActions:
    """Number all combinations of a MultiDiscrete or MultiBinary action, the last place varying fastest.

    With `MultiDiscrete([2, 3])`, number 4 is the action [1, 1].

    Args:
        owner: the policy that needs one value per combination, for the error.
        space: of one action.

    Attributes:
        n: combinations.
    """

    def __init__(self, owner: str, space: Space[Any]) -> None:
        low, high = _bounds(space)
        counts = [int(count) for count in high - low + 1]
        self.n = math.prod(counts)
        if self.n > MOST_JOINT_ACTIONS:
            raise SpaceMismatchError(
                f"{owner} gives each joint action a number of its own, and {space} has {self.n:,}, more than "
                f"{MOST_JOINT_ACTIONS:,}: use PPOPolicy or A2CPolicy, which choose every part by itself"
            )
        self._shape, self._dtype = space.shape or (), space.dtype
        self._low, self._counts = low, np.array(counts, np.int64)
        self._strides = np.array([math.prod(counts[place + 1 :]) for place in range(len(counts))], np.int64)

    def numbers(self, action: NDArray[Any]) -> NDArray[np.int64]:
        """Return the numbers [K] of actions [K, ...]."""
        places = action.reshape(len(action), len(self._counts)).astype(np.int64) - self._low
        numbers: NDArray[np.int64] = places @ self._strides
        return numbers

    @property
    def table(self) -> NDArray[Any]:
        """All actions [n, ...], by their numbers."""
        return self.actions(np.arange(self.n))

    def actions(self, numbers: NDArray[np.int64]) -> NDArray[Any]:
        """Return the actions [K, ...] of numbers [K]."""
        places: NDArray[np.int64] = numbers[:, None] // self._strides % self._counts + self._low
        return places.reshape(len(numbers), *self._shape).astype(self._dtype)


def joint_actions(owner: str, space: Space[Any] | None) -> JointActions | None:
    """Return the joint actions of a MultiDiscrete or MultiBinary space, flat or nested; None for any other."""
    space = None if space is None else flat_actions(space)
    return JointActions(owner, space) if isinstance(space, (spaces.MultiDiscrete, spaces.MultiBinary)) else None


def _leaves(space: Space[Any], path: str) -> Iterator[tuple[str, Space[Any]]]:
    if isinstance(space, (spaces.Dict, spaces.Tuple)) and not space.spaces:
        raise ConfigError(f"{path} is an empty {type(space).__name__}: there is nothing to choose in it")
    if isinstance(space, spaces.Dict):
        for key, child in space.spaces.items():
            if not isinstance(key, str):
                raise ConfigError(f"{path} must have strings as keys, got {key!r}: rename it to {str(key)!r}")
            yield from _leaves(child, f"{path}[{key!r}]")
    elif isinstance(space, spaces.Tuple):
        for place, child in enumerate(space.spaces):
            yield from _leaves(child, f"{path}[{place}]")
    elif isinstance(space, spaces.Box) and space.dtype not in (np.float32, np.float64):
        raise ConfigError(f"{path} is {space}: make it a Box of float32 or float64, or a MultiDiscrete")
    elif isinstance(space, (*_DISCRETE, spaces.Box)):
        yield path, space
    else:
        raise ConfigError(
            f"{path} is a {type(space).__name__}: make it a Discrete, MultiDiscrete, MultiBinary or Box, or a Dict or "
            "Tuple of them"
        )


def _values(space: Space[Any], action: Any) -> Iterator[Any]:
    """Yield the leaves of a nested action in the order of the space's."""
    if isinstance(space, spaces.Dict):
        if not isinstance(action, dict) or action.keys() != space.spaces.keys():
            raise ConfigError(f"an action of {space} must be a dict with the keys {list(space.spaces)}, got {action!r}")
        for key, child in space.spaces.items():
            yield from _values(child, action[key])
    elif isinstance(space, spaces.Tuple):
        if not isinstance(action, (tuple, list)) or len(action) != len(space.spaces):
            raise ConfigError(f"an action of {space} must be a tuple of {len(space.spaces)} parts, got {action!r}")
        for child, part in zip(space.spaces, action, strict=True):
            yield from _values(child, part)
    else:
        yield action


def _nested(space: Space[Any], values: Iterator[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _nested(child, values) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_nested(child, values) for child in space.spaces)
    value = next(values)
    return value[()] if isinstance(space, spaces.Discrete) else value  # one number is a scalar, as in a sample


def _size(leaf: Space[Any]) -> int:
    return math.prod(leaf.shape or ())


def _float_dtype(leaves: list[tuple[str, Space[Any]]]) -> np.dtype[Any]:
    """Return the smallest float that holds every number of a Box, and of discrete leaves next to one, exactly."""
    dtype: np.dtype[Any] = np.dtype(np.float32)
    has_box = any(isinstance(leaf, spaces.Box) for _, leaf in leaves)
    for path, leaf in leaves:
        low, high = _bounds(leaf)
        if isinstance(leaf, spaces.Box):
            dtype = np.promote_types(dtype, leaf.dtype)
        elif has_box and max(-low.min(), high.max()) > _EXACT_IN_FLOAT64:
            raise ConfigError(f"{path} is {leaf}: next to a Box its numbers become floats, so start it at 0")
        elif max(-low.min(), high.max()) > _EXACT_IN_FLOAT32:
            dtype = np.dtype(np.float64)
    return dtype


def _bounds(leaf: Space[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the lowest and the highest number of each element of a leaf, flat."""
    if isinstance(leaf, spaces.Box):
        return leaf.low.ravel(), leaf.high.ravel()
    if isinstance(leaf, spaces.Discrete):
        start = int(leaf.start)
        return np.array([start]), np.array([start + int(leaf.n) - 1])
    if isinstance(leaf, spaces.MultiDiscrete):
        low = leaf.start.astype(np.int64).ravel()
        return low, low + leaf.nvec.astype(np.int64).ravel() - 1
    return np.zeros(_size(leaf), np.int64), np.ones(_size(leaf), np.int64)
