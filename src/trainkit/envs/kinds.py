"""Kinds of environments: Gymnasium's own, and those that extensions add."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, Protocol

import gymnasium as gym
import numpy as np

from trainkit.core import tree
from trainkit.core.errors import ConfigError
from trainkit.core.extensions import table
from trainkit.core.spaces import array_specs, check_space, flat_actions, space_bounds, structure_of
from trainkit.envs.backends import Backend, Runner

Space = gym.Space[Any]
Found = tuple[Literal["error", "warning", "note"], str, str]  # (level, what was found, advice), as in a `Finding`


class AnyEnv(Protocol):
    """An environment of any kind."""

    def reset(self, seed: Any = None, options: Any = None) -> Any: ...

    def step(self, action: Any, /) -> Any: ...


class EnvKind(ABC):
    """A kind of environments that an extension adds, by its constant ENV_KINDS: the base class of kinds.

    An environment of a kind may be several rows, which `backend` reads. `driven` returns an environment with `reset`,
    `step`, `close` and two spaces, whose observations, actions and infos are between it and that backend alone: any
    runner drives it. Methods that are not abstract are of what a kind may not support.

    Attributes:
        what: one is, with its article, for errors.
    """

    what: str

    def is_name(self, spec: str) -> bool:
        """Return whether a text that is no registered id names an environment of this kind."""
        return False

    def spelling(self, spec: str) -> str:
        """Return the name of the environment that a text means in another spelling, "" if it means none."""
        return ""

    def factory_of(self, name: str) -> Callable[..., Any]:
        """Return what makes the environment of a name; may raise ImportError or AttributeError."""
        raise ImportError(f"no name stands for {self.what}")

    @abstractmethod
    def has(self, env: object) -> bool:
        """Return whether an environment is of this kind."""

    def with_limit(self, env: Any, max_episode_steps: int) -> Any:
        """Return an environment whose episodes are truncated after a number of steps, or raise a ConfigError."""
        raise ConfigError(
            f"make_envs.max_episode_steps is not for {self.what}: end its episodes in {type(env).__name__} itself"
        )

    def with_spaces(self, env: Any, observation_space: Space | None, action_space: Space | None) -> Any:
        """Return an environment with these spaces in place of its own; see `replaced_observation_space`."""
        raise ConfigError(f"make_envs.observation_space and action_space are not for {self.what}: leave them out")

    def check_spaces(self, env: Any, name: str) -> None:
        """Raise a ConfigError for an environment without spaces, if `driven` does not; its name is for errors."""
        return

    @abstractmethod
    def driven(self, env: Any) -> Any:
        """Return an environment in the form that runners drive and `backend` reads."""

    @abstractmethod
    def backend(self, runner: Runner, kept_infos: Sequence[str]) -> Backend | None:
        """Return the backend that reads the rows of what a runner runs; None where that is of another kind.

        Args:
            runner: of the environments; closed if they are rejected.
            kept_infos: keys of infos that complete a row: its mask, its lives.
        """

    def check(self, env: Any, *, n_steps: int, seed: int, mask_key: str | None) -> Iterator[Found]:
        """Play an environment as `check_env` does, and yield what was found; it stays open."""
        yield "note", f"check_env does not play {self.what}", "collect some episodes, and look at their statistics"


class Gymnasium:
    """The environments of Gymnasium, whose ids are registered, or name a class."""

    what = "a gymnasium.Env"

    def with_limit(self, env: Any, max_episode_steps: int) -> Any:
        """Return an environment with Gymnasium's wrapper."""
        return gym.wrappers.TimeLimit(env, max_episode_steps)

    def with_spaces(self, env: Any, observation_space: Space | None, action_space: Space | None) -> Any:
        """Return an environment with these spaces in place of its own."""
        return _EnvWithSpaces(env, observation_space, action_space)

    def check_spaces(self, env: Any, name: str) -> None:
        """Raise a ConfigError for an environment without its two spaces."""
        spaces = {kind: getattr(env, kind, None) for kind in ("observation_space", "action_space")}
        missing = {kind: space for kind, space in spaces.items() if not isinstance(space, gym.Space)}
        if missing:
            got = ", ".join(f"{kind} {space!r}" for kind, space in missing.items())
            raise ConfigError(
                f"make_envs: {name}, {env!r}, has {got}: set both to spaces of gymnasium.spaces in its constructor, "
                "since they are needed before the first reset, or give make_envs observation_space= and action_space="
            )

    def driven(self, env: Any) -> Any:
        """Return an environment whose actions are flat rows; closed if its actions cannot be."""
        try:
            return with_flat_actions(env)
        except ConfigError:
            env.close()
            raise


GYMNASIUM = Gymnasium()


def added_kinds() -> Iterator[EnvKind]:
    """Yield the kinds that extensions add."""
    return (entry.load() for entry in table("ENV_KINDS").values())


def kind_of(env: object) -> EnvKind | Gymnasium | None:
    """Return the kind of an environment; None of anything else, a class of environments included."""
    if inspect.isclass(env):
        return None
    own = GYMNASIUM if isinstance(env, gym.Env) else None
    return next((kind for kind in added_kinds() if kind.has(env)), own)


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
    """Return an environment whose actions are flat rows; one without nested actions is unchanged."""
    is_nested = isinstance(getattr(env, "action_space", None), (gym.spaces.Dict, gym.spaces.Tuple))
    return NestedActions(env) if is_nested else env


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
