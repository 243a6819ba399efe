"""Processors: transformations of observations and actions between the environments and the policy.

`make_envs(processors=[...])` applies them in order, the first nearest to the environments. They change what a policy
observes and does, and what is stored; stacking of frames and the mask of `mask_key` come after them.
"""

import copy
import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import ArrayLike, NDArray

from trainkit.core.data import ACTION_MASK, Obs
from trainkit.core.errors import BadEnvDataError, CheckpointError, Checks, ConfigError, SpaceMismatchError
from trainkit.core.signatures import checked
from trainkit.core.spaces import StructuredHybrid, array_specs, check_spaces, flat_actions, space_bounds, zeros_of
from trainkit.core.stats import Summary, SummaryBuilder, merge_groups
from trainkit.envs.backends import (
    AroundBackend,
    Backend,
    Begun,
    EachOptions,
    Failure,
    Ids,
    Players,
    RawStep,
    Seeds,
    Work,
)

_MAX_ACTIONS = 65_536  # of `DiscretizeActions`: rows of its table of combinations


@checked
class Processor:
    """A transformation between environments and policy: override the methods for what it changes.

    Arrays that come in are borrowed: return them unchanged or return others, never change them in place. Rows belong to
    distinct environments, `env_ids` [K], with K >= 1. Keep state per environment in arrays [N] that `bind` creates and
    `begin` resets; return what outlives an episode from `state_dict`. Anything learned belongs in a policy's
    `preprocess`, which is saved with its weights.

    Attributes:
        agents: the names of the rows of a game, in order, from `bind` on; empty where an environment has one agent.
    """

    agents: tuple[str, ...] = ()
    _players: Players | None = None  # set by the collector

    _logged: dict[str, SummaryBuilder] | None = None  # since they were taken

    def bind(self, observation_space: Space[Any], action_space: Space[Any], n: int) -> tuple[Space[Any], Space[Any]]:
        """Receive the spaces of one of N environments; return those of the policy."""
        return observation_space, action_space

    def begin(self, obs: Obs, env_ids: Ids) -> Obs:
        """Transform the first observations [K, ...] of episodes."""
        return obs

    def observe(self, obs: Obs, action: NDArray[Any], reward: NDArray[np.float64], env_ids: Ids) -> Obs:
        """Transform the observations [K, ...] after a step, including episodes' final ones.

        `action` [K, ...] led there, as `act` received it, with `reward` [K].
        """
        return obs

    def act(self, action: NDArray[Any], env_ids: Ids) -> NDArray[Any]:
        """Transform the policy's actions [K, ...] into those of the environments."""
        return action

    def around(self, backend: Backend) -> Backend:
        """Return a backend with this processor applied."""
        return Processed(backend, self)

    def log(self, name: str, values: ArrayLike) -> None:
        """Add a number, or an array of any shape, to the statistics of the collect, from `begin`, `observe` or `act`.

        `stats.train.processors[name]` summarizes all numbers logged under a name since the last report, or in the
        epoch, and `train/processors/name/mean` is its tag; in an evaluation `test/processors/name/mean`. Processors
        that log under the same name share it.

        Raises:
            ConfigError: the name is empty, or a number is not finite.
        """
        numbers = np.array(values, np.float64).ravel()
        if not (isinstance(name, str) and name):
            raise ConfigError(f"Processor.log needs a name, got {name!r}")
        if not np.isfinite(numbers).all():
            raise ConfigError(f"Processor.log needs finite numbers for {name!r}, got {values!r}: leave them out")
        if self._logged is None:
            self._logged = {}
        if len(numbers):
            self._logged.setdefault(name, SummaryBuilder()).add(numbers)

    def players(self, env_ids: Ids) -> list[str]:
        """Return the name of the policy that controls each of these rows [K]; "" of an only policy."""
        return [""] * len(env_ids) if self._players is None else self._players(env_ids)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs; running episodes are replayed or replaced."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""


