"""A Markov decision process small enough to know its true action values."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainkit import ReplayBuffer, Transition

Behavior = Callable[[NDArray[np.int64], NDArray[np.int64], np.random.Generator], NDArray[np.int64]]


@dataclass(frozen=True)
class Mdp:
    """Ten states, three actions, random successors, two states that often end the episode, and a time limit."""

    gamma: float = 0.8
    time_limit: int = 6
    n_states: int = 10
    n_actions: int = 3

    def __post_init__(self) -> None:
        rng = np.random.default_rng(0)
        successors = rng.dirichlet(np.full(self.n_states, 0.3), size=(self.n_states, self.n_actions))
        object.__setattr__(self, "successors", successors)  # [S, A, S]
        object.__setattr__(self, "reward", rng.uniform(-1.0, 1.0, (self.n_states, self.n_actions)))  # [S, A]
        object.__setattr__(self, "ends", np.isin(np.arange(self.n_states), [3, 7]) * 0.3)  # [S], how likely

    def q_star(self) -> NDArray[np.float64]:
        """Solve Q = R + gamma * P(continue) * E[max Q'] by value iteration; the time limit is no part of the state."""
        q = np.zeros((self.n_states, self.n_actions))
        for _ in range(300):
            q = self.reward + self.gamma * (1.0 - self.ends)[:, None] * (self.successors @ q.max(axis=1))
        return q

    def q_soft(self, temperature: float, *, alpha: float = 0.0, lowest: float = -1.0) -> NDArray[np.float64]:
        """Solve the same with E[sum over a' of pi (Q' - temperature log pi)] for E[max Q'], pi = softmax(Q').

        With `alpha` the reward has alpha * clip(temperature log pi(a | s), lowest, 0) added to it.
        """
        q = np.zeros((self.n_states, self.n_actions))
        for _ in range(300):
            odds = np.exp((q - q.max(axis=1, keepdims=True)) / temperature)
            pi = odds / odds.sum(axis=1, keepdims=True)
            log_pi = np.log(np.maximum(pi, 1e-300))
            after = (pi * (q - temperature * log_pi)).sum(axis=1)
            reward = self.reward + alpha * np.clip(temperature * log_pi, lowest, 0.0)
            q = reward + self.gamma * (1.0 - self.ends)[:, None] * (self.successors @ after)
        return q

    def at_random(self, state: NDArray[np.int64], t: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Behave without any plan."""
        return rng.integers(self.n_actions, size=len(state))

    def optimally(self, state: NDArray[np.int64], t: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Begin with any action and follow the best ones: every window of any length is one of the optimal policy."""
        return np.where(t == 0, self.at_random(state, t, rng), self.q_star().argmax(axis=1)[state])

    def fill(self, buffer: ReplayBuffer, behavior: Behavior, *, n_envs: int, n_steps: int, lie: bool = False) -> None:
        """Play and store; a `lie` calls every truncation a termination as well."""
        rng = np.random.default_rng(1)
        state, t = rng.integers(self.n_states, size=n_envs), np.zeros(n_envs, np.int64)
        bounds = self.successors.cumsum(axis=2)[:, :, :-1]
        for _ in range(n_steps):
            action = behavior(state, t, rng)
            following = (rng.random((n_envs, 1)) > bounds[state, action]).sum(axis=1)
            terminated = rng.random(n_envs) < self.ends[state]
            t = t + 1
            truncated = t == self.time_limit
            buffer.add(
                Transition(
                    obs=state,
                    action=action,
                    reward=self.reward[state, action],
                    next_obs=following,
                    terminated=terminated | truncated if lie else terminated,
                    truncated=truncated,
                    env_ids=np.arange(n_envs),
                    extras={},
                )
            )
            over = terminated | truncated
            state = np.where(over, rng.integers(self.n_states, size=n_envs), following)
            t[over] = 0
