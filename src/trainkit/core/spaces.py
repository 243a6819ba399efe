"""Gymnasium spaces: the supported ones, the arrays of a row, random actions, flat rows of nested actions.

The environment takes and `policy.predict` returns nested actions. Policies, buffers and datasets work with flat rows:

    nested leaves                                  flat row
    Discrete, MultiDiscrete, MultiBinary           MultiDiscrete: one column per number
    Box of floats                                  Box: one column per number
    both kinds                                     StructuredHybrid: one column per number, all of them floats
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from trainkit.core import tree
from trainkit.core.data import ACTION_MASK, ArraySpec, Obs, any_true
from trainkit.core.errors import ConfigError, NoLegalActionError, SpaceMismatchError
from trainkit.core.files import check_declared
from trainkit.core.signatures import checked, read_only


@dataclass(frozen=True, slots=True, kw_only=True)
class Spaces:
    """The two spaces of one environment, without an environment."""

    observation_space: Space[Any]
    action_space: Space[Any]

    @classmethod
    def of(cls, envs: Any) -> "Spaces":
        """Return the spaces of an object; a nested action space becomes that of its flat rows."""
        check_spaces(envs.observation_space, envs.action_space)
        return cls(observation_space=envs.observation_space, action_space=flat_actions(envs.action_space))

    def to_plain(self) -> list[Any]:
        """Describe both in JSON-compatible values."""
        return [space_to_plain(self.observation_space), space_to_plain(self.action_space)]

    @classmethod
    def from_plain(cls, plain: Sequence[Any]) -> "Spaces":
        """Return what `to_plain` described."""
        observation_space, action_space = map(space_from_plain, plain)
        return cls(observation_space=observation_space, action_space=action_space)


@read_only
class HasSpaces:
    """Base of classes that may know the spaces of one environment."""

    _spaces: Spaces | None

    @property
    def spaces(self) -> Spaces | None:
        """The spaces of one environment, None if they are not known."""
        return self._spaces

    @property
    def observation_space(self) -> Space[Any]:
        """Space of one environment; raises if it is unknown."""
        return self._known_spaces.observation_space

    @property
    def action_space(self) -> Space[Any]:
        """Space of one environment; raises if it is unknown."""
        return self._known_spaces.action_space

    @property
    def _known_spaces(self) -> Spaces:
        if self._spaces is None:
            raise ConfigError(
                f"{type(self).__name__} does not know the spaces of its rows: give it spaces=envs when it is made"
            )
        return self._spaces


MOST_ACTIONS = 1_000_000  # a head of 512 features for as many takes 2 GB, and four times that with Adam

_DISCRETE = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def check_space(space: Space[Any], name: str) -> None:
    """Raise for a space that is empty, or whose elements are not arrays of one shape."""
    for path, leaf in named_leaf_spaces(space, name):
        if not isinstance(leaf, (spaces.Box, *_DISCRETE)):
            raise ConfigError(
                f"{path} is a {type(leaf).__name__}, which has no fixed array of numbers per step: wrap the "
                "environment so that it gives Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of them "
                "(for MiniGrid: ImgObsWrapper or FlatObsWrapper)"
            )
        if isinstance(leaf, spaces.Box):
            if leaf.dtype == np.object_ or 0 in leaf.shape:
                raise ConfigError(f"{path} must be a Box of numbers with no empty axis, got {leaf}")
            if bool(np.all(leaf.low == leaf.high)):
                raise ConfigError(f"{path} has equal bounds everywhere, so it can only hold one value, got {leaf}")


def named_leaf_spaces(space: Space[Any], name: str) -> Iterator[tuple[str, Space[Any]]]:
    """Yield (path, leaf) in the order of the space.

    Raises:
        ConfigError: a Dict or Tuple is empty, or a key of a Dict is not a string.
    """
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        yield name, space
        return
    if not space.spaces:
        raise ConfigError(f"{name} is an empty {type(space).__name__}: leave it out, or give it a space")
    tree.check_keys(name, space.spaces)
    children = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    for key, child in children:
        yield from named_leaf_spaces(child, f"{name}[{key!r}]")


def check_spaces(observation_space: Space[Any], action_space: Space[Any]) -> None:
    """Raise for spaces that collectors do not support."""
    check_space(observation_space, "the observation space")
    structure = structure_of(action_space)
    nested = action_space if structure is None else structure.nested
    check_space(nested, "the action space")
    flat_actions(nested)  # raises where parts of a nested action cannot be in one row
    if isinstance(observation_space, spaces.Dict) and ACTION_MASK in observation_space.spaces:
        mask = observation_space[ACTION_MASK]
        expected = (_n_masked(action_space),)
        if mask.shape != expected or mask.dtype is None or mask.dtype.kind not in "biu":
            raise ConfigError(
                f"the observation space's {ACTION_MASK!r} must hold one bool or whole number per action, {expected}, "
                f"got {mask}: make it a MultiBinary"
            )


def array_specs(space: Space[Any], stack: int = 1) -> Any:
    """Return the tree of array specs of one row of `space`; `stack` frames per leaf other than the mask."""
    if isinstance(space, spaces.Dict):
        return {key: array_specs(child, 1 if key == ACTION_MASK else stack) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(array_specs(child, stack) for child in space.spaces)
    shape, dtype = space.shape, space.dtype
    assert shape is not None, "check_space lets only arrays through"
    assert dtype is not None, "check_space lets only arrays through"
    return ArraySpec(shape=shape, dtype=np.dtype(dtype), stack=stack)


def zeros_of(space: Space[Any], n_rows: int = 1) -> Obs:
    """Return K rows of a space, as close to zero as it allows, with masks that allow every action."""
    if isinstance(space, spaces.Dict):
        blank = {key: zeros_of(child, n_rows) for key, child in space.spaces.items()}
        if ACTION_MASK in blank:
            blank[ACTION_MASK][:] = 1
        return blank
    if isinstance(space, spaces.Tuple):
        return tuple(zeros_of(child, n_rows) for child in space.spaces)
    assert space.shape is not None, "check_space lets only arrays through"
    rows = np.zeros((n_rows, *space.shape), space.dtype)
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        rows += space.start
    return np.clip(rows, space.low, space.high) if isinstance(space, (spaces.Box, StructuredHybrid)) else rows


def stacked_space(space: Space[Any], stack: int) -> Space[Any]:
    """Return the space of `stack` frames, on a new leading axis of every leaf other than the mask."""
    if stack == 1:
        return space
    if isinstance(space, spaces.Dict):
        children = space.spaces.items()
        return spaces.Dict({key: stacked_space(child, 1 if key == ACTION_MASK else stack) for key, child in children})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([stacked_space(child, stack) for child in space.spaces])
    if isinstance(space, spaces.Box):
        low, high = (np.repeat(bound[None], stack, axis=0) for bound in (space.low, space.high))
        return spaces.Box(low, high, dtype=space.dtype.type)
    if isinstance(space, spaces.Discrete):
        return spaces.MultiDiscrete(np.full(stack, space.n), dtype=space.dtype, start=np.full(stack, space.start))
    if isinstance(space, spaces.MultiDiscrete):
        nvec, start = (np.stack([numbers] * stack) for numbers in (space.nvec, space.start))
        return spaces.MultiDiscrete(nvec, dtype=space.dtype.type, start=start)
    assert isinstance(space, spaces.MultiBinary)
    return spaces.MultiBinary((stack, *space.shape))


def masked_space(space: Space[Any], action_space: Space[Any]) -> spaces.Dict:
    """Return `space` with an additional leaf `action_mask`, one bool per action."""
    mask = spaces.MultiBinary(_n_masked(action_space))
    inner = dict(space.spaces) if isinstance(space, spaces.Dict) else {"obs": space}
    if ACTION_MASK in inner:
        raise ConfigError(f"the observation space has a leaf {ACTION_MASK!r} already: leave mask_key out")
    return spaces.Dict({**inner, ACTION_MASK: mask})


def legal_actions(obs: Obs) -> NDArray[np.bool_] | None:
    """Return the mask [K, A] in an observation, None without one."""
    if isinstance(obs, dict) and ACTION_MASK in obs:
        mask: NDArray[Any] = obs[ACTION_MASK]
        return mask if mask.dtype == np.bool_ else mask != 0
    return None


def checked_legal(obs: Obs, env_ids: NDArray[np.intp] | None = None) -> NDArray[np.bool_] | None:
    """Return the mask [K, A] in an observation, None without one; raise for a row without a legal action."""
    if not isinstance(obs, dict) or ACTION_MASK not in obs:
        return None
    mask: NDArray[Any] = obs[ACTION_MASK]
    legal = mask if mask.dtype == np.bool_ else mask != 0
    check_mask(legal, env_ids)
    return legal


def check_mask(legal: NDArray[np.bool_], env_ids: NDArray[np.intp] | None) -> None:
    """Raise for a mask [K, A] with a row that allows no action."""
    any_legal = legal.any(axis=1)
    if not any_legal.all():
        row = int(np.flatnonzero(~any_legal)[0])
        env = row if env_ids is None else int(env_ids[row])
        raise NoLegalActionError(
            f"env {env} allows no action: its {ACTION_MASK} is all False; end the episode instead", env_id=env
        )


def random_legal(legal: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.int64]:
    """Sample one legal action per row [K, A], uniformly and independently."""
    drawn: NDArray[np.int64] = np.where(legal, rng.random(legal.shape), -1.0).argmax(axis=1)
    return drawn


def random_actions(
    space: Space[Any], obs: Obs, n_rows: int, rng: np.random.Generator, env_ids: NDArray[np.intp] | None = None
) -> NDArray[Any]:
    """Sample K actions uniformly from a space; with a mask, only legal ones.

    As in gymnasium, an unbounded Box axis is standard normal, one with a single bound exponential from there.
    """
    if isinstance(space, spaces.Discrete):
        legal = legal_actions(obs)
        if legal is not None:
            check_mask(legal, env_ids)
            return random_legal(legal, rng)
        return rng.integers(space.n, size=n_rows)
    if isinstance(space, spaces.MultiDiscrete):
        return (space.start + rng.integers(space.nvec, size=(n_rows, *space.shape))).astype(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return rng.integers(2, size=(n_rows, *space.shape), dtype=np.int8)
    if isinstance(space, spaces.Box):
        return _random_box(space, (n_rows, *space.shape), rng)
    if isinstance(space, StructuredHybrid):
        discrete, box = (random_actions(part, None, n_rows, rng) for part in (space.discrete, space.box))
        return space.join(discrete, box)
    raise ConfigError(f"random actions need a Discrete, MultiDiscrete, MultiBinary or Box space, got {space}")


def space_bounds(space: Space[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the lower and upper bound of each element of a leaf; single numbers if all are equal."""
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.Discrete):
        return np.array(int(space.start)), np.array(int(space.start) + int(space.n) - 1)
    if isinstance(space, spaces.MultiDiscrete):
        low = space.start.astype(np.int64)
        return low, low + space.nvec.astype(np.int64) - 1
    assert isinstance(space, spaces.MultiBinary), f"{space} is not checked, or has bounds of its own"
    return np.array(0), np.array(1)


