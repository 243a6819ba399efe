"""Factories of single environments: from an id, a class path or a user's function, with given spaces and validation."""

import contextlib
import functools
import importlib
import inspect
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from trainkit.core import seeding, tree
from trainkit.core.data import ACTION_MASK
from trainkit.core.errors import Checks, ConfigError, EnvError, MissingExtraError
from trainkit.core.extras import import_extra, install_command
from trainkit.core.spaces import array_specs, check_space, flat_actions, space_bounds, structure_of
from trainkit.envs.backends import RAISED
from trainkit.envs.games import GameWrapper, is_game, space_of

_log = logging.getLogger(__name__)

Space = gym.Space[Any]
Wrapper = Callable[[Any], Any]  # of an environment or a game
ValidateEnv = Callable[[Any], object]

# Ids that a package registers when it is imported: {namespace: (package, our extra)}.
_PACKAGES = {"ALE": ("ale_py", "atari")}
_GAME = re.compile(r"(\w+/)+\w+_v\d+")  # a module of PettingZoo's or mpe2's, with slashes
_MINATAR = "MinAtar"  # the namespace of a package that registers its ids by a call, and is no extra of ours


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvContext:
    """The context of a factory: which environment it makes. It is the same when that environment is restarted.

    Attributes:
        index: of the environment, from 0.
        n_envs: number of environments.
        seed: for what the factory itself draws, a stream of its own, derived from `make_envs(seed=)`. None where
            that is None: environments are made before a trainer's seed is known. Episodes are seeded all the same, by
            their resets.
        in_evaluation: whether it is for evaluation, where rewards are not shaped and tasks not simplified.
    """

    index: int
    n_envs: int
    seed: int | None
    in_evaluation: bool


@dataclass(frozen=True, slots=True)
class EnvOptions:
    """How single environments, or games of several agents, are made; the fields are as in `make_envs`."""

    wrappers: Sequence[Wrapper] = ()
    max_episode_steps: int | None = None
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    observation_space: Space | None = None
    action_space: Space | None = None
    validate_env: ValidateEnv | None = None

    def check(self, checks: Checks) -> None:
        """Note what cannot work."""
        checks.integer("max_episode_steps", self.max_episode_steps, low=1, optional=True)
        can_validate = self.validate_env is None or callable(self.validate_env)
        checks.require(can_validate, f".validate_env must be a function of an environment, got {self.validate_env!r}")

    def make(self, spec: str | Callable[..., Any], context: EnvContext) -> Any:
        """Make an environment with its own actions.

        Args:
            spec: an id, "module.Class" or a callable.
            context: of the environment.

        Raises:
            ConfigError: it cannot be made from these arguments.
            EnvError: its constructor or a wrapper raised.
        """
        name = f"env {context.index}"
        with creation_errors(name):
            env = self._construct(spec, context)
            for wrapper in self.wrappers:
                env = wrapper(env)
            if self.observation_space is not None or self.action_space is not None:
                wrapper_class = _GameWithSpaces if is_game(env) else _EnvWithSpaces
                env = wrapper_class(env, self.observation_space, self.action_space)
            check_has_spaces(env, name)
            wrapper_name = mask_dissolver(env) if context.index == 0 else None
            if wrapper_name is not None:
                what = "makes the environment's action_mask a feature, or removes it"
                _log.warning("%s %s: %s", wrapper_name, what, MASK_IS_GONE)
            if self.validate_env is not None:
                run_validation(self.validate_env, env, name)
            return env

    def make_flat(self, spec: str | Callable[..., Any], context: EnvContext) -> Any:
        """Make an environment whose nested actions are flat rows."""
        env = self.make(spec, context)
        try:
            return with_flat_actions(env)
        except ConfigError:
            env.close()
            raise

    def factories(
        self, specs: Sequence[str | Callable[..., Any]], seed: int | None, *, in_evaluation: bool
    ) -> list[Callable[[], Any]]:
        """Return a function for each spec that makes its environment."""
        n_envs = len(specs)
        seeds = [None if seed is None else seeding.derive(seed, "context", index) for index in range(n_envs)]
        contexts = [
            EnvContext(index=index, n_envs=n_envs, seed=own_seed, in_evaluation=in_evaluation)
            for index, own_seed in enumerate(seeds)
        ]
        return [functools.partial(self.make_flat, *pair) for pair in zip(specs, contexts, strict=True)]

    def _construct(self, spec: str | Callable[..., Any], context: EnvContext) -> Any:
        """Make the unwrapped environment, with its time limit."""
        if isinstance(spec, str) and not is_class_path(spec):
            return gym.make(spec, max_episode_steps=self.max_episode_steps, **self.env_kwargs)
        factory = _load_class(spec) if isinstance(spec, str) else spec
        env = factory(*([context] if accepts_context(factory, self.env_kwargs) else ()), **self.env_kwargs)
        if not isinstance(env, gym.Env) and not is_game(env):
            raise ConfigError(
                "make_envs: the factory must return a gymnasium.Env, or a game of several agents with PettingZoo's or "
                f"RLlib's API, got {env!r}{_remedy_of(env)}"
            )
        if self.max_episode_steps is None:
            return env
        if is_game(env):
            raise ConfigError(f"make_envs.max_episode_steps is not for a game of several agents: limit {env!r}")
        return gym.wrappers.TimeLimit(env, self.max_episode_steps)


