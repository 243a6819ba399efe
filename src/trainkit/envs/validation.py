"""Validation of environment steps: the policy's actions before one, and everything environments return.

ActionValidator   shape, kind and range of actions, before any environment receives them
RowReader         API, shapes and dtypes of what environments return, while it is copied into arrays
StepValidator     values in these arrays: finite numbers, ranges, action masks, lives
"""

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from trainkit.core import tree
from trainkit.core.data import ACTION_MASK, ArraySpec, Obs, any_true, is_finite
from trainkit.core.errors import BadEnvDataError, ConfigError, EnvError, NoLegalActionError
from trainkit.core.spaces import (
    StructuredHybrid,
    array_specs,
    flat_actions,
    leaf_spaces,
    legal_actions,
    masked_space,
    space_bounds,
)
from trainkit.envs.backends import MISREAD, Begun, Column, Failure, Ids, Infos, ListInfos, RawStep, Take

_log = logging.getLogger(__name__)
_API = "trainkit uses the Gymnasium API (>= 0.26)"
_UNSIGNED = np.dtype(np.uint64)
_BOUNDS_EVERY = 1_000  # steps and resets between two comparisons of observations with their Box's bounds

Where = Callable[[int], str]  # (env_id) -> its episode, step, action and seed, for messages


_REMEDY_OF_NAN = ": look for a division by zero in the environment, or let a wrapper replace the value"


def _error_of(
    bad: NDArray[np.bool_], values: NDArray[Any], env_ids: Ids, what: str, where: Where, remedy: str = ""
) -> BadEnvDataError:
    """Return an error that names the first bad value of [K, ...]: its environment, index, episode and step."""
    at = np.argwhere(bad)[0]
    env_id = int(env_ids[at[0]])
    index = f" at index {tuple(at[1:].tolist())}" if len(at) > 1 else ""
    return BadEnvDataError(
        f"env {env_id}: {what} {values[tuple(at)]}{index}, at {where(env_id)}{remedy}", env_id=env_id
    )


# ---- actions ----