@checked
class PreviousStep(Processor):
    """Add the previous action and reward to the observation, as leaves `prev_action` and `prev_reward`.

    An observation that is no dict becomes the leaf "obs". At an episode's start the reward is 0 and the action is
    "none": one more than the last action of a discrete space, zeros of a Box.

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
        self._none: NDArray[Any] = np.zeros(())
        if self._shows_action:
            leaves["prev_action"], self._none = _with_none(action_space)
        if self._shows_reward:
            leaves["prev_reward"] = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        return _extended_space(observation_space, leaves), action_space

    def begin(self, obs: Obs, env_ids: Ids) -> Obs:
        return self._extended(obs, np.repeat(self._none[None], len(env_ids), axis=0), np.zeros(len(env_ids)))

    def observe(self, obs: Obs, action: NDArray[Any], reward: NDArray[np.float64], env_ids: Ids) -> Obs:
        return self._extended(obs, action, reward)

    def _extended(self, obs: Obs, action: NDArray[Any], reward: NDArray[np.float64]) -> Obs:
        leaves: dict[str, NDArray[Any]] = {}
        if self._shows_action:
            leaves["prev_action"] = action.astype(self._none.dtype)
        if self._shows_reward:
            leaves["prev_reward"] = reward.astype(np.float32)[:, None]
        return _extended(obs, leaves)


@checked
class AgentId(Processor):
    """Add which agent observes, as a leaf `agent` [A], one-hot: what agents need to act differently by one policy."""

    def bind(self, observation_space: Space[Any], action_space: Space[Any], n: int) -> tuple[Space[Any], Space[Any]]:
        if not self.agents:
            raise ConfigError("AgentId needs games of several agents, and these environments have one: leave it out")
        self._rows = np.eye(len(self.agents), dtype=np.float32)
        return _extended_space(
            observation_space, {"agent": spaces.Box(0.0, 1.0, (len(self.agents),), np.float32)}
        ), action_space

    def begin(self, obs: Obs, env_ids: Ids) -> Obs:
        return _extended(obs, {"agent": self._rows[env_ids % len(self.agents)]})

    def observe(self, obs: Obs, action: NDArray[Any], reward: NDArray[np.float64], env_ids: Ids) -> Obs:
        return self.begin(obs, env_ids)


@checked
class TimeFeature(Processor):
    """Add the elapsed share of an episode's time limit, 0 to 1, as a leaf `time` [1] (Pardo et al., 2018).

    Args:
        limit: the steps after which episodes are truncated.
    """

    def __init__(self, limit: int) -> None:
        with Checks("TimeFeature") as checks:
            checks.integer("limit", limit, low=1)
        self._limit = limit

    def bind(self, observation_space: Space[Any], action_space: Space[Any], n: int) -> tuple[Space[Any], Space[Any]]:
        self._steps = np.zeros(n, np.int64)  # [N], of the running episodes
        return _extended_space(observation_space, {"time": spaces.Box(0.0, 1.0, (1,), np.float32)}), action_space

    def begin(self, obs: Obs, env_ids: Ids) -> Obs:
        self._steps[env_ids] = 0
        return self._extended(obs, env_ids)

    def observe(self, obs: Obs, action: NDArray[Any], reward: NDArray[np.float64], env_ids: Ids) -> Obs:
        self._steps[env_ids] += 1
        return self._extended(obs, env_ids)

    def _extended(self, obs: Obs, env_ids: Ids) -> Obs:
        share = np.minimum(self._steps[env_ids] / self._limit, 1.0)
        return _extended(obs, {"time": share.astype(np.float32)[:, None]})


@checked
class DiscretizeActions(Processor):
    """Let a policy with Discrete actions act in a bounded Box: every combination of evenly spaced values is an action.

    The bounds are among the values. The last axis of the Box varies fastest: with 3 values on each of two axes, action
    1 is the least of the first and the middle of the second.

    Args:
        bins: values per axis, or one number for each in the Box's order, at least 2.
    """

    def __init__(self, bins: int | Sequence[int]) -> None:
        with Checks("DiscretizeActions") as checks:
            for count in bins if isinstance(bins, Sequence) else [bins]:
                checks.integer("bins", count, low=2)
        self._bins = bins

    def bind(self, observation_space: Space[Any], action_space: Space[Any], n: int) -> tuple[Space[Any], Space[Any]]:
        if not isinstance(action_space, spaces.Box) or action_space.dtype.kind != "f":
            raise SpaceMismatchError(f"DiscretizeActions needs a Box of real numbers to act in, got {action_space}")
        if not action_space.is_bounded():
            raise SpaceMismatchError(f"DiscretizeActions needs bounds to space its values between, got {action_space}")
        low, high = action_space.low.ravel(), action_space.high.ravel()
        counts = list(self._bins) if isinstance(self._bins, Sequence) else [self._bins] * len(low)
        n_actions = math.prod(counts)
        if len(counts) != len(low):
            raise ConfigError(f"DiscretizeActions.bins must be one number per axis of {action_space}, got {self._bins}")
        if n_actions > _MAX_ACTIONS:
            raise ConfigError(
                f"DiscretizeActions makes {n_actions:,} actions of {counts}, more than {_MAX_ACTIONS:,}: use fewer bins"
            )
        values = [np.linspace(*axis, dtype=np.float64) for axis in zip(low, high, counts, strict=True)]
        table = np.stack(np.meshgrid(*values, indexing="ij"), axis=-1).reshape(n_actions, *action_space.shape)
        self._table: NDArray[Any] = table.astype(action_space.dtype)  # [A, ...]
        return observation_space, spaces.Discrete(n_actions)

    def act(self, action: NDArray[Any], env_ids: Ids) -> NDArray[Any]:
        mapped: NDArray[Any] = self._table[action]
        return mapped


@checked
class MapActions(Processor):
    """Let the policy act in `space`; the environments receive `fn(action)`, clipped to the bounds of a Box.

    Args:
        fn: from the policy's actions [K, ...] to the environments'; called once with zeros to check it.
        space: of one action of the policy; of a Dict or Tuple, `fn` receives `flat_actions` [K, W].
    """

    def __init__(self, fn: Callable[[NDArray[Any]], NDArray[Any]], space: Space[Any]) -> None:
        _check_function("MapActions", fn, space)
        self._fn, self._space = fn, _flat_if_nested(space)

    def bind(self, observation_space: Space[Any], action_space: Space[Any], n: int) -> tuple[Space[Any], Space[Any]]:
        def check(result: Any, n_rows: int) -> None:
            _valid_actions("it gives actions", np.asarray(result), action_space, n_rows)

        _call_with_zeros("MapActions.fn", self._fn, self._space, action_space, check)
        return observation_space, self._space

    def act(self, action: NDArray[Any], env_ids: Ids) -> NDArray[Any]:
        return self._fn(action)


@checked
class MapObs(Processor):
    """Let the policy observe `fn(obs)`, of `space`.

    Args:
        fn: from observations [K, ...], or a tree of them, to others; called once with zeros to check it.
        space: of one observation that it returns.
    """

    def __init__(self, fn: Callable[[Obs], Obs], space: Space[Any]) -> None:
        _check_function("MapObs", fn, space)
        self._fn, self._space = fn, space

    def bind(self, observation_space: Space[Any], action_space: Space[Any], n: int) -> tuple[Space[Any], Space[Any]]:
        check = functools.partial(_check_obs, array_specs(self._space))
        _call_with_zeros("MapObs.fn", self._fn, observation_space, self._space, check)
        return self._space, action_space

    def begin(self, obs: Obs, env_ids: Ids) -> Obs:
        return self._fn(obs)

    def observe(self, obs: Obs, action: NDArray[Any], reward: NDArray[np.float64], env_ids: Ids) -> Obs:
        return self._fn(obs)


@checked
class Flatten(Processor):
    """Flatten the observation into one float32 vector, with discrete leaves as one-hot vectors.

    Leaves follow each other in the order of their keys; the action mask remains a leaf of its own. A policy's
    `Preprocess` leaves such a vector unchanged.
    """

    def bind(self, observation_space: Space[Any], action_space: Space[Any], n: int) -> tuple[Space[Any], Space[Any]]:
        leaves = dict(_space_leaves(observation_space))
        mask = leaves.pop((ACTION_MASK,), None)
        self._has_mask = mask is not None
        self._encoders = [_leaf_encoder(path, leaf) for path, leaf in leaves.items()]
        bounds = [_encoded_bounds(leaf) for leaf in leaves.values()]
        low, high = (np.concatenate(side).astype(np.float32) for side in zip(*bounds, strict=True))
        flat = spaces.Box(low, high, dtype=np.float32)
        return flat if mask is None else spaces.Dict({"obs": flat, ACTION_MASK: mask}), action_space

    def begin(self, obs: Obs, env_ids: Ids) -> Obs:
        flat = np.concatenate([encode(obs) for encode in self._encoders], axis=1, dtype=np.float32)
        return {"obs": flat, ACTION_MASK: obs[ACTION_MASK]} if self._has_mask else flat

    def observe(self, obs: Obs, action: NDArray[Any], reward: NDArray[np.float64], env_ids: Ids) -> Obs:
        return self.begin(obs, env_ids)


class Processed(AroundBackend):
    """A backend with a processor applied.

    It works on a copy of the processor: evaluation environments share no state with training environments.
    """

    source = " (through its processors)"

    def __init__(self, inner: Backend, processor: Processor) -> None:
        super().__init__(inner)
        self._position: int = 1 + inner._position if isinstance(inner, Processed) else 0
        self._name = f"processors[{self._position}] ({type(processor).__name__})"
        self._processor = copy.deepcopy(processor)
        self._processor.agents = self.agents
        self.agent_views = {}  # of rows as they are before
        self._open: NDArray[Any] | None = None  # [N, ...], the last actions of rows that are not complete
        self.observation_space, self.action_space = self._bound(inner.observation_space, inner.action_space)
        self._obs_specs = array_specs(self.observation_space)
        self._overridden = {
            method
            for method in ("begin", "observe", "act")
            if getattr(getattr(self._processor, method), "__func__", None) is not getattr(Processor, method)
        }

    def _bound(self, obs_space: Space[Any], action_space: Space[Any]) -> tuple[Space[Any], Space[Any]]:
        """Return the spaces above the processor."""
        try:
            above: Any = self._processor.bind(obs_space, action_space, self.n)
        except ConfigError as error:
            raise ConfigError(f"make_envs.{self._name}: {error}") from error
        except Exception as error:
            raise ConfigError(f"make_envs.{self._name} raised {type(error).__name__} in bind: {error}") from error
        is_pair = isinstance(above, tuple) and len(above) == 2
        if not is_pair or not all(isinstance(space, Space) for space in above):
            raise ConfigError(
                f"make_envs.{self._name}.bind must return an observation space and an action space, got {above!r}"
            )
        check_spaces(*above)
        return above[0], _flat_if_nested(above[1])

    def use_players(self, players: Players) -> None:
        """Give processors the function that returns which policy controls a row."""
        self._processor._players = players
        self.inner.use_players(players)

    def reset(self, seeds: Seeds, options: EachOptions) -> Begun:
        return self._begun(self.inner.reset(seeds, options))

    def begin(self, env_ids: Ids, seeds: Seeds, options: EachOptions) -> Begun | None:
        begun = self.inner.begin(env_ids, seeds, options)
        return None if begun is None else self._begun(begun)

    def step(self, action: NDArray[Any], env_ids: Ids, work: Work) -> RawStep:
        start = time.perf_counter()
        below = self._act(action, env_ids)
        self.spent.action += time.perf_counter() - start
        raw = self.inner.step(below, env_ids, work)
        if raw.env_ids is not env_ids:
            action = self._completed(action, env_ids, raw.env_ids)
        start = time.perf_counter()
        next_obs = self._transform("observe", raw.next_obs, action, raw.reward, raw.env_ids)
        self.spent.obs += time.perf_counter() - start
        begun = None if raw.begun is None else self._begun(raw.begun)
        return raw._replace(next_obs=next_obs, begun=begun)

    def take_metrics(self) -> dict[str, Summary]:
        """Return what the processors logged since the last call, by name."""
        logged, self._processor._logged = self._processor._logged, None
        below = self.inner.take_metrics()
        if logged is None:
            return below
        return merge_groups([below, {name: builder.summary() for name, builder in logged.items()}])

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the state of every processor, in order."""
        return [*self.inner.state_dict(), self._processor.state_dict()]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Restore saved states."""
        if len(states) != self._position + 1:
            raise CheckpointError(
                f"{len(states)} processors were saved, but there are {self._position + 1}: make_envs as before"
            )
        *below, own = states
        self.inner.load_state_dict(below)
        self._processor.load_state_dict(own)

    def _begun(self, begun: Begun) -> Begun:
        start = time.perf_counter()
        obs = self._transform("begin", begun.obs, begun.env_ids)
        self.spent.obs += time.perf_counter() - start
        return begun._replace(obs=obs)

    def _act(self, action: NDArray[Any], env_ids: Ids) -> NDArray[Any]:
        """Return the processor's actions, checked against the action space below."""
        below = self.inner.action_space
        if len(env_ids) == 0:  # every environment is being reset by this step
            empty: NDArray[Any] = zeros_of(below, 0)
            return empty
        result: object = self._call("act", action, env_ids)
        if result is action:
            return action
        return _valid_actions(f"{self._name} gave actions", np.asarray(result), below, len(env_ids))

    def _completed(self, action: NDArray[Any], env_ids: Ids, completed: Ids) -> NDArray[Any]:
        """Keep the actions [K, ...] that were received, and return those that led to the completed rows."""
        if self._open is None:
            self._open = np.zeros((self.n, *action.shape[1:]), action.dtype)
        self._open[env_ids] = action
        return self._open[completed]

    def _transform(self, method: str, obs: Obs, *others: Any) -> Obs:
        """Return the processor's observations, checked against its space; the last argument is `env_ids`."""
        n_rows = len(others[-1])
        if n_rows == 0:
            return zeros_of(self.observation_space, 0)
        result = self._call(method, obs, *others)
        if result is not obs:
            try:
                _check_obs(self._obs_specs, result, n_rows)
            except ValueError as error:
                raise Failure(None, f"{self._name} gave {error}", BadEnvDataError) from None
        return result

    def _call(self, method: str, value: Any, *others: Any) -> Any:
        """Call a method of the processor, if it overrides it."""
        if method not in self._overridden:
            return value
        try:
            return getattr(self._processor, method)(value, *others)
        except Exception as error:
            raise Failure(None, f"{self._name} raised {type(error).__name__} in {method}: {error}") from error


