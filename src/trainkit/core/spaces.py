"""Gymnasium spaces: the supported ones, the arrays of a row, random actions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from trainkit.core.data import ACTION_MASK, ArraySpec, Obs
from trainkit.core.errors import ConfigError, NoLegalActionError, SpaceMismatchError
from trainkit.core.reading import check_declared
from trainkit.core.structured_actions import StructuredHybrid, flat_actions, joint_actions, structure_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Spaces:
    """The two spaces of one environment, without an environment."""

    observation_space: Space[Any]
    action_space: Space[Any]

    @classmethod
    def of(cls, envs: Any) -> "Spaces":
        """Take them from anything that has them; a nested action space as that of its flat rows."""
        check_spaces(envs.observation_space, envs.action_space)
        return cls(observation_space=envs.observation_space, action_space=flat_actions(envs.action_space))

    def to_plain(self) -> list[Any]:
        """Describe both in values that JSON keeps."""
        return [space_to_plain(self.observation_space), space_to_plain(self.action_space)]

    @classmethod
    def from_plain(cls, plain: Sequence[Any]) -> "Spaces":
        """Read what `to_plain` described."""
        observation_space, action_space = map(space_from_plain, plain)
        return cls(observation_space=observation_space, action_space=action_space)


class ToldSpaces:
    """Base of classes that may know the spaces of one environment."""

    spaces: Spaces | None

    @property
    def observation_space(self) -> Space[Any]:
        """Space of one environment; raises where it is unknown."""
        return self._known_spaces.observation_space

    @property
    def action_space(self) -> Space[Any]:
        """Space of one environment; raises where it is unknown."""
        return self._known_spaces.action_space

    @property
    def _known_spaces(self) -> Spaces:
        if self.spaces is None:
            raise ConfigError(
                f"{type(self).__name__} was not told the spaces of its rows: give it spaces=envs when it is made"
            )
        return self.spaces


MOST_ACTIONS = 1_000_000  # a head of 512 features for as many takes 2 GB, and four times that with Adam

_LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def check_space(space: Space[Any], name: str) -> None:
    """Refuse a space whose rows are no arrays of one shape, or that holds nothing."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)) and not space.spaces:
        raise ConfigError(f"{name} is an empty {type(space).__name__}: there is nothing to see in it")
    if isinstance(space, spaces.Dict):
        check_space_keys(space, name)
        for key, child in space.spaces.items():
            check_space(child, f"{name}[{key!r}]")
        return
    if isinstance(space, spaces.Tuple):
        for position, child in enumerate(space.spaces):
            check_space(child, f"{name}[{position}]")
        return
    if not isinstance(space, _LEAVES):
        raise ConfigError(
            f"{name} is a {type(space).__name__}, which has no fixed array of numbers per step: wrap the environment "
            "so that it gives Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of them "
            "(for MiniGrid: ImgObsWrapper or FlatObsWrapper)"
        )
    if isinstance(space, spaces.Box):
        if space.dtype == np.object_ or 0 in space.shape:
            raise ConfigError(f"{name} must be a Box of numbers with no empty axis, got {space}")
        if bool(np.all(space.low == space.high)):
            raise ConfigError(f"{name} has equal bounds everywhere, so it can only hold one value, got {space}")


def check_space_keys(space: Space[Any] | None, name: str) -> None:
    """Raise if a key of a Dict, or of one inside, is not a string: it could be saved and not found again."""
    if isinstance(space, spaces.Dict):
        for key, child in space.spaces.items():
            if not isinstance(key, str):
                raise ConfigError(f"{name} must have strings as keys, got {key!r}: rename it to {str(key)!r}")
            check_space_keys(child, f"{name}[{key!r}]")
    elif isinstance(space, spaces.Tuple):
        for position, child in enumerate(space.spaces):
            check_space_keys(child, f"{name}[{position}]")


def check_spaces(observation_space: Space[Any], action_space: Space[Any]) -> None:
    """Raise for spaces that an environment may have and a collector does not support."""
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
    """Return K rows of a space as near to zero as it allows, masks that allow everything."""
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
    """Return the mask [K, A] in an observation, None where there is none."""
    if isinstance(obs, dict) and ACTION_MASK in obs:
        mask: NDArray[Any] = obs[ACTION_MASK]
        return mask if mask.dtype == np.bool_ else mask != 0
    return None