class ActionValidator:
    """Check a policy's actions, and convert them to the environments' own; a Discrete space is counted from 0.

    Attributes:
        space: of one environment as the policy sees it.
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        self._first = int(space.start) if isinstance(space, gym.spaces.Discrete) else 0
        space = flat_actions(space)
        self.space: gym.Space[Any] = space
        self._shape = space.shape or ()
        self._hybrid = space if isinstance(space, StructuredHybrid) else None
        self._box = space if isinstance(space, gym.spaces.Box) else self._hybrid  # has floats, and bounds for each
        if self._box is None:
            low, high = space_bounds(space)
            self._low = low.astype(np.int64) if np.any(low) else None
            self._span = np.asarray(high - low, _UNSIGNED)

    def convert(self, action: NDArray[Any], env_ids: Ids, where: Where) -> NDArray[Any]:
        """Convert the policy's actions [K, ...] to the environments' own; in a Box they are clipped to its bounds.

        Raises:
            EnvError: shape or dtype do not match the space.
            BadEnvDataError: an action is not finite, or not in the space.
        """
        if len(action) != len(env_ids) or action.shape[1:] != self._shape:
            raise EnvError(
                f"the policy produced actions of shape {action.shape} for {len(env_ids)} environments of "
                f"{self.space}: it must be {(len(env_ids), *self._shape)}"
            )
        if self._box is not None:
            if action.dtype.kind == "f" and not is_finite(action):
                raise _error_of(~np.isfinite(action), action, env_ids, "the policy produced action", where)
            outside = None if self._hybrid is None else self._hybrid.invalid_choices(action)
        elif action.dtype.kind in "biu":
            above = action if self._low is None else action.astype(np.int64, copy=False) - self._low
            outside = above.astype(_UNSIGNED) > self._span  # negative numbers become huge
        else:
            raise EnvError(f"the policy produced {action.dtype} actions for {self.space}: make them whole numbers")
        if outside is not None and any_true(outside):
            what = f"the policy produced an action outside {self.space}:"
            raise _error_of(outside, action, env_ids, what, where)
        if self._box is not None:
            clipped: NDArray[Any] = np.clip(action, self._box.low, self._box.high)
            return clipped
        return action + self._first if self._first else action


# ---- what environments return: API, shapes, dtypes ----


class RowReader:
    """Copy what environments return into arrays, strictly: the shapes and dtypes of the space, or an error.

    Every error is a TypeError or ValueError whose text follows "env i ", which the caller adds.

    Args:
        space: of one observation.
        warn: called once when floats are cast, with a text of three placeholders: path, dtype and the space's dtype.

    Attributes:
        specs: of one observation, leaf by leaf.
    """

    def __init__(self, space: gym.Space[Any], warn: Callable[..., object] = _log.warning) -> None:
        self.specs = self._specs = array_specs(space)
        is_one = isinstance(self._specs, ArraySpec)
        self._one_array = (self._specs.shape, self._specs.dtype) if is_one else (None, None)  # of an observation
        self._warn, self._has_warned = warn, False

    def read_steps(self, env_ids: Ids, take: Take) -> RawStep:
        """Read the results of steps of single environments [K]; each is copied before the next step."""
        n_rows, (shape, dtype) = len(env_ids), self._one_array
        next_obs = self.empty(n_rows)
        reward = np.empty(n_rows, np.float64)
        terminated, truncated = np.empty(n_rows, np.bool_), np.empty(n_rows, np.bool_)
        infos: list[dict[str, Any]] = [{}] * n_rows
        failures: dict[int, Failure] = {}
        for row, env_id in enumerate(env_ids.tolist()):
            try:
                obs, gain, ends, cuts, infos[row] = self.unpack_step(take(row, env_id))
                if type(obs) is np.ndarray and obs.shape == shape and obs.dtype == dtype:
                    next_obs[row] = obs  # as `write` would, without a call for each row
                else:
                    self.write(next_obs, row, obs)
                reward[row] = gain if type(gain) is float else self.reward(gain)
                terminated[row] = ends if type(ends) is bool else self.flag("terminated", ends)
                truncated[row] = cuts if type(cuts) is bool else self.flag("truncated", cuts)
            except Failure as failure:
                failures[env_id] = failure.without_frames()
            except MISREAD as error:
                failures[env_id] = Failure(env_id, str(error), BadEnvDataError)
        over = terminated | truncated
        raw = RawStep(env_ids, next_obs, reward, terminated, truncated, over, ListInfos(infos), None, failures)
        return raw.without(np.array(sorted(failures))) if failures else raw

    def read_resets(self, env_ids: Ids, take: Take) -> Begun:
        """Read the results of resets of single environments [K]."""
        obs = self.empty(len(env_ids))
        infos: list[dict[str, Any]] = [{}] * len(env_ids)
        failures: dict[int, Failure] = {}
        for row, env_id in enumerate(env_ids.tolist()):
            try:
                first, infos[row] = self.unpack_reset(take(row, env_id))
                self.write(obs, row, first)
            except Failure as failure:
                failures[env_id] = failure.without_frames()
            except MISREAD as error:
                failures[env_id] = Failure(env_id, str(error), BadEnvDataError)
        begun = Begun(env_ids, obs, ListInfos(infos), failures)
        return begun.without(np.array(sorted(failures))) if failures else begun

    def empty(self, n_rows: int) -> Obs:
        """Return arrays for K observations."""
        return tree.map_tree(lambda spec: np.empty((n_rows, *spec.shape), spec.dtype), self._specs)

    def write(self, rows: Obs, row: int, obs: Obs, *, specs: Any = None, path: str = "") -> None:
        """Copy one observation, or the part of it at `path`, into its row."""
        specs = self._specs if specs is None else specs
        if isinstance(specs, ArraySpec):
            fits = type(obs) is np.ndarray and obs.shape == specs.shape and obs.dtype == specs.dtype
            rows[row] = obs if fits else self._cast(specs, _shaped(specs, obs, path), path)
        elif isinstance(specs, dict):
            _check_children(specs, obs, path)
            for key, spec in specs.items():
                self.write(rows[key], row, obs[key], specs=spec, path=f"{path}[{key!r}]")
        else:
            _check_children(specs, obs, path)
            for position, spec in enumerate(specs):
                self.write(rows[position], row, obs[position], specs=spec, path=f"{path}[{position}]")

    def rows(self, obs: Obs, n: int, env_ids: Ids, *, specs: Any = None, path: str = "") -> Obs:
        """Copy K of N rows from a vector environment, which may overwrite its arrays at the next step."""
        specs = self._specs if specs is None else specs
        if isinstance(specs, ArraySpec):
            column, shape = np.asarray(obs), (n, *specs.shape)
            if column.shape != shape:
                raise ValueError(f"returned observations{path} of shape {column.shape}, the space says {shape}")
            column = self._cast(specs, column, path)
            return np.array(column) if len(env_ids) == n else column.take(env_ids, axis=0)
        _check_children(specs, obs, path)
        if isinstance(specs, dict):
            return {key: self.rows(obs[key], n, env_ids, specs=specs[key], path=f"{path}[{key!r}]") for key in specs}
        return tuple(
            self.rows(obs[position], n, env_ids, specs=spec, path=f"{path}[{position}]")
            for position, spec in enumerate(specs)
        )

    def unpack_step(self, result: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Return a step's five values."""
        if isinstance(result, tuple) and len(result) == 5:
            if isinstance(result[4], dict):
                return result
            raise TypeError(f"returned info {result[4]!r} from step, which is not a dict: {_API}")
        raise TypeError(f"returned {_kind(result)} from step, not (obs, reward, terminated, truncated, info): {_API}")

    def unpack_reset(self, result: Any) -> tuple[Any, dict[str, Any]]:
        """Return a reset's two values."""
        if isinstance(result, tuple) and len(result) == 2:
            if isinstance(result[1], dict):
                return result
            raise TypeError(f"returned info {result[1]!r} from reset, which is not a dict: {_API}")
        raise TypeError(f"returned {_kind(result)} from reset, not (obs, info): {_API}")

    def reward(self, reward: Any) -> float:
        """Read a reward: any number, or an array of one."""
        if isinstance(reward, (int, float, np.integer, np.floating, np.bool_)):
            try:
                return float(reward)
            except OverflowError:
                text = f"returned a reward of {int(reward).bit_length()} bits, which is too large for a float"
                raise TypeError(text) from None
        if isinstance(reward, np.ndarray) and reward.size == 1 and reward.dtype.kind in "biuf":
            return float(reward.reshape(()))
        has_one = callable(getattr(reward, "item", None)) and math.prod(getattr(reward, "shape", (0,))) == 1
        remedy = ": return reward.item()" if has_one else ""
        raise TypeError(f"returned reward {reward!r}, which is not a number{remedy}")

    def rewards(self, reward: Any, n: int) -> NDArray[np.float64]:
        """Read the rewards of N environments."""
        column = np.asarray(reward)
        if column.shape != (n,) or column.dtype.kind not in "biuf":
            raise TypeError(f"returned rewards {column.dtype} {column.shape}, not {n} numbers")
        return column.astype(np.float64, copy=False)

    def flag(self, name: str, value: Any) -> bool:
        """Read a flag: a bool, numpy's, or 0 or 1."""
        if isinstance(value, (np.bool_, int, np.integer)) and value in (0, 1):
            return bool(value)
        raise TypeError(f"returned {name} = {value!r}, which is not a bool")

    def flags(self, name: str, values: Any, n: int) -> NDArray[np.bool_]:
        """Read one flag of N environments."""
        column = np.asarray(values)
        if column.shape != (n,):
            raise ValueError(f"returned {name} of shape {column.shape}, not {n} bools")
        if column.dtype != np.bool_:
            return np.array([self.flag(name, value) for value in column.tolist()], np.bool_)
        return column

    def _cast(self, spec: ArraySpec, array: NDArray[Any], path: str) -> NDArray[Any]:
        """Return an array in the space's dtype: floats are rounded, with one warning; integers must fit."""
        if array.dtype == spec.dtype:
            return array
        if array.dtype.kind not in "biuf":
            raise TypeError(f"returned observation{path} of dtype {array.dtype}, the space says {spec.dtype}")
        if spec.dtype.kind == "f":
            if array.dtype.kind == "f" and not self._has_warned:
                self._warn("observation%s is %s and is cast to the space's %s", path, array.dtype, spec.dtype)
                self._has_warned = True
            with np.errstate(over="ignore"):  # infinity is rejected later, with its environment
                return array.astype(spec.dtype)
        with np.errstate(invalid="ignore"):
            cast = array.astype(spec.dtype)
        if not (cast == array).all():
            raise ValueError(f"returned observation{path} {array!r}, which does not fit the space's {spec.dtype}")
        return cast