def check_inside(subject: str, action: NDArray[Any], space: Space[Any]) -> None:
    """Raise `ConfigError` for actions [K, ...] outside the bounds of a Box; `Envs` checks all else about them."""
    if not isinstance(space, (spaces.Box, StructuredHybrid)) or action.shape[1:] != space.shape:
        return
    rows = action.astype(space.dtype, copy=False)
    outside = (rows < space.low) | (rows > space.high)
    if any_true(outside):
        k, *column = np.argwhere(outside)[0].tolist()
        low, high = (bound[tuple(column)] for bound in (space.low, space.high))
        raise ConfigError(
            f"{subject} must return actions inside {space}, got {rows[k, *column]} for [{low}, {high}] in row {k}: map "
            "policy units by self.action_scale.to_space(unit), which clips, or clip them"
        )


def leaf_spaces(space: Space[Any] | None) -> Any:
    """Return the leaves of a space, in the structure of its observations."""
    if isinstance(space, spaces.Dict):
        return {key: leaf_spaces(child) for key, child in space.spaces.items()}
    return tuple(map(leaf_spaces, space.spaces)) if isinstance(space, spaces.Tuple) else space


SMALLEST_IMAGE = 36  # pixels per side that NatureCNN needs
UNSCALED_REMEDY = (
    "return float32 from 0 to 1, or enlarge an image to 22 pixels a side, or give normalize_obs=True; if they are "
    "codes, say their largest value in the space"
)
_SMALLEST_OF_BYTES = 22  # pixels per side of uint8 from 0 to 255; below, such numbers may be codes, as MiniGrid's