def _flat_if_nested(space: Space[Any]) -> Space[Any]:
    """Return the space of flat rows of a nested action space; any other one is unchanged."""
    return flat_actions(space) if isinstance(space, (spaces.Dict, spaces.Tuple)) else space


# ---- validation ----


def _check_function(owner: str, fn: object, space: object) -> None:
    with Checks(owner) as checks:
        checks.require(callable(fn), f".fn must be callable, got {fn!r}")
        checks.require(isinstance(space, Space), f".space must be a gymnasium space, got {space!r}")


def _call_with_zeros(
    name: str, fn: Callable[[Any], Any], space: Space[Any], result_space: Space[Any], check: Callable[[Any, int], None]
) -> None:
    """Call a user's function with three rows of zeros and check what it returns.

    Raises:
        ConfigError: it raises, or its result does not fit.
    """
    name = f"{name} ({getattr(fn, '__name__', type(fn).__name__)})"
    try:
        result = fn(zeros_of(space, 3))
    except Exception as error:
        raise ConfigError(f"{name} raised {type(error).__name__} on blank rows of {space}: {error}") from error
    try:
        check(result, 3)
    except (Failure, ValueError) as error:
        raise ConfigError(f"{name} does not fit {result_space}: {error}") from None


def _valid_actions(subject: str, action: NDArray[Any], space: Space[Any], n_rows: int) -> NDArray[Any]:
    """Return valid actions for the layer below, the numbers of a Box clipped to its bounds; raise for any other."""
    shape = (n_rows, *(space.shape or ()))
    if action.shape != shape:
        raise Failure(None, f"{subject} of shape {action.shape}, {space} needs {shape}", BadEnvDataError)
    if isinstance(space, (spaces.Box, StructuredHybrid)):
        if action.dtype.kind not in "biuf" or not np.isfinite(action).all():
            raise Failure(None, f"{subject} {action!r} for {space}: they must be finite numbers", BadEnvDataError)
        if isinstance(space, StructuredHybrid) and space.invalid_choices(action).any():
            raise Failure(None, f"{subject} {action!r}, which {space} does not have", BadEnvDataError)
        clipped: NDArray[Any] = np.clip(action, space.low, space.high).astype(space.dtype, copy=False)
        return clipped
    low, high = space_bounds(space)
    if action.dtype.kind not in "biu" or ((action < low) | (action > high)).any():
        raise Failure(None, f"{subject} {action!r}, which {space} does not have", BadEnvDataError)
    return action