def _check_children(specs: Any, obs: Any, path: str) -> None:
    """Raise a ValueError unless an observation is a dict with the keys of its space, or a tuple of the same length."""
    if isinstance(specs, dict):
        if not isinstance(obs, dict) or obs.keys() != specs.keys():
            got = sorted(obs) if isinstance(obs, dict) else type(obs).__name__
            raise ValueError(f"returned observation{path} with keys {got}, the space says {sorted(specs)}")
    elif not isinstance(obs, (tuple, list)) or len(obs) != len(specs):
        raise ValueError(f"returned observation{path} {obs!r}, the space says a tuple of {len(specs)}")


def _shaped(spec: ArraySpec, obs: Any, path: str) -> NDArray[Any]:
    array = np.asarray(obs)
    if array.shape != spec.shape:
        raise ValueError(f"returned observation{path} of shape {array.shape}, the space says {spec.shape}")
    return array


def _kind(result: Any) -> str:
    """Describe what was returned instead of a tuple of a certain length; a list is not a tuple to Gymnasium either."""
    if isinstance(result, tuple):
        return f"{len(result)} values"
    if isinstance(result, list):
        return f"a list of {len(result)} values"
    return type(result).__name__


# ---- what environments return: values ----


class Ranges:
    """Lower and upper bounds of the leaves of observations that are of one kind of space.

    Attributes:
        leaves: (path, space, low, high) of each.
    """

    def __init__(self, space: gym.Space[Any], *kinds: type[gym.Space[Any]]) -> None:
        named = tree.named_leaves(leaf_spaces(space))
        self.leaves = [(path, leaf, *space_bounds(leaf)) for path, leaf in named if isinstance(leaf, kinds)]

    def outside(self, obs: Obs) -> tuple[str, gym.Space[Any], NDArray[Any], NDArray[np.bool_]] | None:
        """Return name, space, values and mask of the first leaf [K, ...] with values out of range, or None."""
        leaves = dict(tree.named_leaves(obs))
        for path, space, low, high in self.leaves:
            is_outside = (leaves[path] < low) | (leaves[path] > high)
            if is_outside.any():
                return _leaf_name(path), space, leaves[path], is_outside
        return None

    def describe_outside(self, obs: Mapping[str, NDArray[Any]]) -> str | None:
        """Describe the first value of leaves {path: [K, ...]} that is out of range: leaf, index, value and range."""
        for path, _, low, high in self.leaves:
            if path not in obs:
                continue
            found = np.argwhere((obs[path] < low) | (obs[path] > high))
            if len(found):
                row, *index = found[0].tolist()
                where = f" at {index}" if index else ""
                least, most = (np.broadcast_to(bound, obs[path].shape[1:])[tuple(index)] for bound in (low, high))
                value = obs[path][(row, *index)]
                return f"{_leaf_name(path)}{where} is {value:g}, outside its bounds {least:g} to {most:g}"
        return None