def image_axes(space: Space[Any]) -> tuple[Sequence[int], int, int] | None:
    """Return (channel axes, height, width) of a uint8 image, stacked or not; None for any other space."""
    shape = space.shape
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or shape is None or len(shape) not in (2, 3, 4):
        return None
    for smallest in (SMALLEST_IMAGE, _SMALLEST_OF_BYTES):
        sides = [axis for axis, size in enumerate(shape) if size >= smallest]
        if len(sides) == 2 and (smallest == SMALLEST_IMAGE or _holds_bytes(space)):
            return [axis for axis in range(len(shape)) if axis not in sides], sides[0], sides[1]
    return None


def is_unscaled(space: Space[Any]) -> bool:
    """Return whether a leaf holds numbers from 0 to 255 that `Preprocess` does not scale, since it is no image."""
    return isinstance(space, spaces.Box) and _holds_bytes(space) and image_axes(space) is None


def _holds_bytes(space: spaces.Box) -> bool:
    return space.dtype == np.uint8 and bool((space.low == 0).all() and (space.high == 255).all())


def random_probability(space: Space[Any], obs: Obs, n_rows: int) -> NDArray[np.float64]:
    """Return the probability [K] of actions that `random_actions` sampled; raise for a Box."""
    if isinstance(space, spaces.Discrete):
        legal = legal_actions(obs)
        return np.full(n_rows, 1.0 / int(space.n)) if legal is None else 1.0 / legal.sum(axis=1)
    if isinstance(space, spaces.MultiDiscrete):
        return np.full(n_rows, 1.0 / math.prod(space.nvec.ravel().tolist()))
    if isinstance(space, spaces.MultiBinary):
        return np.full(n_rows, 0.5 ** math.prod(space.shape))
    raise ConfigError(f"random actions have probabilities in a Discrete, MultiDiscrete or MultiBinary, got {space}")


