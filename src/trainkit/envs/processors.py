"""Ready processors: what was done and got before, actions of another kind, a clock, functions of your own."""

import functools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from trainkit.core.data import ACTION_MASK, Obs
from trainkit.core.errors import Checks, ConfigError, SpaceMismatchError
from trainkit.core.signatures import checked
from trainkit.core.spaces import zeros_of
from trainkit.core.structured_actions import StructuredHybrid
from trainkit.envs.backends import Ids
from trainkit.envs.processing import Processor, try_out

_MOST_ACTIONS = 65_536  # rows of the table of combinations


@checked
class PreviousStep(Processor):
    """Let the policy see what it did last and what came of it, in leaves `prev_action` and `prev_reward`.

    An observation that is no dict becomes the leaf "obs". At an episode's start the reward is 0 and the action none:
    one more than the last of a discrete space, zeros of a Box.

    Args:
        action: with `prev_action`.
        reward: with `prev_reward` [1], float32.
    """

    def __init__(self, *, action: bool = True, reward: bool = True) -> None:
        if not (action or reward):
            raise ConfigError("PreviousStep shows neither action nor reward: leave it out")
        self._shows_action, self._shows_reward = action, reward

    def bind(self, observation_space: Space[Any], action_space: Space[Any], n: int) -> tuple[Space[Any], Space[Any]]:
        leaves: dict[str, Space[Any]] = {}
        if self._shows_action:
            leaves["prev_action"], self._none = _with_none(action_space)
        if self._shows_reward:
            leaves["prev_reward"] = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        return _space_beside(observation_space, leaves), action_space

    def begin(self, obs: Obs, env_ids: Ids) -> Obs:
        n_rows = len(env_ids)
        leaves: dict[str, NDArray[Any]] = {}
        if self._shows_action:
            leaves["prev_action"] = np.repeat(self._none[None], n_rows, axis=0)
        if self._shows_reward:
            leaves["prev_reward"] = np.zeros((n_rows, 1), np.float32)
        return _beside(obs, leaves)

    def observe(self, obs: Obs, action: NDArray[Any], reward: NDArray[np.float64], env_ids: Ids) -> Obs:
        leaves: dict[str, NDArray[Any]] = {}
        if self._shows_action:
            leaves["prev_action"] = action.astype(self._none.dtype)
        if self._shows_reward:
            leaves["prev_reward"] = reward.astype(np.float32)[:, None]
        return _beside(obs, leaves)


@checked
class TimeFeature(Processor):
    """Let the policy see how much of an episode's time is over, 0 to 1, in a leaf `time` [1] (Pardo et al., 2018).

    Args:
        limit: the steps after which episodes are truncated.
    """

    def __init__(self, limit: int) -> None:
        checks = Checks("TimeFeature")
        checks.integer("limit", limit, low=1)
        checks.done()
        self._limit = limit

    def bind(self, observation_space: Space[Any], action_space: Space[Any], n: int) -> tuple[Space[Any], Space[Any]]:
        self._steps = np.zeros(n, np.int64)  # [N], of the episode that runs
        return _space_beside(observation_space, {"time": spaces.Box(0.0, 1.0, (1,), np.float32)}), action_space

    def begin(self, obs: Obs, env_ids: Ids) -> Obs:
        self._steps[env_ids] = 0
        return self._seen(obs, env_ids)

    def observe(self, obs: Obs, action: NDArray[Any], reward: NDArray[np.float64], env_ids: Ids) -> Obs:
        if len(env_ids) == len(self._steps):
            self._steps += 1
        else:
            self._steps[env_ids] += 1
        return self._seen(obs, env_ids)

    def _seen(self, obs: Obs, env_ids: Ids) -> Obs:
        steps = self._steps if len(env_ids) == len(self._steps) else self._steps[env_ids]
        share = np.minimum(steps / self._limit, 1.0)
        return _beside(obs, {"time": share.astype(np.float32)[:, None]})