def run_validation(validate_env: ValidateEnv, env: Any, name: str) -> None:
    """Raise a ConfigError if the user's function raises, or returns False, for an environment."""
    try:
        is_valid = validate_env(env)
    except Exception as error:
        raise ConfigError(f"make_envs.validate_env rejects {name}: {type(error).__name__}: {error}") from error
    if is_valid is False:
        raise ConfigError(f"make_envs.validate_env rejects {name}: it returned False for {env!r}")


def accepts_context(factory: Callable[..., Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a factory receives its context: it has one positional parameter without a default.

    A class never does.

    Args:
        factory: makes an environment.
        kwargs: arguments it gets by name.
    """
    if inspect.isclass(factory):
        return False
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # built in, without a signature
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [
        parameter
        for parameter in parameters
        if parameter.kind in positional
        and parameter.default is inspect.Parameter.empty
        and parameter.name not in kwargs
    ]
    return len(required) == 1


@contextlib.contextmanager
def creation_errors(name: str) -> Iterator[None]:
    """Convert errors of the construction of an environment to trainkit's errors."""
    try:
        yield
    except ConfigError:
        raise
    except gym.error.DependencyNotInstalled as error:
        extra = next((extra for extra in ("box2d", "mujoco") if f"gymnasium[{extra}]" in str(error)), None)
        remedy = str(error) if extra is None else f"{name} needs gymnasium[{extra}]: {install_command(extra)}"
        raise MissingExtraError(f"make_envs: {remedy}") from error
    except gym.error.Error as error:  # no such id
        remedy = "import the package that registers it, or give module:id, a class or a function that makes one"
        raise ConfigError(f"make_envs: {str(error).rstrip('.')}: {remedy}") from error
    except RAISED as error:
        raise EnvError(f"make_envs: {name} raised {type(error).__name__} when it was made: {error}") from error


def check_has_spaces(env: Any, name: str) -> None:
    """Raise a ConfigError for an environment of one agent without its two spaces."""
    if is_game(env):
        return
    spaces = {kind: getattr(env, kind, None) for kind in ("observation_space", "action_space")}
    missing = {kind: space for kind, space in spaces.items() if not isinstance(space, gym.Space)}
    if missing:
        got = ", ".join(f"{kind} {space!r}" for kind, space in missing.items())
        raise ConfigError(
            f"make_envs: {name}, {env!r}, has {got}: set both to spaces of gymnasium.spaces in its constructor, since "
            "they are needed before the first reset, or give make_envs observation_space= and action_space="
        )


MASK_IS_GONE = (
    "illegal actions will be taken; keep action_mask as a leaf of a Dict, and wrap the other leaves, or flatten them "
    "by make_envs(processors=[tk.envs.Flatten()])"
)


def mask_dissolver(env: Any) -> str | None:
    """Return the name of the wrapper behind which an environment's observation has no action mask any more."""
    while isinstance(env, gym.Wrapper):
        if not _has_mask(env) and _has_mask(env.env):
            return type(env).__name__
        env = env.env
    return None


def _has_mask(env: Any) -> bool:
    space = getattr(env, "observation_space", None)
    return isinstance(space, gym.spaces.Dict) and ACTION_MASK in space.spaces


def _remedy_of(env: object) -> str:
    """Return what to do with a known kind of object that is no environment."""
    modules = {kind.__module__.partition(".")[0] for kind in type(env).__mro__}
    if "gym" in modules:
        return (
            ": it is of gym, which gymnasium replaced; wrap it by shimmy, "
            'gymnasium.make("GymV26Environment-v0", env=env) or "GymV21Environment-v0"'
        )
    return f": {VECTOR_REMEDY}" if is_foreign_vector(env) else ""


VECTOR_REMEDY = (
    "it is a vector environment of another library: give make_envs what it is made of, an environment's factory and n, "
    "or the PettingZoo game itself, whose agents become rows"
)


def is_foreign_vector(env: object) -> bool:
    """Return whether this is a vector environment of another API than gymnasium's, such as SB3's or SuperSuit's."""
    if isinstance(env, gym.vector.VectorEnv):
        names = "single_observation_space", "single_action_space", "num_envs"
        return any(getattr(env, name, None) is None for name in names)
    has_numbers = isinstance(getattr(env, "num_envs", None), int)
    return has_numbers and callable(getattr(env, "step", None)) and not isinstance(env, gym.Env)


# ---- nested actions ----


class NestedActions(gym.ActionWrapper[Any, Any, Any]):
    """Convert flat rows to the actions of an environment whose action space is a Dict or Tuple."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.action_space = flat_actions(env.action_space)
        self._structure = structure_of(self.action_space)

    def action(self, action: Any) -> Any:
        """Return a flat row [W] nested."""
        assert self._structure is not None, "only nested actions are wrapped"
        return self._structure.unpack(action)


def with_flat_actions(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Return an environment whose actions are flat rows; games, and those without nested actions, are unchanged."""
    space: object = getattr(env, "action_space", None)  # a method, of a game
    return NestedActions(env) if isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)) and not is_game(env) else env