def _random_box(space: spaces.Box, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[Any]:
    if space.dtype.kind in "iu":
        bounds = space.low.astype(np.int64), space.high.astype(np.int64)
        return rng.integers(*bounds, size=shape, endpoint=True).astype(space.dtype)
    has_low, has_high = np.isfinite(space.low), np.isfinite(space.high)
    low: NDArray[Any] = np.where(has_low, space.low, 0.0)
    high: NDArray[Any] = np.where(has_high, space.high, 0.0)
    between = rng.uniform(np.minimum(low, high), np.maximum(low, high), shape)
    beyond = rng.standard_exponential(shape)
    one_sided = np.where(has_low, low + beyond, high - beyond)
    unbounded = rng.standard_normal(shape)
    drawn = np.where(has_low & has_high, between, np.where(has_low | has_high, one_sided, unbounded))
    return np.clip(drawn, space.low, space.high).astype(space.dtype)


MASK_REMEDY = (
    "number the joint actions in a wrapper, as docs/howto/action_masks.md shows, and return one bool for each; "
    "flattening the observation would make the mask a feature, and illegal actions would be taken"
)


def _n_masked(action_space: Space[Any]) -> int:
    """Return the number of actions of a mask."""
    if not isinstance(action_space, spaces.Discrete):
        raise ConfigError(f"an action mask needs a Discrete action space, got {action_space}: {MASK_REMEDY}")
    return int(action_space.n)


def space_to_plain(space: Space[Any]) -> dict[str, Any]:
    """Describe a supported space in JSON-compatible values."""
    structure = structure_of(space)
    if structure is not None:
        return {"kind": "flat actions", "nested": space_to_plain(structure.nested)}
    plain: dict[str, Any] = {"kind": type(space).__name__}
    if isinstance(space, spaces.Dict):
        return plain | {"spaces": [[key, space_to_plain(child)] for key, child in space.spaces.items()]}
    if isinstance(space, spaces.Tuple):
        return plain | {"spaces": [space_to_plain(child) for child in space.spaces]}
    plain |= {"shape": list(space.shape or ()), "dtype": np.dtype(space.dtype).str}
    if isinstance(space, spaces.Box):
        return plain | {"low": _plain_bound(space.low), "high": _plain_bound(space.high)}
    if isinstance(space, spaces.Discrete):
        return plain | {"n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return plain | {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
    assert isinstance(space, spaces.MultiBinary), f"{space} is not checked"
    return plain | {"n": int(space.n) if isinstance(space.n, (int, np.integer)) else list(space.shape)}


def space_from_plain(plain: Mapping[str, Any]) -> Space[Any]:
    """Return what `space_to_plain` described; raise LookupError, TypeError or ValueError for anything else.

    Raises:
        CheckpointError: the bounds of a Box would take more memory than `files.size_limit`.
    """
    kind = plain["kind"]
    if kind == "Dict":
        children = {_text(key): space_from_plain(child) for key, child in plain["spaces"]}
        if len(children) < len(plain["spaces"]):
            raise ValueError("a Dict has two spaces of one name")
        return spaces.Dict(children)
    if kind == "flat actions":
        return flat_actions(space_from_plain(plain["nested"]))
    if kind == "Tuple":
        return spaces.Tuple([space_from_plain(child) for child in plain["spaces"]])
    shape, dtype = tuple(map(_whole, plain["shape"])), np.dtype(_text(plain["dtype"]))
    if dtype.kind not in "biuf" or len(shape) > _MOST_AXES or min(shape, default=0) < 0:
        raise ValueError(f"a space has shape {shape!r:.80} and type {dtype}")
    if kind == "Box":
        check_declared("a space", math.prod(shape) * _BOX_BYTES * dtype.itemsize)
        low, high = (np.broadcast_to(np.asarray(plain[bound], dtype), shape) for bound in ("low", "high"))
        return spaces.Box(low, high, dtype=dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(_whole(plain["n"]), start=_whole(plain["start"]))
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(np.array(plain["nvec"]), dtype=dtype.type, start=np.array(plain["start"]))
    if kind == "MultiBinary":
        n = plain["n"]
        return spaces.MultiBinary(list(map(_whole, n)) if isinstance(n, list) else _whole(n))
    raise ValueError(f"unknown kind of space {kind!r:.80}")


_BOX_BYTES = 4  # times the bytes of one observation: two bounds, and what is computed from them
_MOST_AXES = 32


def _whole(number: Any) -> int:
    if type(number) is not int or abs(number) >= 2**63:
        raise TypeError(f"a space needs whole numbers, got {number!r:.80}")
    return number


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a space needs a name, got {value!r:.80}")
    return value


def _plain_bound(bound: NDArray[Any]) -> Any:
    """Return a single number if all bounds are equal, as those of images."""
    first = bound.flat[0]
    return first.item() if (bound == first).all() else bound.tolist()


USABLE_ACTIONS = "make them Discrete, MultiDiscrete, MultiBinary, or a Box of float32 or float64"


def count_actions(owner: str, space: Space[Any]) -> int:
    """Return the number of (joint) actions of a discrete space; raise for a Box, or for too many."""
    if not isinstance(space, spaces.Discrete):
        joint = joint_actions(owner, space)
        if joint is not None:
            return joint.n
        remedy = "use PPOPolicy or A2CPolicy"
        if isinstance(space, spaces.Box) and space.dtype not in (np.float32, np.float64):
            remedy = USABLE_ACTIONS
        elif isinstance(space, spaces.Box):
            remedy = "use SACPolicy, PPOPolicy or A2CPolicy, or make_envs(processors=[DiscretizeActions(...)])"
        raise SpaceMismatchError(
            f"{owner} needs a Discrete, MultiDiscrete or MultiBinary action space, got {space}: {remedy}"
        )
    if space.n > MOST_ACTIONS:
        raise SpaceMismatchError(
            f"{owner} gives each action a number of its own, and {space.n:,} are more than {MOST_ACTIONS:,}: let the "
            "environment take several choices (MultiDiscrete) or numbers (Box)"
        )
    return int(space.n)


MOST_JOINT_ACTIONS = 10_000
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
        self._leaves = list(named_leaf_spaces(nested, "the action space"))
        for path, leaf in self._leaves:
            _check_action_leaf(path, leaf)
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
        """Return the lower and upper bound of each column, [W] each."""
        lows, highs = zip(*(_bounds(leaf) for _, leaf in self._leaves), strict=True)
        return np.concatenate(lows), np.concatenate(highs)

    def unpack(self, rows: NDArray[Any]) -> Any:
        """Return flat rows as nested actions: [W] as one action, [K, W] as a tree of arrays [K, ...]."""
        lead = rows.shape[:-1]
        parts = (rows[..., own].reshape(lead + shape).astype(dtype) for own, shape, dtype in self._parts)
        return _nested(self.nested, parts)


class _FlatRows:
    """Base of spaces of flat rows, which are equal where their nested spaces are."""

    structure: ActionStructure

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self.structure.nested == other.structure.nested

    def __repr__(self) -> str:
        return f"flat {self.structure.nested}"


class StructuredMultiDiscrete(_FlatRows, spaces.MultiDiscrete):
    """Flat rows of a nested action space whose leaves are discrete."""

    def __init__(self, structure: ActionStructure) -> None:
        low, high = structure.bounds()
        super().__init__(high - low + 1, start=low)
        self.structure = structure


class StructuredBox(_FlatRows, spaces.Box):
    """Flat rows of a nested action space whose leaves are Boxes of floats."""

    def __init__(self, structure: ActionStructure) -> None:
        dtype = structure.float_dtype
        low, high = structure.bounds()
        super().__init__(low.astype(dtype), high.astype(dtype), dtype=dtype.type)
        self.structure = structure


class StructuredHybrid(_FlatRows, Space[NDArray[Any]]):
    """Flat rows of a nested action space with discrete leaves and float Boxes; discrete columns have integer values.

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
        """Return which discrete columns of rows [..., W] have a number outside of their leaf's space, [..., W]."""
        invalid: NDArray[np.bool_] = (rows < self.low) | (rows > self.high) | (rows != np.floor(rows))
        return invalid & self.structure.is_discrete

    def seed(self, seed: int | None = None) -> Any:
        """Seed the streams of both parts."""
        used = super().seed(seed)
        for part in (self.discrete, self.box):
            part.seed(int(self.np_random.integers(2**31)))
        return used

    def sample(self, mask: None = None, probability: None = None) -> NDArray[Any]:
        """Sample one row [W], discrete columns uniformly, the others as a Box does; masks raise, as in a Box."""
        return self.join(self.discrete.sample(), self.box.sample(mask, probability))

    def contains(self, x: Any) -> bool:
        """Return whether an array is one row: within the bounds, with integer values in discrete columns."""
        if not isinstance(x, np.ndarray) or x.shape != self.shape or not np.can_cast(x.dtype, self.low.dtype):
            return False
        return bool(np.all((x >= self.low) & (x <= self.high))) and not self.invalid_choices(x).any()


class ActionsFromZero:
    """Count the actions of a Discrete space, which may start anywhere, from 0.

    Args:
        nested: the Discrete space.
    """

    def __init__(self, nested: spaces.Discrete) -> None:
        self.nested = nested

    def pack(self, action: Any) -> NDArray[Any]:
        """Return the environment's actions, counted from 0."""
        return np.asarray(action) - int(self.nested.start)

    def unpack(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return actions that are counted from 0 as the environment's."""
        return rows + int(self.nested.start)


class DiscreteFromZero(spaces.Discrete):
    """Actions of a Discrete space that starts elsewhere, counted from 0."""

    def __init__(self, structure: ActionsFromZero) -> None:
        super().__init__(int(structure.nested.n))
        self.structure = structure


@checked
def flat_actions(space: Space[Any]) -> Space[Any]:
    """Return the space of actions as policies and buffers have them.

    It has flat rows for a Dict or Tuple, counts a Discrete space from 0, and is the space itself in all other cases.

    Raises:
        ConfigError: a leaf of a Dict or Tuple is neither discrete nor a Box of floats.
    """
    if isinstance(space, spaces.Discrete) and space.start != 0:
        return DiscreteFromZero(ActionsFromZero(space))
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        return space
    structure = ActionStructure(space)
    if structure.is_discrete.all():
        return StructuredMultiDiscrete(structure)
    return StructuredHybrid(structure) if structure.is_discrete.any() else StructuredBox(structure)


def structure_of(space: Space[Any] | None) -> ActionStructure | ActionsFromZero | None:
    """Return how actions of a space from `flat_actions` represent the environment's; None if they are the same."""
    return space.structure if isinstance(space, (_FlatRows, DiscreteFromZero)) else None


class JointActions:
    """Index all combinations of a MultiDiscrete or MultiBinary action, the last component varying fastest.

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
        self._strides = np.array([math.prod(counts[digit + 1 :]) for digit in range(len(counts))], np.int64)

    def numbers(self, action: NDArray[Any]) -> NDArray[np.int64]:
        """Return the index [K] of each action [K, ...] among all combinations."""
        digits = action.reshape(len(action), len(self._counts)).astype(np.int64) - self._low
        numbers: NDArray[np.int64] = digits @ self._strides
        return numbers

    @property
    def table(self) -> NDArray[Any]:
        """All actions [n, ...], by their index."""
        return self.actions(np.arange(self.n))

    def actions(self, numbers: NDArray[np.int64]) -> NDArray[Any]:
        """Return the actions [K, ...] of indices [K]."""
        digits: NDArray[np.int64] = numbers[:, None] // self._strides % self._counts + self._low
        return digits.reshape(len(numbers), *self._shape).astype(self._dtype)


def joint_actions(owner: str, space: Space[Any] | None) -> JointActions | None:
    """Return the joint actions of a MultiDiscrete or MultiBinary space, flat or nested; None for any other."""
    space = None if space is None else flat_actions(space)
    return JointActions(owner, space) if isinstance(space, (spaces.MultiDiscrete, spaces.MultiBinary)) else None


def _check_action_leaf(path: str, space: Space[Any]) -> None:
    """Raise for a leaf whose values a flat row cannot represent."""
    if isinstance(space, spaces.Box) and space.dtype not in (np.float32, np.float64):
        raise ConfigError(f"{path} is {space}: make it a Box of float32 or float64, or a MultiDiscrete")
    if not isinstance(space, (*_DISCRETE, spaces.Box)):
        raise ConfigError(
            f"{path} is a {type(space).__name__}: make it a Discrete, MultiDiscrete, MultiBinary or Box, or a Dict or "
            "Tuple of them"
        )


def _values(space: Space[Any], action: Any) -> Iterator[Any]:
    """Yield the leaves of a nested action in the order of the space's leaves."""
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
    """Return the smallest float type that represents all values of a Box, and of discrete leaves with one, exactly."""
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
    """Return the lower and upper bound of each element of a leaf, as flat arrays."""
    low, high = space_bounds(leaf)
    return np.broadcast_to(low, leaf.shape or ()).ravel(), np.broadcast_to(high, leaf.shape or ()).ravel()