@checked
class DiscretizeActions(Processor):
    """Let a policy with Discrete actions act in a bounded Box: every combination of evenly spaced values is an action.

    The bounds are among the values. The last axis of the Box varies fastest: with 3 values on each of two axes, action
    1 is the least of the first and the middle of the second.

    Args:
        bins: values per axis, or one number for each in the Box's order, at least 2.
    """

    def __init__(self, bins: int | Sequence[int]) -> None:
        checks = Checks("DiscretizeActions")
        for count in bins if isinstance(bins, Sequence) else [bins]:
            checks.integer("bins", count, low=2)
        checks.done()
        self._bins = bins

    def bind(self, observation_space: Space[Any], action_space: Space[Any], n: int) -> tuple[Space[Any], Space[Any]]:
        if not isinstance(action_space, spaces.Box) or action_space.dtype.kind != "f":
            raise SpaceMismatchError(f"DiscretizeActions needs a Box of real numbers to act in, got {action_space}")
        if not action_space.is_bounded():
            raise SpaceMismatchError(f"DiscretizeActions needs bounds to space its values between, got {action_space}")
        low, high = action_space.low.ravel(), action_space.high.ravel()
        counts = list(self._bins) if isinstance(self._bins, Sequence) else [self._bins] * len(low)
        n_actions = math.prod(counts)
        checks = Checks("DiscretizeActions")
        told = f".bins must be one number per axis of {action_space}, got {self._bins}"
        checks.require(len(counts) == len(low), told)
        told = f" makes {n_actions:,} actions of {counts}, more than {_MOST_ACTIONS:,}: take fewer bins"
        checks.require(n_actions <= _MOST_ACTIONS, told)
        checks.done()
        values = [np.linspace(*axis, dtype=np.float64) for axis in zip(low, high, counts, strict=True)]
        table = np.stack(np.meshgrid(*values, indexing="ij"), axis=-1).reshape(n_actions, *action_space.shape)
        self._table: NDArray[Any] = table.astype(action_space.dtype)  # [A, ...]
        return observation_space, spaces.Discrete(n_actions)

    def act(self, action: NDArray[Any], env_ids: Ids) -> NDArray[Any]:
        mapped: NDArray[Any] = self._table[action]
        return mapped


@checked
class MapActions(Processor):
    """Let the policy act in `space`; the environments take `fn(action)`, in a Box clipped to its bounds.

    Args:
        fn: from the policy's actions [K, ...] to the environments'; tried on blank rows at once.
        space: of one action of the policy.
    """

    def __init__(self, fn: Callable[[NDArray[Any]], NDArray[Any]], space: Space[Any]) -> None:
        _refuse_no_function("MapActions", fn, space)
        self._fn, self._space = fn, space

    def bind(self, observation_space: Space[Any], action_space: Space[Any], n: int) -> tuple[Space[Any], Space[Any]]:
        try_out(f"MapActions.fn ({_name(self._fn)})", self._fn, self._space, action_space, gives="actions")
        return observation_space, self._space

    def act(self, action: NDArray[Any], env_ids: Ids) -> NDArray[Any]:
        return self._fn(action)


@checked
class MapObs(Processor):
    """Let the policy see `fn(obs)`, of `space`.

    Args:
        fn: from observations [K, ...], or a tree of them, to others; tried on blank rows at once.
        space: of one observation of its making.
    """

    def __init__(self, fn: Callable[[Obs], Obs], space: Space[Any]) -> None:
        _refuse_no_function("MapObs", fn, space)
        self._fn, self._space = fn, space

    def bind(self, observation_space: Space[Any], action_space: Space[Any], n: int) -> tuple[Space[Any], Space[Any]]:
        try_out(f"MapObs.fn ({_name(self._fn)})", self._fn, observation_space, self._space, gives="observations")
        return self._space, action_space

    def begin(self, obs: Obs, env_ids: Ids) -> Obs:
        return self._fn(obs)

    def observe(self, obs: Obs, action: NDArray[Any], reward: NDArray[np.float64], env_ids: Ids) -> Obs:
        return self._fn(obs)


@checked
class Flatten(Processor):
    """Let the policy see one float32 vector: Box leaves as they are, a 0 or 1 per value of discrete ones.

    Leaves follow each other by the names of their keys; the mask stays a leaf of its own. A policy's `Preprocess` has
    nothing left to do with such a vector.
    """

    def bind(self, observation_space: Space[Any], action_space: Space[Any], n: int) -> tuple[Space[Any], Space[Any]]:
        leaves = dict(_leaves(observation_space))
        mask = leaves.pop((ACTION_MASK,), None)
        self._has_mask = mask is not None
        self._parts = [_part(path, leaf) for path, leaf in leaves.items()]
        bounds = [_flat_bounds(leaf) for leaf in leaves.values()]
        low, high = (np.concatenate(side).astype(np.float32) for side in zip(*bounds, strict=True))
        flat = spaces.Box(low, high, dtype=np.float32)
        return flat if mask is None else spaces.Dict({"obs": flat, ACTION_MASK: mask}), action_space

    def begin(self, obs: Obs, env_ids: Ids) -> Obs:
        flat = np.concatenate([part(obs) for part in self._parts], axis=1, dtype=np.float32)
        return {"obs": flat, ACTION_MASK: obs[ACTION_MASK]} if self._has_mask else flat

    def observe(self, obs: Obs, action: NDArray[Any], reward: NDArray[np.float64], env_ids: Ids) -> Obs:
        return self.begin(obs, env_ids)