# ---- ids and class paths ----


def with_package(env_id: str) -> str:
    """Return "package:id" for an id that is registered by importing a package; register those of MinAtar."""
    namespace = env_id.partition("/")[0]
    if namespace == _MINATAR and env_id not in gym.registry:
        _register_minatar(env_id)
    if namespace not in _PACKAGES:
        return env_id
    package, extra = _PACKAGES[namespace]
    import_extra(f"make_envs: {env_id}", package, extra)
    return f"{package}:{env_id}"


def _register_minatar(env_id: str) -> None:
    """Register MinAtar's environments (Young & Tian, 2019)."""
    try:
        package = importlib.import_module("minatar.gym")
    except ImportError as error:
        remedy = "pip install --no-deps minatar"  # its own dependencies draw pictures
        raise MissingExtraError(f"make_envs: {env_id} needs minatar ({error}): {remedy}") from error
    package.register_envs()


def is_registered(env: str) -> bool:
    """Return whether an environment is an id that is already registered, so that making it imports no further module.

    An id without its version, and one of a namespace whose package trainkit knows (ALE, MinAtar), count; "module:id"
    and "module.Class" do not.
    """
    known = env in gym.registry or any(env == spec.id.rpartition("-v")[0] for spec in gym.registry.values())
    return known or (env.partition("/")[0] in (*_PACKAGES, _MINATAR) and ":" not in env)


