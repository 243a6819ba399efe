"""Checking an environment before training: errors, suspicious behavior and advice."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, NoReturn

import gymnasium as gym
import numpy as np

from trainkit.core import seeding, tree
from trainkit.core.data import ACTION_MASK, ArraySpec, Obs
from trainkit.core.errors import Checks, ConfigError, EnvError, NoLegalActionError
from trainkit.core.signatures import checked
from trainkit.core.spaces import (
    MASK_REMEDY,
    UNSCALED_REMEDY,
    check_spaces,
    is_unscaled,
    leaf_spaces,
    legal_actions,
    masked_space,
    random_actions,
)
from trainkit.envs.backends import MISREAD, RESET_SIGNATURE, has_old_reset
from trainkit.envs.factories import (
    MASK_IS_GONE,
    EnvContext,
    EnvOptions,
    ValidateEnv,
    has_mask,
    is_class_path,
    mask_dissolver,
    run_validation,
    with_package,
)
from trainkit.envs.kinds import AnyEnv, Gymnasium, kind_of, with_flat_actions
from trainkit.envs.ownership import check_free
from trainkit.envs.validation import DISCRETE, ActionValidator, Ranges, RowReader

_MIN_ASYNC_MS = 0.5  # per step; a message between processes costs about a tenth of that

CORRECT_BOUNDS = "correct the environment, or widen the bounds of the space"

Level = Literal["error", "warning", "note"]
LEVELS: list[Level] = ["error", "warning", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that `check_env` found.

    Attributes:
        level: "error" ends training, "warning" may spoil it, "note" is good to know.
        what: was found.
        advice: what to do about it.
    """

    level: Level
    what: str
    advice: str

    def __str__(self) -> str:
        return f"{self.level}: {self.what}: {self.advice}"


def advice_on_processes(step_ms: float) -> str:
    """Return whether a process for each environment pays, at this time per step."""
    if step_ms > _MIN_ASYNC_MS:
        return 'make_envs(backend="async"): a process each is worth it'
    return 'make_envs(backend="sync"): other processes would cost more than they save'


@checked
def check_env(
    env: str | gym.Env[Any, Any] | Callable[..., Any] | AnyEnv,
    *,
    n_steps: int = 1_000,
    seed: int = 0,
    mask_key: str | None = None,
    max_episode_steps: int | None = None,
    env_kwargs: dict[str, Any] | None = None,
    validate_env: ValidateEnv | None = None,
) -> list[Finding]:
    """Play an environment at random and return the findings, errors first; without one training can start.

    Args:
        env: an id, a factory or class, "module.Class", or an environment of any kind, which is left open.
        n_steps: of an episode, at most; one is played twice.
        seed: of the episode and its actions.
        mask_key: as in `make_envs`.
        max_episode_steps: as in `make_envs`.
        env_kwargs: as in `make_envs`.
        validate_env: as in `make_envs`; a rejection is an error that is found.

    Raises:
        ConfigError: `env` is an environment that an `Envs` steps.
    """
    with Checks("check_env") as checks:
        checks.integer("n_steps", n_steps, low=1)
        checks.integer("seed", seed, low=0)
        checks.integer("max_episode_steps", max_episode_steps, low=1, optional=True)
        can_validate = validate_env is None or callable(validate_env)
        checks.require(can_validate, f".validate_env must be a function of an environment, got {validate_env!r}")
    given: Any = env
    is_made = kind_of(env) is not None
    if is_made:
        check_free(env, "check_env")
        if max_episode_steps is not None:
            raise ConfigError(f"check_env.max_episode_steps is for environments that it makes: limit {env!r} yourself")
    check = _Check(mask_key)
    with contextlib.suppress(_StopError), contextlib.ExitStack() as made:
        if not is_made:
            given = check.make(env, env_kwargs or {}, max_episode_steps)
            made.callback(check.close, given)
        check.check_by_user(given, validate_env)
        kind = kind_of(given)
        if kind is None or isinstance(kind, Gymnasium):
            single = check.check_spaces(given)
            check.play_twice(single, n_steps, seed)
        else:
            for finding in kind.check(given, n_steps=n_steps, seed=seed, mask_key=mask_key):
                check.find(*finding)
        check.check_rendering(given)
    return sorted(check.findings, key=lambda finding: LEVELS.index(finding.level))


class _StopError(Exception):
    """An error was found after which nothing more can be checked; never seen outside of this file."""


class _Step(NamedTuple):
    """One step of an episode, as read."""

    obs: Obs  # [1, ...]
    reward: float
    terminated: bool
    truncated: bool