def _check_obs(specs: Any, obs: Any, n_rows: int, path: str = "") -> None:
    """Raise a ValueError if K rows differ from their specs; `Envs` checks that they are finite."""
    if isinstance(specs, dict):
        if not isinstance(obs, dict) or obs.keys() != specs.keys():
            got = sorted(obs) if isinstance(obs, dict) else type(obs).__name__
            raise ValueError(f"observations{path} with keys {got}, its space says {sorted(specs)}")
        for key, spec in specs.items():
            _check_obs(spec, obs[key], n_rows, f"{path}[{key!r}]")
    elif isinstance(specs, tuple):
        if not isinstance(obs, tuple) or len(obs) != len(specs):
            raise ValueError(f"observations{path} {type(obs).__name__}, its space says a tuple of {len(specs)}")
        for index, (spec, child) in enumerate(zip(specs, obs, strict=True)):
            _check_obs(spec, child, n_rows, f"{path}[{index}]")
    elif type(obs) is not np.ndarray or obs.shape != (n_rows, *specs.shape) or obs.dtype != specs.dtype:
        got = f"{obs.dtype} {obs.shape}" if isinstance(obs, np.ndarray) else type(obs).__name__
        raise ValueError(f"observations{path} {got}, its space says {specs.dtype} {(n_rows, *specs.shape)}")


