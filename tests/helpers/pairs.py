"""Games of agents that never meet: each has a corridor of its own, walked for a fixed number of steps."""

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

LENGTH = 12


class Corridors:
    """A walk for each agent: +1 to the right, -1 to the left, with noise of the game's seed and the agent's number.

    Args:
        agents: names of the agents, {name: number}: an agent's walk depends on its number alone.
    """

    def __init__(self, agents: dict[str, int]) -> None:
        self._numbers = agents
        self.possible_agents = list(agents)
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Box(-50, 50, (2,), np.float32)

    def action_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents, self._time = list(self.possible_agents), 0
        self._rngs = {name: np.random.default_rng([seed or 0, number]) for name, number in self._numbers.items()}
        self._places = dict.fromkeys(self.agents, 0.0)
        return self._obs(), {name: {} for name in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        self._time += 1
        for name, action in actions.items():
            self._places[name] += (1.0 if action else -1.0) + self._rngs[name].normal(0, 0.3)
        is_over = self._time == LENGTH
        rewards = {name: -abs(self._places[name]) for name in actions}
        flags = dict.fromkeys(actions, False), dict.fromkeys(actions, is_over)
        if is_over:
            self.agents = []
        return self._obs(), rewards, *flags, {name: {} for name in actions}

    def _obs(self) -> dict[str, NDArray[np.float32]]:
        return {name: np.array([place, self._time], np.float32) for name, place in self._places.items()}


class SeenCorridors(Corridors):
    """Walks whose state is the places of both walkers, and the time."""

    state_space = gym.spaces.Box(-50, 50, (3,), np.float32)

    def state(self) -> Any:
        return np.array([*self._places.values(), self._time], np.float32)


class PushedCorridors(Corridors):
    """The same walks, pushed by a number; of two agents."""

    def __init__(self) -> None:
        super().__init__({"left": 0, "right": 1})

    def action_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Box(-1, 1, (1,), np.float32)

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        return super().step({name: int(push[0] > 0) for name, push in actions.items()})