def _leaves(space: Space[Any], *path: str | int) -> Iterator[tuple[tuple[str | int, ...], Space[Any]]]:
    """Yield (path, leaf) of a space's leaves, those of a dict by the names of their keys."""
    if isinstance(space, spaces.Dict):
        children: Iterable[tuple[str | int, Space[Any]]] = sorted(space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        children = enumerate(space.spaces)
    else:
        yield path, space
        return
    for key, child in children:
        yield from _leaves(child, *path, key)


def _flat_bounds(space: Space[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the least and the largest numbers that a leaf becomes."""
    if isinstance(space, spaces.Box):
        return space.low.ravel(), space.high.ravel()
    n_numbers = _part((), space)(zeros_of(space)).shape[1]
    return np.zeros(n_numbers), np.ones(n_numbers)


def _part(path: tuple[str | int, ...], space: Space[Any]) -> Callable[[Obs], NDArray[Any]]:
    """Return what turns one leaf [K, ...] of observations into numbers [K, F]."""
    at = _leaf_at(path)
    if isinstance(space, spaces.Discrete):
        values = np.arange(space.start, space.start + space.n)
        return lambda obs: at(obs)[:, None] == values
    if isinstance(space, spaces.MultiDiscrete):
        places = np.repeat(np.arange(space.nvec.size), space.nvec.flat)  # of each number that comes out
        values = np.concatenate(
            [first + np.arange(n) for first, n in zip(space.start.flat, space.nvec.flat, strict=True)]
        )
        return lambda obs: (leaf := at(obs)).reshape(len(leaf), -1)[:, places] == values
    return at if len(space.shape or ()) == 1 else lambda obs: (leaf := at(obs)).reshape(len(leaf), -1)


def _leaf_at(path: tuple[str | int, ...]) -> Callable[[Obs], NDArray[Any]]:
    """Return what reads one leaf of observations."""
    if len(path) == 1:
        return operator.itemgetter(path[0])
    return lambda obs: functools.reduce(operator.getitem, path, obs)


def _with_none(space: Space[Any]) -> tuple[Space[Any], NDArray[Any]]:
    """Return a space of actions that has one for "none", and that one."""
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n) + 1, start=int(space.start)), np.array(space.start + space.n, space.dtype)
    if isinstance(space, spaces.Box):
        low, high = np.minimum(space.low, 0), np.maximum(space.high, 0)
        return spaces.Box(low, high, dtype=space.dtype.type), np.zeros(space.shape, space.dtype)
    if isinstance(space, spaces.MultiDiscrete):
        start, nvec = space.start, space.nvec
    elif isinstance(space, StructuredHybrid):
        raise SpaceMismatchError(
            f'PreviousStep has no value for "no action yet" in {space}: use PreviousStep(action=False), or let the '
            "environment observe its last action"
        )
    else:
        assert isinstance(space, spaces.MultiBinary), "check_spaces lets no other action space through"
        start, nvec = np.zeros(space.shape, np.int64), np.full(space.shape, 2)
    return spaces.MultiDiscrete(nvec + 1, start=start), (start + nvec).astype(np.int64)


def _space_beside(space: Space[Any], leaves: Mapping[str, Space[Any]]) -> spaces.Dict:
    inner = dict(space.spaces) if isinstance(space, spaces.Dict) else {"obs": space}
    taken = sorted(inner.keys() & leaves)
    if taken:
        raise ConfigError(f"the observation has {', '.join(taken)} already: leave one of the two out")
    return spaces.Dict({**inner, **leaves})


def _beside(obs: Obs, leaves: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    return {**(obs if isinstance(obs, dict) else {"obs": obs}), **leaves}


def _refuse_no_function(owner: str, fn: object, space: object) -> None:
    checks = Checks(owner)
    checks.require(callable(fn), f".fn must be callable, got {fn!r}")
    checks.require(isinstance(space, Space), f".space must be a gymnasium space, got {space!r}")
    checks.done()


def _name(fn: object) -> str:
    return str(getattr(fn, "__name__", type(fn).__name__))