def is_class_path(spec: str) -> bool:
    """Return whether a text is "module.Class" or a game such as "pettingzoo/classic/chess_v6", and no registered id."""
    is_path = "." in spec and all(part.isidentifier() for part in spec.split("."))
    return spec not in gym.registry and (is_path or _GAME.fullmatch(spec) is not None)


def _load_class(path: str) -> Callable[..., Any]:
    """Return the class of "module.Class", or the factory of a game, with the parallel API if it has that."""
    module, _, name = path.rpartition(".")
    try:
        if _GAME.fullmatch(path):
            with warnings.catch_warnings():  # PettingZoo 1.27 announces a registry that older versions do not have
                warnings.simplefilter("ignore", DeprecationWarning)
                game = importlib.import_module(path.replace("/", "."))
            made: Callable[..., Any] = getattr(game, "parallel_env", None) or game.env
            return made
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"make_envs: {path!r} is neither a registered id nor a class or a game that can be imported: {error}"
        ) from error
    return found


# ---- given spaces ----


def replaced_observation_space(own: Any, given: Space | None) -> Any:
    """Return the given observation space, or the environment's own if none is given.

    Raises:
        ConfigError: their arrays have other shapes, so that no observation would fit.
    """
    if given is None or not isinstance(own, gym.Space):
        return own if given is None else given
    check_space(given, "make_envs.observation_space")
    check_space(own, "the environment's observation space")
    shapes = [[(path, spec.shape) for path, spec in tree.named_leaves(array_specs(space))] for space in (given, own)]
    if shapes[0] != shapes[1]:
        raise ConfigError(
            f"make_envs.observation_space {given} has other shapes than the environment's {own}: give one of the same "
            "shapes, or change the observations by a wrapper or a processor"
        )
    return given


def replaced_action_space(own: Any, given: Space | None) -> Any:
    """Return the given action space, or the environment's own if none is given.

    Raises:
        ConfigError: it contains actions that the environment's own does not.
    """
    if given is None or not isinstance(own, gym.Space):
        return own if given is None else given
    check_space(given, "make_envs.action_space")
    if not _is_subspace(given, own):
        raise ConfigError(
            f"make_envs.action_space {given} is not within the environment's {own}: give one of the same kind and "
            "shape whose actions the environment takes, or change the actions by a wrapper or a processor"
        )
    return given


def _is_subspace(given: Space, own: Space) -> bool:
    """Return whether a space is a subset of another space of the same kind and shape."""
    if type(given) is not type(own) or given.shape != own.shape or given.dtype != own.dtype:
        return False
    if isinstance(given, gym.spaces.Box) and isinstance(own, gym.spaces.Box):
        return bool(np.all(given.low >= own.low) and np.all(given.high <= own.high))
    if isinstance(given, (gym.spaces.Discrete, gym.spaces.MultiDiscrete)):
        (low, high), (own_low, own_high) = space_bounds(given), space_bounds(own)
        return bool(np.all(low >= own_low) and np.all(high <= own_high))
    return given == own


class _EnvWithSpaces(gym.Wrapper[Any, Any, Any, Any]):
    """An environment with given spaces."""

    def __init__(self, env: gym.Env[Any, Any], observation_space: Space | None, action_space: Space | None) -> None:
        super().__init__(env)
        self.observation_space = replaced_observation_space(getattr(env, "observation_space", None), observation_space)
        self.action_space = replaced_action_space(getattr(env, "action_space", None), action_space)


class _GameWithSpaces(GameWrapper):
    """A game whose agents all have given spaces."""

    def __init__(self, game: Any, observation_space: Space | None, action_space: Space | None) -> None:
        super().__init__(game)
        self._observation_space, self._action_space = observation_space, action_space
        self.unwrapped = getattr(game, "unwrapped", game)

    def observation_space(self, agent: Any) -> Any:
        """Return the given space, checked against the agent's own."""
        own = space_of(self._game, "observation_space", agent)
        return replaced_observation_space(own, self._observation_space)

    def action_space(self, agent: Any) -> Any:
        """Return the given space, checked against the agent's own."""
        return replaced_action_space(space_of(self._game, "action_space", agent), self._action_space)