# ---- leaves of spaces and observations ----


def _extended_space(space: Space[Any], leaves: Mapping[str, Space[Any]]) -> spaces.Dict:
    inner = dict(space.spaces) if isinstance(space, spaces.Dict) else {"obs": space}
    existing = sorted(inner.keys() & leaves)
    if existing:
        raise ConfigError(f"the observation has {', '.join(existing)} already: leave one of the two out")
    return spaces.Dict({**inner, **leaves})


def _extended(obs: Obs, leaves: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    return {**(obs if isinstance(obs, dict) else {"obs": obs}), **leaves}


def _with_none(space: Space[Any]) -> tuple[Space[Any], NDArray[Any]]:
    """Return an action space with an additional value for "no action yet", and that value."""
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


def _space_leaves(space: Space[Any], *path: str | int) -> Iterator[tuple[tuple[str | int, ...], Space[Any]]]:
    """Yield (path, leaf) of a space's leaves, those of a dict sorted by key."""
    if isinstance(space, spaces.Dict):
        children: Iterable[tuple[str | int, Space[Any]]] = sorted(space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        children = enumerate(space.spaces)
    else:
        yield path, space
        return
    for key, child in children:
        yield from _space_leaves(child, *path, key)


def _leaf_encoder(path: tuple[str | int, ...], space: Space[Any]) -> Callable[[Obs], NDArray[Any]]:
    """Return a function from observations to one leaf of theirs, encoded as numbers [K, F]."""

    def leaf_of(obs: Obs) -> NDArray[Any]:
        leaf = obs
        for key in path:
            leaf = leaf[key]
        rows: NDArray[Any] = leaf.reshape(len(leaf), -1)
        return rows

    if isinstance(space, spaces.Discrete):
        values = np.arange(space.start, space.start + space.n)
        return lambda obs: leaf_of(obs) == values
    if isinstance(space, spaces.MultiDiscrete):
        columns = np.repeat(np.arange(space.nvec.size), space.nvec.flat)  # [F]
        pairs = zip(space.start.flat, space.nvec.flat, strict=True)
        values = np.concatenate([start + np.arange(n) for start, n in pairs])
        return lambda obs: leaf_of(obs)[:, columns] == values
    return leaf_of


def _encoded_bounds(space: Space[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the bounds of an encoded leaf."""
    if isinstance(space, spaces.Box):
        return space.low.ravel(), space.high.ravel()
    n_numbers = _leaf_encoder((), space)(zeros_of(space, 1)).shape[1]
    return np.zeros(n_numbers), np.ones(n_numbers)
