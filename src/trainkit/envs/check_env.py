"""Looking an environment over before hours of training: what is wrong in it, what is odd, what suits it."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from trainkit.core import seeding, tree
from trainkit.core.data import ACTION_MASK, Obs
from trainkit.core.errors import Checks, ConfigError, EnvError, NoLegalActionError
from trainkit.core.signatures import checked
from trainkit.core.spaces import check_spaces, legal_actions, masked_space, random_actions
from trainkit.envs.backends import MISREAD
from trainkit.envs.make import ValidateEnv, check_with, make_single
from trainkit.envs.ownership import check_free
from trainkit.envs.sync import with_flat_actions
from trainkit.envs.validation import DISCRETE, ActionValidator, Ranges, RowReader

Level = Literal["error", "warning", "note"]
_LEVELS: list[Level] = ["error", "warning", "note"]
_ASYNC_PAYS_MS = 0.5  # per step; an answer from another process costs about a tenth of that


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


class _Step(NamedTuple):
    """One step of an episode, as read."""

    obs: Obs  # [1, ...]
    reward: float
    terminated: bool
    truncated: bool


class _Stop(Exception):  # noqa: N818  # ends a check, never seen outside
    """What was found leaves nothing more to look at."""


@checked
def check_env(
    env: str | gym.Env[Any, Any] | Callable[..., gym.Env[Any, Any]],
    *,
    n_steps: int = 1_000,
    seed: int = 0,
    mask_key: str | None = None,
    env_kwargs: dict[str, Any] | None = None,
    validate_env: ValidateEnv | None = None,
) -> list[Finding]:
    """Play an environment at random and return what was found, errors first; no error, and training can begin.

    Args:
        env: an id, a factory or class, "module.Class", or an environment, which is left open.
        n_steps: of an episode, at most; one is played twice.
        seed: of the episode and its actions.
        mask_key: as in `make_envs`.
        env_kwargs: as in `make_envs`.
        validate_env: as in `make_envs`; what it rejects is an error that is found.

    Raises:
        ConfigError: `env` is an environment that an `Envs` steps.
    """
    checks = Checks("check_env")
    checks.integer("n_steps", n_steps, low=1)
    checks.integer("seed", seed, low=0)
    can_validate = validate_env is None or callable(validate_env)
    checks.require(can_validate, f".validate_env must be a function of an environment, got {validate_env!r}")
    checks.done()
    if isinstance(env, gym.Env):
        check_free(env, "check_env")
    checkup = _Checkup(mask_key)
    with contextlib.suppress(_Stop), contextlib.ExitStack() as made:
        if not isinstance(env, gym.Env):
            env = checkup.make(env, env_kwargs)
            made.callback(checkup.close, env)
        checkup.look_by(validate_env, env)
        env = checkup.flattened(env)
        checkup.look_at_spaces(env)
        checkup.play_twice(env, n_steps, seed)
        checkup.look_at_rendering(env)
    return sorted(checkup.findings, key=lambda finding: _LEVELS.index(finding.level))


class _Checkup:
    """The findings of one check, each told once."""

    def __init__(self, mask_key: str | None) -> None:
        self.findings: list[Finding] = []
        self._mask_key = mask_key
        self._reader: RowReader
        self._actions: ActionValidator
        self._space: gym.Space[Any]
        self._discrete: Ranges
        self._step_seconds, self._n_steps = 0.0, 0

    def found(self, level: Level, what: str, advice: str) -> None:
        """Note a finding."""
        finding = Finding(level=level, what=what, advice=advice)
        if finding not in self.findings:
            self.findings.append(finding)

    def make(self, spec: Any, env_kwargs: dict[str, Any] | None) -> gym.Env[Any, Any]:
        """Make the environment, without gymnasium's own checks: they would warn of the same."""
        try:
            return make_single(spec, env_kwargs or {})
        except (ConfigError, EnvError) as error:
            self.found("error", f"it cannot be made: {error}", "mend its constructor, or the arguments")
            raise _Stop from None

    def look_by(self, validate_env: ValidateEnv | None, env: gym.Env[Any, Any]) -> None:
        """Find what the user's own function rejects."""
        try:
            if validate_env is not None:
                check_with(validate_env, env, "the environment")
        except ConfigError as error:
            self.found("error", str(error).partition(".")[2], "correct the environment, or the function")

    def flattened(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        """Return an environment that takes flat rows, where its actions are nested."""
        try:
            return with_flat_actions(env)
        except ConfigError as error:
            self.found("error", str(error), "gymnasium.wrappers.TransformAction, or a wrapper of your own")
            raise _Stop from None

    def close(self, env: gym.Env[Any, Any]) -> None:
        """Close an environment that was made here."""
        with contextlib.suppress(_Stop), self._raised_in("close"):
            env.close()

    def look_at_spaces(self, env: gym.Env[Any, Any]) -> None:
        """Find spaces that no collector has arrays for."""
        space, action_space = (getattr(env, name, None) for name in ("observation_space", "action_space"))
        if not (isinstance(space, gym.Space) and isinstance(action_space, gym.Space)):
            self.found("error", f"its spaces are {space!r} and {action_space!r}", "give it both, of gymnasium.spaces")
            raise _Stop
        try:
            check_spaces(space, action_space)
            if self._mask_key is not None:
                masked_space(space, action_space)
        except ConfigError as error:
            which = "TransformAction" if str(error).startswith("the action") else "FlattenObservation"
            self.found("error", str(error), f"gymnasium.wrappers.{which}, or a wrapper of your own")
            raise _Stop from None
        if isinstance(action_space, gym.spaces.Box) and not action_space.is_bounded():
            self.found("warning", f"its actions {action_space} have no bounds", "bound them: SAC squashes into bounds")
        self._space = space
        self._discrete = Ranges(space, *DISCRETE)
        self._reader = RowReader(space, warn=self._tell_cast)
        self._actions = ActionValidator(action_space)

    def play_twice(self, env: gym.Env[Any, Any], n_steps: int, seed: int) -> None:
        """Play an episode twice with the same seed and the same actions, and find what differs."""
        first = list(self._play(env, n_steps, seed))
        again = list(self._play(env, n_steps, seed))
        if not _same(first[0].obs, again[0].obs):
            self.found(
                "warning", "two resets with the same seed differ", "call super().reset(seed=seed), draw from np_random"
            )
        elif len(first) != len(again) or not all(map(_same, first, again)):
            self.found(
                "warning", "two episodes with the same seed and actions differ", "draw from self.np_random alone"
            )
        last = first[-1]
        if not (last.terminated or last.truncated):
            self.found(
                "warning",
                f"no episode ended within {n_steps} steps",
                "let it terminate, or give make_envs max_episode_steps, which is gymnasium.wrappers.TimeLimit",
            )
        if last.terminated and last.truncated:
            self.found("note", "a step both terminated and truncated", "terminated wins: nothing is bootstrapped")
        step_ms = 1e3 * self._step_seconds / self._n_steps
        backend = "async" if step_ms > _ASYNC_PAYS_MS else "sync"
        why = "a process each is worth it" if backend == "async" else "other processes would cost more than they save"
        self.found("note", f"it makes {1e3 / step_ms:,.0f} steps per second", f'make_envs(backend="{backend}"): {why}')

    def look_at_rendering(self, env: gym.Env[Any, Any]) -> None:
        """Say whether videos can be made."""
        modes = env.metadata.get("render_modes") or []
        if "rgb_array" not in modes:
            self.found("note", f"it renders {modes or 'nothing'}, no arrays", "for videos, add the mode rgb_array")
        elif env.render_mode != "rgb_array":
            advice = 'for videos, make_envs(..., env_kwargs={"render_mode": "rgb_array"})'
            self.found("note", f"its render_mode is {env.render_mode!r}", advice)

    def _play(self, env: gym.Env[Any, Any], n_steps: int, seed: int) -> Iterator[_Step]:
        """Play one episode at random and yield its begin, then its steps; what is found on the way is noted."""
        rng = seeding.generator(seed, "check_env")
        with self._raised_in("reset"):
            begun = env.reset(seed=seed)
        with self._misread():
            told, info = self._reader.unpack_reset(begun)
            obs = self._read(told)
        legal = self._mask(obs, info)
        yield _Step(obs, 0.0, False, False)
        for _ in range(n_steps):
            action = self._draw(env, legal, rng)
            kept = told, tree.map_tree(np.copy, _arrays(told))
            began = time.perf_counter()
            with self._raised_in("step"):
                result = env.step(action)
            self._step_seconds += time.perf_counter() - began
            self._n_steps += 1
            with self._misread():
                told, gain, terminated, truncated, info = self._reader.unpack_step(result)
                obs, reward = self._read(told), self._read_reward(gain)
                over = self._read_flag("terminated", terminated), self._read_flag("truncated", truncated)
            if not _same(_arrays(kept[0]), kept[1]):
                self.found("note", "it writes into observations it returned before", "copy them; trainkit copies too")
            yield _Step(obs, reward, *over)
            if over == (False, True):
                self._check_bootstrap(self._mask(obs, info))
            if any(over):
                return
            legal = self._mask(obs, info)

    def _check_bootstrap(self, obs: Obs) -> None:
        """Find a truncated episode whose last observation allows no action."""
        legal = legal_actions(obs)
        if legal is not None and not legal.any():
            what = f"it truncates an episode in an observation whose {ACTION_MASK} is all False"
            self.found(
                "error", what, "return terminated=True there, or leave one action legal: its value is learned from"
            )

    def _draw(self, env: gym.Env[Any, Any], obs: Obs, rng: np.random.Generator) -> Any:
        """Draw an action as the environment takes it."""
        try:
            action = random_actions(self._actions.space, obs, 1, rng)
        except NoLegalActionError as error:
            self.found("error", str(error).replace("env 0 ", "it ", 1), "leave one action legal until the end")
            raise _Stop from None
        return self._actions.convert(action, np.arange(1), str)[0]

    def _mask(self, obs: Obs, info: dict[str, Any]) -> Obs:
        """Return an observation [1, ...] that has the mask, where there is one."""
        if self._mask_key is None:
            if ACTION_MASK in info and not (isinstance(obs, dict) and ACTION_MASK in obs):
                advice = f'make_envs(mask_key="{ACTION_MASK}"), or illegal actions will be taken'
                self.found("warning", f"its info has {ACTION_MASK!r}, which nobody reads", advice)
            return obs
        mask = np.asarray(info.get(self._mask_key))
        n_actions = int(getattr(self._actions.space, "n", 0))
        if mask.shape != (n_actions,) or mask.dtype.kind not in "biu":
            what = f"info[{self._mask_key!r}] is {mask.dtype} {mask.shape}, not {n_actions} bools"
            self.found("error", what, "give it with every reset and step")
            raise _Stop
        return {ACTION_MASK: mask[None]}

    def _read(self, told: Any) -> Obs:
        """Read one observation into a row [1, ...], and look at its numbers."""
        rows = self._reader.empty(1)
        self._reader.write(rows, 0, told)
        for path, leaf in tree.named_leaves(rows):
            name = f"observation[{path}]" if path else "observation"
            if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
                self.found("error", f"{name} has nan or infinity", "mend the environment: training would stop there")
                return rows
        outside = self._discrete.outside(rows)
        if outside is not None:
            name, space, values, _ = outside
            what = f"{name} {values[0]} is outside {space}"
            self.found("error", what, "correct the environment or its space: training would stop there")
        elif not self._space.contains(tree.map_tree(lambda leaf: leaf[0], rows)):
            self.found(
                "warning", "an observation is outside its space's bounds", "widen the bounds: networks scale by them"
            )
        return rows

    def _read_reward(self, gain: Any) -> float:
        reward = self._reader.reward(gain)
        if isinstance(gain, np.ndarray):
            self.found("note", f"rewards are arrays {gain.dtype} {gain.shape}", "return a float")
        if not np.isfinite(reward):
            self.found("error", f"a reward was {reward}", "mend the environment: training would stop there")
        return reward

    def _read_flag(self, name: str, value: Any) -> bool:
        if not isinstance(value, (bool, np.bool_)):
            self.found("note", f"{name} is a {type(value).__name__}", "return a bool")
        return self._reader.flag(name, value)

    def _tell_cast(self, text: str, path: str, given: Any, wanted: Any) -> None:
        self.found("note", text % (path, given, wanted), f"return {wanted}, or say {given} in the space")

    @contextlib.contextmanager
    def _raised_in(self, where: str) -> Iterator[None]:
        """Turn what the environment raises into an error that was found."""
        try:
            yield
        except Exception as error:
            self.found("error", f"it raised {type(error).__name__} in {where}: {error}", "mend the environment")
            raise _Stop from error

    @contextlib.contextmanager
    def _misread(self) -> Iterator[None]:
        """Turn what the environment returned against its contract into an error that was found."""
        try:
            yield
        except MISREAD as error:
            self.found("error", f"it {error}", "return what Gymnasium's API and its own spaces say")
            raise _Stop from None


def _arrays(obs: Any) -> Obs:
    """Return the leaves of an observation as arrays, the environment's own where they are."""
    return tree.map_tree(np.asarray, obs)


def _same(one: Any, other: Any) -> bool:
    """Whether two trees, or two steps, hold the same numbers."""
    pairs = zip(_leaves(one), _leaves(other), strict=True)
    return all(bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f")) for a, b in pairs)


def _leaves(value: Any) -> list[NDArray[Any]]:
    return [np.asarray(leaf) for leaf in tree.leaves(tuple(value) if isinstance(value, _Step) else value)]
