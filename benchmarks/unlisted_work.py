"""Environments that no table was tuned on and the zoo does not have, and how policies are judged in them.

A peer's side is a script that takes `--algorithm --task --seed`, learns for `STEPS`, and prints one line of JSON:
`returns` are those of the greedy episodes that `play` returns.
"""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

STEPS = 100_000  # of the environment, at most
EPISODES = 100
SEEDS = (201, 202)
DISCRETE = ("Blackjack-v1", "FrozenLake8x8-v1", "MinAtar/Freeway-v1", "MinAtar/SpaceInvaders-v1")
CONTINUOUS = ("InvertedPendulum-v5", "InvertedDoublePendulum-v5", "Reacher-v5", "Swimmer-v5")
TASKS = (*DISCRETE, *CONTINUOUS)


def make(task: str) -> gym.Env[Any, Any]:
    """Make an environment, MinAtar's registered first."""
    if task.startswith("MinAtar/") and task not in gym.registry:
        import minatar.gym

        minatar.gym.register_envs()
    return gym.make(task)


def play(env: gym.Env[Any, Any], act: Callable[[Any], Any], seed: int) -> list[float]:
    """Return the returns of `EPISODES` episodes of `act`, which maps an observation to an action."""
    returns = []
    for drawn in np.random.SeedSequence(seed).generate_state(EPISODES) % 2**31:
        obs, _ = env.reset(seed=int(drawn))
        total, is_over = 0.0, False
        while not is_over:
            obs, reward, terminated, truncated, _ = env.step(act(obs))
            total += float(reward)
            is_over = terminated or truncated
        returns.append(total)
    return returns