DISCRETE = gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary  # of which each value is checked


class StepValidator:
    """Check the values that N environments returned, and put action masks into the observations.

    Args:
        space: of one observation.
        action_space: of one action.
        mask_key: of the info that holds the legal actions.
        lives_key: of the info that counts lives.
        source: of the observations, for messages: "" or " (through its processors)".

    Attributes:
        frame_space: of one observation with the mask in.
        lives_key: of the info that counts lives; None where they are not counted.
    """

    def __init__(
        self,
        space: gym.Space[Any],
        action_space: gym.Space[Any],
        *,
        mask_key: str | None = None,
        lives_key: str | None = None,
        source: str = "",
    ) -> None:
        self._mask_key, self.lives_key, self._source = mask_key, lives_key, source
        self._discrete, self._boxes = Ranges(space, *DISCRETE), Ranges(space, gym.spaces.Box)
        self._n_checks, self._has_warned = 0, False
        self._is_bare = not isinstance(space, gym.spaces.Dict)  # whether a mask needs a dict around the rest
        self._n_actions = int(action_space.n) if isinstance(action_space, gym.spaces.Discrete) else 0
        self.frame_space: gym.Space[Any] = space if mask_key is None else masked_space(space, action_space)

    def check_step(self, raw: RawStep, lives: NDArray[np.int64], where: Where) -> tuple[Obs, NDArray[Any] | None]:
        """Return the frames of a step [K, ...], and the lives left [K] if they are counted.

        Args:
            raw: the step.
            lives: before the step [N].
            where: describes where an environment stands.

        Raises:
            BadEnvDataError: a value is not valid.
            NoLegalActionError: an episode is truncated where no action is legal, so there is no value to bootstrap.
        """
        env_ids = raw.env_ids
        if not is_finite(raw.reward):
            raise _error_of(~np.isfinite(raw.reward), raw.reward, env_ids, "returned reward", where, _REMEDY_OF_NAN)
        frame = self.frames(raw.next_obs, raw.infos, env_ids, where)
        if any_true(raw.truncated):
            _check_bootstrap(frame, raw.truncated & ~raw.terminated, env_ids, where)
        if self.lives_key is None:
            return frame, None
        counts = raw.infos.column(self.lives_key)
        if any_true(raw.over):  # ale-py's SAME_STEP does not return an episode's last info: no life was lost there
            known = zip(counts, lives[env_ids], raw.over, strict=True)
            counts = [before if ended and count is None else count for count, before, ended in known]
        return frame, self._lives(counts, env_ids, where)

    def check_first(self, begun: Begun, where: Where) -> tuple[Obs, NDArray[Any] | None]:
        """Return the first frames of episodes [K, ...], and the lives [K] if they are counted."""
        frame = self.frames(begun.obs, begun.infos, begun.env_ids, where)
        if self.lives_key is None:
            return frame, None
        return frame, self._lives(begun.infos.column(self.lives_key), begun.env_ids, where)

    def frames(self, obs: Obs, infos: Infos, env_ids: Ids, where: Where) -> Obs:
        """Return checked single frames [K, ...] including the mask."""
        for leaf in tree.leaves(obs):
            if leaf.dtype.kind == "f" and not is_finite(leaf):
                raise self._not_finite(obs, env_ids, where)
        if self._discrete.leaves:
            outside = self._discrete.outside(obs)
            if outside is not None:
                name, space, values, bad = outside
                raise _error_of(bad, values, env_ids, f"returned{self._source} {name} outside {space}:", where)
        self._n_checks += 1
        if self._n_checks % _BOUNDS_EVERY == 1 and not self._has_warned:
            self._compare_with_bounds(obs)
        if self._mask_key is None:
            return obs
        rule = f"info[{self._mask_key!r}] must be {self._n_actions} bools, one per action"
        masks, shape = infos.column(self._mask_key), (self._n_actions,)
        legal: NDArray[np.bool_] = _read_infos(rule, masks, env_ids, where, shape=shape, kinds="biu") != 0
        inner = {"obs": obs} if self._is_bare else obs
        return {**inner, ACTION_MASK: legal.astype(np.int8)}

    def _lives(self, counts: Column, env_ids: Ids, where: Where) -> NDArray[Any]:
        rule = f"info[{self.lives_key!r}] must be a whole number"
        return _read_infos(rule, counts, env_ids, where, shape=(), kinds="iu")

    def _not_finite(self, obs: Obs, env_ids: Ids, where: Where) -> BadEnvDataError:
        """Return an error that names the first value that is not finite, of the first leaf that has one."""
        floats = [(path, leaf) for path, leaf in tree.named_leaves(obs) if leaf.dtype.kind == "f"]
        path, leaf = next((path, leaf) for path, leaf in floats if not is_finite(leaf))
        return _error_of(
            ~np.isfinite(leaf), leaf, env_ids, f"returned{self._source} {_leaf_name(path)}", where, _REMEDY_OF_NAN
        )

    def _compare_with_bounds(self, obs: Obs) -> None:
        """Warn once about a value outside its Box; it is no error, since many environments declare wrong bounds."""
        outside = self._boxes.outside(obs)
        if outside is None:
            return
        self._has_warned = True
        name, space, values, bad = outside
        at = tuple(np.argwhere(bad)[0].tolist())
        low, high = space_bounds(space)
        _log.warning(
            "%s is %s%s, and the space says [%s, %s]: widen the space's bounds, or nothing may rely on them",
            *(name, values[at], f" at index {at[1:]}" if len(at) > 1 else "", low[at[1:]], high[at[1:]]),
        )


