"""Factories of single environments: the context a factory may receive, spaces that replace the declared ones."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from trainkit.core import seeding, tree
from trainkit.core.errors import ConfigError
from trainkit.core.spaces import array_specs, check_space, discrete_bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvContext:
    """Tell a factory which environment it makes; one made anew after a fault gets the same again.

    Attributes:
        index: of the environment, from 0.
        n_envs: how many there are.
        seed: for what the factory itself draws, a stream of its own, derived from `make_envs(seed=)`. None where
            that was given none: environments are made before a trainer's seed is known. Episodes are seeded all
            the same, by their resets.
        in_evaluation: whether they are for evaluation, where rewards are not shaped nor tasks made easier.
    """

    index: int
    n_envs: int
    seed: int | None
    in_evaluation: bool

    @classmethod
    def all_of(cls, n_envs: int, root: int | None, *, in_evaluation: bool) -> "list[EnvContext]":
        """Return one per environment."""
        return [
            cls(
                index=index,
                n_envs=n_envs,
                seed=None if root is None else seeding.derive(root, "context", index),
                in_evaluation=in_evaluation,
            )
            for index in range(n_envs)
        ]


def takes_context(factory: Callable[..., Any], given: Mapping[str, Any]) -> bool:
    """Whether a factory wants to be told: it has one positional parameter without a default, and no class is one.

    Args:
        factory: makes an environment.
        given: arguments it gets by name.
    """
    if inspect.isclass(factory):
        return False
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # something built in, whose arguments nobody knows
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    open_ones = [
        parameter
        for parameter in parameters
        if parameter.kind in positional and parameter.default is inspect.Parameter.empty and parameter.name not in given
    ]
    return len(open_ones) == 1


Space = gym.Space[Any]


def observation_space_of(own: object, given: Space | None) -> Any:
    """Return the given observation space, or the environment's own where none is given.

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


def action_space_of(own: object, given: Space | None) -> Any:
    """Return the given action space, or the environment's own where none is given.

    Raises:
        ConfigError: it holds actions that the environment does not take.
    """
    if given is None or not isinstance(own, gym.Space):
        return own if given is None else given
    check_space(given, "make_envs.action_space")
    if not _is_within(given, own):
        raise ConfigError(
            f"make_envs.action_space {given} is not within the environment's {own}: give one of the same kind and "
            "shape whose actions the environment takes, or change the actions by a wrapper or a processor"
        )
    return given


class WithSpaces(gym.Wrapper[Any, Any, Any, Any]):
    """An environment with given spaces."""

    def __init__(
        self, env: gym.Env[Any, Any], *, observation_space: Space | None = None, action_space: Space | None = None
    ) -> None:
        super().__init__(env)
        self.observation_space = observation_space_of(getattr(env, "observation_space", None), observation_space)
        self.action_space = action_space_of(getattr(env, "action_space", None), action_space)


class GameWithSpaces:
    """A game whose agents all have given spaces."""

    def __init__(self, game: Any, *, observation_space: Space | None = None, action_space: Space | None = None) -> None:
        self._game, self._given = game, (observation_space, action_space)
        self.unwrapped = getattr(game, "unwrapped", game)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._game, name)

    def observation_space(self, agent: Any) -> Space:
        """Return what is given, checked against the agent's own."""
        return observation_space_of(self._game.observation_space(agent), self._given[0])  # type: ignore[no-any-return]  # a space

    def action_space(self, agent: Any) -> Space:
        """Return what is given, checked against the agent's own."""
        return action_space_of(self._game.action_space(agent), self._given[1])  # type: ignore[no-any-return]  # a space


def _is_within(given: Space, own: Space) -> bool:
    """Return whether every action of one space is one of the other, of the same kind and shape."""
    if type(given) is not type(own) or given.shape != own.shape or given.dtype != own.dtype:
        return False
    if isinstance(given, gym.spaces.Box) and isinstance(own, gym.spaces.Box):
        return bool(np.all(given.low >= own.low) and np.all(given.high <= own.high))
    if isinstance(given, (gym.spaces.Discrete, gym.spaces.MultiDiscrete)):
        (low, high), (own_low, own_high) = discrete_bounds(given), discrete_bounds(own)
        return bool(np.all(low >= own_low) and np.all(high <= own_high))
    return given == own