def checked_legal(obs: Obs, env_ids: NDArray[np.intp] | None = None) -> NDArray[np.bool_] | None:
    """Return the mask [K, A] in an observation, None where there is none; raise for a row that allows nothing."""
    if not isinstance(obs, dict) or ACTION_MASK not in obs:
        return None
    mask: NDArray[Any] = obs[ACTION_MASK]
    legal = mask if mask.dtype == np.bool_ else mask != 0
    refuse_empty_mask(legal, env_ids)
    return legal


def refuse_empty_mask(legal: NDArray[np.bool_], env_ids: NDArray[np.intp] | None) -> None:
    """Raise for a mask [K, A] one of whose rows allows nothing."""
    any_legal = legal.any(axis=1)
    if not any_legal.all():
        row = int(np.flatnonzero(~any_legal)[0])
        env = row if env_ids is None else int(env_ids[row])
        raise NoLegalActionError(
            f"env {env} allows no action: its {ACTION_MASK} is all False; end the episode instead", env_id=env
        )


def random_legal(legal: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw one legal action per row [K, A], uniformly, each row by a draw of its own."""
    drawn: NDArray[np.int64] = np.where(legal, rng.random(legal.shape), -1.0).argmax(axis=1)
    return drawn


def random_actions(
    space: Space[Any], obs: Obs, n_rows: int, rng: np.random.Generator, env_ids: NDArray[np.intp] | None = None
) -> NDArray[Any]:
    """Draw K actions uniformly from a space, legal ones where masked.

    As in gymnasium, an unbounded Box axis is standard normal, one with a single bound exponential from there.
    """
    if isinstance(space, spaces.Discrete):
        legal = legal_actions(obs)
        if legal is not None:
            refuse_empty_mask(legal, env_ids)
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


def discrete_bounds(space: Space[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the least and the largest action of a space of whole numbers."""
    if isinstance(space, spaces.Discrete):
        return np.array(int(space.start)), np.array(int(space.start) + int(space.n) - 1)
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    assert isinstance(space, spaces.MultiBinary), f"{space} is not checked, or has bounds of its own"
    return np.array(0), np.array(1)


def leaf_spaces(space: Space[Any]) -> Any:
    """Return the leaves of a space, in the structure of its observations."""
    if isinstance(space, spaces.Dict):
        return {key: leaf_spaces(child) for key, child in space.spaces.items()}
    return tuple(map(leaf_spaces, space.spaces)) if isinstance(space, spaces.Tuple) else space


def random_probability(space: Space[Any], obs: Obs, n_rows: int) -> NDArray[np.float64]:
    """Return how likely each of K actions [K] of `random_actions` was; a Box has densities and is rejected."""
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


def _n_masked(action_space: Space[Any]) -> int:
    """Return the number of actions of a mask."""
    if not isinstance(action_space, spaces.Discrete):
        raise ConfigError(f"an action mask needs a Discrete action space, got {action_space}")
    return int(action_space.n)


def space_to_plain(space: Space[Any]) -> dict[str, Any]:
    """Describe a supported space in values that JSON keeps."""
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
    """Read what `space_to_plain` described; raise LookupError, TypeError or ValueError where it is no such thing.

    Raises:
        CheckpointError: the bounds of a Box would take more memory than `reading.size_limit`.
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
    """Return one number where all are equal: images have thousands."""
    first = bound.flat[0]
    return first.item() if (bound == first).all() else bound.tolist()


def count_actions(owner: str, space: Space[Any]) -> int:
    """Return the number of actions, joint ones of a MultiDiscrete or MultiBinary; raise for a Box, or too many."""
    if not isinstance(space, spaces.Discrete):
        joint = joint_actions(owner, space)
        if joint is not None:
            return joint.n
        remedy = ": use PPOPolicy or A2CPolicy" if isinstance(flat_actions(space), StructuredHybrid) else ""
        raise SpaceMismatchError(
            f"{owner} needs a Discrete, MultiDiscrete or MultiBinary action space, got {space}{remedy}"
        )
    if space.n > MOST_ACTIONS:
        raise SpaceMismatchError(
            f"{owner} gives each action a number of its own, and {space.n:,} are more than {MOST_ACTIONS:,}: let the "
            "environment take several choices (MultiDiscrete) or numbers (Box)"
        )
    return int(space.n)