def _leaf_name(path: str) -> str:
    return f"observation[{path}]" if path else "observation"


def _check_bootstrap(frame: Obs, is_cut: NDArray[np.bool_], env_ids: Ids, where: Where) -> None:
    """Raise `NoLegalActionError` where an episode is truncated [K] in an observation whose mask allows no action."""
    legal = legal_actions(frame)
    if legal is None:
        return
    bad = is_cut & ~legal.any(axis=1)
    if any_true(bad):
        env_id = int(env_ids[bad.argmax()])
        raise NoLegalActionError(
            f"env {env_id} truncated an episode in an observation that allows no action, so it has no value to "
            f"bootstrap from: its {ACTION_MASK} is all False; return terminated=True, or leave one legal, at "
            f"{where(env_id)}",
            env_id=env_id,
        )


def _read_infos(
    rule: str, values: Column, env_ids: Ids, where: Where, *, shape: tuple[int, ...], kinds: str
) -> NDArray[Any]:
    """Return the values of one key of K infos as [K, *shape], of a dtype of these kinds; raise if one is missing.

    Raises:
        BadEnvDataError: a value does not match `rule`, the first part of the message.
    """
    column = _as_array(values) if len(env_ids) else np.empty((0, *shape), np.int64)
    if column.shape == (len(env_ids), *shape) and column.dtype.kind in kinds:
        return column
    must = f"{rule}, in every reset and step, got"
    for env_id, value in zip(env_ids.tolist(), map(_as_array, values), strict=True):
        if value.shape != shape or value.dtype.kind not in kinds:
            what = f"{value.dtype} {value.shape} at {where(env_id)}"
            raise BadEnvDataError(f"env {env_id}: {must} {what}", env_id=env_id)
    raise BadEnvDataError(f"{must} {values!r}")  # each is valid, but not together


def _as_array(values: Any) -> NDArray[Any]:
    """Join the values of K infos to one array, which is empty if their lengths differ."""
    if isinstance(values, np.ndarray) and values.dtype == np.object_:
        values = values.tolist()
    try:
        return np.asarray(values)
    except ValueError:
        return np.empty(0)


def check_rendered(frames: list[Any], env_ids: Ids) -> list[NDArray[np.uint8]]:
    """Return rendered frames [height, width, 3]; raise if they are invalid.

    Raises:
        ConfigError: an environment was not made to render arrays.
    """
    for env_id, frame in zip(env_ids.tolist(), frames, strict=True):
        is_image = isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.ndim == 3
        if not (is_image and frame.shape[2] == 3):
            got = f"{frame.dtype} {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
            raise ConfigError(
                f"env {env_id} must render uint8 arrays [height, width, 3], got {got}: make it with "
                'make_envs(..., env_kwargs={"render_mode": "rgb_array"})'
            )
    return frames
