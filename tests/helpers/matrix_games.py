"""Games of one simultaneous move: rock, paper, scissors, and others given by a matrix."""

from typing import Any

import gymnasium as gym
import numpy as np

ROCK_PAPER_SCISSORS = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]], float)


class MatrixGame:
    """Two agents choose at once; the first gets its row's and column's number, the second the negative."""

    possible_agents = ("row", "column")

    def __init__(self, matrix: Any = ROCK_PAPER_SCISSORS) -> None:
        self._matrix = np.asarray(matrix, float)
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Box(0, 1, (1,), np.float32)

    def action_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Discrete(len(self._matrix))

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents = list(self.possible_agents)
        return self._obs(), {name: {} for name in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        won = float(self._matrix[int(actions["row"]), int(actions["column"])])
        self.agents = []
        ends, cuts = dict.fromkeys(actions, True), dict.fromkeys(actions, False)
        return self._obs(), {"row": won, "column": -won}, ends, cuts, {name: {} for name in actions}

    def _obs(self) -> dict[str, Any]:
        return {name: np.zeros(1, np.float32) for name in self.possible_agents}