class _Check:
    """The check of one environment; each finding is recorded once."""

    def __init__(self, mask_key: str | None) -> None:
        self.findings: list[Finding] = []
        self._mask_key = mask_key
        self._reader: RowReader
        self._actions: ActionValidator
        self._space: gym.Space[Any]
        self._discrete: Ranges
        self._boxes: Ranges
        self._step_seconds, self._n_steps = 0.0, 0
        self._is_outside = False  # whether an observation was outside of the space's bounds, reported once

    def make(self, spec: Any, env_kwargs: dict[str, Any], max_episode_steps: int | None) -> Any:
        """Make the environment without gymnasium's own checks, which would repeat the warnings."""
        try:
            if isinstance(spec, str):
                spec = with_package(spec)
                if not is_class_path(spec):
                    env_kwargs = {"disable_env_checker": True, **env_kwargs}
            elif not callable(spec):
                raise ConfigError(
                    f"check_env needs an id, a factory or an environment, got {spec!r}: give one of these"
                )
            context = EnvContext(index=0, n_envs=1, seed=None, in_evaluation=False)
            return EnvOptions(env_kwargs=env_kwargs, max_episode_steps=max_episode_steps).make(spec, context)
        except ConfigError as error:
            self._stop("it cannot be made", str(error))  # which has its remedy
        except EnvError as error:
            self._stop(f"it cannot be made: {error}", "fix its constructor, or the arguments")

    def close(self, env: Any) -> None:
        """Close an environment that was made here."""
        with contextlib.suppress(_StopError), self._raised_in("close"):
            getattr(env, "close", lambda: None)()

    def check_by_user(self, env: Any, validate_env: ValidateEnv | None) -> None:
        """Call the user's validation function."""
        try:
            if validate_env is not None:
                run_validation(validate_env, env, "the environment")
        except ConfigError as error:
            self.find("error", str(error).partition(".")[2], "correct the environment, or the function")

    def check_spaces(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        """Check the spaces; return the environment with flat actions."""
        try:
            env = with_flat_actions(env)
        except ConfigError as error:
            self._stop(str(error), "gymnasium.wrappers.TransformAction, or a wrapper of your own")
        space, action_space = (getattr(env, name, None) for name in ("observation_space", "action_space"))
        if not (isinstance(space, gym.Space) and isinstance(action_space, gym.Space)):
            self._stop(f"its spaces are {space!r} and {action_space!r}", "give it both, of gymnasium.spaces")
        try:
            check_spaces(space, action_space)
            if self._mask_key is not None:
                masked_space(space, action_space)
        except ConfigError as error:
            self._stop(str(error), _advice_on_spaces(str(error), space))
        if isinstance(action_space, gym.spaces.Box) and not action_space.is_bounded():
            self.find("warning", f"its actions {action_space} have no bounds", "bound them: SAC squashes into bounds")
        if isinstance(action_space, gym.spaces.Box) and action_space.dtype.kind != "f":
            what = f"its actions {action_space} are whole numbers in a Box, which no policy but a random one supports"
            self.find("error", what, "make it a MultiDiscrete, MultiDiscrete(high - low + 1, start=low), or floats")
        for path, leaf in tree.named_leaves(leaf_spaces(space)):
            if is_unscaled(leaf):
                what = f"{_observation(path)} is uint8 {leaf.shape} from 0 to 255, no image, so that it is not scaled"
                self.find("warning", what, UNSCALED_REMEDY)
        wrapper = mask_dissolver(env)
        if wrapper is not None:
            self.find("warning", f"{wrapper} makes its {ACTION_MASK} a feature, or removes it", MASK_IS_GONE)
        elif env.has_wrapper_attr("action_masks") and not (self._mask_key or has_mask(env)):
            advice = f"return masks as a leaf {ACTION_MASK}, or in the info with mask_key=: docs/howto/action_masks.md"
            self.find("warning", "its method action_masks(), sb3-contrib's, is not read", advice)
        self._space, self._discrete, self._boxes = space, Ranges(space, *DISCRETE), Ranges(space, gym.spaces.Box)
        self._reader, self._actions = RowReader(space, warn=self._find_cast), ActionValidator(action_space)
        return env

    def play_twice(self, env: gym.Env[Any, Any], n_steps: int, seed: int) -> None:
        """Play an episode twice with the same seed and the same actions, and compare."""
        first, second = list(self._play(env, n_steps, seed)), list(self._play(env, n_steps, seed))
        if not _are_equal(first[0], second[0]):
            advice = "call super().reset(seed=seed), draw from np_random"
            self.find("warning", "two resets with the same seed differ", advice)
        elif len(first) != len(second) or not all(map(_are_equal, first, second)):
            advice = "draw from self.np_random alone"
            self.find("warning", "two episodes with the same seed and actions differ", advice)
        last = first[-1]
        if not (last.terminated or last.truncated):
            advice = "let it terminate, or give max_episode_steps to make_envs and here"
            self.find("warning", f"no episode ended within {n_steps} steps", advice)
        if last.terminated and last.truncated:
            self.find("note", "a step both terminated and truncated", "terminated wins: nothing is bootstrapped")
        step_ms = 1e3 * self._step_seconds / self._n_steps
        self.find("note", f"it makes {1e3 / step_ms:,.0f} steps per second", advice_on_processes(step_ms))

    def check_rendering(self, env: Any) -> None:
        """Check whether videos can be recorded."""
        modes = getattr(env, "metadata", {}).get("render_modes") or []
        if "rgb_array" not in modes:
            self.find("note", f"it renders {modes or 'nothing'}, no arrays", "for videos, add the mode rgb_array")
        elif getattr(env, "render_mode", None) != "rgb_array":
            advice = 'for videos, make_envs(..., env_kwargs={"render_mode": "rgb_array"})'
            self.find("note", f"its render_mode is {getattr(env, 'render_mode', None)!r}", advice)

    # ---- one episode ----

    def _play(self, env: gym.Env[Any, Any], n_steps: int, seed: int) -> Iterator[_Step]:
        """Play one episode at random; yield its first observation, then its steps."""
        rng = seeding.generator(seed, "check_env")
        with self._raised_in("reset"):
            result = env.reset(seed=seed)
        with self._misread():
            returned, info = self._reader.unpack_reset(result)
            obs = self._read_obs(returned)
        masked = self._with_mask(obs, info)
        yield _Step(obs, 0.0, False, False)
        for _ in range(n_steps):
            action = self._random_action(masked, rng)
            start = time.perf_counter()
            with self._raised_in("step"):
                step_result = env.step(action)
            self._step_seconds += time.perf_counter() - start
            self._n_steps += 1
            with self._misread():
                if not _are_equal(self._row_of(returned), obs):
                    what = "it writes into observations it returned before"
                    self.find("note", what, "copy them; trainkit copies too")
                returned, gain, terminated, truncated, info = self._reader.unpack_step(step_result)
                obs, reward = self._read_obs(returned), self._read_reward(gain)
                ends = self._read_flag("terminated", terminated), self._read_flag("truncated", truncated)
            yield _Step(obs, reward, *ends)
            if ends[0]:
                return
            masked = self._with_mask(obs, info)
            if ends[1]:
                legal = legal_actions(masked)
                if legal is not None and not legal.any():
                    what = f"it truncates an episode in an observation whose {ACTION_MASK} is all False"
                    advice = "return terminated=True there, or leave one action legal: its value is learned from"
                    self.find("error", what, advice)
                return

    def _random_action(self, obs: Obs, rng: np.random.Generator) -> Any:
        """Draw a legal action of the environment."""
        try:
            action = random_actions(self._actions.space, obs, 1, rng)
        except NoLegalActionError as error:
            self._stop(str(error).replace("env 0 ", "it ", 1), "leave one action legal until the end")
        return self._actions.convert(action, np.arange(1), str)[0]

    def _with_mask(self, obs: Obs, info: dict[str, Any]) -> Obs:
        """Return an observation [1, ...] with the action mask, where there is one."""
        if self._mask_key is None:
            if ACTION_MASK in info and not (isinstance(obs, dict) and ACTION_MASK in obs):
                reads = f'make_envs(mask_key="{ACTION_MASK}"), or illegal actions will be taken'
                advice = reads if isinstance(self._actions.space, gym.spaces.Discrete) else MASK_REMEDY
                self.find("warning", f"its info has {ACTION_MASK!r}, which is not read", advice)
            return obs
        mask = np.asarray(info.get(self._mask_key))
        n_actions = int(getattr(self._actions.space, "n", 0))
        if mask.shape != (n_actions,) or mask.dtype.kind not in "biu":
            what = f"info[{self._mask_key!r}] is {mask.dtype} {mask.shape}, not {n_actions} bools"
            self._stop(what, "give it with every reset and step")
        return {ACTION_MASK: mask[None]}

    def _read_obs(self, returned: Any) -> Obs:
        """Read one observation into a row [1, ...] and check its values."""
        rows = self._row_of(returned)
        self._find_integers(returned)
        for path, leaf in tree.named_leaves(rows):
            if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
                advice = "fix the environment: training would stop there"
                self.find("error", f"{_observation(path)} has nan or infinity", advice)
                return rows
        outside = self._discrete.outside(rows)
        if outside is not None:
            name, space, values, _ = outside
            advice = "correct the environment or its space: training would stop there"
            self.find("error", f"{name} {values[0]} is outside {space}", advice)
        elif not self._is_outside and not self._space.contains(tree.map_tree(lambda leaf: np.asarray(leaf[0]), rows)):
            self._is_outside = True
            what = self._boxes.describe_outside(dict(tree.named_leaves(rows))) or "an observation is outside its space"
            self.find("warning", what, CORRECT_BOUNDS)
        return rows

    def _row_of(self, returned: Any) -> Obs:
        """Copy one observation into a row [1, ...]."""
        rows = self._reader.empty(1)
        self._reader.write(rows, 0, returned)
        return rows

    def _read_reward(self, gain: Any) -> float:
        reward = self._reader.reward(gain)
        if isinstance(gain, np.ndarray):
            self.find("note", f"rewards are arrays {gain.dtype} {gain.shape}", "return a float")
        if not np.isfinite(reward):
            self.find("error", f"a reward was {reward}", "fix the environment: training would stop there")
        return reward

    def _read_flag(self, name: str, value: Any) -> bool:
        if not isinstance(value, (bool, np.bool_)):
            self.find("note", f"{name} is a {type(value).__name__}", "return a bool")
        return self._reader.flag(name, value)

    # ---- findings ----

    def find(self, level: Level, what: str, advice: str) -> None:
        """Record a finding, once."""
        finding = Finding(level=level, what=what, advice=advice)
        if finding not in self.findings:
            self.findings.append(finding)

    def _stop(self, what: str, advice: str) -> NoReturn:
        """Record an error after which nothing more can be checked."""
        self.find("error", what, advice)
        raise _StopError

    def _find_integers(self, returned: Any) -> None:
        """Note integers that are returned for floats: of a size that floats round, a warning."""
        for path, given, leaf in _pairs(returned, self._reader.specs):
            if leaf.dtype.kind != "f" or given.dtype.kind not in "iu":
                continue
            with np.errstate(all="ignore"):
                is_exact = bool((given.astype(leaf.dtype).astype(np.float64) == given.astype(np.float64)).all())
            what = f"{_observation(path)} is {given.dtype}, and the space says {leaf.dtype}"
            advice = f"return {leaf.dtype}, or say {given.dtype} in the space"
            if is_exact:
                self.find("note", what, advice)
            else:
                self.find("warning", f"{what}, which rounds numbers as large as {np.abs(given).max()}", advice)

    def _find_cast(self, text: str, path: str, given: Any, wanted: Any) -> None:
        self.find("note", text % (path, given, wanted), f"return {wanted}, or say {given} in the space")

    @contextlib.contextmanager
    def _raised_in(self, where: str) -> Iterator[None]:
        """Record what the environment raises as an error."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # it may raise anything
            advice = f"define it as {RESET_SIGNATURE}" if has_old_reset(where, error) else "fix the environment"
            self._stop(f"it raised {type(error).__name__} in {where}: {error}", advice)

    @contextlib.contextmanager
    def _misread(self) -> Iterator[None]:
        """Record a return value that violates Gymnasium's API or the spaces as an error."""
        try:
            yield
        except MISREAD as error:
            self._stop(f"it {error}", "return what Gymnasium's API and its own spaces say")


_NO_ARRAYS = gym.spaces.Sequence, gym.spaces.Graph  # which gymnasium flattens to themselves


def _advice_on_spaces(error: str, space: gym.Space[Any]) -> str:
    """Return what makes spaces usable that `check_spaces` rejected with this error."""
    if "action mask" in error:
        return "a Discrete action space, or no mask"
    if repr(ACTION_MASK) in error:
        return "gymnasium.wrappers.TransformObservation, or a wrapper of your own"
    if error.startswith("the action"):
        return "gymnasium.wrappers.TransformAction, or a wrapper of your own"
    if _has_no_arrays(space):
        return "pad it in a wrapper to a Box or MultiDiscrete of one shape, with a mask of what is there"
    return "gymnasium.wrappers.FlattenObservation, or a wrapper of your own"


def _has_no_arrays(space: gym.Space[Any]) -> bool:
    """Return whether a space has a leaf of varying length, which flattening does not change."""
    if isinstance(space, gym.spaces.Dict):
        return any(map(_has_no_arrays, space.spaces.values()))
    return (
        any(map(_has_no_arrays, space.spaces)) if isinstance(space, gym.spaces.Tuple) else isinstance(space, _NO_ARRAYS)
    )


def _pairs(returned: Any, specs: Any, path: str = "") -> Iterator[tuple[str, Any, ArraySpec]]:
    """Yield (path, array as returned, spec) for each leaf of an observation that was read before."""
    if isinstance(specs, ArraySpec):
        yield path, np.asarray(returned), specs
    else:
        for key, spec in specs.items() if isinstance(specs, dict) else enumerate(specs):
            yield from _pairs(returned[key], spec, f"{path}.{key}" if path else str(key))


def _observation(path: str) -> str:
    return f"observation[{path}]" if path else "observation"


def _are_equal(one: Any, other: Any) -> bool:
    """Return whether two trees, or two steps, have equal values."""
    pairs = zip(map(np.asarray, tree.leaves(one)), map(np.asarray, tree.leaves(other)), strict=True)
    return all(bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f")) for a, b in pairs)
