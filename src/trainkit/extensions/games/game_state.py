"""The state of a game as a leaf of its agents' observations, for critics that see more than their actors."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
from gymnasium import spaces

from trainkit.core.errors import ConfigError
from trainkit.core.signatures import checked
from trainkit.extensions.games.games import GameWrapper, space_of

STATE_LEAF = "state"
_OBS = "obs"  # the name of an observation that is no dict


@checked
class ObserveState(GameWrapper):
    """Wrapper that adds a game's `state()` to the observations of its agents, for `make_envs(wrappers=[ObserveState])`.

    An observation that is a dict has the leaf "state", too; any other becomes {"obs": observation, "state": state}.
    `critic_only=["state"]` of on-policy learners hides the leaf from the actor.

    Args:
        game: of any API, with PettingZoo's `state` and `state_space`.

    Raises:
        ConfigError: the game has no `state_space`, or observations have a leaf "state" already.
    """

    def __init__(self, game: Any) -> None:
        state_space = getattr(game, "state_space", None)
        if not isinstance(state_space, gym.Space) or not callable(getattr(game, "state", None)):
            raise ConfigError(
                f"ObserveState needs a game with state() and a state_space, and {game} has state_space "
                f"{state_space!r}: give it both, or leave the wrapper out"
            )
        super().__init__(game)
        self._state_space = state_space

    def observation_space(self, agent: Any) -> spaces.Dict:
        """Return an agent's space with the leaf "state"."""
        own = space_of(self._game, "observation_space", agent)
        leaves = dict(own.spaces) if isinstance(own, spaces.Dict) else {_OBS: own}
        if STATE_LEAF in leaves:
            raise ConfigError(f"ObserveState: the observation of agent {agent!r} has a leaf {STATE_LEAF!r} already")
        return spaces.Dict({**leaves, STATE_LEAF: self._state_space})

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the game."""
        result = self._game.reset(seed=seed, options=options)
        return None if result is None else (self._with_state(result[0]), *result[1:])

    def step(self, action: Any) -> Any:
        """Step the game, by the actions of all agents or by one agent's move."""
        result = self._game.step(action)
        return None if result is None else (self._with_state(result[0]), *result[1:])

    def last(self, observe: bool = True) -> Any:
        """Return the observation, reward, flags and info of the agent that is to move."""
        obs, *others = self._game.last() if observe else self._game.last(False)
        return obs if obs is None else self._own(obs, self._game.state()), *others

    def observe(self, agent: Any) -> dict[str, Any]:
        """Return an agent's observation."""
        return self._own(self._game.observe(agent), self._game.state())

    def _with_state(self, by_agent: Mapping[Any, Any]) -> dict[Any, Any]:
        state = self._game.state()
        return {agent: self._own(obs, state) for agent, obs in by_agent.items()}

    def _own(self, obs: Any, state: Any) -> dict[str, Any]:
        return {**(obs if isinstance(obs, Mapping) else {_OBS: obs}), STATE_LEAF: state}
